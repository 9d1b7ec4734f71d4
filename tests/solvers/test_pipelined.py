"""Pipelined CG and CGLS: what overlaps, and accuracy beside the plain methods; other tests compare their iterates."""

from __future__ import annotations

import bz2
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.linalg
import scipy.sparse as sp

from collops import profile
from collops.array import Layout, from_global, start_dots
from collops.operators import Diagonal, LinearOperator
from collops.operators.csr import CSRMatrix
from collops.solvers import Status, cg, cgls
from collops.solvers.variants import pipelined


class Watched(LinearOperator):
    """A Hermitian operator that notes when it is applied."""

    def __init__(self, inner, events) -> None:
        super().__init__(inner.domain, inner.range, inner.dtype, inner.comm)
        self._inner, self._events = inner, events

    def _forward(self, x, out):
        self._events.append("apply")
        return self._inner._forward(x, out)

    _adjoint = _forward


@pytest.mark.parametrize(
    ("solver", "applied", "numbers", "at_the_end"), [(cg, 42 + 6 + 6, 4, 1), (cgls, 84 + 12 + 6, 5, 0)]
)
def test_every_reduction_overlaps_with_the_operator(comm, monkeypatch, solver, applied, numbers, at_the_end):
    """Iterations 5, 11, 17 ... recompute the image of the residual, the next ones that of the direction.

    CG computes the last residual `at_the_end`, by one product and one message.
    """
    size, events = 101, []

    def started(*pairs):
        finish = start_dots(*pairs)
        events.append("start")
        return lambda: (events.append("finish"), finish())[1]

    monkeypatch.setattr(pipelined, "start_dots", started)
    layout = Layout.split(size, comm.size)
    op = Watched(Diagonal(from_global(np.geomspace(1, 1e-6, size), layout, comm=comm)), events)
    y, sent = from_global(np.ones(size), layout, comm=comm), {}
    for niter in (20, 40):
        events.clear()
        with profile.count_messages() as counted:
            solver(op, y, niter=niter, tol=0, reductions="pipelined")
        sent[niter] = [message.elements for message in counted.records]
    inside = [part.split("finish")[0].split() for part in " ".join(events).split("start")[1:]]
    assert inside == [["apply"]] * 40
    assert events.count("apply") == applied + at_the_end
    if comm.size > 1:
        assert sent[40][-40 - at_the_end :][:40] == [numbers] * 40
        assert len(sent[40]) == len(sent[20]) + 20


def second_difference(n):
    return sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))


def spectrum(condition, n=60):
    """A matrix with equal steps between the logarithms of its eigenvalues."""
    rows, _ = np.linalg.qr(np.random.default_rng(2).standard_normal((n, n)))
    matrix = (rows * np.geomspace(1 / condition, 1, n)) @ rows.T
    return sp.csr_array((matrix + matrix.T) / 2)


def scaled(n):
    """A Laplacian whose rows and columns are scaled by seven orders of magnitude, as in mixed units."""
    scale = sp.diags_array(10 ** np.random.default_rng(3).uniform(-3.5, 3.5, n * n))
    return scale @ sp.kronsum(second_difference(n), second_difference(n)) @ scale


def collection(name):
    """A matrix or a right-hand side of the SuiteSparse Matrix Collection; see the README beside them."""
    with bz2.open(Path(__file__).parent / "suitesparse" / f"{name}.mtx.bz2") as file:
        return scipy.io.mmread(file)


def normal(name):
    matrix = sp.csr_array(collection(name))
    return matrix.T @ matrix


SYSTEMS = {
    "Poisson": (lambda: sp.kronsum(second_difference(12), second_difference(12)), False),
    "anisotropic": (lambda: sp.kronsum(second_difference(12), 0.01 * second_difference(12)), False),
    "beam": (lambda: second_difference(40) @ second_difference(40), False),  # condition number 4e5
    "scaled": (lambda: scaled(10), True),
    "spectrum of 1e2": (lambda: spectrum(1e2), False),
    "spectrum of 1e4": (lambda: spectrum(1e4), True),
    "bcsstk01": (lambda: collection("bcsstk01"), False),
    "bcsstk01, Jacobi": (lambda: collection("bcsstk01"), True),
    "lund_a": (lambda: collection("lund_a"), False),
    "lund_a, Jacobi": (lambda: collection("lund_a"), True),
    "normal equations of well1033": (lambda: normal("well1033"), False),
}
ON_ALL_RANKS = ["scaled", "bcsstk01, Jacobi", "lund_a, Jacobi"]
OTHERS = [name for name in SYSTEMS if name not in ON_ALL_RANKS]


@pytest.mark.parametrize("name", [*ON_ALL_RANKS, *(pytest.param(name, marks=pytest.mark.serial) for name in OTHERS)])
def test_cg_converges_as_without_overlap(comm, name):
    """Eight digits take as many iterations, and the residual becomes as small as rounding errors of the operator.

    Where rounding delays the plain method, which then needs more of them than there are unknowns, it is delayed more.
    """
    make, preconditioned = SYSTEMS[name]
    matrix = sp.csr_array(make())
    op = CSRMatrix.from_global(matrix, comm=comm)
    M = Diagonal(from_global(1 / matrix.diagonal(), op.domain, comm=comm)) if preconditioned else None
    needed = []
    for seed in (4, 5):  # 5 without a smooth solution
        b = np.random.default_rng(seed).standard_normal(matrix.shape[0])
        b = matrix @ b if seed == 4 else b
        y = from_global(b, op.range, comm=comm)
        for reductions in (2, "pipelined"):
            result = cg(op, y, niter=4000, tol=0, M=M, reductions=reductions)
            assert result.status is Status.COMPATIBLE_TO_ROUNDING
            needed.append(int(np.argmax(result.residual_norms <= 1e-8 * result.residual_norms[0])))
            x = result.x.gather()
            rounding = np.finfo("f8").eps * scipy.linalg.norm(matrix.toarray(), 2) * np.linalg.norm(x)
            assert np.linalg.norm(b - matrix @ x) <= 10 * rounding
    for plain, overlapped in (needed[:2], needed[2:]):
        assert overlapped <= (1.05 if plain < 0.9 * len(b) else 1.15) * plain + 1, needed


@pytest.mark.parametrize(
    ("name", "digits"),
    [("well1033", 8), *(pytest.param(name, 6, marks=pytest.mark.serial) for name in ("illc1033", "illc1850"))],
)
def test_cgls_converges_as_without_overlap_on_surveys(comm, name, digits):
    """With the data that belong to these matrices."""
    matrix, data = sp.csr_array(collection(name)), collection(f"{name}_rhs1").ravel()
    op = CSRMatrix.from_global(matrix, comm=comm)
    y = from_global(data, op.range, comm=comm)
    bound = 10.0**-digits * np.linalg.norm(matrix.T @ data)
    needed = []
    for reductions in (2, "pipelined"):
        result = cgls(op, y, niter=4000, tol=bound**2, reductions=reductions)
        assert np.linalg.norm(matrix.T @ (data - matrix @ result.x.gather())) <= 1.001 * bound
        needed.append(result.iterations)
    assert needed[1] <= 1.1 * needed[0], needed


@pytest.mark.serial
@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6, 1e8])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_cgls_converges_as_without_overlap(comm, dtype, condition, noise):
    """With damping, which bounds the condition number as regularisation does, also that of the normal equations."""
    rng = np.random.default_rng(5)
    matrix = spectrum(condition, 40).toarray().astype(dtype)
    op = CSRMatrix.from_global(sp.csr_array(matrix), comm=comm)
    exact = matrix.astype("f8")
    data = (exact @ rng.standard_normal(40) + noise * rng.standard_normal(40)).astype(dtype)
    y = from_global(data, op.range, comm=comm)
    damp, gradients, needed = 0.03, [], []
    for reductions in (2, "pipelined"):
        result = cgls(op, y, niter=2000, damp=damp, tol=0, reductions=reductions)
        assert result.status is Status.LEAST_SQUARES_TO_ROUNDING and result.x.dtype == np.dtype(dtype)
        x = result.x.gather().astype("f8")
        gradients.append(np.linalg.norm(exact.T @ (data - exact @ x) - damp**2 * x))
        needed.append(result.iterations)
    rounding = np.finfo(dtype).eps * max(np.linalg.norm(data), np.linalg.norm(x))  # the norm of the matrix is 1
    assert gradients[1] <= 10 * max(gradients[0], rounding)
    assert needed[1] <= (2 if dtype == "f4" else 1.2) * needed[0], needed


@pytest.mark.serial
@pytest.mark.parametrize("size", [60, 100])
def test_rounding_errors_of_the_residual_do_not_grow(comm, size):
    """Data without a smooth solution leave a residual of 1e-8, which pipelined CG may replace by another such one."""
    rows, _ = np.linalg.qr(np.random.default_rng(2).standard_normal((size, size)))
    matrix = (rows * np.linspace(1e-8, 1, size)) @ rows.T
    op = CSRMatrix.from_global(sp.csr_array((matrix + matrix.T) / 2), comm=comm)
    y = from_global(np.random.default_rng(4).standard_normal(size), op.range, comm=comm)
    plain, pipelined = (cg(op, y, niter=600, tol=0, reductions=reductions).x for reductions in (2, "pipelined"))
    assert float((y - op @ pipelined).norm()) <= 10 * float((y - op @ plain).norm())


def test_an_error_of_the_operator_leaves_the_communicator_in_step(comm):
    """It is raised between the start and the end of a reduction, whose numbers nobody reads."""
    layout = Layout.split(101, comm.size)
    inner = Diagonal(from_global(np.geomspace(1, 1e-2, 101), layout, comm=comm))
    y = from_global(np.ones(101), layout, comm=comm)

    class Failing(Watched):
        def _forward(self, x, out):
            if len(self._events) == 5:
                raise ZeroDivisionError("in the operator")
            return super()._forward(x, out)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in the operator"):
            cg(Failing(inner, []), y, niter=20, tol=0, reductions="pipelined")
        assert float(comm.allreduce(1.0)) == comm.size
    x = cg(inner, y, niter=200, tol=0, rtol=1e-10, reductions="pipelined").x
    np.testing.assert_allclose(x.gather(), 1 / np.geomspace(1, 1e-2, 101), rtol=1e-7)
