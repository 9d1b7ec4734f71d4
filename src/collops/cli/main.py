"""The entry point: the table of commands, and one command run from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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

application = typer.Typer(
    name="collops",
    help="Large inverse problems on many CPUs and GPUs.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
for _command in (command_of("solve", solve), info):
    application.command()(_command)


def _not_installed(context: typer.Context) -> None:
    report(
        f"collops {context.info_name}",
        "this command is part of collops_bench, which is not installed: "
        "run pip install ./benchmarks in a checkout of collops",
    )
    raise typer.Exit(BAD_INPUT)


# Commands of installed distributions: an application, as `command_of` describes, or a function or a Typer object.
_found = entry_points(group="collops.commands")
for _each in sorted(_found):
    _command = _each.load()
    if isinstance(_command, typer.Typer):
        application.add_typer(_command, name=_each.name)
    else:
        application.command(_each.name)(command_of(_each.name, _command) if hasattr(_command, "run") else _command)
for _name in {"bench", "report", "soak"} - _found.names:  # hidden: they explain how to install collops_bench
    _take_all = {"ignore_unknown_options": True, "allow_extra_args": True}
    application.command(_name, hidden=True, add_help_option=False, context_settings=_take_all)(_not_installed)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"collops {__version__}")
        raise typer.Exit


@application.callback()
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
        code = application(arguments or ["--help"], prog_name="collops", standalone_mode=False)
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
