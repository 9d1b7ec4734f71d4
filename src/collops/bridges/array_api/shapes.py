"""Functions of the array API standard that change shapes or join arrays, on the ranks that hold the elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops import DistributedArray, Layout
from collops.errors import LayoutError, UnsupportedTypeError, type_name
from collops.extend.arrays import broadcast, broadcast_operand


def broadcast_arrays(*arrays: Any) -> tuple[Any, ...]:
    """Return arrays broadcast to one shape and layout. No messages."""
    return broadcast(*arrays)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which arrays of these shapes are broadcast."""
    return np.broadcast_shapes(*shapes)


def broadcast_to(x: DistributedArray, /, shape: Sequence[int]) -> DistributedArray:
    """Return an array broadcast along whole axes, which stay whole. No messages."""
    check_array(x, "broadcast_to")
    layout, new = x.layout, len(shape) - x.ndim
    if new < 0 or any(now not in (1, extent) for now, extent in zip(x.shape, shape[new:], strict=True)):
        raise LayoutError(f"an array of the shape {x.shape} is not broadcast to {tuple(shape)}")
    changed = [axis for axis in range(x.ndim) if x.shape[axis] != shape[new + axis]]
    if any(layout.axes[axis] is not None for axis in changed):
        raise LayoutError(f"an array is broadcast along whole axes only, not {layout}: redistribute it first")
    axes = [None] * new + [*layout.axes]
    sizes = [None] * new + [None if axis in changed else blocks for axis, blocks in enumerate(layout.sizes)]
    target = Layout(shape, layout.ranks, layout.process_grid, axes, sizes, layout.mask)
    values = x.engine.xp.broadcast_to(broadcast_operand(x, target), target.local_shape(x.comm.rank))
    return DistributedArray(target, x.comm, values)


def concat(arrays: Sequence[DistributedArray], /, *, axis: int | None = 0) -> Any:
    """Join arrays along an axis. Collective: if it is split, one all-to-all for each array."""
    arrays = list(arrays)
    return np.concatenate([x.ravel() for x in arrays] if axis is None else arrays, axis=axis or 0)


def expand_dims(x: DistributedArray, /, axis: int | tuple[int, ...] = 0) -> DistributedArray:
    """Return an array with new whole axes of extent 1. No messages."""
    check_array(x, "expand_dims")
    chosen = axis if isinstance(axis, tuple) else (axis,)
    ndim = x.ndim + len(chosen)
    new = {number % ndim for number in chosen if -ndim <= number < ndim}
    if len(new) != len(chosen):
        raise LayoutError(f"axis={axis} does not name distinct axes of a result with {ndim} axes")
    old = iter(range(x.ndim))
    return _rearranged(x, [None if number in new else next(old) for number in range(ndim)])


def matrix_transpose(x: DistributedArray, /) -> DistributedArray:
    """Exchange the last two axes, and the split with them. No messages."""
    if x.ndim < 2:
        raise LayoutError("matrix_transpose needs an array with at least two axes")
    return x.transpose((*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def moveaxis(x: DistributedArray, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Any:
    """Move axes to other positions, and the split with them. No messages."""
    moved, places = (number if isinstance(number, tuple) else (number,) for number in (source, destination))
    if len(moved) != len(places) or any(not -x.ndim <= number < x.ndim for number in (*moved, *places)):
        raise LayoutError(f"moveaxis takes as many sources as destinations, axes of the array: {source}, {destination}")
    order = [axis for axis in range(x.ndim) if axis not in {number % x.ndim for number in moved}]
    for place, number in sorted(zip((place % x.ndim for place in places), moved, strict=True)):
        order.insert(place, number % x.ndim)
    return x.transpose(order)


def permute_dims(x: DistributedArray, /, axes: Sequence[int]) -> DistributedArray:
    """Permute the axes, and the split with them. No messages."""
    return x.transpose(axes)


def reshape(x: Any, /, shape: Sequence[int], *, copy: bool | None = None) -> Any:
    """Return an array in another shape. No messages: raises LayoutError if data would move to other ranks."""
    if isinstance(x, DistributedArray):
        if copy:
            x = x.copy()
        return x.reshape(tuple(shape)) if shape else squeeze(x, axis=tuple(range(x.ndim)))
    if shape:
        check_array(x, "reshape")
    return x


def squeeze(x: DistributedArray, /, axis: int | tuple[int, ...]) -> Any:
    """Return an array without whole axes of extent 1, or a number without any axis. No messages."""
    check_array(x, "squeeze")
    numbers = axis if isinstance(axis, tuple) else (axis,)
    chosen = {number % x.ndim for number in numbers if -x.ndim <= number < x.ndim}
    if len(chosen) != len(numbers) or any(
        x.shape[number] != 1 or x.layout.axes[number] is not None for number in chosen
    ):
        raise LayoutError(f"squeeze removes whole axes of extent 1, not axis={axis} of {x.layout}")
    kept = [number for number in range(x.ndim) if number not in chosen]
    return _rearranged(x, kept) if kept else x.local_array.reshape(())[()]  # all ranks have it


def stack(arrays: Sequence[DistributedArray], /, *, axis: int = 0) -> Any:
    """Join arrays of one layout along a new axis, which is whole. No messages."""
    arrays = broadcast(*arrays)
    return np.concatenate([expand_dims(x, axis=axis) for x in arrays], axis=axis)


def tile(x: Any, repetitions: tuple[int, ...], /) -> Any:
    """Repeat an array along whole axes. Collective: all-to-alls along split axes."""
    if len(repetitions) > x.ndim:
        x = expand_dims(x, axis=tuple(range(len(repetitions) - x.ndim)))
    for axis, times in zip(range(x.ndim - len(repetitions), x.ndim), repetitions, strict=True):
        x = np.concatenate([x] * times, axis=axis) if times else x[(slice(None),) * axis + (slice(0),)]
    return x


def unstack(x: DistributedArray, /, *, axis: int = 0) -> tuple[Any, ...]:
    """Return the parts of an array along a whole axis. No messages."""
    if not -x.ndim <= axis < x.ndim:
        raise LayoutError(f"axis={axis} is not an axis of an array with {x.ndim} axes")
    number = axis % x.ndim
    return tuple(x[(slice(None),) * number + (index,)] for index in range(x.shape[number]))


def _rearranged(x: DistributedArray, axes: Sequence[int | None]) -> DistributedArray:
    """Return an array with some axes of `x` in their order, and new ones where `axes` has ``None``."""
    layout = x.layout
    shape = [1 if axis is None else layout.shape[axis] for axis in axes]
    places = [None if axis is None else layout.axes[axis] for axis in axes]
    sizes = [None if axis is None else layout.sizes[axis] for axis in axes]
    layout = Layout(shape, layout.ranks, layout.process_grid, places, sizes, layout.mask)
    return DistributedArray(layout, x.comm, x.local_array.reshape(layout.local_shape(x.comm.rank)))


def check_array(x: object, name: str) -> None:
    """Raise UnsupportedTypeError unless `x` is a distributed array."""
    if not isinstance(x, DistributedArray):
        raise UnsupportedTypeError(
            f"{name} takes a distributed array, not {type_name(x)}: distribute values by collops.from_global"
        )


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(broadcast_arrays, broadcast_shapes, broadcast_to, concat, expand_dims, matrix_transpose, moveaxis),
        *(permute_dims, reshape, squeeze, stack, tile, unstack),
    )
}
