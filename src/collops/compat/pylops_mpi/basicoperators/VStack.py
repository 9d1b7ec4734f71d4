"""PyLops-MPI's vertical stacks."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._array import Partition
from collops.compat.pylops_mpi._local_stack import LocalStack
from collops.compat.pylops_mpi._native import between
from collops.compat.pylops_mpi._operator import Operator
from collops.compat.pylops_mpi._stacked_array import StackedDistributedArray
from collops.compat.pylops_mpi.StackedLinearOperator import MPIStackedLinearOperator
from collops.errors import LayoutError
from collops.operators import StackedVStack, VStack

__all__ = ["MPIStackedVStack", "MPIVStack"]


class MPIVStack(LocalStack):
    """Local operators on top of each other, each rank bringing its own. Collective; see :class:`collops.VStack`.

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
        On every rank, if the numbers of columns differ.

    Examples
    --------
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIVStack([pylops.Identity(2)])
    >>> x = pylops_mpi.DistributedArray(global_shape=2, partition=pylops_mpi.Partition.BROADCAST)
    >>> x[:] = 1.0
    >>> (A @ x).local_array
    array([1., 1.])
    """

    partitions = (Partition.BROADCAST, Partition.SCATTER)

    def __init__(self, ops: Iterable[Any], base_comm: Any = None, dtype: Any = None) -> None:
        super().__init__(VStack, ops, base_comm, dtype)


class MPIStackedVStack(MPIStackedLinearOperator):
    """Distributed operators on top of each other; see :class:`collops.StackedVStack`.

    Parameters
    ----------
    ops : list of MPILinearOperator
        The operators. Their model is held as the first one wants it.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype, optional
        Element type.

    Raises
    ------
    ValueError
        If the numbers of columns differ.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> L = pylops_mpi.MPILaplacian((4, 3))
    >>> pylops_mpi.MPIStackedVStack([L, 0.1 * L]).shape
    (24, 12)
    """

    def __init__(self, ops: Sequence[Operator], base_comm: Any = None, dtype: Any = None) -> None:
        super().__init__(base_comm=base_comm)
        self.ops = list(ops)
        if len({op.shape[1] for op in self.ops}) > 1:
            raise LayoutError(f"operators with different numbers of columns cannot be stacked: {self.ops}")
        self.shape = (sum(op.shape[0] for op in self.ops), self.ops[0].shape[1])
        natives = [native for op in self.ops if (native := op.settled()) is not None]
        if len(natives) == len(self.ops):
            self.native = StackedVStack([between(op, natives[0].domain, op.range) for op in natives])
        self.partitions = (self.ops[0].partitions[0], Partition.SCATTER)
        self.dtype = np.result_type(*(op.dtype for op in self.ops)) if dtype is None else dtype

    def _matvec(self, x: Any) -> Any:
        if self.native is not None:
            return super()._matvec(x)
        return StackedDistributedArray([op.matvec(x) for op in self.ops])

    def _rmatvec(self, x: Any) -> Any:
        if self.native is not None:
            return super()._rmatvec(x)
        return reduce(operator.add, [op.rmatvec(part) for op, part in zip(self.ops, x.distarrays, strict=True)])
