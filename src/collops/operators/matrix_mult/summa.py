"""SUMMA on any process grid: in rounds, gather columns of the matrix and rows of the model, multiply and add.

The inner extent is cut at the end of every block of the matrix or of the model, and each interval between two cuts is
divided among the rounds. Thus all ranks send in every round: one message gathers the matrix within rows of processes,
another the model within columns. Matrix and model may be cut differently, and the grid need not be square.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from numpy.typing import DTypeLike

from collops.backend import LocalArray, engine_of
from collops.comm import Communicator
from collops.comm.side_stream import SideStream
from collops.operators.dense import forms_for
from collops.operators.memory import Buffers, contiguous, store


class Panel(NamedTuple):
    """A range of the inner extent, of some `width`.

    `column` is the column of processes that owns this range of the matrix, `row` the row of processes that owns it in
    the model; `in_matrix` and `in_model` are its columns and rows in the owners' blocks.
    """

    width: int
    column: int
    row: int
    in_matrix: slice
    in_model: slice


def rounds(columns: Sequence[int], rows: Sequence[int], number: int = 1) -> list[list[Panel]]:
    """Return the panels of at most `number` rounds, in order, given the cuts of the inner extent in matrix and model.

    A round has a part of every interval between two cuts, so that every rank sends equally much in all rounds.
    """
    column_ends, row_ends = list(accumulate(columns, initial=0)), list(accumulate(rows, initial=0))
    by_round: list[list[Panel]] = [[] for _ in range(number)]
    for begin, end in pairwise(sorted({*column_ends, *row_ends})):
        column, row = _block_of(begin, column_ends), _block_of(begin, row_ends)
        share, longer = divmod(end - begin, number)
        for turn, panels in enumerate(by_round):
            width = share + (turn < longer)
            in_matrix, in_model = begin - column_ends[column], begin - row_ends[row]
            if width:
                panels.append(
                    Panel(width, column, row, slice(in_matrix, in_matrix + width), slice(in_model, in_model + width))
                )
            begin += width
    return [panels for panels in by_round if panels]


class _Round(NamedTuple):
    """The messages and products of a round: numbers of columns and rows by owner, and the rows of the model.

    `rows` pairs slices of the round's rows with slices of this rank's block of the model: the rows that this rank
    sends or receives if the model is sent, else all rows of the round.
    """

    columns: list[int]
    model: list[int]
    rows: list[tuple[slice, slice]]

    @property
    def width(self) -> int:
        return sum(self.columns)


class Summa:
    """The products of one rank, round by round.

    Forward gathers the columns of the matrix and the rows of the model; adjoint gathers the matrix, and reduces and
    scatters the result. The messages of the next round overlap with the product of this round if the engine has
    several streams. `row` and `column` are the communicators of this row and column of processes, ``None`` for a single
    rank.
    """

    def __init__(
        self, block: LocalArray, plan: Sequence[Sequence[Panel]], row: Communicator | None, column: Communicator | None
    ) -> None:
        self._row = row
        self._column = column
        self._engine = engine = engine_of(block)
        self._multiply = forms_for(engine).multiply
        self._rows = len(block)
        self._transposed = row is not None  # columns that are sent must be contiguous
        self._plan: list[_Round] = []
        self._local_columns = []
        for panels in plan:
            self._plan.append(_round(panels, row, column))
            runs = _runs(panel.in_matrix for panel in panels if row is None or panel.column == row.rank)
            parts = [block[:, cols] for _, cols in runs] or [block[:, :0]]
            columns = parts[0] if len(parts) == 1 else engine.xp.concatenate(parts, axis=1)
            self._local_columns.append(contiguous(columns.conj().T if self._transposed else columns, block.dtype))
        self._widest = max((plan.width for plan in self._plan), default=0)
        self._buffers = Buffers()
        # On devices, messages run on a second stream during the products; a CUDA graph can capture both.
        self._side = SideStream() if len(plan) > 1 and engine.streams else None
        if self._side is not None:
            events = [engine.xp.cuda.Event(disable_timing=True) for _ in range(4)]
            self._arrived, self._multiplied = events[:2], events[2:]  # index of the two alternating buffers

    def converted(self, dtype: DTypeLike) -> Summa:
        """Return a copy with the matrix in another dtype."""
        other = copy(self)
        other._local_columns = [part.astype(dtype) for part in self._local_columns]
        return other

    def forward(self, x: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the product, in `out` if that is given."""
        total, added = out, False
        for number, (a, b) in self._arriving(lambda number: (self._matrix(number, x.dtype), self._model(number, x))):
            for factor, rows in [(a, b)] if b is not None else self._factors(number, a, x):
                total = self._multiply(factor, rows, total, adjoint=self._transposed, accumulate=added)
                added = True
            self._mark_product(number)
        if added:
            return total
        return store(self._engine.xp.zeros((self._rows, x.shape[1]), x.dtype), out)

    def adjoint(self, y: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the product of the conjugate transpose, in `out` if that is given."""
        result = out
        if result is None:
            rank = 0 if self._column is None else self._column.rank
            height = sum(sum(plan.model) if self._column is None else plan.model[rank] for plan in self._plan)
            result = self._engine.xp.zeros((height, y.shape[1]), y.dtype)
        for number, a in self._arriving(lambda number: self._matrix(number, y.dtype)):
            plan = self._plan[number]
            if self._column is None:
                for some, target in plan.rows:
                    memory = result[target] if self._engine.mutable else None
                    product = self._multiply(
                        a[some] if self._transposed else a, y, memory, adjoint=not self._transposed
                    )
                    result = result if memory is not None else self._engine.put(result, target, product)
                self._mark_product(number)
                continue
            # The previous sum in this buffer has been sent, since the round that has just arrived was sent after it.
            part = self._buffer("part", number, plan.width, y.shape[1], y.dtype)
            part = self._multiply(a, y, part, adjoint=not self._transposed)
            self._mark_product(number)
            if part.size:
                result = self._send(number, partial(self._scattered, number, part, result), after_product=True)
        return result

    def _arriving(self, fetch: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of each round and ``fetch(number)``, whose messages overlap with the previous product."""
        if self._side is not None:
            self._side.begin()
        following = self._send(0, partial(fetch, 0)) if self._plan else None
        for number in range(len(self._plan)):
            arrived = following
            if self._side is not None:
                self._engine.xp.cuda.get_current_stream().wait_event(self._arrived[number % 2])
            if number + 1 < len(self._plan):
                # The previous product was the last to read the buffers of the next round.
                following = self._send(number + 1, partial(fetch, number + 1), after_product=number > 0)
            yield number, arrived
        if self._side is not None:
            self._side.end().wait()

    def _send(self, number: int, message: Callable[[], Any], after_product: bool = False) -> Any:
        """Return ``message()``, sent on the second stream; with `after_product`, once its buffers have been read."""
        if self._side is None:
            return message()
        if after_product:
            self._side.stream.wait_event(self._multiplied[number % 2])
        with self._side.stream:
            result = message()
        self._arrived[number % 2].record(self._side.stream)
        return result

    def _mark_product(self, number: int) -> None:
        """Record that the product of a round has been launched."""
        if self._side is not None:
            self._multiplied[number % 2].record(self._engine.xp.cuda.get_current_stream())

    def _matrix(self, number: int, dtype: DTypeLike) -> LocalArray:
        """Return the columns of a round, gathered along this row of processes, conjugated and transposed."""
        plan, local = self._plan[number], self._local_columns[number]
        if self._row is None:
            return local
        memory = self._buffer("matrix", number, plan.width, self._rows, dtype)
        return self._gathered(self._row, local, plan.columns, memory)

    def _model(self, number: int, x: LocalArray) -> LocalArray | None:
        """Return the rows of a round, gathered along this column of processes; ``None`` if all are local."""
        if self._column is None:
            return None
        plan = self._plan[number]
        memory = self._buffer("model", number, plan.width, x.shape[1], x.dtype)
        if len(plan.rows) == 1:
            local = x[plan.rows[0][1]]
        else:
            local = self._buffer("given", number, plan.model[self._column.rank], x.shape[1], x.dtype)
            for some, source in plan.rows:
                local = self._engine.put(local, some, x[source])
        return self._gathered(self._column, local, plan.model, memory)

    def _gathered(self, comm: Communicator, local: LocalArray, counts: Sequence[int], memory: LocalArray) -> LocalArray:
        return comm.allgatherv(local, counts, out=memory if self._engine.mutable else None) if memory.size else memory

    def _factors(self, number: int, a: LocalArray, x: LocalArray) -> Iterable[tuple[LocalArray, LocalArray]]:
        """Yield the factors of a round whose model is not sent: runs of its rows."""
        for some, source in self._plan[number].rows:
            yield (a[some] if self._transposed else a), x[source]

    def _scattered(self, number: int, part: LocalArray, result: LocalArray) -> LocalArray:
        """Return `result` with this rank's rows of the sum of `part` over this column of processes."""
        assert self._column is not None
        plan, breadth = self._plan[number], part.shape[1]
        widest, size = max(plan.model), len(plan.model)
        if min(plan.model) < widest:  # reduce_scatter needs blocks of equal size
            padded = self._buffer("padded", number, size * widest, breadth, part.dtype)
            for owner, (begin, end) in enumerate(pairwise(accumulate(plan.model, initial=0))):
                start = owner * widest
                padded = self._engine.put(padded, slice(start, start + end - begin), part[begin:end])
            part = padded
        blocks = part.reshape(size, widest, breadth)
        if len(plan.rows) == 1 and plan.model[self._column.rank] == widest and self._engine.mutable:
            self._column.reduce_scatter(blocks, out=result[plan.rows[0][1]])
            return result
        local = self._buffer("mine", number, widest, breadth, part.dtype) if self._engine.mutable else None
        local = self._column.reduce_scatter(blocks, out=local)
        for some, target in plan.rows:
            result = self._engine.put(result, target, local[some])
        return result

    def _buffer(self, name: str, number: int, rows: int, breadth: int, dtype: DTypeLike) -> LocalArray:
        """Return one of two alternating buffers, large enough for the widest round."""
        most = len(self._plan[0].model) * self._widest if name == "padded" else self._widest
        memory = self._buffers.local((name, number % 2), (most * breadth,), dtype, self._engine)
        shape = rows, breadth
        return self._engine.xp.zeros(shape, dtype) if memory is None else memory[: rows * breadth].reshape(shape)


def _round(panels: Sequence[Panel], row: Communicator | None, column: Communicator | None) -> _Round:
    columns = [0] * (1 if row is None else row.size)
    model = [0] * (1 if column is None else column.size)
    for panel in panels:
        columns[0 if row is None else panel.column] += panel.width
        model[0 if column is None else panel.row] += panel.width
    local = (panel.in_model for panel in panels if column is None or panel.row == column.rank)
    return _Round(columns, model, _runs(local))


def _runs(ranges: Iterable[slice]) -> list[tuple[slice, slice]]:
    """Return ranges with neighbours merged, each paired with its range in their concatenation."""
    runs: list[tuple[slice, slice]] = []
    end = 0
    for current in ranges:
        begin, end = end, end + current.stop - current.start
        if runs and runs[-1][1].stop == current.start:
            some, before = runs.pop()
            begin, current = some.start, slice(before.start, current.stop)
        runs.append((slice(begin, end), current))
    return runs


def _block_of(begin: int, ends: Sequence[int]) -> int:
    """Return the block that holds the element `begin`: the last, nonempty one of the blocks that start there."""
    return max(number for number, first in enumerate(ends[:-1]) if first <= begin)
