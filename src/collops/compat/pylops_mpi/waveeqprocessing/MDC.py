"""PyLops-MPI's multi-dimensional convolution, whose vectors are complex although its wavefields are real."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.compat.pylops_mpi._array import Partition
from collops.compat.pylops_mpi._native import communicator
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.operators import LinearOperator
from collops.operators.base import Buffers
from collops.operators.mdc import MDC

__all__ = ["MPIMDC"]


class _OfRealPart(LinearOperator):
    """A real operator on the real parts of complex arrays; imaginary parts of results are zero.

    Parameters
    ----------
    operator : LinearOperator
        Of real arrays.
    """

    clinear = False

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__(operator.domain, operator.range, np.result_type(operator.dtype, np.complex64), operator.comm)
        self.operator = operator
        self.capturable = operator.capturable
        self._buffers = Buffers()

    def _forward(self, x: Any, out: Any) -> Any:
        return self._applied(self.operator._forward, x, self._new(self.range, x) if out is None else out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._applied(self.operator._adjoint, y, self._new(self.domain, y) if out is None else out)

    def _applied(self, apply: Any, given: Any, out: Any) -> Any:
        dtype = given.local_array.real.dtype
        real = self._buffers.get(("real", given.layout), given.layout, given, dtype)
        real.local_array[...] = given.local_array.real
        out.local_array[...] = apply(
            real, self._buffers.get(("result", out.layout), out.layout, out, dtype)
        ).local_array
        return out


class _Convolution(MPILinearOperator):
    """The convolution between copies of ravelled wavefields."""

    partitions = (Partition.BROADCAST, Partition.BROADCAST)

    def __init__(self, native: MDC, base_comm: Any) -> None:
        super().__init__(dims=native.dims, dimsd=native.dimsd, base_comm=base_comm)
        self.native = _OfRealPart(native.flat)
        self.dtype = self.native.dtype


def MPIMDC(
    G: Any,
    nt: int,
    nv: int,
    nfreq: int,
    dt: float = 1.0,
    dr: float = 1.0,
    twosided: bool = True,
    fftengine: str = "numpy",
    saveGt: bool = True,
    conj: bool = False,
    usematmul: bool = False,
    prescaled: bool = False,
    base_comm: Any = None,
) -> MPILinearOperator:
    """Return the convolution with a kernel whose frequencies are spread over the ranks. Collective.

    Model and data are copies; see :class:`collops.operators.MDC`, where they are real, and can be split.

    Parameters
    ----------
    G : array, 3-D
        Spectra of the kernel, this rank's frequencies.
    nt : int
        Samples in time; with `twosided` of both halves together, an odd number.
    nv : int
        Number of virtual sources.
    nfreq : int
        Frequencies of all ranks together.
    dt, dr : float
        Sampling of time and of receivers.
    twosided : bool
        Whether the model has negative times too.
    fftengine : str
        Of no effect: there is one.
    saveGt, usematmul : bool
        See :class:`collops.operators.Fredholm1`.
    conj : bool
        Whether to convolve with the conjugate of `G`.
    prescaled : bool
        Whether `G` is scaled already.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.

    Raises
    ------
    ValueError
        If `nt` is even and `twosided`, or `nfreq` is not the number of frequencies.
    """
    options = {"usematmul": usematmul, "comm": communicator(base_comm)}
    return _Convolution(MDC(G, nt, nv, nfreq, dt, dr, twosided, saveGt, conj, prescaled, **options), base_comm)
