"""Estimates of the largest eigenvalue of a sparse matrix, for the bounds of smoothers."""

from __future__ import annotations

import numpy as np

from collops.array import Array, axpby, dots, random
from collops.operators import CSRMatrix
from collops.preconditioners.jacobi import jacobi

_STEPS = 8


def largest_eigenvalue(A: CSRMatrix) -> float:
    """Return the largest eigenvalue of a Hermitian matrix with its rows divided by its diagonal, from below. Collective.

    It is the largest Ritz value of a few steps of conjugate gradients with Jacobi's preconditioner, from a random
    vector [Saad 2003, section 6.7.3], rounded to be equal on any number of ranks.
    """
    M = jacobi(A)
    r: Array = random(A.rows, seed=3, comm=A.comm, dtype=np.result_type(A.dtype, np.float32))
    z = M @ r
    p = z.copy()
    image = z.copy()
    (gamma,) = (abs(complex(value)) for value in dots((r, z)))
    diagonal, beside = [], []
    before = 0.0
    for _ in range(_STEPS):
        image = A._forward(p, image)
        (curvature,) = (abs(complex(value)) for value in dots((p, image)))
        if not curvature > 0:
            break
        length = gamma / curvature
        r = axpby(-length, image, 1.0, r, out=r)
        z = M._forward(r, z)
        (following,) = (abs(complex(value)) for value in dots((r, z)))
        ratio = following / gamma
        diagonal.append(1 / length + before)
        beside.append(ratio**0.5 / length)
        before, gamma = ratio / length, following
        if not ratio > 1e-20:
            break
        p = axpby(1.0, z, ratio, p, out=p)
    if not diagonal:
        return 1.0
    tridiagonal = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    return float(f"{np.linalg.eigvalsh(tridiagonal)[-1]:.2e}")
