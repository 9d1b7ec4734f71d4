"""Functions of the array API standard that make arrays, on the ranks and of the engine of a namespace.

Each rank computes its part. New arrays are split along axis 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import collops
from collops import DistributedArray, Layout
from collops.bridges.array_api.shapes import check_array
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.extend.arrays import as_shape


def asarray(xp: Any, obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    """Return a distributed array as it is, and distribute any other, which all ranks have. No messages."""
    _check_device(xp, device)
    if isinstance(obj, DistributedArray):
        return obj.astype(obj.dtype if dtype is None else dtype, copy=bool(copy))
    values = obj if hasattr(obj, "dtype") else np.asarray(obj)
    if np.ndim(values) == 0:
        return xp.engine.xp.asarray(values, dtype=_dtype(xp, values.dtype if dtype is None else dtype))
    if copy is False:
        raise InputError("an array is distributed by copying it: copy=False is not possible")
    return collops.from_global(values, comm=xp.comm, engine=xp.engine, dtype=dtype)


def arange(
    xp: Any, start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> DistributedArray:
    """Return evenly spaced numbers of a half-open interval. No messages."""
    _check_device(xp, device)
    start, stop = (0, start) if stop is None else (start, stop)
    kind = np.result_type(*map(np.min_scalar_type, (start, stop, step))).kind
    dtype = _dtype(xp, ("float64" if kind == "f" else "int64") if dtype is None else dtype)
    layout = Layout.split(max(0, int(np.ceil((stop - start) / step))), xp.comm.size)
    return _from_indices(xp, layout, lambda index: (start + step * index).astype(dtype))


def linspace(
    xp: Any, start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> DistributedArray:
    """Return `num` evenly spaced numbers. No messages."""
    _check_device(xp, device)
    default = "complex128" if isinstance(start, complex) or isinstance(stop, complex) else "float64"
    dtype = _dtype(xp, default if dtype is None else dtype)
    parts = max(1, num - bool(endpoint))

    def values(index: Any) -> Any:
        inner = start + index * ((stop - start) / parts)
        return np.where(index == parts, stop, inner).astype(dtype)  # the last one exactly

    return _from_indices(xp, Layout.split(num, xp.comm.size), values)


def eye(
    xp: Any, n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> DistributedArray:
    """Return a matrix with ones on a diagonal. No messages."""
    _check_device(xp, device)
    layout = Layout.split((n_rows, n_rows if n_cols is None else n_cols), xp.comm.size)
    rows, columns = layout.local_shape(xp.comm.rank)
    offset = layout.offset(xp.comm.rank)[0]
    values = xp.engine.xp.eye(rows, columns, k=offset + k, dtype=_dtype(xp, "float64" if dtype is None else dtype))
    return DistributedArray(layout, xp.comm, values)


def empty(xp: Any, shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array with any values. No messages."""
    return zeros(xp, shape, dtype=dtype, device=device)


def full(xp: Any, shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array filled with a number. No messages."""
    if dtype is None:
        kinds = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
        dtype = kinds.get(type(fill_value)) or fill_value.dtype
    return _filled(xp, shape, fill_value, dtype, device)


def ones(xp: Any, shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array of ones. No messages."""
    return _filled(xp, shape, 1, dtype, device)


def zeros(xp: Any, shape: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array of zeros. No messages."""
    return _filled(xp, shape, 0, dtype, device)


def empty_like(xp: Any, x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array with any values, with the layout of `x`. No messages."""
    return zeros_like(xp, x, dtype=dtype, device=device)


def full_like(xp: Any, x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Return an array filled with a number, with the layout of `x`. No messages."""
    _check_device(xp, device)
    dtype = x.dtype if dtype is None else dtype
    if not isinstance(x, DistributedArray):
        return xp.engine.xp.asarray(fill_value, dtype=_dtype(xp, dtype))
    return collops.full(x.layout, fill_value, comm=x.comm, dtype=dtype, engine=x.engine)


def ones_like(xp: Any, x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Return ones with the layout of `x`. No messages."""
    return full_like(xp, x, 1, dtype=dtype, device=device)


def zeros_like(xp: Any, x: Any, /, *, dtype: Any = None, device: Any = None) -> Any:
    """Return zeros with the layout of `x`. No messages."""
    return full_like(xp, x, 0, dtype=dtype, device=device)


def tril(xp: Any, x: DistributedArray, /, *, k: int = 0) -> DistributedArray:
    """Return the lower triangles of matrices, and zeros elsewhere. No messages."""
    return _triangle(xp, "tril", x, k)


def triu(xp: Any, x: DistributedArray, /, *, k: int = 0) -> DistributedArray:
    """Return the upper triangles of matrices, and zeros elsewhere. No messages."""
    return _triangle(xp, "triu", x, k)


def _triangle(xp: Any, name: str, x: DistributedArray, k: int) -> DistributedArray:
    check_array(x, name)
    if x.ndim < 2:
        raise LayoutError(f"{name} needs an array with at least two axes")
    row, column = x.layout.offset(x.comm.rank)[-2:]
    return DistributedArray(x.layout, x.comm, getattr(x.engine.xp, name)(x.local_array, k=k + row - column))


def _filled(xp: Any, shape: int | Sequence[int], value: Any, dtype: Any, device: Any) -> Any:
    _check_device(xp, device)
    dtype = _dtype(xp, "float64" if dtype is None else dtype)
    if not isinstance(shape, int) and len(shape) == 0:
        return xp.engine.xp.asarray(value, dtype=dtype)
    return collops.full(as_shape(shape), value, comm=xp.comm, dtype=dtype, engine=xp.engine)


def _from_indices(xp: Any, layout: Layout, values: Any) -> DistributedArray:
    """Return the vector whose elements are a function of their indices."""
    offset, count = layout.offset(xp.comm.rank)[0], layout.local_shape(xp.comm.rank)[0]
    return DistributedArray(layout, xp.comm, xp.engine.from_host(values(np.arange(offset, offset + count))))


def _dtype(xp: Any, dtype: Any) -> np.dtype:
    return xp.engine.dtype(dtype)


def _check_device(xp: Any, device: Any) -> None:
    """Raise UnsupportedTypeError unless the device is the engine's."""
    if device is not None and device not in xp.__array_namespace_info__().devices():
        raise UnsupportedTypeError(f"arrays of the engine {xp.engine.name} are not made on the device {device}")


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(arange, asarray, empty, empty_like, eye, full, full_like, linspace, ones, ones_like, tril, triu, zeros),
        zeros_like,
    )
}
