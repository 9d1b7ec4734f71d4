"""Layouts of arrays and of stacks: which rank holds which part.

A layout computes the shape and offset of every rank's part by arithmetic. Only :meth:`Layout.from_local` communicates.
"""

from __future__ import annotations

import math
import operator
import threading
import weakref
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Self, SupportsIndex

from collops.array.layout_arguments import (
    Axes,
    Blocks,
    Extents,
    Integers,
    Shape,
    as_extents,
    as_ranks,
    as_shape,
    block_sizes,
    checked_axes,
    complete_shape,
    few,
    integers,
    normal_axis,
    normal_grid,
    normal_mask,
    numbered,
    sizes_text,
)
from collops.comm import Communicator
from collops.comm.agreement import collective_values
from collops.comm.arguments import checked_communicator
from collops.errors import LayoutError

_interned: weakref.WeakValueDictionary[tuple[Hashable, ...], Any] = weakref.WeakValueDictionary()
_interning = threading.Lock()


class _Interned:
    """Immutable objects that are identical if their keys, the arguments of the class in normal form, are equal."""

    _key: tuple[Hashable, ...]
    _complete: Callable[..., None]  # sets the attributes of a new object

    @classmethod
    def _with_key(cls, *key: Hashable) -> Self:
        with _interning:
            layout = _interned.get((cls, key))
            if layout is None:
                layout = object.__new__(cls)
                layout._complete(*key)
                layout._key = key
                _interned[cls, key] = layout
        return layout

    def __setattr__(self, name: str, value: object) -> None:
        if "_key" not in vars(self):
            return super().__setattr__(name, value)
        raise AttributeError(f"layouts are immutable: cannot set {name!r}; make a new layout")

    def __reduce__(self) -> tuple[type[Self], tuple[Hashable, ...]]:
        return type(self), self._key

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class Block(NamedTuple):
    """The part of the global array that one rank holds: shape, index of the first element, and slices, per axis."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]
    slices: tuple[slice, ...]


class Layout(_Interned):
    """A block partition of a global array over ranks.

    Every axis of the array is whole on each rank, or split over one axis of a process grid. An axis of the process grid
    that splits no axis of the array replicates it. Layouts are immutable and interned: equal layouts are one object,
    compared with ``is``. The process grid is therefore stored in a normal form, without extents of 1 and with
    neighbouring replicating axes merged.

    :meth:`split`, :meth:`grid` and :meth:`replicated` make the common layouts; the constructor is the general form.

    Parameters
    ----------
    shape : sequence of int
        Global shape; at least one axis.
    ranks : int
        Number of ranks.
    process_grid : sequence of int
        Extents of the process grid, with the product `ranks`. Ranks are numbered in C order.
    axes : sequence of int or None
        For each axis of the array, the process-grid axis that splits it; ``None`` for a whole axis.
    sizes : sequence of (sequence of int or None), optional
        For each axis of the array, the sizes of its blocks; with ``None``, the first ``n % p`` of ``p`` blocks have one
        element more than the others.
    mask : sequence of int, optional
        One group number per rank. Reductions stay within a group; the global array still spans all ranks.

    Attributes
    ----------
    shape, ranks, process_grid, axes, sizes, mask
        The parameters in normal form. The process grid of one rank is ``(1,)``, a whole axis has one block, and groups
        are counted from 0 in the order of first appearance, with ``None`` for a single one.
    ndim, size : int
    split_axes : tuple of int
        The axes of the array that are split.
    starts : tuple of tuple of int
        The first index of each block along each axis.
    is_replicated : bool
        Whether every rank holds the whole array; always true for one rank.
    has_group_values : bool
        Whether several groups of the mask hold a block, with independent values: copies must be equal within a group
        only. There is then no global array that ``save`` could write.

    Raises
    ------
    LayoutError
        If the arguments contradict each other.

    Examples
    --------
    >>> import collops
    >>> layout = collops.Layout.split((8, 10), 3)
    >>> [layout.local_shape(rank) for rank in range(3)]
    [(3, 10), (3, 10), (2, 10)]
    >>> layout.owner((7, 0))
    2
    >>> layout is collops.Layout.split((8, 10), 3)
    True
    """

    def __new__(
        cls,
        shape: Integers,
        ranks: SupportsIndex,
        process_grid: Integers,
        axes: Sequence[int | None],
        sizes: Sequence[Integers | None] | None = None,
        mask: Integers | None = None,
    ) -> Layout:
        """Return the interned layout with these properties."""
        shape = as_extents(shape, "shape", smallest=0)
        if not shape:
            raise LayoutError("a distributed array has at least one axis; use the shape (1,) for a scalar")
        ranks = as_ranks(ranks)
        process_grid = as_extents(process_grid, "process grid", smallest=1)
        if math.prod(process_grid) != ranks:
            raise LayoutError(f"a process grid {process_grid} is for {math.prod(process_grid)} ranks, not for {ranks}")
        grid, places = normal_grid(process_grid, checked_axes(axes, shape, process_grid))
        return cls._with_key(
            shape, ranks, grid, places, block_sizes(shape, grid, places, sizes), normal_mask(mask, ranks)
        )

    def _complete(
        self, shape: Extents, ranks: int, grid: Extents, axes: Axes, sizes: Blocks, mask: Extents | None
    ) -> None:
        self.shape, self.ranks, self.process_grid = shape, ranks, grid
        self.axes, self.sizes, self.mask = axes, sizes, mask
        self.ndim = len(shape)
        self.size = math.prod(shape)
        self.split_axes = tuple(axis for axis, grid_axis in enumerate(axes) if grid_axis is not None)
        self.is_replicated = not self.split_axes
        self.starts = tuple(tuple(accumulate(blocks[:-1], initial=0)) for blocks in sizes)
        self._strides = tuple(math.prod(grid[axis + 1 :]) for axis in range(len(grid)))
        self._blocks: dict[int, Block] = {}
        if mask is not None:
            self._check_mask(mask)

    @classmethod
    def split(
        cls,
        shape: Shape,
        ranks: SupportsIndex,
        axis: int = 0,
        *,
        sizes: Integers | None = None,
        mask: Integers | None = None,
    ) -> Layout:
        """Split one axis over all ranks.

        Parameters
        ----------
        shape : int or sequence of int
            Global shape.
        ranks, mask
            As for the class.
        axis : int
            The axis to split; negative numbers count from the end.
        sizes : sequence of int, optional
            Size of each rank's part; by default the first ``n % ranks`` ranks get one element more.

        Raises
        ------
        LayoutError
            If there is no such axis, or `sizes` do not add up to its extent.
        """
        shape = as_shape(shape)
        axis = normal_axis(axis, len(shape))
        ranks = operator.index(ranks)
        places = tuple(0 if a == axis else None for a in range(len(shape)))
        return cls(shape, ranks, (ranks,), places, [sizes if a == axis else None for a in range(len(shape))], mask)

    @classmethod
    def grid(
        cls,
        shape: Integers,
        process_grid: Integers,
        *,
        sizes: Sequence[Integers | None] | None = None,
        mask: Integers | None = None,
    ) -> Layout:
        """Split every axis over the process-grid axis of the same number (an extent of 1 leaves it whole).

        Parameters
        ----------
        shape, sizes, mask
            As for the class.
        process_grid : sequence of int
            Number of blocks along each axis; their product is the number of ranks.

        Raises
        ------
        LayoutError
            If `process_grid` does not have one extent per axis, or `sizes` do not fit.
        """
        shape = as_shape(shape)
        process_grid = as_extents(process_grid, "process grid", smallest=1)
        if len(process_grid) != len(shape):
            raise LayoutError(f"a process grid {process_grid} must have one extent per axis of the shape {shape}")
        return cls(shape, math.prod(process_grid), process_grid, range(len(shape)), sizes, mask)

    @classmethod
    def replicated(cls, shape: Shape, ranks: SupportsIndex, *, mask: Integers | None = None) -> Layout:
        """Keep the whole array on every rank; parameters as for :meth:`split`.

        With a mask, copies must be equal within a group only.
        """
        shape = as_shape(shape)
        return cls(shape, ranks, (ranks,), (None,) * len(shape), None, mask)

    @classmethod
    def from_local(
        cls, local_shape: Shape, comm: Communicator, axis: int = 0, *, mask: Integers | None = None
    ) -> Layout:
        """Return the layout of existing local arrays, concatenated along `axis`. Collective: one metadata message.

        Parameters
        ----------
        local_shape : int or sequence of int
            Shape of this rank's part; the ranks may differ along `axis` only.
        comm : Communicator
            The ranks.
        axis : int
            The axis along which the parts are concatenated.
        mask
            As for the class.

        Raises
        ------
        LayoutError
            On every rank, if the parts do not fit together.
        """
        shapes = collective_values(checked_communicator(comm), lambda: as_shape(local_shape))
        return cls._of_parts([tuple(shape) for shape in shapes], axis, mask)

    @classmethod
    def _of_parts(cls, shapes: Sequence[tuple[int, ...]], axis: int, mask: Integers | None) -> Layout:
        """Return the layout of parts of these shapes, one for each rank; see :meth:`from_local`."""
        if len({len(shape) for shape in shapes}) != 1:
            raise LayoutError(f"local arrays must have one number of axes, not the shapes {few(shapes)}")
        axis = normal_axis(axis, len(shapes[0]))
        other_extents = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
        if len(other_extents) != 1:
            raise LayoutError(f"local arrays may differ along axis {axis} only, but have the shapes {few(shapes)}")
        sizes = [shape[axis] for shape in shapes]
        shape = (*shapes[0][:axis], sum(sizes), *shapes[0][axis + 1 :])
        return cls.split(shape, len(shapes), axis, sizes=sizes, mask=mask)

    # The block of each rank

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return the position of `rank` in the process grid."""
        if not 0 <= operator.index(rank) < self.ranks:
            raise LayoutError(f"there is no rank {rank!r} among {self.ranks}")
        return tuple(rank // stride % extent for stride, extent in zip(self._strides, self.process_grid, strict=True))

    def block(self, rank: int) -> Block:
        """Return shape, offset and slices of the part of `rank`."""
        block = self._blocks.get(rank)
        if block is None:
            coordinates = self.coordinates(rank)
            numbers = [0 if axis is None else coordinates[axis] for axis in self.axes]
            shape = tuple(sizes[number] for sizes, number in zip(self.sizes, numbers, strict=True))
            offset = tuple(starts[number] for starts, number in zip(self.starts, numbers, strict=True))
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

    def owner(self, index: Shape) -> int:
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
        for i, extent, starts, axis in zip(position, self.shape, self.starts, self.axes, strict=True):
            if axis is not None:
                # If several blocks start here, only the last is not empty.
                rank += (bisect_right(starts, i % extent) - 1) * self._strides[axis]
        return rank

    def _block_number(self, rank: int) -> tuple[int, ...]:
        """Return the number of the block that `rank` holds, along each split axis."""
        coordinates = self.coordinates(rank)
        return tuple(coordinates[axis] for axis in self.axes if axis is not None)

    # The ranks of reductions

    def reduction_groups(self, axes: Iterable[int] | None = None) -> tuple[int, ...] | None:
        """Return the groups of ranks whose partial results a reduction combines.

        Together, the ranks of one group hold every element exactly once.

        Parameters
        ----------
        axes : iterable of int, optional
            The axes of the array to reduce; all by default.

        Returns
        -------
        tuple of int or None
            One group number per rank, counted from 0 in the order of first appearance; ``None`` if none is needed.
        """
        chosen = set(self.split_axes if axes is None else axes)
        reduced = {self.axes[axis] for axis in self.split_axes if axis in chosen}
        if not reduced:
            return None
        mask = self.mask or (0,) * self.ranks
        places = map(self.coordinates, range(self.ranks))
        return numbered(
            (group, *(p for axis, p in enumerate(coordinates) if axis not in reduced))
            for group, coordinates in zip(mask, places, strict=True)
        )

    def reduction_count(self, rank: int, axes: Iterable[int] | None = None) -> int:
        """Return the number of elements that a reduction over `axes` combines into one result on `rank`."""
        self.coordinates(rank)
        reduced = range(self.ndim) if axes is None else tuple(axes)
        if self.mask is None:
            return math.prod(self.shape[axis] for axis in reduced)
        groups = self.reduction_groups(reduced)
        members = [rank] if groups is None else [r for r in range(self.ranks) if groups[r] == groups[rank]]
        return sum(math.prod(self.block(member).shape[axis] for axis in reduced) for member in members)

    @cached_property
    def has_group_values(self) -> bool:
        """Whether several groups of the mask hold a block."""
        blocks = math.prod(len(self.sizes[axis]) for axis in self.split_axes)
        return self.mask is not None and len(self._representatives) > blocks

    def representative(self, rank: int) -> bool:
        """Return whether `rank` is the lowest rank of its mask group that holds its block."""
        self.coordinates(rank)
        return rank in self._representatives

    @property
    def has_copies(self) -> bool:
        """Whether some block is on more than one rank of a group."""
        return len(self._representatives) < self.ranks

    @cached_property
    def _representatives(self) -> frozenset[int]:
        first: dict[Hashable, int] = {}
        for rank, group in enumerate(self.mask or (0,) * self.ranks):
            first.setdefault((group, self._block_number(rank)), rank)
        return frozenset(first.values())

    def _check_mask(self, mask: tuple[int, ...]) -> None:
        """Raise if a reduction within a mask group would miss elements or count some twice."""
        held: defaultdict[tuple[int, int], set[tuple[int, ...]]] = defaultdict(set)
        for rank, copy in enumerate(self.reduction_groups() or ()):
            held[mask[rank], copy].add(self._block_number(rank))
        held_blocks = {(group, frozenset(blocks)) for (group, _), blocks in held.items()}
        if len(held_blocks) > len({group for group, _ in held_blocks}):
            raise LayoutError(
                f"the mask {mask} divides the copies of a partially replicated layout; "
                "put all ranks of a copy into one group"
            )

    # Layouts derived from this one

    def drop(self, axes: Shape) -> Layout:
        """Return the layout without some axes; the process-grid axes that split them then replicate.

        Parameters
        ----------
        axes : int or sequence of int
            Axes to remove; at least one must remain.
        """
        removed = {normal_axis(axis, self.ndim) for axis in integers(axes)}
        return self._of_axes([axis for axis in range(self.ndim) if axis not in removed])

    def _of_axes(self, axes: Sequence[int]) -> Layout:
        """Return the layout of some axes, in this order; the process-grid axes that split the others replicate."""
        shape, places = [self.shape[axis] for axis in axes], [self.axes[axis] for axis in axes]
        return Layout(shape, self.ranks, self.process_grid, places, [self.sizes[axis] for axis in axes], self.mask)

    def reshape(self, shape: Shape) -> Layout:
        """Return the layout after reshaping in C order without moving data between ranks.

        Parameters
        ----------
        shape : int or sequence of int
            The new global shape; one extent may be -1.

        Raises
        ------
        LayoutError
            If the sizes differ, or the blocks of a split axis are not blocks of an axis of the new shape.
        """
        new = complete_shape(as_shape(shape, smallest=-1), self.size)
        axes: list[int | None] = [None] * len(new)
        sizes: list[Integers | None] = [None] * len(new)
        for axis in self.split_axes:
            target, blocks = self._reshaped_axis(axis, new)
            axes[target] = self.axes[axis]
            sizes[target] = blocks
        return Layout(new, self.ranks, self.process_grid, axes, sizes, self.mask)

    def _reshaped_axis(self, axis: int, new: tuple[int, ...]) -> tuple[int, Sequence[int]]:
        before, inner = math.prod(self.shape[:axis]), math.prod(self.shape[axis + 1 :])
        for target, extent in enumerate(new):
            if math.prod(new[:target]) != before:
                continue
            if extent == self.shape[axis] and math.prod(new[target + 1 :]) == inner:
                return target, self.sizes[axis]
            new_inner = math.prod(new[target + 1 :])
            # An axis of extent 1 cannot be split; a later one may be.
            fits = extent != 1 and new_inner > 0 and extent * new_inner == self.shape[axis] * inner
            if fits and all(size * inner % new_inner == 0 for size in self.sizes[axis]):
                return target, [size * inner // new_inner for size in self.sizes[axis]]
        raise LayoutError(
            f"{self} cannot be reshaped to {new} without moving data: the parts of axis {axis} are not parts of an "
            f"axis of the new shape; first call redistribute({self._reshapable(new)[1]})"
        )

    def _reshapable(self, new: tuple[int, ...]) -> tuple[Layout, str]:
        """Return a layout of this shape that can be reshaped to `new`, of the same size, and the call that makes it."""
        if self.size == 0:
            return Layout.replicated(self.shape, self.ranks), f"Layout.replicated({self.shape}, {self.ranks})"
        axis, target = (next(a for a, extent in enumerate(shape) if extent != 1) for shape in (self.shape, new))
        inner, new_inner = math.prod(self.shape[axis + 1 :]), math.prod(new[target + 1 :])
        unit = new_inner // math.gcd(inner, new_inner)  # rows of the old shape that are whole rows of the new one
        sizes = [unit * count for count in Layout.split(self.shape[axis] // unit, self.ranks).sizes[0]]
        sizes += [0] * (self.ranks - len(sizes))
        layout = Layout.split(self.shape, self.ranks, axis, sizes=sizes, mask=self.mask)
        mask = "" if self.mask is None else f", mask={self.mask}"
        return layout, f"Layout.split({self.shape}, {self.ranks}, axis={axis}, sizes={sizes}{mask})"

    def without_mask(self) -> Layout:
        """Return the layout with a single group of ranks."""
        if self.mask is None:
            return self
        return Layout(self.shape, self.ranks, self.process_grid, self.axes, self.sizes)

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        parts = [f"axis {axis} as {sizes_text(self.sizes[axis])}" for axis in self.split_axes]
        how = f"split along {', '.join(parts)}" if parts else "replicated"
        if parts and math.prod(len(self.sizes[axis]) for axis in self.split_axes) < self.ranks:
            how += ", in copies"
        mask = "" if self.mask is None else f", mask {self.mask}"
        return f"{self.shape} on {ranks}, {how}{mask}"


class StackedLayout(_Interned):
    """The layouts of the parts of a stacked array; immutable and interned like :class:`Layout`.

    Parameters
    ----------
    layouts : sequence of Layout or StackedLayout
        At least one; all on the same number of ranks.

    Attributes
    ----------
    layouts : tuple of (Layout or StackedLayout)
    ranks : int
    size : int
        Number of elements of all parts.
    leaves : tuple of Layout
        The layouts of all parts in order, without nesting.

    Raises
    ------
    LayoutError
        If there is no part, or the parts are for different numbers of ranks.

    Examples
    --------
    >>> import collops
    >>> both = collops.StackedArray([collops.ones(3), collops.ones((2, 2))])
    >>> both.layout.size, len(both.layout)
    (7, 2)
    """

    def __new__(cls, layouts: Sequence[Layout | StackedLayout]) -> StackedLayout:
        """Return the interned stacked layout of these parts."""
        parts = tuple(layouts)
        if not parts:
            raise LayoutError("a stacked layout needs at least one part")
        if any(not isinstance(part, Layout | StackedLayout) for part in parts):
            raise LayoutError("the parts of a stacked layout must be layouts")
        if len({part.ranks for part in parts}) != 1:
            counts = ", ".join(str(part.ranks) for part in parts)
            raise LayoutError(f"all parts must be on the same ranks, but they are on {counts}")
        return cls._with_key(parts)

    def _complete(self, parts: tuple[Layout | StackedLayout, ...]) -> None:
        self.layouts = parts
        self.leaves = tuple(leaf for part in parts for leaf in ((part,) if isinstance(part, Layout) else part.leaves))
        self.ranks = parts[0].ranks
        self.size: int = sum(part.size for part in parts)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds all of every part."""
        return all(leaf.is_replicated for leaf in self.leaves)

    def local_size(self, rank: int) -> int:
        """Return the number of elements of all parts that `rank` holds."""
        return sum(leaf.local_size(rank) for leaf in self.leaves)

    def __len__(self) -> int:
        return len(self.layouts)

    def __iter__(self) -> Iterator[Layout | StackedLayout]:
        return iter(self.layouts)

    def __getitem__(self, index: int) -> Layout | StackedLayout:
        return self.layouts[index]

    def __str__(self) -> str:
        return "[" + "; ".join(str(part) for part in self.layouts) + "]"
