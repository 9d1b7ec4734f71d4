"""MINRES against SciPy and dense solutions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg

from collops.array import from_global
from collops.operators import Diagonal
from collops.solvers import Status, minres

from .problems import assert_close
from .systems import KINDS, system, whole
from .test_cgls import messages_of_one_iteration


def smallest_residual(matrix, data, niter: int):
    """Return the element of the Krylov space with the smallest residual."""
    space = [data / np.linalg.norm(data)]
    for _ in range(niter - 1):
        image = matrix @ space[-1]
        for _ in range(2):
            image = image - np.array(space).T @ (np.array(space).conj() @ image)
        space.append(image / np.linalg.norm(image))
    basis = np.array(space).T
    return basis @ np.linalg.lstsq(matrix @ basis, data)[0]


@pytest.mark.parametrize("shift", [0.0, 0.6])
@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_the_residual_is_the_smallest(comm, kind, dtype, shift):
    op, matrix, data, distributed = system(kind, comm, dtype, symmetric=True)
    shifted = matrix - shift * np.eye(len(data), dtype=dtype)
    start = np.linspace(-1, 1, len(data)).astype(dtype)
    y = distributed((data + shifted @ start).astype(dtype))
    norms = []
    result = minres(op, y, distributed(start), niter=4, shift=shift, rtol=0)
    for niter in range(1, 5):
        x = smallest_residual(shifted.astype("c16" if dtype[0] == "c" else "f8"), data, niter)
        norms.append(np.linalg.norm(data - shifted @ x))
    assert result.iterations == 4 and result.x.dtype == np.dtype(dtype)
    assert_close(whole(result.x) - start, x, dtype, factor=100)
    assert_close(result.residual_norms[1:], norms, dtype, factor=100)


def test_a_preconditioner(comm):
    op, matrix, data, distributed = system("split", comm, "f8", symmetric=True)
    scale = np.linspace(0.1, 2, len(data))
    M = Diagonal(distributed(scale))
    iterates = []
    scipy.sparse.linalg.minres(matrix, data, M=np.diag(scale), rtol=0, maxiter=6, callback=iterates.append)
    result = minres(op, distributed(data), M=M, niter=6, rtol=0)
    assert_close(result.x.gather(), iterates[-1], factor=100)
    residual = data - matrix @ iterates[-1]
    assert_close(result.residual_norms[-1], np.sqrt(residual @ (scale * residual)), factor=100)
    result = minres(op, distributed(data), M=M, niter=300, rtol=1e-10)
    assert_close(result.x.gather(), np.linalg.solve(matrix, data), factor=1e5)
    negative = minres(op, distributed(data), M=-1.0 * M, niter=9)
    assert negative.status is Status.INDEFINITE and negative.iterations == 0


def test_singular_systems(comm):
    """A solution where there is one, and otherwise what is left of the data."""
    values = np.resize([1.0, 0.0, -3.0, 2.0], 4 + 3 * comm.size)
    op = Diagonal(from_global(values, comm=comm))
    result = minres(op, from_global(values, comm=comm), rtol=1e-14)
    assert_close(result.x.gather(), np.sign(np.abs(values)))
    assert result.status.successful and result.iterations == 3
    result = minres(op, from_global(np.ones_like(values), comm=comm))
    assert result.status is Status.LEAST_SQUARES_TO_ROUNDING and result.iterations <= 5
    assert_close(result.residual_norms[-1], np.sqrt(np.sum(values == 0)))
    assert_close(values * result.x.gather(), np.sign(np.abs(values)))


def test_messages(comm):
    op, _, data, distributed = system("split", comm, "f8", symmetric=True)
    sent = messages_of_one_iteration(minres, op, distributed(data), rtol=0)
    assert [message.elements for message in sent] == ([2] if comm.size > 1 else [])


def test_the_norm_is_that_of_the_tridiagonal_matrix(comm):
    """Against the Lanczos process of the dense matrix; the tests for rounding depend on this norm."""
    op, matrix, data, distributed = system("split", comm, "f8", symmetric=True)
    v, before, beta = data / np.linalg.norm(data), np.zeros_like(data), 0.0
    squares, total = [], 0.0
    for _ in range(4):
        total += 2 * beta * beta
        w = matrix @ v - beta * before
        alpha = v @ w
        total += alpha * alpha
        squares.append(total)
        w = w - alpha * v
        beta = np.linalg.norm(w)
        before, v = v, w / beta
    found = []
    minres(op, distributed(data), niter=3, rtol=0, callback=lambda _, view: found.append(float(view.state.tnorm2)))
    np.testing.assert_allclose(found, squares[1:], rtol=1e-8)
