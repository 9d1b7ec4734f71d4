"""Products of complete rows of the matrix with complete columns of the model on every rank (``kind="block"``)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from numpy.typing import DTypeLike

from collops.backend import LocalArray, engine_of
from collops.comm import Communicator
from collops.operators.dense import forms_for
from collops.operators.memory import Buffers


class Rows:
    """Some rows of the matrix times some columns of the model.

    The ranks of `column` have other rows of the matrix and the same columns of the model; it is ``None`` for a single
    rank. To gather the rows of the data in forward, by one message, `data` has the ranks' numbers of rows. Adjoint
    sends one allreduce.
    """

    def __init__(self, rows: LocalArray, column: Communicator | None, data: Sequence[int] | None = None) -> None:
        self._rows = rows
        self._engine = engine_of(rows)
        self._multiply = forms_for(self._engine).multiply
        self._column = column
        self._data = None if column is None else data
        if column is not None and data is not None:
            self._local_rows = slice(sum(data[: column.rank]), sum(data[: column.rank + 1]))
        self._buffers = Buffers()

    def converted(self, dtype: DTypeLike) -> Rows:
        """Return a copy with the matrix in another dtype."""
        other = copy(self)
        other._rows = self._rows.astype(dtype)
        return other

    def forward(self, x: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the product, in `out` unless it is ``None``."""
        if self._data is None:
            return self._multiply(self._rows, x, out)
        assert self._column is not None
        shape = len(self._rows), x.shape[1]
        part = self._multiply(self._rows, x, self._buffers.local("data", shape, x.dtype, self._engine))
        if not sum(self._data) * shape[1]:
            return part if out is None else out
        return self._column.allgatherv(part, self._data, out=out)

    def adjoint(self, y: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the product of the conjugate transpose, in `out` unless it is ``None``."""
        if self._column is None:
            return self._multiply(self._rows, y, out, adjoint=True)
        result = self._multiply(self._rows, y[self._local_rows] if self._data is not None else y, out, adjoint=True)
        return self._column.allreduce(result, out=out) if result.size else result
