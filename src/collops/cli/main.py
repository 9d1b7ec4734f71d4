"""The entry point: the table of commands, and one command run from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Annotated, NoReturn

import typer

from collops import __version__
from collops.apps import solve
from collops.apps.interruption import INTERRUPTED
from collops.cli.command import BAD_INPUT, command_of, report, report_lost
from collops.cli.console import OutputLostError, watched_streams
from collops.cli.info import info

try:
    from typer.exceptions import TyperException as UsageError
except ImportError:  # in older versions of typer
    from click import ClickException as UsageError

__all__ = ["application"]


@cache
def application() -> typer.Typer:
    """Return the program with its own commands and, imported here, the commands of installed distributions."""
    program = typer.Typer(
        name="collops",
        help="Large inverse problems on many CPUs and GPUs.",
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
    )
    program.callback()(_collops)
    for command in (command_of("solve", solve), info):
        program.command()(command)
    found = entry_points(group="collops.commands")
    for each in sorted(found):
        # A Typer object; an application, as `command_of` describes; or a function.
        command = each.load()
        if isinstance(command, typer.Typer):
            program.add_typer(command, name=each.name)
        else:
            program.command(each.name)(command_of(each.name, command) if hasattr(command, "run") else command)
    for name in {"bench", "report", "soak"} - found.names:  # hidden: they explain how to install collops_bench
        take_all = {"ignore_unknown_options": True, "allow_extra_args": True}
        program.command(name, hidden=True, add_help_option=False, context_settings=take_all)(_not_installed)
    return program


def _not_installed(context: typer.Context) -> None:
    report(
        f"collops {context.info_name}",
        "this command is part of collops_bench, which is not installed: "
        "run pip install ./benchmarks in a checkout of collops",
    )
    raise typer.Exit(BAD_INPUT)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"collops {__version__}")
        raise typer.Exit


def _collops(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    # A callback holds the options of the program itself.
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, by default ``sys.argv[1:]``, and exit."""
    try:
        with watched_streams():
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
    except OutputLostError as lost:
        code = report_lost("collops", lost)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    try:
        code = application()(arguments or ["--help"], prog_name="collops", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "collops"
        message = error.format_message()
        if not message:  # of a group of commands alone, whose help has been shown
            return 0
        # Typer would print a box of several lines; all other errors are one line.
        report(command, f"{message.rstrip('.')}: see {command} --help")
        return BAD_INPUT
    return code if isinstance(code, int) else 0
