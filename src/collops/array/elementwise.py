"""Elementwise operators: the Python operators that both kinds of array share, and what may stand beside an array."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import LayoutError, UnsupportedTypeError

if TYPE_CHECKING:
    from typing import Self

    from collops.array.distributed import DistributedArray

__all__ = ["Arithmetic", "check_alike", "check_ufunc", "local_operand", "scalar_operand"]

_NUMBERS = (bool, int, float, complex, np.generic)


class Arithmetic:
    """Python's operators in terms of three methods of the class: `_binary`, `_unary` and `_in_place`."""

    __slots__ = ()

    # NumPy then leaves `number * array` and `numpy_array * array` to this class (the second is refused).
    __array_priority__ = 1000.0
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def _binary(self, function: Callable[[Any, Any], Any], other: Any, reflected: bool = False) -> Any:
        raise NotImplementedError

    def _unary(self, function: Callable[[Any], Any]) -> Any:
        raise NotImplementedError

    def _in_place(self, function: Callable[[Any, Any], Any], other: Any) -> Self:
        raise NotImplementedError

    def __add__(self, other: Any) -> Self:
        return self._binary(operator.add, other)

    def __radd__(self, other: Any) -> Self:
        return self._binary(operator.add, other, True)

    def __iadd__(self, other: Any) -> Self:
        return self._in_place(operator.iadd, other)

    def __sub__(self, other: Any) -> Self:
        return self._binary(operator.sub, other)

    def __rsub__(self, other: Any) -> Self:
        return self._binary(operator.sub, other, True)

    def __isub__(self, other: Any) -> Self:
        return self._in_place(operator.isub, other)

    def __mul__(self, other: Any) -> Self:
        return self._binary(operator.mul, other)

    def __rmul__(self, other: Any) -> Self:
        return self._binary(operator.mul, other, True)

    def __imul__(self, other: Any) -> Self:
        return self._in_place(operator.imul, other)

    def __truediv__(self, other: Any) -> Self:
        return self._binary(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._binary(operator.truediv, other, True)

    def __itruediv__(self, other: Any) -> Self:
        return self._in_place(operator.itruediv, other)

    def __floordiv__(self, other: Any) -> Self:
        return self._binary(operator.floordiv, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._binary(operator.floordiv, other, True)

    def __ifloordiv__(self, other: Any) -> Self:
        return self._in_place(operator.ifloordiv, other)

    def __mod__(self, other: Any) -> Self:
        return self._binary(operator.mod, other)

    def __rmod__(self, other: Any) -> Self:
        return self._binary(operator.mod, other, True)

    def __imod__(self, other: Any) -> Self:
        return self._in_place(operator.imod, other)

    def __pow__(self, other: Any) -> Self:
        return self._binary(operator.pow, other)

    def __rpow__(self, other: Any) -> Self:
        return self._binary(operator.pow, other, True)

    def __ipow__(self, other: Any) -> Self:
        return self._in_place(operator.ipow, other)

    def __and__(self, other: Any) -> Self:
        return self._binary(operator.and_, other)

    def __rand__(self, other: Any) -> Self:
        return self._binary(operator.and_, other, True)

    def __iand__(self, other: Any) -> Self:
        return self._in_place(operator.iand, other)

    def __or__(self, other: Any) -> Self:
        return self._binary(operator.or_, other)

    def __ror__(self, other: Any) -> Self:
        return self._binary(operator.or_, other, True)

    def __ior__(self, other: Any) -> Self:
        return self._in_place(operator.ior, other)

    def __xor__(self, other: Any) -> Self:
        return self._binary(operator.xor, other)

    def __rxor__(self, other: Any) -> Self:
        return self._binary(operator.xor, other, True)

    def __ixor__(self, other: Any) -> Self:
        return self._in_place(operator.ixor, other)

    def __eq__(self, other: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._binary(operator.eq, other)

    def __ne__(self, other: Any) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._binary(operator.ne, other)

    def __lt__(self, other: Any) -> Self:
        return self._binary(operator.lt, other)

    def __le__(self, other: Any) -> Self:
        return self._binary(operator.le, other)

    def __gt__(self, other: Any) -> Self:
        return self._binary(operator.gt, other)

    def __ge__(self, other: Any) -> Self:
        return self._binary(operator.ge, other)

    def __neg__(self) -> Self:
        return self._unary(operator.neg)

    def __pos__(self) -> Self:
        return self._unary(operator.pos)

    def __abs__(self) -> Self:
        return self._unary(operator.abs)

    def __invert__(self) -> Self:
        return self._unary(operator.invert)

    def __bool__(self) -> bool:
        raise ValueError("the truth of a distributed array is ambiguous: use all() or any()")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise UnsupportedTypeError(
            f"a {type(self).__name__} does not become a NumPy array by itself, because that takes messages: "
            "call gather() on every rank, or take local_array for this rank's part"
        )


def check_alike(x: Any, y: Any) -> None:
    """Raise unless `y` is an array like `x`: same layout, communicator and engine.

    Raises
    ------
    LayoutError
        If layouts or communicators differ.
    UnsupportedTypeError
        If engines differ, or `y` is no distributed array.
    """
    if not hasattr(y, "leaves"):
        raise UnsupportedTypeError(
            f"expected a distributed array with the layout {x.layout}, not {type(y).__name__}; "
            "collops.array.from_global and from_local make one"
        )
    if x.layout is not y.layout:
        raise LayoutError(
            f"arrays with different layouts meet:\n  {x.layout}\n  {y.layout}\n"
            "bring one to the other's first: x.redistribute(y.layout)"
        )
    if x.comm is not y.comm:
        raise LayoutError("arrays on different communicators meet; make both with one comm=")
    if x.engine is not y.engine:
        raise UnsupportedTypeError(f"arrays of different engines meet: {x.engine.name} and {y.engine.name}")


def scalar_operand(x: Any, other: Any) -> Any:
    """Return `other` as a number that may stand beside `x`, or ``NotImplemented`` if it is no number or array.

    Raises
    ------
    UnsupportedTypeError
        If `other` is a plain array with axes.
    """
    if isinstance(other, _NUMBERS):
        return other
    if not hasattr(other, "dtype") or not hasattr(other, "ndim"):
        return NotImplemented
    if isinstance(other, Arithmetic):
        raise UnsupportedTypeError("a stacked array and a single one cannot be combined element by element")
    if other.ndim > 0:
        raise UnsupportedTypeError(
            f"a plain {type(other).__name__} of shape {tuple(other.shape)} beside a distributed array with the layout "
            f"{x.layout} is ambiguous: make it distributed with collops.array.from_global(values, x.layout), "
            "or work with x.local_array"
        )
    # A host scalar is a kernel argument on a device; the reverse would make the host wait.
    return other[()] if isinstance(other, np.ndarray) else other


def local_operand(x: DistributedArray, other: Any) -> Any:
    """Return the local array, or the number, that stands for `other` beside ``x.local_array``."""
    if isinstance(other, Arithmetic) and hasattr(other, "local_array"):
        check_alike(x, other)
        return other.local_array  # pyright: ignore[reportAttributeAccessIssue]
    return x.engine.replicated_operand(scalar_operand(x, other), x._plan.communicator)


def check_ufunc(ufunc: np.ufunc, method: str, outs: tuple[Any, ...] | None) -> None:
    """Refuse what a ufunc cannot do across ranks.

    Raises
    ------
    UnsupportedTypeError
        For methods (``reduce`` and others), generalized ufuncs such as matmul, and plain arrays in `outs`.
    """
    if method != "__call__" or ufunc.signature is not None:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise UnsupportedTypeError(
            f"numpy.{name} mixes elements of different ranks; distributed arrays have sum, min, max, mean, dot, vdot "
            "and norm, or use local_array or gather()"
        )
    if outs is not None and any(not isinstance(out, Arithmetic | None) for out in outs):
        raise UnsupportedTypeError(f"out= of numpy.{ufunc.__name__} must be a distributed array like the inputs")
