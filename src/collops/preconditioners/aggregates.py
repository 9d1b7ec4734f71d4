"""Aggregates of the unknowns of a sparse matrix: the same on any number of ranks, and across their boundaries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collops.array import Layout
from collops.backend import LocalArray, SparseArray, engine_of
from collops.comm import Communicator
from collops.exchange.forest import StarForest
from collops.operators import CSRMatrix
from collops.operators.csr import device_products
from collops.operators.csr.compressed import CompressedRows, starts_of
from collops.operators.csr.pieces import in_pieces
from collops.operators.csr.products import (
    Rows,
    from_pieces,
    merged_rows,
    own_columns,
    product_with_zeros,
    suits_loops,
    unsigned,
)
from collops.preconditioners import device_rows

_ROOT, _COVERED = np.uint64(2**63), np.uint64(0)  # larger and smaller than all keys
_MASK = np.uint64(2**62 - 1)
# Strengths are rounded, since sums in another order change their last digits. Ratios of usual entries are far from the
# bounds between the steps.
_STEPS, _SHIFT = 1000.7, 0.37


class Graph(NamedTuple):
    """The rows of a matrix, whose entries connect nodes, and the exchange of the values of other ranks' nodes.

    `own` are the columns of this rank's nodes, and `first` is the number of its first node. `largest` and `smallest`
    have the moduli of the largest and the smallest entry of each row that are neither 0 nor on the diagonal. All arrays
    are on the host, or on a device.
    """

    rows: SparseArray
    own: slice
    forest: StarForest
    first: int
    largest: LocalArray
    smallest: LocalArray

    @property
    def comm(self) -> Communicator:
        """The ranks."""
        return self.forest.comm

    def joined(self, values: LocalArray) -> LocalArray:
        """Return the values of all nodes that the rows refer to: with one rank `values` itself. Collective."""
        if self.comm.size == 1:
            return values
        words = values.view(np.float64)  # all values share the memory and the launches of one exchange
        ghosts = self.forest.bcast(words).view(values.dtype)
        return engine_of(values).xp.concatenate([ghosts[: self.own.start], values, ghosts[self.own.start :]])


def graph_of(A: CSRMatrix, rows: Rows, block: int) -> Graph:
    """Return the graph of a matrix with these merged rows, or of the norms of its blocks. Collective.

    A block has `block` rows and columns.
    """
    if block > 1:
        on_device = isinstance(rows.matrix, CompressedRows)
        A = _norms_on_devices(A, rows, block) if on_device else _norms_of_blocks(A, rows, block)
        rows = device_products.merged_rows(A) if on_device else merged_rows(A)
    own = own_columns(A)
    return Graph(rows.matrix, own, A.forest, A.rows.offset(A.comm.rank)[0], *_extremes(A.comm, rows.matrix, own.start))


def _norms_of_blocks(A: CSRMatrix, rows: Rows, block: int) -> CSRMatrix:
    from scipy import sparse

    matrix, count = rows.matrix, rows.matrix.shape[0]
    # The squares of the entries, with several entries in a column; the product adds them up, and the rows of a node.
    nodes, columns = np.unique(rows.numbers // block, return_inverse=True)
    entries = abs(matrix.data) ** 2, columns.astype(matrix.indices.dtype)[matrix.indices], matrix.indptr
    squares = sparse.csr_array(entries, shape=(count, len(nodes)))
    sums = sparse.csr_array(
        (np.ones(count), np.arange(count), np.arange(0, count + 1, block)), shape=(count // block, count)
    )
    norms = product_with_zeros(A.comm, sums, squares)
    norms.data = np.sqrt(norms.data)
    layout = _layout_of_nodes(A, block)
    return CSRMatrix._from_rows(norms, nodes, layout, layout, A.comm)


def _norms_on_devices(A: CSRMatrix, rows: Rows, block: int) -> CSRMatrix:
    """Return the norms of blocks as sums in the same order: a node's rows are one row of a product's left matrix."""
    matrix, xp = rows.matrix, rows.matrix.engine.xp
    nodes, places = xp.unique(rows.numbers // block, return_inverse=True)
    width, starts = len(rows.numbers), xp.ascontiguousarray(matrix.indptr[::block])
    squares = xp.square(abs(matrix.data)).astype(np.float64)
    joined = CompressedRows(squares, matrix.indices, starts, (len(starts) - 1, width))
    units = xp.ones(width), places.reshape(-1).astype(np.int32), xp.arange(width + 1, dtype=np.int64)
    norms = device_products.product(joined, CompressedRows(*units, (width, len(nodes))))
    norms, layout = norms._replace(data=xp.sqrt(norms.data)), _layout_of_nodes(A, block)
    return CSRMatrix._from_rows(norms, nodes, layout, layout, A.comm)


def _layout_of_nodes(A: CSRMatrix, block: int) -> Layout:
    return Layout.split(A.rows.size // block, A.comm.size, sizes=[size // block for size in A.rows.sizes[0]])


def aggregate(graph: Graph, threshold: float) -> tuple[LocalArray, int]:
    """Return the aggregate of each node of this rank, and how many aggregates belong to this rank. Collective.

    Roots of aggregates are a maximal set of nodes more than two strong connections apart [Bell et al. 2012]: repeatedly
    the nodes with the largest key, a hash of their global number, within this distance. Neighbours join their root, and
    the other nodes join the aggregate of their strongest neighbour. Aggregates are numbered in the order of their
    roots, and belong to the ranks of their roots. Nodes without strong connections get the number -1.
    """
    comm, xp = graph.comm, engine_of(graph.largest).xp
    roots_of_sizes = graph.joined(xp.sqrt(graph.largest))
    rows = _strong(graph, roots_of_sizes, threshold)
    keys, undecided, changing = _first_keys(graph, rows)
    near, far = xp.zeros_like(keys), xp.zeros_like(keys)  # the largest keys within one and two connections
    remaining = True
    while comm.allreduce(np.array(int(remaining)), "max"):
        _set_largest(comm, rows, graph.joined(keys), changing, near)
        _set_largest(comm, rows, graph.joined(near), undecided, far)
        remaining = _settle(rows, near, far, keys, undecided, changing)
    before = starts_of(keys == _ROOT)
    count = int(before[-1])
    labels = _labels_of_roots(rows, before, int(np.sum(comm.allgather(np.array(count))[: comm.rank])))
    _set_largest(comm, rows, graph.joined(labels.copy()), xp.ones(rows.shape[0], bool), labels)
    remaining = True
    while comm.allreduce(np.array(int(remaining)), "max"):
        remaining = _join_strongest(graph, rows, roots_of_sizes, labels)
    return labels, count


def _extremes(comm: Communicator, rows: SparseArray, offset: int) -> tuple[LocalArray, LocalArray]:
    """Return the largest, and the smallest positive modulus of the entries of each row outside of the diagonal."""
    count, xp = rows.shape[0], engine_of(rows.data).xp
    largest, smallest = xp.zeros(count), xp.full(count, np.inf)
    if isinstance(rows, CompressedRows):
        device_rows.extreme_sizes(rows, offset, largest, smallest)
        return largest, smallest
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


def _strong(graph: Graph, roots: LocalArray, threshold: float) -> SparseArray:
    """Return the strong entries, and those on the diagonal.

    An entry is strong if its ratio to the geometric mean of the largest entries, outside of the diagonal, of its row
    and its column is at least `threshold`; `roots` are the square roots of these largest entries.
    """
    from scipy import sparse

    rows, offset, count = graph.rows, graph.own.start, graph.rows.shape[0]
    if isinstance(rows, CompressedRows):
        return device_rows.strong_entries(rows, offset, roots, threshold)
    own_roots = roots[graph.own]
    if count and (graph.smallest >= threshold * own_roots * roots.max()).all() and rows.data.all():
        return rows  # all entries are strong
    if suits_loops(rows):
        from collops.preconditioners.numba_aggregation import strong_entries

        lengths = np.empty(count, np.int64)
        arguments = *unsigned(rows), np.uint64(offset), roots, threshold, lengths
        parts = in_pieces(graph.comm, rows.indptr, lambda first, end: strong_entries(first, end, *arguments))
        return from_pieces(parts, lengths, rows.shape)
    i = np.repeat(np.arange(count), np.diff(rows.indptr))
    diagonal, sizes = rows.indices == i + offset, abs(rows.data).astype(np.float64)
    kept = diagonal | ((sizes > 0) & (sizes >= threshold * (own_roots[i] * roots[rows.indices])))
    starts = np.concatenate([[0], np.cumsum(np.bincount(i[kept], minlength=count))])
    return sparse.csr_array((rows.data[kept], rows.indices[kept], starts), shape=rows.shape)


def _set_largest(
    comm: Communicator, rows: SparseArray, values: LocalArray, chosen: LocalArray, out: LocalArray
) -> None:
    """Set `out` to the largest of the values of the nodes of each row that is chosen; no row is empty."""
    if isinstance(rows, CompressedRows):
        device_rows.set_largest(rows, values, chosen, out)
    elif suits_loops(rows):
        from collops.preconditioners.numba_aggregation import largest_of_neighbours

        starts, columns, _ = unsigned(rows)
        arguments = starts, columns, values, chosen, out
        in_pieces(comm, rows.indptr, lambda i, end: largest_of_neighbours(i, end, *arguments))
    elif rows.shape[0]:
        out[chosen] = np.maximum.reduceat(values[rows.indices], rows.indptr[:-1])[chosen]


def _first_keys(graph: Graph, rows: SparseArray) -> tuple[LocalArray, LocalArray, LocalArray]:
    """Return the keys of this rank's nodes, whether they are undecided, and whether a neighbour's key may change."""
    if isinstance(rows, CompressedRows):
        return device_rows.first_keys(rows, graph.first, _COVERED)
    connected = np.diff(rows.indptr) > 1  # a row has its diagonal entry
    keys = np.where(connected, _hashed(graph.first + np.arange(rows.shape[0])), _COVERED)
    return keys, connected, np.ones(rows.shape[0], bool)


def _settle(
    rows: SparseArray, near: LocalArray, far: LocalArray, keys: LocalArray, undecided: LocalArray, changing: LocalArray
) -> bool:
    """Settle nodes whose largest key within two connections is a root's or their own: they are covered, or roots.

    Nodes whose largest neighbour is settled stop changing. Returns whether a node remains undecided.
    """
    if isinstance(rows, CompressedRows):
        return device_rows.settle(rows, near, far, _COVERED, _ROOT, keys, undecided, changing)
    changing &= (near != _ROOT) & (near != _COVERED)
    covered = undecided & (far == _ROOT)
    roots = undecided & (far == keys)
    keys[covered], keys[roots] = _COVERED, _ROOT
    undecided &= ~(covered | roots)
    return bool(undecided.any())


def _labels_of_roots(rows: SparseArray, before: LocalArray, first: int) -> LocalArray:
    """Return the labels of roots in their order, from `first`, and -1 for other nodes.

    `before` has the number of roots before each node, and of all roots.
    """
    if isinstance(rows, CompressedRows):
        return device_rows.labels_of_roots(rows, before, first)
    return np.where(np.diff(before) > 0, first + before[:-1], -1)


def _join_strongest(graph: Graph, rows: SparseArray, roots: LocalArray, labels: LocalArray) -> bool:
    """Give nodes without a label the label of the strongest neighbour; among equals the smallest. Collective.

    The strength is the ratio of an entry to the geometric mean in :func:`_strong`, rounded. Returns whether a node with
    neighbours remains without a label.
    """
    neighbours, offset = graph.joined(labels.copy()), graph.own.start
    if isinstance(rows, CompressedRows):
        return device_rows.set_strongest(rows, offset, roots, _STEPS, _SHIFT, neighbours, labels)
    connected = np.diff(rows.indptr) > 1
    if suits_loops(rows):
        from collops.preconditioners.numba_aggregation import strongest_labels

        arguments = *unsigned(rows), np.uint64(offset), roots, _STEPS, _SHIFT, neighbours, labels
        in_pieces(graph.comm, rows.indptr, lambda first, end: strongest_labels(first, end, *arguments))
        return bool((connected & (labels < 0)).any())
    missing = np.flatnonzero((labels < 0) & connected)
    part = rows[missing].tocoo()
    i, j = part.coords
    labelled = (neighbours[j] >= 0) & (j != missing[i] + offset)
    i, j = i[labelled], j[labelled]
    sizes = abs(part.data[labelled]).astype(np.float64)
    strengths = np.floor(_STEPS * sizes / (roots[missing[i] + offset] * roots[j]) + _SHIFT)
    candidates = neighbours[j]
    order = np.lexsort((candidates, -strengths, i))
    best = order[np.unique(i[order], return_index=True)[1]]
    labels[missing[i[best]]] = candidates[best]
    return bool((connected & (labels < 0)).any())


def _hashed(numbers: np.ndarray) -> np.ndarray:
    """Return distinct keys between 1 and 2**62, in an order that looks random."""
    keys = numbers.astype(np.uint64) + np.uint64(1)
    for factor in (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)):
        keys = keys * factor & _MASK  # an odd factor is invertible modulo a power of 2
        keys ^= keys >> np.uint64(31)
    return keys + np.uint64(1)
