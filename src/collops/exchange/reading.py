"""Boxes that ranks read from the memory of other GPUs of their host, instead of being sent them.

A rank reads from where a box lies to where it belongs in one pass, by one kernel for all boxes, whereas messages of
boxes that are not contiguous are packed and unpacked. What is read has to lie in memory from :func:`readable_memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from collops import backend
from collops.exchange.boxes import extent
from collops.exchange.exchange import InFlight
from collops.profile import mark, messages

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.exchange.pattern import Box

__all__ = ["MOST_BOXES", "Reading", "readable_memory"]

MOST_BOXES = 8  # as in boxes.cu
_THREADS, _BLOCKS = 128, 96  # of a block, as in boxes.cu, and blocks of a box
_UNITS = (16, 8)  # bytes that a thread copies at once
_SIZES = 7  # numbers of a box


def readable_memory(comm: Communicator, name: str, nbytes: int) -> Sequence[int] | None:
    """Return the addresses of device memory of all ranks, which each can read; ``None`` where they cannot. Collective.

    Every rank gets at least the largest `nbytes`. All who ask for one `name` on `comm` share the memory, and order
    their work by :class:`Reading`. It is never freed.
    """
    from collops.comm.peer_stores import map_memory

    known = comm.kept.setdefault(readable_memory, {})
    nbytes = max(comm.allgather_metadata(nbytes))
    size, addresses = known.get(name, (-1, None))
    if size < nbytes:
        addresses, problem = map_memory(comm.control, nbytes)
        if problem:
            return None
        known[name] = nbytes, addresses
    return addresses


class Arguments(NamedTuple):
    """Arguments of the kernel: bytes that a thread copies at once, number, sizes and places (bytes) of the boxes."""

    unit: int
    boxes: int
    sizes: Sequence[int]
    places: Sequence[int]


class Reading:
    """Boxes that this rank reads from one array of every rank. Collective: all ranks have it, in the same order.

    Parameters
    ----------
    comm : Communicator
    shapes, begins : sequence
        The shape of each rank's array, and at which element of its memory it begins.
    boxes : sequence of (int, Box, Box)
        A rank, a box of its array, and where that belongs in this rank's array.
    itemsize : int
        Bytes of an element.
    opens, closes : bool
        Whether it first waits until all ranks have filled their arrays, unless an earlier one on the same stream has;
        and whether it ends only when all ranks have read, so that the arrays may be overwritten.
    """

    def __init__(
        self,
        comm: Communicator,
        shapes: Sequence[tuple[int, ...]],
        begins: Sequence[int],
        boxes: Sequence[tuple[int, Box, Box]],
        itemsize: int,
        *,
        opens: bool,
        closes: bool,
    ) -> None:
        self._comm = comm
        self._itemsize = itemsize
        self._order = opens, closes
        self._boxes = [each for each in boxes if prod(extent(each[1]))]
        strides = [_strides(shape, itemsize) for shape in shapes]
        self._strides = [strides[rank] for rank, *_ in self._boxes]
        self._offsets = [
            begins[rank] * itemsize + _offset(box, stride)
            for (rank, box, _), stride in zip(self._boxes, self._strides, strict=True)
        ]
        self._elements = sum(prod(extent(box)) for rank, box, _ in self._boxes if rank != comm.rank)
        self._launches: dict[tuple[int, ...], tuple[Any, Sequence[int]]] = {}

    def can(self, target: tuple[int, ...]) -> bool:
        """Return whether the kernel can read into an array of this shape in C order. Not collective."""
        return self.arguments(_strides(target, self._itemsize), 0) is not None

    def start(self, source: Sequence[int], target: Any, *, on_side_stream: bool = False) -> InFlight:
        """Start reading into `target` from the memory of all ranks with these addresses. Collective."""
        if messages.active:
            messages.record("alltoallv", self._elements, self._elements * self._itemsize)
        transport: Any = self._comm.begin(target)
        launch, places = self._launch(target.strides, target.data.ptr % _UNITS[0])
        addresses = self.addresses(source, target.data.ptr, places)
        with mark("communication"):
            pending = transport.start_reading(launch, addresses, on_side_stream, *self._order)
        return InFlight(partial(_finished, pending), target)

    def arguments(self, strides: tuple[int, ...], begin: int) -> Arguments | None:
        """Return what the kernel needs for a target with these strides in bytes; ``None`` if it cannot copy so.

        `begin` is the address of the target modulo 16. Arithmetic; not collective.
        """
        places = [_offset(box, strides) for _, _, box in self._boxes]
        copies = [
            backend.box_copy(
                extent(box), source, strides, self._itemsize, (offset % _UNITS[0], (begin + place) % _UNITS[0])
            )
            for (_, box, _), source, offset, place in zip(
                self._boxes, self._strides, self._offsets, places, strict=True
            )
        ]
        found = [copy for copy in copies if copy is not None]
        unit = next((unit for unit in _UNITS if all(copy.unit % unit == 0 for copy in found)), None)
        if unit is None or len(found) < len(copies) or len(copies) > MOST_BOXES:
            return None
        sizes: list[int] = []
        for copy in found:
            width, height, rows, *spacings = map(int, copy.sizes)
            times = copy.unit // unit
            sizes += [width * times, height, rows, *(spacing * times for spacing in spacings)]
        sizes += [0] * (_SIZES * MOST_BOXES - len(sizes))
        return Arguments(unit, max(1, len(found)), sizes, places)

    def addresses(self, source: Sequence[int], target: int, places: Sequence[int]) -> list[int]:
        """Return where the boxes begin, for the kernel: in the memory of all ranks, and in a target at this address."""
        begins = [source[rank] + offset for (rank, *_), offset in zip(self._boxes, self._offsets, strict=True)]
        return [*begins, *[0] * (MOST_BOXES - len(begins)), *(target + place for place in places)]

    def _launch(self, strides: tuple[int, ...], begin: int) -> tuple[Any, Sequence[int]]:
        from collops.comm.device_launch import Launch

        key = begin, *strides
        if key not in self._launches:
            arguments = self.arguments(strides, begin)
            assert arguments is not None
            unit, count, sizes, places = arguments
            kernel = backend.cuda_kernel(backend.__file__, "boxes.cu", "copy_boxes", f"-DBYTES={unit}")
            self._launches[key] = Launch(kernel, _BLOCKS * count, _THREADS, 2 * MOST_BOXES, count, *sizes), places
        return self._launches[key]


def _finished(pending: Any, target: Any) -> Any:
    pending.wait()
    return target


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of an array in C order."""
    return tuple(itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _offset(box: Box, strides: Sequence[int]) -> int:
    return sum(axis.start * stride for axis, stride in zip(box, strides, strict=True))
