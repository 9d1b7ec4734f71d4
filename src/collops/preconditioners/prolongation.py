"""Prolongations of smoothed aggregation: near null space vectors on the aggregates, smoothed by the matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collops.array import Layout
from collops.backend import LocalArray, SparseArray, any_true, engine_of
from collops.comm import Communicator
from collops.exchange.forest import StarForest
from collops.exchange.indices import owners, sent_to
from collops.operators import CSRMatrix
from collops.operators.csr.compressed import CompressedRows, starts_of
from collops.operators.csr.pieces import in_pieces
from collops.operators.csr.products import Rows, from_pieces, own_columns, suits_loops, unsigned
from collops.preconditioners import device_rows
from collops.preconditioners.aggregates import Graph

Multiply = Callable[[StarForest, Rows, slice, Rows], Rows]

_OVER_SMOOTHED = 4 / 3  # step of the smoothing, times the largest eigenvalue [Vaněk et al. 1996]
_ROWS_OF_A_RANK = 1000  # coarser levels use fewer ranks
_SMALLEST_DIAGONAL = 0.5  # of a filtered row, relative to its diagonal before


def smoothed(
    A: CSRMatrix,
    rows: Rows,
    diagonal: LocalArray,
    tentative: Rows,
    coarse: Layout,
    largest: float,
    multiply: Multiply,
) -> tuple[CSRMatrix, Rows]:
    """Return the prolongation after a step of Jacobi's iteration, and its rows. Collective.

    `rows` are the merged rows of `A`, or of another matrix with the same columns, and `diagonal` is their diagonal;
    `largest` is the largest eigenvalue of this matrix, divided by its diagonal. `multiply` is
    :func:`collops.operators.csr.products.product_rows`, or a product that repeats it; or of the module
    :mod:`collops.operators.csr.device_products`, for rows on a device.
    """
    own = own_columns(A)
    scale = _OVER_SMOOTHED / largest / diagonal
    steps = _smoothing(A.comm, rows.matrix, own.start, scale.astype(A.dtype))
    product = multiply(A.forest, Rows(steps, rows.numbers), own, tentative)
    return CSRMatrix._from_rows(*product, A.rows, coarse, A.comm), product


def filtered(A: CSRMatrix, rows: Rows, graph: Graph, threshold: float) -> Rows:
    """Return the entries that are not small in their row, with the sum of the others added to the diagonal. Collective.

    `rows` are the merged rows of `A`. They are returned unchanged if no rank has small entries. Weak connections would
    add entries to the prolongation and the coarse matrix without improving the convergence.

    A row whose diagonal would become smaller than half keeps all its entries. Coarse matrices have a few such rows,
    with large positive entries. Divided by their small diagonal they would have a large eigenvalue, and with it the
    prolongation would hardly be smoothed anywhere.
    """
    from scipy import sparse

    matrix, offset = rows.matrix, graph.own.start
    limits = threshold * graph.largest
    if not A.comm.allreduce(np.array(int(any_true(graph.smallest < limits))), "max"):
        return rows
    if isinstance(matrix, CompressedRows):
        return Rows(device_rows.filtered_entries(matrix, offset, limits, _SMALLEST_DIAGONAL), rows.numbers)
    if suits_loops(matrix):
        from collops.preconditioners.numba_aggregation import filtered_entries

        lengths = np.empty(matrix.shape[0], np.int64)
        arguments = *unsigned(matrix), np.uint64(offset), limits, _SMALLEST_DIAGONAL, lengths
        parts = in_pieces(A.comm, matrix.indptr, lambda first, end: filtered_entries(first, end, *arguments))
        return Rows(from_pieces(parts, lengths, matrix.shape), rows.numbers)
    own = np.arange(matrix.shape[0])
    i = np.repeat(own, np.diff(matrix.indptr))
    weak = (matrix.indices != i + offset) & (abs(matrix.data) < limits[i])
    removed = sparse.csr_array((np.where(weak, matrix.data, 0), matrix.indices, matrix.indptr), shape=matrix.shape)
    sums, diagonal = removed.sum(axis=1), matrix.diagonal(offset)[: len(own)]
    filters = np.real(diagonal + sums) >= _SMALLEST_DIAGONAL * np.real(diagonal)
    removed.data[~filters[i]] = 0
    kept = matrix - removed + sparse.csr_array((np.where(filters, sums, 0), (own, own + offset)), shape=matrix.shape)
    kept = sparse.csr_array(kept)
    kept.eliminate_zeros()
    kept.sort_indices()
    return Rows(kept, rows.numbers)


def tentative(
    A: CSRMatrix, labels: LocalArray, counts: list[int], vectors: LocalArray, block: int
) -> tuple[Rows, Layout, LocalArray]:
    """Return the prolongation whose columns are the vectors on the aggregates, made orthonormal. Collective.

    Also returns the layout of its columns, and this rank's rows of the coarse vectors: the factors that give back the
    vectors. Several vectors, or unknowns of a point, are made orthonormal on the host.
    """
    from scipy import sparse

    on_device = isinstance(A.entries[0], CompressedRows)
    if not block == vectors.shape[1] == 1:
        engine = engine_of(labels)
        rows, coarse, factors = _orthonormal(A, engine.to_host(labels), engine.to_host(vectors), counts, block)
        if on_device:
            matrix, numbers = CompressedRows.from_host(rows.matrix, engine.from_host), engine.from_host(rows.numbers)
            rows = Rows(matrix, numbers)
        return rows, coarse, factors
    xp, coarse = engine_of(labels).xp, _on_fewer_ranks(counts, 1)
    nodes = xp.flatnonzero(labels >= 0)
    numbers, places = _used(labels[nodes], sum(counts))
    # The vector itself is as good.
    entries, columns, starts = vectors[nodes, 0], places[labels[nodes]], starts_of(labels >= 0)
    shape = len(labels), len(numbers)
    if on_device:
        matrix = CompressedRows(entries, columns.astype(np.int32), starts, shape)
    else:
        matrix = sparse.csr_array((entries, columns, starts), shape=shape)
    return Rows(matrix, numbers), coarse, xp.ones((coarse.local_size(A.comm.rank), 1), vectors.dtype)


def _used(labels: LocalArray, count: int) -> tuple[LocalArray, LocalArray]:
    """Return the labels that occur, sorted, and the place of each label among them."""
    xp = engine_of(labels).xp
    used = xp.zeros(count, bool)
    used[labels] = True
    return xp.flatnonzero(used), xp.cumsum(used) - 1


def _orthonormal(
    A: CSRMatrix, labels: np.ndarray, vectors: np.ndarray, counts: list[int], block: int
) -> tuple[Rows, Layout, np.ndarray]:
    """Return :func:`tentative` on the host."""
    from scipy import sparse

    comm, width = A.comm, vectors.shape[1]
    aggregates = Layout.split(sum(counts), comm.size, sizes=counts)
    coarse = _on_fewer_ranks(counts, width)
    nodes = np.flatnonzero(labels >= 0)
    numbers, places = _used(labels[nodes], sum(counts))
    # An aggregate's owner receives its rows, and returns the orthonormal ones.
    ranks, targets = owners(aggregates, comm.rank, labels[nodes])
    first = A.rows.offset(comm.rank)[0] // block
    addresses = np.stack([targets, first + nodes, np.full(len(nodes), comm.rank)], axis=1)
    members, parts = sent_to(comm, ranks, addresses, vectors.reshape(-1, block, width)[nodes])
    factors = _orthonormalised(members, parts, counts[comm.rank])
    arrived, values = sent_to(comm, members[:, 2], members[:, 1], parts)
    i = (arrived - first)[:, None, None] * block + np.arange(block)[:, None]
    j = places[labels[arrived - first]][:, None, None] * width + np.arange(width)
    positions = tuple(np.broadcast_to(index, values.shape).ravel() for index in (i, j))
    rows = sparse.csr_array((values.ravel(), positions), shape=(len(vectors), len(numbers) * width))
    rows.eliminate_zeros()
    ranks, _ = owners(coarse, comm.rank, aggregates.offset(comm.rank)[0] * width + np.arange(factors.shape[0]))
    (coarse_vectors,) = sent_to(comm, ranks, factors)
    return Rows(rows, (numbers[:, None] * width + np.arange(width)).reshape(-1)), coarse, coarse_vectors


def _orthonormalised(members: np.ndarray, parts: np.ndarray, count: int) -> np.ndarray:
    """Make the rows of each of `count` aggregates orthonormal, in place; return the triangular factors, stacked.

    `members` has the aggregate and the global number of each node, `parts` the rows of its unknowns. If an aggregate
    has fewer unknowns than there are vectors, its last columns are 0.
    """
    block, width = parts.shape[1:]
    order = np.lexsort((members[:, 1], members[:, 0]))
    sizes = np.bincount(members[:, 0], minlength=count)
    starts = np.cumsum(sizes) - sizes
    factors = np.zeros((count, width, width), parts.dtype)
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        rows = order[starts[chosen][:, None] + np.arange(size)]
        q, r = np.linalg.qr(parts[rows].reshape(len(chosen), size * block, width))
        columns = np.zeros((len(chosen), size * block, width), parts.dtype)
        columns[..., : q.shape[-1]] = q
        factors[chosen, : r.shape[-2]] = r
        parts[rows] = columns.reshape(len(chosen), size, block, width)
    return factors.reshape(-1, width)


def _on_fewer_ranks(counts: list[int], width: int) -> Layout:
    """Return the layout of the coarse vectors: on the ranks of the aggregates, or evenly on fewer ranks."""
    ranks = len(counts)
    used = max(1, min(ranks, sum(counts) * width // _ROWS_OF_A_RANK))
    if used < ranks:
        counts = [*Layout.split(sum(counts), used).sizes[0], *[0] * (ranks - used)]
    sizes = [number * width for number in counts]
    return Layout.split(sum(sizes), ranks, sizes=sizes)


def _smoothing(comm: Communicator, rows: SparseArray, offset: int, scale: LocalArray) -> SparseArray:
    """Return the identity minus the rows of a matrix, multiplied by `scale`; in the positions of the matrix."""
    from scipy import sparse

    if isinstance(rows, CompressedRows):
        return device_rows.smoothing_entries(rows, offset, scale)
    values = np.empty_like(rows.data)
    if suits_loops(rows):
        from collops.preconditioners.numba_aggregation import smoothing_entries

        arguments = *unsigned(rows), np.uint64(offset), scale, values
        in_pieces(comm, rows.indptr, lambda first, end: smoothing_entries(first, end, *arguments))
    else:
        i = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
        values[:] = -scale[i] * rows.data
        values[rows.indices == i + offset] += 1
    return sparse.csr_array((values, rows.indices, rows.indptr), shape=rows.shape)
