"""PyLops-MPI's Fredholm integral of the first kind."""

from __future__ import annotations

from typing import Any

from collops.compat.pylops_mpi._array import Partition
from collops.compat.pylops_mpi._native import communicator
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.operators import Fredholm1

__all__ = ["MPIFredholm1"]


class MPIFredholm1(MPILinearOperator):
    """A matrix product for every slice, slices being spread over the ranks. Collective.

    Model and data are copies; see :class:`collops.operators.Fredholm1`, where they can be split, which sends nothing.

    Parameters
    ----------
    G : array, 3-D
        The slices of this rank.
    nz : int
        Columns that each matrix is applied to.
    saveGt, usematmul : bool
        Whether to store conjugate transposes, and to apply all slices by one call.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype
        Element type.
    """

    partitions = (Partition.BROADCAST, Partition.BROADCAST)

    def __init__(
        self,
        G: Any,
        nz: int = 1,
        saveGt: bool = False,
        usematmul: bool = True,
        base_comm: Any = None,
        dtype: Any = "float64",
    ) -> None:
        super().__init__(base_comm=base_comm, dtype=dtype)
        options = {"model": "replicated", "data": "replicated", "comm": communicator(base_comm)}
        native = Fredholm1(G, nz, saveGt, usematmul, **options)
        self.G, self.nz, self.usematmul = G, nz, usematmul
        self.dims, self.dimsd = native.dims, native.dimsd
        self.native = native.flat
