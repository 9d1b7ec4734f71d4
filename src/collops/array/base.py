"""The methods that distributed and stacked arrays share: Python's operators, reductions, and saving."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.array import fused, reductions
from collops.array.operands import Operand
from collops.errors import UnsupportedTypeError

if TYPE_CHECKING:
    from os import PathLike
    from typing import Self

__all__ = ["BaseArray"]


def _binary(function: Callable[[Any, Any], Any]) -> Any:
    return lambda self, other: self._binary(function, other)


def _reflected(function: Callable[[Any, Any], Any]) -> Any:
    return lambda self, other: self._binary(function, other, True)


def _in_place(function: Callable[[Any, Any], Any]) -> Any:
    return lambda self, other: self._in_place(function, other)


def _unary(function: Callable[[Any], Any]) -> Any:
    return lambda self: self._unary(function)


class BaseArray(Operand):
    """Operators in terms of three methods of the class, `_binary`, `_unary` and `_in_place`; reductions of `leaves`."""

    __slots__ = ()

    # NumPy then leaves `number * array` and `numpy_array * array` to this class, which raises for the second.
    __array_priority__ = 1000.0
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    __add__, __radd__, __iadd__ = _binary(operator.add), _reflected(operator.add), _in_place(operator.iadd)
    __sub__, __rsub__, __isub__ = _binary(operator.sub), _reflected(operator.sub), _in_place(operator.isub)
    __mul__, __rmul__, __imul__ = _binary(operator.mul), _reflected(operator.mul), _in_place(operator.imul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __itruediv__ = _in_place(operator.itruediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __ifloordiv__ = _in_place(operator.ifloordiv)
    __mod__, __rmod__, __imod__ = _binary(operator.mod), _reflected(operator.mod), _in_place(operator.imod)
    __pow__, __rpow__, __ipow__ = _binary(operator.pow), _reflected(operator.pow), _in_place(operator.ipow)
    __and__, __rand__, __iand__ = _binary(operator.and_), _reflected(operator.and_), _in_place(operator.iand)
    __or__, __ror__, __ior__ = _binary(operator.or_), _reflected(operator.or_), _in_place(operator.ior)
    __xor__, __rxor__, __ixor__ = _binary(operator.xor), _reflected(operator.xor), _in_place(operator.ixor)
    __eq__, __ne__ = _binary(operator.eq), _binary(operator.ne)
    __lt__, __le__, __gt__, __ge__ = map(_binary, (operator.lt, operator.le, operator.gt, operator.ge))
    __neg__, __pos__, __abs__, __invert__ = map(_unary, (operator.neg, operator.pos, operator.abs, operator.invert))

    def __bool__(self) -> bool:
        raise ValueError("the truth of a distributed array is ambiguous: use all() or any()")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise UnsupportedTypeError(
            f"a {type(self).__name__} does not become a NumPy array by itself, because that takes messages: "
            "call gather() on every rank, or take local_array for this rank's part"
        )

    # Reductions: one message for all leaves at most

    def sum(self, axis: reductions.Axis = None, dtype: Any = None, out: None = None) -> Any:
        """Return the sum over `axis`; see :func:`collops.array.reductions.sum`. Collective."""
        return reductions.sum(self, axis, dtype, out)

    def min(self, axis: reductions.Axis = None, out: None = None) -> Any:
        """Return the minimum over `axis`; see :func:`collops.array.reductions.min`. Collective."""
        return reductions.min(self, axis, out)

    def max(self, axis: reductions.Axis = None, out: None = None) -> Any:
        """Return the maximum over `axis`; see :func:`collops.array.reductions.max`. Collective."""
        return reductions.max(self, axis, out)

    def mean(self, axis: reductions.Axis = None, dtype: Any = None, out: None = None) -> Any:
        """Return the mean over `axis`; see :func:`collops.array.reductions.mean`. Collective."""
        return reductions.mean(self, axis, dtype, out)

    def all(self, axis: reductions.Axis = None, out: None = None) -> Any:
        """Return whether all elements along `axis` are true. Collective: at most one allreduce."""
        return reductions.all(self, axis, out)

    def any(self, axis: reductions.Axis = None, out: None = None) -> Any:
        """Return whether any element along `axis` is true. Collective: at most one allreduce."""
        return reductions.any(self, axis, out)

    def dot(self, other: Self) -> Any:
        """Return the sum of ``self * other``, not conjugated. Collective: one scalar allreduce, none if replicated."""
        return fused.dot(self, other)

    def vdot(self, other: Self) -> Any:
        """Return the sum of ``conj(self) * other``. Collective: one scalar allreduce, none if replicated."""
        return fused.dots((self, other))[0]

    def norm(self, ord: float | None = None, axis: int | None = None) -> Any:
        """Return a vector norm; see :func:`collops.array.reductions.norm`. Collective: at most one allreduce."""
        return reductions.norm(self, ord, axis)

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the array to a Zarr store; see :func:`collops.array.save`. Collective."""
        from collops.array.store import save

        save(path, self, overwrite=overwrite)
