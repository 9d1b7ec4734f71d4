"""Sparse matrices of one rank in the memory of a device, in compressed rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from collops.backend import Engine, LocalArray, SparseArray, any_true, engine_of
from collops.operators.csr.row_kernels import launch


class CompressedRows(NamedTuple):
    """A matrix in compressed rows, with the names of SciPy's attributes.

    Attributes
    ----------
    data : array
        Values of the entries, row by row.
    indices : array of int32
        Their columns.
    indptr : array of int64
        Where the rows begin and end.
    shape : tuple of int
    """

    data: LocalArray
    indices: LocalArray
    indptr: LocalArray
    shape: tuple[int, int]

    @classmethod
    def from_host(cls, matrix: SparseArray, convert: Callable[[np.ndarray], LocalArray]) -> CompressedRows:
        """Return a matrix of SciPy in the memory of a device, to which `convert` copies an array."""
        parts = matrix.data, matrix.indices.astype(np.int32, copy=False), matrix.indptr.astype(np.int64, copy=False)
        data, indices, indptr = map(convert, parts)
        return cls(data, indices, indptr, matrix.shape)

    def to_host(self) -> SparseArray:
        """Return a copy as a matrix of SciPy."""
        from scipy import sparse

        data, indices, indptr = (engine_of(part).to_host(part) for part in self[:3])
        kind = np.int64 if self.nnz > np.iinfo(np.int32).max else np.int32
        return sparse.csr_array((data, indices.astype(kind, copy=False), indptr.astype(kind)), shape=self.shape)

    @property
    def nnz(self) -> int:
        """The number of stored entries."""
        return len(self.indices)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values."""
        return self.data.dtype

    @property
    def engine(self) -> Engine:
        """The engine of the arrays."""
        return engine_of(self.data)

    @property
    def lengths(self) -> LocalArray:
        """The numbers of entries of the rows."""
        return self.indptr[1:] - self.indptr[:-1]

    def astype(self, dtype: np.dtype) -> CompressedRows:
        """Return the matrix with values in another precision."""
        return self._replace(data=self.data.astype(dtype, copy=False))

    def diagonal(self, offset: int = 0) -> LocalArray:
        """Return the entries in the columns `offset`, `offset` + 1, …, one for each row, and 0 where there is none."""
        out = self.engine.xp.zeros(self.shape[0], self.dtype)
        launch("diagonal_entries", self, *self.operands, offset, out)
        return out

    @property
    def operands(self) -> tuple[LocalArray, LocalArray, LocalArray]:
        """The arrays in the order that kernels take them."""
        return self.indptr, self.indices, self.data

    def selected(self, chosen: LocalArray) -> CompressedRows:
        """Return the entries that are chosen by an array of booleans."""
        before = starts_of(chosen)  # how many are chosen before each entry
        return self._replace(data=self.data[chosen], indices=self.indices[chosen], indptr=before[self.indptr])

    def without_zeros(self) -> CompressedRows:
        """Return the entries that are not 0."""
        return self.selected(self.data != 0) if any_true(self.data == 0) else self

    def transposed(self, *, conjugate: bool = False) -> CompressedRows:
        """Return the transpose, whose columns are sorted."""
        xp = self.engine.xp
        order = xp.argsort(self.indices, kind="stable")
        rows = xp.empty(self.nnz, np.int32)
        launch("rows_of_entries", self, self.indptr, rows)
        counts = xp.bincount(self.indices, minlength=self.shape[1]) if self.nnz else xp.zeros(self.shape[1], np.int64)
        data = self.data[order]
        data = data.conj() if conjugate and data.dtype.kind == "c" else data
        return CompressedRows(data, rows[order], starts_of(counts), (self.shape[1], self.shape[0]))

    def split(self, numbers: LocalArray, first: int, count: int) -> tuple[CompressedRows, CompressedRows, np.ndarray]:
        """Return the rows in the columns from `first`, the rows in other columns (renumbered), and these columns.

        `numbers` are the global, sorted numbers of the columns; `count` of them may be local.
        """
        xp, height = self.engine.xp, self.shape[0]
        empty = CompressedRows(self.data[:0], self.indices[:0], xp.zeros(height + 1, np.int64), (height, 0))
        nothing = np.empty(0, np.int64)
        if len(numbers) == count and (
            not count or (int(numbers[0]) == first and int(numbers[-1]) == first + count - 1)
        ):
            return self, empty, nothing
        others, bounds = xp.empty(height, np.int64), (numbers, first, first + count)
        launch("outer_lengths", self, *self.operands[:2], *bounds, others)
        starts = starts_of(others)
        size = int(starts[-1])
        parts = ((xp.empty(n, self.dtype), xp.empty(n, np.int32)) for n in (self.nnz - size, size))
        inner, outer = (CompressedRows(*part, starts, (height, count)) for part in parts)
        launch("split_rows", self, *self.operands, *bounds, *outer.operands, inner.indices, inner.data)
        inner = inner._replace(indptr=self.indptr - starts)
        if not size:
            return inner, empty, nothing
        used, renumbered = xp.unique(outer.indices, return_inverse=True)
        ghosts = self.engine.to_host(numbers[used])
        outer = outer._replace(indices=renumbered.reshape(-1).astype(np.int32), shape=(height, len(ghosts)))
        return inner, outer, ghosts


def same_pattern(mine: CompressedRows, other: CompressedRows) -> bool:
    """Return whether two matrices have their entries in the same positions."""
    if mine.shape != other.shape or mine.nnz != other.nnz:
        return False
    pairs = (mine.indptr, other.indptr), (mine.indices, other.indices)
    return all(one is two or not any_true(one != two) for one, two in pairs)


def starts_of(lengths: LocalArray) -> LocalArray:
    """Return where rows of these lengths begin and end."""
    starts = engine_of(lengths).xp.zeros(len(lengths) + 1, np.int64)
    if len(lengths):  # a rank may have no rows
        starts[1:] = lengths.cumsum(dtype=np.int64)
    return starts
