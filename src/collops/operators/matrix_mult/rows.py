"""Products with whole rows of the matrix: nothing of it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from collops.comm import Communicator
from collops.operators.matrix_mult.products import multiply
from collops.operators.memory import Scratch, store


class RowsOfAll:
    """Some rows of the matrix, times all rows of some columns of the model; adjoint sends one allreduce.

    `place` is the slice of the data that they compute. `counts`, given where the data are wanted whole, are the
    numbers of rows of all ranks of `column`, gathered by one message. `column` are the ranks that have other rows and
    the same columns of the model, ``None`` if there are none.
    """

    def __init__(self, rows: Any, place: slice, counts: Sequence[int] | None, column: Communicator | None) -> None:
        self._rows = rows
        self._place = place
        self._counts = counts
        self._column = column
        self._scratch = Scratch()

    def converted(self, dtype: Any) -> RowsOfAll:
        """Return a copy with the matrix in another dtype."""
        other = copy(self)
        other._rows = self._rows.astype(dtype)
        return other

    def forward(self, x: Any, out: Any, engine: Any) -> Any:
        """Return the product, in `out` if that is given."""
        if self._counts is None or self._column is None:
            return multiply(self._rows, x, out)
        part = self._scratch.get("rows", (len(self._rows), x.shape[1]), x.dtype, engine)
        part = multiply(self._rows, x, part)
        if not sum(self._counts) * x.shape[1]:
            return part if out is None else out
        return self._column.allgatherv(part, self._counts, out=out)

    def adjoint(self, y: Any, out: Any, engine: Any) -> Any:
        """Return the product of the conjugate transpose, in `out` if that is given."""
        result = multiply(self._rows, y if self._counts is None else y[self._place], out, adjoint=True)
        return self._column.allreduce(result, out=out) if self._column is not None and result.size else result


class RowsOfSplit:
    """Some rows of the matrix, times a model whose rows are split: one message each way.

    `counts` are the numbers of rows of the model on the ranks of `column`, which have other rows of matrix and model,
    and the same columns of the model.
    """

    def __init__(self, rows: Any, counts: Sequence[int], column: Communicator) -> None:
        self._rows = rows
        self._counts = counts
        self._column = column
        begin = sum(counts[: column.rank])
        self._mine = slice(begin, begin + counts[column.rank])
        self._scratch = Scratch()

    def converted(self, dtype: Any) -> RowsOfSplit:
        """Return a copy with the matrix in another dtype."""
        other = copy(self)
        other._rows = self._rows.astype(dtype)
        return other

    def forward(self, x: Any, out: Any, engine: Any) -> Any:
        """Return the product, in `out` if that is given."""
        whole = self._whole(x, engine)
        if self._rows.shape[1] and x.shape[1]:
            x = self._column.allgatherv(x, self._counts, out=whole)
        return multiply(self._rows, x, out)

    def adjoint(self, y: Any, out: Any, engine: Any) -> Any:
        """Return the product of the conjugate transpose, in `out` if that is given."""
        whole = self._whole(y, engine)
        result = multiply(self._rows, y, whole, adjoint=True)
        if result.size:
            result = self._column.allreduce(result, out=whole)
        return store(result[self._mine], out)

    def _whole(self, like: Any, engine: Any) -> Any:
        """Return memory for all rows of this rank's columns of the model."""
        return self._scratch.get("whole", (self._rows.shape[1], like.shape[1]), like.dtype, engine)
