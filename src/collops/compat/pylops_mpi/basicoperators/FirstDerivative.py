"""PyLops-MPI's first derivative along axis 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._native import communicator
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.operators.derivatives import FirstDerivative

__all__ = ["MPIFirstDerivative"]


class MPIFirstDerivative(MPILinearOperator):
    """First derivative along axis 0; see :class:`collops.operators.derivatives.FirstDerivative`. Collective.

    Parameters
    ----------
    dims : int or sequence of int
        Shape of the array whose rows are split over the ranks.
    sampling : float
        Sampling step.
    kind : str
        ``"forward"``, ``"centered"`` or ``"backward"``.
    edge : bool
        Whether to take one-sided differences at the ends; centred ones only.
    order : int
        3 or 5 points; centred ones only.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype
        Element type.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> x = pylops_mpi.DistributedArray(global_shape=5)
    >>> x[:] = 1.0
    >>> (pylops_mpi.MPIFirstDerivative((5,)) @ x).asarray()
    array([0., 0., 0., 0., 0.])
    """

    def __init__(
        self,
        dims: int | Sequence[int],
        sampling: float = 1.0,
        kind: str = "centered",
        edge: bool = False,
        order: int = 3,
        base_comm: Any = None,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(dims=dims, dimsd=dims, dtype=np.dtype(dtype), base_comm=base_comm)
        self.sampling, self.kind, self.edge, self.order = sampling, kind, edge, order
        options = {"comm": communicator(base_comm), "dtype": dtype}
        self.native = FirstDerivative(self.dims, 0, sampling, kind, edge, order, **options).flat
