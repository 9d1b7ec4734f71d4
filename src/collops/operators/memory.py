"""Memory of operators: reusable buffers, constants on every engine, and results in existing memory.

Local functions take ``out``, an array whose memory they may use, or ``None``, and return their result. On an engine of
immutable arrays ``out`` is ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, Layout, StackedLayout, empty
from collops.backend import Engine, LocalArray, engine_of
from collops.errors import LayoutError, UnsupportedTypeError

__all__ = ["Buffers", "Coefficients", "check_holds", "contiguous", "filled", "new_array", "store"]


class Buffers:
    """Reusable buffers of an operator for intermediate arrays, so that repeated applications allocate nothing.

    A slot may hold arrays of several dtypes and engines, and each thread has its own. On an engine of immutable arrays
    all methods return ``None`` in place of a buffer. A buffer is never freed: a recorded CUDA graph may still write to
    it.

    Examples
    --------
    >>> import collops
    >>> from collops.operators import Buffers
    >>> buffers, x = Buffers(), collops.ones(4)
    >>> between = buffers.get("between", x.layout, x, x.dtype)
    >>> buffers.get("between", x.layout, x, x.dtype) is between
    True
    """

    __slots__ = ("_arrays",)

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Array | LocalArray] = {}

    def get(self, slot: Hashable, layout: Layout | StackedLayout, like: Array, dtype: DTypeLike) -> Any:
        """Return the distributed array in `slot`, on the engine and the ranks of `like`, with undefined values.

        A slot always has the same layout.
        """
        if not like.engine.mutable:
            return None
        key = (slot, dtype, like.engine, like.comm, get_ident())
        array = self._arrays.get(key)
        if array is None:
            array = self._arrays[key] = new_array(layout, like, dtype)
        return array

    def local(self, slot: Hashable, shape: tuple[int, ...], dtype: DTypeLike, engine: Engine) -> LocalArray:
        """Return the local array of this shape in `slot`, with undefined values."""
        if not engine.mutable:
            return None
        key = slot, shape, dtype, engine, get_ident()
        array = self._arrays.get(key)
        if array is None:
            array = self._arrays[key] = engine.xp.empty(shape, dtype)
        return array

    def result(self, slot: Hashable, out: Array, dtype: np.dtype) -> LocalArray:
        """Return memory of this `dtype` for the local array of the distributed array `out`: that array, or a buffer.

        Raises UnsupportedTypeError if only `dtype` is complex.
        """
        local, engine = out.local_array, out.engine
        if local.dtype == dtype:
            return local if engine.mutable else None
        check_holds(local.dtype, dtype)
        return self.local(slot, local.shape, dtype, engine)

    def contiguous(self, slot: Hashable, array: LocalArray, dtype: np.dtype, engine: Engine) -> LocalArray:
        """Return a local array in C order and in `dtype`, copied if necessary; on mutable engines, to a buffer."""
        if engine.mutable and array.dtype == dtype and array.flags.c_contiguous:
            return array
        memory = self.local(slot, array.shape, dtype, engine)
        return contiguous(array, dtype) if memory is None else store(array, memory)


class Coefficients:
    """A constant array of any engine, copied to another engine at its first use there."""

    __slots__ = ("_array", "_copies", "_engine")

    def __init__(self, array: LocalArray) -> None:
        self._array = array
        self._engine = engine_of(array)
        self._copies: dict[Engine, LocalArray] = {self._engine: array}

    def on_engine(self, engine: Engine) -> LocalArray:
        """Return the array in the memory of `engine`."""
        array = self._copies.get(engine)
        if array is None:
            array = self._copies[engine] = engine.from_host(self._engine.to_host(self._array))
        return array


def new_array(layout: Layout | StackedLayout, like: Array, dtype: DTypeLike) -> Array:
    """Return an array of `layout` with undefined values, on the ranks and the engine of `like`."""
    return empty(layout, comm=like.comm, dtype=dtype, engine=like.engine)


def allocator(layout: Layout | StackedLayout, like: Array, dtype: DTypeLike) -> Callable[[], Array]:
    """Return a function without arguments that calls :func:`new_array`, with all checks made once, in advance."""
    prototype = new_array(layout, like, dtype)
    if isinstance(layout, StackedLayout):
        parts = [allocator(part, like, dtype) for part in layout]
        prototype = prototype._like(())
        return lambda: prototype._like([make() for make in parts])
    shape, make_local = prototype.local_array.shape, like.engine.empty
    kind, prototype = prototype.dtype, prototype._like(None)
    return lambda: prototype._like(make_local(shape, kind))


def filled(out: Array, value: LocalArray) -> Array:
    """Return the distributed array `out` with `value` as its local array, converted as :func:`store` does."""
    if value is not out.local_array:
        out.local_array = store(value, out.local_array)
    return out


def store(value: LocalArray, out: LocalArray | None) -> LocalArray:
    """Return `value` in the shape and dtype of `out`: `out` itself, overwritten, if it is mutable.

    Without `out`, `value` is returned unchanged. Raises UnsupportedTypeError if only `value` is complex: imaginary
    parts are never dropped silently.
    """
    if out is None or value is out:
        return value
    if value.dtype.kind == "c" and out.dtype.kind != "c":
        check_holds(out.dtype, value.dtype)
    if value.shape != out.shape:
        if value.size != out.size:
            raise LayoutError(f"a local operator must return shape {out.shape}, not {value.shape}")
        value = value.reshape(out.shape)
    if not engine_of(out).mutable:
        return value.astype(out.dtype)
    out[...] = value
    return out


def contiguous(array: LocalArray, dtype: np.dtype) -> LocalArray:
    """Return a local array in `dtype` and C order, copied only if necessary; raise if only the array is complex."""
    engine = engine_of(array)
    if array.dtype == dtype and (not engine.mutable or array.flags.c_contiguous):
        return array
    check_holds(dtype, array.dtype)
    return engine.xp.ascontiguousarray(array, dtype) if engine.mutable else array.astype(engine.dtype(dtype))


def check_holds(target: np.dtype, *dtypes: np.dtype) -> None:
    """Raise UnsupportedTypeError if one of the `dtypes` is complex and `target` is not."""
    if target.kind != "c":
        for dtype in dtypes:
            if dtype.kind == "c":
                raise UnsupportedTypeError(f"dtype {dtype} does not fit into {target}, which has no imaginary part")
