"""What PyLops-MPI's operators have in common: shapes, application, and algebra, all by this package's operators."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np

from collops.array.layout_arguments import as_shape
from collops.comm import Communicator
from collops.compat.pylops_mpi._array import DistributedArray, Partition
from collops.compat.pylops_mpi._native import Translated, between, brought
from collops.compat.pylops_mpi._stacked_array import StackedDistributedArray, checked_array, wrapped
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import LinearOperator

__all__ = ["Operator", "checked_operator", "native_of"]

_ARRAYS = (DistributedArray, StackedDistributedArray)


class Operator:
    """An operator on PyLops-MPI's arrays.

    Most have a `native` operator, which does the work. A class derived from MPILinearOperator by a user has none: it
    implements ``_matvec`` and ``_rmatvec``, and so do combinations that it takes part in.

    Attributes
    ----------
    native : collops.operators.LinearOperator or None
    partitions : tuple of Partition
        Of model and data, which only a world of one cannot see from the layouts.
    """

    native: LinearOperator | None = None
    partitions = (Partition.SCATTER, Partition.SCATTER)
    _shape: tuple[int, int] | None = None
    _dims: tuple[int, ...] | None = None
    _dimsd: tuple[int, ...] | None = None
    dtype: Any = None
    base_comm: Any = None

    def _settle(self, comm: Communicator | None) -> None:
        """Decide on the ranks, if that has been put off: those of `comm`, or of the world."""

    def settled(self) -> LinearOperator | None:
        """Return the native operator, the ranks being decided on; ``None`` where a user's class has none."""
        self._settle(None)
        return self.native

    # Sizes

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        self._settle(None)
        if self._shape is None and self.native is not None:
            self._shape = self.native.shape
        if self._shape is None and self._dims is not None and self._dimsd is not None:
            self._shape = (int(np.prod(self._dimsd)), int(np.prod(self._dims)))
        if self._shape is None:
            raise InputError(f"{type(self).__name__} has no shape: give it shape, or dims and dimsd")
        return self._shape

    @shape.setter
    def shape(self, value: Any) -> None:
        rows, columns = value
        self._shape = (int(rows), int(columns))

    @property
    def dims(self) -> tuple[int, ...]:
        """Shape of the model."""
        return (self.shape[1],) if self._dims is None else self._dims

    @dims.setter
    def dims(self, value: Any) -> None:
        self._dims = as_shape(value)

    @property
    def dimsd(self) -> tuple[int, ...]:
        """Shape of the data."""
        return (self.shape[0],) if self._dimsd is None else self._dimsd

    @dimsd.setter
    def dimsd(self, value: Any) -> None:
        self._dimsd = as_shape(value)

    @property
    def size(self) -> int:
        """Number of ranks."""
        from mpi4py import MPI

        return (self.base_comm or MPI.COMM_WORLD).Get_size()

    @property
    def rank(self) -> int:
        """The number of this rank."""
        from mpi4py import MPI

        return (self.base_comm or MPI.COMM_WORLD).Get_rank()

    # Application

    def matvec(self, x: Any) -> Any:
        """Apply the operator. Collective.

        Raises
        ------
        TypeError
            If `x` is no array of PyLops-MPI's.
        ValueError
            If `x` has not as many elements as the operator columns.
        """
        self._settle(checked_array(x).native.comm)
        return self._matvec(self._checked(x, self.shape[1]))

    def rmatvec(self, x: Any) -> Any:
        """Apply the adjoint. Collective.

        Raises
        ------
        TypeError
            If `x` is no array of PyLops-MPI's.
        ValueError
            If `x` has not as many elements as the operator rows.
        """
        self._settle(checked_array(x).native.comm)
        return self._rmatvec(self._checked(x, self.shape[0]))

    def _checked(self, x: Any, size: int) -> Any:
        if tuple(x.global_shape) != (size,):
            raise LayoutError(f"{self!r}: an array of shape {x.global_shape} meets a side of {size} elements")
        return x

    def _matvec(self, x: Any) -> Any:
        if self.native is None:
            raise NotImplementedError(f"{type(self).__name__} has no _matvec")
        result = self.native.forward(brought(x.native, self.native.domain))
        return wrapped(result, x, self.partitions[1])

    def _rmatvec(self, x: Any) -> Any:
        if self.native is None:
            raise NotImplementedError(f"{type(self).__name__} has no _rmatvec")
        result = self.native.adjoint(brought(x.native, self.native.range))
        return wrapped(result, x, self.partitions[0])

    # Algebra

    def dot(self, x: Any) -> Any:
        """Return the product with an array, an operator or a number."""
        if isinstance(x, _ARRAYS):
            return self.matvec(x)
        if isinstance(x, Operator):
            return self._product(x)
        if not np.isscalar(x):
            raise InputError(f"an operator is multiplied by arrays, operators and numbers, not by {type(x).__name__}")
        return self._derived(
            "Scaled",
            self.shape,
            (self,),
            lambda a: a * x,
            lambda v: self._matvec(v) * x,
            lambda v: self._rmatvec(v) * np.conj(x),
            np.result_type(_dtype(self), x),
        )

    def _agree(self, other: Operator) -> None:
        """Let an operator that has not decided on its ranks have those of the other."""
        for one, two in ((self, other), (other, self)):
            if two.native is not None:
                one._settle(two.native.comm)

    def _product(self, other: Operator) -> Operator:
        self._agree(other)
        if self.shape[1] != other.shape[0]:
            raise LayoutError(f"{self!r} and {other!r} cannot be multiplied: {self.shape[1]} is not {other.shape[0]}")
        made = self._derived(
            "Product",
            (self.shape[0], other.shape[1]),
            (self, other),
            lambda a, b: a @ between(b, b.domain, a.domain),
            lambda v: self._matvec(other._matvec(v)),
            lambda v: other._rmatvec(self._rmatvec(v)),
        )
        made.partitions = (other.partitions[0], self.partitions[1])
        made._dims, made._dimsd = other._dims, self._dimsd
        return made

    def __mul__(self, x: Any) -> Any:
        return self.dot(x)

    def __matmul__(self, x: Any) -> Any:
        if np.isscalar(x):
            raise InputError("numbers are no operands of @; use *")
        return self.dot(x)

    def __rmul__(self, x: Any) -> Any:
        return self.dot(x) if np.isscalar(x) else NotImplemented

    def __add__(self, other: Any) -> Operator:
        if not isinstance(other, Operator):
            return NotImplemented
        self._agree(other)
        if self.shape != other.shape:
            raise LayoutError(f"{self!r} and {other!r} cannot be added: their shapes differ")
        return self._derived(
            "Sum",
            self.shape,
            (self, other),
            lambda a, b: a + between(b, a.domain, a.range),
            lambda v: self._matvec(v) + other._matvec(v),
            lambda v: self._rmatvec(v) + other._rmatvec(v),
        )

    def __neg__(self) -> Operator:
        return self.dot(-1)

    def __sub__(self, other: Any) -> Operator:
        return self + (-other)

    def __pow__(self, exponent: int) -> Operator:
        if self.shape[0] != self.shape[1]:
            raise InputError(f"{self!r} is not square, and has no powers")
        if not isinstance(exponent, Integral) or exponent < 0:
            raise InputError(f"the power of an operator is an integer of at least 0, not {exponent!r}")

        def repeated(apply: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def power(v: Any) -> Any:
                v = v.copy()
                for _ in range(int(exponent)):
                    v = apply(v)
                return v

            return power

        native = None
        if self.native is not None and exponent > 0:
            native = between(self.native, self.native.domain, self.native.domain) ** int(exponent)
        made = self._derived("Power", self.shape, (self,), None, repeated(self._matvec), repeated(self._rmatvec))
        made.native = native
        return made

    def adjoint(self) -> Operator:
        """Return the adjoint."""
        made = self._derived(
            "Adjoint", (self.shape[1], self.shape[0]), (self,), lambda a: a.H, self._rmatvec, self._matvec
        )
        made.partitions = (self.partitions[1], self.partitions[0])
        made._dims, made._dimsd = self._dimsd, self._dims
        return made

    H = property(adjoint)

    def transpose(self) -> Operator:
        """Return the transpose, without conjugation."""
        return self.conj().adjoint()

    T = property(transpose)

    def conj(self) -> Operator:
        """Return the operator with conjugated coefficients."""
        return self._derived(
            "Conj",
            self.shape,
            (self,),
            lambda a: a.conj(),
            lambda v: self._matvec(v.conj()).conj(),
            lambda v: self._rmatvec(v.conj()).conj(),
        )

    def _derived(
        self,
        kind: str,
        shape: tuple[int, int],
        parts: tuple[Operator, ...],
        combine: Callable[..., LinearOperator] | None,
        matvec: Callable[[Any], Any],
        rmatvec: Callable[[Any], Any],
        dtype: Any = None,
    ) -> Operator:
        """Return an operator made of `parts`: by `combine` of native ones, or by functions where one has none."""
        for part in parts:
            part._settle(None)
        made = self._blank(*parts)
        made.kind = kind
        made.shape = shape
        made._dims, made._dimsd = self._dims, self._dimsd
        made.partitions = self.partitions
        made.base_comm = self.base_comm
        made.dtype = np.result_type(*map(_dtype, parts)) if dtype is None else dtype
        natives = [part.native for part in parts]
        if combine is not None and None not in natives:
            made.native = combine(*natives)
        else:
            made._matvec, made._rmatvec = matvec, rmatvec
        return made

    def _blank(self, *parts: Operator) -> Any:
        """Return an empty operator of the kind that an operator made of `parts` is."""
        raise NotImplementedError

    kind = ""

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<{rows}x{columns} {self.kind or type(self).__name__} with dtype={self.dtype}>"


def _dtype(op: Operator) -> np.dtype:
    return np.dtype(np.float64 if op.dtype is None else op.dtype)


def checked_operator(op: Any) -> Operator:
    """Return `op`, an operator of PyLops-MPI's.

    Raises
    ------
    UnsupportedTypeError
        If it is anything else.
    """
    if isinstance(op, Operator):
        return op
    raise UnsupportedTypeError(f"expected an MPILinearOperator or an MPIStackedLinearOperator, not {type(op).__name__}")


def native_of(op: Operator, model: Any, data: Any) -> LinearOperator:
    """Return the native operator that takes arrays such as `model` to arrays such as `data`.

    Parameters
    ----------
    op : Operator
        Its own native one, if it has one, in its own layouts.
    model, data : DistributedArray or StackedDistributedArray
        Whose layouts count where `op` is a user's class.

    Raises
    ------
    UnsupportedTypeError
        If `op` is no operator of PyLops-MPI's, or one of the arrays none of its arrays.
    """
    checked_operator(op)._settle(checked_array(model).native.comm)
    x, y = model.native, checked_array(data).native
    if op.native is not None:
        return op.native
    return Translated(
        lambda v: op._matvec(wrapped(v, model, op.partitions[0])).native,
        lambda v: op._rmatvec(wrapped(v, data, op.partitions[1])).native,
        x.layout,
        y.layout,
        _dtype(op),
        x.comm,
    )
