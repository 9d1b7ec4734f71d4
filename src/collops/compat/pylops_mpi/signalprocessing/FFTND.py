"""PyLops-MPI's Fourier transform along any axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._native import brought, communicator
from collops.compat.pylops_mpi._stacked_array import wrapped
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.errors import InputError
from collops.operators.fourier import FFTND

__all__ = ["MPIFFTND"]


class MPIFFTND(MPILinearOperator):
    """N-dimensional Fourier transform; see :class:`collops.operators.FFTND`. Collective.

    Model and data are vectors of ravelled arrays whose first axis is split.

    Parameters
    ----------
    dims : sequence of int
        Shape of the model.
    axes : sequence of int
        Axes to transform.
    sampling : float or sequence of float
        Sampling steps along them.
    norm : {"none", "1/n"}
        Scaling of both forward and adjoint: none, or by the inverse of the number of samples.
    real : bool
        Whether the model is real; the last of `axes` then has the frequencies that are not negative.
    ifftshift_before, fftshift_after : bool or sequence of bool
        Whether model or data have their zero in the middle.
    dtype : dtype
        Of the model.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.

    Raises
    ------
    ValueError
        If `norm` is none of these.
    """

    def __init__(
        self,
        dims: Sequence[int],
        axes: Sequence[int] = (0, 1, 2),
        sampling: float | Sequence[float] = 1.0,
        norm: str = "none",
        real: bool = False,
        ifftshift_before: Any = False,
        fftshift_after: Any = False,
        dtype: Any = "complex128",
        base_comm: Any = None,
    ) -> None:
        if norm not in ("none", "1/n"):
            raise InputError(f"norm must be 'none' or '1/n', not {norm!r}")
        super().__init__(dims=dims, base_comm=base_comm)
        transform = FFTND(
            self.dims,
            axes,
            sampling=sampling,
            norm=norm,
            real=real,
            ifftshift_before=ifftshift_before,
            fftshift_after=fftshift_after,
            dtype=dtype,
            comm=communicator(base_comm),
            range_layout="domain",
        )
        self.dimsd = transform.dimsd
        self.native = self._transform = transform.flat
        self.dtype = self.cdtype = transform.cdtype
        self.rdtype, self.clinear, self.real, self.norm = transform.rdtype, transform.clinear, real, norm
        self.axes, self.nffts, self.sampling, self.fs = (
            transform.axes,
            transform.nffts,
            transform.sampling,
            transform.fs,
        )

    def __truediv__(self, y: Any) -> Any:
        """Apply the inverse. Collective."""
        samples = float(np.prod(self.nffts))
        found = self._transform.adjoint(brought(y.native, self._transform.range))
        found *= 1 / samples if self.norm == "none" else samples
        return wrapped(found, y)
