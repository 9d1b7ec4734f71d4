"""Broadcasting: arrays of different shapes in one layout, on the ranks that hold their elements, without messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NamedTuple

from collops.array.layout import Layout
from collops.array.operands import GlobalArray, check_alike, check_ranks_and_engine
from collops.array.plans import reduction_plan
from collops.backend import LocalArray
from collops.errors import LayoutError

__all__ = ["broadcast", "broadcast_layout", "broadcast_operand"]


class _Split(NamedTuple):
    """How an axis is split: the grid axis, as distance between its ranks and their number, and the sizes of blocks."""

    stride: int
    extent: int
    sizes: tuple[int, ...]


def broadcast(*operands: Any) -> tuple[Any, ...]:
    """Return the distributed arrays among operands in one layout, and the others as they are. No messages.

    Raises
    ------
    LayoutError
        Unless each axis of extent 1 that another array extends is whole, and the other axes are split alike.
    UnsupportedTypeError
        If the arrays are of different engines.
    """
    arrays = [x for x in operands if hasattr(x, "local_array")]
    if len({x.layout for x in arrays}) <= 1:
        return operands
    layout = broadcast_layout(*arrays)
    return tuple(_spread(x, layout) if hasattr(x, "local_array") else x for x in operands)


def broadcast_layout(*arrays: GlobalArray) -> Layout:
    """Return the layout to which arrays are broadcast; raise as :func:`broadcast`."""
    first = arrays[0]
    for x in arrays:
        check_ranks_and_engine(first, x)
    layouts = tuple(x.layout for x in arrays)
    layout = _common(layouts)
    if layout is not None:
        return layout
    if first.size == (other := next(x for x in arrays if x.layout is not first.layout)).size or not _fit(layouts):
        check_alike(first, other)
    listed = "\n  ".join(map(str, layouts))
    raise LayoutError(
        "without messages, axes are broadcast if they are whole, and the other axes must be split alike, not\n"
        f"  {listed}\nmake the arrays in layouts that fit, or of one shape"
    )


def broadcast_operand(x: GlobalArray, layout: Layout) -> LocalArray:
    """Return the local array of `x` for operations with parts of arrays of a layout from :func:`broadcast_layout`.

    In JAX, its cotangent is the sum over the ranks to which it is broadcast.
    """
    new = layout.ndim - x.ndim
    spread = tuple(axis for axis in layout.split_axes if axis < new or x.layout.axes[axis - new] is None)
    return x.engine.replicated_operand(x.local_array, reduction_plan(layout, x.comm).by_axes[spread])


def _spread(x: GlobalArray, layout: Layout) -> GlobalArray:
    if x.layout is layout:
        return x
    values = broadcast_operand(x, layout)
    return x._in_layout(layout, x.engine.xp.broadcast_to(values, layout.local_shape(x.comm.rank)))


@lru_cache(maxsize=256)
def _common(layouts: tuple[Layout, ...]) -> Layout | None:
    """Return the layout to which arrays of several layouts are broadcast, if there is one."""
    if len({layout.mask for layout in layouts}) > 1:
        return None
    shape, splits = [], []
    columns = zip_longest(*(reversed([*zip(x.shape, _splits(x), strict=True)]) for x in layouts), fillvalue=(1, None))
    for column in columns:
        extended = {entry for entry in column if entry[0] != 1}
        chosen = extended or set(column)
        if len(chosen) > 1 or (extended and any(split for extent, split in column if extent == 1)):
            return None
        extent, split = chosen.pop()
        shape.insert(0, extent)
        splits.insert(0, split)
    needed = [split[:2] for split in splits if split]
    for layout in layouts:
        grid = [*zip(layout._strides, layout.process_grid, strict=True)]
        if len(needed) == len({*needed}) and {*needed} <= {*grid}:
            axes = [split and grid.index(split[:2]) for split in splits]
            sizes: list[Sequence[int] | None] = [split and split.sizes for split in splits]
            return Layout(shape, layout.ranks, layout.process_grid, axes, sizes, layout.mask)
    return None


def _fit(layouts: Sequence[Layout]) -> bool:
    """Return whether the shapes fit by NumPy's rules of broadcasting."""
    columns = zip_longest(*(reversed(layout.shape) for layout in layouts), fillvalue=1)
    return all(len({*extents} - {1}) <= 1 for extents in columns)


def _splits(layout: Layout) -> list[_Split | None]:
    return [
        None if axis is None else _Split(layout._strides[axis], layout.process_grid[axis], sizes)
        for axis, sizes in zip(layout.axes, layout.sizes, strict=True)
    ]
