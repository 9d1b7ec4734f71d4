"""The entry point of the command line: the table of commands, and the execution of one command.

A command is imported only to run it or to show its help, so that the list of commands appears without delay.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from collops import __version__
from collops.apps.interruption import INTERRUPTED
from collops.cli.streams import BAD_INPUT, OutputLostError, report, report_lost, watched_streams
from collops.cli.table import commands, summary_of
from collops.errors import CollopsError

try:
    from typer.exceptions import TyperException as UsageError
except ImportError:  # in older versions of typer
    from click import ClickException as UsageError

__all__ = ["application"]

_OF_BENCHMARKS = ("bench", "report", "soak")  # hidden without collops_bench: they then explain how to install it


class _Commands(Mapping[str, Any]):
    """The commands by name; a command is imported when it is looked up."""

    def __init__(self) -> None:
        self._names = dict.fromkeys([*commands(), *_OF_BENCHMARKS])
        self._made: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:  # Mapping would import the command
        return name in self._names

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            program = typer.Typer()
            if name in commands():
                command = _loaded(name)
                if isinstance(command, typer.Typer):
                    program.add_typer(command, name=name)
                else:
                    program.command(name)(command)
            elif name in _OF_BENCHMARKS:
                take_all = {"ignore_unknown_options": True, "allow_extra_args": True}
                program.command(name, hidden=True, add_help_option=False, context_settings=take_all)(_not_installed)
            else:
                raise KeyError(name)
            self._made[name] = typer.main.get_group(program).commands[name]
        return self._made[name]


def _loaded(name: str) -> Any:
    """Import a command: an application (see `command_of`), a function, or an object of typer."""
    from collops.cli.command import command_of, report_bug

    try:
        command = commands()[name].load()
    except CollopsError as error:
        report(f"collops {name}", str(error))
        raise typer.Exit(BAD_INPUT) from None
    except Exception:
        # A third-party command may raise anything.
        raise typer.Exit(report_bug(f"collops {name}")) from None
    return command_of(name, command) if hasattr(command, "run") else command


class _Group(TyperGroup):
    """The program; its list of commands is read from their source files."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = _Commands()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the help without importing a command."""
        listed = copy.copy(self)
        listed.commands = {name: TyperCommand(name, short_help=summary_of(entry)) for name, entry in commands().items()}
        super(_Group, listed).format_help(ctx, formatter)


@cache
def application() -> typer.Typer:
    """Return the program with its own commands and the commands of installed distributions."""
    program = typer.Typer(
        name="collops",
        cls=_Group,
        help="Large inverse problems on many CPUs and GPUs.",
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        rich_markup_mode=None,  # importing rich would take as long as importing typer
        context_settings={"max_content_width": 120},
    )
    program.callback()(_collops)
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
        if not message:  # a group of commands without a command, whose help has been shown
            return 0
        # Typer would print a box of several lines; all other errors are a single line.
        report(command, f"{message.rstrip('.')}: see {command} --help")
        return BAD_INPUT
    return code if isinstance(code, int) else 0
