"""Cases of solvers, compared with PyLops and SciPy on the global system."""

from __future__ import annotations

from typing import Any

import numpy as np

import collops
from collops_bench.soak.draw import Draw

__all__ = ["cg", "cgls", "fista", "lsqr", "system"]

_SOLVED = 50.0  # times the tolerance of a product


def system(draw: Draw) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a stack of matrices, the whole matrix, and data. Collective."""
    rows, columns = draw.integer(30, 80), draw.integer(1, 20)
    dtype = draw.choice("float64", "complex128")
    # A tall random matrix is well conditioned, so that rounding errors stay small.
    matrix = draw.values((rows, columns), dtype) / np.sqrt(rows)
    ends = np.cumsum([0, *draw.sizes(rows)])
    local = matrix[ends[draw.comm.rank] : ends[draw.comm.rank + 1]]
    op = collops.VStack([draw.local(local)] if len(local) else [], draw.comm)
    return op, matrix, draw.values(rows, dtype)


def cgls(draw: Draw) -> None:
    """Compare the iterates of damped least squares with PyLops."""
    import pylops
    from pylops.optimization.basic import cgls as peer_cgls

    op, matrix, data = system(draw)
    niter, damp = draw.integer(1, 8), draw.choice(0.0, 0.3)
    result = collops.cgls(op, draw.array(data, op.range), niter=niter, damp=damp, tol=0.0, progress=False)
    peer = pylops.MatrixMult(matrix, dtype=matrix.dtype)
    with np.errstate(invalid="ignore"):
        expected = peer_cgls(peer, data, niter=niter, damp=damp, tol=0.0)[0]
    if niter > matrix.shape[1] or not np.isfinite(expected).all():
        # After one iteration per unknown the system is solved; PyLops would continue and might divide by zero.
        normal = matrix.conj().T @ matrix + damp**2 * np.eye(matrix.shape[1])
        expected = np.linalg.solve(normal, matrix.conj().T @ data)
    draw.close("cgls", draw.whole(result.x), expected, _SOLVED)


def cg(draw: Draw) -> None:
    """Solve a positive definite system to the end, and compare with a direct solver."""
    op, matrix, data = system(draw)
    normal = op.H @ op
    right = matrix.conj().T @ data
    result = collops.cg(normal, draw.array(right, op.domain), niter=60, tol=1e-28, progress=False)
    draw.close("cg", draw.whole(result.x), np.linalg.solve(matrix.conj().T @ matrix, right), 1e4)


def lsqr(draw: Draw) -> None:
    """Solve least squares to the end, and compare with a direct solver."""
    op, matrix, data = system(draw)
    result = collops.lsqr(op, draw.array(data, op.range), niter=80, atol=1e-14, btol=1e-14, progress=False)
    draw.close("lsqr", draw.whole(result.x), np.linalg.lstsq(matrix, data, rcond=None)[0], 1e4)


def fista(draw: Draw) -> None:
    """Compare the iterates of a sparse inversion with PyLops."""
    import pylops
    from pylops.optimization import sparsity

    op, matrix, data = system(draw)
    step = float(0.9 / np.linalg.norm(matrix, 2) ** 2)
    options = {"niter": draw.integer(1, 10), "eps": 0.1, "alpha": step, "tol": 0.0}
    name = draw.choice("ista", "fista")
    result = getattr(collops, name)(op, draw.array(data, op.range), **options, progress=False)
    peer = pylops.MatrixMult(matrix, dtype=matrix.dtype)
    expected = getattr(sparsity, name)(peer, data, **options)[0]
    draw.close(name, draw.whole(result.x), expected, _SOLVED)
