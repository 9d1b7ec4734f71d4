"""Aggregates of the unknowns of a sparse matrix: the same on any number of ranks, and across their boundaries."""

from __future__ import annotations

import numpy as np

from collops.backend import SparseArray
from collops.operators import CSRMatrix
from collops.operators.csr.products import merged_rows, own_columns, renumbered

_ROOT, _COVERED = np.uint64(2**63), np.uint64(0)  # larger and smaller than all keys
_MASK = np.uint64(2**62 - 1)
# Weights are rounded, since sums in another order change their last digits. Ratios of usual entries are far from the
# bounds between the steps.
_STEPS, _SHIFT = 1000.7, 0.37


def graph_of(A: CSRMatrix, block: int) -> CSRMatrix:
    """Return the moduli of the entries of `A`, or the norms of its blocks of `block` rows and columns. Collective."""
    from scipy import sparse

    rows, columns = merged_rows(A)
    if block == 1:
        return CSRMatrix(renumbered(abs(rows), columns, A.shape[1]), A.columns, comm=A.comm)
    entries = rows.tocoo()
    i, j = entries.coords
    shape = rows.shape[0] // block, A.shape[1] // block
    norms = sparse.csr_array((abs(entries.data) ** 2, (i // block, columns[j] // block)), shape=shape)
    norms.sum_duplicates()  # SciPy 1.13 leaves them
    norms.data = np.sqrt(norms.data)
    return CSRMatrix(norms, comm=A.comm)


def aggregate(graph: CSRMatrix, threshold: float) -> tuple[np.ndarray, int]:
    """Return the aggregate of each node of this rank, and how many aggregates belong to this rank. Collective.

    Roots of aggregates are a maximal set of nodes more than two strong connections apart [Bell et al. 2012]: repeatedly
    the nodes with the largest key, a hash of their global number, within this distance. Neighbours join their root, and
    the other nodes join the aggregate of their strongest neighbour. Aggregates are numbered in the order of their
    roots, and belong to the ranks of their roots. Nodes without strong connections get the number -1.
    """
    exchange = _Neighbours(graph)
    rows = _strong(exchange, threshold)
    connected = np.diff(rows.indptr) > 1  # a row has its diagonal entry
    keys = np.where(connected, _hashed(graph.rows.offset(graph.comm.rank)[0] + np.arange(rows.shape[0])), _COVERED)
    undecided = connected.copy()
    while graph.comm.allreduce(np.array(int(undecided.any())), "max"):
        largest = keys
        for _ in range(2):
            largest = _largest(rows, exchange.joined(largest))
        covered = undecided & (largest == _ROOT)
        roots = undecided & (largest == keys)
        keys[covered], keys[roots] = _COVERED, _ROOT
        undecided &= ~(covered | roots)
    roots = keys == _ROOT
    count = int(roots.sum())
    labels = np.full(rows.shape[0], -1, np.int64)
    labels[roots] = int(np.sum(graph.comm.allgather(np.array(count))[: graph.comm.rank])) + np.arange(count)
    labels = _largest(rows, exchange.joined(labels))
    while graph.comm.allreduce(np.array(int((connected & (labels < 0)).any())), "max"):
        labels = _with_strongest(rows, exchange.joined(labels), labels)
    return labels, count


class _Neighbours:
    """The rows of a graph, and the exchange of the values of the nodes that they refer to."""

    def __init__(self, graph: CSRMatrix) -> None:
        self.graph = graph
        self.rows, _ = merged_rows(graph)
        self.own = own_columns(graph)

    def joined(self, values: np.ndarray) -> np.ndarray:
        """Return the values of all nodes that the rows refer to. Collective."""
        ghosts = self.graph.forest.bcast(values)
        return np.concatenate([ghosts[: self.own.start], values, ghosts[self.own.start :]])


def _strong(exchange: _Neighbours, threshold: float) -> SparseArray:
    """Return the weights of the strong entries, and zeros on the diagonal. Collective.

    A weight is an entry's ratio to the geometric mean of the largest entries, outside of the diagonal, of its row and
    its column; entries are strong if it is at least `threshold`.
    """
    from scipy import sparse

    rows, count = exchange.rows, exchange.rows.shape[0]
    i = np.repeat(np.arange(count), np.diff(rows.indptr))
    diagonal = rows.indices == i + exchange.own.start
    sizes = np.where(diagonal, 0, rows.data)
    largest = exchange.joined(largest_of_rows(rows, sizes))
    means = np.sqrt(largest[i + exchange.own.start] * largest[rows.indices])
    kept = diagonal | ((sizes > 0) & (sizes >= threshold * means))
    weights = np.floor(_STEPS * sizes[kept] / np.where(means > 0, means, 1)[kept] + _SHIFT)
    starts = np.concatenate([[0], np.cumsum(np.bincount(i[kept], minlength=count))])
    return sparse.csr_array((weights, rows.indices[kept], starts), shape=rows.shape)


def largest_of_rows(rows: SparseArray, sizes: np.ndarray) -> np.ndarray:
    """Return the largest of the sizes of the entries of each row; 0 for an empty row."""
    largest = np.zeros(rows.shape[0], sizes.dtype)
    filled = np.diff(rows.indptr) > 0
    if filled.any():
        largest[filled] = np.maximum.reduceat(sizes, rows.indptr[:-1][filled])
    return largest


def _largest(rows: SparseArray, values: np.ndarray) -> np.ndarray:
    """Return the largest of the values of the nodes of each row; no row is empty."""
    return np.maximum.reduceat(values[rows.indices], rows.indptr[:-1]) if rows.shape[0] else values[:0]


def _with_strongest(rows: SparseArray, neighbours: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the labels, and for nodes without one the label of the strongest neighbour; among equals the smallest."""
    missing = np.flatnonzero((labels < 0) & (np.diff(rows.indptr) > 1))
    part = rows[missing].tocoo()
    i, j = part.coords
    labelled = neighbours[j] >= 0
    i, candidates, weights = i[labelled], neighbours[j][labelled], part.data[labelled]
    order = np.lexsort((candidates, -weights, i))
    best = order[np.unique(i[order], return_index=True)[1]]
    labels = labels.copy()
    labels[missing[i[best]]] = candidates[best]
    return labels


def _hashed(numbers: np.ndarray) -> np.ndarray:
    """Return distinct keys between 1 and 2**62, in an order that looks random."""
    keys = numbers.astype(np.uint64) + np.uint64(1)
    for factor in (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)):
        keys = keys * factor & _MASK  # an odd factor is invertible modulo a power of 2
        keys ^= keys >> np.uint64(31)
    return keys + np.uint64(1)
