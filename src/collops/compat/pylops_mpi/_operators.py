"""PyLops-MPI's operators: for each its signature and the native operator.

The ``_make`` of a class has the signature of PyLops-MPI's class and returns the native operator, whose docstring
describes the parameters. ``base_comm`` is an mpi4py communicator, the world by default. A ravelled array is split along
axis 0; model and data are the vectors of its parts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any

import numpy as np

from collops import (
    FFT2D,
    FFTND,
    MDC,
    BlockDiag,
    Communicator,
    FirstDerivative,
    Fredholm1,
    Gradient,
    HStack,
    Laplacian,
    Layout,
    LinearOperator,
    NonStationaryConvolve1D,
    SecondDerivative,
    StackedBlockDiag,
    StackedVStack,
    VStack,
)
from collops.compat.pylops_mpi._arrays import Partition, StackedDistributedArray
from collops.compat.pylops_mpi._linear_operator import MPILinearOperator, MPIStackedLinearOperator, Operator
from collops.compat.pylops_mpi._messages import DistributedMixIn
from collops.compat.pylops_mpi._native import communicator, vector_layout, with_layouts
from collops.errors import InputError, LayoutError
from collops.extend.arrays import Array
from collops.extend.operators import Buffers, Flat

_BROADCAST, _SCATTER = Partition.BROADCAST, Partition.SCATTER

# Derivatives


def _check_kind(kind: str, order: int = 3) -> None:
    """Raise the NotImplementedError of PyLops-MPI for a derivative that does not exist."""
    if kind not in ("forward", "centered", "backward"):
        raise NotImplementedError(f"'kind' must be 'forward', 'centered', or 'backward', not {kind!r}")
    if kind == "centered" and order not in (3, 5):
        raise NotImplementedError(f"'order' must be '3, or '5', not {order!r}")


class MPIFirstDerivative(MPILinearOperator):
    """First derivative of a ravelled array along axis 0, see :class:`collops.operators.FirstDerivative`. Collective."""

    def _make(self, dims, sampling=1.0, kind="centered", edge=False, order=3, base_comm=None, dtype=np.float64):
        _check_kind(kind, order)
        options = {"comm": communicator(base_comm), "dtype": dtype}
        return FirstDerivative(self.dims, 0, sampling, kind, edge, order, **options)


class MPISecondDerivative(MPILinearOperator):
    """Second derivative along axis 0, see :class:`collops.operators.SecondDerivative`. Collective."""

    def _make(self, dims, sampling=1.0, kind="centered", edge=False, base_comm=None, dtype=np.float64):
        _check_kind(kind)
        return SecondDerivative(self.dims, 0, sampling, kind, edge, comm=communicator(base_comm), dtype=dtype)


class MPILaplacian(MPILinearOperator):
    """Weighted sum of second derivatives of a ravelled array, see :class:`collops.operators.Laplacian`. Collective."""

    _requires_partition = (True, True)

    def _make(
        self,
        dims,
        axes=(-2, -1),
        weights=(1, 1),
        sampling=(1, 1),
        edge=False,
        kind="centered",
        base_comm=None,
        dtype=np.float64,
    ):
        _check_kind(kind)
        if not len(axes) == len(weights) == len(sampling):
            raise InputError(f"axes, weights, and sampling have different size: {axes}, {weights}, {sampling}")
        options = {"comm": communicator(base_comm), "dtype": dtype}
        return Laplacian(self.dims, axes, weights, sampling, edge, kind, **options)


class MPIGradient(MPIStackedLinearOperator):
    """Stack of first derivatives of a ravelled array, see :class:`collops.operators.Gradient`. Collective."""

    _requires_partition = (True, False)

    def _make(self, dims, sampling=1, edge=False, kind="centered", base_comm=None, dtype="float64"):
        _check_kind(kind)
        return Gradient(self.dims, sampling, edge, kind, comm=communicator(base_comm), dtype=dtype)


# Stacks of local operators

_inactive: set[str] = set()


def ranks_may_be_inactive() -> None:
    """Record that a process grid excludes some ranks, which may not take part in later collective calls."""
    _inactive.add("grid")


def _shapes_of_parts(side: str, doc: str) -> property:
    def shapes(self: Operator) -> list[tuple[int, ...]]:
        layout = getattr(self._applied(), side)
        return [layout.local_shape(rank) for rank in range(layout.ranks)]

    return property(shapes, doc=doc)


class _LocalStack(MPILinearOperator):
    """A stack of the local operators of all ranks. Collective.

    If a process grid excludes some ranks and no communicator is passed, the stack uses the ranks of the first operator
    or array with which it is combined. PyLops-MPI deadlocks in this case.
    """

    _stack: Callable[[Iterable[object], Communicator], LinearOperator]
    _requires_partition = (True, True)

    def _make(self, ops, base_comm=None, dtype=None):
        self.ops = list(ops)
        if base_comm is not None or not _inactive:
            self._settle(communicator(base_comm))

    def _settle(self, comm: Communicator | None) -> None:
        if self._native is not None:
            return
        native = self._stack(self.ops, communicator(None) if comm is None else comm)
        if self.dtype is not None:
            native.dtype = np.result_type(native.dtype, self.dtype)
        self._native, self.dtype = native, native.dtype

    local_shapes_m = _shapes_of_parts("domain", "Shape of every rank's part of the model. No message.")
    local_shapes_n = _shapes_of_parts("range", "Shape of every rank's part of the data. No message.")


class MPIBlockDiag(_LocalStack):
    """Block-diagonal operator of all ranks' local operators, see :class:`collops.BlockDiag`. Collective.

    Examples
    --------
    >>> import numpy as np
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(np.eye(3, 2))])  # on each rank
    >>> x = pylops_mpi.DistributedArray(global_shape=A.shape[1])
    >>> x[:] = 2.0
    >>> y = A @ x
    >>> pylops_mpi.cgls(A, y, x.zeros_like(), niter=5)[0].local_array
    array([2., 2.])
    """

    def _make(  # pyright: ignore[reportIncompatibleMethodOverride] - PyLops-MPI's order
        self, ops, base_comm=None, mask=None, dtype=None
    ):
        self._stack = partial(BlockDiag, mask=mask)
        super()._make(ops, base_comm)


class MPIVStack(DistributedMixIn, _LocalStack):
    """Vertical stack of all ranks' local operators, see :class:`collops.VStack`. Collective."""

    partitions = (_BROADCAST, _SCATTER)
    _stack = staticmethod(VStack)


class MPIHStack(_LocalStack):
    """Horizontal stack of all ranks' local operators, see :class:`collops.HStack`. Collective."""

    partitions = (_SCATTER, _BROADCAST)
    _stack = staticmethod(HStack)


# Stacks of distributed operators


class _DistributedStack(MPIStackedLinearOperator):
    """A stack of distributed operators."""

    ops: list[Operator]

    def _natives(self, ops: Any, dtype: Any) -> list[LinearOperator] | None:
        """Store operators and dtype; return the native operators, or ``None`` if a user's class has none."""
        self.ops = list(ops)
        self.dtype = np.result_type(*(op.dtype for op in self.ops)) if dtype is None else dtype
        natives = [native for op in self.ops if (native := op.native) is not None]
        return natives if len(natives) == len(self.ops) else None

    def _products(self, method: str, parts: Any) -> list[Any]:
        """Return the product of each operator with its part."""
        return [getattr(op, method)(part) for op, part in zip(self.ops, parts, strict=True)]


class MPIStackedBlockDiag(_DistributedStack):
    """Block-diagonal operator of distributed operators, see :class:`collops.StackedBlockDiag`."""

    def _make(self, ops, base_comm=None, dtype=None):
        natives = self._natives(ops, dtype)
        self.shape = tuple(sum(op.shape[side] for op in self.ops) for side in (0, 1))
        if natives:
            return StackedBlockDiag(natives)
        self._apply_by(
            lambda x: StackedDistributedArray(self._products("matvec", x.distarrays)),
            lambda y: StackedDistributedArray(self._products("rmatvec", y.distarrays)),
        )


class MPIStackedVStack(_DistributedStack):
    """Vertical stack of distributed operators, see :class:`collops.StackedVStack`.

    The model has the layout of the first operator's domain.
    """

    def _make(self, ops, base_comm=None, dtype=None):
        natives = self._natives(ops, dtype)
        if len({op.shape[1] for op in self.ops}) > 1:
            raise LayoutError(f"Operators have different number of columns: {self.ops}")
        self.shape = (sum(op.shape[0] for op in self.ops), self.ops[0].shape[1])
        self.partitions = (self.ops[0].partitions[0], _SCATTER)
        if natives:
            return StackedVStack([with_layouts(op, natives[0].domain, op.range) for op in natives])
        self._apply_by(
            lambda x: StackedDistributedArray(self._products("matvec", [x] * len(self.ops))),
            lambda y: reduce(operator.add, self._products("rmatvec", y.distarrays)),
        )


# Signal processing


class MPIFFTND(MPILinearOperator):
    """Fourier transform of a ravelled array, see :class:`collops.operators.FFTND`. Collective.

    `norm` is ``"none"`` or ``"1/n"`` and scales both forward and adjoint; ``op / y`` applies the inverse.
    """

    _transform = FFTND
    _requires_partition = (True, True)
    norm: str
    nffts: Any
    fs: Any

    def _make(
        self,
        dims,
        axes=(0, 1, 2),
        sampling=1.0,
        norm="none",
        real=False,
        ifftshift_before=False,
        fftshift_after=False,
        dtype="complex128",
        base_comm=None,
    ):
        scales = {"backward": 'no scaling on the forward transform, use "none"', "forward": '1/n scaling, use "1/n"'}
        if norm in scales:
            raise InputError(f"norm={norm!r}: To use {scales[norm]}, which also holds for the adjoint")
        if norm not in ("none", "1/n"):
            raise InputError(f"`norm`={norm} is not one of 'none' or '1/n'")
        shifts = {"ifftshift_before": ifftshift_before, "fftshift_after": fftshift_after}
        options = {"dtype": dtype, "comm": communicator(base_comm), "range_layout": "domain"}
        native = self._transform(self.dims, axes, sampling=sampling, norm=norm, real=real, **shifts, **options)
        for name in ("axes", "nffts", "sampling", "fs", "rdtype", "cdtype", "clinear"):
            setattr(self, name, getattr(native, name))
        self.dtype = native.cdtype
        return native

    def __truediv__(self, y: Any) -> Any:
        """Apply the inverse. Collective."""
        samples = float(np.prod(self.nffts))
        return self.rmatvec(y) * (1 / samples if self.norm == "none" else samples)


class MPIFFT2D(MPIFFTND, axes=(0, 1)):
    """Fourier transform along two axes, see :class:`MPIFFTND`. Collective."""

    _transform = FFT2D
    f1 = property(lambda self: self.fs[0], doc="Frequencies along the first axis.")
    f2 = property(lambda self: self.fs[1], doc="Frequencies along the second axis.")


class MPIFredholm1(MPILinearOperator):
    """Matrix products of slices that are split over the ranks, see :class:`collops.operators.Fredholm1`. Collective.

    Model and data are replicated. The native operator can also split them, which needs no messages.
    """

    partitions = (_BROADCAST, _BROADCAST)
    _requires_partition = (True, True)

    def _make(self, G, nz=1, saveGt=False, usematmul=True, base_comm=None, dtype="float64"):
        self.G = G
        options = {"model": "replicated", "data": "replicated", "comm": communicator(base_comm)}
        return Fredholm1(G, nz, saveGt, usematmul, **options)


class MPINonStationaryConvolve1D(MPILinearOperator):
    """Convolution of ravelled blocks, see :class:`collops.operators.NonStationaryConvolve1D`. Collective.

    The array is split along `axis`, along which the filters vary.
    """

    def _make(self, dims, hs, ih, axis=-1, base_comm=None, dtype="float64"):
        comm, self.dimsd = communicator(base_comm), self.dims
        steps = np.diff(ih)
        if hs.shape[1] % 2 == 0:
            raise InputError(f"filters hs must have odd length, not {hs.shape[1]}")
        if len(set(steps.tolist())) > 1:
            raise InputError(f"the indices of filters 'ih' are {ih}: they must be regularly sampled")
        if min(ih) < 0 or max(ih) >= self.dims[axis]:
            raise InputError(
                f"the indices of filters 'ih' must be larger than 0 and smaller than `dims`: {ih} are not within "
                f"{self.dims[axis]} samples"
            )
        layout = Layout.split(self.dims, comm.size, axis)
        flat = vector_layout(layout)
        return Flat(NonStationaryConvolve1D(layout, hs, ih, axis, comm=comm, dtype=dtype), flat, flat)


# Wave-equation processing


class MPIMDC(MPILinearOperator):
    """Multi-dimensional convolution, see :class:`collops.operators.MDC`. Collective.

    Model and data are replicated complex vectors with an imaginary part of zero; natively they are real and can be
    split. `fftengine` has no effect.
    """

    partitions = (_BROADCAST, _BROADCAST)
    _requires_partition = (True, True)

    def _make(
        self,
        G,
        nt,
        nv,
        nfreq,
        dt=1.0,
        dr=1.0,
        twosided=True,
        fftengine="numpy",
        saveGt=True,
        conj=False,
        usematmul=False,
        prescaled=False,
        base_comm=None,
    ):
        if twosided and nt % 2 == 0:
            raise InputError(f"nt must be odd number if twosided, not {nt}")
        options = {"usematmul": usematmul, "comm": communicator(base_comm)}
        native = MDC(G, nt, nv, nfreq, dt, dr, twosided, saveGt, conj, prescaled, **options)
        self.dims, self.dimsd = native.dims, native.dimsd
        return _OfRealPart(native.flat)


class _OfRealPart(LinearOperator):
    """A real operator applied to the real parts of complex arrays; its results have an imaginary part of zero."""

    clinear = False

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__(operator.domain, operator.range, np.result_type(operator.dtype, np.complex64), operator.comm)
        self.operator = operator
        self.capturable = operator.capturable
        self._buffers = Buffers()

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._apply_to_real(self.operator._forward, x, self._new(self.range, x) if out is None else out)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._apply_to_real(self.operator._adjoint, y, self._new(self.domain, y) if out is None else out)

    def _apply_to_real(self, apply: Callable[[Array, Array | None], Array], source: Array, out: Array) -> Array:
        dtype = source.local_array.real.dtype
        real = self._buffers.get(("real", source.layout), source.layout, source, dtype)
        real.local_array[...] = source.local_array.real
        result = apply(real, self._buffers.get(("result", out.layout), out.layout, out, dtype))
        out.local_array[...] = result.local_array
        return out
