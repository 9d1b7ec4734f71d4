"""HStack: local operators side by side, whose results are added up over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from collops.array import Layout
from collops.comm import Communicator, world
from collops.operators.base import LinearOperator
from collops.operators.rank_parts import Collect, Spread, gather_parts, shape_of_copies

__all__ = ["HStack"]


class HStack(LinearOperator):
    """Operators side by side, spread over the ranks: :math:`y = A_0 x_0 + A_1 x_1 + …`.

    The mirror of :class:`VStack`: the model is split, each rank holding the part that its own operators read; the data
    are replicated. Forward sends one allreduce of the data. Adjoint sends nothing.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    ops : iterable of operators
        Those of this rank, possibly none, each anything that :func:`collops.operators.lift_local` takes.
    comm : Communicator, optional
        The ranks; the world by default.
    dims : sequence of int, optional
        Shape of the data; 1-D by default.
    mask : sequence of int, optional
        Group number of each rank. Each group has data of its own, summed within the group.

    Raises
    ------
    LayoutError
        On every rank, if the numbers of rows differ.
    UnsupportedTypeError
        On every rank, if an operator cannot be used.
    """

    def __init__(
        self,
        ops: Iterable[Any],
        comm: Communicator | None = None,
        *,
        dims: Sequence[int] | int | None = None,
        mask: Sequence[int] | None = None,
    ) -> None:
        comm = world() if comm is None else comm
        parts = gather_parts(ops, comm)
        shape = shape_of_copies("HStack", "rows", parts.heights, dims)
        copies = Layout.replicated(shape, comm.size, mask=mask)
        super().__init__(
            Layout.split((sum(parts.columns),), comm.size, sizes=parts.columns, mask=mask),
            copies,
            parts.dtype,
            comm,
        )
        self.operators = parts.operators
        self.capturable = parts.capturable
        columns = [op.shape[1] for op in self.operators]
        self._spread = Spread([op.adjoint_local for op in self.operators], columns)
        self._collect = Collect([op.forward_local for op in self.operators], columns, copies, comm)

    def _forward(self, x: Any, out: Any) -> Any:
        return self._collect(x, self._new(self.range, x) if out is None else out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._spread(y, self._new(self.domain, y) if out is None else out)
