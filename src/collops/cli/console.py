"""What a person sees while a job runs and when it is done: notes, a progress bar, and a table."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console

    from collops.apps.report import Outcome, TimeSplit

__all__ = ["Progress", "console", "show"]

# With more ranks than this, a row for each would push the rest off the screen.
_MOST_RANK_ROWS = 8


def console(*, to_stderr: bool) -> Console:
    """Return where to write.

    Under a launcher standard error is a pipe; the process that called the launcher has left word of the
    terminal at its other end in COLLOPS_TERMINAL, a width in characters.
    """
    from rich.console import Console

    width = os.environ.get("COLLOPS_TERMINAL", "")
    if to_stderr and width.isdecimal() and not sys.stderr.isatty():
        return Console(stderr=True, force_terminal=True, width=int(width), highlight=False)
    if not to_stderr and not sys.stdout.isatty():
        # A file or a pipe: wide enough that no row is folded.
        return Console(width=110, highlight=False)
    return Console(stderr=to_stderr, highlight=False)


class Progress:
    """Notes, warnings, and a bar that advances by iterations; on one rank, and the bar only on a terminal.

    Parameters
    ----------
    command : str
        Name of the command, which begins each warning.
    shown : bool
        Whether to show stages, notes and the bar.
    speaking : bool
        Whether to show warnings.
    """

    def __init__(self, command: str, *, shown: bool, speaking: bool) -> None:
        self._command = command
        self._shown = shown
        self._speaking = speaking
        self._console = console(to_stderr=True) if shown or speaking else None
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._shown and self._console is not None and self._console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str) -> None:
        """Say what was decided or done."""
        if self._shown and self._console is not None:
            self._console.print(text, style="dim", markup=False)

    def warn(self, text: str) -> None:
        """Say what the user should know even when they asked for quiet."""
        if self._speaking and self._console is not None:
            self._console.print(f"{self._command}: warning: {text}", markup=False)

    def stage(self, text: str, steps: int | None = None) -> None:
        """Begin a stage of `steps` steps; None where their number is not known."""
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(text, total=steps)

    def advance(self) -> None:
        """Count one step of the stage."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)


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
    where.print(_split_table(outcome.split))
    for path in outcome.files:
        where.print(f"wrote {path}", markup=False, soft_wrap=True)


def _split_table(split: TimeSplit) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title="milliseconds an iteration", title_justify="left"
    )
    table.add_column("rank")
    for kind in (*split.kinds, "all"):
        table.add_column(kind, justify="right")

    def add(label: str, seconds: Any, total: float) -> None:
        table.add_row(label, *(_milliseconds(s) for s in seconds), _milliseconds(total))

    ranks = len(split.seconds)
    totals = split.seconds.sum(axis=1)
    if ranks <= _MOST_RANK_ROWS:
        for rank in range(ranks):
            add(str(rank), split.seconds[rank], totals[rank])
    if ranks > 1:
        if ranks <= _MOST_RANK_ROWS:
            table.add_section()
        add("min", split.seconds.min(axis=0), totals.min())
        add("mean", split.seconds.mean(axis=0), totals.mean())
        add("max", split.seconds.max(axis=0), totals.max())
    return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"
