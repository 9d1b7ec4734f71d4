"""What all programming models share: a block of the grid, two copies of it that take turns, and a count of sweeps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from collops.backend import Engine
from collops.comm import Communicator
from collops.errors import LayoutError
from collops.stencil.grid import Grid
from collops.stencil.halos import halo_plan
from collops.stencil.kernels import sweeps_of
from collops.stencil.problem import Problem
from collops.stencil.timeline import Timeline

__all__ = ["OwnGrids", "Sweeping", "Variant"]


class Variant(ABC):
    """One way to iterate. Collective: all ranks make it, and call its methods, in the same order.

    Parameters
    ----------
    problem : Problem
        What is solved.
    comm : Communicator
        The ranks, and the wire for what travels.
    engine : Engine
        Where the grid lives.
    process_grid : (int, int), optional
        Blocks along rows and columns; by default whole rows.
    timeline : Timeline, optional
        Learns what happens when.

    Attributes
    ----------
    grid : Grid
        This rank's block.
    done : int
        How many sweeps were made.

    Examples
    --------
    >>> import collops
    >>> from collops.backend import engine
    >>> from collops.stencil import Problem, Variant, make
    >>> variant = make("mpi", Problem(nx=16, ny=16, iterations=20), collops.world(), engine("numpy"))
    >>> isinstance(variant, Variant), variant.values.shape
    (True, (14, 16))
    """

    width = 1
    """Rows of the halo."""

    def __init__(
        self,
        problem: Problem,
        comm: Communicator,
        engine: Engine,
        process_grid: Sequence[int] | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.problem = problem
        self.comm = comm
        self.engine = engine
        self.grid = Grid(problem, comm.size, comm.rank, process_grid, self.width)
        self.sweeps = sweeps_of(engine, self.grid)
        self.timeline = timeline or Timeline()
        self.done = 0
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make the grids and whatever iterations need, so that these allocate nothing."""

    @abstractmethod
    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps. Collective.

        Parameters
        ----------
        count : int
            How many.
        norms : array
            Of float64, of at least `count` elements, zero: gets this rank's part of the squared norm of each sweep that
            is checked.
        """

    @property
    @abstractmethod
    def array(self) -> Any:
        """The array of this rank that has the newest values, halo included."""

    @property
    def values(self) -> Any:
        """The newest values of this rank's points, of shape (rows, columns)."""
        return self.array[self.grid.block]

    def record(self, count: int) -> None:
        """Do beforehand what the first :meth:`advance` by `count` would have to do once. Collective."""

    def free(self) -> None:
        """Give back what is not given back by itself. Collective."""

    def checked(self, slot: int) -> int:
        """Return `slot` if the next sweep is checked, -1 if not."""
        return slot if self.done % self.problem.check == 0 else -1

    def everyone_has_points(self) -> None:
        """Raise on all ranks if some rank has no points: its neighbours would wait for it.

        Raises
        ------
        LayoutError
            Says what to choose instead.
        """
        if 0 in self.grid.layout.sizes[0] or 0 in self.grid.layout.sizes[1]:
            down, across = self.grid.process_grid
            self.comm.check(
                LayoutError(
                    f"{self.problem.ny - 2} x {self.problem.nx} points leave ranks of a {down} x {across} process grid "
                    "without any, which this variant cannot have: use fewer ranks or a variant by messages"
                )
            )


class OwnGrids(Variant):
    """A variant whose grids are arrays of its own, with a plan of the messages that fill a halo."""

    def _prepare(self) -> None:
        xp = self.engine.xp
        self.grids = [xp.empty(self.grid.shape, self.problem.dtype) for _ in range(2)]
        self.plan = halo_plan(self.grid, self.comm)
        for array in self.grids:
            self.grid.fill(array, xp)
            self.plan(array, array)


class Sweeping(OwnGrids):
    """A variant that makes sweep after sweep from one grid into the other."""

    def advance(self, count: int, norms: Any) -> None:
        """Make `count` sweeps."""
        for slot in range(count):
            source, target = self.grids[self.done % 2], self.grids[1 - self.done % 2]
            self._step(source, target, norms, self.checked(slot))
            self.done += 1

    @abstractmethod
    def _step(self, source: Any, target: Any, norms: Any, slot: int) -> None:
        """Make one sweep, and fill the halo of `target`."""

    @property
    def array(self) -> Any:
        """The grid that was written last."""
        return self.grids[self.done % 2]
