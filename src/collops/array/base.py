"""The methods that distributed and stacked arrays share: Python's operators, reductions, and saving."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Self

import numpy as np

from collops.array import fused, reductions
from collops.array.coefficients import Scalar
from collops.array.numpy_functions import Function, apply_function
from collops.array.operands import local_operand
from collops.array.plans import ReductionPlan
from collops.array.redistribute import check_copies
from collops.backend import Engine, LocalArray
from collops.comm import Communicator
from collops.errors import UnsupportedTypeError


def _direct(function: Callable[[LocalArray, Scalar], LocalArray]) -> Any:
    return lambda self, other: self._binary(function, other)


def _reflected(function: Callable[[Scalar, LocalArray], LocalArray]) -> Any:
    return lambda self, other: self._binary(function, other, True)


def _inplace(function: Callable[[LocalArray, LocalArray], LocalArray]) -> Any:
    return lambda self, other: self._in_place(function, other)


def _unary_operator(function: Callable[[LocalArray], LocalArray]) -> Any:
    return lambda self: self._unary(function)


_copy, _real, _imag = operator.methodcaller("copy"), operator.attrgetter("real"), operator.attrgetter("imag")


class Array:
    """The base of :class:`DistributedArray` and :class:`StackedArray`, and the type of anything that may be either.

    Only a :class:`DistributedArray` has a `local_array`, only a :class:`StackedArray` has `arrays`.

    Examples
    --------
    >>> import collops
    >>> from collops.array import Array
    >>> isinstance(collops.ones(3), Array)
    True
    """

    # Operators are in terms of `_binary`, `_unary`, `_map` and `_in_place`, which apply a function to all local arrays.
    __slots__ = ()

    layout: Any
    comm: Communicator
    engine: Engine
    _plan: ReductionPlan
    leaves: Any
    dtype: Any
    astype: Any
    gather: Any
    redistribute: Any
    local_array: LocalArray
    arrays: Any
    shape: Any
    _like: Any
    _local_block: Any
    _unary: Any
    _binary: Any
    _in_place: Any
    _map: Any
    astype: Any
    gather: Any

    # NumPy then calls this class for `number * array` and `numpy_array * array`; the latter raises an error.
    __array_priority__ = 1000.0
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    __add__, __radd__, __iadd__ = _direct(operator.add), _reflected(operator.add), _inplace(operator.iadd)
    __sub__, __rsub__, __isub__ = _direct(operator.sub), _reflected(operator.sub), _inplace(operator.isub)
    __mul__, __rmul__, __imul__ = _direct(operator.mul), _reflected(operator.mul), _inplace(operator.imul)
    __truediv__, __rtruediv__ = _direct(operator.truediv), _reflected(operator.truediv)
    __itruediv__ = _inplace(operator.itruediv)
    __floordiv__, __rfloordiv__ = _direct(operator.floordiv), _reflected(operator.floordiv)
    __ifloordiv__ = _inplace(operator.ifloordiv)
    __mod__, __rmod__, __imod__ = _direct(operator.mod), _reflected(operator.mod), _inplace(operator.imod)
    __pow__, __rpow__, __ipow__ = _direct(operator.pow), _reflected(operator.pow), _inplace(operator.ipow)
    __and__, __rand__, __iand__ = _direct(operator.and_), _reflected(operator.and_), _inplace(operator.iand)
    __or__, __ror__, __ior__ = _direct(operator.or_), _reflected(operator.or_), _inplace(operator.ior)
    __xor__, __rxor__, __ixor__ = _direct(operator.xor), _reflected(operator.xor), _inplace(operator.ixor)
    __eq__, __ne__ = _direct(operator.eq), _direct(operator.ne)
    __lt__, __le__, __gt__, __ge__ = map(_direct, (operator.lt, operator.le, operator.gt, operator.ge))
    __neg__, __pos__ = _unary_operator(operator.neg), _unary_operator(operator.pos)
    __abs__, __invert__ = _unary_operator(operator.abs), _unary_operator(operator.invert)

    def __bool__(self) -> bool:
        raise ValueError("the truth of a distributed array is ambiguous: use all() or any()")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        caller = sys._getframe(1).f_code.co_name
        if caller in ("array_equal", "array_equiv"):
            warnings.warn(
                f"numpy.{caller} of a list of distributed arrays returns False, because NumPy ignores the error of the "
                "conversion: use (x == y).all() for each pair",
                RuntimeWarning,
                stacklevel=3,
            )
        raise UnsupportedTypeError(
            f"a {type(self).__name__} is not converted to a NumPy array implicitly, because that needs messages: "
            "call gather() on every rank, or use local_array for this rank's part"
        )

    def __array_function__(
        self, function: Function, types: Iterable[type], args: Sequence[object], arguments: Mapping[str, object]
    ) -> Any:
        """Apply a NumPy function such as ``numpy.sum``; raise UnsupportedTypeError for those that need all values."""
        return apply_function(self, function, args, arguments)

    @property
    def size(self) -> int:
        """Global number of elements."""
        return self.layout.size

    @property
    def nbytes(self) -> int:
        """Global number of bytes, without copies."""
        return sum(leaf.layout.size * leaf.dtype.itemsize for leaf in self.leaves)

    @property
    def real(self) -> Self:
        """The real part; a view if the engine has views."""
        return self._unary(_real)

    @property
    def imag(self) -> Self:
        """The imaginary part; for complex arrays a view if the engine has views."""
        return self._unary(_imag)

    def copy(self) -> Self:
        """Return a copy with its own memory. No messages."""
        return self._unary(_copy)

    def conj(self) -> Self:
        """Return the complex conjugate; a copy if the array is real. No messages."""
        return self._unary(self.engine.xp.conjugate)

    conjugate = conj

    def fill(self, value: Scalar) -> None:
        """Set all elements to a number, in place. No messages."""
        for leaf in self.leaves:
            leaf._hold(local_operand(leaf, value))

    def check_replicated(self) -> None:
        """Raise LayoutError on every rank, naming ranks, unless copies of a block are equal. Collective.

        NaN is equal to NaN. It sends one metadata message for each part of a stacked array.
        """
        for leaf in self.leaves:
            check_copies(leaf)

    # Reductions: one message for all leaves at most

    sum, min, max, mean = reductions.sum, reductions.min, reductions.max, reductions.mean
    all, any, norm = reductions.all, reductions.any, reductions.norm
    dot, vdot = fused.dot, fused.vdot

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Write the array to a Zarr store; see :func:`collops.array.save`. Collective."""
        from collops.array.store import save

        save(path, self, overwrite=overwrite)
