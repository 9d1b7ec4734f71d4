"""PyLops-MPI's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._native import communicator
from collops.compat.pylops_mpi.StackedLinearOperator import MPIStackedLinearOperator
from collops.operators.derivatives import Gradient

__all__ = ["MPIGradient"]


class MPIGradient(MPIStackedLinearOperator):
    """First derivatives along all axes, stacked; see :class:`collops.operators.derivatives.Gradient`. Collective.

    Parameters
    ----------
    dims : sequence of int
        Shape of the array whose rows are split over the ranks.
    sampling : float or sequence of float
        Sampling steps.
    edge : bool
        Whether to take one-sided differences at the ends; centred ones only.
    kind : str
        ``"forward"``, ``"centered"`` or ``"backward"``.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype
        Element type.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> G = pylops_mpi.MPIGradient((4, 3))
    >>> G.shape
    (24, 12)
    """

    def __init__(
        self,
        dims: int | Sequence[int],
        sampling: float | Sequence[float] = 1,
        edge: bool = False,
        kind: str = "centered",
        base_comm: Any = None,
        dtype: Any = "float64",
    ) -> None:
        super().__init__(dims=dims, dtype=np.dtype(dtype), base_comm=base_comm)
        self.sampling, self.kind, self.edge = sampling, kind, edge
        options = {"comm": communicator(base_comm), "dtype": dtype}
        self.native = Gradient(self.dims, sampling, edge, kind, **options).flat
