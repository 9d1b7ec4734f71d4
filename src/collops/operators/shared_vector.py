"""What VStack and HStack have in common: local operators of which one side is a vector that all ranks hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from collops.array import Layout
from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.operators.base import LinearOperator
from collops.operators.rank_parts import Collect, Spread, gather_parts, shape_of_copies

__all__ = ["SharedVectorStack"]


class SharedVectorStack(LinearOperator):
    """Operators spread over the ranks, all with the same vector on one side, and each with its own piece on the other.

    From the shared vector to the pieces nothing is sent; towards it the ranks' results are added up by one allreduce.
    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    ops : iterable of operators
        Those of this rank, possibly none, each anything that :func:`collops.operators.lift_local` takes.
    comm : Communicator, optional
        The ranks; the world by default.
    dims : sequence of int, optional
        Shape of the shared vector, so that images keep theirs; 1-D by default.
    mask : sequence of int, optional
        Group number of each rank. Each group has a shared vector of its own, summed within the group.

    Raises
    ------
    LayoutError
        On every rank, if the operators' extents on the shared side differ.
    UnsupportedTypeError
        On every rank, if an operator cannot be used.
    """

    shares_domain: ClassVar[bool]

    def __init__(
        self,
        ops: Iterable[Any],
        comm: Communicator | None = None,
        *,
        dims: Sequence[int] | int | None = None,
        mask: Sequence[int] | None = None,
    ) -> None:
        comm = communicator_or_world(comm)
        parts = gather_parts(ops, comm)
        extents, lengths = (parts.widths, parts.rows) if self.shares_domain else (parts.heights, parts.columns)
        what = "columns" if self.shares_domain else "rows"
        shape = shape_of_copies(type(self).__name__, what, extents, dims)
        copies = Layout.replicated(shape, comm.size, mask=mask)
        pieces = Layout.split((sum(lengths),), comm.size, sizes=lengths, mask=mask)
        domain, range = (copies, pieces) if self.shares_domain else (pieces, copies)
        super().__init__(domain, range, parts.dtype, comm)
        self.operators = parts.operators
        self.capturable = parts.capturable
        self.clinear = parts.clinear
        forwards = [op.forward_local for op in self.operators]
        adjoints = [op.adjoint_local for op in self.operators]
        if self.shares_domain:
            mine = [op.shape[0] for op in self.operators]
            self._to_range = Spread(forwards, mine, copies, comm)
            self._to_domain = Collect(adjoints, mine, copies, comm)
        else:
            mine = [op.shape[1] for op in self.operators]
            self._to_range = Collect(forwards, mine, copies, comm)
            self._to_domain = Spread(adjoints, mine, copies, comm)

    def _forward(self, x: Any, out: Any) -> Any:
        return self._to_range(x, self._new(self.range, x) if out is None else out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._to_domain(y, self._new(self.domain, y) if out is None else out)
