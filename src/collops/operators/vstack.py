"""VStack: local operators on top of each other, which all read the same vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from collops.array import Layout
from collops.comm import Communicator, world
from collops.operators.base import LinearOperator
from collops.operators.rank_parts import Collect, Spread, gather_parts, shape_of_copies

__all__ = ["VStack"]


class VStack(LinearOperator):
    """Operators on top of each other, spread over the ranks: :math:`y = [A_0 x; A_1 x; …]`.

    Every rank brings any number of operators, none included. The model is replicated; the data are split, each rank
    holding the rows of its own operators. Forward sends nothing. Adjoint sends one allreduce of the model.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    ops : iterable of operators
        Those of this rank, each anything that :func:`collops.operators.lift_local` takes.
    comm : Communicator, optional
        The ranks; the world by default.
    dims : sequence of int, optional
        Shape of the model, so that images keep theirs; 1-D by default.
    mask : sequence of int, optional
        Group number of each rank. Each group has a model of its own, summed within the group.

    Raises
    ------
    LayoutError
        On every rank, if the numbers of columns differ.
    UnsupportedTypeError
        On every rank, if an operator cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.operators import VStack
    >>> VStack([np.ones((3, 2)), np.eye(2)]).shape
    (5, 2)
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
        shape = shape_of_copies("VStack", "columns", parts.widths, dims)
        copies = Layout.replicated(shape, comm.size, mask=mask)
        super().__init__(
            copies,
            Layout.split((sum(parts.rows),), comm.size, sizes=parts.rows, mask=mask),
            parts.dtype,
            comm,
        )
        self.operators = parts.operators
        self.capturable = parts.capturable
        rows = [op.shape[0] for op in self.operators]
        self._spread = Spread([op.forward_local for op in self.operators], rows)
        self._collect = Collect([op.adjoint_local for op in self.operators], rows, copies, comm)

    def _forward(self, x: Any, out: Any) -> Any:
        return self._spread(x, self._new(self.range, x) if out is None else out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return self._collect(y, self._new(self.domain, y) if out is None else out)
