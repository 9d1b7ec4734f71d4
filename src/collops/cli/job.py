"""The manners that all jobs share: one line for an error, the number of ranks, a table, JSON at the end."""

from __future__ import annotations

import importlib
import inspect
import json
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import typer

from collops.apps.stages import raised_together
from collops.cli import options
from collops.cli.console import Progress, console, show
from collops.cli.errors import guarded, report
from collops.cli.launch import launch, started
from collops.errors import InputError
from collops.profile.settings import check_environment

if TYPE_CHECKING:
    from collops.apps.job import Job
    from collops.apps.options import JobOptions
    from collops.comm import Communicator

__all__ = ["job", "with_world"]

# Launchers end with the number of the signal, or with 128 more.
_DEATHS = {
    int(number): number.name
    for number in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV)
}


def with_world(
    command: str,
    body: Callable[[Communicator], None],
    *,
    ranks: int | None,
    transport: str,
    debug: bool,
    check: Callable[[], None] | None = None,
    own_device: bool = False,
) -> None:
    """Run `body` on every rank of the world, which is started first if need be, and exit.

    Parameters
    ----------
    command : str
        Name of the command for messages.
    body : callable
        Gets the communicator of all ranks.
    ranks : int, optional
        How many ranks the user asked for.
    transport : str
        See `collops.comm.world`.
    debug : bool
        Whether errors show their traceback.
    check : callable, optional
        Raises what is wrong with the options; called before anything is started, and on every rank.
    own_device : bool
        Whether each rank is to see its own GPU alone, as JAX needs it.

    Raises
    ------
    typer.Exit
        Always, with the exit code.
    """

    def here() -> int:
        with raised_together():
            if ranks is not None and ranks < 1:
                raise InputError(f"--ranks must be at least 1, not {ranks}")
            _check_transport(transport)
            check_environment()
            if check is not None:
                check()
            launcher = started()
            if launcher is None and ranks is not None and ranks > 1:
                code = launch(ranks, sys.argv[1:])
                if (name := _DEATHS.get(code % 128)) is not None:
                    report(command, f"a rank died of {name}, which ended the others")
                return code
            from collops.comm import world
            from collops.comm.own_device import show_own_device

            if own_device:
                show_own_device()
            comm = world(transport)
            if launcher is not None and launcher.ranks not in (None, comm.size):
                raise InputError(
                    f"the launcher started {launcher.ranks} processes but MPI sees a world of {comm.size}: "
                    "use the mpiexec that belongs to the MPI of mpi4py (or srun --mpi=pmix or pmi2)"
                )
            if ranks is not None and ranks != comm.size:
                raise InputError(
                    f"--ranks {ranks} disagrees with the {comm.size} that the launcher started: leave --ranks out"
                )
        body(comm)
        return 0

    raise typer.Exit(guarded(command, here, debug=debug))


def job(kind: type[JobOptions], more: Mapping[str, Any] = MappingProxyType({})) -> Callable[[Callable], Callable]:
    """Make the command of an application from a function that has its own options and its help, and no body.

    What all jobs are asked comes before and after. The command runs ``collops.apps.NAME.job.run``, where NAME is that
    of the function, with a progress bar, shows the outcome, and exits; see `with_world`.

    Parameters
    ----------
    kind : type
        Of the job's options; its defaults are those of the command.
    more : mapping of str to type
        Options that it shares with some other jobs, by the name of the argument.

    Returns
    -------
    callable
        A decorator.
    """

    def decorate(own: Callable) -> Callable:
        def command(**arguments: Any) -> None:
            _run_job(own.__name__, kind, arguments)

        signature = inspect.signature(own, eval_str=True)
        default = {"ranks": None, "transport": "auto", "as_json": False, "quiet": False, "debug": False}
        default |= {each.name: getattr(kind(), each.name) for each in fields(kind)}
        asked = {**options.FIRST, **more, **{name: each.annotation for name, each in signature.parameters.items()}}
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default[name])
            for name, annotation in {**asked, **options.LAST}.items()
        ]
        made: Any = command
        made.__name__, made.__doc__, made.__module__ = own.__name__, own.__doc__, own.__module__
        made.__signature__ = signature.replace(parameters=shared)
        made.__annotations__ = {each.name: each.annotation for each in shared}
        return made

    return decorate


def _run_job(name: str, kind: type[JobOptions], arguments: Mapping[str, Any]) -> None:
    chosen = kind(**{each.name: arguments[each.name] for each in fields(kind)})
    as_json, quiet = arguments["as_json"], arguments["quiet"]
    command = f"collops {name}"

    def body(comm: Communicator) -> None:
        first = comm.rank == 0
        with Progress(command, shown=first and not quiet, speaking=first) as progress:
            run: Job = importlib.import_module(f"collops.apps.{name}.job").run
            outcome = run(chosen, comm, progress)
        if not first:
            return
        if not quiet:
            show(outcome, console(to_stderr=as_json))
        if as_json:
            typer.echo(json.dumps(outcome.numbers, allow_nan=False))

    manners = {each: arguments[each] for each in ("ranks", "transport", "debug")}
    with_world(command, body, **manners, check=chosen.check)


def _check_transport(transport: str) -> None:
    from collops.comm.world import TRANSPORTS

    if transport not in TRANSPORTS:
        raise InputError(f"there is no transport {transport!r}: choose one of {', '.join(TRANSPORTS)}")
