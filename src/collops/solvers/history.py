"""The numbers of every iteration, kept where the host can read them without making the device wait."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.backend import Engine
from collops.comm import Communicator
from collops.solvers.method import Row
from collops.solvers.problem import check_count

__all__ = ["History", "open_history"]


class History:
    """Rows of numbers, one per iteration, on the host: a row is known as soon as it is stored.

    Attributes
    ----------
    lag : int
        How many rows may be outstanding before the host waits for one.
    """

    lag: int = 0

    def __init__(self) -> None:
        self._stored: list[Row] = []

    @property
    def count(self) -> int:
        """Rows recorded so far."""
        return len(self._stored)

    def store(self, values: Any) -> None:
        """Put the numbers where the next row is; on devices enqueued, and fit to be captured."""
        self._stored.append(values.tolist() if hasattr(values, "tolist") else list(map(float, values)))

    def advance(self) -> None:
        """Count one more row, stored by :meth:`store` or by a replay of it."""

    def row(self, number: int) -> Row:
        """Return a row, waiting for it."""
        return self._stored[number]

    def rows(self) -> np.ndarray:
        """Return all rows, waiting for the last."""
        return np.array(self._stored, np.float64)

    def restore(self, rows: np.ndarray) -> None:
        """Begin with rows of an earlier run, as if they had been recorded."""
        self._stored = rows.tolist()

    def abandon(self) -> None:
        """Leave the rows to a device that may still write to them, after a failure."""


def open_history(engine: Engine, width: int, capacity: int, lag: int | None, comm: Communicator) -> History:
    """Return a history of at most `capacity` rows of `width` numbers of an engine.

    On devices `lag` rows may be outstanding, by default as many as the device's history chooses, and the deadline of
    `comm` limits the waits.

    Raises
    ------
    InputError
        If `lag` is negative or no integer.
    """
    if lag is not None:
        check_count("lag", lag)
    if engine.memory == "host" or not engine.mutable:
        return History()
    from collops.solvers.device_history import DeviceHistory

    return DeviceHistory(width, capacity, DeviceHistory.default_lag if lag is None else lag, comm)
