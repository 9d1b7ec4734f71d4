"""Local sparse blocks of JAX; see ``blocks``."""

from __future__ import annotations

import numpy as np

from collops.backend import Engine, LocalArray, SparseArray
from collops.operators.csr.blocks import dtype_of_entries


class _TracedBlock:
    """A matrix whose entries are constants of the JAX program that multiplies by it: a gather and a sum over each row.

    The adjoint multiplies by a transposed copy, made at its first use, so that it sums over rows as well.
    """

    def __init__(self, engine: Engine, matrix: SparseArray, dtype: np.dtype) -> None:
        self._engine = engine
        self._host = matrix
        self._dtype = dtype
        self._entries = self._coordinates(matrix)
        self._adjoint_entries: tuple[int, LocalArray, LocalArray, LocalArray] | None = None

    def multiply(self, x: LocalArray, out: LocalArray, add: bool) -> LocalArray:
        return self._product(self._entries, x, out, add)

    def multiply_adjoint(self, y: LocalArray, out: LocalArray, add: bool) -> LocalArray:
        if self._adjoint_entries is None:
            self._adjoint_entries = self._coordinates(self._host.conj().T.tocsr())
        return self._product(self._adjoint_entries, y, out, add)

    def _coordinates(self, matrix: SparseArray) -> tuple[int, LocalArray, LocalArray, LocalArray]:
        """Return the number of rows, and row, column and value of each entry."""
        rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
        values = matrix.data.astype(dtype_of_entries(matrix, self._dtype))
        arrays = rows, matrix.indices.astype(np.int32), values
        return matrix.shape[0], *map(self._engine.from_host, arrays)

    @staticmethod
    def _product(
        entries: tuple[int, LocalArray, LocalArray, LocalArray], x: LocalArray, out: LocalArray, add: bool
    ) -> LocalArray:
        import jax

        count, rows, columns, values = entries
        products = values * x.at[columns].get(mode="promise_in_bounds")
        sums = jax.ops.segment_sum(products, rows, count, indices_are_sorted=True)
        return out + sums if add else sums


make_block = _TracedBlock
