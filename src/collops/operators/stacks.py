"""Vertical, horizontal and diagonal stacks of local operators over the ranks, and of distributed operators."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from types import ModuleType
from typing import NamedTuple

import numpy as np

from collops.array import Array, Layout, StackedLayout, axpby
from collops.array.dtypes import as_dtype
from collops.array.fused import LocalPairs
from collops.array.layout_arguments import as_shape
from collops.backend import LocalArray
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.comm.arguments import communicator_or_world
from collops.errors import InputError, LayoutError
from collops.operators.base import AnyLayout, Direction, LinearOperator, check_operators
from collops.operators.local import LiftedOperator, LocalOperator, OneRank, in_precision, lift_local
from collops.operators.memory import Buffers, filled, store

__all__ = ["LocalSum"]

_FLAGS = ("capturable", "clinear")
_BATCHED = "forward_columns", "adjoint_columns"


class _Block(NamedTuple):
    """A product of a local operator, the slice of a vector that it reads, and the slice that it computes.

    A slice is ``None`` for the entire vector; `batched` is ``None`` if the operator has no batched product.
    """

    apply: Callable[..., LocalArray]
    batched: Callable[..., LocalArray] | None
    read: slice | None
    write: slice | None


class _LocalStack(LinearOperator):
    """Local operators on all ranks, which share a replicated operand or result, or have a piece each.

    Pieces are computed without a message. A shared result takes one allreduce, which sums the results of all ranks.
    For parameters and exceptions see :class:`VStack`.
    """

    shares_domain = shares_range = False

    def __init__(
        self,
        ops: Iterable[object],
        comm: Communicator | None = None,
        *,
        dims: Sequence[int] | int | None = None,
        mask: Sequence[int] | None = None,
    ) -> None:
        comm = communicator_or_world(comm)
        with collective_errors(comm):
            operators = tuple(lift_local(op) for op in ([ops] if hasattr(ops, "shape") else ops))
            local = [
                [
                    *map(int, op.shape),
                    np.dtype(op.dtype).name,
                    *(bool(getattr(op, flag, True)) for flag in _FLAGS),
                    getattr(op, "columns_engine", "numpy") if all(hasattr(op, name) for name in _BATCHED) else None,
                ]
                for op in operators
            ]
        ranks = comm.allgather_metadata(local)
        entries_of_all = [entry for entries in ranks for entry in entries]
        if not entries_of_all:
            raise InputError("no rank has a local operator; a stack needs at least one")
        rows, columns = ([[entry[axis] for entry in entries] for entries in ranks] for axis in (0, 1))
        domain = self._shared(columns, "columns", dims, mask) if self.shares_domain else _split(columns, mask)
        range = self._shared(rows, "rows", dims, mask) if self.shares_range else _split(rows, mask)
        super().__init__(domain, range, np.result_type(*(as_dtype(entry[2]) for entry in entries_of_all)), comm)
        self.capturable, self.clinear = (all(entry[column] for entry in entries_of_all) for column in (3, 4))
        reads = _slices(columns[comm.rank], self.shares_domain)
        writes = _slices(rows[comm.rank], self.shares_range)
        engines = {entry[5] for entry in entries_of_all}
        self._batch_engine = engines.pop() if len(engines) == 1 else None
        groups = domain.mask if self.shares_domain or self.shares_range else None
        self._group = comm if groups is None else comm.subgroup(groups)
        self._slices = list(zip(reads, writes, strict=True))
        self._put(operators)

    def _put(self, operators: Sequence[LocalOperator]) -> None:
        """Set the operators of this rank."""
        self.operators = tuple(operators)
        pairs, shares = list(zip(self.operators, self._slices, strict=True)), (self.shares_domain, self.shares_range)

        def blocks(product: str, batched: str, step: int) -> list[_Block]:
            return [_Block(getattr(op, product), getattr(op, batched, None), *some[::step]) for op, some in pairs]

        # In each direction: the blocks, whether they share the operand, and whether they share the result.
        self._sides = (
            (blocks("forward_local", _BATCHED[0], 1), *shares),
            (blocks("adjoint_local", _BATCHED[1], -1), *shares[::-1]),
        )
        self._adds_squares = all(isinstance(op, OneRank) for op in self.operators)
        # Whether the only operator returns its results in its own memory, from where an allreduce can read them.
        lifted = len(self.operators) == 1 and isinstance(self.operators[0], LiftedOperator)
        self._own_memory = lifted and self._group.size > 1
        self._buffers = Buffers()

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        with collective_errors(self.comm):
            operators = [in_precision(op, dtype) for op in self.operators]
        other = self._retyped(dtype)
        other._put(operators)
        return other

    def _direction(self, adjoint: bool) -> Direction:
        norm2, batched = (partial(apply, adjoint=adjoint) for apply in (self._apply, self._apply_batched))
        direction = super()._direction(adjoint)._replace(norm2=norm2)
        engine = self._batch_engine
        return direction if engine is None else direction._replace(batched=batched, batch_engine=engine)

    def _apply(self, x: Array, out: Array, adjoint: bool, squares: LocalPairs | None = None) -> Array:
        blocks, shares_operand, shares_result = self._sides[adjoint]
        if squares is not None and not shares_result and self._adds_squares:
            blocks = [block._replace(apply=partial(block.apply, squares=squares)) for block in blocks]
        elif squares is not None:
            squares.append((out.local_array, out.local_array))
        memory = out.local_array if out.engine.mutable else None
        operand = x.local_array
        if operand.ndim != 1 or (x.engine.mutable and not operand.flags.c_contiguous):
            operand = operand.ravel()
        if shares_operand:
            operand = x.engine.replicated_operand(operand, self._group)
        if not shares_result:
            return filled(out, _pieces(blocks, operand, memory, x.engine.xp))
        # A view, since results are contiguous; creating it takes a microsecond on devices.
        flat = memory if memory is None or memory.ndim == 1 else memory.reshape(-1)
        total = self._total(blocks, operand, flat, out)
        if self._group.size > 1:
            total = self._group.allreduce(total, out=flat)
        return filled(out, memory if total is flat else total)

    def _apply_batched(self, x: Array, out: Array, adjoint: bool) -> Array:
        blocks, _, shares_result = self._sides[adjoint]
        operand, result = (block.local_array.reshape(len(block.local_array), -1) for block in (x, out))
        if shares_result and not blocks:
            result.fill(0)
        for number, (_, apply, read, write) in enumerate(blocks):
            assert apply is not None
            source, target = (
                array if some is None else array[:, some] for array, some in ((operand, read), (result, write))
            )
            if shares_result and number > 0:
                target += apply(source, self._buffers.local("batch", target.shape, target.dtype, x.engine))
            else:
                apply(source, target)
        if shares_result and self._group.size > 1:
            self._group.allreduce(result, out=result)
        return out

    def _total(self, blocks: Sequence[_Block], operand: LocalArray, flat: LocalArray, out: Array) -> LocalArray:
        """Return the sum of the results of the blocks, in `flat` unless it is ``None`` or is filled by a message."""
        if not blocks and flat is None:
            return out.engine.xp.zeros(out.layout.size, out.dtype)
        if not blocks:
            flat.fill(0)
            return flat
        first, *others = blocks
        total = first.apply(_part(operand, first.read), None if self._own_memory else flat)
        if not self._own_memory or flat is None or (total.dtype, total.shape) != (flat.dtype, flat.shape):
            total = store(total, flat)
        for apply, _, read, _ in others:
            total += apply(_part(operand, read), self._buffers.local("part", total.shape, total.dtype, out.engine))
        return total

    def _shared(
        self, extents: Sequence[Sequence[int]], what: str, dims: Sequence[int] | int | None, mask: Sequence[int] | None
    ) -> Layout:
        """Return the layout of the shared vector from the extents of the operators of all ranks on that side."""
        name = type(self).__name__
        extent, *others = sorted({extent for entries in extents for extent in entries})
        if others:
            shown = ", ".join(map(str, [extent, *others]))
            raise LayoutError(
                f"Operators have different number of {what}: {name} needs one number of {what}, not {shown}"
            )
        shape = (extent,) if dims is None else as_shape(dims)
        if math.prod(shape) != extent:
            raise LayoutError(f"{name}: dims {shape} have {math.prod(shape)} elements, the operators {extent} {what}")
        return Layout.replicated(shape, len(extents), mask=mask)


class BlockDiag(_LocalStack):
    """Local operators along the diagonal, distributed over the ranks: :math:`y = [A_0 x_0; A_1 x_1; …]`.

    Model and data are split in the same way: each rank holds the parts of its own operators. Forward and adjoint send
    no messages.

    Collective: sizes and types are exchanged once.

    Parameters
    ----------
    ops : iterable of operators
        Operators of this rank, possibly none; any types that :func:`collops.operators.lift_local` accepts.
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
        self, ops: Iterable[object], comm: Communicator | None = None, *, mask: Sequence[int] | None = None
    ) -> None:
        super().__init__(ops, comm, mask=mask)


class VStack(_LocalStack):
    """Vertical stack of local operators, distributed over the ranks: :math:`y = [A_0 x; A_1 x; …]`.

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
        Group number of each rank. Each group has a separate model, summed within the group.

    Raises
    ------
    LayoutError
        On every rank, if the numbers of columns differ.
    UnsupportedTypeError
        On every rank, if an operator cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> collops.VStack([np.ones((3, 2)), np.eye(2)]).shape
    (5, 2)
    """

    shares_domain = True


class LocalSum(_LocalStack):
    """The sum of all local operators of all ranks: :math:`y = A_0 x + A_1 x + …`.

    Model and data are replicated, of the shape `dims`, and the operators are square. Forward and adjoint send one
    allreduce each. For other parameters and exceptions see :class:`VStack`.

    Collective: sizes and types are exchanged once.
    """

    shares_domain = shares_range = True


class HStack(_LocalStack):
    """Horizontal stack of local operators, distributed over the ranks: :math:`y = A_0 x_0 + A_1 x_1 + …`.

    The adjoint of a :class:`VStack`: the model is split, and each rank holds the part that its operators read; the
    data are replicated, and `dims` is their shape. The operators need equal numbers of rows. Forward sends one
    allreduce of the data. Adjoint sends no message. For other parameters and exceptions see :class:`VStack`.

    Collective: sizes and types are exchanged once.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> collops.HStack([np.ones((2, 3)), np.eye(2)]).shape
    (2, 5)
    """

    shares_range = True


class _DistributedStack(LinearOperator):
    """Distributed operators that share an operand or result, or have one part of a stacked array each; stacks nest."""

    shares_domain = shares_range = False

    def __init__(self, operators: Sequence[LinearOperator]) -> None:
        self.operators = operators = tuple(operators)
        name = type(self).__name__
        if not operators:
            raise InputError(f"{name} needs at least one operator")
        check_operators(*operators)
        super().__init__(
            _layout([op.domain for op in operators], self.shares_domain, f"{name} needs operators with one domain"),
            _layout([op.range for op in operators], self.shares_range, f"{name} needs operators with one range"),
            np.result_type(*(op.dtype for op in operators)),
            operators[0].comm,
        )
        self._inherit(operators)
        shares = self.shares_domain, self.shares_range
        self._sides = tuple(
            ([op._directions[adjoint] for op in operators], *shares[:: 1 - 2 * adjoint]) for adjoint in (False, True)
        )
        self._buffers = Buffers()

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        return type(self)([op.astype(dtype) for op in self.operators])

    def _direction(self, adjoint: bool) -> Direction:
        return super()._direction(adjoint)._replace(norm2=partial(self._apply, adjoint=adjoint))

    def _apply(self, x: Array, out: Array, adjoint: bool, squares: LocalPairs | None = None) -> Array:
        directions, shares_operand, shares_result = self._sides[adjoint]
        sources = [x] * len(directions) if shares_operand else x.arrays
        return (self._total if shares_result else self._stacked)(directions, sources, out, squares)

    @staticmethod
    def _stacked(
        directions: Sequence[Direction], sources: Sequence[Array], out: Array, squares: LocalPairs | None
    ) -> Array:
        """Apply each operator to its source, and return the stack of the results."""
        targets = out.arrays
        parts = [
            direction.with_squares(x, target, squares)
            for direction, x, target in zip(directions, sources, targets, strict=True)
        ]
        return out if all(map(operator.is_, parts, targets)) else out._like(parts)

    def _total(
        self, directions: Sequence[Direction], sources: Sequence[Array], out: Array | None, squares: LocalPairs | None
    ) -> Array:
        """Apply each operator to its source, and return the sum of the results, with the squares of the sum."""
        last = len(directions) - 1
        total = directions[0].with_squares(sources[0], out, None if last else squares)
        for number in range(1, last + 1):
            direction, source = directions[number], sources[number]
            squares_of_sum = squares if number == last else None
            if direction.add is not None and total.engine.mutable:
                total = direction.add(source, total, squares=squares_of_sum)
            else:
                part = direction.apply(source, self._buffers.get(total.layout, total.layout, source, total.dtype))
                total = _SUM.with_squares(part, total, squares_of_sum)
        return total


class StackedVStack(_DistributedStack):
    """Vertical stack of distributed operators: :math:`[y_0; y_1; …] = [A_0 x; A_1 x; …]`.

    Parameters
    ----------
    operators : sequence of LinearOperator
        Operators with the same domain, which is the domain of the stack. Its range is the stack of their ranges.

    Raises
    ------
    LayoutError
        If their domains or communicators differ.
    UnsupportedTypeError
        If an element is not a distributed operator.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4)
    >>> A = collops.StackedVStack([collops.Identity(4), 0.1 * D])
    >>> y = A @ collops.ones(4)
    >>> y[0].gather(), y[1].gather()
    (array([1., 1., 1., 1.]), array([0., 0., 0., 0.]))
    """

    shares_domain = True


class StackedHStack(_DistributedStack):
    """Horizontal stack of distributed operators: :math:`y = A_0 x_0 + A_1 x_1 + …`.

    The operators have the same range, which is the range of the stack. Its domain is the stack of their domains. For
    exceptions see :class:`StackedVStack`.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4)
    >>> A = collops.StackedHStack([D, 2 * D])
    >>> A.shape, A.dottest()
    ((4, 8), True)
    """

    shares_range = True


class StackedBlockDiag(_DistributedStack):
    """Distributed operators along the diagonal: :math:`[y_0; y_1; …] = [A_0 x_0; A_1 x_1; …]`.

    Its domain and its range are the stacks of their domains and ranges. For exceptions see :class:`StackedVStack`.

    Examples
    --------
    >>> import collops
    >>> D = collops.FirstDerivative(4)
    >>> A = collops.StackedBlockDiag([D, 2 * D])
    >>> A.shape, A.dottest()
    ((8, 8), True)
    """


_SUM = Direction(lambda part, total: axpby(1, part, 1, total, out=total))
"""A direction that adds a product to `total`, in place if that is mutable."""


def _layout(layouts: Sequence[AnyLayout], shared: bool, need: str) -> AnyLayout:
    """Return the layout of one side of a stack: the common layout if shared, else the stack of the layouts."""
    if not shared:
        return StackedLayout(layouts)
    for layout in layouts[1:]:
        if layout is not layouts[0]:
            raise LayoutError(f"{need}, not {layouts[0]} and {layout}")
    return layouts[0]


def _split(extents: Sequence[Sequence[int]], mask: Sequence[int] | None) -> Layout:
    """Return the layout of a vector that is split according to the operators of each rank."""
    sizes = [sum(entries) for entries in extents]
    return Layout.split((sum(sizes),), len(sizes), sizes=sizes, mask=mask)


def _slices(extents: Sequence[int], shared: bool) -> Sequence[slice | None]:
    """Return the slices of a rank's vector that its operators use: consecutive ones, or all of it."""
    if shared or len(extents) == 1:
        return [None] * len(extents)
    return [slice(begin, end) for begin, end in pairwise(accumulate(extents, initial=0))]


def _pieces(blocks: Sequence[_Block], operand: LocalArray, out: Array | None, xp: ModuleType) -> LocalArray:
    """Return the concatenated results of the blocks; in `out` unless it is ``None``."""
    if out is None:
        # A rank without operators also contributes to the derivative of the operand, which may be a sum over all ranks.
        return xp.concatenate([apply(_part(operand, read), None) for apply, _, read, _ in blocks] or [operand[:0]])
    for apply, _, read, write in blocks:
        part = _part(out, write)
        store(apply(_part(operand, read), part), part)
    return out


def _part(array: LocalArray, where: slice | None) -> LocalArray:
    return array if where is None else array[where]  # a slice of all of it takes 2 us on devices
