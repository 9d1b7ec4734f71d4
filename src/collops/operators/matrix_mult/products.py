"""Products of local matrices by the BLAS of their engine, and of whole rows of a matrix with a whole model."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any

from collops.backend import engine_of
from collops.comm import Communicator
from collops.operators.memory import Buffers, store

__all__ = ["multiply"]

_BY_BLAS = "fdFD"
_CONJUGATE_TRANSPOSE = 2


def multiply(a: Any, b: Any, out: Any, *, adjoint: bool = False, accumulate: bool = False) -> Any:
    """Return ``a @ b``, or the product with the conjugate transpose of `a`; in `out` if that is given.

    A conjugate transpose takes no copy. Matrices are C-contiguous, of one engine and one dtype, and may be empty. With
    `accumulate`, the product is added to the values of `out`.
    """
    engine = engine_of(b)
    if engine.mutable and out is not None:
        if out.size == 0 or b.shape[0] == 0:
            if not accumulate:
                out.fill(0)
            return out
        by_blas = out.dtype.char in _BY_BLAS
        if engine.name == "numpy" and by_blas:
            # BLAS counts columns first: it computes the transposed product of the transposed matrices.
            conjugate = _CONJUGATE_TRANSPOSE if adjoint else 0
            _gemm(out.dtype.char)(1, b.T, a.T, beta=int(accumulate), c=out.T, trans_b=conjugate, overwrite_c=True)
            return out
        if engine.name == "cupy" and by_blas and not engine.xp.cuda.runtime.is_hip:
            from collops.operators.cublas import multiply as multiply_by_cublas

            multiply_by_cublas(a, b, out, adjoint=adjoint, accumulate=accumulate)
            return out
    product = engine.matmul(a.conj().T if adjoint else a, b)
    return store(out + product if accumulate else product, out)


@cache
def _gemm(char: str) -> Any:
    from scipy.linalg import blas

    return getattr(blas, {"f": "sgemm", "d": "dgemm", "F": "cgemm", "D": "zgemm"}[char])


class Rows:
    """Some rows of the matrix times some columns of the model.

    The ranks of `column`, ``None`` if there is one, have other rows of the matrix and the same columns of the model.
    For data that are wanted whole, `data` are their numbers of rows; forward then gathers them by one message. Adjoint
    sends one allreduce.
    """

    def __init__(self, rows: Any, column: Communicator | None, data: Sequence[int] | None = None) -> None:
        self._rows = rows
        self._engine = engine_of(rows)
        self._column = column
        self._data = None if column is None else data
        if column is not None and data is not None:
            self._here = slice(sum(data[: column.rank]), sum(data[: column.rank + 1]))
        self._buffers = Buffers()

    def converted(self, dtype: Any) -> Rows:
        """Return a copy with the matrix in another dtype."""
        other = copy(self)
        other._rows = self._rows.astype(dtype)
        return other

    def forward(self, x: Any, out: Any) -> Any:
        """Return the product, in `out` if that is given."""
        if self._data is None:
            return multiply(self._rows, x, out)
        assert self._column is not None
        shape = len(self._rows), x.shape[1]
        part = multiply(self._rows, x, self._buffers.local("data", shape, x.dtype, self._engine))
        if not sum(self._data) * shape[1]:
            return part if out is None else out
        return self._column.allgatherv(part, self._data, out=out)

    def adjoint(self, y: Any, out: Any) -> Any:
        """Return the product of the conjugate transpose, in `out` if that is given."""
        if self._column is None:
            return multiply(self._rows, y, out, adjoint=True)
        result = multiply(self._rows, y[self._here] if self._data is not None else y, out, adjoint=True)
        return self._column.allreduce(result, out=out) if result.size else result
