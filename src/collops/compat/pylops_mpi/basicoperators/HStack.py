"""PyLops-MPI's horizontal stack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collops.compat.pylops_mpi._array import Partition
from collops.compat.pylops_mpi._local_stack import LocalStack
from collops.operators import HStack

__all__ = ["MPIHStack"]


class MPIHStack(LocalStack):
    """Local operators side by side, each rank bringing its own. Collective; see :class:`collops.HStack`.

    Parameters
    ----------
    ops : list of pylops.LinearOperator
        This rank's operators.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype, optional
        Element type.

    Raises
    ------
    ValueError
        On every rank, if the numbers of rows differ.

    Examples
    --------
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIHStack([pylops.Identity(2)])
    >>> x = pylops_mpi.DistributedArray(global_shape=A.shape[1])
    >>> x[:] = 1.0
    >>> (A @ x).partition.name
    'BROADCAST'
    """

    partitions = (Partition.SCATTER, Partition.BROADCAST)

    def __init__(self, ops: Iterable[Any], base_comm: Any = None, dtype: Any = None) -> None:
        super().__init__(HStack, ops, base_comm, dtype)
