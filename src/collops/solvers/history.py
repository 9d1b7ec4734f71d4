"""The numbers of every iteration, kept where the host can read them without making the device wait."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from collops.backend import Engine
from collops.comm import Communicator
from collops.solvers.method import Row
from collops.solvers.problem import check_count

__all__ = ["History", "HostHistory", "open_history"]


class History(Protocol):
    """Rows of numbers, one per iteration.

    Attributes
    ----------
    lag : int
        How many rows may be outstanding before the host waits for one.
    count : int
        Rows recorded so far.
    """

    lag: int

    @property
    def count(self) -> int:
        """Rows recorded so far."""
        ...

    def store(self, values: Any) -> None:
        """Put the numbers where the next row is; on devices enqueued, and fit to be captured."""
        ...

    def advance(self) -> None:
        """Note that one more row has been stored, by :meth:`store` or by a replay of it."""
        ...

    def row(self, number: int) -> Row:
        """Return a row, waiting for it."""
        ...

    def rows(self) -> np.ndarray:
        """Return all rows, waiting for the last."""
        ...

    def restore(self, rows: np.ndarray) -> None:
        """Begin with rows of an earlier run, as if they had been recorded."""
        ...

    def abandon(self) -> None:
        """Leave the rows to a device that may still write to them, after a failure."""
        ...


class HostHistory:
    """Rows of numbers that are known as soon as they are stored."""

    lag = 0

    def __init__(self) -> None:
        self._rows: list[Row] = []

    @property
    def count(self) -> int:
        """Rows recorded so far."""
        return len(self._rows)

    def store(self, values: Any) -> None:
        """Append a row."""
        self._rows.append(values.tolist() if hasattr(values, "tolist") else list(map(float, values)))

    def advance(self) -> None:
        """Do nothing: a stored row is there."""

    def row(self, number: int) -> Row:
        """Return a row."""
        return self._rows[number]

    def rows(self) -> np.ndarray:
        """Return all rows."""
        return np.array(self._rows, np.float64)

    def restore(self, rows: np.ndarray) -> None:
        """Begin with rows of an earlier run."""
        self._rows = rows.tolist()

    def abandon(self) -> None:
        """Do nothing: nobody else writes to the rows."""


def open_history(engine: Engine, width: int, capacity: int, lag: int | None, comm: Communicator) -> History:
    """Return a history for numbers of an engine.

    Parameters
    ----------
    engine : Engine
        Whose arrays will be stored.
    width, capacity : int
        Numbers in a row, and the largest number of rows.
    lag : int, optional
        Rows that may be outstanding; by default the device's history chooses.
    comm : Communicator
        Whose deadline limits the waits.

    Raises
    ------
    InputError
        If `lag` is negative or no integer.
    """
    if lag is not None:
        check_count("lag", lag)
    if engine.memory == "host" or not engine.keeps:
        return HostHistory()
    from collops.solvers.device_history import DeviceHistory

    return DeviceHistory(width, capacity, DeviceHistory.default_lag if lag is None else lag, comm)
