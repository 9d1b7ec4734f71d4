"""PyLops-MPI's block-diagonal operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from collops.compat.pylops_mpi._local_stack import LocalStack
from collops.compat.pylops_mpi._operator import Operator
from collops.compat.pylops_mpi._stacked_array import StackedDistributedArray
from collops.compat.pylops_mpi.StackedLinearOperator import MPIStackedLinearOperator
from collops.operators import BlockDiag, StackedBlockDiag

__all__ = ["MPIBlockDiag", "MPIStackedBlockDiag"]


class MPIBlockDiag(LocalStack):
    """Local operators along the diagonal, each rank bringing its own. Collective; see :class:`collops.BlockDiag`.

    Parameters
    ----------
    ops : list of pylops.LinearOperator
        This rank's operators.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    mask : list of int, optional
        Group number of each rank.
    dtype : dtype, optional
        Element type.

    Examples
    --------
    >>> import numpy as np
    >>> import pylops
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIBlockDiag([pylops.Diagonal(np.array([1.0, 2.0]))])
    >>> x = pylops_mpi.DistributedArray(global_shape=A.shape[1])
    >>> x[:] = 1.0
    >>> (A @ x).local_array
    array([1., 2.])
    """

    def __init__(
        self, ops: Iterable[Any], base_comm: Any = None, mask: Sequence[int] | None = None, dtype: Any = None
    ) -> None:
        self.mask = mask
        super().__init__(partial(BlockDiag, mask=mask), ops, base_comm, dtype)


class MPIStackedBlockDiag(MPIStackedLinearOperator):
    """Distributed operators along the diagonal; see :class:`collops.StackedBlockDiag`.

    Parameters
    ----------
    ops : list of MPILinearOperator
        The operators.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype, optional
        Element type.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> L = pylops_mpi.MPILaplacian((4, 3))
    >>> pylops_mpi.MPIStackedBlockDiag([L, L]).shape
    (24, 24)
    """

    def __init__(self, ops: Sequence[Operator], base_comm: Any = None, dtype: Any = None) -> None:
        super().__init__(base_comm=base_comm)
        self.ops = list(ops)
        self.shape = tuple(sum(op.shape[side] for op in self.ops) for side in (0, 1))
        natives = [native for op in self.ops if (native := op.settled()) is not None]
        if len(natives) == len(self.ops):
            self.native = StackedBlockDiag(natives)
        self.dtype = np.result_type(*(op.dtype for op in self.ops)) if dtype is None else dtype

    def _matvec(self, x: Any) -> Any:
        if self.native is not None:
            return super()._matvec(x)
        return StackedDistributedArray([op.matvec(part) for op, part in zip(self.ops, x.distarrays, strict=True)])

    def _rmatvec(self, x: Any) -> Any:
        if self.native is not None:
            return super()._rmatvec(x)
        return StackedDistributedArray([op.rmatvec(part) for op, part in zip(self.ops, x.distarrays, strict=True)])
