"""PyLops-MPI's Laplacian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._native import communicator
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.operators.derivatives import Laplacian

__all__ = ["MPILaplacian"]


class MPILaplacian(MPILinearOperator):
    """Weighted sum of second derivatives; see :class:`collops.operators.derivatives.Laplacian`. Collective.

    Parameters
    ----------
    dims : sequence of int
        Shape of the array whose rows are split over the ranks.
    axes : sequence of int
        Along which axes.
    weights, sampling : sequence of float
        Of each axis.
    edge : bool
        Whether to take one-sided differences at the ends; centred ones only.
    kind : str
        ``"forward"``, ``"centered"`` or ``"backward"``.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype
        Element type.

    Raises
    ------
    ValueError
        If `axes`, `weights` and `sampling` do not have the same length.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> pylops_mpi.MPILaplacian((4, 3)).shape
    (12, 12)
    """

    def __init__(
        self,
        dims: Sequence[int],
        axes: Sequence[int] = (-2, -1),
        weights: Sequence[float] = (1, 1),
        sampling: Sequence[float] = (1, 1),
        edge: bool = False,
        kind: str = "centered",
        base_comm: Any = None,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(dims=dims, dimsd=dims, dtype=np.dtype(dtype), base_comm=base_comm)
        self.axes, self.weights, self.sampling, self.kind, self.edge = axes, weights, sampling, kind, edge
        options = {"comm": communicator(base_comm), "dtype": dtype}
        self.native = Laplacian(self.dims, axes, weights, sampling, edge, kind, **options).flat
