"""Products and transposes of distributed sparse matrices, as distributed sparse matrices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collops.array import kernels
from collops.backend import SparseArray
from collops.comm import Communicator
from collops.errors import LayoutError, UnsupportedTypeError, type_name
from collops.exchange.forest import StarForest
from collops.exchange.indices import distinct
from collops.operators.csr.compressed import starts_of
from collops.operators.csr.fetched import FetchedRows, returned_rows
from collops.operators.csr.matrix import CSRMatrix
from collops.operators.csr.pieces import in_pieces


class Rows(NamedTuple):
    """Rows of this rank with some of the columns of a matrix, and the global numbers of these columns, sorted."""

    matrix: SparseArray
    numbers: np.ndarray


def transposed(A: CSRMatrix, *, conjugate: bool = False) -> CSRMatrix:
    """Return the transpose of a sparse matrix, whose rows are split as the columns of `A`. Collective.

    Parameters
    ----------
    A : CSRMatrix
        On the host; the result is a copy.
    conjugate : bool
        Whether to conjugate the entries too.

    Raises
    ------
    UnsupportedTypeError
        If `A` is not a CSRMatrix.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import collops
    >>> from collops.operators.csr import transposed
    >>> A = collops.CSRMatrix.from_global(sp.csr_array([[0.0, 2.0], [3.0, 0.0]]))
    >>> (transposed(A) @ collops.ones(2)).gather()
    array([3., 2.])
    """
    _check(A)
    rows, numbers = transposed_rows(A, merged_rows(A), conjugate)
    return CSRMatrix._from_rows(rows, numbers, A.columns, A.rows, A.comm)


def multiplied(A: CSRMatrix, B: CSRMatrix) -> CSRMatrix:
    """Return the product of two sparse matrices as a sparse matrix. Collective.

    Each rank fetches the rows of `B` that belong to its columns of `A` from their ranks, with one exchange of their
    lengths, one of their columns and one of their values. Entries are sums in the order of the columns of `A`, so that
    they are the same on any number of ranks.

    Parameters
    ----------
    A, B : CSRMatrix
        On the host. The columns of `A` are split as the rows of `B`.

    Returns
    -------
    CSRMatrix
        Its rows are split as the rows of `A`, its columns as the columns of `B`.

    Raises
    ------
    LayoutError
        If the columns of `A` are split differently from the rows of `B`.
    UnsupportedTypeError
        If one of them is not a CSRMatrix.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import collops
    >>> from collops.operators.csr import multiplied
    >>> A = collops.CSRMatrix.from_global(sp.csr_array([[0.0, 2.0], [3.0, 0.0]]))
    >>> (multiplied(A, A) @ collops.ones(2)).gather()
    array([6., 6.])
    """
    _check(A)
    _check(B)
    if A.columns is not B.rows:
        raise LayoutError(
            f"the product needs the columns of the first matrix split as the rows of the second, not {A.columns} and "
            f"{B.rows}"
        )
    product, numbers = product_rows(A.forest, merged_rows(A), own_columns(A), merged_rows(B))
    return CSRMatrix._from_rows(product, numbers, A.rows, B.columns, A.comm)


def product_rows(forest: StarForest, left: Rows, own: slice, right: Rows) -> Rows:
    """Return this rank's rows of a product, with sorted columns and without zeros. Collective.

    The columns `own` of `left` are the rows of `right`; `forest` goes from them to the other columns of `left`.
    """
    right, _ = with_rows_of_ghosts(forest, own, right)
    product = product_with_zeros(forest.comm, left.matrix, right.matrix)
    product.eliminate_zeros()  # SciPy's products have none
    return Rows(product, right.numbers)


def with_rows_of_ghosts(forest: StarForest, own: slice, rows: Rows) -> tuple[Rows, FetchedRows | None]:
    """Return this rank's rows between the rows of the leaves of `forest`, which it fetches, and how. Collective.

    This rank's rows get the indices `own`. One rank fetches nothing.
    """
    from scipy import sparse

    matrix, numbers = rows
    if forest.comm.size == 1:
        return rows, None
    entries = FetchedRows(forest, matrix.indptr)
    columns = entries.sent(numbers[matrix.indices[entries.leaving]])
    # Global columns are numbered consecutively, since products need memory for each column.
    together = distinct(np.concatenate([numbers, columns]))
    values, starts = entries.sent(matrix.data[entries.leaving]), starts_of(entries.lengths)
    shape = len(entries.lengths), len(together)
    fetched = sparse.csr_array((values, np.searchsorted(together, columns), starts), shape=shape)
    matrix = renumbered(matrix, np.searchsorted(together, numbers), len(together))
    matrix = sparse.vstack([fetched[: own.start], matrix, fetched[own.start :]], format="csr")
    return Rows(matrix, together), entries


def transposed_rows(A: CSRMatrix, rows: Rows, conjugate: bool) -> Rows:
    """Return this rank's rows of the transpose of `A`, whose rows are `rows`, with sorted columns. Collective."""
    from scipy import sparse

    comm, own = A.comm, own_columns(A)
    matrix = rows.matrix.conj() if conjugate else rows.matrix
    columns = sparse.csr_array(matrix.T)  # compressed rows, with sorted columns
    first = A.rows.offset(comm.rank)[0]
    numbers = first + np.arange(A.rows.local_size(comm.rank))
    if comm.size == 1:
        return Rows(columns, numbers)
    inner = columns[own]
    entries = sparse.vstack([columns[: own.start], columns[own.stop :]], format="csr")
    places = first + entries.indices.astype(np.int64)
    values, places, starts = returned_rows(A.forest, entries.indptr, places, entries.data)
    together = distinct(places)
    arrived = sparse.csr_array(
        (values, np.searchsorted(together, places), starts), shape=(inner.shape[0], len(together))
    )
    arrived.has_sorted_indices = True
    before = int(np.searchsorted(together, first))
    merged = _merged(comm, inner, arrived, before)
    return Rows(merged, np.concatenate([together[:before], numbers, together[before:]]))


def renumbered(rows: SparseArray, numbers: np.ndarray, count: int) -> SparseArray:
    """Return the rows with other numbers for their columns, and `count` columns; the numbers are sorted."""
    from scipy import sparse

    if len(numbers) == count:  # all of them
        return rows
    return sparse.csr_array((rows.data, numbers[rows.indices], rows.indptr), shape=(rows.shape[0], count))


def own_columns(A: CSRMatrix) -> slice:
    """Return which columns of :func:`merged_rows` are this rank's."""
    first = int(np.searchsorted(A.ghosts, A.columns.offset(A.comm.rank)[0]))
    return slice(first, first + A.columns.local_size(A.comm.rank))


def merged_rows(A: CSRMatrix) -> Rows:
    """Return this rank's rows, with the columns that have entries or are its own, and their global numbers, sorted."""
    local, remote = A.blocks
    before, first = own_columns(A).start, A.columns.offset(A.comm.rank)[0]
    own = np.arange(first, first + local.shape[1])
    rows = _merged(A.comm, local, remote, before)
    return Rows(rows, np.concatenate([A.ghosts[:before], own, A.ghosts[before:]]))


def _merged(comm: Communicator, inner: SparseArray, outer: SparseArray, before: int) -> SparseArray:
    """Return the columns of `inner`, with `before` columns of `outer` before them and the others after them, sorted."""
    from scipy import sparse

    if not outer.shape[1] and inner.has_sorted_indices:
        return inner
    if not (suits_loops(inner) and inner.has_sorted_indices and outer.has_sorted_indices):
        rows = sparse.csr_array(sparse.hstack([outer[:, :before], inner, outer[:, before:]], format="csr"))
        rows.sort_indices()
        return rows
    from collops.operators.csr.numba_products import merge_rows

    starts = inner.indptr + outer.indptr
    kind = inner.indices.dtype
    columns, values = np.empty(starts[-1], kind), np.empty(starts[-1], inner.dtype)
    blocks = (*unsigned(inner), *unsigned(outer))
    sizes = (np.uint64(before), np.uint64(inner.shape[1]))
    targets = starts.view(f"u{starts.itemsize}"), columns.view(f"u{kind.itemsize}"), values
    in_pieces(comm, starts, lambda first, end: merge_rows(first, end, *sizes, *blocks, *targets))
    rows = sparse.csr_array((values, columns, starts), shape=(inner.shape[0], inner.shape[1] + outer.shape[1]))
    rows.has_sorted_indices = True
    return rows


def product_with_zeros(comm: Communicator, A: SparseArray, B: SparseArray) -> SparseArray:
    """Return the product of two matrices of this rank, with sorted columns; Numba's loop keeps sums that are 0."""
    from scipy import sparse

    if not suits_loops(A):
        product = sparse.csr_array(A @ B)
        product.sort_indices()
        return product
    from collops.operators.csr import numba_products as loops

    lengths = np.empty(A.shape[0], np.int64)
    zero = np.zeros((), np.result_type(A.dtype, B.dtype))
    arguments = *unsigned(A), *unsigned(B), np.uint64(B.shape[1]), zero, lengths
    parts = in_pieces(comm, A.indptr, lambda first, end: loops.product_rows(first, end, *arguments))
    return from_pieces(parts, lengths, (A.shape[0], B.shape[1]))


def from_pieces(parts: list[tuple[np.ndarray, np.ndarray]], lengths: np.ndarray, shape: tuple[int, int]) -> SparseArray:
    """Return the matrix whose rows have these lengths, from the sorted columns and the values of consecutive rows."""
    from scipy import sparse

    columns, values = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    starts = np.zeros(len(lengths) + 1, _index_dtype(max(len(columns), shape[1])))
    np.cumsum(lengths, out=starts[1:])
    matrix = sparse.csr_array((values, columns.view(f"i{columns.itemsize}"), starts), shape=shape)
    matrix.has_sorted_indices = True
    return matrix


def _index_dtype(largest: int) -> np.dtype:
    return np.dtype(np.int32 if largest <= np.iinfo(np.int32).max else np.int64)


def suits_loops(matrix: SparseArray) -> bool:
    """Return whether Numba is installed and the matrix is so large that its loops save time."""
    return matrix.nnz >= kernels.LONG and kernels.loops() is not None


def unsigned(matrix: SparseArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the arrays of compressed rows as Numba's loops take them, in the smallest type of indices that fits."""
    kind = _index_dtype(max(matrix.nnz, matrix.shape[1]))
    starts, columns = (indices.astype(kind, copy=False) for indices in (matrix.indptr, matrix.indices))
    return starts.view(f"u{starts.itemsize}"), columns.view(f"u{columns.itemsize}"), matrix.data


def _check(matrix: object) -> None:
    if not isinstance(matrix, CSRMatrix):
        raise UnsupportedTypeError(f"expected a CSRMatrix, not {type_name(matrix)}")
