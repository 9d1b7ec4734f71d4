"""Operators whose squares underflow or overflow: their solutions are those that NumPy finds in double precision."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.array import from_global
from collops.errors import InputError
from collops.operators import BlockDiag, Diagonal, VStack
from collops.solvers import (
    Status,
    bicgstab,
    block_cg,
    block_cgls,
    cg,
    cgls,
    fista,
    gmres,
    hybrid_lsqr,
    ista,
    lsmr,
    lsqr,
    minres,
    power_iteration,
)
from collops.solvers.nonlinear import gauss_newton, lbfgs
from collops.solvers.problem import explained_by_rounding

from .problems import random_matrix

FAR = [("f4", 1e-30), ("f4", 1e30), ("f4", 1e-9), ("c8", 1e-30), ("f8", 1e-200), ("f8", 1e200)]
ROWS = [9, 14, 0, 7]
COLUMNS = 6


def matrices(comm, dtype, *, square: bool, symmetric: bool = False) -> list[np.ndarray]:
    """Return well-conditioned matrices for each rank: of uneven sizes, with an empty one, or with as many columns."""
    found = []
    for rank in range(comm.size):
        rows = ROWS[rank % len(ROWS)]
        wide = random_matrix(rows, rows if square else COLUMNS, dtype, 3 + rank)
        if symmetric:
            wide = (wide + wide.conj().T) / 2
        found.append(wide + 5 * np.sqrt(rows) * np.eye(rows) if square else wide)
    return found


def operator(comm, parts, scale, dtype):
    """Return an operator of scaled matrices, the whole matrix without the scale, and data of size 1."""
    square = parts[0].shape[0] == parts[0].shape[1]
    own = (parts[comm.rank] * scale).astype(dtype)
    if square:
        op, whole = BlockDiag([own], comm), np.zeros((sum(map(len, parts)),) * 2, parts[0].dtype)
        place = 0
        for part in parts:
            whole[place : place + len(part), place : place + len(part)] = part
            place += len(part)
    else:
        op, whole = VStack([own], comm), np.vstack(parts)
    return op, whole, random_matrix(len(whole), 1, dtype, 8)[:, 0]


def error_of(x, scale, expected) -> float:
    """Return the relative error of the solution of a scaled problem."""
    wide = np.result_type(np.asarray(x).dtype, np.float64)
    return float(np.linalg.norm(np.asarray(x).astype(wide) * scale - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(("dtype", "scale"), FAR)
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize(
    ("solver", "options"),
    [
        (cgls, {}),
        (cgls, {"reductions": 1}),
        (cgls, {"reductions": "pipelined", "damp": 2.0}),
        (cgls, {"damp": 2.0, "M": 0.5}),
        (cgls, {"M": 1.0, "reductions": 1}),
        (lsqr, {"damp": 2.0}),
        (lsqr, {"M": 0.5}),
        (lsmr, {"damp": 2.0}),
        (lsmr, {}),
        (hybrid_lsqr, {"noise": 1e-6}),
        (block_cgls, {"damp": 2.0, "M": 0.5}),
        (block_cgls, {}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(map(str, value)),
)
def test_least_squares(comm, solver, options, begins, dtype, scale):
    """A damping has the unit of the operator, a preconditioner its inverse."""
    op, matrix, data = operator(comm, matrices(comm, dtype, square=False), scale, dtype)
    damp, options = options.get("damp", 0.0), dict(options)
    if "damp" in options:
        options["damp"] = damp * scale
    if "M" in options:
        weights = options["M"] * np.linspace(1, 1.5, COLUMNS) / scale
        options["M"] = Diagonal(from_global(weights.astype(dtype), op.domain, comm=comm))
    start = np.linspace(1, 2, COLUMNS) * begins
    wide = np.result_type(matrix.dtype, np.float64)
    above, below = matrix.astype(wide), damp * np.eye(COLUMNS)
    anchor = start if solver in (lsqr, lsmr) else 0 * start  # what their damping refers to
    together = np.concatenate([data, damp * anchor]).astype(wide)
    expected = np.linalg.lstsq(np.vstack([above, below]), together, rcond=None)[0]
    y = from_global(data, op.range, comm=comm)
    x0 = from_global((start / scale).astype(dtype), op.domain, comm=comm) if begins else None
    if solver is block_cgls:
        y, x0 = [y, y], None if x0 is None else [x0, x0]
    result = solver(op, y, x0, niter=60, **options)
    assert result.status.successful and result.iterations > 2
    x = result.x.gather()
    assert error_of(x[0] if solver is block_cgls else x, scale, expected) < 1e-3
    count = 2 if solver is block_cgls else 1
    if solver is not block_cgls or not damp:  # whose residual has the part of the damping
        misfit = np.linalg.norm(data - matrix @ expected) * np.sqrt(count)
        np.testing.assert_allclose(result.residual_norms[-1], misfit, rtol=1e-3)
    if solver is cgls and "M" not in options:
        gradient = np.linalg.norm(matrix.conj().T @ data)
        assert result.details["gradient_norm"] < 1e-4 * scale * gradient
        assert np.isclose(result.details["condition"], np.linalg.cond(np.vstack([above, below])), rtol=0.5)


@pytest.mark.parametrize(("dtype", "scale"), FAR)
@pytest.mark.parametrize(
    ("solver", "options"),
    [
        (cg, {"damp": 2.0}),
        (cg, {"reductions": 1, "M": 0.1}),
        (cg, {"reductions": "pipelined"}),
        (minres, {"shift": 2.0}),
        (minres, {"M": 0.1, "atol": 1e-4, "rtol": 0.0}),
        (bicgstab, {"M": 0.1}),
        (bicgstab, {}),
        (gmres, {"restart": 6}),
        (gmres, {"M": 0.1, "flexible": True}),
        (block_cg, {"damp": 2.0, "M": 0.1}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "-".join(map(str, value)),
)
def test_square_systems(comm, solver, options, dtype, scale):
    symmetric = solver not in (bicgstab, gmres)
    op, matrix, data = operator(comm, matrices(comm, dtype, square=True, symmetric=symmetric), scale, dtype)
    options = dict(options)
    added = options.get("damp", -options.get("shift", 0.0))
    for name in ("damp", "shift"):
        if name in options:
            options[name] = options[name] * scale
    if "M" in options:
        weights = options["M"] * np.linspace(1, 1.5, len(matrix)) / scale
        options["M"] = Diagonal(from_global(weights.astype(dtype), op.domain, comm=comm))
        if "atol" in options:
            options["atol"] = options["atol"] / scale**0.5
    y = from_global(data, op.range, comm=comm)
    result = solver(op, [y, y] if solver is block_cg else y, niter=80, **options)
    assert result.status.successful and result.iterations > 2
    expected = np.linalg.solve(matrix + added * np.eye(len(matrix)), data)
    x = result.x.gather()
    assert error_of(x[0] if solver is block_cg else x, scale, expected) < 1e-3


@pytest.mark.parametrize(("dtype", "scale"), FAR)
def test_eigenvalues(comm, dtype, scale):
    op, matrix, _ = operator(comm, matrices(comm, dtype, square=True, symmetric=True), scale, dtype)
    result = power_iteration(op, dtype=dtype, niter=2000, tol=1e-7)
    largest = np.abs(np.linalg.eigvalsh(matrix)).max()
    assert np.isclose(abs(result.details["eigenvalue"]) / scale, largest, rtol=1e-2)
    assert np.isclose(float(result.x.norm()), 1, rtol=1e-5) and result.residual_norms[-1] < 0.2 * scale * largest


@pytest.mark.parametrize(("dtype", "scale"), [("f4", 1e-30), ("f4", 1e25), ("f8", 1e-120)])
@pytest.mark.parametrize("threshkind", ["soft", "half"])
@pytest.mark.parametrize("solver", [ista, fista])
def test_thresholds(comm, solver, threshkind, dtype, scale):
    """A step has the inverse square of the operator's unit."""
    solutions = []
    for factor, kind in ((1.0, "f8"), (scale, dtype)):
        op, _, data = operator(comm, matrices(comm, "f8", square=False), factor, kind)
        eps = {"soft": 3.0 * factor, "half": 3.0 * factor**0.5}[threshkind]
        y = from_global(data.astype(kind), op.range, comm=comm)
        result = solver(op, y, niter=200, eps=eps, threshkind=threshkind, eigsdict={"niter": 200, "seed": 1})
        solutions.append(result.x.gather().astype("f8") * factor)
        if threshkind == "soft":
            assert np.isclose(result.details["cost"][0], 0.5 * np.linalg.norm(data) ** 2, rtol=0.5)
    np.testing.assert_allclose(solutions[1], solutions[0], atol=2e-3)


def test_tolerances_have_units(comm):
    """`tol` of CGLS bounds the square of the gradient, in the units of the operator times those of the data."""
    op, matrix, data = operator(comm, matrices(comm, "f4", square=False), 1e-16, "f4")
    y, first = from_global(data, op.range, comm=comm), np.linalg.norm(matrix.T @ data)
    counts = [cgls(op, y, niter=50, tol=(share * first * 1e-16) ** 2).iterations for share in (2.0, 0.3, 1e-3)]
    assert counts[0] == 0 < counts[1] < counts[2]


def test_zero_gradients_are_told_from_small_ones(comm):
    """The data are orthogonal to the range, which is the only success without an iteration."""
    op = VStack([np.array([[1e-30, 0], [0, 0]], "f4")], comm)
    for solver in (cgls, lsqr, lsmr, hybrid_lsqr, block_cgls):
        ahead, beside = (from_global(np.tile(v, comm.size), op.range, comm=comm) for v in ([1, 1], [0, 1]))
        zero = solver(op, [beside.astype("f4")] if solver is block_cgls else beside.astype("f4"))
        assert zero.status.successful and zero.iterations == 0 and not zero.x.gather().any()
        if solver is hybrid_lsqr:  # which takes the rest for noise
            continue
        found = solver(op, [ahead.astype("f4")] if solver is block_cgls else ahead.astype("f4"))
        assert found.status.successful
        np.testing.assert_allclose(found.x.gather().ravel(), [1e30, 0], rtol=1e-4)


@pytest.mark.parametrize("solver", [cgls, lsqr])
def test_gradients_whose_squares_underflow_are_refused(comm, solver):
    """The preconditioner is far from the inverse of the operator."""
    op = VStack([np.array([[1.0, 0], [0, 1e-3]], "f4")], comm)
    small = Diagonal(from_global(np.array([1e-35, 0], "f4"), op.domain, comm=comm))
    y = from_global(np.tile(np.array([1, 0], "f4"), comm.size), op.range, comm=comm)
    with pytest.raises(InputError, match="multiply the operator, the data or M by a number"):
        solver(op, y, M=small)


@pytest.mark.parametrize("solver", [cgls, lsmr, minres])
def test_solutions_out_of_the_range_are_errors(comm, solver):
    for scale, size in ((1e-30, 1e20), (1e30, 1e-25)):
        matrix = (scale * np.array([[2, 1], [1, 3]])).astype("f4")
        op = BlockDiag([matrix], comm)
        y = from_global(np.full(2 * comm.size, size, "f4"), op.range, comm=comm)
        with pytest.raises(InputError, match="which float32 cannot hold"):
            solver(op, y)


def test_columns_of_a_block_have_units_of_their_own(comm):
    op, matrix, _ = operator(comm, matrices(comm, "f4", square=False), 1.0, "f4")
    system, square, _ = operator(comm, matrices(comm, "f4", square=True, symmetric=True), 1.0, "f4")
    sizes = [1e-20, 1e-35, 1e-11, 0.0]
    for solver, A, dense in ((block_cgls, op, matrix), (block_cg, system, square)):
        columns = random_matrix(len(dense), len(sizes), "f4", 2)
        small = (columns * np.array(sizes)).astype("f4").T
        right = [from_global(column, A.range, comm=comm) for column in small]
        result = solver(A, right, niter=60, rtol=1e-6)
        assert result.status.successful
        expected = np.linalg.lstsq(dense.astype("f8"), columns, rcond=None)[0]
        for x, size, wanted in zip(result.x.gather(), sizes, expected.T, strict=True):
            np.testing.assert_allclose(x.astype("f8"), size * wanted, atol=1e-4 * size)
        misfit = np.linalg.norm(columns * sizes - dense @ expected * sizes) + 1e-6 * (solver is block_cg) * 1e-12
        np.testing.assert_allclose(result.residual_norms[-1], misfit, rtol=1e-3, atol=1e-16)
        # An absolute tolerance is that of each column, so that small ones have none to meet.
        assert solver(A, right, niter=60, rtol=0.0, atol=1e-3).iterations == 0


def test_infinity_explains_nothing(comm):
    """The square of the solution overflows."""
    x, y = (collops.full(4, value, comm=comm, dtype="float32") for value in (1e30, 1.0))
    assert explained_by_rounding(1e-30, y, y, 1e-8, 0.0)[0]
    with np.errstate(over="ignore"):
        assert not any(explained_by_rounding(1e-30, y, x, 1e-8, 0.0))


def test_a_large_residual_is_no_rounding_error(comm):
    """The rounding error of A x exceeds the data: nothing is known of the residual, nor of the gradient."""
    y = collops.ones(4, comm=comm)
    assert explained_by_rounding(1e20, y, y, 1e-4, 1e10) == (True, True)
    assert explained_by_rounding(1e20, y, y, 1e-2, 1e10) == (False, True)
    assert explained_by_rounding(1e20, y, y, 1e-4, 1e15) == (True, False)


class Roots:
    """The square roots of data, in other units."""

    def __init__(self, data, scale):
        self.data, self.scale = data, scale

    def residual(self, x):
        return (x * x - self.data) * self.scale

    def jacobian(self, x):
        return Diagonal(2 * x * self.scale)


@pytest.mark.parametrize(("dtype", "scale"), [("f4", 1e-30), ("f4", 1e30), ("f4", 1e-11), ("f8", 1e-150)])
@pytest.mark.parametrize("solver", [gauss_newton, lbfgs])
def test_jacobians(comm, solver, dtype, scale):
    data = from_global(np.linspace(1, 4, 5 * comm.size).astype(dtype), comm=comm)
    result = solver(Roots(data, scale), collops.ones(data.layout, comm=comm, dtype=dtype) * 1.5, tol=1e-4)
    assert result.status.successful and result.iterations > 1
    np.testing.assert_allclose(result.x.gather(), np.sqrt(data.gather()), rtol=1e-3)
    assert result.details["gradient_norm"] < 1e-2 * scale * scale


@pytest.mark.parametrize("solver", [cg, cgls])
def test_a_resumed_run_has_the_units_of_its_checkpoint(comm, tmp_path, solver):
    folder = comm.allgather_metadata(str(tmp_path / "checkpoints"))[0]
    op, _, data = operator(comm, matrices(comm, "f4", square=True, symmetric=True), 1e-30, "f4")
    y = from_global(data, op.range, comm=comm)
    whole = solver(op, y, niter=5, tol=0)
    solver(op, y, niter=3, tol=0, checkpoint=folder)
    resumed = solver(op, y, niter=5, tol=0, checkpoint=folder, resume=True)
    assert resumed.resumed_from == 3 and np.isfinite(whole.x.gather()).all()
    np.testing.assert_array_equal(resumed.x.gather(), whole.x.gather())


def test_callbacks_see_the_units_of_the_problem(comm):
    op, matrix, data = operator(comm, matrices(comm, "f4", square=True, symmetric=True), 1e-30, "f4")
    seen = []
    result = cg(
        op,
        from_global(data, op.range, comm=comm),
        niter=50,
        callback=lambda iteration, view: seen.append((iteration, view.x.gather(), view.residual_norm)),
    )
    assert [iteration for iteration, *_ in seen] == list(range(1, result.iterations + 1))
    _, x, norm = seen[0]
    np.testing.assert_allclose(norm, np.linalg.norm(data - matrix @ (x.astype("f8") * 1e-30)), rtol=1e-3)


def test_ordinary_operators_are_applied_as_often_as_before(comm):
    op, _, data = operator(comm, matrices(comm, "f8", square=False), 1.0, "f8")
    calls = []
    forward, adjoint = op._forward, op._adjoint
    op._forward = lambda x, out: calls.append("forward") or forward(x, out)
    op._adjoint = lambda y, out: calls.append("adjoint") or adjoint(y, out)
    result = cgls(op, from_global(data, op.range, comm=comm), niter=4, tol=0, verify=False)
    assert result.status is Status.ITERATION_LIMIT
    assert (calls.count("forward"), calls.count("adjoint")) in ((4, 5), (0, 0))  # none where squares come with products
