"""PyLops-MPI's second derivative along axis 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._native import communicator
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.operators.derivatives import SecondDerivative

__all__ = ["MPISecondDerivative"]


class MPISecondDerivative(MPILinearOperator):
    """Second derivative along axis 0; see :class:`collops.operators.derivatives.SecondDerivative`. Collective.

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
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype
        Element type.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> pylops_mpi.MPISecondDerivative((4, 3)).shape
    (12, 12)
    """

    def __init__(
        self,
        dims: int | Sequence[int],
        sampling: float = 1.0,
        kind: str = "centered",
        edge: bool = False,
        base_comm: Any = None,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(dims=dims, dimsd=dims, dtype=np.dtype(dtype), base_comm=base_comm)
        self.sampling, self.kind, self.edge = sampling, kind, edge
        options = {"comm": communicator(base_comm), "dtype": dtype}
        self.native = SecondDerivative(self.dims, 0, sampling, kind, edge, **options).flat
