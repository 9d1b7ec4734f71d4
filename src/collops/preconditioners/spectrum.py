"""Estimates of the extreme eigenvalues of a preconditioned matrix, for the bounds of smoothers and for reports."""

from __future__ import annotations

import numpy as np

from collops.array import Array, axpby, dots, random
from collops.backend import engine_of
from collops.operators import CSRMatrix
from collops.operators.base import LinearOperator

_NEGLIGIBLE = 1e-20  # squared norm of a residual, relative to the first, that has no further information


def largest_eigenvalue(A: CSRMatrix, M: LinearOperator) -> float:
    """Return the largest eigenvalue of ``M A``, from below. Collective.

    It is rounded to be equal on any number of ranks.
    """
    values = ritz_values(A, M, 8)
    return float(f"{values[-1]:.2e}") if len(values) else 1.0


def ritz_values(A: CSRMatrix, M: LinearOperator, steps: int) -> np.ndarray:
    """Return estimates of the eigenvalues of ``M A``, sorted, from steps of conjugate gradients. Collective.

    Both are Hermitian, and `M` is positive definite.

    The coefficients of the steps define a tridiagonal matrix with these eigenvalues [Saad 2003, section 6.7.3]. The
    right-hand side is the image of a random vector, so that singular matrices have a solution.
    """
    dtype, engine = np.result_type(A.dtype, np.float32), engine_of(A.entries[0].data)
    z: Array = random(A.rows, seed=3, comm=A.comm, dtype=dtype, engine=engine)
    r = A @ z
    z = M._forward(r, z)
    p, image = z.copy(), z.copy()
    first = gamma = _modulus(r, z)
    alphas: list[float] = []
    betas: list[float] = []
    while len(alphas) < steps and gamma > _NEGLIGIBLE * first:
        image = A._forward(p, image)
        curvature = _modulus(p, image)
        if curvature == 0:
            break
        alphas.append(gamma / curvature)
        r = axpby(-alphas[-1], image, 1.0, r, out=r)
        z = M._forward(r, z)
        before, gamma = gamma, _modulus(r, z)
        betas.append(gamma / before)
        p = axpby(1.0, z, betas[-1], p, out=p)
    if not alphas:
        return np.empty(0)
    inverse, ratios = 1 / np.array(alphas), np.array(betas[:-1])
    diagonal = inverse + np.concatenate([[0.0], ratios * inverse[:-1]])
    beside = np.sqrt(ratios) * inverse[:-1]
    return np.linalg.eigvalsh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))


def _modulus(x: Array, y: Array) -> float:
    """Return the modulus of an inner product, which is real and positive but for rounding."""
    (value,) = dots((x, y))
    return abs(complex(value))
