"""Sweeps on GPUs: compiles and launches the kernels of ``jacobi.cu``.

Launches do not synchronise with the device and allocate nothing. All except the launch of the whole loop can be
captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import cupy
import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.communication import wait_while_source
from collops.extend.engines import cuda_module
from collops.jacobi.problem import Grid, Part

# As in jacobi.cu.
_THREADS = 256
_WARP = 32
_WARPS = _THREADS // _WARP
_FLAG_STEP = 16
_PERSISTENT_THREADS = 1024
_DEPTHS = (8, 4, 2, 1)

# Measured on an H200.
_ROWS_OF_A_WARP = 16
_ROWS_OF_A_BLOCKED_WARP = 256
# Number of warps for which a multiprocessor has registers.
_RESIDENT = 24
_RESIDENT_BLOCKED = 16
_ROWS_AT_ONCE = 4  # minimum number of rows of a warp
_FEW_WAVES = 8

_NONE = np.uint64(0)


@cache
def _module(device: int, real: str, cooperative: bool) -> cupy.RawModule:
    source = wait_while_source() + Path(__file__).with_name("jacobi.cu").read_text(encoding="utf-8")
    with cupy.cuda.Device(device):
        return cuda_module(source, (f"-DREAL={real}",), cooperative)


class Neighbours:
    """Addresses in the memory of the neighbours above, below, to the left and to the right.

    `halos` holds for each neighbour the address of the halo row or column, in its grid of even sweeps, that receives
    this block's outermost points, and 0 without a neighbour. `flags` is the address of this rank's flags; `sets` holds
    the addresses of the neighbours' flags that this rank sets. A `kernel` that finds the neighbours' memory by itself
    takes `extra` arguments, and addresses at the same offsets in this rank's memory.
    """

    def __init__(
        self,
        halos: Sequence[int],
        flags: int,
        sets: Sequence[int],
        kernel: cupy.RawKernel | None = None,
        extra: Sequence[np.integer] = (),
    ) -> None:
        self.halos = tuple(halos)
        self.flags = np.uint64(flags)
        self.sets = tuple(np.uint64(address) for address in sets)
        self.kernel = kernel
        self.extra = tuple(extra)


class Sweeps:
    """Launches sweeps of one rank's block."""

    depths = _DEPTHS  # numbers of sweeps that `blocked` can make at once, largest first

    def __init__(self, grid: Grid) -> None:
        device = cupy.cuda.Device()
        self.grid = grid
        self._processors: int = device.attributes["MultiProcessorCount"]
        self._real = "double" if grid.problem.itemsize == 8 else "float"
        self._device = device.id
        module = _module(device.id, self._real, False)
        self._sweep = module.get_function("sweep")
        self._sweep_peer = module.get_function("sweep_peer")
        self._blocked = {depth: module.get_function(f"blocked{depth}") for depth in _DEPTHS}
        self._vector = 16 // grid.problem.itemsize
        self._strip = _WARP * self._vector
        self._strips = -(-grid.columns // self._strip)
        self._has_left, self._has_right = np.int32(grid.left is not None), np.int32(grid.right is not None)
        self._pitch = np.int64(grid.pitch)
        self._size = (np.int32(grid.rows), np.int32(grid.columns))
        self._rows_above = grid.layout.local_shape(grid.above)[0]
        self._inner_bytes = (grid.width * grid.pitch + grid.lead) * grid.problem.itemsize
        self._check = np.int32(grid.problem.check)
        self._persistent: cupy.RawKernel | None = None
        self._known: dict[object, tuple[int, tuple[np.integer, ...]]] = {}  # blocks and arguments
        self._arrived: LocalArray = None

    def point(self, array: LocalArray) -> int:
        """Return the address of the point (0, 0) in a block's array."""
        return array.data.ptr + self._inner_bytes

    # ---- one launch a sweep

    def full(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        """Sweep all of `source` into `target`; add the norm's square to ``norms[slot]`` unless `slot` is negative."""
        self._launch(source, target, norms, slot, self.grid.full)

    def boundary(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        """Sweep the points that neighbours need: the outermost rows, and columns if the grid is split along them."""
        grid = self.grid
        ends = 1 if grid.rows == 1 else 2  # both in one launch
        self._launch(source, target, norms, slot, grid.full, row_step=max(1, grid.rows - 1))
        for part in grid.outer[ends:]:
            self._launch(source, target, norms, slot, part)

    def inner(self, source: LocalArray, target: LocalArray, norms: LocalArray, slot: int) -> None:
        """Sweep the points that :meth:`boundary` omits."""
        self._launch(source, target, norms, slot, self.grid.inner)

    def _launch(
        self,
        source: LocalArray,
        target: LocalArray,
        norms: LocalArray,
        slot: int,
        part: Part,
        *,
        row_step: int = 0,
        halos: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> None:
        """Sweep a part of the block, or every `row_step`-th of its rows."""
        key = (source.data.ptr, target.data.ptr, part, row_step, halos)
        launch = self._known.get(key)
        if launch is None:
            launch = self._known[key] = self._arguments(source, target, part, row_step, halos)
        blocks, arguments = launch
        if blocks:
            self._sweep((blocks,), (_THREADS,), (*arguments, self._norm(norms, slot)))

    def _arguments(
        self, source: LocalArray, target: LocalArray, part: Part, row_step: int, halos: Sequence[int]
    ) -> tuple[int, tuple[np.integer, ...]]:
        """Return the number of blocks, and the arguments except the norm: they are the same in every sweep."""
        (begin, end), (first, last) = part
        if begin >= end or first >= last:
            return 0, ()
        strip = first // self._strip
        strips = -(-last // self._strip) - strip
        count = 1 if row_step else self._rows_of_a_warp(end - begin, strips, _ROWS_OF_A_WARP, _RESIDENT)
        step = row_step or count
        chunks = -(-(end - begin) // step)
        numbers = (first, last, strip, strips, begin, end, step, count, chunks)
        return -(-strips * chunks // _WARPS), (
            np.uint64(self.point(source)),
            np.uint64(self.point(target)),
            self._pitch,
            *self._size,
            *(np.int32(number) for number in numbers),
            self._has_left,
            self._has_right,
            *(np.uint64(halo) for halo in halos),
        )

    def _rows_of_a_warp(self, rows: int, strips: int, best: int, resident: int) -> int:
        """Return the number of rows of a warp: about `best`, such that the last wave of warps is full.

        If the rows do not fill the device, they are shared among all warps that it holds at once.
        """
        at_once = resident * self._processors
        waves = max(1, round(rows * strips / (at_once * best)))
        chunks = max(1, waves * at_once // strips)
        # With many waves, the last one matters less than the 3 % by which the best number is faster than the next.
        count = best if waves > _FEW_WAVES else -(-rows // chunks)
        return min(max(_ROWS_AT_ONCE, count), rows)

    def _norm(self, norms: LocalArray, slot: int) -> np.uint64:
        return _NONE if slot < 0 else np.uint64(norms.data.ptr + 8 * slot)

    # ---- with neighbours' memory

    def into_halos(
        self, source: LocalArray, target: LocalArray, above: LocalArray, below: LocalArray, norms: LocalArray, slot: int
    ) -> None:
        """Sweep everything, and store the outermost rows in the halos of the neighbours' arrays `above` and `below`.

        These are in memory that the device can address. On a single rank they are `target`.
        """
        grid = self.grid
        row = grid.pitch * grid.problem.itemsize
        halos = (self.point(above) + self._rows_above * row, self.point(below) - row, 0, 0)
        self._launch(source, target, norms, slot, grid.full, halos=halos)

    def peer(
        self,
        source: LocalArray,
        target: LocalArray,
        shift: int,
        neighbours: Neighbours,
        number: int,
        norms: LocalArray,
        slot: int,
    ) -> None:
        """Sweep everything once the neighbours' values have arrived, store the outermost points there, and set flags.

        `shift` is the number of bytes from a neighbour's grid of even sweeps to its counterpart of `target`, `number`
        counts the sweeps made before. The neighbours have one flag for each side.
        """
        key = (source.data.ptr, id(neighbours))
        launch = self._known.get(key)
        if launch is None:
            launch = self._known[key] = self._peer_arguments(source, target, shift, neighbours)
        blocks, arguments = launch
        kernel = neighbours.kernel or self._sweep_peer
        kernel((blocks,), (_THREADS,), (*arguments, np.uint64(number), self._norm(norms, slot)))

    def _peer_arguments(
        self, source: LocalArray, target: LocalArray, shift: int, neighbours: Neighbours
    ) -> tuple[int, tuple[np.integer, ...]]:
        grid = self.grid
        if self._arrived is None:
            self._arrived = cupy.zeros(4, np.uint32)
        count = self._rows_of_a_warp(grid.rows, self._strips, _ROWS_OF_A_WARP, _RESIDENT)
        chunks = -(-grid.rows // count)
        numbers = (grid.first, grid.last, self._strips, count, chunks)
        return -(-self._strips * chunks // _WARPS), (
            np.uint64(self.point(source)),
            np.uint64(self.point(target)),
            self._pitch,
            *self._size,
            *(np.int32(number) for number in numbers),
            *(np.uint64(halo and halo + shift) for halo in neighbours.halos),
            neighbours.flags,
            *neighbours.sets,
            np.uint64(self._arrived.data.ptr),
            *neighbours.extra,
        )

    # ---- with device functions of NVSHMEM or NCCL

    def source_of(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the source of the kernels in a file that continues ``jacobi.cu``, and the compiler's options."""
        texts = (Path(__file__).with_name(f"{stem}.cu").read_text(encoding="utf-8") for stem in ("jacobi", name))
        return wait_while_source() + "".join(texts), (f"-DREAL={self._real}", "-DWITHOUT_KERNELS")

    def rows_of_puts(self) -> int:
        """Return the number of rows of each block of :meth:`putting`."""
        return self._rows_of_a_warp(self.grid.rows, self._strips, _ROWS_OF_A_WARP, _RESIDENT)

    def places_of_puts(self, count: int) -> int:
        """Return the maximum number of blocks of `count` rows along a side of any rank's block of points."""
        rows, columns = (max(sizes) for sizes in self.grid.layout.sizes)
        return max(-(-rows // count), -(-columns // (_WARPS * self._strip)))

    def putting(
        self,
        kernel: cupy.RawKernel,
        source: LocalArray,
        target: LocalArray,
        count: int,
        signals: LocalArray,
        number: int,
        norms: LocalArray,
        slot: int,
    ) -> None:
        """Sweep everything, `count` rows in a block, with a kernel that exchanges the outermost points.

        `source` and `target` are symmetric memory, and so are the `signals` of each side; `number` counts the sweeps
        made before.
        """
        key = target.data.ptr
        launch = self._known.get(key)
        if launch is None:
            launch = self._known[key] = self._putting_arguments(source, target, count, signals)
        blocks, arguments = launch
        kernel((blocks,), (_THREADS,), (*arguments, np.uint64(number), self._norm(norms, slot)))

    def _putting_arguments(
        self, source: LocalArray, target: LocalArray, count: int, signals: LocalArray
    ) -> tuple[int, tuple[np.integer, ...]]:
        grid = self.grid
        halos = [0] * 4
        for side, rank in enumerate(grid.neighbours):
            if rank is not None:
                rows, columns = grid.layout.local_shape(rank)
                elements = (rows * grid.pitch, -grid.pitch, columns, -1)[side]
                halos[side] = self.point(target) + elements * grid.problem.itemsize
        chunks = -(-grid.rows // count)
        numbers = (grid.first, grid.last, self._strips, count, chunks)
        return -(-self._strips // _WARPS) * chunks, (
            np.uint64(self.point(source)),
            np.uint64(self.point(target)),
            self._pitch,
            *self._size,
            *(np.int32(number) for number in numbers),
            *(np.uint64(halo) for halo in halos),
            *(np.int32(-1 if rank is None else rank) for rank in grid.neighbours),
            np.uint64(signals.data.ptr),
            np.int32(signals.shape[1]),
        )

    # ---- the whole loop in one launch

    def most_bands(self) -> int:
        """Return the number of blocks of the kernel of :meth:`persistent` that run on the device concurrently."""
        kernel = self._persistent_kernel().kernel.ptr
        fitting = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel, _PERSISTENT_THREADS, 0)
        return self._processors * max(1, fitting)

    @staticmethod
    def flag_count(bands: int) -> int:
        """Return how many 64-bit words of flags :meth:`persistent` needs for so many bands."""
        return (3 * bands + 2) * _FLAG_STEP

    @staticmethod
    def flag_bytes(index: int) -> int:
        """Return the offset of flag number `place`, in bytes."""
        return 8 * _FLAG_STEP * index

    def persistent(
        self,
        array: LocalArray,
        stride: int,
        neighbours: Neighbours,
        bands: int,
        done: int,
        sweeps: int,
        norms: LocalArray,
    ) -> None:
        """Make `sweeps` sweeps in one launch of `bands` blocks, after `done` earlier ones.

        `array` is this rank's grid of even sweeps; on all ranks, the grid of odd sweeps begins `stride` elements later.
        The neighbours have a flag for each band. The squared norms of the checked sweeps are added to `norms`.
        """
        grid = self.grid
        self._persistent_kernel()(
            (bands,),
            (_PERSISTENT_THREADS,),
            (
                np.uint64(self.point(array)),
                np.int64(stride),
                self._pitch,
                *self._size,
                np.int32(grid.first),
                np.int32(grid.last),
                *(np.uint64(halo) for halo in neighbours.halos),
                neighbours.flags,
                *neighbours.sets,
                np.uint64(done),
                np.int32(sweeps),
                self._check,
                np.uint64(norms.data.ptr),
            ),
        )

    def _persistent_kernel(self) -> cupy.RawKernel:
        if self._persistent is None:
            self._persistent = _module(self._device, self._real, True).get_function("persistent")
        return self._persistent

    # ---- several sweeps between two passages through memory

    def blocked(
        self, source: LocalArray, target: LocalArray, depth: int, done: int, norms: LocalArray, slot: int
    ) -> None:
        """Make `depth` sweeps, one of :attr:`depths`, from `source` to `target`; the halo has `depth` rows.

        `done` sweeps were made before, which determines those that are checked; their squared norms are added to
        ``norms[slot]`` and the elements after it.
        """
        grid = self.grid
        lost = -(-depth // self._vector)
        updated = (_WARP - 2 * lost) * self._vector
        strips = -(-grid.columns // updated)
        count = max(depth, self._rows_of_a_warp(grid.rows, strips, _ROWS_OF_A_BLOCKED_WARP, _RESIDENT_BLOCKED))
        chunks = -(-grid.rows // count)
        self._blocked[depth](
            (-(-strips * chunks // _WARPS),),
            (_THREADS,),
            (
                np.uint64(self.point(source)),
                np.uint64(self.point(target)),
                self._pitch,
                *self._size,
                np.int32(grid.first),
                np.int32(grid.last),
                np.int32(grid.low),
                np.int32(grid.high),
                np.int32(strips),
                np.int32(count),
                np.int32(chunks),
                np.int32(grid.side),
                np.uint64(done),
                self._check,
                np.uint64(norms.data.ptr + 8 * slot),
            ),
        )
