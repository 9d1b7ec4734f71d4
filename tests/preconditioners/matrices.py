"""Sparse Hermitian matrices, with rows unevenly split over the ranks."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from collops.array import Layout
from collops.operators import CSRMatrix

SIDE = 9


def poisson(side: int = SIDE, weak: float = 1.0, dtype: str = "f8") -> sp.csr_array:
    """The Laplacian of a cube by differences; of complex numbers with a magnetic field, which leaves it Hermitian."""
    step = np.exp(0.3j) if np.dtype(dtype).kind == "c" else 1.0
    line = sp.diags_array([-np.conj(step), 2.0, -step], offsets=[-1, 0, 1], shape=(side, side))
    one = sp.eye_array(side)
    terms = (
        sp.kron(sp.kron(line, one), one) + sp.kron(sp.kron(one, line), one) + weak * sp.kron(sp.kron(one, one), line)
    )
    # Rows of different scale, so that the diagonal matters.
    scale = sp.diags_array(1 + np.random.default_rng(0).random(side**3))
    return sp.csr_array(scale @ terms @ scale).astype(dtype)


def distributed(matrix: sp.csr_array, comm) -> CSRMatrix:
    """Give the second rank nothing, and the others unequal shares."""
    weights = np.array([3.0, 0.0, 2.0, 4.0][: comm.size])
    ends = np.round(np.cumsum(weights) / weights.sum() * matrix.shape[0]).astype(int)
    rows = Layout.split(matrix.shape[0], comm.size, sizes=np.diff(ends, prepend=0).tolist())
    return CSRMatrix.from_global(matrix, comm=comm, rows=rows)


def mine(matrix: sp.csr_array, A: CSRMatrix) -> list[np.ndarray]:
    """Return the rows of each rank, by number."""
    ends = np.cumsum(A.rows.sizes[0])
    return np.split(np.arange(matrix.shape[0]), ends[:-1])
