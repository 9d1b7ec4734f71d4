"""Partitions of rows that reduce communication: the rows of each rank, and the number of cut entries."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import numpy as np

from collops.array import Layout
from collops.backend import SparseArray
from collops.errors import InputError, LayoutError


class Partition(NamedTuple):
    """A partition of the rows of a square matrix over ranks.

    Attributes
    ----------
    parts : numpy.ndarray
        The rank of each row.
    order : numpy.ndarray
        The old numbers of the rows in their new order, by rank: ``A[order][:, order]`` has each rank's rows together.
    sizes : tuple of int
        Rows of each rank.
    cut : int
        Pairs of rows on different ranks that are connected by an entry: a measure of the exchange.
    """

    parts: np.ndarray
    order: np.ndarray
    sizes: tuple[int, ...]
    cut: int


def partition_rows(matrix: SparseArray, ranks: int, method: str = "metis") -> Partition:
    """Partition the rows of a square matrix over ranks. Not collective: call it on one rank.

    Parameters
    ----------
    matrix : sparse matrix
        Of SciPy; only the positions of its entries matter.
    ranks : int
        Number of parts.
    method : str
        ``"metis"``, parts of equal size with few cut entries [1]_, by the package pymetis; or ``"rows"``, equally
        many consecutive rows.

    Raises
    ------
    InputError
        If `method` is neither, or pymetis is not installed.
    LayoutError
        If the matrix is not square.

    References
    ----------
    .. [1] G. Karypis and V. Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs",
       SIAM J. Sci. Comput. 20(1), 359-392, 1998.
    """
    from scipy import sparse

    rows, columns = matrix.shape
    if rows != columns:
        raise LayoutError(f"a partition needs a square matrix, not one of {rows} x {columns}")
    pattern = sparse.csr_array(matrix, copy=True)
    pattern.data = np.ones(len(pattern.data), np.int8)
    pattern = sparse.csr_array(pattern + pattern.T)
    pattern.setdiag(0)
    pattern.eliminate_zeros()
    if method == "rows":
        parts = np.repeat(np.arange(ranks), Layout.split(rows, ranks).sizes[0])
    elif method == "metis":
        parts = _by_metis(pattern, ranks)
    else:
        raise InputError(f"the partition must be metis or rows, not {method!r}")
    order = np.argsort(parts, kind="stable")
    sizes = np.bincount(parts, minlength=ranks)
    owners = np.repeat(parts, np.diff(pattern.indptr))
    cut = int(np.count_nonzero(owners != parts[pattern.indices])) // 2
    return Partition(parts, order, tuple(sizes.tolist()), cut)


def _by_metis(pattern: SparseArray, ranks: int) -> np.ndarray:
    if importlib.util.find_spec("pymetis") is None:
        raise InputError("the partition 'metis' needs the package pymetis: install collops[metis], or choose 'rows'")
    if ranks == 1 or pattern.shape[0] < ranks:
        return np.arange(pattern.shape[0]) % ranks
    import pymetis

    _, parts = pymetis.part_graph(ranks, pymetis.CSRAdjacency(pattern.indptr, pattern.indices))
    return np.asarray(parts, np.int64)
