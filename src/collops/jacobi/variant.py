"""The base of all programming models (a block of the grid in two arrays that alternate), and one rank alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collops import Communicator
from collops.errors import LayoutError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine, kernel_table
from collops.jacobi.problem import Grid, Problem, halo_plan
from collops.profile import mark

if TYPE_CHECKING:
    from collops.extend.communication import Symmetric


class Variant:
    """One way to iterate. Collective: all ranks make it, and call its methods, in the same order."""

    width = 1  # rows of the halo

    def __init__(
        self, problem: Problem, comm: Communicator, engine: Engine, process_grid: Sequence[int] | None = None
    ) -> None:
        self.problem = problem
        self.comm = comm
        self.engine = engine
        self.grid = Grid(problem, comm.size, comm.rank, process_grid, self.width)  # this rank's block
        self.sweeps = sweeps_of(engine, self.grid)  # the kernels of the engine
        self.halo = halo_plan(self.grid, comm)  # the messages that fill the halo of either array
        self.grids: Sequence[
            LocalArray
        ] = ()  # the two arrays that hold the block: a sweep reads one and writes the other
        self.done = 0  # number of sweeps made so far
        self.device_count = comm.size  # devices, or cores of hosts, that sweep
        self.prepare()

    def prepare(self) -> None:
        """Make the grids, and everything else that sweeps need, so that sweeps allocate nothing. Collective."""
        empty = self.engine.xp.empty
        self.grids = [empty(self.grid.shape, self.problem.dtype) for _ in range(2)]
        self.fill_grids()

    def advance(self, count: int, norms: LocalArray) -> None:
        """Make `count` sweeps, by default by `step`. Collective.

        `norms` holds at least `count` zeros, float64. Each sweep that is checked adds this rank's part of the squared
        norm of its update to one of them.
        """
        for slot in range(count):
            self.step(*self.turns(), norms, self.checked(slot))
            self.done += 1

    def step(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        """Sweep once, and fill the halo of `target`; the norm goes to ``norms[slot]`` unless `slot` is negative."""
        raise NotImplementedError

    def record(self, count: int) -> None:
        """Prepare the first :meth:`advance` by `count`, for instance record it as a CUDA graph. Collective."""

    def free(self) -> None:
        """Free the memory that is not freed automatically. Collective."""

    @property
    def array(self) -> LocalArray:
        """The array with the newest values, halo included."""
        return self.grids[self.done % 2]

    @property
    def values(self) -> LocalArray:
        """The newest values of this rank's points, of shape (rows, columns)."""
        return self.array[self.grid.block]

    def fill_grids(self) -> None:
        """Set both grids to the initial values, including halos. Collective."""
        for array in self.grids:
            self.grid.fill(array, self.engine.xp)
            self.halo(array, array)

    def turns(self) -> tuple[LocalArray, LocalArray]:
        """Return the grid that the next sweep reads, and the grid that it writes."""
        return self.grids[self.done % 2], self.grids[1 - self.done % 2]

    def checked(self, slot: int) -> int:
        """Return `slot` if the norm of the next sweep is checked, -1 if not."""
        return slot if self.done % self.problem.check == 0 else -1


class Single(Variant):
    """The kernel sweeps and fills the halo of its own block: the reference of all other variants."""

    def step(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        """Sweep once."""
        with mark("sweep"):
            self.sweeps.into_halos(source, target, target, target, norms, slot)


class InSharedMemory(Variant):
    """The base of models whose grids are in memory that all ranks can address."""

    signals = 0  # of each rank
    registered = False  # whether the memory is in windows of NCCL

    def prepare(self) -> None:
        """Make the grids in symmetric memory; raise `LayoutError` on all ranks if one has no points."""
        grid = self.grid
        if 0 in grid.layout.sizes[0] or 0 in grid.layout.sizes[1]:  # its neighbours would wait forever
            down, across = grid.process_grid
            self.comm.check(
                LayoutError(
                    f"{self.problem.ny - 2} x {self.problem.nx} points leave ranks of a {down} x {across} process grid "
                    "without any, which this variant cannot have: use fewer ranks or a variant by messages"
                )
            )
        self._memory = self.symmetric((2, *grid.shape), self.problem.dtype, self.signals)
        self.grids = self._memory.local[0], self._memory.local[1]
        self.fill_grids()
        self._memory.barrier()

    def symmetric(self, shape: int | tuple[int, ...], dtype: str, signals: int = 0) -> Symmetric:
        """Make symmetric memory for this model. Collective."""
        return self.comm.symmetric(shape, dtype, engine=self.engine.name, signals=signals, registered=self.registered)

    def free(self) -> None:
        """Free the symmetric memory."""
        self.grids = ()
        self._memory.free()


_HOST = "numpy_sweeps" if importlib.util.find_spec("numba") is None else "numba_sweeps"
_sweeps_for = kernel_table("collops.jacobi", None, numpy=_HOST, cupy="cupy_sweeps")


def sweeps_of(engine: Engine, grid: Grid) -> Any:
    """Return the kernels that sweep the block of `grid`; only the kernels and their launches differ between engines."""
    return _sweeps_for(engine).Sweeps(grid)
