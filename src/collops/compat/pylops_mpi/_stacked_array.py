"""PyLops-MPI's stacked arrays: several arrays handled as one vector, nested if need be."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Self

from collops import array as native
from collops.compat.pylops_mpi._array import DistributedArray, Partition
from collops.errors import InputError, LayoutError, UnsupportedTypeError

__all__ = ["StackedDistributedArray", "checked_array", "wrapped"]


class StackedDistributedArray:
    """Several arrays as one vector; parameters and methods are PyLops-MPI's.

    Parameters
    ----------
    distarrays : list of (DistributedArray or StackedDistributedArray)
        The parts, kept.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks; those of the parts.

    Raises
    ------
    TypeError
        If a part is no array of PyLops-MPI's.
    ValueError
        If there is no part, or they are of different engines.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> x = pylops_mpi.DistributedArray(global_shape=3)
    >>> x[:] = 1.0
    >>> both = pylops_mpi.StackedDistributedArray([x, x.copy()])
    >>> float(both.dot(both))
    6.0
    """

    __array_ufunc__ = None

    def __init__(self, distarrays: Sequence[Any], base_comm: Any = None) -> None:
        self.distarrays = [checked_array(part) for part in distarrays]
        self.narrays = len(self.distarrays)
        if not self.distarrays:
            raise InputError("a stacked array needs at least one part")
        if len({part.engine for part in self.distarrays}) > 1:
            raise InputError("the parts of a stacked array must be of one engine")
        self.base_comm = self.distarrays[0].base_comm if base_comm is None else base_comm

    @property
    def native(self) -> native.StackedArray:
        """The same parts as :class:`collops.StackedArray`."""
        return native.StackedArray([part.native for part in self.distarrays])

    @property
    def global_shape(self) -> tuple[int]:
        """Number of elements of all parts."""
        return (self.native.size,)

    @property
    def engine(self) -> str:
        """``"numpy"`` or ``"cupy"``."""
        return self.distarrays[0].engine

    @property
    def dtype(self) -> Any:
        """The type that holds the elements of all parts."""
        return self.native.dtype

    def __getitem__(self, index: Any) -> Any:
        return self.distarrays[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.distarrays[index][:] = value

    def asarray(self) -> Any:
        """Return all parts' elements as one vector. Collective."""
        xp = self.native.engine.xp
        return xp.hstack([part.asarray().ravel() for part in self.distarrays])

    # Arithmetic: no messages

    def _parts(self, other: Any) -> Sequence[Any]:
        if not isinstance(other, StackedDistributedArray):
            return [other] * self.narrays
        if other.narrays != self.narrays:
            raise LayoutError(f"stacked arrays of {self.narrays} and of {other.narrays} parts meet")
        return other.distarrays

    def _binary(self, function: Callable[[Any, Any], Any], other: Any) -> Self:
        pairs = zip(self.distarrays, self._parts(other), strict=True)
        return type(self)([function(part, value) for part, value in pairs], self.base_comm)

    def _unary(self, function: Callable[[Any], Any]) -> Self:
        return type(self)([function(part) for part in self.distarrays], self.base_comm)

    def __neg__(self) -> Self:
        return self._unary(operator.neg)

    def __add__(self, other: Any) -> Self:
        return self._binary(operator.add, other)

    def __iadd__(self, other: Any) -> Self:
        for part, value in zip(self.distarrays, self._parts(other), strict=True):
            part += value
        return self

    def __sub__(self, other: Any) -> Self:
        return self._binary(operator.sub, other)

    def __isub__(self, other: Any) -> Self:
        for part, value in zip(self.distarrays, self._parts(other), strict=True):
            part -= value
        return self

    def __mul__(self, other: Any) -> Self:
        return self._binary(operator.mul, other)

    __rmul__ = __mul__

    def add(self, stacked_array: Self) -> Self:
        """Return the sum."""
        return self + stacked_array

    def iadd(self, stacked_array: Self) -> Self:
        """Add in place."""
        self += stacked_array
        return self

    def multiply(self, stacked_array: Any) -> Self:
        """Return the product with a stacked array, element by element, or with a number."""
        return self * stacked_array

    def conj(self) -> Self:
        """Return the complex conjugate."""
        return self._unary(lambda part: part.conj())

    def copy(self) -> Self:
        """Return a copy."""
        return self._unary(lambda part: part.copy())

    def zeros_like(self) -> Self:
        """Return zeros; masks are kept."""
        return self._unary(lambda part: part.zeros_like())

    def empty_like(self) -> Self:
        """Return arbitrary values; masks are kept."""
        return self._unary(lambda part: part.empty_like())

    # Reductions: one message for all parts

    def dot(self, stacked_array: Self, vdot: bool = False) -> Any:
        """Return the inner product, with this array conjugated if `vdot`. Collective: one scalar allreduce."""
        x, y = self.native, checked_array(stacked_array).native
        return (x.vdot(y) if vdot else x.dot(y)).item()

    def norm(self, ord: float | None = None) -> Any:
        """Return a norm of the vector of all elements. Collective: one scalar allreduce."""
        return self.native.norm(ord).item()

    def __repr__(self) -> str:
        parts = "".join(f"\n{part!r}" for part in self.distarrays)
        return f"<StackedDistributedArray with {self.narrays} distributed arrays: {parts}>"


def checked_array(x: Any) -> Any:
    """Return `x`, an array of PyLops-MPI's, stacked or not.

    Raises
    ------
    UnsupportedTypeError
        If it is anything else.
    """
    if isinstance(x, DistributedArray | StackedDistributedArray):
        return x
    raise UnsupportedTypeError(f"expected a DistributedArray or a StackedDistributedArray, not {type(x).__name__}")


def wrapped(array: Any, like: Any, partition: Partition = Partition.SCATTER) -> Any:
    """Return one of this package's arrays, stacked or not, as one of PyLops-MPI's; see `DistributedArray.wrapped`."""
    if isinstance(array, native.StackedArray):
        return StackedDistributedArray([wrapped(part, like, partition) for part in array.arrays])
    while isinstance(like, StackedDistributedArray):
        like = like.distarrays[0]
    return DistributedArray.wrapped(array, like, partition)
