"""Copies of boxes between a local array and the memory of other GPUs of the same host, in place of messages.

One kernel copies all boxes of a rank, without the packing and unpacking that messages of non-contiguous boxes need.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from collops import backend
from collops._nvrtc import cuda_kernel
from collops.backend import LocalArray
from collops.exchange.boxes import extent
from collops.profile import mark, messages

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.comm.device_launch import Launch
    from collops.comm.transport import Pending
    from collops.exchange.pattern import Box

__all__ = ["PeerCopy", "mapped_memory"]

MAX_BOXES = 8  # as in boxes.cu
_THREADS = 512  # of a block, as in boxes.cu
_BLOCKS = 48  # of all boxes: with half as many, Fourier transforms on two H200 take up to a quarter longer
_UNIT = 8  # bytes that a thread copies at once, at most
_SIZES = 7  # numbers of a box


def mapped_memory(comm: Communicator, name: str, nbytes: int) -> Sequence[int] | None:
    """Return the addresses of device memory of all ranks that this rank can use, or ``None``. Collective.

    Every rank gets at least the largest `nbytes`. Callers with the same `name` on `comm` share the memory: before
    writing to it, they must call a barrier, so that no rank still uses it. It is freed with `comm`.
    """
    from collops.comm.peer_stores import map_memory, unmap_memory

    known = comm.cache.setdefault(mapped_memory, {})
    nbytes = max(comm.allgather_metadata(nbytes))
    size, addresses = known.get(name, (-1, None))
    if size < nbytes:
        addresses, problem = map_memory(comm.control, nbytes)
        if problem:
            return None
        known[name] = nbytes, addresses
        comm.releases.insert(0, partial(unmap_memory, comm.control, addresses))
    return addresses


class Arguments(NamedTuple):
    """Arguments of the kernel: bytes that a thread copies at once; number, sizes and offsets (bytes) of the boxes."""

    unit: int
    boxes: int
    sizes: Sequence[int]
    local_offsets: Sequence[int]


class PeerCopy:
    """Copies of boxes from a local array to memory of all ranks, or back. All ranks create it, in the same order.

    Writing is faster than reading, because a read waits for a round trip.

    Parameters
    ----------
    comm : Communicator
    shapes, begins : sequence
        Shape of the array in each rank's memory, and offset of its first element there.
    boxes : sequence of (int, Box, Box)
        A rank, a box of the array in its memory, and the corresponding box of the local array.
    itemsize : int
        Size of an element in bytes.
    writes : bool
        Whether boxes are copied to the memory of all ranks (put), rather than from it (get).
    """

    def __init__(
        self,
        comm: Communicator,
        shapes: Sequence[tuple[int, ...]],
        begins: Sequence[int],
        boxes: Sequence[tuple[int, Box, Box]],
        itemsize: int,
        *,
        writes: bool,
    ) -> None:
        self._comm = comm
        self._itemsize = itemsize
        self._writes = writes
        self._boxes = [entry for entry in boxes if prod(extent(entry[1]))]
        strides = [_strides(shape, itemsize) for shape in shapes]
        self._strides = [strides[rank] for rank, *_ in self._boxes]
        self._offsets = [
            begins[rank] * itemsize + _offset(box, stride)
            for (rank, box, _), stride in zip(self._boxes, self._strides, strict=True)
        ]
        self._elements = sum(prod(extent(box)) for rank, box, _ in self._boxes if rank != comm.rank)
        self._launches: dict[tuple[int, ...], tuple[Launch, Sequence[int]]] = {}

    def supports(self, shape: tuple[int, ...]) -> bool:
        """Return whether the kernel supports boxes of a local array of this shape in C order. Not collective."""
        return self.arguments(_strides(shape, self._itemsize), 0) is not None

    def start(self, memory: Sequence[int], array: LocalArray) -> Pending:
        """Start copying between `array` and the memory of all ranks at the addresses `memory`, on a side stream.

        The copy is ordered after earlier work on the current stream, but not after the work of other ranks, for which
        a barrier is needed.
        """
        if messages.active:
            messages.record("alltoallv", self._elements, self._elements * self._itemsize)
        launch, local_offsets = self._launch(array.strides, array.data.ptr % _UNIT)
        addresses = self.addresses(memory, array.data.ptr, local_offsets)
        transport: Any = self._comm.begin(array)
        with mark("communication"):
            return transport.start_on_side_stream(launch, addresses)

    def arguments(self, strides: tuple[int, ...], begin: int) -> Arguments | None:
        """Return the arguments of the kernel for a local array with these strides in bytes, or ``None`` if unsupported.

        `begin` is the address of the array modulo 8. Arithmetic; not collective.
        """
        local_offsets = [_offset(box, strides) for _, _, box in self._boxes]
        copies = [
            backend.box_copy(
                extent(box),
                *((strides, remote_strides) if self._writes else (remote_strides, strides)),
                self._itemsize,
                (_UNIT + offset % _UNIT, _UNIT + (begin + local_offset) % _UNIT),
            )
            for (_, box, _), remote_strides, offset, local_offset in zip(
                self._boxes, self._strides, self._offsets, local_offsets, strict=True
            )
        ]
        supported = [copy for copy in copies if copy is not None]
        if len(supported) < len(copies) or len(copies) > MAX_BOXES:
            return None
        unit = min((copy.unit for copy in supported), default=_UNIT)
        sizes: list[int] = []
        for copy in supported:
            width, height, rows, *spacings = map(int, copy.sizes)
            times = copy.unit // unit
            sizes += [width * times, height, rows, *(spacing * times for spacing in spacings)]
        sizes += [0] * (_SIZES * MAX_BOXES - len(sizes))
        return Arguments(unit, max(1, len(supported)), sizes, local_offsets)

    def addresses(self, memory: Sequence[int], array: int, local_offsets: Sequence[int]) -> list[int]:
        """Return the addresses of all sources and targets, in the memory of all ranks and in a local array."""
        remote = [memory[rank] + offset for (rank, *_), offset in zip(self._boxes, self._offsets, strict=True)]
        local = [array + local_offset for local_offset in local_offsets]
        sources, targets = (local, remote) if self._writes else (remote, local)
        return [*sources, *[0] * (MAX_BOXES - len(sources)), *targets]

    def _launch(self, strides: tuple[int, ...], begin: int) -> tuple[Launch, Sequence[int]]:
        from collops.comm.device_launch import Launch

        key = begin, *strides
        if key not in self._launches:
            arguments = self.arguments(strides, begin)
            assert arguments is not None
            unit, count, sizes, local_offsets = arguments
            kernel = cuda_kernel(backend.__file__, "boxes.cu", "copy_boxes", f"-DBYTES={unit}")
            fixed = count, int(self._writes), *sizes
            self._launches[key] = (
                Launch(kernel, _BLOCKS // count * count, _THREADS, 2 * MAX_BOXES, *fixed),
                local_offsets,
            )
        return self._launches[key]


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of an array in C order."""
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _offset(box: Box, strides: Sequence[int]) -> int:
    return sum(axis.start * stride for axis, stride in zip(box, strides, strict=True))
