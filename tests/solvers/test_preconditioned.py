"""Krylov methods with a preconditioner, against SciPy and dense solutions."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg

from collops.array import StackedArray, from_global, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import BlockDiag, Diagonal, Identity, StackedVStack
from collops.solvers import Status, cg, cgls, lsqr

from .problems import ROWS, assert_close, problem, random_matrix, start
from .test_cgls import messages_of_one_iteration


def hermitian(op, comm, dtype):
    """Return a positive definite operator on the model, with messages of none, and its matrix."""
    rng = np.random.default_rng(5)
    diagonal = (1 + rng.random(op.domain.size)).astype(dtype)
    return Diagonal(from_global(diagonal, op.domain, comm=comm)), np.diag(diagonal)


def unsymmetric(op, comm, dtype):
    """Return an operator on the model whose adjoint differs from it, and its matrix."""
    rows = ROWS[: comm.size]
    blocks = [[random_matrix(n, n, dtype, 7) + 4 * np.eye(n, dtype=dtype) for n in each] for each in rows]
    return BlockDiag(blocks[comm.rank], comm), scipy.linalg.block_diag(*(block for each in blocks for block in each))


@pytest.mark.parametrize("reductions", [1, 2, "pipelined"])
@pytest.mark.parametrize(("kind", "dtype"), [("vstack", "f8"), ("block_diag", "c16"), ("block_diag", "f4")])
def test_iterates_of_cg_are_those_of_scipy(comm, kind, dtype, reductions):
    op, serial, y, yd = problem(kind, comm, dtype)
    M, preconditioner = hermitian(op, comm, dtype)
    matrix = serial.A.conj().T @ serial.A + 0.3 * np.eye(op.domain.size, dtype=dtype)
    x0, x0d = start(op, comm, dtype)
    result = cg(op.H @ op, op.H @ yd, x0d, niter=4, damp=0.3, tol=0, M=M, reductions=reductions)
    right = serial.A.conj().T @ y
    x, _ = scipy.sparse.linalg.cg(matrix, right, x0, rtol=0, maxiter=4, M=preconditioner)
    assert_close(result.x.gather(), x, dtype, factor=10)
    assert_close(result.residual_norms[-1], np.linalg.norm(right - matrix @ x), dtype, factor=100)


@pytest.mark.parametrize("reductions", [1, 2, "pipelined"])
@pytest.mark.parametrize(("damp", "with_start"), [(0.0, False), (0.7, True)])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_cgls_minimises_the_same_objective(comm, dtype, damp, with_start, reductions):
    """Its iterates are those without a preconditioner of the matrix times it, in the model z."""
    op, serial, y, yd = problem("block_diag", comm, dtype)
    M, preconditioner = unsymmetric(op, comm, dtype)
    x0, x0d = start(op, comm, dtype) if with_start else (None, None)
    size = op.domain.size
    whole = np.vstack([serial.A, damp * np.eye(size, dtype=dtype)])
    data = np.concatenate([y, np.zeros(size, dtype)])
    result = cgls(op, yd, x0d, niter=200, damp=damp, tol=1e-24, M=M, reductions=reductions)
    assert_close(result.x.gather(), np.linalg.lstsq(whole, data)[0], dtype, factor=10)
    # Two steps by the textbook, on the normal equations of z.
    image = whole @ preconditioner
    z, r = np.zeros(size, dtype), data if x0 is None else data - whole @ x0
    p = s = image.conj().T @ r
    for _ in range(2):
        q = image @ p
        alpha = np.vdot(s, s).real / np.vdot(q, q).real
        z, r, before = z + alpha * p, r - alpha * q, s
        s = image.conj().T @ r
        p = s + np.vdot(s, s).real / np.vdot(before, before).real * p
    x = preconditioner @ z + (0 if x0 is None else x0)
    result = cgls(op, yd, x0d, niter=2, damp=damp, tol=0, M=M, reductions=reductions)
    assert_close(result.x.gather(), x, dtype, factor=10)
    np.testing.assert_allclose(result.details["gradient_norm"], np.linalg.norm(s), rtol=1e-8)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_lsqr_is_that_of_the_product(comm, dtype):
    op, serial, y, yd = problem("block_diag", comm, dtype)
    M, preconditioner = unsymmetric(op, comm, dtype)
    image = serial.A @ preconditioner
    result = lsqr(op, yd, niter=3, atol=0, btol=0, conlim=0, M=M)
    z, _, _, r1norm, _, anorm, acond, arnorm, _, _ = scipy.sparse.linalg.lsqr(
        image, y, iter_lim=3, atol=0, btol=0, conlim=0
    )
    assert_close(result.x.gather(), preconditioner @ z, dtype)
    found = [result.details[name] for name in ("r1norm", "anorm", "acond", "arnorm", "xnorm")]
    xnorm = np.linalg.norm(preconditioner @ z)
    np.testing.assert_allclose(found, [r1norm, anorm, acond, arnorm, xnorm], rtol=1e-7)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_variances_are_those_of_the_solution(comm, dtype):
    """As many iterations as unknowns find all directions."""
    op, serial, y, yd = problem("vstack", comm, dtype)
    M, _ = hermitian(op, comm, dtype)
    result = lsqr(op, yd, niter=6, atol=0, btol=0, conlim=0, calc_var=True, M=M)
    exact = np.linalg.inv(serial.A.conj().T @ serial.A)
    assert_close(result.x.gather(), exact @ serial.A.conj().T @ y, dtype)
    np.testing.assert_allclose(result.details["var"].gather(), np.diag(exact).real, rtol=1e-6)


def test_a_preconditioner_adds_its_own_messages_only(comm):
    square = BlockDiag([np.diag([1.0, 2.0, 3.0])], comm)
    y = from_global(np.ones(3 * comm.size), square.range, comm=comm)
    M = Diagonal(np.arange(1.0, 1 + 3 * comm.size), square.domain, comm=comm)
    for solver, reductions, expected in ((cg, 2, [1, 2]), (cg, 1, [5]), (cgls, 2, [1, 2]), (cgls, 1, [5])):
        sent = messages_of_one_iteration(solver, square, y, tol=0, reductions=reductions, M=M)
        assert [message.elements for message in sent] == (expected if comm.size > 1 else [])
    sent = [message.elements for message in messages_of_one_iteration(lsqr, square, y, M=M)]
    assert sorted(sent) == ([1, 2] if comm.size > 1 else [])


@pytest.mark.parametrize("reductions", [1, 2, "pipelined"])
def test_condition_numbers(comm, reductions):
    op, serial, _, yd = problem("block_diag", comm, "f8")
    M, preconditioner = hermitian(op, comm, "f8")
    root, normal = np.sqrt(preconditioner), serial.A.T @ serial.A
    result = cg(op.H @ op, op.H @ yd, niter=200, tol=0, M=M, reductions=reductions)
    np.testing.assert_allclose(result.details["condition"], np.linalg.cond(root @ normal @ root), rtol=1e-3)
    result = cgls(op, yd, niter=200, tol=0, M=M, reductions=reductions)
    np.testing.assert_allclose(result.details["condition"], np.linalg.cond(serial.A @ preconditioner), rtol=1e-3)
    assert np.isnan(cg(op.H @ op, zeros(op.domain, comm=comm), niter=2).details["condition"])


def test_an_indefinite_preconditioner_stops_cg(comm):
    A = Identity(3 * comm.size, comm=comm)
    y = from_global(np.ones(3 * comm.size), A.range, comm=comm)
    for reductions in (1, 2, "pipelined"):
        result = cg(A, y, niter=5, M=-1 * A, reductions=reductions)
        assert result.status is Status.INDEFINITE and not result.status.successful


def test_unusable_preconditioners(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    for solver in (cgls, lsqr):
        with pytest.raises(LayoutError, match="M must map arrays of the layout"):
            solver(op, yd, M=Identity(7, comm=comm))
        with pytest.raises(UnsupportedTypeError, match="M must be a distributed operator"):
            solver(op, yd, M=np.eye(6))
    with pytest.raises(LayoutError, match="M must map"):
        cg(op.H @ op, op.H @ yd, M=Identity(7, comm=comm))
    model = Identity(op.domain, comm=comm)
    with pytest.raises(InputError, match="lsqr with M does not support damp"):
        lsqr(op, yd, damp=0.1, M=model)
    # What the message advises to do instead.
    stack = StackedVStack([op, 0.1 * model])
    data = StackedArray([yd, zeros(op.domain, comm=comm)])
    M = Diagonal(np.arange(1.0, 7), op.domain, comm=comm)
    found = lsqr(stack, data, niter=50, atol=1e-12, btol=1e-12, M=M).x.gather()
    assert_close(found, cgls(op, yd, niter=50, tol=1e-24, damp=0.1).x.gather())
