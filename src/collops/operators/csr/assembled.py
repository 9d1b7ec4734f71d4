"""Sparse matrices from expressions of sparse matrices: sums, products, multiples, adjoints and conjugates."""

from __future__ import annotations

import numpy as np

from collops.errors import LayoutError, UnsupportedTypeError, type_name
from collops.exchange.indices import distinct
from collops.operators.base import Adjoint, Combination, Conjugate, LinearOperator, Product
from collops.operators.csr.matrix import CSRMatrix
from collops.operators.csr.products import merged_rows, multiplied, renumbered, transposed


def assembled(expression: LinearOperator) -> CSRMatrix:
    """Return an operator composed of sparse matrices as a sparse matrix. Collective.

    Operators like ``A.H @ A`` apply one matrix after the other. The assembled matrix has other messages and entries,
    and can be a part of :func:`collops.preconditioners.multigrid`.

    Parameters
    ----------
    expression : LinearOperator
        A CSRMatrix on the host, or sums, products, multiples, adjoints, transposes and conjugates of them.

    Raises
    ------
    LayoutError
        If the terms of a sum have rows or columns that are split differently.
    UnsupportedTypeError
        If a part is another operator.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import collops
    >>> from collops.operators.csr import assembled
    >>> A = collops.CSRMatrix.from_global(sp.csr_array([[0.0, 2.0], [3.0, 0.0]]))
    >>> assembled(A.H @ A + 2 * A).blocks[0].toarray()
    array([[9., 4.],
           [6., 4.]])
    """
    if isinstance(expression, CSRMatrix):
        return expression
    if isinstance(expression, Adjoint):
        return transposed(assembled(expression.operator), conjugate=True)
    if isinstance(expression, Conjugate):
        return transposed(transposed(assembled(expression.operator), conjugate=True))
    if isinstance(expression, Product):
        product, *others = map(assembled, expression.factors)
        for factor in others:
            product = multiplied(product, factor)
        return product
    if isinstance(expression, Combination):
        return _sum([(coefficient, assembled(term)) for coefficient, term in expression.terms])
    raise UnsupportedTypeError(f"an assembled matrix needs parts of type CSRMatrix, not {type_name(expression)}")


def _sum(terms: list[tuple]) -> CSRMatrix:
    """Return the sum of matrices times numbers."""
    from scipy import sparse

    _, first = terms[0]
    for _, term in terms:
        if term.columns is not first.columns or term.rows is not first.rows:
            raise LayoutError("the sum of sparse matrices needs rows and columns that are split alike")
    parts = [(coefficient, *merged_rows(term)) for coefficient, term in terms]
    together = distinct(np.concatenate([numbers for _, _, numbers in parts]))
    total = sum(
        coefficient * renumbered(rows, np.searchsorted(together, numbers), len(together))
        for coefficient, rows, numbers in parts
    )
    matrix = sparse.csr_array(total)
    matrix.sort_indices()
    return CSRMatrix._from_rows(matrix, together, first.rows, first.columns, first.comm)
