"""Reductions over all elements or along axes: sum, min, max, mean, all, any and vector norms.

`Array` has these functions as methods. Each sends at most one message, and none if no split axis is reduced. With a
mask, ranks reduce within their group. A full reduction returns a 0-d array of the engine without synchronising with a
device; a reduction along an axis returns a distributed array without that axis. Stacked arrays have no axes.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from functools import lru_cache, reduce
from types import ModuleType
from typing import SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from collops.array import fused
from collops.array.coefficients import Scalar
from collops.array.dtypes import accumulator, as_dtype
from collops.array.kernels import generic, kernels_for
from collops.array.operands import GlobalArray
from collops.array.redistribute import compare_copies
from collops.backend import LocalArray
from collops.comm import Communicator
from collops.comm.reductions import OPERATIONS
from collops.errors import LayoutError, UnsupportedTypeError

Axis: TypeAlias = SupportsIndex | tuple[SupportsIndex, ...] | None

_Axes: TypeAlias = tuple[int, ...] | None
_LocalReduction: TypeAlias = Callable[[LocalArray, _Axes], LocalArray]


def sum(x: GlobalArray, axis: Axis = None, dtype: DTypeLike | None = None, out: None = None) -> GlobalArray | Scalar:
    """Return the sum of elements. Collective: at most one allreduce.

    Parameters
    ----------
    axis : int or tuple of int, optional
        The axes to sum over; all by default.
    dtype : dtype, optional
        Element type of the result. By default as in NumPy: booleans and small integers become 64-bit integers.
        Half-precision numbers are summed in float32.
    out : None
        Not supported; present so that ``numpy.sum(x)`` works.
    """
    axes = _checked_axes(x, axis, out)
    total, result_dtype = _total(x, axes, dtype)
    return _result(x, total if total.dtype == result_dtype else total.astype(result_dtype), axes)


def mean(x: GlobalArray, axis: Axis = None, dtype: DTypeLike | None = None, out: None = None) -> GlobalArray | Scalar:
    """Return the mean of elements; float64 for integers, as in NumPy. Collective: at most one allreduce.

    Parameters as for :meth:`sum`.
    """
    axes = _checked_axes(x, axis, out)
    if dtype is None:
        dtype = x.engine.dtype(np.float64) if x.dtype.kind in "biu" else x.dtype
    total, result_dtype = _total(x, axes, dtype)
    count = builtins.sum(leaf.layout.reduction_count(leaf.comm.rank, axes) for leaf in x.leaves)
    average = total / count if count else total / x.engine.xp.zeros((), total.dtype)
    return _result(x, average.astype(result_dtype), axes)


def min(x: GlobalArray, axis: Axis = None, out: None = None) -> GlobalArray | Scalar:
    """Return the smallest element along `axis`, or NaN if there is one. Collective: at most one allreduce.

    Raises
    ------
    UnsupportedTypeError
        For complex arrays.
    ValueError
        If the array has no elements.
    """
    return _extreme(x, _checked_axes(x, axis, out), "min")


def max(x: GlobalArray, axis: Axis = None, out: None = None) -> GlobalArray | Scalar:
    """Return the largest element, or NaN if there is one; see :meth:`min`. Collective: at most one allreduce."""
    return _extreme(x, _checked_axes(x, axis, out), "max")


def all(x: GlobalArray, axis: Axis = None, out: None = None) -> GlobalArray | Scalar:
    """Return whether all elements along `axis` are true (not 0). Collective: at most one allreduce."""
    axes = _checked_axes(x, axis, out)
    return _result(x, _combined(x, axes, lambda a, axes: x.engine.xp.all(a, axis=axes), "land"), axes)


def any(x: GlobalArray, axis: Axis = None, out: None = None) -> GlobalArray | Scalar:
    """Return whether any element along `axis` is true (not 0). Collective: at most one allreduce."""
    axes = _checked_axes(x, axis, out)
    return _result(x, _combined(x, axes, lambda a, axes: x.engine.xp.any(a, axis=axes), "lor"), axes)


def norm(x: GlobalArray, ord: float | None = None, axis: int | None = None) -> GlobalArray | Scalar:
    r"""Return a vector norm of all elements or along one axis. Collective: at most one allreduce.

    Unlike ``numpy.linalg.norm``, this never computes a matrix norm: without `axis`, all elements are one vector.

    Parameters
    ----------
    ord : float, optional
        The order :math:`p` (2 by default). 0 counts the nonzero elements; ``inf`` and ``-inf`` give the largest and the
        smallest absolute value.
    axis : int, optional
        The axis along which the vectors lie. Without it the norm is computed without temporaries.

    Returns
    -------
    0-d array or DistributedArray
        Real: float64 for integers, float32 for half-precision numbers.

    Raises
    ------
    ValueError
        For an infinite order, if the array has no elements.

    Notes
    -----
    .. math:: \|x\|_p = \Big(\sum_i |x_i|^p\Big)^{1/p}
    """
    order = 2.0 if ord is None else math.nan if np.iscomplexobj(ord) else float(ord)
    if math.isnan(order):
        raise UnsupportedTypeError(f"the order of a norm must be a real number, not {ord!r}")
    xp = x.engine.xp
    if axis is None and order == 2 and x.dtype.kind not in "biu":
        return xp.sqrt(fused.vdot(x, x))
    axes = _checked_axes(x, axis, None)
    if math.isinf(order):
        _check_not_empty(x, axes, "norm")
        op = "max" if order > 0 else "min"
    else:
        op = "sum"

    def local(a: LocalArray, axes: _Axes) -> LocalArray:
        return kernels_for(x.engine).norm_part(a, order) if axes is None else generic.norm_part(a, order, axes)

    result = _combined(x, axes, local, op)
    if op == "sum" and order not in (0, 1):
        result = xp.sqrt(result) if order == 2 else result ** (1 / order)
    return _result(x, result, axes)


def _total(x: GlobalArray, axes: _Axes, dtype: DTypeLike | None) -> tuple[LocalArray, np.dtype]:
    """Return the sum in the dtype of its accumulator, and the dtype of the result."""
    result_dtype = x.engine.dtype(_dtype_of_sum(x.dtype) if dtype is None else as_dtype(dtype))
    accumulator_dtype = accumulator(result_dtype)
    xp = x.engine.xp
    return _combined(x, axes, lambda a, axes: xp.sum(a, axis=axes, dtype=accumulator_dtype), "sum"), result_dtype


@lru_cache(maxsize=64)
def _dtype_of_sum(dtype: np.dtype) -> np.dtype:
    return np.sum(np.empty(0, dtype)).dtype


def _extreme(x: GlobalArray, axes: _Axes, op: str) -> GlobalArray | Scalar:
    dtype = x.dtype
    if dtype.kind == "c":
        raise UnsupportedTypeError(f"complex numbers have no order: take {op} of abs(x), x.real or x.imag")
    _check_not_empty(x, axes, op)
    xp = x.engine.xp
    function = xp.min if op == "min" else xp.max

    def local(a: LocalArray, axes: _Axes) -> LocalArray:
        if a.size if axes is None else builtins.all(a.shape[axis] for axis in axes):
            return xp.asarray(function(a, axis=axes)).astype(dtype)
        remaining_extents = [] if axes is None else [extent for axis, extent in enumerate(a.shape) if axis not in axes]
        return xp.full(remaining_extents, _neutral(dtype, op), dtype)

    return _result(x, _combined(x, axes, local, op), axes)


def _combined(x: GlobalArray, axes: _Axes, local: _LocalReduction, op: str) -> LocalArray:
    """Combine ``local(local_array, axes)`` of all leaves and ranks."""
    xp = x.engine.xp
    if hasattr(x, "local_array"):
        plan = x._plan
        ranks = plan.communicator if axes is None else plan.by_axes[tuple(a for a in x.layout.split_axes if a in axes)]
        return _over_ranks(xp, xp.asarray(local(x.local_array, axes)), ranks, op)
    function = getattr(xp, OPERATIONS[op].ufunc)
    parts: dict[Communicator | None, LocalArray] = {}
    for leaf, counted in zip(x.leaves, x._plan.counted, strict=True):
        part = xp.asarray(local(leaf.local_array, axes))
        ranks = x._plan.communicator
        if op == "sum" and x.engine.traced:
            ranks = leaf._plan.communicator  # a copy that is not summed would have no cotangent
        elif op == "sum" and not counted:
            part = xp.zeros_like(part)
        parts[ranks] = function(parts[ranks], part) if ranks in parts else part
    return reduce(function, [_over_ranks(xp, part, ranks, op) for ranks, part in parts.items()])


def _over_ranks(xp: ModuleType, part: LocalArray, communicator: Communicator | None, op: str) -> LocalArray:
    if communicator is None:
        return part
    return communicator.allreduce(part, op)


def _result(x: GlobalArray, result: LocalArray, axes: _Axes) -> GlobalArray | Scalar:
    """Return a full reduction as a scalar, or a partial one as an array without the reduced axes."""
    if axes is None or len(axes) == len(x.shape):
        return result[()]
    return x._in_layout(x.layout.drop(axes), result)


def _checked_axes(x: GlobalArray, axis: Axis, out: None) -> _Axes:
    """Return the axes as distinct non-negative numbers, ``None`` for all; reject `out`, and copies that differ."""
    if out is not None:
        raise UnsupportedTypeError("out= of reductions is not supported: they return new arrays")
    if x.comm.calls is not None:
        compare_copies(x)
    if axis is None:
        return None
    if not hasattr(x, "local_array"):
        raise LayoutError("a stacked array has no axes to reduce along; reduce its parts one by one")
    numbers = [operator.index(a) for a in (axis if isinstance(axis, tuple) else (axis,))]
    ndim = x.ndim
    if builtins.any(not -ndim <= a < ndim for a in numbers) or len({a % ndim for a in numbers}) != len(numbers):
        raise LayoutError(f"axis={axis} does not name distinct axes of an array with {ndim} axes")
    return tuple(a % ndim for a in numbers)


def _neutral(dtype: np.dtype, op: str) -> float:
    """Return the neutral element of `op`, which is min or max."""
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if op == "min" else np.iinfo(dtype).min
    return np.inf if op == "min" else -np.inf


def _check_not_empty(x: GlobalArray, axes: _Axes, name: str) -> None:
    if x.size == 0 and (axes is None or math.prod(n for a, n in enumerate(x.shape) if a not in axes) > 0):
        raise ValueError(f"an array with no elements has no {name}")
