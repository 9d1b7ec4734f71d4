"""PyLops-MPI's non-stationary convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.array import Layout
from collops.compat.pylops_mpi._native import Relabelled, communicator
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.operators.convolve import NonStationaryConvolve1D

__all__ = ["MPINonStationaryConvolve1D"]


class _Convolution(MPILinearOperator):
    """The convolution along the axis that is split; model and data are vectors of ravelled blocks."""

    def __init__(self, dims: Any, hs: Any, ih: Any, axis: int, base_comm: Any, dtype: Any) -> None:
        super().__init__(dims=dims, dimsd=dims, base_comm=base_comm, dtype=dtype)
        comm = communicator(base_comm)
        layout = Layout.split(self.dims, comm.size, axis)
        native = NonStationaryConvolve1D(layout, hs, ih, axis, comm=comm, dtype=dtype)
        sizes = [layout.local_size(rank) for rank in range(comm.size)]
        flat = Layout.split(layout.size, comm.size, sizes=sizes)
        self.native = Relabelled(native, flat, flat)


def MPINonStationaryConvolve1D(
    dims: int | Sequence[int],
    hs: Any,
    ih: Sequence[int] | np.ndarray,
    axis: int = -1,
    base_comm: Any = None,
    dtype: Any = "float64",
) -> MPILinearOperator:
    """Return the convolution with filters that vary along `axis`, which is split. Collective.

    See :class:`collops.operators.NonStationaryConvolve1D`, which splits any axes.

    Parameters
    ----------
    dims : int or sequence of int
        Shape of model and data.
    hs : array, 2-D
        The filters, equal on all ranks.
    ih : sequence of int
        Where they are.
    axis : int
        The axis of the convolution.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype
        Element type.

    Raises
    ------
    ValueError
        If filters have an even number of samples, or `ih` is not regular or outside.
    """
    return _Convolution(dims, hs, ih, axis, base_comm, dtype)
