"""Products with whole rows of the matrix: nothing of it is sent."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from collops.backend import engine_of
from collops.comm import Communicator
from collops.operators.matrix_mult.products import multiply
from collops.operators.memory import Scratch, store


class Rows:
    """Some rows of the matrix times some columns of the model.

    The ranks of `column`, ``None`` if there is one, have other rows of the matrix and the same columns of the model.
    `model`, for a model that is split by rows, or `data`, for data that are wanted whole, are their numbers of rows;
    forward then gathers that side by one message. Adjoint sends one allreduce.
    """

    def __init__(
        self,
        rows: Any,
        column: Communicator | None,
        model: Sequence[int] | None = None,
        data: Sequence[int] | None = None,
    ) -> None:
        self._rows = rows
        self._engine = engine_of(rows)
        self._column = column
        self._model = None if column is None else model
        self._data = None if column is None else data
        counts = self._model or self._data
        if column is not None and counts is not None:
            self._here = slice(sum(counts[: column.rank]), sum(counts[: column.rank + 1]))
        self._scratch = Scratch()

    def converted(self, dtype: Any) -> Rows:
        """Return a copy with the matrix in another dtype."""
        other = copy(self)
        other._rows = self._rows.astype(dtype)
        return other

    def forward(self, x: Any, out: Any) -> Any:
        """Return the product, in `out` if that is given."""
        if self._model is not None:
            x = self._gathered(x, self._model, self._memory("model", sum(self._model), x))
        if self._data is None:
            return multiply(self._rows, x, out)
        part = multiply(self._rows, x, self._memory("data", len(self._rows), x))
        return self._gathered(part, self._data, out)

    def adjoint(self, y: Any, out: Any) -> Any:
        """Return the product of the conjugate transpose, in `out` if that is given."""
        if self._column is None:
            return multiply(self._rows, y, out, adjoint=True)
        if self._data is not None:
            y = y[self._here]
        whole = out if self._model is None else self._memory("model", sum(self._model), y)
        result = multiply(self._rows, y, whole, adjoint=True)
        if result.size:
            result = self._column.allreduce(result, out=whole)
        return result if self._model is None else store(result[self._here], out)

    def _gathered(self, part: Any, counts: Sequence[int], out: Any) -> Any:
        assert self._column is not None
        if not sum(counts) * part.shape[1]:
            return part if out is None else out
        return self._column.allgatherv(part, counts, out=out)

    def _memory(self, name: str, rows: int, like: Any) -> Any:
        return self._scratch.get(name, (rows, like.shape[1]), like.dtype, self._engine)
