"""The entry point: parse the command line, run one command, and exit with its code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated, NoReturn

import typer

from collops import __version__
from collops.apps import APPLICATIONS
from collops.cli.errors import BAD_INPUT, report
from collops.cli.info import info
from collops.cli.jacobi import jacobi
from collops.cli.job import command_of

__all__ = ["application", "main"]

_INTERRUPTED = 130
_GROUP = "collops.commands"  # of entry points: a function or an application of typer each
_DEVELOPERS = {"bench", "report", "soak"}
_TAKE_ALL = {"ignore_unknown_options": True, "allow_extra_args": True}

application = typer.Typer(
    name="collops",
    help="Large inverse problems on many CPUs and GPUs.",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
for _command in (*map(command_of, APPLICATIONS), jacobi, info):
    application.command()(_command)


def _add_installed() -> None:
    """Add the commands of other distributions, and hidden ones that explain how to install `collops_bench`."""
    found = entry_points(group=_GROUP)
    for each in found:
        command = each.load()
        if isinstance(command, typer.Typer):
            application.add_typer(command, name=each.name)
        else:
            application.command(each.name)(command)
    for name in _DEVELOPERS - found.names:
        application.command(name, hidden=True, add_help_option=False, context_settings=_TAKE_ALL)(_not_installed)


def _not_installed(context: typer.Context) -> None:
    report(
        f"collops {context.info_name}",
        "this command is part of collops_bench, which is not installed: "
        "run pip install ./benchmarks in a checkout of collops",
    )
    raise typer.Exit(BAD_INPUT)


_add_installed()


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
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    if not arguments:
        arguments = ["--help"]
    try:
        code = application(arguments, prog_name="collops", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except _usage_errors() as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "collops"
        message = str(getattr(error, "format_message", error.__str__)())
        if not message:  # of a group of commands alone, whose help has been shown
            return 0
        # Typer would print a box of several lines; all other errors are one line.
        report(command, f"{message.rstrip('.')}: see {command} --help")
        return BAD_INPUT
    return code if isinstance(code, int) else 0


def _usage_errors() -> type[Exception]:
    """Return the class of the parser's errors, which in older versions of typer is that of click."""
    try:
        from typer.exceptions import TyperException
    except ImportError:
        from click import ClickException

        return ClickException
    return TyperException
