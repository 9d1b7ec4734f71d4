"""Aggregates of the unknowns of a sparse matrix: the same on any number of ranks, and across their boundaries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collops.backend import SparseArray
from collops.comm import Communicator
from collops.exchange.forest import StarForest
from collops.operators import CSRMatrix
from collops.operators.csr.pieces import in_pieces
from collops.operators.csr.products import Rows, merged_rows, own_columns, suits_loops, unsigned

_ROOT, _COVERED = np.uint64(2**63), np.uint64(0)  # larger and smaller than all keys
_MASK = np.uint64(2**62 - 1)
# Weights are rounded, since sums in another order change their last digits. Ratios of usual entries are far from the
# bounds between the steps.
_STEPS, _SHIFT = 1000.7, 0.37


class Graph(NamedTuple):
    """The rows of a matrix, whose entries connect nodes, and the exchange of the values of other ranks' nodes.

    `own` are the columns of this rank's nodes, and `first` is the number of its first node. `largest` and `smallest`
    have the moduli of the largest and the smallest entry of each row that are neither 0 nor on the diagonal.
    """

    rows: SparseArray
    own: slice
    forest: StarForest
    first: int
    largest: np.ndarray
    smallest: np.ndarray

    @property
    def comm(self) -> Communicator:
        return self.forest.comm

    def joined(self, values: np.ndarray) -> np.ndarray:
        """Return the values of all nodes that the rows refer to. Collective."""
        ghosts = self.forest.bcast(values)
        return np.concatenate([ghosts[: self.own.start], values, ghosts[self.own.start :]])


def graph_of(A: CSRMatrix, rows: Rows, block: int) -> Graph:
    """Return the graph of a matrix with these merged rows, or of the norms of its blocks. Collective.

    A block has `block` rows and columns.
    """
    if block > 1:
        A = _norms_of_blocks(A, rows, block)
        rows = merged_rows(A)
    own = own_columns(A)
    return Graph(rows.matrix, own, A.forest, A.rows.offset(A.comm.rank)[0], *_extremes(A.comm, rows.matrix, own.start))


def _norms_of_blocks(A: CSRMatrix, rows: Rows, block: int) -> CSRMatrix:
    from scipy import sparse

    entries = rows.matrix.tocoo()
    i, j = entries.coords
    shape = rows.matrix.shape[0] // block, A.shape[1] // block
    norms = sparse.csr_array((abs(entries.data) ** 2, (i // block, rows.numbers[j] // block)), shape=shape)
    norms.sum_duplicates()  # SciPy 1.13 leaves them
    norms.data = np.sqrt(norms.data)
    return CSRMatrix(norms, comm=A.comm)


def aggregate(graph: Graph, threshold: float) -> tuple[np.ndarray, int]:
    """Return the aggregate of each node of this rank, and how many aggregates belong to this rank. Collective.

    Roots of aggregates are a maximal set of nodes more than two strong connections apart [Bell et al. 2012]: repeatedly
    the nodes with the largest key, a hash of their global number, within this distance. Neighbours join their root, and
    the other nodes join the aggregate of their strongest neighbour. Aggregates are numbered in the order of their
    roots, and belong to the ranks of their roots. Nodes without strong connections get the number -1.
    """
    comm, rows = graph.comm, _strong(graph, threshold)
    connected = np.diff(rows.indptr) > 1  # a row has its diagonal entry
    keys = np.where(connected, _hashed(graph.first + np.arange(rows.shape[0])), _COVERED)
    undecided, changing = connected.copy(), np.ones(rows.shape[0], bool)
    near, far = np.zeros_like(keys), np.zeros_like(keys)  # the largest keys within one and two connections
    while comm.allreduce(np.array(int(undecided.any())), "max"):
        _set_largest(comm, rows, graph.joined(keys), changing, near)
        changing &= (near != _ROOT) & (near != _COVERED)  # others keep their value
        _set_largest(comm, rows, graph.joined(near), undecided, far)
        covered = undecided & (far == _ROOT)
        roots = undecided & (far == keys)
        keys[covered], keys[roots] = _COVERED, _ROOT
        undecided &= ~(covered | roots)
    roots = keys == _ROOT
    count = int(roots.sum())
    labels = np.full(rows.shape[0], -1, np.int64)
    labels[roots] = int(np.sum(comm.allgather(np.array(count))[: comm.rank])) + np.arange(count)
    _set_largest(comm, rows, graph.joined(labels), np.ones(rows.shape[0], bool), labels)
    while comm.allreduce(np.array(int((connected & (labels < 0)).any())), "max"):
        _join_strongest(comm, rows, graph.joined(labels), labels)
    return labels, count


def _extremes(comm: Communicator, rows: SparseArray, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest, and the smallest positive modulus of the entries of each row outside of the diagonal."""
    count = rows.shape[0]
    largest, smallest = np.zeros(count), np.full(count, np.inf)
    if suits_loops(rows):
        from collops.preconditioners.numba_aggregation import extreme_sizes

        matrix, start = unsigned(rows), np.uint64(offset)
        in_pieces(comm, rows.indptr, lambda i, end: extreme_sizes(i, end, *matrix, start, largest, smallest))
        return largest, smallest
    i = np.repeat(np.arange(count), np.diff(rows.indptr))
    sizes = np.where(rows.indices == i + offset, 0, abs(rows.data)).astype(np.float64)
    filled = np.diff(rows.indptr) > 0
    if filled.any():
        starts = rows.indptr[:-1][filled]
        largest[filled] = np.maximum.reduceat(sizes, starts)
        smallest[filled] = np.minimum.reduceat(np.where(sizes > 0, sizes, np.inf), starts)
    return largest, smallest


def _strong(graph: Graph, threshold: float) -> SparseArray:
    """Return the weights of the strong entries, and zeros on the diagonal. Collective.

    A weight is an entry's ratio to the geometric mean of the largest entries, outside of the diagonal, of its row and
    its column; entries are strong if it is at least `threshold`.
    """
    from scipy import sparse

    rows, offset, count = graph.rows, graph.own.start, graph.rows.shape[0]
    roots = graph.joined(np.sqrt(graph.largest))
    lengths = np.empty(count, np.int64)
    if suits_loops(rows):
        from collops.preconditioners.numba_aggregation import strong_entries

        arguments = *unsigned(rows), np.uint64(offset), roots, threshold, _STEPS, _SHIFT, lengths
        parts = in_pieces(graph.comm, rows.indptr, lambda i, end: strong_entries(i, end, *arguments))
        columns, weights = map(np.concatenate, zip(*parts, strict=True))
        columns = columns.view(f"i{columns.itemsize}")
    else:
        i = np.repeat(np.arange(count), np.diff(rows.indptr))
        diagonal = rows.indices == i + offset
        sizes = np.where(diagonal, 0, abs(rows.data)).astype(np.float64)
        means = roots[i + offset] * roots[rows.indices]
        kept = diagonal | ((sizes > 0) & (sizes >= threshold * means))
        weights = np.floor(_STEPS * sizes[kept] / np.where(diagonal, 1, means)[kept] + _SHIFT).astype(np.float32)
        columns = rows.indices[kept]
        lengths[:] = np.bincount(i[kept], minlength=count)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(columns.dtype)
    return sparse.csr_array((weights, columns, starts), shape=rows.shape)


def _set_largest(
    comm: Communicator, rows: SparseArray, values: np.ndarray, chosen: np.ndarray, out: np.ndarray
) -> None:
    """Set `out` to the largest of the values of the nodes of each row that is chosen; no row is empty."""
    if suits_loops(rows):
        from collops.preconditioners.numba_aggregation import largest_of_neighbours

        starts, columns, _ = unsigned(rows)
        arguments = starts, columns, values, chosen, out
        in_pieces(comm, rows.indptr, lambda i, end: largest_of_neighbours(i, end, *arguments))
    elif rows.shape[0]:
        out[chosen] = np.maximum.reduceat(values[rows.indices], rows.indptr[:-1])[chosen]


def _join_strongest(comm: Communicator, rows: SparseArray, neighbours: np.ndarray, labels: np.ndarray) -> None:
    """Give nodes without a label the label of the strongest neighbour; among equals the smallest."""
    if suits_loops(rows):
        from collops.preconditioners.numba_aggregation import strongest_labels

        arguments = *unsigned(rows), neighbours, labels
        in_pieces(comm, rows.indptr, lambda i, end: strongest_labels(i, end, *arguments))
        return
    missing = np.flatnonzero((labels < 0) & (np.diff(rows.indptr) > 1))
    part = rows[missing].tocoo()
    i, j = part.coords
    labelled = neighbours[j] >= 0
    i, candidates, weights = i[labelled], neighbours[j][labelled], part.data[labelled]
    order = np.lexsort((candidates, -weights, i))
    best = order[np.unique(i[order], return_index=True)[1]]
    labels[missing[i[best]]] = candidates[best]


def _hashed(numbers: np.ndarray) -> np.ndarray:
    """Return distinct keys between 1 and 2**62, in an order that looks random."""
    keys = numbers.astype(np.uint64) + np.uint64(1)
    for factor in (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)):
        keys = keys * factor & _MASK  # an odd factor is invertible modulo a power of 2
        keys ^= keys >> np.uint64(31)
    return keys + np.uint64(1)
