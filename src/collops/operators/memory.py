"""Local arrays of operators: results in given memory, scratch memory, and constants on every engine.

Local functions take ``out``, an array whose memory they may use, or ``None``; they return their result. On an engine of
immutable arrays ``out`` is ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from collops.backend import Engine, engine_of
from collops.errors import LayoutError, UnsupportedTypeError

__all__ = [
    "Coefficients",
    "Scratch",
    "applied",
    "as_columns",
    "check_holds",
    "contiguous",
    "filled",
    "operand",
    "store",
    "writable",
]


def writable(out: Any) -> Any:
    """Return the local array of a distributed array if its memory can be written to, else ``None``."""
    return out.local_array if out.engine.mutable else None


def filled(out: Any, value: Any) -> Any:
    """Return the distributed array `out` with `value` as its local array, converted as :func:`store` does."""
    if value is not out.local_array:
        out.local_array = store(value, out.local_array)
    return out


def store(value: Any, out: Any) -> Any:
    """Return `value` in the shape and dtype of `out`: `out` itself, overwritten, if it is mutable.

    Without `out`, `value` is returned as it is. Raises UnsupportedTypeError if only `value` is complex: imaginary parts
    are never dropped silently.
    """
    if out is None or value is out:
        return value
    if value.dtype.kind == "c" and out.dtype.kind != "c":
        check_holds(out.dtype, value.dtype)
    if value.shape != out.shape:
        if value.size != out.size:
            raise LayoutError(f"a local operator returned shape {value.shape} instead of {out.shape}")
        value = value.reshape(out.shape)
    if not engine_of(out).mutable:
        return value.astype(out.dtype)
    out[...] = value
    return out


def applied(function: Callable[..., Any], *arguments: Any, out: Any) -> Any:
    """Return ``function(*arguments)``, computed in `out` if that is given: functions of JAX have no ``out``."""
    return function(*arguments) if out is None else function(*arguments, out=out)


def as_columns(x: Any) -> Any:
    """Return a complex array in C order as a real one with twice as many columns; a view where the engine has views.

    A real matrix multiplies real and imaginary parts as columns, and need not become complex.
    """
    return x.view(x.real.dtype)


def contiguous(array: Any, dtype: Any) -> Any:
    """Return an array in `dtype` and C order; the array itself if it has them."""
    engine = engine_of(array)
    if array.dtype == dtype and (not engine.mutable or array.flags.c_contiguous):
        return array
    return engine.xp.ascontiguousarray(array, dtype) if engine.mutable else array.astype(engine.dtype(dtype))


def result_memory(out: Any, size: int, dtype: Any, xp: Any) -> Any:
    """Return the memory that a kernel fills with `size` elements of `dtype`: `out` if it is such an array."""
    return xp.empty(size, dtype) if out is None or out.dtype != dtype else out


def operand(x: Any, dtype: Any) -> Any:
    """Return the local array of `x` as a contiguous array of `dtype`; raise if only `x` is complex."""
    local = x.local_array
    if local.dtype == dtype and x.engine.mutable and local.flags.c_contiguous:
        return local
    check_holds(dtype, local.dtype)
    return contiguous(local, dtype)


def check_holds(wanted: Any, *given: Any) -> None:
    """Raise UnsupportedTypeError if one of the dtypes `given` is complex and `wanted` is not."""
    if wanted.kind != "c":
        for dtype in given:
            if dtype.kind == "c":
                raise UnsupportedTypeError(f"dtype {dtype} does not fit into {wanted}, which has no imaginary part")


class Scratch:
    """Local arrays by name, shape, dtype and engine, kept so that applying an operator again allocates nothing.

    An array is never dropped: a recorded CUDA graph may still write to it.
    """

    __slots__ = ("_arrays",)

    def __init__(self) -> None:
        self._arrays: dict[Hashable, Any] = {}

    def get(self, slot: Hashable, shape: tuple[int, ...], dtype: Any, engine: Engine) -> Any:
        """Return the array in `slot`, with undefined values; ``None`` on an engine of immutable arrays."""
        if not engine.mutable:
            return None
        key = slot, shape, dtype, engine
        array = self._arrays.get(key)
        if array is None:
            array = self._arrays[key] = engine.xp.empty(shape, dtype)
        return array

    def result(self, slot: Hashable, out: Any, dtype: Any) -> Any:
        """Return memory of this `dtype` for the local array of `out`: its own, else that in `slot`, else ``None``.

        Raises UnsupportedTypeError if only `dtype` is complex.
        """
        local = out.local_array
        if local.dtype == dtype:
            return writable(out)
        check_holds(local.dtype, dtype)
        return self.get(slot, local.shape, dtype, out.engine)

    def contiguous(self, slot: Hashable, array: Any, dtype: Any, engine: Engine) -> Any:
        """Return an array in C order and in `dtype`: itself, or a copy in `slot`."""
        if engine.mutable and array.dtype == dtype and array.flags.c_contiguous:
            return array
        if not engine.mutable:
            return contiguous(array, dtype)
        return store(array, self.get(slot, array.shape, dtype, engine))


class Coefficients:
    """A constant array of any engine, copied at its first use to the memory of every other engine that needs it."""

    __slots__ = ("_given", "_own", "_there")

    def __init__(self, array: Any) -> None:
        self._given = array
        self._own = engine_of(array)
        self._there: dict[Engine, Any] = {self._own: array}

    def on(self, engine: Engine) -> Any:
        """Return the array in the memory of `engine`."""
        array = self._there.get(engine)
        if array is None:
            array = self._there[engine] = engine.from_host(self._own.to_host(self._given))
        return array
