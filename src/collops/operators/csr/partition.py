"""Orderings of rows that cut communication: which rank gets which rows, and how many entries reach across."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import numpy as np

from collops.array import Layout
from collops.errors import InputError, LayoutError


class Partition(NamedTuple):
    """Rows of a square matrix given to ranks.

    Attributes
    ----------
    parts : numpy.ndarray
        The rank of each row.
    order : numpy.ndarray
        The old numbers of the rows in their new order, by rank: ``A[order][:, order]`` has each rank's rows together.
    sizes : tuple of int
        Rows of each rank.
    cut : int
        Pairs of rows that an entry joins and that are on different ranks: what must be exchanged.
    """

    parts: np.ndarray
    order: np.ndarray
    sizes: tuple[int, ...]
    cut: int


def partition_rows(matrix: Any, ranks: int, method: str = "metis") -> Partition:
    """Give the rows of a square matrix to ranks. Not collective: one rank does it for all.

    Parameters
    ----------
    matrix : sparse matrix
        Of SciPy; only where it has entries matters.
    ranks : int
        How many parts.
    method : str
        ``"metis"``, parts of equal size with few entries across [1]_, by the package pymetis; or ``"rows"``, equally
        many rows in the order that they have.

    Raises
    ------
    InputError
        If there is no such method, or pymetis is not installed.
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
        raise LayoutError(f"only a square matrix has rows and columns to reorder alike, not one of {rows} x {columns}")
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
        raise InputError(f"there is no partition {method!r}; choose metis or rows")
    order = np.argsort(parts, kind="stable")
    sizes = np.bincount(parts, minlength=ranks)
    owners = np.repeat(parts, np.diff(pattern.indptr))
    cut = int(np.count_nonzero(owners != parts[pattern.indices])) // 2
    return Partition(parts, order, tuple(sizes.tolist()), cut)


def _by_metis(pattern: Any, ranks: int) -> np.ndarray:
    if importlib.util.find_spec("pymetis") is None:
        raise InputError("the partition 'metis' needs the package pymetis: install collops[metis], or choose 'rows'")
    if ranks == 1 or pattern.shape[0] < ranks:
        return np.arange(pattern.shape[0]) % ranks
    import pymetis

    _, parts = pymetis.part_graph(ranks, pymetis.CSRAdjacency(pattern.indptr, pattern.indices))
    return np.asarray(parts, np.int64)
