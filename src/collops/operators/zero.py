"""Zero: the operator that returns nothing but zeros."""

from __future__ import annotations

from typing import Any

from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.operators.base import LinearOperator
from collops.operators.dims import Dims, as_layout

__all__ = ["Zero"]


class Zero(LinearOperator):
    """Zero data for every model, and a zero model for all data. No messages.

    Parameters
    ----------
    N : Layout, int or sequence of int
        The data; a shape is split along axis 0.
    M : Layout, int or sequence of int, optional
        The model; equal to the data by default.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Of the operator.

    Examples
    --------
    >>> import collops
    >>> Z = collops.Zero(3, 2)
    >>> Z.shape, float((Z @ collops.ones(Z.domain)).norm())
    ((3, 2), 0.0)
    """

    def __init__(
        self, N: Dims, M: Dims | None = None, *, comm: Communicator | None = None, dtype: Any = "float64"
    ) -> None:
        comm = communicator_or_world(comm)
        super().__init__(as_layout(N if M is None else M, comm), as_layout(N, comm), dtype, comm)

    def _forward(self, x: Any, out: Any) -> Any:
        return _zeroed(self._new(self.range, x) if out is None else out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return _zeroed(self._new(self.domain, y) if out is None else out)


def _zeroed(target: Any) -> Any:
    target.local_array.fill(0)
    return target
