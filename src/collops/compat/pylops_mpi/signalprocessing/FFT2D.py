"""PyLops-MPI's Fourier transform along two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collops.compat.pylops_mpi.signalprocessing.FFTND import MPIFFTND
from collops.errors import InputError

__all__ = ["MPIFFT2D"]


class MPIFFT2D(MPIFFTND):
    """Two-dimensional Fourier transform. Collective.

    Parameters
    ----------
    dims : sequence of int
        Shape of the model, two axes at least.
    axes : sequence of int
        Two axes to transform.
    sampling, norm, real, ifftshift_before, fftshift_after, dtype, base_comm
        As for :class:`MPIFFTND`.

    Raises
    ------
    ValueError
        If `dims` has less than two axes, `axes` not two, or `norm` is none of its values.
    """

    def __init__(
        self,
        dims: Sequence[int],
        axes: Sequence[int] = (0, 1),
        sampling: float | Sequence[float] = 1.0,
        norm: str = "none",
        real: bool = False,
        ifftshift_before: Any = False,
        fftshift_after: Any = False,
        dtype: Any = "complex128",
        base_comm: Any = None,
    ) -> None:
        if len(dims) < 2 or len(axes) != 2:
            raise InputError(f"a transform along two axes of two at least, not along {axes} of {dims}")
        super().__init__(dims, axes, sampling, norm, real, ifftshift_before, fftshift_after, dtype, base_comm)
        self.f1, self.f2 = self.fs
