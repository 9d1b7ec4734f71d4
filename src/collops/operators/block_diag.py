"""BlockDiag: local operators along the diagonal, each with its own part of model and data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from collops.array import Layout
from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.operators.base import LinearOperator
from collops.operators.rank_parts import Apply, cut, flat, gather_parts

__all__ = ["BlockDiag"]


class BlockDiag(LinearOperator):
    """Operators along the diagonal, spread over the ranks: :math:`y = [A_0 x_0; A_1 x_1; …]`.

    Model and data are split alike, each rank holding what belongs to its own operators. Neither forward nor adjoint
    sends anything.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    ops : iterable of operators
        Those of this rank, possibly none, each anything that :func:`collops.operators.lift_local` takes.
    comm : Communicator, optional
        The ranks; the world by default.
    mask : sequence of int, optional
        Group number of each rank, for the reductions of model and data.

    Raises
    ------
    UnsupportedTypeError
        On every rank, if an operator cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> comm = collops.world()
    >>> A = collops.BlockDiag([np.full((2, 2), 1.0)], comm)
    >>> (A @ collops.ones(A.domain)).gather()[:2]
    array([2., 2.])
    """

    def __init__(
        self, ops: Iterable[Any], comm: Communicator | None = None, *, mask: Sequence[int] | None = None
    ) -> None:
        comm = communicator_or_world(comm)
        parts = gather_parts(ops, comm)
        super().__init__(
            Layout.split((sum(parts.columns),), comm.size, sizes=parts.columns, mask=mask),
            Layout.split((sum(parts.rows),), comm.size, sizes=parts.rows, mask=mask),
            parts.dtype,
            comm,
        )
        self.operators = parts.operators
        self.capturable = parts.capturable
        self.clinear = parts.clinear
        rows = cut(op.shape[0] for op in self.operators)
        columns = cut(op.shape[1] for op in self.operators)
        self._forward_blocks = [
            (op.forward_local, column, row) for op, column, row in zip(self.operators, columns, rows, strict=True)
        ]
        self._adjoint_blocks = [
            (op.adjoint_local, row, column) for op, column, row in zip(self.operators, columns, rows, strict=True)
        ]

    def _forward(self, x: Any, out: Any) -> Any:
        return _apply(self._forward_blocks, x, self._new(self.range, x) if out is None else out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return _apply(self._adjoint_blocks, y, self._new(self.domain, y) if out is None else out)


def _apply(blocks: Sequence[tuple[Apply, slice, slice]], source: Any, target: Any) -> Any:
    given, wanted = flat(source.local_array), target.local_array
    for apply, read, write in blocks:
        apply(given[read], wanted[write])
    return target
