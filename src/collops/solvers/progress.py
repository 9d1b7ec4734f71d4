"""The progress bar of solvers: on rank 0, and only where somebody can see it."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from collops.comm import Communicator

__all__ = ["ProgressBar", "open_progress"]

_SECONDS_BETWEEN_UPDATES = 0.1


class ProgressBar:
    """Shows how many iterations are done, and the norm of the residual.

    Parameters
    ----------
    name : str
        What is running.
    total : int
        Largest number of iterations.
    """

    def __init__(self, name: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("residual {task.fields[residual]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task: Any = self._bar.add_task(name, total=total, residual="")
        self._next = 0.0

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    @property
    def due(self) -> bool:
        """Whether the last update is long enough ago."""
        return time.monotonic() >= self._next

    def update(self, iteration: int, residual_norm: float | None) -> None:
        """Show an iteration."""
        shown = "" if residual_norm is None else f"{residual_norm:.3e}"
        self._bar.update(self._task, completed=iteration, residual=shown)
        self._next = time.monotonic() + _SECONDS_BETWEEN_UPDATES


def open_progress(progress: bool | None, name: str, total: int, comm: Communicator) -> ProgressBar | None:
    """Return a progress bar, or ``None`` where there is to be none.

    Parameters
    ----------
    progress : bool, optional
        Whether to show one; by default where standard error is a terminal. Never on other ranks than 0.
    name, total, comm
        What is running, its largest number of iterations, and the ranks.
    """
    if comm.rank != 0 or progress is False or (progress is None and not sys.stderr.isatty()):
        return None
    return ProgressBar(name, total)
