"""PyLops-MPI's linear operators and their algebra, implemented by native operators or by a user's methods."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from numbers import Integral
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from collops import Communicator, LinearOperator
from collops.compat.pylops_mpi._arrays import (
    AnyArray,
    DistributedArray,
    Partition,
    StackedDistributedArray,
    checked_array,
    leaves,
    wrap,
)
from collops.compat.pylops_mpi._native import (
    FromFunctions,
    MpiComm,
    OnCopies,
    communicator,
    mpi_comm,
    to_layout,
    with_layouts,
)
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.extend.arrays import as_shape

_SCATTER = Partition.SCATTER
_METHODS = frozenset(("matvec", "rmatvec", "_matvec", "_rmatvec"))


def _extents(name: str, side: int, doc: str) -> property:
    """Return a property for the shape of the model or the data; by default the shape of a vector."""
    public = name.removeprefix("_")

    def read(self: Operator) -> tuple[int, ...]:
        extents = getattr(self, name)
        if extents is None and self._known_shape() is None:
            raise AttributeError(f"'{type(self).__name__}' object has no attributes '{public}' or 'shape'")
        return (self.shape[side],) if extents is None else extents

    def write(self: Operator, value: Sequence[SupportsIndex] | SupportsIndex) -> None:
        extents = as_shape(value)
        if self._shape is not None and math.prod(extents) != self._shape[side]:
            raise InputError(f"{public} incompatible with shape[{side}]: {extents} and {self._shape}")
        setattr(self, name, extents)

    return property(read, write, doc=doc)


class Operator:
    """An operator on PyLops-MPI's arrays.

    Most operators apply a `native` operator. A user's class has none: it implements ``_matvec`` and ``_rmatvec``, which
    combinations with other operators call. The same holds for a class derived from a class of this package, or an
    object, that overrides one of these methods.

    A class for a native operator defines ``_make`` with the signature of PyLops-MPI's class. ``_make`` returns the
    native operator. The constructor is derived from it and stores the arguments as attributes, as PyLops-MPI does.
    """

    # Partitions of model and data: with a single rank, layouts do not distinguish them.
    partitions: tuple[Partition, Partition] = (Partition.SCATTER, Partition.SCATTER)
    _requires_partition: tuple[bool, bool] = (False, False)  # whether model and data must have these partitions
    dtype: DTypeLike | None = None
    _make: Callable[..., LinearOperator | None]
    _native: LinearOperator | None = None
    _replaced = False  # whether a user's class overrides methods
    _base_comm: MpiComm = None
    _shape: tuple[int, int] | None = None
    _dims: tuple[int, ...] | None = None
    _dimsd: tuple[int, ...] | None = None
    _name = ""

    def __init_subclass__(cls, **defaults: object) -> None:
        """Give a class that defines ``_make`` a constructor with the same signature and these defaults."""
        if "_make" in vars(cls) or defaults:
            cls.__init__ = _constructor(cls._make, defaults)
        elif not _METHODS.isdisjoint(vars(cls)):
            cls._replaced = True

    def __init__(
        self,
        shape: Sequence[int] | None = None,
        dims: Sequence[SupportsIndex] | SupportsIndex | None = None,
        dimsd: Sequence[SupportsIndex] | SupportsIndex | None = None,
        dtype: DTypeLike | None = None,
        base_comm: MpiComm = None,
    ) -> None:
        self.dtype, self.base_comm = dtype, base_comm
        for name, value in {"dims": dims, "dimsd": dimsd, "shape": shape}.items():
            if value is not None:
                setattr(self, name, value)

    @property
    def native(self) -> LinearOperator | None:
        """The native operator; ``None`` if a user's methods are involved."""
        applied = self._applied()
        return applied if not self._replaced and _METHODS.isdisjoint(vars(self)) else None

    def _applied(self) -> LinearOperator | None:
        """Return the native operator that ``_matvec`` and ``_rmatvec`` of this class apply, if any."""
        self._settle(None)
        return self._native

    def _settle(self, comm: Communicator | None) -> None:
        """Choose the ranks if the choice was postponed: the ranks of `comm`, or all."""

    base_comm = property(
        lambda self: mpi_comm(self._base_comm),
        lambda self, value: setattr(self, "_base_comm", value),
        doc="The mpi4py communicator of the ranks.",
    )
    size = property(lambda self: self.base_comm.Get_size(), doc="Number of ranks.")
    rank = property(lambda self: self.base_comm.Get_rank(), doc="Number of this rank.")

    def _known_shape(self) -> tuple[int, int] | None:
        if self._shape is None and (native := self._applied()) is not None:
            self._shape = native.shape
        if self._shape is None and self._dims is not None and self._dimsd is not None:
            self._shape = (math.prod(self._dimsd), math.prod(self._dims))
        return self._shape

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        shape = self._known_shape()
        if shape is None:
            raise AttributeError(
                f"'{type(self).__name__}' object has no attribute 'shape' nor both of its fallbacks 'dims' and 'dimsd'"
            )
        return shape

    @shape.setter
    def shape(self, value: Sequence[int]) -> None:
        new = tuple(value)
        if len(new) != 2 or not all(isinstance(extent, Integral) and int(extent) >= 0 for extent in new):
            raise InputError(f"Invalid shape; must be 2-d tuple of integers, got {new}")
        if self._dims is not None and self._dimsd is not None:
            sides = {"dims": (self._dims, new[1]), "dimsd": (self._dimsd, new[0])}
            wrong = [name for name, (extents, size) in sides.items() if math.prod(extents) != size]
            if wrong:
                raise InputError(f"New shape incompatible with {' and '.join(wrong)}: {new}")
        self._shape = (int(new[0]), int(new[1]))

    dims = _extents("_dims", 1, "Shape of the model.")
    dimsd = _extents("_dimsd", 0, "Shape of the data.")

    # Application

    def matvec(self, x: AnyArray) -> AnyArray:
        """Apply the operator. Collective."""
        return self._matvec(self._checked(x, 1))

    def rmatvec(self, x: AnyArray) -> AnyArray:
        """Apply the adjoint. Collective."""
        return self._rmatvec(self._checked(x, 0))

    def _checked(self, x: AnyArray, side: int) -> AnyArray:
        native = checked_array(x).native
        self._settle(native.comm)
        if native.shape != (self.shape[side],):
            raise LayoutError(
                f"dimension mismatch: {self!r} takes {self.shape[side]} elements, not an array of shape {native.shape}"
            )
        required = self._requires_partition[1 - side] and self.partitions[1 - side]
        if required and (x.partition is _SCATTER) is not (required is _SCATTER):
            names = _SCATTER if required is _SCATTER else f"{Partition.BROADCAST},{Partition.UNSAFE_BROADCAST}"
            raise LayoutError(f"x should have partition={names}, not {x.partition}; see DistributedArray.to_dist")
        return x

    def _matvec(self, x: AnyArray) -> AnyArray:
        native = self._applied()
        if native is None:
            raise NotImplementedError(f"{type(self).__name__} does not implement _matvec")
        return wrap(native.forward(to_layout(x.native, native.domain)), x, self.partitions[1])

    def _rmatvec(self, x: AnyArray) -> AnyArray:
        native = self._applied()
        if native is None:
            raise NotImplementedError(f"{type(self).__name__} does not implement _rmatvec")
        return wrap(native.adjoint(to_layout(x.native, native.range)), x, self.partitions[0])

    def _apply_by(self: Any, matvec: Callable[[AnyArray], AnyArray], rmatvec: Callable[[AnyArray], AnyArray]) -> None:
        """Use these functions instead of a native operator."""
        self._matvec, self._rmatvec = matvec, rmatvec

    # Algebra

    def dot(self, x: AnyArray | Operator | complex) -> Any:
        """Return the product with an array, an operator or a number."""
        if isinstance(x, DistributedArray | StackedDistributedArray):
            shapes = [leaf.global_shape for leaf in leaves(x)]
            if any(len(shape) != 1 for shape in shapes):
                raise LayoutError(f"expected 1-d {type(x).__name__}, got {', '.join(map(str, shapes))}; see ravel")
            return self.matvec(x)
        if isinstance(x, Operator):
            return self._product(x)
        if not np.isscalar(x):
            raise InputError(
                f"cannot multiply an operator by {type(x).__name__}: expected an array, operator or number"
            )
        scaled = self._derived(
            "Scaled", (self,), lambda a: a * x, lambda v: self.matvec(v) * x, lambda v: self.rmatvec(v) * np.conj(x)
        )
        scaled.dtype = np.result_type(scaled.dtype, x)
        return scaled

    def _product(self, other: Operator) -> Operator:
        self._agree(other)
        if self.shape[1] != other.shape[0]:
            sizes = f"{self.shape[1]} columns, {other.shape[0]} rows"
            raise LayoutError(f"cannot multiply {self!r} and {other!r}: shape mismatch: {sizes}")
        result = self._derived(
            "Product",
            (self, other),
            lambda a, b: a @ with_layouts(b, b.domain, a.domain),
            lambda v: self.matvec(other.matvec(v)),
            lambda v: other.rmatvec(self.rmatvec(v)),
        )
        result._shape, result._dims = (self.shape[0], other.shape[1]), other._dims
        result.partitions = (other.partitions[0], self.partitions[1])
        result._requires_partition = (other._requires_partition[0], self._requires_partition[1])
        return result

    def _agree(self, other: Operator) -> None:
        """Let an operator whose choice of ranks was postponed use the ranks of the other."""
        for op, other_op in ((self, other), (other, self)):
            if other_op._native is not None:
                op._settle(other_op._native.comm)

    def __mul__(self, x: AnyArray | Operator | complex) -> Any:
        return self.dot(x)

    def __matmul__(self, x: AnyArray | Operator | complex) -> Any:
        if np.isscalar(x):
            raise InputError("Scalar not allowed, use * instead")
        return self.dot(x)

    def __rmul__(self, x: AnyArray | Operator | complex) -> Any:
        return self.dot(x) if np.isscalar(x) else NotImplemented

    def __add__(self, other: Operator) -> Operator:
        if not isinstance(other, Operator):
            raise InputError(f"both operands have to be a MPILinearOperator, not {type(other).__name__}")
        self._agree(other)
        if self.shape != other.shape:
            raise LayoutError(f"cannot add {self!r} and {other!r}: shape mismatch")
        return self._derived(
            "Sum",
            (self, other),
            lambda a, b: a + with_layouts(b, a.domain, a.range),
            lambda v: self.matvec(v) + other.matvec(v),
            lambda v: self.rmatvec(v) + other.rmatvec(v),
        )

    def __neg__(self) -> Operator:
        return self.dot(-1)

    def __sub__(self, other: Operator) -> Operator:
        return self + (-other)

    def __pow__(self, exponent: int) -> Operator:
        if self.shape[0] != self.shape[1]:
            kind = "MPIStackedLinearOperator" if isinstance(self, MPIStackedLinearOperator) else "LinearOperator"
            raise InputError(f"square {kind} expected, got {self!r}")
        if not isinstance(exponent, Integral) or exponent < 0:
            raise InputError(f"non-negative integer expected as p, not {exponent!r}")
        times = int(exponent)

        def repeated(apply: Callable[[AnyArray], AnyArray], v: AnyArray) -> AnyArray:
            return reduce(lambda result, _: apply(result), range(times), v.copy())

        combine = (lambda a: with_layouts(a, a.domain, a.domain) ** times) if times else None
        return self._derived("Power", (self,), combine, partial(repeated, self.matvec), partial(repeated, self.rmatvec))

    def adjoint(self) -> Operator:
        """Return the adjoint."""
        result = self._derived("Adjoint", (self,), lambda a: a.H, self.rmatvec, self.matvec)
        result._shape, result._dims, result._dimsd = (self.shape[1], self.shape[0]), self._dimsd, self._dims
        result.partitions = (self.partitions[1], self.partitions[0])
        result._requires_partition = (self._requires_partition[1], self._requires_partition[0])
        return result

    H = property(adjoint)

    def transpose(self) -> Operator:
        """Return the transpose, without conjugation."""
        return self.conj().adjoint()

    T = property(transpose)

    def conj(self) -> Operator:
        """Return the operator with conjugated coefficients."""
        return self._derived(
            "Conj",
            (self,),
            lambda a: a.conj(),
            lambda v: self.matvec(v.conj()).conj(),
            lambda v: self.rmatvec(v.conj()).conj(),
        )

    def _derived(
        self,
        name: str,
        parts: tuple[Operator, ...],
        combine: Callable[..., LinearOperator] | None,
        matvec: Callable[[AnyArray], AnyArray],
        rmatvec: Callable[[AnyArray], AnyArray],
    ) -> Operator:
        """Return an operator derived from `parts`: `combine` of their native operators, or else two functions."""
        stacked = any(isinstance(part, MPIStackedLinearOperator) for part in parts)
        result = MPIStackedLinearOperator() if stacked else MPILinearOperator()
        natives = [part.native for part in parts]
        if combine is not None and None not in natives:
            result._native = combine(*natives)
        else:
            result._apply_by(matvec, rmatvec)
        result._name, result._base_comm = name, self._base_comm
        result.partitions, result._requires_partition = self.partitions, self._requires_partition
        result._shape, result._dims, result._dimsd = self.shape, self._dims, self._dimsd
        result.dtype = np.result_type(*map(_dtype, parts))
        return result

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<{rows}x{columns} {self._name or type(self).__name__} with dtype={self.dtype}>"


def _constructor(make: Callable[..., LinearOperator | None], defaults: dict[str, object]) -> Callable[..., None]:
    """Return a constructor with the signature of ``_make``, except for `defaults`."""
    parameters = inspect.signature(make).parameters.values()
    signature = inspect.Signature([p.replace(default=defaults.get(p.name, p.default)) for p in parameters])

    def __init__(self: Operator, *arguments: object, **named: object) -> None:
        parameters = signature.bind(self, *arguments, **named)
        parameters.apply_defaults()
        for name, value in list(parameters.arguments.items())[1:]:
            if name not in ("A", "G", "conj"):  # matrices, which the native operator may convert; and a method
                setattr(self, name, value)
        native = make(*parameters.args, **parameters.kwargs)
        if native is None:
            return
        # PyLops-MPI's vectors are ravelled arrays.
        self._dims = getattr(native.domain, "shape", None) if self._dims is None else self._dims
        self._dimsd = getattr(native.range, "shape", None) if self._dimsd is None else self._dimsd
        self._native = native.flat
        self.dtype = np.dtype(native.dtype if self.dtype is None else self.dtype)

    __init__.__signature__ = signature
    return __init__


def _dtype(op: Operator) -> np.dtype:
    return np.dtype(np.float64 if op.dtype is None else op.dtype)


class MPILinearOperator(Operator):
    """A linear operator on distributed arrays, see :class:`collops.operators.LinearOperator`.

    Each rank applies `Op`, a local operator that is equal on all ranks, to its copy of a vector. Derived classes
    implement ``_matvec(x)`` and ``_rmatvec(x)``. `native` is the native operator, or ``None`` for a user's class.
    """

    def __init__(
        self,
        Op: Any = None,
        shape: Sequence[int] | None = None,
        dims: Sequence[SupportsIndex] | SupportsIndex | None = None,
        dimsd: Sequence[SupportsIndex] | SupportsIndex | None = None,
        dtype: DTypeLike | None = None,
        base_comm: MpiComm = None,
    ) -> None:
        self.Op = Op
        if Op is not None:
            self._native = OnCopies(Op, communicator(base_comm))
            self.partitions = (Partition.BROADCAST, Partition.BROADCAST)
            shape = Op.shape if shape is None else shape
            dims = getattr(Op, "dims", None) if dims is None else dims
            dimsd = getattr(Op, "dimsd", None) if dimsd is None else dimsd
            dtype = Op.dtype if dtype is None else dtype
        super().__init__(shape, dims, dimsd, dtype, base_comm)


class MPIStackedLinearOperator(Operator):
    """An :class:`MPILinearOperator` whose model or data are stacked, see :class:`collops.operators.LinearOperator`."""


def asmpilinearoperator(Op: Any) -> MPILinearOperator:
    """Return a distributed operator that applies `Op`, equal on all ranks, to each rank's copy of a vector.

    Examples
    --------
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.asmpilinearoperator(pylops.Identity(3))
    >>> x = pylops_mpi.DistributedArray(global_shape=3, partition=pylops_mpi.Partition.BROADCAST)
    >>> x[:] = 1.0
    >>> (A @ x).local_array
    array([1., 1., 1.])
    """
    return Op if isinstance(Op, MPILinearOperator) else MPILinearOperator(Op)


def native_of(op: object, model: AnyArray, data: AnyArray) -> LinearOperator:
    """Return the native operator of `op`; for a user's class, an operator with the layouts of `model` and `data`."""
    if not isinstance(op, Operator):
        kind = type(op).__name__
        raise UnsupportedTypeError(f"expected an MPILinearOperator or an MPIStackedLinearOperator, not {kind}")
    x, y = checked_array(model).native, checked_array(data).native
    op._settle(x.comm)
    if op.native is not None:
        return op.native
    return FromFunctions(
        lambda v: op.matvec(wrap(v, model, op.partitions[0])).native,
        lambda v: op.rmatvec(wrap(v, data, op.partitions[1])).native,
        x.layout,
        y.layout,
        _dtype(op),
        x.comm,
    )
