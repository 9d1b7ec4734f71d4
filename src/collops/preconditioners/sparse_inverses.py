"""Approximate inverses of each rank's diagonal block that are products of sparse matrices, which all engines have."""

from __future__ import annotations

import warnings

import numpy as np

from collops.array import DistributedArray
from collops.backend import SparseArray
from collops.comm.agreement import collective_errors
from collops.errors import InputError
from collops.operators import CSRMatrix, Diagonal, Identity
from collops.operators.base import LinearOperator
from collops.solvers.problem import check_count

_ROUNDING = 100  # tolerance of Hermitian blocks, in units of rounding, relative to the diagonal
_ITERATIONS, _TOLERANCE = 50, 1e-6  # maximum number of fixed-point iterations; change of the entries in the last one


def dense_blocks(A: CSRMatrix, block_size: int = 8) -> LinearOperator:
    """Return the inverses of diagonal blocks of `block_size` consecutive rows of each rank, as one matrix. Collective.

    The last block of a rank may have fewer rows. Raises InputError on every rank if a block is singular.
    """
    from scipy import sparse

    count = A.rows.local_size(A.comm.rank)
    with collective_errors(A.comm):
        inverses = _inverted(_diagonal_blocks(A.blocks[0], check_count("block_size", block_size, smallest=1)))
        blocks = np.arange(len(inverses) + 1)
        rows = sparse.csr_array(sparse.bsr_array((inverses, blocks[:-1], blocks)) if len(blocks) > 1 else (0, 0))
        rows = sparse.csr_array(rows[:count, :count])
        rows.eliminate_zeros()
    return _without_messages(A, rows)


def incomplete_factors(A: CSRMatrix, sweeps: int = 3) -> LinearOperator:
    r"""Return :math:`\tilde U^{-1} D^{-1} \tilde L^{-1}` for each rank's diagonal block. Collective.

    The product of the factors :math:`L D U`, of which :math:`L` and :math:`U` have unit diagonals and no entries where
    the block has none, has the entries of the block where the block has entries, to a relative 1e-6. `sweeps` Jacobi
    iterations approximate each triangular solve: for :math:`L = I + N`,
    :math:`\tilde L^{-1} = \sum_{k \le sweeps} (-N)^k`. Raises InputError on every rank if the factors do not exist, and
    warns on every rank if 50 fixed-point iterations do not suffice.
    """
    sweeps = check_count("sweeps", sweeps)
    with collective_errors(A.comm):
        lower, pivots, upper, change = _factorised(
            A.blocks[0].astype(np.result_type(A.dtype, np.float64)), _ROUNDING * np.finfo(_dtype(A)).eps
        )
    if (largest := float(A.comm.allreduce(np.array(change), "max"))) > _TOLERANCE:
        warnings.warn(
            f"the incomplete factors of block_jacobi have not converged: iteration {_ITERATIONS} still changed entries "
            f"by {largest:.0e} of the pivots; if the solver converges slowly, choose local='dense'",
            RuntimeWarning,
            stacklevel=3,
        )
    scaling = Diagonal(DistributedArray(A.rows, A.comm, np.asarray(1 / pivots, _dtype(A))), comm=A.comm)
    left, right = (_inverse_of_triangle(_without_messages(A, factor), sweeps) for factor in (lower, upper))
    return right @ scaling @ left


def _dtype(A: CSRMatrix) -> np.dtype:
    return A.dtype if A.dtype.kind in "fc" else np.dtype(np.float64)


def _without_messages(A: CSRMatrix, rows: SparseArray) -> CSRMatrix:
    """Return a matrix with the entries of `rows` in this rank's rows and columns of `A`. Collective."""
    from scipy import sparse

    first = A.columns.offset(A.comm.rank)[0]
    shape = rows.shape[0], A.shape[1]
    entries = rows.data.astype(_dtype(A)), rows.indices.astype(np.int64) + first, rows.indptr
    return CSRMatrix(sparse.csr_array(entries, shape=shape), A.columns, comm=A.comm)


def _diagonal_blocks(matrix: SparseArray, size: int) -> np.ndarray:
    """Return the diagonal blocks as an array (blocks, size, size); beyond the last row, they have a unit diagonal."""
    rows = matrix.shape[0]
    count = -(-rows // size)
    blocks = np.zeros((count, size, size), np.result_type(matrix.dtype, np.float64))
    blocks.reshape(-1, size)[rows:] = np.eye(size)[size - (count * size - rows) :]
    entries = matrix.tocoo()
    i, j = entries.coords
    inside = i // size == j // size
    i, j = i[inside], j[inside]
    np.add.at(blocks, (i // size, i % size, j % size), entries.data[inside])
    return blocks


def _inverted(blocks: np.ndarray) -> np.ndarray:
    """Return the inverses of a batch of matrices, whose rows and columns may have different scales."""
    message = f"a diagonal block of at most {blocks.shape[1]} rows is singular: choose another block_size"
    row_scale = abs(blocks).max(axis=2, keepdims=True, initial=0)
    if not (row_scale > 0).all():
        raise InputError(message)
    scaled = blocks / row_scale
    column_scale = abs(scaled).max(axis=1, keepdims=True, initial=0)
    if not (column_scale > 0).all():
        raise InputError(message)
    scaled /= column_scale
    try:
        inverses = np.linalg.inv(scaled)
    except np.linalg.LinAlgError as problem:
        raise InputError(message) from problem
    # Rounding errors may give a singular matrix an inverse.
    if not (abs(scaled @ inverses - np.eye(blocks.shape[1])) <= np.finfo(blocks.dtype).eps ** 0.25).all():
        raise InputError(message)
    return inverses / column_scale.swapaxes(1, 2) / row_scale.swapaxes(1, 2)


def _factorised(matrix: SparseArray, rounding: float) -> tuple[SparseArray, np.ndarray, SparseArray, float]:
    """Return the strictly lower triangle of L, the pivots D, the strictly upper triangle of U, and the last change.

    The entries are found by the fixed-point iteration of Chow and Patel (2015), which does not depend on the scales of
    rows and columns. If the matrix is Hermitian but for `rounding`, L is the adjoint of U.
    """
    from scipy import sparse

    pattern, pivots = matrix.astype(bool), _checked_pivots(matrix.diagonal(), False)
    hermitian = _largest(matrix - matrix.conj().T, pivots) <= rounding
    positive = hermitian and bool((np.real(pivots) > 0).all())
    upper, lower = sparse.triu(matrix, 1), sparse.tril(matrix, -1) @ sparse.diags_array(1 / pivots)
    change = 0.0
    for _ in range(_ITERATIONS):
        product = sparse.csr_array(upper + sparse.diags_array(pivots))
        remainder = sparse.csr_array(matrix - pattern.multiply(sparse.csr_array(lower) @ product))
        change = _largest(remainder - product, pivots)
        pivots = remainder.diagonal()
        pivots = _checked_pivots(np.real(pivots) if hermitian else pivots, positive)
        upper, inverse = sparse.triu(remainder, 1), sparse.diags_array(1 / pivots)
        lower = upper.conj().T @ inverse if hermitian else lower + sparse.tril(remainder, -1) @ inverse
        if change <= _TOLERANCE:
            break
    return sparse.csr_array(lower), pivots, sparse.csr_array(sparse.diags_array(1 / pivots) @ upper), change


def _largest(matrix: SparseArray, pivots: np.ndarray) -> float:
    """Return the largest of the entries, relative to the root of the pivots of row and column."""
    from scipy import sparse

    scale = sparse.diags_array(abs(pivots) ** -0.5)
    return float(abs(sparse.csr_array(scale @ matrix @ scale)).max()) if len(pivots) else 0.0


def _checked_pivots(pivots: np.ndarray, positive: bool) -> np.ndarray:
    if not (np.isfinite(pivots) & ((pivots > 0) if positive else (pivots != 0))).all():
        raise InputError(
            f"a block of {len(pivots)} rows has no incomplete factors: a pivot is "
            f"{'not positive' if positive else '0 or not finite'}; use local='dense'"
        )
    return pivots


def _inverse_of_triangle(N: CSRMatrix, sweeps: int) -> LinearOperator:
    """Return the approximation of the inverse of I + N by Jacobi iterations, the first terms of Neumann's series."""
    one = Identity(N.rows, comm=N.comm, dtype=N.dtype)
    inverse: LinearOperator = one
    for _ in range(sweeps):
        inverse = one - N @ inverse
    return inverse
