"""Products and transposes of distributed sparse matrices on devices, as in :mod:`collops.operators.csr.products`.

Rows of other ranks are exchanged between devices too; only their numbers of entries by rank are read on the host.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collops.backend import Engine, LocalArray
from collops.exchange.forest import StarForest
from collops.operators.csr.compressed import CompressedRows, same_pattern, starts_of
from collops.operators.csr.fetched import FetchedRows, returned_rows
from collops.operators.csr.matrix import CSRMatrix
from collops.operators.csr.products import Rows, own_columns
from collops.operators.csr.row_kernels import launch, launch_with_tables

# Threads of a row, rows of a block, and places of a row's table: for right matrices with one entry in a row; for short
# rows of a product, and for some and many terms; for long rows; and for rows with tables in global memory. The threads
# of a row are at most a quarter of its places, so that a table has places for all that they find at once.
_SINGLE, _SHORT, _SOME, _MANY = (2, 64, 32), (4, 32, 32), (8, 32, 64), (16, 8, 256)
_LONG, _ANY = (32, 1, 2048), (32, 8, 0)
_MANY_TERMS = 200  # of a row of a product with about 40 entries
_FEWEST_PLACES = 16
_MAX_PLACES = 1 << 27  # of all tables in global memory at once


def on_device(A: CSRMatrix, engine: Engine) -> CSRMatrix:
    """Return a matrix whose entries are in the memory of an engine's devices; it shares all arrays with `A`."""
    local, remote = A._parts(engine, A.dtype)
    return A._with_entries((local.rows, remote.rows))


def merged_rows(A: CSRMatrix) -> Rows:
    """Return this rank's rows, with the columns that have entries or are its own, and their global numbers, sorted."""
    local, remote = A.entries
    xp = local.engine.xp
    before, first = own_columns(A).start, A.columns.offset(A.comm.rank)[0]
    numbers = xp.arange(first, first + local.shape[1], dtype=np.int64)
    if not len(A.ghosts):
        return Rows(local, numbers)
    ghosts = local.engine.from_host(A.ghosts)
    return Rows(_merged(local, remote, before), xp.concatenate([ghosts[:before], numbers, ghosts[before:]]))


def product_rows(forest: StarForest, left: Rows, own: slice, right: Rows) -> Rows:
    """Return this rank's rows of a product, with sorted columns and without zeros. Collective.

    The columns `own` of `left` are the rows of `right`; `forest` goes from them to the other columns of `left`.
    """
    (matrix, numbers), _ = _with_rows_of_ghosts(forest, own, right)
    return Rows(product(left.matrix, matrix).without_zeros(), numbers)


def transposed_rows(A: CSRMatrix, rows: Rows, conjugate: bool) -> Rows:
    """Return this rank's rows of the transpose of `A`, whose rows are `rows`, with sorted columns. Collective."""
    comm, own, engine = A.comm, own_columns(A), rows.matrix.engine
    columns = rows.matrix.transposed(conjugate=conjugate)
    first = A.rows.offset(comm.rank)[0]
    numbers = engine.xp.arange(first, first + A.rows.local_size(comm.rank), dtype=np.int64)
    if comm.size == 1:
        return Rows(columns, numbers)
    parts = [_rows_between(columns, *bounds) for bounds in ((0, own.start), (own.stop, columns.shape[0]))]
    before, after = parts
    starts = engine.xp.concatenate([before.indptr, before.nnz + after.indptr[1:]])
    places = first + engine.xp.concatenate([part.indices for part in parts]).astype(np.int64)
    values = engine.xp.concatenate([part.data for part in parts])
    values, places, starts = returned_rows(A.forest, starts, places, values)
    together, places = engine.xp.unique(places, return_inverse=True)
    inner = _rows_between(columns, own.start, own.stop)
    shape = inner.shape[0], len(together)
    arrived = CompressedRows(values, places.reshape(-1).astype(np.int32), starts, shape)
    lower = int((together < first).sum())
    merged = _merged(inner, arrived, lower)
    return Rows(merged, engine.xp.concatenate([together[:lower], numbers, together[lower:]]))


class RepeatedProduct:
    """The function :func:`product_rows`, faster if it is called again.

    The first call stores the lengths of rows and which entries ranks send. If a rank has factors of other patterns, all
    ranks begin again. The product keeps entries that are 0.
    """

    def __init__(self) -> None:
        self._factors: tuple[CompressedRows, CompressedRows] | None = None
        self._lengths: LocalArray | None = None
        self._entries: FetchedRows | None = None
        self._joined: Rows | None = None

    def __call__(self, forest: StarForest, left: Rows, own: slice, right: Rows) -> Rows:
        """Return this rank's rows of the product. Collective."""
        same = self._factors is not None and all(
            same_pattern(*pair) for pair in zip(self._factors, (left.matrix, right.matrix), strict=True)
        )
        if not forest.comm.allreduce(np.array(int(same)), "min"):
            self._joined, self._entries = _with_rows_of_ghosts(forest, own, right)
            self._lengths = product_lengths(left.matrix, self._joined.matrix)
        else:
            self._joined = self._with_values(own, right)
        self._factors = left.matrix, right.matrix
        return Rows(product(left.matrix, self._joined.matrix, self._lengths), self._joined.numbers)

    def _with_values(self, own: slice, right: Rows) -> Rows:
        """Return the rows of the last call with the values of `right`."""
        joined, values = self._joined, right.matrix.data
        assert joined is not None
        if self._entries is not None:
            entries, before = self._entries, int(joined.matrix.indptr[own.start])
            ghosts = entries.sent(values[entries.leaving])
            values = right.matrix.engine.xp.concatenate([ghosts[:before], values, ghosts[before:]])
        return joined._replace(matrix=joined.matrix._replace(data=values))


def product(left: CompressedRows, right: CompressedRows, lengths: LocalArray = None) -> CompressedRows:
    """Return the product of two matrices of one dtype, with sorted columns, and with the sums that are 0.

    `lengths` are the numbers of entries of its rows, if they are known. Sums have the order of the rows of `left`.
    """
    factors = _Factors.of(left, right)
    if lengths is None:
        lengths = factors.lengths()
    xp, starts = left.engine.xp, starts_of(lengths)
    total, size = int(starts[-1]), left.dtype.itemsize
    result = CompressedRows(
        xp.empty(total, left.dtype), xp.empty(total, np.int32), starts, (left.shape[0], right.shape[1])
    )
    arguments = *left.operands, *factors.operands, *result.operands
    most = int(lengths.max()) if len(lengths) else 0
    smaller = -1
    for shape in (*factors.shapes_for(most), _LONG):
        largest = _capacity(shape)
        if smaller < most:
            everything = smaller < 0 and most <= largest
            names = None if everything else xp.flatnonzero((lengths > smaller) & (lengths <= largest))
            count = left.shape[0] if names is None else len(names)
            launch_with_tables("fill_rows", left, shape, size, names, *arguments, None, None, None, None, rows=count)
        smaller = largest
    if smaller < most:
        for names, tables in _tables(left, right, xp.flatnonzero(lengths > smaller)):
            scratch = *tables, xp.empty(len(tables[1]), left.dtype)
            launch_with_tables("fill_rows", left, _ANY, size, names, *arguments, *scratch, rows=len(names))
    return result


def product_lengths(left: CompressedRows, right: CompressedRows) -> LocalArray:
    """Return the numbers of entries of the rows of a product, with sums that are 0."""
    return _Factors.of(left, right).lengths()


class _Factors(NamedTuple):
    """Two matrices, the arrays of the right one as kernels take them, and the shapes for usual rows of their product.

    Rows of the right matrix with one entry at most need no starts.
    """

    left: CompressedRows
    right: CompressedRows
    operands: tuple[LocalArray | None, LocalArray, LocalArray]
    usual: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, left: CompressedRows, right: CompressedRows) -> _Factors:
        count, xp = right.shape[0], right.engine.xp
        if 0 < right.nnz <= count and int(right.lengths.max()) == 1:
            columns, values = xp.empty(count, np.int32), xp.empty(count, right.dtype)
            launch("single_entries", right, *right.operands, columns, values)
            return cls(left, right, (None, columns, values), (_SINGLE,))
        many = right.nnz * left.nnz > _MANY_TERMS * left.shape[0] * count
        return cls(left, right, right.operands, (_MANY,) if many else (_SHORT, _SOME))

    def shapes_for(self, most: int) -> list[tuple[int, int, int]]:
        """Return the shapes for rows of a product with `most` columns at most: smaller tables if they suffice."""
        shapes = []
        for lanes, block, places in self.usual:
            while places > _FEWEST_PLACES and most <= _capacity((lanes, block, places // 2)):
                places //= 2
            shapes.append((lanes, block, places))
        return shapes

    def lengths(self) -> LocalArray:
        """Return the numbers of entries of the rows of the product."""
        left, right, usual = self.left, self.right, self.usual[-1]
        xp, count = left.engine.xp, left.shape[0]
        lengths = xp.zeros(count, np.int64)
        patterns = *left.operands[:2], *self.operands[:2], lengths
        launch_with_tables("count_columns", left, usual, 0, None, *patterns, None, None, None, rows=count)
        names = xp.flatnonzero(lengths < 0)
        if len(names):
            launch_with_tables("count_columns", left, _LONG, 0, names, *patterns, None, None, None, rows=len(names))
            for names, tables in _tables(left, right, xp.flatnonzero(lengths < 0)):
                launch_with_tables("count_columns", left, _ANY, 0, names, *patterns, *tables, rows=len(names))
        return lengths


def _capacity(shape: tuple[int, int, int]) -> int:
    """Return the maximum number of columns in a table, which the kernels must know too."""
    return shape[2] // 4 * 3


def _tables(
    left: CompressedRows, right: CompressedRows, names: LocalArray
) -> list[tuple[LocalArray, tuple[LocalArray, LocalArray, LocalArray]]]:
    """Return row numbers in groups, with tables in global memory: where they begin, their keys and their places."""
    engine = left.engine
    xp = engine.xp
    bounds = xp.empty(len(names), np.int64)
    launch("bound_lengths", left, names, *left.operands[:2], right.indptr, bounds, rows=len(names))
    bounds = np.minimum(engine.to_host(bounds), right.shape[1])
    sizes = 2 ** (np.ceil(np.log2(np.maximum(bounds, 1))).astype(np.int64) + 1)
    groups = np.cumsum(sizes) // _MAX_PLACES
    found = []
    for group in np.unique(groups):
        chosen = np.flatnonzero(groups == group)
        starts = np.concatenate([[0], np.cumsum(sizes[chosen])])
        keys, places = (xp.empty(int(starts[-1]), np.int32) for _ in range(2))
        found.append((names[engine.from_host(chosen)], (engine.from_host(starts), keys, places)))
    return found


def _with_rows_of_ghosts(forest: StarForest, own: slice, rows: Rows) -> tuple[Rows, FetchedRows | None]:
    """Return this rank's rows between the rows of the leaves of `forest`, which it fetches, and how. Collective.

    This rank's rows get the indices `own`. One rank fetches nothing.
    """
    matrix, numbers = rows
    if forest.comm.size == 1:
        return rows, None
    xp, entries = matrix.engine.xp, FetchedRows(forest, matrix.indptr)
    columns = entries.sent(numbers[matrix.indices[entries.leaving]])
    values, lengths = entries.sent(matrix.data[entries.leaving]), entries.lengths
    # Global columns are numbered consecutively, so that 32-bit numbers suffice.
    together = xp.unique(xp.concatenate([numbers, columns]))
    columns = xp.searchsorted(together, columns).astype(np.int32)
    indices = xp.searchsorted(together, numbers).astype(np.int32)[matrix.indices]
    before = int(lengths[: own.start].sum())
    starts = starts_of(xp.concatenate([lengths[: own.start], matrix.lengths, lengths[own.start :]]))
    joined = CompressedRows(
        xp.concatenate([values[:before], matrix.data, values[before:]]),
        xp.concatenate([columns[:before], indices, columns[before:]]),
        starts,
        (len(starts) - 1, len(together)),
    )
    return Rows(joined, together), entries


def _merged(inner: CompressedRows, outer: CompressedRows, before: int) -> CompressedRows:
    """Return the columns of `inner`, with `before` columns of `outer` before them and the others after them, sorted."""
    if not outer.shape[1]:
        return inner
    xp, height, own = inner.engine.xp, *inner.shape
    size = inner.nnz + outer.nnz
    starts = inner.indptr + outer.indptr
    merged = CompressedRows(
        xp.empty(size, inner.dtype), xp.empty(size, np.int32), starts, (height, own + outer.shape[1])
    )
    launch("merge_rows", inner, before, own, *inner.operands, *outer.operands, *merged.operands)
    return merged


def _rows_between(matrix: CompressedRows, first: int, end: int) -> CompressedRows:
    begin, stop = (int(matrix.indptr[row]) for row in (first, end))
    return CompressedRows(
        matrix.data[begin:stop],
        matrix.indices[begin:stop],
        matrix.indptr[first : end + 1] - begin,
        (end - first, matrix.shape[1]),
    )
