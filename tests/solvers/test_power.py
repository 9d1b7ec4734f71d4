"""Power iteration against an independent one and exact eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import from_global
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import BlockDiag
from collops.solvers import Status, power_iteration

from .problems import VARIETY, assert_close, problem, start
from .test_cgls import messages_of_one_iteration


def reference(matrix, x, niter, tol):
    """The eigenvalue, its vector, and the number of iterations."""
    x, value = x / np.linalg.norm(x), np.inf
    for done in range(1, niter + 1):  # noqa: B007
        image, before = matrix @ x, value
        value = np.vdot(x, image)
        x = image / np.linalg.norm(image)
        if abs(value - before) < tol * abs(value):
            break
    return value, x, done


@pytest.mark.parametrize(("kind", "dtype"), VARIETY)
def test_iterates(comm, kind, dtype):
    op, serial, *_ = problem(kind, comm, dtype)
    x0, x0d = start(op, comm, dtype)
    normal = serial.A.conj().T @ serial.A
    for niter in (1, 5):
        result = power_iteration(op.H @ op, x0d, niter=niter, tol=0)
        value, x, _ = reference(normal, x0, niter, 0)
        assert_close(result.details["eigenvalue"], value, dtype)
        assert_close(result.x.gather(), x, dtype, factor=10)
        assert result.x.dtype == np.dtype(dtype) and result.iterations == niter
    assert_close(x0d.gather(), x0, dtype)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_finds_the_largest(comm, dtype):
    op, serial, *_ = problem("vstack", comm, dtype)
    result = power_iteration(op.H @ op, niter=3000, tol=1e-14)
    assert result.status is Status.CONVERGED and result.status.successful
    assert_close(result.details["eigenvalue"], np.linalg.norm(serial.A, 2) ** 2, factor=100)
    assert isinstance(result.details["eigenvalue"], float if dtype == "f8" else complex)
    assert_close(float(result.x.norm()), 1.0)
    assert result.residual_norms[-1] < 1e-3 * abs(result.details["eigenvalue"])
    # Not Hermitian: the modulus decides.
    rotation = BlockDiag([np.diag([1.0, -2j])], comm)
    value = power_iteration(rotation, dtype="c16", tol=1e-12).details["eigenvalue"]
    assert_close(value, -2j, factor=1e6)


def test_stops_and_repeats(comm):
    op, serial, *_ = problem("vstack", comm, "f8")
    x0, x0d = start(op, comm, "f8")
    for tol in (1e-1, 1e-6):
        result = power_iteration(op.H @ op, x0d, niter=500, tol=tol)
        value, _, iterations = reference(serial.A.T @ serial.A, x0, 500, tol)
        assert result.iterations == iterations
        assert_close(result.details["eigenvalue"], value)
    first, second = (power_iteration(op.H @ op, seed=3).details["eigenvalue"] for _ in range(2))
    assert first == second != power_iteration(op.H @ op, seed=4).details["eigenvalue"]


def test_nothing_and_integers(comm):
    op = BlockDiag([np.zeros((2, 2))], comm)
    result = power_iteration(op)
    assert result.details["eigenvalue"] == 0 and result.iterations == 1
    assert_close(result.x.local_array, np.zeros(2))
    ints = from_global(np.ones(2 * comm.size, int), op.domain, comm=comm)
    assert power_iteration(op, ints).x.dtype == np.float64


def test_messages(comm):
    op, *_ = problem("block_diag", comm, "f8")
    sent = messages_of_one_iteration(lambda op, y, **options: power_iteration(op, **options), op.H @ op, None, tol=0)
    assert [message.elements for message in sent] == ([2] if comm.size > 1 else [])


def test_arguments_are_checked(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    with pytest.raises(LayoutError, match="both sides"):
        power_iteration(op)
    with pytest.raises(LayoutError):
        power_iteration(op.H @ op, yd)
    with pytest.raises(InputError):
        power_iteration(op.H @ op, tol=-1)
    with pytest.raises(UnsupportedTypeError):
        power_iteration(np.eye(3))
