"""Weak entries of a matrix apart from the others, so that they add fewer entries to the coarse matrix."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collops.backend import LocalArray, SparseArray, any_true
from collops.operators import CSRMatrix
from collops.operators.csr.compressed import CompressedRows
from collops.operators.csr.pieces import in_pieces
from collops.operators.csr.products import Rows, from_pieces, suits_loops, unsigned
from collops.preconditioners import device_rows
from collops.preconditioners.aggregates import Graph


class Parts(NamedTuple):
    """Two matrices whose sum is a matrix; the rows of `weak` add up to 0."""

    strong: Rows
    weak: Rows


def has_signs_of_m_matrix(A: CSRMatrix) -> bool:
    """Return whether a matrix is real, and its entries outside of the diagonal are not positive. Collective."""
    if A.dtype.kind != "f":
        return False
    positive = sum(int((part.data > 0).sum()) for part in A.entries) - int((A.entries[0].diagonal() > 0).sum())
    return not A.comm.allreduce(np.array(positive, np.int64))


def separated(A: CSRMatrix, rows: Rows, graph: Graph, threshold: float, fraction: float = 0.0) -> Parts | None:
    """Return the matrix with the weak entries, and the matrix that remains. Collective.

    `rows` are the merged rows of `A`, a real matrix. An entry is weak if it is negative, and its modulus is less than
    `threshold` times the largest modulus in its row and in its column, outside of the diagonal. The result is None if
    less than this `fraction` of the entries outside of the diagonal is weak.

    Both parts are symmetric. The weak one is the Laplacian of a graph, and positive semidefinite. The other one is
    positive semidefinite if `A` is a symmetric M-matrix.
    """
    comm, matrix, limits = A.comm, rows.matrix, threshold * graph.joined(graph.largest)
    if fraction and not comm.allreduce(np.array(int(any_true(graph.smallest < limits[graph.own]))), "max"):
        return None
    weak, count = _part(A, matrix, graph.own.start, limits, weak=True), matrix.shape[0]
    sizes = comm.allreduce(np.array([weak.nnz - count, matrix.nnz - count], np.int64))
    if sizes[0] < fraction * sizes[1]:
        return None
    strong = _part(A, matrix, graph.own.start, limits, weak=False)
    return Parts(Rows(strong, rows.numbers), Rows(weak, rows.numbers))


def _part(A: CSRMatrix, matrix: SparseArray, offset: int, limits: LocalArray, *, weak: bool) -> SparseArray:
    """Return the weak entries, or the others."""
    from scipy import sparse

    if isinstance(matrix, CompressedRows):
        return device_rows.separated_entries(matrix, offset, limits, weak)
    count = matrix.shape[0]
    if suits_loops(matrix):
        from collops.preconditioners.numba_aggregation import separated_entries

        lengths = np.empty(count, np.int64)
        arguments = *unsigned(matrix), np.uint64(offset), limits, weak, lengths
        parts = in_pieces(A.comm, matrix.indptr, lambda first, end: separated_entries(first, end, *arguments))
        return from_pieces(parts, lengths, matrix.shape)
    i, j = np.repeat(np.arange(count), np.diff(matrix.indptr)), matrix.indices
    small = (matrix.data < 0) & (abs(matrix.data) < np.minimum(limits[i + offset], limits[j])) & (j != i + offset)
    sums = np.bincount(i[small], matrix.data[small], minlength=count).astype(matrix.dtype)
    kept = ((small == weak) & (matrix.data != 0)) | (j == i + offset)
    values = np.where(j == i + offset, (0 if weak else matrix.data) + (-1 if weak else 1) * sums[i], matrix.data)
    starts = np.concatenate([[0], np.cumsum(np.bincount(i[kept], minlength=count))])
    return sparse.csr_array((values[kept], j[kept], starts), shape=matrix.shape)
