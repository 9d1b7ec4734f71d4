"""Products and transposes of distributed sparse matrices, as distributed sparse matrices."""

from __future__ import annotations

import numpy as np

from collops.backend import SparseArray
from collops.errors import LayoutError, UnsupportedTypeError, type_name
from collops.exchange.forest import StarForest
from collops.operators.csr.matrix import CSRMatrix


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
    rows, columns = merged_rows(A)
    entries = rows.tocoo()
    i, j = entries.coords
    values = entries.data.conj() if conjugate else entries.data
    first = A.rows.offset(A.comm.rank)[0]
    shape = A.shape[1], A.shape[0]
    return CSRMatrix.from_coo(columns[j], first + i, values, shape, rows=A.columns, columns=A.rows, comm=A.comm)


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
    from scipy import sparse

    _check(A)
    _check(B)
    if A.columns is not B.rows:
        raise LayoutError(
            f"the product needs the columns of the first matrix split as the rows of the second, not {A.columns} and "
            f"{B.rows}"
        )
    factor, _ = merged_rows(A)
    own, numbers = merged_rows(B)
    lengths, columns, values = _rows_of_ghosts(A, own, numbers)
    # Global columns are numbered consecutively, since SciPy needs memory for each column.
    together = np.union1d(numbers, columns)
    own = renumbered(own, np.searchsorted(together, numbers), len(together))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    shape = len(lengths), len(together)
    fetched = sparse.csr_array((values, np.searchsorted(together, columns), starts), shape=shape)
    before = own_columns(A).start
    fetched_rows = sparse.vstack([fetched[:before], own, fetched[before:]], format="csr")
    product = sparse.csr_array(factor @ fetched_rows)
    product.sort_indices()
    return CSRMatrix(renumbered(product, together, B.shape[1]), B.columns, comm=A.comm)


def renumbered(rows: SparseArray, numbers: np.ndarray, count: int) -> SparseArray:
    """Return the rows with other numbers for their columns, and `count` columns."""
    from scipy import sparse

    return sparse.csr_array((rows.data, numbers[rows.indices], rows.indptr), shape=(rows.shape[0], count))


def own_columns(A: CSRMatrix) -> slice:
    """Return which columns of :func:`merged_rows` are this rank's."""
    first = int(np.searchsorted(A.ghosts, A.columns.offset(A.comm.rank)[0]))
    return slice(first, first + A.columns.local_size(A.comm.rank))


def merged_rows(A: CSRMatrix) -> tuple[SparseArray, np.ndarray]:
    """Return this rank's rows, with the columns that have entries or are its own, and their global numbers, sorted."""
    from scipy import sparse

    local, remote = A.blocks
    before, first = own_columns(A).start, A.columns.offset(A.comm.rank)[0]
    rows = sparse.csr_array(sparse.hstack([remote[:, :before], local, remote[:, before:]], format="csr"))
    rows.sort_indices()
    own = np.arange(first, first + local.shape[1])
    return rows, np.concatenate([A.ghosts[:before], own, A.ghosts[before:]])


def _rows_of_ghosts(A: CSRMatrix, own: SparseArray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lengths, the global columns and the values of the rows whose numbers are the ghosts of `A`."""
    forest = A.forest
    bounds = forest.bcast(np.stack([own.indptr[:-1], own.indptr[1:]], axis=1).astype(np.int64))
    lengths = bounds[:, 1] - bounds[:, 0]
    ends = np.cumsum(lengths)
    entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(bounds[:, 0] - (ends - lengths), lengths)
    with StarForest(A.comm, own.nnz, None, np.repeat(forest.remote_ranks, lengths), entries) as rows:
        return lengths, rows.bcast(columns[own.indices]), rows.bcast(own.data)


def _check(matrix: object) -> None:
    if not isinstance(matrix, CSRMatrix):
        raise UnsupportedTypeError(f"expected a CSRMatrix, not {type_name(matrix)}")
