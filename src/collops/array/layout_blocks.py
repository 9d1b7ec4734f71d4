"""Which block of a global array each rank holds: what a layout knows, and what follows from it by arithmetic."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, SupportsIndex

from collops.array.layout_arguments import integers
from collops.errors import LayoutError

__all__ = ["Block", "Blocks"]


class Block(NamedTuple):
    """The part of the global array that one rank holds.

    Attributes
    ----------
    shape, offset : tuple of int
        Local extents, and the global index of the first element, per axis.
    slices : tuple of slice
        The same as slices of the global array.
    """

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    slices: tuple[slice, ...]


class Blocks:
    """The blocks of a :class:`collops.array.Layout`, which describes its attributes."""

    __slots__ = (
        "__weakref__",
        "_blocks",
        "_groups",
        "_representatives",
        "_starts",
        "_strides",
        "axes",
        "is_replicated",
        "mask",
        "ndim",
        "process_grid",
        "ranks",
        "shape",
        "size",
        "sizes",
        "split_axes",
    )

    shape: tuple[int, ...]
    ranks: int
    process_grid: tuple[int, ...]
    axes: tuple[int | None, ...]
    sizes: tuple[tuple[int, ...], ...]
    mask: tuple[int, ...] | None
    ndim: int
    size: int
    split_axes: tuple[int, ...]
    is_replicated: bool
    _starts: tuple[tuple[int, ...], ...]
    _strides: tuple[int, ...]
    _blocks: dict[int, Block]
    _groups: dict[tuple[int, ...], tuple[int, ...] | None]
    _representatives: frozenset[int] | None

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the place of `rank` in the process grid."""
        if not 0 <= operator.index(rank) < self.ranks:
            raise LayoutError(f"there is no rank {rank!r} among {self.ranks}")
        return tuple(rank // stride % extent for stride, extent in zip(self._strides, self.process_grid, strict=True))

    def block(self, rank: int) -> Block:
        """Return shape, offset and slices of the part of `rank`."""
        block = self._blocks.get(rank)
        if block is None:
            place = self.coordinates(rank)
            numbers = [0 if axis is None else place[axis] for axis in self.axes]
            shape = tuple(sizes[number] for sizes, number in zip(self.sizes, numbers, strict=True))
            offset = tuple(starts[number] for starts, number in zip(self._starts, numbers, strict=True))
            slices = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
            block = self._blocks[rank] = Block(shape, offset, slices)
        return block

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of the part of `rank`."""
        return self.block(rank).shape

    def local_size(self, rank: int) -> int:
        """Return the number of elements that `rank` holds."""
        return math.prod(self.block(rank).shape)

    def offset(self, rank: int) -> tuple[int, ...]:
        """Return the global index of the first element of `rank`, per axis."""
        return self.block(rank).offset

    def slices(self, rank: int) -> tuple[slice, ...]:
        """Return the part of `rank` as slices of the global array."""
        return self.block(rank).slices

    def owner(self, index: SupportsIndex | Sequence[SupportsIndex]) -> int:
        """Return the (lowest) rank that holds the element at a global index.

        Parameters
        ----------
        index : int or sequence of int
            One integer per axis; negative ones count from the end.

        Raises
        ------
        LayoutError
            If there is no such element.
        """
        position = integers(index)
        if len(position) != self.ndim or any(not -n <= i < n for i, n in zip(position, self.shape, strict=True)):
            raise LayoutError(f"there is no element {position} in an array of shape {self.shape}")
        rank = 0
        for i, extent, starts, axis in zip(position, self.shape, self._starts, self.axes, strict=True):
            if axis is not None:
                # Of several blocks that start here only the last is not empty.
                rank += (bisect_right(starts, i % extent) - 1) * self._strides[axis]
        return rank

    def _block_number(self, rank: int) -> tuple[int, ...]:
        """Return which block `rank` holds: the same for copies."""
        place = self.coordinates(rank)
        return tuple(place[axis] for axis in self.axes if axis is not None)
