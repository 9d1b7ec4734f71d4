"""Slices of distributed arrays, and functions of NumPy across ranks that are more than a ufunc or a reduction."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from collops.array.coefficients import Scalar
from collops.array.dtypes import accumulator
from collops.array.layout import Layout
from collops.array.layout_arguments import normal_axis
from collops.array.operands import GlobalArray
from collops.array.reductions import Axis
from collops.errors import LayoutError, UnsupportedTypeError


def sliced(x: GlobalArray, index: Any) -> GlobalArray | Scalar:
    """Return the elements of slices, on the ranks that hold them; a view if the engine has views. No messages.

    Raises LayoutError for an index that does not exist, and for an integer or a negative step along a split axis;
    UnsupportedTypeError for arrays of indices, masks and new axes, with the replacement.
    """
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(entry is None for entry in entries):
        raise _unsupported(None)
    dots = [position for position, entry in enumerate(entries) if entry is Ellipsis]
    missing = x.ndim - len(entries) + bool(dots)
    if missing < 0 or len(dots) > 1:
        raise LayoutError(
            f"an index of an array with {x.ndim} axes takes at most {x.ndim} entries and one ellipsis, not {index!r}"
        )
    position = dots[0] if dots else len(entries)
    entries[position : position + bool(dots)] = [slice(None)] * missing
    layout, block = x.layout, x.layout.block(x.comm.rank)
    local, sizes, dropped = [], [], []
    for axis, entry in enumerate(entries):
        extent, is_split = layout.shape[axis], layout.axes[axis] is not None
        chosen = _chosen(entry, extent, axis, is_split)
        if not is_split:
            local.append(entry)
            sizes.append([len(chosen)])
        else:  # count the chosen elements before each block
            ends = [min(max(end, chosen.start), chosen.stop) for end in (*layout.starts[axis], extent)]
            before = [len(range(chosen.start, end, chosen.step)) for end in ends]
            sizes.append([after - count for count, after in pairwise(before)])
            offset, number = block.offset[axis], layout.coordinates(x.comm.rank)[layout.axes[axis]]
            begin = chosen.start + before[number] * chosen.step - offset
            local.append(slice(begin, max(begin, ends[number + 1] - offset), chosen.step))
        if not isinstance(entry, slice):
            dropped.append(axis)
    values = x.local_array[tuple(local)]
    if len(dropped) == x.ndim:
        return values
    new = Layout([sum(s) for s in sizes], layout.ranks, layout.process_grid, layout.axes, sizes, layout.mask)
    return x._in_layout(new.drop(dropped) if dropped else new, values)


def _chosen(entry: Any, extent: int, axis: int, is_split: bool) -> range:
    """Return the global indices of one entry of an index; raise unless they can stay on their ranks."""
    if isinstance(entry, slice):
        chosen = range(extent)[entry]
        if is_split and chosen.step < 0:
            raise LayoutError(
                f"a negative step along the split axis {axis} would move data between ranks; "
                "first redistribute to a layout in which this axis is whole"
            )
        return range(chosen.start, max(chosen.start, chosen.stop), chosen.step) if is_split else chosen
    if isinstance(entry, bool) or not hasattr(entry, "__index__") or getattr(entry, "ndim", 0):
        raise _unsupported(entry)
    number = operator.index(entry)
    if not -extent <= number < extent:
        raise LayoutError(f"index {number} is outside axis {axis}, which has {extent} elements")
    if is_split:
        raise LayoutError(
            f"index {number} along the split axis {axis} is on some ranks only: use a slice, x[i:i+1], "
            "or first redistribute to a layout in which this axis is whole"
        )
    return range(number % extent, number % extent + 1)


def _unsupported(entry: object) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"a distributed array is indexed by slices and integers, not by {type(entry).__name__}; "
        "use collops.Restriction or collops.IndexScatter for lists of indices, collops.where for masks, and "
        "x.reshape(shape) for new axes"
    )


def transpose(a: GlobalArray, axes: Sequence[int] | None = None) -> GlobalArray:
    """Return the array with its axes permuted, reversed by default, and the split with them. No messages.

    A view if the engine has views. :class:`collops.Transpose` moves data to another split as well.

    Raises
    ------
    LayoutError
        Unless `axes`, a sequence of int, names each axis once.
    """
    _check_single(a, "transpose")
    order = tuple(range(a.ndim))[::-1] if axes is None else tuple(normal_axis(axis, a.ndim) for axis in axes)
    if sorted(order) != list(range(a.ndim)):
        raise LayoutError(f"axes={axes} must name each axis of an array with {a.ndim} axes once")
    return a._in_layout(a.layout._of_axes(order), a.local_array.transpose(order))


def concatenate(arrays: Sequence[GlobalArray], /, axis: int = 0) -> GlobalArray:
    """Join arrays along an axis; a split one is split evenly. Collective: then one all-to-all for each array."""
    arrays = tuple(arrays)
    for array in arrays:
        _check_single(array, "concatenate")
    first = arrays[0]
    axis = normal_axis(axis, first.ndim)
    ends = list(accumulate((array.shape[axis] for array in arrays if array.ndim == first.ndim), initial=0))
    joined = _resized(first.layout, axis, ends[-1])
    for array in arrays:
        if array.comm is not first.comm or array.engine is not first.engine:
            raise UnsupportedTypeError("numpy.concatenate joins arrays of one communicator and one engine")
        if array.ndim != first.ndim or _resized(array.layout, axis, ends[-1]) is not joined:
            raise LayoutError(
                f"numpy.concatenate joins arrays that differ along axis {axis} only, in extent and split, not\n"
                f"  {first.layout}\n  {array.layout}\nredistribute one of them first"
            )
    parts, starts = [], [*joined.starts[axis], ends[-1]]
    for array, begin, end in zip(arrays, ends, ends[1:], strict=False):
        inside = [min(max(start, begin), end) for start in starts]  # of the blocks of the result, in this array
        sizes = [stop - start for start, stop in pairwise(inside)]
        layout = _resized(array.layout, axis, end - begin, sizes)
        parts.append((array if array.layout is layout else array.redistribute(layout)).local_array)
    return first._in_layout(joined, first.engine.xp.concatenate(parts, axis=axis))


def _resized(layout: Layout, axis: int, extent: int, sizes: Sequence[int] | None = None) -> Layout:
    """Return a layout with another extent of an axis, split evenly or into blocks of these sizes."""
    shape, blocks = list(layout.shape), list[Sequence[int] | None](layout.sizes)
    shape[axis], blocks[axis] = extent, sizes
    return Layout(shape, layout.ranks, layout.process_grid, layout.axes, blocks, layout.mask)


def where(condition: GlobalArray, x: GlobalArray | Scalar, y: GlobalArray | Scalar, /) -> GlobalArray:
    """Return elements of `x` or `y`; see :func:`collops.where`. No messages."""
    from collops.array import creation

    return creation.where(condition, x, y)


def clip(
    a: GlobalArray,
    a_min: GlobalArray | Scalar | None = None,
    a_max: GlobalArray | Scalar | None = None,
    out: GlobalArray | None = None,
    *,
    min: GlobalArray | Scalar | None = None,
    max: GlobalArray | Scalar | None = None,
) -> GlobalArray:
    """Return the elements limited to an interval. No messages."""
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is None and high is None:
        return np.positive(a, out=out)
    if low is not None:
        a = np.maximum(a, low, out=out)
    return a if high is None else np.minimum(a, high, out=out)


def var(a: GlobalArray, axis: Axis = None, *, ddof: float = 0) -> GlobalArray | Scalar:
    """Return the variance of all elements or along axes. Collective: at most two allreduces."""
    return _narrowed(a, _variance(a, axis, ddof))


def std(a: GlobalArray, axis: Axis = None, *, ddof: float = 0) -> GlobalArray | Scalar:
    """Return the standard deviation of all elements or along axes. Collective: at most two allreduces."""
    return _narrowed(a, _variance(a, axis, ddof) ** 0.5)


def _variance(a: GlobalArray, axis: Axis, ddof: float) -> Any:
    a = a.astype(accumulator(a.dtype), copy=False)
    mean = a.mean(axis)
    if axis is None:
        axes, deviation = None, abs(a - mean)
    else:
        axes = tuple(normal_axis(operator.index(n), a.ndim) for n in (axis if isinstance(axis, tuple) else (axis,)))
        means = mean.local_array if hasattr(mean, "local_array") else mean
        deviation = abs(a._like(a.local_array - a.engine.xp.expand_dims(means, axes)))
    variance = (deviation * deviation).mean(axis)
    if ddof == 0:
        return variance
    count = sum(leaf.layout.reduction_count(leaf.comm.rank, axes) for leaf in a.leaves)
    return variance * float(np.divide(count, max(count - ddof, 0)))


def _narrowed(a: GlobalArray, values: Any) -> Any:
    """Return moments, which are computed in single precision if `a` has half precision, in the precision of `a`."""
    return values if accumulator(a.dtype) == a.dtype else values.astype(a.dtype)


def argmax(a: GlobalArray, axis: int | None = None) -> GlobalArray | Scalar:
    """Return the global index, in C order, of the first largest element or NaN. Collective: at most two allreduces."""
    return _first(a, axis, "max")


def argmin(a: GlobalArray, axis: int | None = None) -> GlobalArray | Scalar:
    """Return the global index, in C order, of the first smallest element or NaN; see :func:`argmax`."""
    return _first(a, axis, "min")


def _first(a: GlobalArray, axis: int | None, extreme: str) -> GlobalArray | Scalar:
    _check_single(a, f"arg{extreme}")
    xp, values = a.engine.xp, a.local_array
    best = getattr(a, extreme)(axis)
    axes = range(a.ndim) if axis is None else (normal_axis(axis, a.ndim),)
    if hasattr(best, "local_array"):
        best = xp.expand_dims(best.local_array, tuple(axes))
    index = xp.zeros((1,) * a.ndim, a.engine.dtype(np.int64))
    for k in axes:
        stride = math.prod(a.shape[n] for n in axes if n > k)
        along = (xp.arange(values.shape[k], dtype=index.dtype) + a.layout.offset(a.comm.rank)[k]) * stride
        index = index + along.reshape([-1 if n == k else 1 for n in range(a.ndim)])
    is_best = (values == best) | (values != values)  # if there is a NaN, the extreme is NaN
    return a._like(xp.where(is_best, index, a.size)).min(axis)


def _check_single(a: object, name: str) -> None:
    if not hasattr(a, "local_array"):
        raise UnsupportedTypeError(
            f"numpy.{name} takes distributed arrays, not {type(a).__name__}; apply it to the parts of a stacked array, "
            "join arrays to one vector by collops.StackedArray([x, y]), and distribute plain arrays by "
            "collops.from_global(values, x.layout)"
        )
