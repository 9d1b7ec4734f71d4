"""CG against serial PyLops."""

from __future__ import annotations

import numpy as np
import pylops
import pytest
from pylops.optimization import basic

from collops.array import from_global, random
from collops.errors import LayoutError
from collops.operators import BlockDiag, Identity
from collops.solvers import CG, Status, cg, solve
from collops.solvers.variants.single_reduction import SingleReductionCG

from .problems import VARIETY, assert_close, problem, start
from .test_cgls import messages_of_one_iteration


@pytest.mark.parametrize("reductions", [1, 2, "pipelined"])
@pytest.mark.parametrize(("damp", "with_start"), [(0.0, True), (0.7, False)])
@pytest.mark.parametrize(("kind", "dtype"), [pair for pair in VARIETY if pair[0] != "hstack"])
def test_iterates_are_those_of_pylops(comm, kind, damp, dtype, with_start, reductions):
    op, serial, y, yd = problem(kind, comm, dtype)
    right, right_d = serial.A.conj().T @ y, op.H @ yd
    normal = pylops.MatrixMult(serial.A.conj().T @ serial.A, dtype=dtype)
    x0, x0d = start(op, comm, dtype) if with_start else (None, None)
    result = cg(op.H @ op, right_d, x0d, niter=4, damp=damp, tol=0, reductions=reductions)
    x, iterations, cost = basic.cg(normal, right, x0=x0, niter=4, damp=damp, tol=0)
    assert result.iterations == iterations
    assert_close(result.x.gather(), x, dtype, factor=10)
    assert_close(result.residual_norms, cost, dtype, factor=10)


def test_stops_where_pylops_stops(comm):
    op, serial, y, yd = problem("vstack", comm, "f8")
    normal = pylops.MatrixMult(serial.A.T @ serial.A)
    relative = {"rtol1": 1e-4, "tol": 0}  # our rtol is relative to the data, and so is PyLops' rtol1
    for stop in ({"tol": 1e30}, {"tol": 1.0}, {"tol": 1e-3}, {"rtol": 0.1, "tol": 0}, relative):
        result = cg(op.H @ op, op.H @ yd, niter=50, **{name.rstrip("1"): value for name, value in stop.items()})
        _, iterations, _ = basic.cg(normal, serial.A.T @ y, niter=50, **stop)
        assert result.iterations == iterations and result.status is Status.CONVERGED


def test_messages(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    sent = [message.elements for message in messages_of_one_iteration(cg, op.H @ op, op.H @ yd, tol=0)]
    assert sorted(sent) == ([1, op.domain.size] if comm.size > 1 else [])
    square = BlockDiag([np.diag([1.0, 2.0, 3.0])], comm)
    y = from_global(np.ones(3 * comm.size), square.range, comm=comm)
    sent = [message.elements for message in messages_of_one_iteration(cg, square, y, tol=0)]
    assert sent == ([1, 1] if comm.size > 1 else [])
    sent = [message.elements for message in messages_of_one_iteration(cg, square, y, tol=0, reductions=1)]
    assert sent == ([4] if comm.size > 1 else [])


@pytest.mark.serial
@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6, 1e8])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_single_reduction_is_as_accurate(comm, dtype, condition):
    """The residual becomes as small as with two, but for a factor of 10, after at most twice as many iterations."""
    if dtype == "f4" and condition > 1e6:
        pytest.skip("below the rounding of single precision")
    diagonal = np.geomspace(1, 1 / condition, 24).astype(dtype)
    op = BlockDiag([np.diag(np.array_split(diagonal, comm.size)[comm.rank])], comm)
    truth = np.random.default_rng(1).standard_normal(24).astype(dtype)
    y = from_global(diagonal * truth, op.range, comm=comm)
    best, needed = {}, {}
    for reductions, method in ((1, SingleReductionCG), (2, CG)):
        norms = []
        watch = lambda _, view, norms=norms: norms.append(float((y - op @ view.x).norm()))  # noqa: E731
        solve(method(tol=0.0, precision=0.0), op, y, niter=200, callback=watch)
        best[reductions] = max(np.finfo(dtype).eps * np.linalg.norm(truth), min(norms))
        needed[reductions] = next(n for n, value in enumerate(norms, 1) if value <= 2 * best[reductions])
    assert best[1] <= 10 * best[2]
    assert needed[1] <= 2 * needed[2]


def test_needs_one_layout_on_both_sides(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    with pytest.raises(LayoutError, match="cgls takes any"):
        cg(op, yd)


def test_what_is_linear_over_the_reals_only(comm):
    """Two eigenvalues take two iterations, in the real inner product."""
    part = BlockDiag([pylops.Real(3, dtype="complex128")], comm)
    every = Identity(part.domain, comm=comm, dtype="complex128")
    A = (1 + 2j) * every
    A = (part @ A).H @ (part @ A) + 0.5 * every
    assert A.dottest() and not A.clinear
    y = random(A.range, comm=comm, dtype="complex128", seed=1)
    for reductions in (1, 2, "pipelined"):
        x = cg(A, y, niter=2, tol=0, reductions=reductions).x
        assert_close((A @ x).gather(), y.gather(), "c16")
