"""Functions of the array API standard that combine elements: sums, extremes, moments, and functions along an axis.

Results without axes are 0-d arrays of the engine, equal on all ranks, as for the methods of distributed arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from collops import DistributedArray, Layout
from collops.bridges.array_api.shapes import check_array, expand_dims
from collops.errors import LayoutError
from collops.extend.engines import engine_of

Axis: TypeAlias = int | tuple[int, ...] | None


def max(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return the largest elements. Collective: at most one allreduce."""
    return _kept(x, np.max(x, axis), axis, keepdims)


def min(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return the smallest elements. Collective: at most one allreduce."""
    return _kept(x, np.min(x, axis), axis, keepdims)


def mean(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return the mean. Collective: at most one allreduce."""
    return _kept(x, np.mean(x, axis), axis, keepdims)


def sum(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Return the sum; of integers in 64 bits. Collective: at most one allreduce."""
    return _kept(x, np.sum(x, axis, dtype), axis, keepdims)


def prod(x: Any, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Return the product; of integers in 64 bits. Collective: at most one allreduce."""
    engine = engine_of(x.local_array if isinstance(x, DistributedArray) else x)
    kind = engine.dtype(np.prod(np.empty(0, x.dtype)).dtype if dtype is None else dtype)
    if not isinstance(x, DistributedArray):
        return engine.xp.prod(x, dtype=kind)
    axes = _axes(x, axis)
    product = engine.xp.asarray(engine.xp.prod(x.local_array, axis=axes, dtype=kind))
    groups = x.layout.reduction_groups(axes)
    if groups is not None:
        product = x.comm.subgroup(groups).allreduce(product, "prod")
    if len(axes) == x.ndim:
        return _kept(x, product[()], axis, keepdims)
    return _kept(x, DistributedArray(x.layout.drop(axes), x.comm, product), axis, keepdims)


def std(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    """Return the standard deviation. Collective: at most two allreduces."""
    return _kept(x, np.std(x, axis, ddof=correction), axis, keepdims)


def var(x: Any, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    """Return the variance. Collective: at most two allreduces."""
    return _kept(x, np.var(x, axis, ddof=correction), axis, keepdims)


def all(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return whether all elements are true. Collective: at most one allreduce."""
    return _kept(x, np.all(x, axis), axis, keepdims)


def any(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return whether any element is true. Collective: at most one allreduce."""
    return _kept(x, np.any(x, axis), axis, keepdims)


def count_nonzero(x: Any, /, *, axis: Axis = None, keepdims: bool = False) -> Any:
    """Return the number of elements that are not 0. Collective: at most one allreduce."""
    return sum(x != 0, axis=axis, keepdims=keepdims)


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the global indices of the first largest elements. Collective: at most two allreduces."""
    return _kept(x, np.argmax(x, axis), axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Return the global indices of the first smallest elements. Collective: at most two allreduces."""
    return _kept(x, np.argmin(x, axis), axis, keepdims)


# Functions along a whole axis, which each rank computes by itself


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Return the indices that sort an array along a whole axis. No messages."""

    def sorted_indices(values: Any, number: int) -> Any:
        engine = engine_of(values)
        xp, options = engine.xp, {"stable": stable} if engine.memory == "host" else {}  # CuPy's is always stable
        if not descending:
            return xp.argsort(values, axis=number, **options)
        # Reversed twice, equal elements keep their order.
        order = xp.argsort(xp.flip(values, axis=number), axis=number, **options)
        return values.shape[number] - 1 - xp.flip(order, axis=number)

    return _along(x, axis, "argsort", sorted_indices)


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Return an array sorted along a whole axis; equal elements do not differ. No messages."""

    def sorted_values(values: Any, number: int) -> Any:
        xp = engine_of(values).xp
        result = xp.sort(values, axis=number)
        return xp.flip(result, axis=number) if descending else result

    return _along(x, axis, "sort", sorted_values)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Return the cumulative sums along a whole axis. No messages."""
    return _cumulated(x, axis, dtype, include_initial, "cumsum")


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Return the cumulative products along a whole axis. No messages."""
    return _cumulated(x, axis, dtype, include_initial, "cumprod")


def _cumulated(x: Any, axis: int | None, dtype: Any, include_initial: bool, name: str) -> Any:
    if axis is None and x.ndim != 1:
        raise LayoutError(f"cumulative sums and products of an array with {x.ndim} axes need axis=")

    def cumulated(values: Any, number: int) -> Any:
        xp = engine_of(values).xp
        result = getattr(xp, name)(values, axis=number, dtype=dtype)
        if not include_initial:
            return result
        first = list(values.shape)
        first[number] = 1
        return xp.concatenate([xp.full(first, int(name == "cumprod"), dtype=result.dtype), result], axis=number)

    return _along(x, 0 if axis is None else axis, name, cumulated)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    """Return the differences of neighbours along a whole axis. No messages, unless it is extended."""
    extended = [part for part in (prepend, x, append) if part is not None]
    if len(extended) > 1:
        x = np.concatenate(extended, axis)
    return _along(x, axis, "diff", lambda values, number: engine_of(values).xp.diff(values, n=n, axis=number))


def flip(x: Any, /, *, axis: Axis = None) -> Any:
    """Reverse the elements along whole axes. No messages."""
    for number in _axes(x, axis):
        x = _along(x, number, "flip", lambda values, number: engine_of(values).xp.flip(values, axis=number))
    return x


def roll(x: Any, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> Any:
    """Shift the elements along whole axes, with those beyond an end at the other end. No messages."""
    if axis is None and x.ndim != 1:
        return roll(x.ravel(), shift, axis=0).reshape(x.shape)
    axes = axis if isinstance(axis, tuple) else (axis or 0,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    for by, number in zip(shifts, axes, strict=True):
        x = _along(x, number, "roll", lambda values, number, by=by: engine_of(values).xp.roll(values, by, axis=number))
    return x


def repeat(x: Any, repeats: int, /, *, axis: int | None = None) -> Any:
    """Repeat each element along a whole axis. No messages."""
    if axis is None:
        x, axis = (x if x.ndim == 1 else x.ravel()), 0
    return _along(x, axis, "repeat", lambda values, number: engine_of(values).xp.repeat(values, repeats, axis=number))


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    """Return the elements at indices along a whole axis. No messages.

    `indices` is an array of NumPy or of the engine, equal on all ranks, or a replicated array.
    """
    if isinstance(indices, DistributedArray):
        if not indices.layout.is_replicated:
            raise LayoutError("take needs indices that all ranks have: use indices.gather(), or collops.IndexScatter")
        indices = indices.local_array
    if axis is None and x.ndim != 1:
        raise LayoutError(f"take from an array with {x.ndim} axes needs axis=")

    def taken(values: Any, number: int) -> Any:
        xp = engine_of(values).xp
        return xp.take(values, xp.asarray(indices), axis=number)

    return _along(x, 0 if axis is None else axis, "take", taken)


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    """Return the elements at indices along a whole axis, as returned by :func:`argsort`. No messages."""

    def taken(values: Any, number: int) -> Any:
        return engine_of(values).xp.take_along_axis(values, indices.local_array, axis=number)

    _check_whole(indices, axis, "take_along_axis")
    without = [a.layout.drop(axis) if a.ndim > 1 else None for a in (x, indices)]
    if without[0] is not without[1]:
        raise LayoutError(f"take_along_axis needs arrays that differ along axis {axis} only, and are split alike")
    return _along(x, axis, "take_along_axis", taken)


def _along(x: DistributedArray, axis: int, name: str, function: Callable[[Any, int], Any]) -> DistributedArray:
    """Apply a function of the local array along a whole axis, whose extent it may change."""
    number = _check_whole(x, axis, name)
    values = function(x.local_array, number)
    layout = x.layout
    shape, sizes = list(layout.shape), list(layout.sizes)
    shape[number] = values.shape[number]
    sizes[number] = (shape[number],)
    return DistributedArray(
        Layout(shape, layout.ranks, layout.process_grid, layout.axes, sizes, layout.mask), x.comm, values
    )


def _check_whole(x: DistributedArray, axis: int, name: str) -> int:
    check_array(x, name)
    (number,) = _axes(x, axis)
    if x.layout.axes[number] is not None:
        raise LayoutError(
            f"{name} along the split axis {number} would move data between ranks: first redistribute to a layout in "
            "which this axis is whole, such as x.redistribute(Layout.replicated(x.shape, x.comm.size))"
        )
    return number


def _axes(x: Any, axis: Axis) -> tuple[int, ...]:
    """Return axes as distinct non-negative numbers."""
    chosen = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if not {-x.ndim <= number < x.ndim for number in chosen} <= {True}:
        raise LayoutError(f"axis={axis} does not name axes of an array with {x.ndim} axes")
    return tuple(number % x.ndim for number in chosen)


def _kept(x: Any, result: Any, axis: Axis, keepdims: bool) -> Any:
    """Return a result, with the reduced axes of `x` again, with the extent 1, if `keepdims`."""
    if not keepdims or not isinstance(x, DistributedArray):
        return result
    axes = _axes(x, axis)
    if isinstance(result, DistributedArray):
        return expand_dims(result, axis=axes)
    layout = Layout.replicated((1,) * x.ndim, x.comm.size, mask=x.layout.mask)
    return DistributedArray(layout, x.comm, x.engine.xp.reshape(result, layout.shape))


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(all, any, argmax, argmin, argsort, count_nonzero, cumulative_prod, cumulative_sum, diff, flip, max, mean),
        *(min, prod, repeat, roll, sort, std, sum, take, take_along_axis, var),
    )
}
