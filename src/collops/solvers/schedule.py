"""Numbers that are known in advance, one for each iteration, where a replayed iteration finds its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.backend import Engine

__all__ = ["Schedule", "momenta"]


class Schedule:
    """A table on the engine, and how far it has been read.

    A recorded iteration is always the same work: it reads the place in the table from the device, and moves it on.

    Parameters
    ----------
    engine : Engine
        Where the numbers are needed.
    numbers : array_like
        One for each iteration.
    dtype : numpy.dtype
        Real.
    """

    def __init__(self, engine: Engine, numbers: Any, dtype: np.dtype) -> None:
        self._table = engine.from_host(np.asarray(numbers, dtype))
        self._next = engine.xp.zeros((), np.int64)

    @property
    def carried(self) -> Any:
        """What one iteration leaves to the next: how far the table has been read, as an array."""
        return self._next

    def take(self) -> Any:
        """Return the number of this iteration, as a 0-d array that the host does not read."""
        number = self._table.take(self._next)
        self._next += 1
        return number


def momenta(count: int) -> np.ndarray:
    r"""Return the factors :math:`(t_{k-1} - 1) / t_k` of FISTA.

    Notes
    -----
    :math:`t_k = (1 + \sqrt{1 + 4 t_{k-1}^2}) / 2` with :math:`t_0 = 1`.
    """
    factors = np.empty(count)
    before = 1.0
    for number in range(count):
        after = (1 + np.sqrt(1 + 4 * before**2)) / 2
        factors[number] = (before - 1) / after
        before = after
    return factors
