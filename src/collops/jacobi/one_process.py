"""One process that drives several devices, each with a block of rows (`copies` and `threads_*`).

Models differ in :meth:`OneProcess.sweep`. A sweep of a part begins when the neighbours have finished their previous
sweep: their values have arrived, and they have read the halos that this sweep overwrites.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from collops import Communicator
from collops.errors import LayoutError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine
from collops.jacobi.parts import (
    Part,
    chosen_devices,
    connect,
    make_part,
    managed,
    prefer,
    unconnected,
    without_managed_access,
)
from collops.jacobi.problem import Grid, Problem
from collops.jacobi.threads import together
from collops.jacobi.variant import Variant
from collops.profile import mark


class OneProcess(Variant, ABC):
    """The base of models in which one process drives all `devices`, by default all visible devices.

    A device may be listed several times. Raises `InputError` if a device does not exist, and `LayoutError` if there are
    more devices than rows; by default at most one device per row is used.
    """

    threads: ClassVar[bool] = True  # whether each device has its own thread

    def __init__(
        self,
        problem: Problem,
        comm: Communicator,
        engine: Engine,
        process_grid: Sequence[int] | None = None,
        devices: Sequence[int] | None = None,
    ) -> None:
        rows = problem.ny - 2
        self._devices = chosen_devices(engine, devices)
        if devices is None:
            self._devices = self._devices[:rows]
        if len(self._devices) > rows:
            raise LayoutError(f"{len(self._devices)} devices need at least one row each, but there are {rows} rows")
        super().__init__(problem, comm, engine, process_grid)

    @classmethod
    def refusal(cls, engine: Engine, devices: Sequence[int]) -> str | None:
        """Return why these GPUs cannot run the model, or ``None``."""
        return None

    def prepare(self) -> None:
        count = len(self._devices)
        self.device_count = len({*self._devices})
        connect(self.engine, self._devices)
        self.parts = [
            make_part(Grid(self.problem, count, rank), self.engine, device) for rank, device in enumerate(self._devices)
        ]
        self.allocate()
        self._synchronize()

    def allocate(self) -> None:
        """Make the arrays of all parts, with the first values."""
        for part in self.parts:
            part.allocate()
        self._synchronize()
        # Sources and targets of a part's copies for both arrays: sliced once instead of in every sweep.
        self._rows = [[[*self._outer_rows(part, number)] for number in (0, 1)] for part in self.parts]
        for number in (0, 1):
            for part in self.parts:
                with part.current():
                    self.send(part, number)

    def advance(self, count: int, norms: LocalArray) -> None:
        with mark(f"{count} sweeps"):
            for part in self.parts:
                part.begin(count)
            if self.threads and len(self.parts) > 1:
                together(len(self.parts), lambda index, meet: self._sweeps([self.parts[index]], count, meet))
            else:
                self._sweeps(self.parts, count, lambda number: None)
            for part in self.parts:
                part.end(norms[:count])
        self.done += count

    def _sweeps(self, parts: Sequence[Part], count: int, meet: Callable[[int], None]) -> None:
        """Make all sweeps of `parts`, in one thread; `meet` returns when all threads have enqueued the previous one."""
        for slot in range(count):
            number = self.done + slot
            meet(number)
            for part in parts:
                with part.current():
                    self.sweep(part, number, slot if number % self.problem.check == 0 else -1)

    @abstractmethod
    def sweep(self, part: Part, number: int, slot: int) -> None:
        """Enqueue sweep `number` of a part; its norm goes to ``part.norms[slot]`` unless `slot` is negative."""

    def wait_for_neighbours(self, part: Part, number: int) -> None:
        """Make the current stream wait until the neighbours have finished the sweep before `number`."""
        for rank in {part.grid.above, part.grid.below}:
            part.wait_for(self.parts[rank], number - 1)

    def send(self, part: Part, number: int) -> None:
        """Copy the outermost rows of the array that sweep `number` reads into the halos of the neighbours."""
        for row, halo in self._rows[part.grid.rank][number % 2]:
            part.copy(row, halo)

    def _outer_rows(self, part: Part, number: int) -> Iterator[tuple[LocalArray, LocalArray]]:
        above, below, own_grid = self.parts[part.grid.above], self.parts[part.grid.below], part.grids[number]
        yield own_grid[1], above.grids[number][above.grid.rows + 1]
        yield own_grid[part.grid.rows], below.grids[number][0]

    @property
    def values(self) -> LocalArray:
        """The newest values of all points, of shape (rows, columns): a copy on the current device."""
        parts, columns = self.parts, self.grid.columns
        result = self.engine.xp.empty((self.grid.rows, parts[0].grid.pitch), self.problem.dtype)
        for part in parts:
            rows, top = part.grid.rows, part.grid.top
            part.copy(part.turns(self.done)[0][1 : rows + 1], result[top : top + rows])
        return result[:, :columns]

    def free(self) -> None:
        self._synchronize()
        self.grids, self.parts, self._rows = (), [], []

    def _synchronize(self) -> None:
        for part in self.parts:
            part.synchronize()


class Copies(OneProcess):
    """One thread enqueues the sweeps and the copies of all devices."""

    threads = False

    def sweep(self, part: Part, number: int, slot: int) -> None:
        source, target = part.turns(number)
        self.wait_for_neighbours(part, number)
        part.sweeps.full(source, target, part.norms, slot)
        self.send(part, number + 1)
        part.finish(number)


class ThreadsCopies(Copies):
    """Like `Copies`, with a thread for each device."""

    threads = True


class ThreadsOverlap(OneProcess):
    """The outermost rows first, on a side stream, where their copies overlap with the sweep of the inner rows."""

    def sweep(self, part: Part, number: int, slot: int) -> None:
        source, target = part.turns(number)
        with part.aside():
            self.wait_for_neighbours(part, number)
            part.sweeps.boundary(source, target, part.norms, slot)
            self.send(part, number + 1)
            part.finish(number)
        part.sweeps.inner(source, target, part.norms, slot)
        part.join()


class ThreadsPeer(OneProcess):
    """The sweep itself stores the outermost rows into the neighbours' halos."""

    @classmethod
    def refusal(cls, engine: Engine, devices: Sequence[int]) -> str | None:
        """Return the GPUs that cannot address each other's memory, as text, or ``None``."""
        pairs = unconnected(engine, devices)
        return f"GPU {pairs[0][0]} cannot address the memory of GPU {pairs[0][1]}" if pairs else None

    def sweep(self, part: Part, number: int, slot: int) -> None:
        source, target = part.turns(number)
        above, below = (self.parts[rank].turns(number)[1] for rank in (part.grid.above, part.grid.below))
        self.wait_for_neighbours(part, number)
        part.sweeps.into_halos(source, target, above, below, part.norms, slot)
        part.finish(number)


class ThreadsManaged(ThreadsPeer):
    """One array in managed memory that all devices address: the halo of a part is the neighbour's row itself.

    Only the periodic halos, above the first and below the last row, are copies.
    """

    @classmethod
    def refusal(cls, engine: Engine, devices: Sequence[int]) -> str | None:
        """Return the GPU that cannot use managed memory while others do, as text, or ``None``."""
        unable = without_managed_access(engine, devices)
        return f"GPU {unable[0]} cannot use managed memory while another GPU does" if unable else None

    def allocate(self) -> None:
        """Make the arrays, whose rows stay with the devices that sweep them."""
        self.grids = [managed(self.engine, self.grid.shape, self.problem.dtype) for _ in range(2)]
        for part, device in zip(self.parts, self._devices, strict=True):
            top, rows, around = part.grid.top, part.grid.rows, (part.grid.above, part.grid.below)
            part.grids = [array[top : top + rows + 2] for array in self.grids]
            for array in part.grids:
                prefer(self.engine, device, array[1:-1], [self._devices[rank] for rank in around])
        self.fill_grids()
        self.engine.synchronize()
