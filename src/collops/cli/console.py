"""Output for users: notes and progress during a job, and a table at its end."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

    from collops.apps.recipe import Outcome

__all__ = ["console"]

_MOST_RANK_ROWS = 8  # more would fill the screen


def console(*, to_stderr: bool) -> Console:
    """Return a console on one of the standard streams.

    Under a launcher both streams are pipes; environment variables say whether these end in a terminal
    (`collops.cli.launch.environment_for`).
    """
    from rich.console import Console

    if to_stderr:
        return Console(stderr=True, highlight=False)
    if sys.stdout.isatty() or "COLLOPS_STDOUT_TERMINAL" in os.environ:
        return Console(highlight=False)
    # A file or a pipe: no colours, and wide enough for all rows.
    return Console(force_terminal=False, width=110, highlight=False)


class Progress:
    """Notes, warnings, and (on a terminal) the name of the current stage: a `Listener` of jobs.

    With `shown` this rank shows notes and stages, with `speaking` warnings, which begin with `command`. `live` is True
    on a terminal.
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
            self._console.print(text, style="dim", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Show a warning, also with --quiet."""
        if self._speaking:
            self._console.print(f"{self._command}: warning: {text}", markup=False, soft_wrap=True)

    def stage(self, text: str | None) -> None:
        """Show that a stage begins; None ends the current one."""
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


def _split_table(seconds: dict[str, np.ndarray]) -> Any:
    """Return the table of the seconds of an iteration, by kind and rank."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="milliseconds an iteration", title_justify="left")
    columns = seconds | {"all": sum(seconds.values(), np.zeros(1))}
    for heading in ("rank", *columns):
        table.add_column(heading, justify="left" if heading == "rank" else "right")
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
