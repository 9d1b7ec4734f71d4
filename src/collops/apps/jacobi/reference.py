"""The run on one rank: what the parallel ones are timed against, and compared with point by point."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.comm import ExchangePlan
from collops.stencil import Problem, Run, make, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.stencil import Variant

__all__ = ["Difference", "Reference"]

_PULSE_SECONDS = 30.0


class Difference(NamedTuple):
    """How two grids differ.

    Parameters
    ----------
    points : int
        How many of them are not the same to the bit.
    largest : float
        The largest absolute difference.
    """

    points: int
    largest: float


class Reference:
    """The first rank iterates by itself while the others wait. Collective.

    That may take longer than any wait is allowed to: the others hear from time to time that it goes on.

    Parameters
    ----------
    problem : Problem
        What is solved.
    comm : Communicator
        The ranks.
    engine : Engine
        Where the grid lives.
    report : callable, optional
        See `collops.stencil.run`.

    Attributes
    ----------
    run : Run or None
        How it went, on the first rank.
    """

    def __init__(
        self, problem: Problem, comm: Communicator, engine: Engine, report: Callable[[int, float], None] | None = None
    ) -> None:
        self._comm = comm
        self._engine = engine
        alone = comm.split(0 if comm.rank == 0 else 1) if comm.size > 1 else comm
        self.run: Run | None = None
        self._values: Any = None
        self._told = time.monotonic()
        if comm.rank == 0:
            assert alone is not None
            variant = make("single", problem, alone, engine)
            self.run = run(variant, report, self._pulse)
            self._values = variant.values
            self._tell(False)
        else:
            while self._tell(True):
                pass

    def _pulse(self) -> None:
        if time.monotonic() - self._told > _PULSE_SECONDS:
            self._tell(True)
            self._told = time.monotonic()

    def _tell(self, iterating: bool) -> bool:
        """Let the other ranks know what the first one does. Collective."""
        return bool(self._comm.bcast(np.array(iterating))[()])

    def difference(self, variant: Variant) -> Difference:
        """Compare what a variant has. Collective: the values go to the ranks that have them in the variant."""
        comm, xp, layout = self._comm, self._engine.xp, variant.grid.layout
        mine = variant.values
        expected = xp.empty(mine.shape, mine.dtype)
        sends = [(rank, layout.slices(rank)) for rank in range(comm.size)] if comm.rank == 0 else []
        box = tuple(slice(0, extent) for extent in mine.shape)
        ExchangePlan(comm, sends, [(0, box)], kind="reference")(
            expected if self._values is None else self._values, expected
        )
        points = int(xp.count_nonzero(mine != expected))
        largest = float(abs(mine - expected).max()) if points else 0.0
        found = comm.allgather_metadata([points, largest])
        return Difference(sum(row[0] for row in found), max(row[1] for row in found))
