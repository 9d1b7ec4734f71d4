"""Behaviour common to all commands: options, the start of ranks, single-line errors, and functions for typer."""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

import typer

from collops._launcher import started
from collops.apps import interruption
from collops.apps.options import CommonOptions
from collops.apps.options import EngineName as Engine
from collops.apps.stages import local_stage
from collops.cli.console import Progress, console, show
from collops.cli.launch import launch
from collops.cli.streams import (
    BAD_INPUT,
    OutputLostError,
    log_line,
    report,
    report_lost,
    traceback_values,
    write_line,
)
from collops.cli.table import owner_of
from collops.comm import Communicator
from collops.comm.agreement import raised_together
from collops.comm.ending import abort
from collops.comm.mpi import running_mpi_or_tcp
from collops.comm.own_device import select_own_device
from collops.comm.transports import DEVICE_TRANSPORTS
from collops.comm.world import world
from collops.errors import CollopsError, InputError, Interrupted
from collops.profile.settings import check_environment

__all__ = [
    "Debug",
    "Engine",
    "Json",
    "Quiet",
    "Ranks",
    "Transport",
    "check_engine",
    "command_from",
    "ended_short",
    "guarded",
    "with_world",
]

_BUG, _SHORTFALL = 1, 3
# Delays before a rank reports a signal: for the message of the first rank, if it received the signal too; and for Open
# MPI's launcher, which sends SIGTERM to ranks that it kills because another rank has exited.
_REPORT_DELAY_SECONDS, _KILL_DELAY_SECONDS = 0.5, 3.0
# Exit codes of launchers after a signal: its number, or 128 more.
_DEATHS = {
    int(number): number.name
    for number in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV)
}

Ranks = Annotated[
    int | None,
    typer.Option(
        help="Number of processes (ranks); under mpiexec or srun, the number started by it.", show_default="1"
    ),
]
Transport = Annotated[
    str,
    typer.Option(help=f"Transport for GPU arrays: {', '.join(DEVICE_TRANSPORTS.names)}. CPU arrays always use MPI."),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the results as one JSON object on stdout; everything else goes to stderr."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show only warnings and errors.")]
Log = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        help="Notes, warnings, progress and errors as text, or as one JSON object a line with time, rank and host.",
        show_default="text",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")]


def check_engine(name: str) -> None:
    """Raise `InputError` unless commands support an engine."""
    if name not in ("auto", "numpy", "cupy"):
        raise InputError(f"--engine must be one of auto, numpy, cupy, not {name!r}")


def command_of(name: str, application: Any) -> Callable[..., None]:
    """Return the command of an application: an object, such as a module, with attributes ``Options`` and ``run``."""

    def run(chosen: Any, comm: Communicator, as_json: bool, quiet: bool) -> int:
        from collops.apps.recipe import run_job

        first = comm.rank == 0
        with Progress(f"collops {name}", shown=first and not quiet, speaking=first) as progress:
            outcome = run_job(application.run, chosen, comm, progress, f"collops {name}")
        if first and not quiet:
            show(outcome, console(to_stderr=as_json))
        if first and as_json:
            typer.echo(json.dumps(outcome.numbers, allow_nan=False))
        return ended_short(f"collops {name}", outcome.shortfall)

    return command_from(name, application.Options, run, help=application.run.__doc__)


def command_from(
    name: str,
    kind: type[Any],
    run: Callable[[Any, Communicator, bool, bool], int],
    help: str,
    begin: Callable[[Any], None] = lambda chosen: None,
) -> Callable[..., None]:
    """Return a function for typer with the options of a dataclass (`collops.apps.options`).

    `kind` has a method ``check``. `run` takes the options, the communicator, and whether to print JSON and to be quiet,
    and returns the exit code. `help` has paragraphs; the list of commands shows the first paragraph, read from the
    source code, where `help` must be a keyword argument. `begin` is called with the options before the ranks connect.
    """
    hints = get_type_hints(kind, include_extras=True)
    shared = {item.name for item in fields(CommonOptions)} if issubclass(kind, CommonOptions) else set()
    ordered = sorted(fields(kind), key=lambda item: item.name in shared)  # the application's own options come first
    asked = [
        ("ranks", Ranks, None),
        ("transport", Transport, "auto"),
        *((item.name, hints[item.name], item.default) for item in ordered),
        ("as_json", Json, False),
        ("quiet", Quiet, False),
        ("log", Log, None),
        ("debug", Debug, False),
    ]

    def command(
        *, ranks: int | None, transport: str, as_json: bool, quiet: bool, log: str | None, debug: bool, **values: Any
    ) -> None:
        if log is not None:
            os.environ["COLLOPS_LOG"] = log  # which the ranks inherit
        chosen = kind(**values)
        begin(chosen)

        def body(comm: Communicator) -> int:
            return run(chosen, comm, as_json, quiet)

        with_world(f"collops {name}", body, ranks=ranks, transport=transport, debug=debug, check=chosen.check)

    made: Any = command
    # Typer preserves line breaks: join each paragraph into a single line.
    made.__name__, made.__doc__ = name, "\n\n".join(" ".join(part.split()) for part in help.split("\n\n"))
    made.__annotations__ = {name: annotation for name, annotation, _ in asked}
    made.__signature__ = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, annotation, default in asked
        ]
    )
    return made


def with_world(
    command: str,
    body: Callable[[Communicator], int | None],
    *,
    ranks: int | None,
    transport: str,
    debug: bool,
    check: Callable[[], None] = lambda: None,
    own_device: bool = False,
) -> None:
    """Run `body` on every rank of the world, starting the ranks if necessary, and raise `typer.Exit`.

    The exit code is the result of `body`, by default 0. `check` validates the options of the command, before the ranks
    are started and again on every rank, as files may be missing on some hosts. With `own_device` each rank is
    restricted to its own GPU, as JAX requires.
    """

    def run_body() -> int:
        with raised_together():
            if ranks is not None and ranks < 1:
                raise InputError(f"--ranks must be at least 1, not {ranks}")
            DEVICE_TRANSPORTS.check(transport)
            check_environment()
            if (log := os.environ.get("COLLOPS_LOG") or "text") not in ("text", "json"):
                raise InputError(f"COLLOPS_LOG must be text or json, not {log!r}")
            if (launcher := started()) is None:
                check()
                if ranks is not None and ranks > 1:
                    code = launch(ranks, sys.argv[1:])
                    if (name := _DEATHS.get(code % 128)) is not None:
                        report(command, f"a rank was killed by {name}, which ended the others")
                    return code
            if own_device:
                select_own_device()
            comm = world(transport)
            interruption.begin()
            if ranks is not None and ranks != comm.size:
                raise InputError(f"--ranks {ranks}, but the launcher started {comm.size} ranks: omit --ranks")
        if launcher is not None:
            with local_stage(comm):  # files may be missing on some hosts
                check()
        return body(comm) or 0

    raise typer.Exit(guarded(command, run_body, debug=debug))


def guarded(command: str, body: Callable[[], int], *, debug: bool) -> int:
    """Run `body`, and convert its errors into an exit code that is the same on every rank.

    The code is the result of `body`; 75 if a signal ended the job, after a checkpoint if a solver was running with
    checkpoints; 130 after Ctrl-C; 2 for any other `CollopsError`, whose traceback `debug` shows; 74 or 141 if the
    output cannot be written; 1 for other exceptions.

    For an error that all ranks raise, the first rank writes one line, which begins with the `command`. A single rank
    with an error writes the line and aborts the other ranks, which would wait for it.
    """
    try:
        if started() is None:  # launched ranks call `begin` later, when they can end each other
            interruption.begin()
        return body()
    except interruption.Stopped as stop:
        return _end_by_signal(command, stop)
    except Interrupted as error:
        report(command, str(error))
        return error.exit_code
    except CollopsError as error:
        values = traceback_values() if debug else {}
        if error.on_all_ranks or (mpi := running_mpi_or_tcp()) is None:
            report(command, str(error), **values)
        else:
            abort(mpi, BAD_INPUT, log_line("error", command, f"rank {mpi.COMM_WORLD.rank}: {error}", **values))
        return BAD_INPUT
    except KeyboardInterrupt:
        return interruption.INTERRUPTED
    except OutputLostError as lost:
        if (mpi := running_mpi_or_tcp()) is not None:
            abort(mpi, lost.exit_code, log_line("error", command, str(lost)))
        return report_lost(command, lost)
    except Exception:
        # Catch everything only here: otherwise the other ranks would wait for this rank.
        return report_bug(command)
    finally:
        interruption.complete()


def report_bug(command: str) -> int:
    """Report an unexpected exception and the distribution of the command; return the exit code."""
    values = traceback_values()
    above = "traceback" if values else "lines above"
    line = log_line(
        "error", command, f"this is a bug in {owner_of(command)}; please report it with the {above}", **values
    )
    if (mpi := running_mpi_or_tcp()) is None:
        write_line(line)
    else:
        abort(mpi, _BUG, line)
    return _BUG


def _end_by_signal(command: str, stop: interruption.Stopped) -> int:
    """Report the signal in one line and end the job, even if only this rank received the signal."""
    name = "Ctrl-C" if stop.number == signal.SIGINT else signal.Signals(stop.number).name
    line = (
        f"{name} ended the job; nothing was saved (only solvers with --checkpoint save their progress): start it again"
    )
    if (mpi := running_mpi_or_tcp()) is None:
        report(command, line)
    else:
        killed = stop.number == signal.SIGTERM and "OMPI_COMM_WORLD_RANK" in os.environ
        time.sleep(_KILL_DELAY_SECONDS if killed else _REPORT_DELAY_SECONDS * (mpi.COMM_WORLD.rank > 0))
        abort(mpi, stop.exit_code, log_line("error", command, line))
    return stop.exit_code


def ended_short(command: str, shortfall: str | None) -> int:
    """Report a shortfall, if any, and return the exit code of a completed command."""
    if shortfall is None:
        return 0
    report(command, shortfall)
    return _SHORTFALL
