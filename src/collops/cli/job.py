"""Behaviour common to all commands: start ranks, report errors in one line, print a table, end with JSON."""

from __future__ import annotations

import importlib
import inspect
import json
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from collops.apps.options import CommonOptions
from collops.apps.stages import raised_together
from collops.cli import options
from collops.cli.console import Progress, console, show
from collops.cli.errors import guarded, report
from collops.cli.launch import launch, started
from collops.errors import InputError
from collops.profile.settings import check_environment

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["with_world"]

# Exit codes of launchers after a signal: its number, or 128 more.
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
    """Run `body` on every rank of the world, starting the ranks if necessary, and raise `typer.Exit`.

    Parameters
    ----------
    command : str
        Name of the command in messages.
    body : callable
        Called with the communicator of all ranks.
    ranks : int, optional
        Number of ranks that the user asked for.
    transport : str
        See `collops.comm.world`.
    debug : bool
        Whether errors show their traceback.
    check : callable, optional
        Checks the options, before any rank is started and again on every rank.
    own_device : bool
        Whether each rank sees only its own GPU, as JAX requires.
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
                raise InputError(f"--ranks {ranks}, but the launcher started {comm.size}: leave --ranks out")
        body(comm)
        return 0

    raise typer.Exit(guarded(command, here, debug=debug))


def command_of(name: str) -> Callable[..., None]:
    """Return the command of an application, one of `collops.apps.APPLICATIONS`."""
    application = importlib.import_module(f"collops.apps.{name}")

    def run(chosen: Any, arguments: Mapping[str, Any], comm: Communicator) -> None:
        from collops.apps.recipe import run_job

        as_json, quiet, first = arguments["as_json"], arguments["quiet"], comm.rank == 0
        with Progress(f"collops {name}", shown=first and not quiet, speaking=first) as progress:
            outcome = run_job(application.run, chosen, comm, progress)
        if first and not quiet:
            show(outcome, console(to_stderr=as_json))
        if first and as_json:
            typer.echo(json.dumps(outcome.numbers, allow_nan=False))

    return command_from(name, application.Options, run, application.run.__doc__)


def command_from(
    name: str, kind: type[Any], run: Callable[[Any, Mapping[str, Any], Communicator], None], text: str
) -> Callable[..., None]:
    """Return a function for typer that asks for the options of a dataclass (`collops.apps.options`).

    `kind` has a method ``check``. `run` gets the options, all arguments by name (including those of every command), and
    the communicator. `text` is the help.
    """
    hints = get_type_hints(kind, include_extras=True)
    shared = {each.name for each in fields(CommonOptions)} if issubclass(kind, CommonOptions) else set()
    own = sorted(fields(kind), key=lambda each: each.name in shared)  # the application's own options come first
    asked = [
        ("ranks", options.Ranks, None),
        ("transport", options.Transport, "auto"),
        *((each.name, hints[each.name], each.default) for each in own),
        ("as_json", options.Json, False),
        ("quiet", options.Quiet, False),
        ("debug", options.Debug, False),
    ]

    def command(**arguments: Any) -> None:
        chosen = kind(**{each.name: arguments[each.name] for each in own})
        common = {each: arguments[each] for each in ("ranks", "transport", "debug")}
        with_world(f"collops {name}", partial(run, chosen, arguments), **common, check=chosen.check)

    made: Any = command
    # Typer keeps line breaks: paragraphs must be single lines.
    made.__name__, made.__doc__ = name, "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    made.__annotations__ = {name: annotation for name, annotation, _ in asked}
    made.__signature__ = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, annotation, default in asked
        ]
    )
    return made


def _check_transport(transport: str) -> None:
    from collops.comm.world import TRANSPORTS

    if transport not in TRANSPORTS:
        raise InputError(f"there is no transport {transport!r}: choose one of {', '.join(TRANSPORTS)}")
