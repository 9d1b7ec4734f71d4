"""The run on one rank: what the parallel ones are timed against, and compared with point by point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from collops.comm import ExchangePlan
from collops.stencil import Problem, Run, make, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.stencil import Variant

__all__ = ["Difference", "Reference"]


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
    run : Run
        How it went, on the first rank.
    seconds : float
        For all iterations, on every rank.
    """

    def __init__(
        self, problem: Problem, comm: Communicator, engine: Engine, report: Callable[[int, float], None] | None = None
    ) -> None:
        self._comm = comm
        self._engine = engine
        alone = comm.split(0 if comm.rank == 0 else 1) if comm.size > 1 else comm
        self.run: Run | None = None
        self._values: Any = None
        if comm.rank == 0:
            variant = make("single", problem, alone, engine) if alone is not None else None
            assert variant is not None
            self.run = run(variant, report)
            self._values = variant.values
        self.seconds = float(comm.allgather_metadata(None if self.run is None else self.run.seconds)[0])

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
