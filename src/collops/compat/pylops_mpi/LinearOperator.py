"""PyLops-MPI's linear operator: the class that users derive theirs from, or a local operator on copies."""

from __future__ import annotations

from typing import Any

from collops.compat.pylops_mpi._array import Partition
from collops.compat.pylops_mpi._native import OnCopies, communicator
from collops.compat.pylops_mpi._operator import Operator

__all__ = ["MPILinearOperator", "asmpilinearoperator"]


class MPILinearOperator(Operator):
    """A linear operator on distributed arrays.

    Parameters
    ----------
    Op : pylops.LinearOperator, optional
        A local operator, equal on all ranks, which each applies to its copy of a vector.
    shape : tuple of int, optional
        Numbers of rows and columns; by default those of `Op`, or by `dims` and `dimsd`.
    dims, dimsd : tuple of int, optional
        Shapes of model and data.
    dtype : dtype, optional
        Element type.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks; ``MPI.COMM_WORLD`` by default.

    Notes
    -----
    Derived classes implement ``_matvec(x)`` and ``_rmatvec(x)``.

    Examples
    --------
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Identity(2)])
    >>> isinstance(A, pylops_mpi.MPILinearOperator), isinstance(A.H @ A, pylops_mpi.MPILinearOperator)
    (True, True)
    """

    def __init__(
        self,
        Op: Any = None,
        shape: tuple[int, int] | None = None,
        dims: Any = None,
        dimsd: Any = None,
        dtype: Any = None,
        base_comm: Any = None,
    ) -> None:
        self.Op = Op
        self.base_comm = base_comm
        self.dtype = dtype
        if Op is not None:
            self.native = OnCopies(Op, communicator(base_comm))
            self.partitions = (Partition.BROADCAST, Partition.BROADCAST)
            self.dtype = Op.dtype if dtype is None else dtype
            dims = getattr(Op, "dims", None) if dims is None else dims
            dimsd = getattr(Op, "dimsd", None) if dimsd is None else dimsd
            shape = Op.shape if shape is None else shape
        if dims is not None:
            self.dims = dims
        if dimsd is not None:
            self.dimsd = dimsd
        if shape is not None:
            self.shape = shape

    def _blank(self, *parts: Operator) -> Any:
        other = next((part for part in parts if not isinstance(part, MPILinearOperator)), None)
        return MPILinearOperator() if other is None else other._blank()


def asmpilinearoperator(Op: Any) -> MPILinearOperator:
    """Return a local operator, equal on all ranks, as a distributed one on copies.

    Examples
    --------
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.asmpilinearoperator(pylops.Identity(3))
    >>> x = pylops_mpi.DistributedArray(global_shape=3, partition=pylops_mpi.Partition.BROADCAST)
    >>> x[:] = 1.0
    >>> (A @ x).local_array
    array([1., 1., 1.])
    """
    return Op if isinstance(Op, MPILinearOperator) else MPILinearOperator(Op)
