"""Reductions: sum, min, max, mean, all, any and vector norms, of all elements or along axes, in one message at most.

Every function takes a distributed or a stacked array (the latter without `axis`). Where no split axis is reduced, no
message is sent. With a mask, ranks reduce within their group. Results of a full reduction are 0-d arrays of the engine,
without synchronising with a device; those along an axis are distributed arrays without that axis.
"""

from __future__ import annotations

import builtins
import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np

from collops.array import fused
from collops.array.dtypes import accumulator, as_dtype, real_of
from collops.array.kernels import kernels_for
from collops.array.operands import Operand
from collops.errors import LayoutError, UnsupportedTypeError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Axis", "all", "any", "max", "mean", "min", "norm", "sum"]

Axis: TypeAlias = SupportsIndex | tuple[SupportsIndex, ...] | None

_Partial: TypeAlias = Callable[[Any, tuple[int, ...]], Any]


def sum(x: Operand, axis: Axis = None, dtype: Any = None, out: None = None) -> Any:
    """Return the sum of elements. Collective.

    Parameters
    ----------
    x : DistributedArray or StackedArray
        The array.
    axis : int or tuple of int, optional
        The axes to sum over; all by default.
    dtype : dtype, optional
        Of the result. By default as in NumPy: booleans and small integers become 64-bit integers. Half types are
        added up in float32.
    out : None
        Not supported; here so that ``numpy.sum(x)`` works.
    """
    _check_out(out)
    result, chosen = _total(x, axis, dtype)
    return _finish(x, result.astype(chosen) if result.dtype != chosen else result, axis)


def mean(x: Operand, axis: Axis = None, dtype: Any = None, out: None = None) -> Any:
    """Return the mean of elements; float64 for integers, as in NumPy. Collective. See :func:`sum`."""
    _check_out(out)
    given = _common_dtype(x)
    if dtype is None:
        dtype = x.engine.dtype(np.float64) if given.kind in "biu" else given
    total, chosen = _total(x, axis, dtype)
    counts = [leaf.layout.reduction_count(leaf.comm.rank, _axes(x, axis)) for leaf in x.leaves]
    count = builtins.sum(counts)
    average = total / count if count else total / x.engine.xp.zeros((), total.dtype)
    return _finish(x, average.astype(chosen), axis)


def min(x: Operand, axis: Axis = None, out: None = None) -> Any:
    """Return the smallest element, or NaN where there is one. Collective.

    Parameters
    ----------
    x : DistributedArray or StackedArray
        Of real numbers: complex ones have no order.
    axis : int or tuple of int, optional
        The axes to reduce; all by default.
    out : None
        Not supported; here so that ``numpy.min(x)`` works.

    Raises
    ------
    UnsupportedTypeError
        For complex arrays.
    ValueError
        If there is no element to choose from.
    """
    _check_out(out)
    return _extreme(x, axis, "min")


def max(x: Operand, axis: Axis = None, out: None = None) -> Any:
    """Return the largest element, or NaN where there is one. Collective. See :func:`min`."""
    _check_out(out)
    return _extreme(x, axis, "max")


def all(x: Operand, axis: Axis = None, out: None = None) -> Any:
    """Return whether all elements are true, that is, not 0. Collective. See :func:`sum`."""
    _check_out(out)
    return _finish(x, _combined(x, axis, lambda a, axes: x.engine.xp.all(a, axis=axes), "land"), axis)


def any(x: Operand, axis: Axis = None, out: None = None) -> Any:
    """Return whether any element is true, that is, not 0. Collective. See :func:`sum`."""
    _check_out(out)
    return _finish(x, _combined(x, axis, lambda a, axes: x.engine.xp.any(a, axis=axes), "lor"), axis)


def norm(x: Operand, ord: float | None = None, axis: int | None = None) -> Any:
    r"""Return a vector norm, of all elements or along one axis. Collective: one allreduce at most.

    Unlike ``numpy.linalg.norm``, which takes two axes for a matrix, all elements are always those of one vector.

    Parameters
    ----------
    x : DistributedArray or StackedArray
        The array.
    ord : float, optional
        The order :math:`p` (2 by default); 0 counts the elements that are not 0, ``inf`` and ``-inf`` are the largest
        and the smallest absolute value.
    axis : int, optional
        The axis whose vectors are measured; by default all elements are one vector, for which there are no temporaries.

    Returns
    -------
    0-d array or DistributedArray
        Real: float64 for integers, float32 for half types.

    Raises
    ------
    ValueError
        For an infinite order and no element to choose from.

    Notes
    -----
    .. math:: \|x\|_p = \Big(\sum_i |x_i|^p\Big)^{1/p}
    """
    order = 2.0 if ord is None else float(ord)
    if np.isnan(order):
        raise UnsupportedTypeError("a norm needs an order, not NaN")
    xp = x.engine.xp
    if axis is None and order == 2 and _common_dtype(x).kind not in "biu":
        return xp.sqrt(fused.dots((x, x))[0])
    if np.isinf(order):
        _check_not_empty(x, axis, "norm")
    partial = _norm_along_axes if axis is not None else _norm_of_all
    op = "sum" if not np.isinf(order) else "max" if order > 0 else "min"
    result = _combined(x, axis, lambda a, axes: partial(x, a, axes, order), op)
    if op == "sum" and order not in (0, 1):
        result = xp.sqrt(result) if order == 2 else result ** (1 / order)
    return _finish(x, result, axis)


def _total(x: Operand, axis: Axis, dtype: Any) -> tuple[Any, np.dtype]:
    """Return the sum in the dtype in which it is kept, and the dtype that the caller shall get."""
    xp = x.engine.xp
    if dtype is None:
        chosen = _dtype_of_sum(_common_dtype(x))
    else:
        chosen = as_dtype(dtype)
    chosen = x.engine.dtype(chosen)
    wide = accumulator(chosen)
    return _combined(x, axis, lambda a, axes: xp.sum(a, axis=axes, dtype=wide), "sum"), chosen


@functools.lru_cache(maxsize=64)
def _dtype_of_sum(dtype: np.dtype) -> np.dtype:
    """Return the dtype of NumPy's sum of elements of `dtype`."""
    return np.sum(np.empty(0, dtype)).dtype


def _extreme(x: Operand, axis: Axis, op: str) -> Any:
    dtype = _common_dtype(x)
    if dtype.kind == "c":
        raise UnsupportedTypeError(f"complex numbers have no order: take {op} of abs(x), x.real or x.imag")
    _check_not_empty(x, axis, op)
    xp = x.engine.xp
    function = xp.min if op == "min" else xp.max
    start = _last(dtype, op)

    def partial(a: Any, axes: tuple[int, ...]) -> Any:
        if _has_elements(a, axes):
            return xp.asarray(function(a, axis=axes)).astype(dtype)
        return xp.full([n for axis, n in enumerate(a.shape) if axis not in axes], start, dtype)

    return _finish(x, _combined(x, axis, partial, op), axis)


def _has_elements(a: Any, axes: tuple[int, ...]) -> bool:
    """Return whether there is an element along each of `axes`."""
    return builtins.all(a.shape[axis] for axis in axes)


def _combined(x: Operand, axis: Axis, partial: _Partial, op: str) -> Any:
    """Combine ``partial(local_array, axes)`` of all leaves and ranks; a 0-d array or one without the reduced axes."""
    axes = _axes(x, axis)
    xp = x.engine.xp
    function = getattr(xp, _COMBINE[op])
    by_ranks: dict[Communicator | None, Any] = {}
    for leaf, counted in zip(x.leaves, x._plan.counted, strict=True):
        part = xp.asarray(partial(leaf.local_array, tuple(range(leaf.ndim)) if axes is None else axes))
        communicator = x._plan.communicator
        if axes is not None:
            communicator = leaf._plan.over(tuple(a for a in leaf.layout.split_axes if a in axes))
        elif op == "sum" and x.engine.traced:
            communicator = leaf._plan.communicator  # a copy that did not count would have no cotangent
        elif op == "sum" and not counted:
            part = xp.zeros_like(part)
        by_ranks[communicator] = function(by_ranks[communicator], part) if communicator in by_ranks else part
    result = None
    for communicator, part in by_ranks.items():
        total = part if communicator is None else _over(xp, part, communicator, op)
        result = total if result is None else function(result, total)
    return result


def _over(xp: Any, part: Any, communicator: Communicator, op: str) -> Any:
    """Combine the parts of the ranks."""
    if op in ("min", "max") and part.dtype.kind not in "biu":
        return _extreme_with_nan(xp, part, communicator, op)
    return communicator.allreduce(part, op)


_COMBINE = {"sum": "add", "min": "minimum", "max": "maximum", "land": "logical_and", "lor": "logical_or"}


def _extreme_with_nan(xp: Any, part: Any, communicator: Communicator, op: str) -> Any:
    """Combine extremes so that NaN wins, as in NumPy. Transports treat it differently, so it is sent as a flag."""
    missing = xp.isnan(part)
    flag = missing.astype(part.dtype)
    both = xp.stack([xp.where(missing, xp.zeros_like(part), part), flag if op == "max" else -flag])
    # Where a rank has NaN its value does not matter: the flag decides.
    both = communicator.allreduce(both, op, out=both)
    return xp.where(both[1] != 0, xp.full_like(part, np.nan), both[0])


def _norm_of_all(x: Operand, a: Any, axes: tuple[int, ...], order: float) -> Any:
    return kernels_for(x.engine).norm_part(a, order)


def _norm_along_axes(x: Operand, a: Any, axes: tuple[int, ...], order: float) -> Any:
    xp = x.engine.xp
    dtype = x.engine.dtype(np.float64) if a.dtype.kind in "biu" else accumulator(real_of(a.dtype))
    if order == 0:
        return xp.sum(a != 0, axis=axes, dtype=dtype)
    size = xp.abs(a.astype(dtype) if a.dtype.kind != "c" else a)
    if np.isinf(order):
        if 0 in size.shape:  # CuPy's extremes know no initial value
            rest = tuple(extent for axis, extent in enumerate(size.shape) if axis not in axes)
            return xp.full(rest, 0 if order > 0 else np.inf, size.dtype)
        return (xp.max if order > 0 else xp.min)(size, axis=axes)
    return xp.sum(size if order == 1 else size**order, axis=axes)


def _finish(x: Operand, result: Any, axis: Axis) -> Any:
    """Return the scalar, or wrap what is left of the array."""
    axes = _axes(x, axis)
    if axes is None or len(axes) == len(x.shape):
        return result[()]
    return type(x)(x.layout.drop(axes), x.comm, result)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]


def _axes(x: Operand, axis: Axis) -> tuple[int, ...] | None:
    """Return the axes as distinct non-negative numbers; ``None`` for all."""
    if axis is None:
        return None
    if len(x.leaves) != 1 or x.leaves[0] is not x:
        raise LayoutError("a stacked array has no axes to reduce along; reduce its parts one by one")
    given: Iterable[SupportsIndex] = axis if isinstance(axis, tuple) else (axis,)
    numbers = [operator.index(a) for a in given]
    ndim = x.ndim
    if builtins.any(not -ndim <= a < ndim for a in numbers) or len({a % ndim for a in numbers}) != len(numbers):
        raise LayoutError(f"axis={axis} does not name distinct axes of an array with {ndim} axes")
    return tuple(a % ndim for a in numbers)


def _common_dtype(x: Operand) -> np.dtype:
    return np.result_type(*[leaf.dtype for leaf in x.leaves])


def _last(dtype: np.dtype, op: str) -> Any:
    """Return the value to which every other is preferred."""
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min
    return np.inf if op == "min" else -np.inf


def _check_not_empty(x: Operand, axis: Axis, name: str) -> None:
    axes = _axes(x, axis)
    results = 1 if axes is None else math.prod(n for a, n in enumerate(x.shape) if a not in axes)
    if x.size == 0 and results > 0:
        raise ValueError(f"{name} of no elements has no value")


def _check_out(out: None) -> None:
    if out is not None:
        raise UnsupportedTypeError("out= of reductions is not supported: they return new arrays")
