"""Output for users: notes and progress during a job, and a table at its end."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from collops.cli.streams import OutputLostError, log_line, logs_as_json, write_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from collops.apps.recipe import Outcome

__all__ = ["Progress", "console", "table_of_numbers"]

_MAX_RANK_ROWS = 8  # more would fill the screen


def console(*, to_stderr: bool) -> Console:
    """Return a console on a standard stream, with escape codes only on a terminal, and without styles with NO_COLOR."""
    from rich.console import Console

    options: dict[str, Any] = {"stderr": to_stderr, "highlight": False}
    if os.environ.get("NO_COLOR"):
        options["color_system"] = None
    if not to_stderr and not (sys.stdout is not None and sys.stdout.isatty()):
        # A file or a pipe: no colours, and wide enough for all rows.
        options |= {"force_terminal": False, "width": 110}
    return Console(**options)


class Progress:
    """Notes, warnings, and (on a terminal) the name of the current stage: a `Listener` of jobs.

    With `shown` this rank shows notes and stages; with `speaking` it shows warnings, which begin with `command`. `live`
    is True on a terminal. With ``--log json`` each is a JSON object in a line. Errors of the output do not end the job.
    """

    def __init__(self, command: str, *, shown: bool, speaking: bool) -> None:
        self._command = command
        self._shown = shown
        self._speaking = speaking
        self._console: Any = console(to_stderr=True) if shown or speaking else None
        self._status: Any = None
        self.live = shown and self._console.is_terminal and not logs_as_json()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stage(None)

    def note(self, text: str, **numbers: object) -> None:
        """Show a decision, or progress; `numbers` are its values for structured logs."""
        if self._shown:
            self._print("info", text, style="dim", **numbers)

    def warn(self, text: str) -> None:
        """Show a warning, also with --quiet."""
        if self._speaking:
            self._print("warning", text)

    def _print(self, level: str, text: str, style: str | None = None, **numbers: object) -> None:
        line = log_line(level, self._command, text, **numbers)
        if logs_as_json():
            write_line(line)
            return
        with suppress(OutputLostError):
            self._console.print(line, markup=False, soft_wrap=True, style=style)

    def stage(self, text: str | None) -> None:
        """Show that a stage begins; None ends the current one."""
        if self._shown and text is not None and logs_as_json():
            write_line(log_line("info", self._command, text))
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


def table_of_numbers(title: str | None, first: str, *headings: str) -> Table:
    """Return an empty table with these columns: names in the first column, numbers in the others."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column(first)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _split_table(seconds: dict[str, np.ndarray]) -> Table:
    """Return the table of the seconds of an iteration, by kind and rank."""
    columns = seconds | {"all": sum(seconds.values(), np.zeros(1))}
    table = table_of_numbers("milliseconds per iteration", "rank", *columns)
    by_rank = np.column_stack(list(columns.values()))
    ranks = len(by_rank)
    rows = {str(rank): by_rank[rank] for rank in range(ranks)} if ranks <= _MAX_RANK_ROWS else {}
    if ranks > 1:
        rows |= {"min": by_rank.min(axis=0), "mean": by_rank.mean(axis=0), "max": by_rank.max(axis=0)}
    for label, row in rows.items():
        if label == "min":
            table.add_section()
        table.add_row(label, *map(_milliseconds, row))
    return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"
