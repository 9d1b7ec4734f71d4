"""Products of distributed sparse matrices that are repeated with other values in the same pattern."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collops.backend import SparseArray
from collops.comm import Communicator
from collops.exchange.forest import StarForest
from collops.operators.csr.fetched import FetchedRows
from collops.operators.csr.pieces import in_pieces
from collops.operators.csr.products import Rows, product_with_zeros, suits_loops, unsigned, with_rows_of_ghosts


class Pattern(NamedTuple):
    """The positions of the entries of a sparse matrix."""

    starts: np.ndarray
    columns: np.ndarray
    shape: tuple[int, int]

    @classmethod
    def of(cls, matrix: SparseArray) -> Pattern:
        """Return the pattern of a matrix, without a copy."""
        return cls(matrix.indptr, matrix.indices, matrix.shape)

    def suits(self, matrix: SparseArray) -> bool:
        """Return whether a matrix has its entries in these positions."""
        pairs = (self.starts, matrix.indptr), (self.columns, matrix.indices)
        return self.shape == matrix.shape and all(mine is other or np.array_equal(mine, other) for mine, other in pairs)

    def matrix(self, values: np.ndarray) -> SparseArray:
        """Return the matrix with these values, whose columns are sorted."""
        from scipy import sparse

        matrix = sparse.csr_array((values, self.columns, self.starts), shape=self.shape)
        matrix.has_sorted_indices = True
        return matrix


class _Plan(NamedTuple):
    """The patterns of a product; `before` entries of other ranks' rows come before the entries of `right`."""

    left: Pattern
    right: Pattern
    joined: Pattern
    numbers: np.ndarray
    entries: FetchedRows | None
    before: int
    product: Pattern


class RepeatedProduct:
    """The function :func:`collops.operators.csr.products.product_rows`, faster if it is called again.

    The first call stores the patterns, so that later calls send only values and, with Numba, compute only values. If a
    rank has factors of other patterns, all ranks begin again. The product keeps entries that are 0.
    """

    def __init__(self) -> None:
        self._plan: _Plan | None = None

    def __call__(self, forest: StarForest, left: Rows, own: slice, right: Rows) -> Rows:
        """Return this rank's rows of the product. Collective."""
        plan, comm = self._plan, forest.comm
        same = plan is not None and plan.left.suits(left.matrix) and plan.right.suits(right.matrix)
        if plan is None or not comm.allreduce(np.array(int(same)), "min"):
            return self._first(forest, left, own, right)
        # The memory of the former, equal patterns can be freed.
        self._plan = plan._replace(left=Pattern.of(left.matrix), right=Pattern.of(right.matrix))
        values = right.matrix.data
        if plan.entries is not None:
            ghosts = plan.entries.sent(values[plan.entries.leaving])
            values = np.concatenate([ghosts[: plan.before], values, ghosts[plan.before :]])
        return Rows(_product(comm, left.matrix, plan.joined.matrix(values), plan.product), plan.numbers)

    def _first(self, forest: StarForest, left: Rows, own: slice, right: Rows) -> Rows:
        (joined, numbers), entries = with_rows_of_ghosts(forest, own, right)
        product = product_with_zeros(forest.comm, left.matrix, joined)
        factors = Pattern.of(left.matrix), Pattern.of(right.matrix)
        before = int(joined.indptr[own.start])
        self._plan = _Plan(*factors, Pattern.of(joined), numbers, entries, before, Pattern.of(product))
        return Rows(product, numbers)


def _product(comm: Communicator, A: SparseArray, B: SparseArray, pattern: Pattern) -> SparseArray:
    if not suits_loops(A):
        return product_with_zeros(comm, A, B)
    from collops.operators.csr.numba_products import product_values

    product = pattern.matrix(np.empty(len(pattern.columns), np.result_type(A.dtype, B.dtype)))
    arguments = *unsigned(A), *unsigned(B), np.uint64(B.shape[1]), *unsigned(product)
    in_pieces(comm, A.indptr, lambda first, end: product_values(first, end, *arguments))
    return product
