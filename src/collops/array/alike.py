"""Arrays like another one: of its layout, ranks and engine, filled, or chosen from others element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from collops.array.creation import check_number
from collops.array.distributed import DistributedArray
from collops.array.dtypes import as_dtype
from collops.array.stacked import StackedArray
from collops.errors import UnsupportedTypeError

__all__ = ["empty_like", "full_like", "ones_like", "where", "zeros_like"]

Array = TypeVar("Array", DistributedArray, StackedArray)


def empty_like(x: Array, dtype: Any = None) -> Array:
    """Return an array of arbitrary values with layout, engine and (by default) dtype of `x`. No messages.

    Examples
    --------
    >>> import collops
    >>> x = collops.ones((4, 2), dtype="float32")
    >>> collops.empty_like(x).dtype
    dtype('float32')
    """
    return _like(x, dtype, lambda xp, local, kind: xp.empty(local.shape, kind))


def zeros_like(x: Array, dtype: Any = None) -> Array:
    """Return zeros with layout, engine and (by default) dtype of `x`. No messages.

    Examples
    --------
    >>> import collops
    >>> collops.zeros_like(collops.ones(3)).gather()
    array([0., 0., 0.])
    """
    return _like(x, dtype, lambda xp, local, kind: xp.zeros(local.shape, kind))


def ones_like(x: Array, dtype: Any = None) -> Array:
    """Return ones with layout, engine and (by default) dtype of `x`. No messages.

    Examples
    --------
    >>> import collops
    >>> from collops.array import ones_like
    >>> ones_like(collops.zeros(3)).gather()
    array([1., 1., 1.])
    """
    return _like(x, dtype, lambda xp, local, kind: xp.ones(local.shape, kind))


def full_like(x: Array, value: Any, dtype: Any = None) -> Array:
    """Return a filled array with layout, engine and (by default) dtype of `x`. No messages.

    Examples
    --------
    >>> import collops
    >>> from collops.array import full_like
    >>> full_like(collops.zeros(3), 2.5).gather()
    array([2.5, 2.5, 2.5])
    """
    check_number(value)
    return _like(x, dtype, lambda xp, local, kind: xp.full(local.shape, value, kind))


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return elements of `x` where `condition` is true, else of `y`. No messages.

    Parameters
    ----------
    condition : DistributedArray or StackedArray
        Of booleans.
    x, y : array like `condition`, or number
        What to choose from.

    Raises
    ------
    LayoutError
        If layouts differ.
    UnsupportedTypeError
        For plain arrays.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.array([-1.0, 2.0, -3.0]))
    >>> collops.where(x > 0, x, 0).gather()
    array([0., 2., 0.])
    """
    if isinstance(condition, StackedArray):
        columns = [condition._operands(value) for value in (x, y)]
        if any(column is NotImplemented for column in columns):
            raise UnsupportedTypeError("where chooses from distributed arrays and numbers")
        return condition._like([where(c, *both) for c, *both in zip(condition, *columns, strict=True)])
    if not isinstance(condition, DistributedArray):
        raise UnsupportedTypeError("the condition of where is a distributed array; for plain ones use numpy.where")
    return condition._choose(x, y)


def _like(x: Any, dtype: Any, make: Callable[[Any, Any, Any], Any]) -> Any:
    if isinstance(x, StackedArray):
        return x._like([_like(part, dtype, make) for part in x.arrays])
    if not isinstance(x, DistributedArray):
        raise UnsupportedTypeError(f"expected a distributed array, not {type(x).__module__}.{type(x).__qualname__}")
    kind = x.dtype if dtype is None else as_dtype(dtype)
    return x._like(make(x.engine.xp, x.local_array, x.engine.dtype(kind)))
