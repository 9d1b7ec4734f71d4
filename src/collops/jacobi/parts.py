"""The block of rows of one of several devices in a process: its arrays, and the order of its work.

On hosts a device is a thread, and work has finished when a call returns; calls that order streams have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.communication import HIGHEST_PRIORITY, SideStream, available_cores
from collops.extend.engines import Engine
from collops.jacobi.problem import Grid
from collops.jacobi.variant import sweeps_of

_ALREADY_ENABLED = 704  # cudaErrorPeerAccessAlreadyEnabled


class Part:
    """A block in host memory. Its methods enqueue work on the current stream, on engines with streams."""

    def __init__(self, grid: Grid, engine: Engine) -> None:
        self.grid = grid
        self.sweeps = sweeps_of(engine, grid)
        self.grids: Sequence[LocalArray] = ()  # as in `Variant`
        self.norms = engine.xp.zeros(0)  # this part's share, in its own memory
        self._xp = engine.xp

    def allocate(self) -> None:
        """Make the two arrays, with the first values; halos hold zeros."""
        self.grids = [self._xp.empty(self.grid.shape, self.grid.problem.dtype) for _ in range(2)]
        for array in self.grids:
            self.grid.fill(array, self._xp)

    def turns(self, number: int) -> tuple[LocalArray, LocalArray]:
        """Return the array that sweep `number` reads, and the array that it writes."""
        return self.grids[number % 2], self.grids[1 - number % 2]

    def begin(self, count: int) -> None:
        """Order this part's work after the caller's, and set `count` norms to zero."""
        if self.norms.size < count:
            self.norms = self._xp.zeros(count)
        self.norms.fill(0)

    def end(self, norms: LocalArray) -> None:
        """Order the caller's work after this part's, and add this part's norms to the caller's."""
        norms += self.norms[: norms.size]

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device and its stream current in this thread."""
        yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Make a side stream current, ordered after the current stream; `join` makes the current stream wait for it."""
        yield

    def join(self) -> None:
        """Make the current stream wait for the side stream."""

    def copy(self, source: LocalArray, target: LocalArray) -> None:
        """Copy contiguous memory, which may be on two devices."""
        target[...] = source

    def finish(self, number: int) -> None:
        """Record that the halos of sweep `number` were sent, and that the halo it read may be overwritten."""

    def wait_for(self, other: Part, number: int) -> None:
        """Make the current stream wait until `other` has recorded the end of sweep `number`."""

    def synchronize(self) -> None:
        """Wait on the host."""


class _CudaPart(Part):
    """A block in the memory of a GPU."""

    def __init__(self, grid: Grid, engine: Engine, device: int) -> None:
        self._cuda = cuda = engine.xp.cuda
        self._device = device
        self._ready = cuda.Event(disable_timing=True)  # on the caller's device, as required for recording
        with cuda.Device(device):
            self._stream = cuda.Stream(non_blocking=True)
            self._side = SideStream(HIGHEST_PRIORITY)
            # Events of even and odd sweeps: a neighbour may wait for the previous one while this part records the next.
            self._finished = [cuda.Event(disable_timing=True) for _ in range(2)]
            self._ended = cuda.Event(disable_timing=True)
        with self.current():
            super().__init__(grid, engine)

    def allocate(self) -> None:
        with self.current():
            super().allocate()

    def begin(self, count: int) -> None:
        self._cuda.get_current_stream().record(self._ready)
        self._stream.wait_event(self._ready)
        with self.current():
            super().begin(count)

    def end(self, norms: LocalArray) -> None:
        self._stream.record(self._ended)
        self._cuda.get_current_stream().wait_event(self._ended)
        local = self._xp.empty_like(norms)
        self.copy(self.norms[: norms.size], local)
        norms += local

    @contextmanager
    def current(self) -> Iterator[None]:
        with self._cuda.Device(self._device), self._stream:
            yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        with self._side.begin():
            yield
        self._side.end()

    def join(self) -> None:
        self._side.wait()

    def copy(self, source: LocalArray, target: LocalArray) -> None:
        runtime, stream = self._cuda.runtime, self._cuda.get_current_stream()
        # The runtime determines the devices from the addresses.
        runtime.memcpyAsync(target.data.ptr, source.data.ptr, source.nbytes, runtime.memcpyDefault, stream.ptr)

    def finish(self, number: int) -> None:
        self._cuda.get_current_stream().record(self._finished[number % 2])

    def wait_for(self, other: Part, number: int) -> None:
        assert isinstance(other, _CudaPart)
        self._cuda.get_current_stream().wait_event(other._finished[number % 2])

    def synchronize(self) -> None:
        self._stream.synchronize()


def make_part(grid: Grid, engine: Engine, device: int) -> Part:
    """Return the part of `grid` on a GPU, or in host memory, where `device` is only a label."""
    return _CudaPart(grid, engine, device) if engine.streams else Part(grid, engine)


def chosen_devices(engine: Engine, devices: Sequence[int] | None) -> Sequence[int]:
    """Return `devices`, by default the GPUs that this process sees; on hosts, a number for each of its cores.

    Raises `InputError` if the list is empty, or if a GPU does not exist.
    """
    on_gpus = engine.streams
    seen = range(engine.xp.cuda.runtime.getDeviceCount() if on_gpus else len(available_cores()))
    if devices is None:
        return seen
    if not devices or (on_gpus and not {*devices} <= {*seen}):
        raise InputError(f"devices must be some of the {len(seen)} that this process sees, not {list(devices)}")
    return devices


def neighbours(devices: Sequence[int]) -> set[tuple[int, int]]:
    """Return the ordered pairs of different devices whose blocks are next to each other."""
    below = [*devices[1:], devices[0]]
    return {pair for a, b in zip(devices, below, strict=True) for pair in ((a, b), (b, a)) if a != b}


def unconnected(engine: Engine, devices: Sequence[int]) -> list[tuple[int, int]]:
    """Return the neighbouring GPUs that cannot address each other's memory."""
    able = engine.xp.cuda.runtime.deviceCanAccessPeer
    return sorted(pair for pair in neighbours(devices) if not able(*pair))


def connect(engine: Engine, devices: Sequence[int]) -> None:
    """Enable peer access between neighbouring GPUs if possible; copies between others are staged through the host."""
    if not engine.streams:
        return
    cuda = engine.xp.cuda
    for device, peer in neighbours(devices) - {*unconnected(engine, devices)}:
        with cuda.Device(device):
            try:
                cuda.runtime.deviceEnablePeerAccess(peer)
            except cuda.runtime.CUDARuntimeError as error:
                if error.status != _ALREADY_ENABLED:
                    raise


def without_managed_access(engine: Engine, devices: Sequence[int]) -> list[int]:
    """Return the GPUs that cannot use managed memory while others do."""
    return [device for device in devices if not engine.xp.cuda.Device(device).attributes["ConcurrentManagedAccess"]]


def managed(engine: Engine, shape: tuple[int, ...], dtype: str) -> LocalArray:
    """Return an uninitialised array that all devices of the process can address."""
    xp = engine.xp
    if not engine.streams:
        return xp.empty(shape, dtype)
    return xp.ndarray(shape, dtype, xp.cuda.malloc_managed(math.prod(shape) * xp.dtype(dtype).itemsize))


def prefer(engine: Engine, device: int, rows: LocalArray, peers: Sequence[int]) -> None:
    """Keep `rows` of a managed array in the memory of `device`, where the devices `others` address them."""
    if engine.streams:
        runtime = engine.xp.cuda.runtime
        runtime.memAdvise(rows.data.ptr, rows.nbytes, runtime.cudaMemAdviseSetPreferredLocation, device)
        for peer in peers:
            runtime.memAdvise(rows.data.ptr, rows.nbytes, runtime.cudaMemAdviseSetAccessedBy, peer)
