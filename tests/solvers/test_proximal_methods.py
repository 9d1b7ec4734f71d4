"""Proximal methods against textbook versions in NumPy, iterate by iterate, and against known minima."""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import StackedArray, from_global, ones, zeros
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import BlockDiag, Identity, StackedVStack, VStack
from collops.solvers import Status
from collops.solvers.proximal import (
    L1,
    L2,
    L21,
    Box,
    admm,
    admm_l2,
    lift_proximal,
    linearized_admm,
    primal_dual,
    proximal_gradient,
)

from . import references
from .problems import VARIETY, assert_close, problem, random_matrix, start
from .test_cgls import messages_of_one_iteration
from .test_proximal_operators import Halves

TURNS = [(number % 2 == 0, *pair) for number, pair in enumerate(VARIETY)]


class Case:
    """A misfit with an operator, a penalty of another operator's images, and both for the references."""

    def __init__(self, kind: str, comm, dtype) -> None:
        self.op, serial, self.y, self.yd = problem(kind, comm, dtype)
        self.matrix = serial.A
        self.x0, self.x0d = start(self.op, comm, dtype)
        self.comm, self.dtype = comm, dtype
        self.f, self.g = L2(self.op, self.yd, niter=40), L1(0.7)
        self.near = L2(b=self.x0d)
        self.references = references.misfit(self.matrix, self.y), references.l1(0.7)
        self.near_reference = references.misfit(np.eye(self.x0.size, dtype=dtype), self.x0)
        self.norm = float(np.linalg.norm(self.matrix, 2))

    def vector(self, layout, seed: int):
        values = random_matrix(layout.size, 1, self.dtype, seed)[:, 0]
        return values, from_global(values, layout, comm=self.comm)


def assert_iterates(expected, solve, dtype, second: str | None = None, factor: float = 1.0) -> None:
    """Every iterate of a callback and the last of a result are as expected."""
    seen = []

    def callback(_, view):
        seen.append((view.x.gather(), getattr(view.state, second).gather() if second else None))

    result = solve(niter=len(expected), callback=callback)
    assert result.iterations == len(expected) == len(seen)
    for mine, theirs in zip(seen, expected, strict=True):
        if second:
            assert_close(mine[1], theirs[1], dtype, factor)
        assert_close(mine[0], theirs[0] if second else theirs, dtype, factor)
    assert_close(result.x.gather(), expected[-1][0] if second else expected[-1], dtype, factor)
    if second:
        assert_close(result.details[second].gather(), expected[-1][1], dtype, factor)
    assert result.x.dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    ("acceleration", "kind", "dtype"),
    [(name, *pair) for number, name in enumerate([None, "vandenberghe", "fista"]) for pair in VARIETY[number % 2 :: 2]],
)
def test_proximal_gradient(comm, kind, acceleration, dtype):
    case = Case(kind, comm, dtype)
    tau = 0.9 / case.norm**2
    for options in ({}, {"eta": 0.7, "epsg": 3.0}, {"epsg": [3, 2, 1, 0.5]}):
        expected = references.proximal_gradient(*case.references, case.x0, tau, 4, acceleration=acceleration, **options)
        assert_iterates(
            expected,
            lambda options=options, **more: proximal_gradient(
                case.f, case.g, case.x0d, tau=tau, acceleration=acceleration, **options, **more
            ),
            dtype,
            factor=10,
        )
    assert_close(case.x0d.gather(), case.x0)


@pytest.mark.parametrize("acceleration", [None, "fista"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_backtracking(comm, dtype, acceleration):
    case = Case("vstack", comm, dtype)
    for options, tau in (({}, 1.0), ({"tau": 0.3, "backtracking": True, "beta": 0.7}, 0.3)):
        expected = references.proximal_gradient(
            *case.references, case.x0, tau, 4, acceleration=acceleration, beta=options.get("beta", 0.5)
        )
        assert_iterates(
            expected,
            lambda options=options, **more: proximal_gradient(
                case.f, case.g, case.x0d, acceleration=acceleration, **options, **more
            ),
            dtype,
            factor=10,
        )
    result = proximal_gradient(case.f, case.g, case.x0d)
    assert 0.1 / case.norm**2 < result.details["tau"] < 2 / case.norm**2


@pytest.mark.parametrize(("gfirst", "kind", "dtype"), TURNS)
def test_admm(comm, kind, gfirst, dtype):
    case = Case(kind, comm, dtype)
    z0, z0d = case.vector(case.op.domain, 11)
    for f, reference in ((case.f, case.references[0]), (case.near, case.near_reference)):
        for z, zd in ((case.x0, None), (z0, z0d)):
            expected = references.admm(reference, case.references[1], case.x0, z, 0.8, 4, gfirst)
            assert_iterates(
                expected,
                lambda f=f, zd=zd, **more: admm(f, case.g, case.x0d, 0.8, z0=zd, gfirst=gfirst, **more),
                dtype,
                "z",
                factor=100,
            )


@pytest.mark.parametrize(("kind", "dtype"), VARIETY)
def test_linearized_admm(comm, kind, dtype):
    case = Case(kind, comm, dtype)
    tau = 0.8
    mu = 0.9 * tau / case.norm**2
    z0, z0d = case.vector(case.op.range, 11)
    for z, zd in ((case.matrix @ case.x0, None), (z0, z0d)):
        expected = references.linearized_admm(
            case.near_reference, case.references[1], case.matrix, case.x0, z, tau, mu, 4
        )
        assert_iterates(
            expected,
            lambda zd=zd, **more: linearized_admm(case.near, case.g, case.op, case.x0d, tau, mu, z0=zd, **more),
            dtype,
            "z",
            factor=10,
        )


@pytest.mark.parametrize("gfirst", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_admm_with_a_misfit(comm, dtype, gfirst):
    case = Case("vstack", comm, dtype)
    penalty = random_matrix(5, 6, dtype, 13)
    mine = [penalty] if comm.rank == comm.size - 1 else []
    A = VStack(mine, comm) if comm.size == 1 or mine else VStack([np.zeros((0, 6), dtype)], comm)
    for z, zd in ((penalty @ case.x0, None), case.vector(A.range, 11)):
        expected = references.admm_l2(case.references[1], case.matrix, case.y, penalty, case.x0, z, 0.8, 4, gfirst)
        assert_iterates(
            expected,
            lambda zd=zd, **more: admm_l2(
                case.g, case.op, case.yd, A, case.x0d, 0.8, z0=zd, gfirst=gfirst, inner=30, **more
            ),
            dtype,
            "z",
            factor=1000,
        )


def test_inner_iterations_do_not_amplify_rounding(comm):
    """CGLS on a singular operator continues for long after only rounding errors are left."""
    rows, direction = random_matrix(3 * comm.size + 1, 1, "f8", 3), random_matrix(1, 3, "f8", 4)
    matrix = rows @ direction
    op = VStack([matrix[3 * comm.rank : None if comm.rank == comm.size - 1 else 3 * comm.rank + 3]], comm)
    # Mostly an image: gradients of data that are far from any are rounding errors from the start.
    y = from_global((rows + 0.1 * random_matrix(len(rows), 1, "f8", 5))[:, 0], op.range, comm=comm)
    zero = zeros(op.domain, comm=comm)
    few, many = (admm_l2(L1(0.3), op, y, op, zero, 0.8, inner=count, niter=4).x.gather() for count in (3, 100))
    assert_close(many, few, factor=100)
    # The solution is a multiple of the direction that the operator sees.
    assert_close(many, direction[0] * (direction[0] @ many) / (direction[0] @ direction[0]), factor=100)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_inner_iterations_end_with_data_far_from_any_image(comm, dtype):
    """The gradient is rounding from the start then, so that its size at the start says nothing about rounding."""
    count, mine = 4 * comm.size, slice(4 * comm.rank, 4 * comm.rank + 4)
    for seed in range(3):
        columns = np.linalg.qr(random_matrix(count, 3, "c16" if dtype == "c16" else "f8", seed))[0]
        op = VStack([(columns @ random_matrix(3, 8, columns.dtype, 10 + seed))[mine].astype(dtype)], comm)
        y = random_matrix(count, 1, columns.dtype, 20 + seed)
        y = y - columns @ (columns.conj().T @ y)
        y = from_global(y[:, 0].astype(dtype), op.range, comm=comm)
        start, size = zeros(op.domain, comm=comm, dtype=dtype), np.finfo(dtype).eps
        few, many = (admm_l2(L1(0.3), op, y, op, start, 0.8, inner=n, niter=3).x.gather() for n in (12, 100))
        assert np.abs(many).max() < 1000 * size, seed
        np.testing.assert_array_equal(many, few)


@pytest.mark.parametrize(("gfirst", "kind", "dtype"), TURNS)
def test_primal_dual(comm, kind, gfirst, dtype):
    case = Case(kind, comm, dtype)
    tau, mu = 0.8 / case.norm, 1.1 / case.norm
    y0, y0d = case.vector(case.op.range, 11)
    linear, linear_d = case.vector(case.op.domain, 12)
    for theta, steps, y, yd, z, zd in (
        (1.0, (tau, mu), 0 * y0, None, 0.0, None),
        (0.3, (tau, mu), y0, y0d, linear, linear_d),
        (1.0, ([tau, tau / 2, tau / 3, tau / 4], [mu / 2] * 4), y0, y0d, 0.0, None),
    ):
        expected = references.primal_dual(
            case.near_reference,
            case.references[1],
            case.matrix,
            case.x0,
            y,
            *steps,
            4,
            theta=theta,
            gfirst=gfirst,
            linear=z,
        )
        assert_iterates(
            expected,
            lambda theta=theta, steps=steps, yd=yd, zd=zd, **more: primal_dual(
                case.near, case.g, case.op, case.x0d, *steps, y0=yd, z=zd, theta=theta, gfirst=gfirst, **more
            ),
            dtype,
            "y",
            factor=10,
        )


def test_imaginary_parts_are_not_dropped(comm):
    """Whatever is complex makes the computation complex, also where it starts from a real array."""
    A, g = Identity(5, comm=comm), L1(0.3)
    x0, other = zeros(5, comm=comm), from_global(random_matrix(5, 1, "c16", 1)[:, 0], comm=comm)
    for solve in (
        lambda x: admm(L2(), g, x, 0.5, z0=other, niter=2),
        lambda x: admm_l2(g, A, other, A, x, 0.5, niter=2),
        lambda x: linearized_admm(L2(), g, A, x, 0.5, 0.4, z0=other, niter=2),
        lambda x: primal_dual(L2(), g, A, x, 0.5, 0.5, y0=other, niter=2),
        lambda x: primal_dual(L2(), g, A, x, 0.5, 0.5, z=other, niter=2),
    ):
        found = solve(x0).x.gather()
        assert abs(found.imag).max() > 1e-3
        assert_close(found, solve(x0.astype("c16")).x.gather())


def test_all_find_the_same_minimum(comm):
    """The LASSO, whose minimum coordinate descent finds by another way."""
    case = Case("vstack", comm, "f8")
    weight = 0.3 * float(np.abs(case.matrix.T @ case.y).max())
    g = L1(weight)
    exact = references.lasso(case.matrix, case.y, weight)
    assert 0 < np.count_nonzero(exact) < 6
    f, zero = L2(case.op, case.yd, niter=8), case.x0d * 0
    every = {
        "gradient": proximal_gradient(f, g, zero, tau=0.9 / case.norm**2, niter=150, acceleration="fista"),
        "backtracking": proximal_gradient(f, g, zero, niter=200),
        "admm": admm(f, g, zero, 0.05, niter=80),
        "linearized": linearized_admm(g, L2(b=case.yd), case.op, zero, 1.0, 0.9 / case.norm**2, niter=400),
        "admm_l2": admm_l2(g, case.op, case.yd, Identity(case.op.domain, comm=comm), zero, 0.05, niter=80),
        "primal_dual": primal_dual(g, L2(b=case.yd), case.op, zero, 0.9 / case.norm, 1 / case.norm, niter=300),
    }
    for name, result in every.items():
        np.testing.assert_allclose(result.x.gather(), exact, rtol=0, atol=1e-6, err_msg=name)
        assert result.residual_norms[-1] < 1e-6
        assert np.isnan(result.residual_norms[0]) and len(result.residual_norms) == result.iterations + 1


def test_total_variation(comm):
    """Denoising with the lengths of gradients of two components, whose dual variable is feasible at the minimum."""
    rows, columns = 2 * comm.size, 3
    first = BlockDiag([np.eye(6) - np.eye(6, k=1)], comm)
    second = BlockDiag([np.eye(6) - np.eye(6, k=2)], comm)
    gradient = StackedVStack([first, second])
    noisy = random_matrix(rows * columns, 1, "f8", 4)[:, 0]
    data = from_global(noisy, first.domain, comm=comm)
    result = primal_dual(L2(b=data), L21(2, 0.4), gradient, 0 * data, 0.3, 0.3, niter=800, tol=1e-10, objective=True)
    assert isinstance(result.details["y"], StackedArray)
    dual = result.details["y"]
    length = np.sqrt(sum(part.gather() ** 2 for part in dual.arrays))
    assert length.max() <= 0.4 + 1e-9
    # Optimal: x - data + gradient^H y = 0, and the dual is along the gradient where that is not 0.
    assert_close((result.x - data + gradient.H @ dual).gather(), 0 * noisy, factor=1e5)
    objective = result.details["objective"]
    x = result.x.gather()
    parts = [op.forward(result.x).gather() for op in (first, second)]
    expected = 0.5 * np.linalg.norm(x - noisy) ** 2 + 0.4 * np.sqrt(parts[0] ** 2 + parts[1] ** 2).sum()
    assert_close(objective[-1], expected)
    assert objective[-1] < objective[0]


def test_objectives_and_tolerances(comm):
    case = Case("hstack", comm, "f8")
    tau = 0.9 / case.norm**2
    f, g = case.references
    iterates = references.proximal_gradient(f, g, case.x0, tau, 400)
    values = np.array([f.value(x) + g.value(x) for x in [case.x0, *iterates]])
    result = proximal_gradient(case.f, case.g, case.x0d, tau=tau, niter=5, objective=True)
    assert_close(result.details["objective"], values[:6])
    assert "objective" not in proximal_gradient(case.f, case.g, case.x0d, tau=tau).details
    change = np.abs(np.diff(values)) / values[:-1]
    for tol in (1e-1, 1e-3):
        result = proximal_gradient(case.f, case.g, case.x0d, tau=tau, niter=400, tol=tol)
        assert result.status is Status.CONVERGED
        assert result.iterations == 1 + int(np.argmax(change < tol))
    result = proximal_gradient(case.f, case.g, case.x0d, tau=tau, niter=400, rtol=0.6)
    assert result.iterations == int(np.argmax(values < 0.6 * values[0]))
    for solved in (
        admm(case.f, case.g, case.x0d, 0.3, tol=1e-6, niter=500),
        linearized_admm(case.near, case.g, case.op, case.x0d, 1.0, tau, tol=1e-6, niter=500),
        admm_l2(case.g, case.op, case.yd, Identity(case.op.domain, comm=comm), case.x0d, 0.3, tol=1e-6, niter=500),
        primal_dual(case.near, case.g, case.op, case.x0d, tau, 1.0, tol=1e-3, niter=500),
        primal_dual(case.near, case.g, case.op, case.x0d, tau, 1.0, rtol=0.9, niter=500),
    ):
        assert solved.status is Status.CONVERGED and 0 < solved.iterations < 500
    assert result.execution == "eager"


def test_objectives_have_all_terms(comm):
    case = Case("hstack", comm, "f8")
    f, g = case.references
    tau, weights = 0.9 / case.norm**2, [3.0, 2.0, 0.5]
    result = proximal_gradient(case.f, case.g, case.x0d, tau=tau, epsg=weights, niter=3, objective=True)
    iterates = [case.x0, *references.proximal_gradient(f, g, case.x0, tau, 3, epsg=weights)]
    expected = [f.value(x) + w * g.value(x) for x, w in zip(iterates, [3.0, *weights], strict=True)]
    assert_close(result.details["objective"], expected)
    linear, linear_d = case.vector(case.op.domain, 12)
    steps = 0.8 / case.norm, 1.1 / case.norm
    result = primal_dual(case.near, case.g, case.op, case.x0d, *steps, z=linear_d, niter=3, objective=True)
    x = result.x.gather()
    expected = case.near_reference.value(x) + g.value(case.matrix @ x) + linear @ x
    assert_close(result.details["objective"][-1], expected)


def test_the_tolerance_of_primal_dual_is_for_both_variables(comm):
    """x is 0 from the start, while y moves to its bound by 0.25 in each iteration."""
    data, zero = ones(4, comm=comm), zeros(4, comm=comm)
    result = primal_dual(Box(0, 0), L1(1.0, data), Identity(4, comm=comm), zero, 0.25, 0.25, niter=30, tol=1e-9)
    assert_close(result.details["y_updates"], [0.5, 0.5, 0.5, 0.5, 0])
    assert not result.residual_norms[1:].any() and result.status is Status.CONVERGED
    assert_close(result.details["y"].gather(), -data.gather())


def test_messages(comm):
    case = Case("block_diag", comm, "f8")
    x, op, one = case.x0d, case.op, 1 if comm.size > 1 else 0
    for solver, numbers in (
        (lambda A, y, **more: proximal_gradient(case.f, case.g, x, tau=1e-3, **more), 1),
        (lambda A, y, **more: proximal_gradient(case.f, case.g, x, tau=1e-3, objective=True, **more), 3),
        (lambda A, y, **more: admm(case.near, case.g, x, 1e-3, **more), 1),
        (lambda A, y, **more: linearized_admm(case.near, case.g, op, x, 1.0, 1e-3, **more), 1),
        (lambda A, y, **more: primal_dual(case.near, case.g, op, x, 1e-2, 1e-2, **more), 1),
        (lambda A, y, **more: admm_l2(case.g, op, case.yd, op, x, 1.0, inner=3, **more), 9),
    ):
        sent = messages_of_one_iteration(solver, None, None)
        assert len(sent) <= numbers * one and all(message.elements <= 3 for message in sent)
        assert all(message.operation == "allreduce" for message in sent)


def test_stacked_and_lifted(comm):
    case = Case("block_diag", comm, "f8")
    both = StackedArray([case.x0d, 2 * case.x0d])
    result = admm(lift_proximal(Halves()), L1(0.3), both, 0.5, niter=5)
    single = [admm(lift_proximal(Halves()), L1(0.3), part, 0.5, niter=5).x.gather() for part in both.arrays]
    for mine, theirs in zip(result.x.gather(), single, strict=True):
        assert_close(mine, theirs)
    smooth = proximal_gradient(lift_proximal(Halves()), L1(0.3), both, tau=0.5, niter=80)
    assert_close(np.concatenate(smooth.x.gather()), np.zeros(2 * case.x0.size))


def test_integers_become_numbers(comm):
    x = from_global(np.arange(5), comm=comm)
    assert admm(L2(), L1(), x, 1.0).x.dtype == np.float64


@pytest.mark.serial
def test_agrees_with_pyproximal(comm):
    pyproximal = pytest.importorskip("pyproximal", reason="PyProximal is not installed")
    import pylops
    from pyproximal.optimization import primal, primaldual

    case = Case("vstack", comm, "f8")
    serial, x0, tau = pylops.MatrixMult(case.matrix), case.x0, 0.9 / case.norm**2
    theirs = pyproximal.L2(serial, case.y), pyproximal.L1(0.7)
    near = pyproximal.L2(b=x0)
    loose = 1e6  # its step sizes are of single precision in places
    for acceleration in (None, "vandenberghe", "fista"):
        expected = primal.ProximalGradient(*theirs, x0.copy(), tau=tau, niter=6, acceleration=acceleration)
        mine = proximal_gradient(case.f, case.g, case.x0d, tau=tau, niter=6, acceleration=acceleration)
        assert_close(mine.x.gather(), expected, factor=loose)
        expected = primal.ProximalGradient(*theirs, x0.copy(), tau=None, niter=6, acceleration=acceleration)
        mine = proximal_gradient(case.f, case.g, case.x0d, niter=6, acceleration=acceleration)
        assert_close(mine.x.gather(), expected, factor=loose)
    for tol in (1e-2, 1e-4):
        done = []
        primal.ProximalGradient(*theirs, x0.copy(), tau=tau, niter=900, tol=tol, callback=done.append)
        mine = proximal_gradient(case.f, case.g, case.x0d, tau=tau, niter=900, tol=tol)
        assert mine.iterations == len(done)
    for gfirst in (False, True):
        expected = primal.ADMM(near, theirs[1], x0.copy(), 0.8, niter=4, gfirst=gfirst)
        mine = admm(case.near, case.g, case.x0d, 0.8, niter=4, gfirst=gfirst)
        assert_close(mine.x.gather(), expected[0], factor=loose)
        assert_close(mine.details["z"].gather(), expected[1], factor=loose)
        steps = 0.8 / case.norm, 1.1 / case.norm
        expected = primaldual.PrimalDual(
            near, theirs[1], serial, x0.copy(), *steps, niter=4, gfirst=gfirst, returny=True
        )
        mine = primal_dual(case.near, case.g, case.op, case.x0d, *steps, niter=4, gfirst=gfirst)
        assert_close(mine.x.gather(), expected[0], factor=loose)
        assert_close(mine.details["y"].gather(), expected[1], factor=loose)
    expected = primal.LinearizedADMM(near, theirs[1], serial, x0.copy(), 0.8, 0.8 * tau, niter=4)
    mine = linearized_admm(case.near, case.g, case.op, case.x0d, 0.8, 0.8 * tau, niter=4)
    assert_close(mine.x.gather(), expected[0], factor=loose)


def test_arguments_are_checked(comm):
    case = Case("vstack", comm, "f8")
    f, g, x, op = case.f, case.g, case.x0d, case.op
    for wrong in (
        lambda: proximal_gradient(f, g, x, tau=-1),
        lambda: proximal_gradient(f, g, x, beta=1.5),
        lambda: proximal_gradient(f, g, x, eta=0),
        lambda: proximal_gradient(f, g, x, niterback=0),
        lambda: proximal_gradient(f, g, x, acceleration="much"),
        lambda: proximal_gradient(f, g, x, epsg=[1.0]),
        lambda: proximal_gradient(f, g, x, niter=1.5),
        lambda: admm(f, g, x, 0),
        lambda: admm(f, g, x, 1, tol=-1),
        lambda: linearized_admm(f, g, op, x, 1, 0),
        lambda: primal_dual(f, g, op, x, 1, [1]),
        lambda: primal_dual(f, g, op, x, 1, 1, theta=2),
        lambda: admm_l2(g, op, case.yd, op, x, 1, inner=0),
    ):
        with pytest.raises(InputError):
            wrong()
    for wrong in (
        lambda: proximal_gradient(g, g, x, tau=1),
        lambda: proximal_gradient(f, Halves(), x, tau=1),
        lambda: admm(f, g, np.ones(6), 1),
        lambda: primal_dual(f, g, np.eye(6), x, 1, 1),
    ):
        with pytest.raises(UnsupportedTypeError):
            wrong()
    for wrong in (
        lambda: admm(f, g, x, 1, z0=case.yd),
        lambda: linearized_admm(f, g, op, case.yd, 1, 1),
        lambda: primal_dual(f, g, op, x, 1, 1, y0=x),
        lambda: primal_dual(f, g, op, x, 1, 1, z=case.yd),
        lambda: admm_l2(g, op, None, op, x, 1),
    ):
        with pytest.raises(LayoutError):
            wrong()
