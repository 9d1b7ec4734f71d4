"""Sparse blocks for JAX arrays: a gather, a product and a sum over each row, which every transformation knows.

The adjoint multiplies by a transposed copy, made when it is first used, so that it sums over rows, too.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from collops.backend import Engine

__all__ = ["TracedBlock"]


class TracedBlock:
    """A matrix whose entries are constants of the program that multiplies by it.

    Parameters
    ----------
    engine : Engine
        That of JAX.
    matrix : scipy.sparse.csr_array
    dtype : dtype
        Of the vectors; values are kept in it.
    """

    def __init__(self, engine: Engine, matrix: Any, dtype: np.dtype) -> None:
        self._engine = engine
        self._host = matrix
        self._dtype = dtype
        self._entries = _Entries(engine, matrix, dtype)
        self._turned: _Entries | None = None

    def multiply(self, x: Any, out: Any, add: bool) -> None:
        """Set or add the product."""
        _store(self._entries.times(x.value), out, add)

    def multiply_adjoint(self, y: Any, out: Any, add: bool) -> None:
        """Set or add the product of the conjugate transpose."""
        if self._turned is None:
            self._turned = _Entries(self._engine, self._host.conj().T.tocsr(), self._dtype)
        _store(self._turned.times(y.value), out, add)


class _Entries:
    """Values and places of a matrix, by row."""

    def __init__(self, engine: Engine, matrix: Any, dtype: np.dtype) -> None:
        self._count = matrix.shape[0]
        rows = np.repeat(np.arange(self._count, dtype=np.int32), np.diff(matrix.indptr))
        arrays = rows, matrix.indices.astype(np.int32), matrix.data.astype(dtype)
        self._rows, self._columns, self._values = (engine.from_host(array).value for array in arrays)

    def times(self, x: Any) -> Any:
        products = self._values * x.at[self._columns].get(mode="promise_in_bounds")
        return jax.ops.segment_sum(products, self._rows, self._count, indices_are_sorted=True)


def _store(product: Any, out: Any, add: bool) -> None:
    out[...] = out.value + product if add else product
