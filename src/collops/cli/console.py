"""Output for users: notes and progress during a job, a table at its end, and streams that can be lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from collops.comm.launcher import started

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from collops.apps.recipe import Outcome

__all__ = ["Progress", "console", "table_of_numbers"]

# Exit codes: of programs that SIGPIPE ends, and of errors of input and output in ``sysexits.h``.
READER_GONE, _OUTPUT_LOST = 141, 74
_MOST_RANK_ROWS = 8  # more would fill the screen


def console(*, to_stderr: bool) -> Console:
    """Return a console on one of the standard streams, with escape codes only where this ends in a terminal.

    With NO_COLOR it has neither colours nor other styles.
    """
    from rich.console import Console

    options: dict[str, Any] = {"stderr": to_stderr, "highlight": False}
    if os.environ.get("NO_COLOR"):
        options["color_system"] = None
    if not to_stderr and not (sys.stdout is not None and sys.stdout.isatty()):
        # A file or a pipe: no colours, and wide enough for all rows.
        options |= {"force_terminal": False, "width": 110}
    return Console(**options)


class OutputLostError(OSError):
    """Standard output or error cannot be written any more; `exit_code` is the command's."""

    def __init__(self, name: str, problem: OSError) -> None:
        super().__init__(f"standard {name} cannot be written: {problem.strerror or problem}")
        self.exit_code = READER_GONE if isinstance(problem, BrokenPipeError) else _OUTPUT_LOST


class _Watched:
    """A stream that knows where its rank's launcher writes, and whose errors are `OutputLostError`.

    Other errors of the operating system are about files of the job. Under a launcher the stream itself says nothing
    about a terminal: some launchers give their ranks pipes, and Open MPI gives them terminals even where it writes to a
    file. A `variable` of the environment does, which `collops.cli.launch.environment_for` sets, or the user.
    """

    def __init__(self, name: str, stream: Any, variable: str) -> None:
        self._name, self._stream, self._variable = name, stream, variable

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return self._stream.isatty() if started() is None else os.environ.get(self._variable) == "1"

    def write(self, text: str) -> int:
        # Typer writes nothing to learn of what kind a stream is, and would hide an error.
        return self._watch(self._stream.write, text) if text != "" else 0

    def flush(self) -> None:
        self._watch(self._stream.flush)

    def _watch(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except OSError as problem:
            # Python would write what is left, and complain again, at its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            raise OutputLostError(self._name, problem) from problem


@contextmanager
def watched_streams() -> Iterator[None]:
    """Watch the standard streams: raise `OutputLostError` in the body or at its end if one cannot be written."""
    before = sys.stdout, sys.stderr
    if sys.stdout is not None:
        sys.stdout = _Watched("output", sys.stdout, "COLLOPS_STDOUT_TERMINAL")
    if sys.stderr is not None:
        sys.stderr = _Watched("error", sys.stderr, "TTY_COMPATIBLE")
    try:
        yield
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        sys.stdout, sys.stderr = before


class Progress:
    """Notes, warnings, and (on a terminal) the name of the current stage: a `Listener` of jobs.

    With `shown` this rank shows notes and stages, with `speaking` warnings, which begin with `command`. `live` is True
    on a terminal. A job continues where they can no longer be written: its results are worth more.
    """

    def __init__(self, command: str, *, shown: bool, speaking: bool) -> None:
        self._command = command
        self._shown = shown
        self._speaking = speaking
        self._console: Any = console(to_stderr=True) if shown or speaking else None
        self._status: Any = None
        self.live = shown and self._console.is_terminal

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stage(None)

    def note(self, text: str) -> None:
        """Show a decision."""
        if self._shown:
            self._print(text, style="dim")

    def warn(self, text: str) -> None:
        """Show a warning, also with --quiet."""
        if self._speaking:
            self._print(f"{self._command}: warning: {text}")

    def _print(self, text: str, **more: Any) -> None:
        with suppress(OutputLostError):
            self._console.print(text, markup=False, soft_wrap=True, **more)

    def stage(self, text: str | None) -> None:
        """Show that a stage begins; None ends the current one."""
        with suppress(OutputLostError):
            if self._status is not None:
                self._status.stop()
                self._status = None
            if self.live and text is not None:
                self._status = self._console.status(text)
                self._status.start()


def show(outcome: Outcome, where: Console) -> None:
    """Print the table of an outcome."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    for label, value in outcome.rows:
        table.add_row(label, value)
    where.print()
    where.print(table, markup=False)
    where.print()
    if outcome.seconds is not None:
        where.print(_split_table(outcome.seconds))
    for path in outcome.files:
        where.print(f"wrote {path}", markup=False, soft_wrap=True)


def table_of_numbers(title: str | None, first: str, *others: str) -> Table:
    """Return an empty table with these columns; names are in the first one, and numbers in the others."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _split_table(seconds: dict[str, np.ndarray]) -> Table:
    """Return the table of the seconds of an iteration, by kind and rank."""
    columns = seconds | {"all": sum(seconds.values(), np.zeros(1))}
    table = table_of_numbers("milliseconds an iteration", "rank", *columns)
    by_rank = np.column_stack(list(columns.values()))
    ranks = len(by_rank)
    rows = {str(rank): by_rank[rank] for rank in range(ranks)} if ranks <= _MOST_RANK_ROWS else {}
    if ranks > 1:
        rows |= {"min": by_rank.min(axis=0), "mean": by_rank.mean(axis=0), "max": by_rank.max(axis=0)}
    for label, row in rows.items():
        if label == "min":
            table.add_section()
        table.add_row(label, *map(_milliseconds, row))
    return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"
