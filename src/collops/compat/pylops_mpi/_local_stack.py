"""Stacks of local operators: what MPIBlockDiag, MPIVStack and MPIHStack have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from collops.comm import Communicator
from collops.compat.pylops_mpi._native import communicator
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.operators import LinearOperator

__all__ = ["LocalStack", "ranks_may_be_gone"]

_gone: set[str] = set()


def ranks_may_be_gone() -> None:
    """Note that a program has left ranks out of a process grid: they may never come to another collective call."""
    _gone.add("grid")


class LocalStack(MPILinearOperator):
    """A stack of local operators, each rank bringing its own. Collective.

    Where a process grid has left ranks out, and no communicator is named, the ranks are those of the operator or the
    array that the stack first meets: PyLops-MPI waits for all ranks of the world then, for ever.

    Parameters
    ----------
    make : callable
        ``make(ops, comm)`` returns the native stack.
    ops : iterable of operators
        This rank's.
    base_comm : mpi4py.MPI.Comm or None
        The ranks.
    dtype : dtype or None
        Of the results, at least; by default the operators' common one.
    """

    def __init__(
        self, make: Callable[[Any, Communicator], LinearOperator], ops: Iterable[Any], base_comm: Any, dtype: Any
    ) -> None:
        super().__init__(dtype=dtype, base_comm=base_comm)
        self.ops = list(ops)
        self._make = make
        if base_comm is not None or not _gone:
            self._settle(communicator(base_comm))

    def _settle(self, comm: Communicator | None) -> None:
        if self.native is not None:
            return
        self.native = self._make(self.ops, communicator(None) if comm is None else comm)
        if self.dtype is not None:
            self.native.dtype = np.result_type(self.native.dtype, self.dtype)
        self.dtype = self.native.dtype
