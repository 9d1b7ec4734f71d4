"""The inverse of a small matrix, which every rank has."""

from __future__ import annotations

import numpy as np

from collops.array import Array
from collops.backend import Engine
from collops.comm.agreement import collective_errors
from collops.operators import CSRMatrix, VStack
from collops.operators.base import LinearOperator
from collops.operators.csr.products import merged_rows


class DenseInverse(LinearOperator):
    """The pseudo-inverse of a small matrix. Collective: every rank has the entire matrix."""

    def __init__(self, A: CSRMatrix) -> None:
        super().__init__(A.rows, A.rows, A.dtype, A.comm)
        rows, columns = merged_rows(A)
        local = np.zeros((rows.shape[0], A.shape[1]), A.dtype)
        local[:, columns] = rows.toarray()
        matrix = np.asarray(A.comm.allgatherv(local.reshape(-1))).reshape(A.shape)
        with collective_errors(A.comm):
            inverse = _inverse(matrix)
        (own,) = A.rows.slices(A.comm.rank)
        self._factors = inverse[own], np.eye(len(matrix), dtype=A.dtype)[own]
        self._products: dict[Engine, LinearOperator] = {}

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        if x.engine not in self._products:  # matrices on the device can be recorded in a CUDA graph
            convert = x.engine.from_host if x.engine.mutable else np.asarray
            rows, units = (VStack([convert(factor)], self.comm) for factor in self._factors)
            self._products[x.engine] = rows @ units.H
        return self._products[x.engine]._forward(x, out)


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """Return the inverse by Cholesky factors, or the pseudo-inverse of a matrix that is singular or nearly so."""
    from scipy.linalg import cho_solve

    eps = np.finfo(matrix.dtype).eps
    try:
        factor = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:  # not positive definite
        factor = np.zeros_like(matrix)
    if (abs(factor.diagonal()) ** 2 > eps**0.5 * abs(matrix.diagonal())).all():
        return cho_solve((factor, True), np.eye(len(matrix), dtype=matrix.dtype))
    return np.linalg.pinv(matrix, rcond=len(matrix) * eps, hermitian=True)
