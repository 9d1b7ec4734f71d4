"""SUMMA on any grid of processes: panels of matrix and model are broadcast, and their products added up.

The inner extent is cut wherever a block of the matrix or of the model ends, so that each panel has one owner in every
row and one in every column of processes. The two may be cut differently, and the grid need not be square.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from collops.backend import engine_of
from collops.comm import Communicator
from collops.comm.side_stream import SideStream
from collops.operators.matrix_mult.products import multiply
from collops.operators.memory import Scratch, contiguous, store

__all__ = ["panels"]

_WIDEST = 4096  # so that the first panel, whose messages overlap with nothing, is not most of a large block


class Panel(NamedTuple):
    """A range of the inner extent, of some `width`.

    `column` is the column of processes that holds its part of the matrix, `row` the row that holds its part of the
    model; `in_matrix` and `in_model` are its columns and rows in the owners' blocks.
    """

    width: int
    column: int
    row: int
    in_matrix: slice
    in_model: slice


def panels(columns: Sequence[int], rows: Sequence[int], widest: int = _WIDEST) -> list[Panel]:
    """Return the panels of a product in order, given the cuts of the inner extent in the matrix and in the model."""
    column_ends, row_ends = list(accumulate(columns, initial=0)), list(accumulate(rows, initial=0))
    cuts = sorted({*column_ends, *row_ends})
    found = []
    for begin, end in pairwise(cuts):
        column, row = _block_of(begin, column_ends), _block_of(begin, row_ends)
        pieces = -(-(end - begin) // widest)
        share, longer = divmod(end - begin, pieces)
        for piece in range(pieces):
            width = share + (piece < longer)
            in_matrix, in_model = begin - column_ends[column], begin - row_ends[row]
            found.append(
                Panel(width, column, row, slice(in_matrix, in_matrix + width), slice(in_model, in_model + width))
            )
            begin += width
    return found


class Summa:
    """The products of one rank, panel by panel.

    For each panel, forward broadcasts the matrix and the model; adjoint broadcasts the matrix and reduces the result.
    The messages of the next panel overlap with the product of this one if the engine can do both at once. `row` and
    `column` are the ranks of this row and column of processes, ``None`` if it has no other rank.
    """

    def __init__(
        self, block: Any, plan: Sequence[Panel], row: Communicator | None, column: Communicator | None
    ) -> None:
        self._plan = plan
        self._row = row
        self._column = column
        self._engine = engine = engine_of(block)
        self._rows = len(block)
        self._widest = max((panel.width for panel in plan), default=0)
        here = 0 if row is None else row.rank
        self._mine = {
            number: contiguous(block[:, panel.in_matrix], block.dtype)
            for number, panel in enumerate(plan)
            if panel.column == here
        }
        self._scratch = Scratch()
        # On devices, messages travel on a second stream during the products; a CUDA graph can capture both.
        self._side = SideStream() if len(plan) > 1 and engine.name == "cupy" else None
        if self._side is not None:
            events = [engine.xp.cuda.Event(disable_timing=True) for _ in range(4)]
            self._arrived, self._multiplied = events[:2], events[2:]  # of the two buffers that alternate

    def converted(self, dtype: Any) -> Summa:
        """Return a copy with the matrix in another dtype."""
        other = copy(self)
        other._mine = {number: part.astype(dtype) for number, part in self._mine.items()}
        return other

    def forward(self, x: Any, out: Any) -> Any:
        """Return the product, in `out` if that is given."""
        if not self._plan:
            return store(self._engine.xp.zeros((self._rows, x.shape[1]), x.dtype), out)
        total = out
        for number, (a, b) in self._arriving(lambda number: (self._matrix(number, x.dtype), self._model(number, x))):
            total = multiply(a, b, total, accumulate=number > 0)
            self._mark_product(number)
        return total

    def adjoint(self, y: Any, out: Any) -> Any:
        """Return the product of the conjugate transpose, in `out` if that is given."""
        mine: list[Any] = []
        for number, a in self._arriving(lambda number: self._matrix(number, y.dtype)):
            panel = self._plan[number]
            # The previous sum in this buffer has been sent: the panel that has just arrived was sent after it.
            part = multiply(a, y, self._part(number, y, out), adjoint=True)
            self._mark_product(number)
            if self._column is not None and part.size:
                part = self._send(number, partial(self._sum, part, panel), after_product=True)
            if self._column is None or self._column.rank == panel.row:
                mine.append(part)
        if out is not None:
            return out
        return self._engine.xp.concatenate(mine) if mine else self._engine.xp.zeros((0, y.shape[1]), y.dtype)

    def _arriving(self, fetch: Callable[[int], Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of each panel and ``fetch(number)``, whose messages travel during the product before."""
        if self._side is not None:
            self._side.begin()
        following = self._send(0, partial(fetch, 0)) if self._plan else None
        for number in range(len(self._plan)):
            arrived = following
            if self._side is not None:
                self._engine.xp.cuda.get_current_stream().wait_event(self._arrived[number % 2])
            if number + 1 < len(self._plan):
                # The buffers of the next panel were last read by the product before this one.
                following = self._send(number + 1, partial(fetch, number + 1), after_product=number > 0)
            yield number, arrived
        if self._side is not None:
            self._side.end().wait()

    def _send(self, number: int, message: Callable[[], Any], after_product: bool = False) -> Any:
        """Return ``message()``, sent while products are computed; if need be, after the last one with its buffers."""
        if self._side is None:
            return message()
        if after_product:
            self._side.stream.wait_event(self._multiplied[number % 2])
        with self._side.stream:
            result = message()
        self._arrived[number % 2].record(self._side.stream)
        return result

    def _mark_product(self, number: int) -> None:
        """Record that the product of a panel has been launched."""
        if self._side is not None:
            self._multiplied[number % 2].record(self._engine.xp.cuda.get_current_stream())

    def _matrix(self, number: int, dtype: Any) -> Any:
        """Return a panel of the matrix, broadcast along this row of processes."""
        panel, mine = self._plan[number], self._mine.get(number)
        if mine is None:
            mine = self._buffer("matrix", number, (self._rows, panel.width), self._rows, dtype)
        return mine if self._row is None or not mine.size else self._row.bcast(mine, panel.column, out=mine)

    def _model(self, number: int, x: Any) -> Any:
        """Return a panel of the model, broadcast along this column of processes."""
        panel = self._plan[number]
        if self._column is None:
            return x[panel.in_model]
        if self._column.rank == panel.row:
            mine = x[panel.in_model]
        else:
            mine = self._buffer("model", number, (panel.width, x.shape[1]), x.shape[1], x.dtype)
        return self._column.bcast(mine, panel.row, out=mine) if mine.size else mine

    def _part(self, number: int, y: Any, out: Any) -> Any:
        """Return the memory for this rank's share of a panel of the result: in `out` if the panel belongs there."""
        if out is None:
            return None
        panel = self._plan[number]
        if self._column is None or self._column.rank == panel.row:
            return out[panel.in_model]
        return self._buffer("result", number, (panel.width, y.shape[1]), y.shape[1], y.dtype)

    def _sum(self, part: Any, panel: Panel) -> Any:
        """Return the sum of the shares of this column of processes, on the rank that the panel belongs to."""
        assert self._column is not None
        return self._column.reduce(part, root=panel.row, out=part if self._column.rank == panel.row else None)

    def _buffer(self, name: str, number: int, shape: tuple[int, int], breadth: int, dtype: Any) -> Any:
        """Return one of two buffers that alternate, as large as the widest panel needs."""
        memory = self._scratch.get((name, number % 2), (self._widest * breadth,), dtype, self._engine)
        return self._engine.xp.zeros(shape, dtype) if memory is None else memory[: shape[0] * shape[1]].reshape(shape)


def _block_of(begin: int, ends: Sequence[int]) -> int:
    """Return which block holds the element `begin`: the last of several that start there, which is not empty."""
    return max(number for number, first in enumerate(ends[:-1]) if first <= begin)
