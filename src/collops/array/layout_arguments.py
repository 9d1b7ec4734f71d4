"""Checks and normal forms of the arguments of layouts."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterable, Sequence
from typing import SupportsIndex, TypeAlias

from collops.errors import LayoutError

__all__ = ["as_extents", "as_ranks", "as_shape", "normal_axis"]

Integers: TypeAlias = Sequence[SupportsIndex]
Shape: TypeAlias = SupportsIndex | Integers
Extents: TypeAlias = tuple[int, ...]
Axes: TypeAlias = tuple[int | None, ...]
Blocks: TypeAlias = tuple[Extents, ...]

_SIZES_SHOWN = 6
_LARGEST = 2**63 - 1
_MAX_RANKS = 2**24  # bounds the lists with one entry per rank


def as_shape(shape: Shape, smallest: int = 0) -> Extents:
    """Return a shape, given as an integer or a sequence of integers, as a tuple."""
    return as_extents(integers(shape), "shape", smallest)


def integers(values: Shape) -> Extents:
    """Return an integer or a sequence of integers as a tuple."""
    try:
        return (operator.index(values),)  # pyright: ignore[reportArgumentType]
    except TypeError:  # NumPy arrays have __index__ too, so that only a call tells whether it is a single number
        return tuple(operator.index(value) for value in values)  # pyright: ignore[reportGeneralTypeIssues]


def as_extents(values: Integers, what: str, smallest: int) -> Extents:
    """Return integers, at least `smallest`, as a tuple."""
    extents = tuple(operator.index(value) for value in values)
    if any(extent < smallest for extent in extents):
        raise LayoutError(f"the extents of a {what} must be at least {smallest}, not {extents}")
    if math.prod(extents) > _LARGEST or any(extent > _LARGEST for extent in extents):
        raise LayoutError(f"a {what} of {extents} has too many elements for 64-bit indices")
    return extents


def as_ranks(ranks: SupportsIndex) -> int:
    """Return a checked number of ranks."""
    number = operator.index(ranks)
    if not 1 <= number <= _MAX_RANKS:
        raise LayoutError(f"the number of ranks must be 1 to {_MAX_RANKS}, not {number}")
    return number


def normal_axis(axis: int, ndim: int) -> int:
    """Return an axis number counted from the start."""
    if not -ndim <= operator.index(axis) < ndim:
        raise LayoutError(f"there is no axis {axis} in an array with {ndim} axes")
    return operator.index(axis) % ndim


def checked_axes(axes: Sequence[int | None], shape: Extents, process_grid: Extents) -> Axes:
    """Return the process-grid axis of each array axis; each process-grid axis may occur once."""
    if len(axes) != len(shape):
        raise LayoutError(f"axes needs one entry per axis of the shape {shape}, not {len(axes)}")
    used = [axis for axis in axes if axis is not None]
    if any(not 0 <= axis < len(process_grid) for axis in used) or len(set(used)) != len(used):
        raise LayoutError(
            f"axes={tuple(axes)}: each axis of the process grid {process_grid} can split one axis of the array"
        )
    return tuple(axes)


def normal_grid(process_grid: Extents, axes: Axes) -> tuple[Extents, Axes]:
    """Drop process-grid extents of 1 and merge neighbouring replicating axes, which moves no block."""
    grid: list[int] = []
    axis_of_grid: dict[int | None, int] = {}
    replicating = False
    for axis, extent in enumerate(process_grid):
        if extent == 1:
            continue
        if replicating and axis not in axes:
            grid[-1] *= extent
            continue
        axis_of_grid[axis] = len(grid)
        grid.append(extent)
        replicating = axis not in axes
    return tuple(grid) or (1,), tuple(map(axis_of_grid.get, axes))


def block_sizes(shape: Extents, grid: Extents, axes: Axes, sizes: Sequence[Integers | None] | None) -> Blocks:
    """Return the sizes of the blocks along every axis."""
    if sizes is None:
        sizes = [None] * len(shape)
    if len(sizes) != len(shape):
        raise LayoutError(f"sizes need one entry per axis of the shape {shape}, not {len(sizes)}")
    return tuple(
        block_list(argument, extent, 1 if grid_axis is None else grid[grid_axis], axis)
        for axis, (argument, extent, grid_axis) in enumerate(zip(sizes, shape, axes, strict=True))
    )


def block_list(argument: Integers | None, extent: int, parts: int, axis: int) -> Extents:
    """Return the block sizes of an axis of `extent` elements in `parts` parts; `given` if it is not None."""
    if argument is None:
        share, longer = divmod(extent, parts)
        return (share + 1,) * longer + (share,) * (parts - longer)
    blocks = tuple(operator.index(size) for size in argument)
    if len(blocks) != parts or sum(blocks) != extent or any(size < 0 for size in blocks):
        raise LayoutError(
            f"axis {axis} of {extent} elements in {parts} parts does not fit the sizes {sizes_text(blocks)}, "
            f"which are {len(blocks)} parts with the sum {sum(blocks)}"
        )
    return blocks


def normal_mask(mask: Integers | None, ranks: int) -> Extents | None:
    """Return the group number of every rank, counted from 0; ``None`` for a single group."""
    if mask is None:
        return None
    if len(mask) != ranks:
        raise LayoutError(f"a mask needs one group number per rank: {len(mask)} were given for {ranks} ranks")
    groups = numbered(operator.index(group) for group in mask)
    return groups if max(groups) > 0 else None


def numbered(keys: Iterable[Hashable]) -> Extents:
    """Return a number for each key, counted from 0 in the order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)


def complete_shape(shape: Extents, size: int) -> Extents:
    """Return a shape of `size` elements, with -1 replaced by the missing extent."""
    unknown = shape.count(-1)
    known = math.prod(extent for extent in shape if extent != -1)
    if unknown == 1 and known > 0 and size % known == 0:
        shape = tuple(size // known if extent == -1 else extent for extent in shape)
    if -1 in shape or math.prod(shape) != size:
        raise LayoutError(f"an array of {size} elements cannot have the shape {shape}")
    return shape


def sizes_text(sizes: Sequence[int]) -> str:
    """Return sizes as text, abbreviated if there are many."""
    if len(sizes) <= _SIZES_SHOWN:
        return "+".join(str(size) for size in sizes)
    return f"{len(sizes)} parts of {min(sizes)} to {max(sizes)}"


def few(shapes: Sequence[Extents]) -> str:
    """Return the first few shapes as text."""
    shown = ", ".join(str(shape) for shape in shapes[:_SIZES_SHOWN])
    return shown if len(shapes) <= _SIZES_SHOWN else f"{shown}, …"
