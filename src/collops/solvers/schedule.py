"""Numbers that differ from iteration to iteration, such as factors of momentum."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collops.backend import Engine, LocalArray, engine, is_traced
from collops.solvers.problem import check_kept
from collops.solvers.state import CONSTANT, Scalar

__all__ = ["Schedule", "momenta"]


@dataclass(eq=False)
class Schedule:
    """A table of numbers, one for each iteration, and the index of the next one. A part of a state.

    A recorded iteration reads the index from the device and increments it, so that every replay is identical.
    """

    place: Scalar
    table: LocalArray = field(metadata=CONSTANT)

    @classmethod
    def from_numbers(cls, numbers: LocalArray, engine: Engine, dtype: np.dtype) -> Schedule:
        """Return a schedule of real numbers on an engine."""
        dtype = engine.dtype(dtype)
        table = numbers.astype(dtype) if is_traced(numbers) else engine.from_host(np.asarray(numbers, dtype))
        return cls(engine.xp.zeros((), dtype=engine.dtype(np.int64)), table)

    def take(self) -> Scalar:
        """Return the number of this iteration as a 0-d array. Does not synchronise with the device."""
        number = self.table.take(self.place)
        self.place += 1
        return number


def momenta(count: int) -> np.ndarray:
    """Return the factors ``(t[k-1] - 1) / t[k]`` of FISTA: ``t[k] = (1 + sqrt(1 + 4 t[k-1]**2)) / 2``, ``t[0] = 1``."""
    check_kept("niter", count, engine("numpy"), 1)
    factors = np.empty(count)
    before = 1.0
    for number in range(count):
        after = (1 + np.sqrt(1 + 4 * before**2)) / 2
        factors[number] = (before - 1) / after
        before = after
    return factors
