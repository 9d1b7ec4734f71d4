"""Stacks of local operators, spread over the ranks: vertical, horizontal and diagonal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collops.array import Layout
from collops.array.layout_arguments import as_shape
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.comm.given import communicator_or_world
from collops.errors import InputError, LayoutError
from collops.operators.base import LinearOperator
from collops.operators.local import LocalOperator, lift_local
from collops.operators.memory import Scratch, filled, store, writable

__all__ = ["BlockDiag", "HStack", "VStack"]


class _Block(NamedTuple):
    """A local operator, the slice of a vector that it reads, and the slice that it computes."""

    apply: Callable[[Any, Any], Any]
    read: slice
    write: slice


class BlockDiag(LinearOperator):
    """Operators along the diagonal, spread over the ranks: :math:`y = [A_0 x_0; A_1 x_1; …]`.

    Model and data are split in the same way: each rank holds the parts of its own operators. Forward and adjoint send
    no messages.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    ops : iterable of operators
        Operators of this rank, possibly none; each anything that :func:`collops.operators.lift_local` takes.
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
        parts = _RankParts(ops, comm)
        super().__init__(
            Layout.split((sum(parts.columns),), comm.size, sizes=parts.columns, mask=mask),
            Layout.split((sum(parts.rows),), comm.size, sizes=parts.rows, mask=mask),
            parts.dtype,
            comm,
        )
        self.operators, self.capturable, self.clinear = parts.operators, parts.capturable, parts.clinear
        rows, columns = (_cut(op.shape[axis] for op in self.operators) for axis in (0, 1))
        places = list(zip(self.operators, rows, columns, strict=True))
        self._forward_blocks = [_Block(op.forward_local, column, row) for op, row, column in places]
        self._adjoint_blocks = [_Block(op.adjoint_local, row, column) for op, row, column in places]

    def _forward(self, x: Any, out: Any) -> Any:
        out = self._new(self.range, x) if out is None else out
        return filled(out, _pieces(self._forward_blocks, x.local_array.ravel(), writable(out), x.engine.xp))

    def _adjoint(self, y: Any, out: Any) -> Any:
        out = self._new(self.domain, y) if out is None else out
        return filled(out, _pieces(self._adjoint_blocks, y.local_array.ravel(), writable(out), y.engine.xp))


class _SharedVectorStack(LinearOperator):
    """Operators spread over the ranks that share one vector, on one side; on the other, each has its own piece.

    From the shared vector to the pieces no message is sent; in the other direction one allreduce adds up the results
    of all ranks. Parameters and exceptions are those of :class:`VStack`.
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
        parts = _RankParts(ops, comm)
        own, lengths = (0, parts.rows) if self.shares_domain else (1, parts.columns)
        shape = self._shape_of_copies(parts.extents[1 - own], dims)
        copies = Layout.replicated(shape, comm.size, mask=mask)
        pieces = Layout.split((sum(lengths),), comm.size, sizes=lengths, mask=mask)
        domain, range = (copies, pieces) if self.shares_domain else (pieces, copies)
        super().__init__(domain, range, parts.dtype, comm)
        self.operators, self.capturable, self.clinear = parts.operators, parts.capturable, parts.clinear
        spreads = [op.forward_local if self.shares_domain else op.adjoint_local for op in self.operators]
        collects = [op.adjoint_local if self.shares_domain else op.forward_local for op in self.operators]
        cuts = _cut(op.shape[own] for op in self.operators)
        self._size = math.prod(shape)
        whole = slice(0, self._size)
        self._to_pieces = [_Block(apply, whole, piece) for apply, piece in zip(spreads, cuts, strict=True)]
        self._to_copies = [_Block(apply, piece, whole) for apply, piece in zip(collects, cuts, strict=True)]
        self._group = comm if copies.mask is None else comm.subgroup(copies.mask)
        self._scratch = Scratch()

    def _forward(self, x: Any, out: Any) -> Any:
        return (self._spread if self.shares_domain else self._collected)(x, self.range, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return (self._collected if self.shares_domain else self._spread)(y, self.domain, out)

    def _spread(self, copies: Any, layout: Any, out: Any) -> Any:
        """Apply every operator to the shared vector. No message."""
        out = self._new(layout, copies) if out is None else out
        given = copies.engine.replicated_operand(copies.local_array.ravel(), self._group)
        return filled(out, _pieces(self._to_pieces, given, writable(out), copies.engine.xp))

    def _collected(self, split: Any, layout: Any, out: Any) -> Any:
        """Apply every operator to its own piece, and add up the results of all ranks. One allreduce."""
        out = self._new(layout, split) if out is None else out
        memory = writable(out)
        flat = None if memory is None else memory.reshape(-1)  # a view: results are contiguous
        total = self._total(split.local_array.ravel(), flat, out.dtype, out.engine)
        if self._group.size > 1:
            total = self._group.allreduce(total, out=flat)
        return filled(out, memory if total is flat else total)

    def _total(self, given: Any, flat: Any, dtype: Any, engine: Any) -> Any:
        if not self._to_copies and flat is None:
            return engine.xp.zeros(self._size, dtype)
        if not self._to_copies:
            flat.fill(0)
            return flat
        first, *others = self._to_copies
        total = store(first.apply(given[first.read], flat), flat)
        for apply, read, _ in others:
            total += apply(given[read], self._scratch.get("part", total.shape, total.dtype, engine))
        return total

    def _shape_of_copies(self, extents: set[int], dims: Sequence[int] | int | None) -> tuple[int, ...]:
        """Return the shape of the shared vector, given the extents of the operators on that side."""
        name, what = type(self).__name__, "columns" if self.shares_domain else "rows"
        if len(extents) != 1:
            shown = ", ".join(str(extent) for extent in sorted(extents))
            raise LayoutError(f"{name} needs operators with one number of {what}, not {shown}")
        (extent,) = extents
        shape = (extent,) if dims is None else as_shape(dims)
        if math.prod(shape) != extent:
            raise LayoutError(f"{name}: dims {shape} have {math.prod(shape)} elements, the operators {extent} {what}")
        return shape


class VStack(_SharedVectorStack):
    """Operators on top of each other, spread over the ranks: :math:`y = [A_0 x; A_1 x; …]`.

    Each rank passes any number of operators, possibly none. The model is replicated; the data are split: each rank
    holds the rows of its own operators. Forward sends no message. Adjoint sends one allreduce of the model.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    ops, comm
        As for :class:`BlockDiag`.
    dims : sequence of int, optional
        Shape of the model; 1-D by default.
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

    shares_domain = True


class HStack(_SharedVectorStack):
    """Operators side by side, spread over the ranks: :math:`y = A_0 x_0 + A_1 x_1 + …`.

    The adjoint of a :class:`VStack`: the model is split, each rank holding the part that its own operators read; the
    data are replicated, and `dims` is their shape. The operators need equal numbers of rows. Forward sends one
    allreduce of the data. Adjoint sends no message. Parameters and exceptions are otherwise those of :class:`VStack`.

    Collective: sizes and types are exchanged once.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.operators import HStack
    >>> HStack([np.ones((2, 3)), np.eye(2)]).shape
    (2, 5)
    """

    shares_domain = False


class _RankParts:
    """The local operators of this rank, and the sizes and types of all ranks'. Collective: two metadata messages.

    ``rows`` and ``columns`` are the sums of each rank, ``extents`` the distinct numbers of rows and of columns of all
    operators; ``dtype``, ``capturable`` and ``clinear`` are common to all. Raises on every rank if an operator of any
    rank cannot be lifted, or there is no operator at all.
    """

    def __init__(self, ops: Iterable[Any], comm: Communicator) -> None:
        with collective_errors(comm):
            self.operators: tuple[LocalOperator, ...] = tuple(
                lift_local(op) for op in ([ops] if hasattr(ops, "shape") else ops)
            )
        mine = [
            [
                *(int(op.shape[0]), int(op.shape[1]), np.dtype(op.dtype).name),
                *(bool(getattr(op, "capturable", True)), bool(getattr(op, "clinear", True))),
            ]
            for op in self.operators
        ]
        ranks = comm.allgather_metadata(mine)
        every = [entry for entries in ranks for entry in entries]
        if not every:
            raise InputError("no rank has a local operator; a stack needs at least one")
        self.rows, self.columns = (tuple(sum(entry[axis] for entry in entries) for entries in ranks) for axis in (0, 1))
        self.extents = tuple({entry[axis] for entry in every} for axis in (0, 1))
        self.dtype = np.result_type(*(_dtype_called(entry[2]) for entry in every))
        self.capturable = all(entry[3] for entry in every)
        self.clinear = all(entry[4] for entry in every)


def _cut(extents: Iterable[int]) -> list[slice]:
    """Return the slices of consecutive pieces."""
    return [slice(begin, end) for begin, end in pairwise(accumulate(extents, initial=0))]


def _pieces(blocks: Sequence[_Block], given: Any, out: Any, xp: Any) -> Any:
    """Return the results of the blocks, one after the other; in `out` if that is given."""
    if out is None:
        # A rank without operators also takes part in the derivative of `given`, which may be a sum over all ranks.
        return xp.concatenate([apply(given[read], None) for apply, read, _ in blocks] or [given[:0]])
    for apply, read, write in blocks:
        part = out[write]
        store(apply(given[read], part), part)
    return out


def _dtype_called(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
