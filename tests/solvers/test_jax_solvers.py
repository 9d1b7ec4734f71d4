"""Solvers on the jax engine: one compiled program, the same numbers as NumPy's, and derivatives through solutions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

import collops
from collops.errors import CollopsError, UnsupportedTypeError
from collops.operators import BlockDiag, Columns, Diagonal, FirstDerivative, Identity, Laplacian, StackedVStack, VStack
from collops.preconditioners import block_jacobi, chebyshev, jacobi
from collops.solvers import (
    Method,
    Status,
    bicgstab,
    block_cgls,
    cg,
    cgls,
    fista,
    gmres,
    ista,
    lsmr,
    lsqr,
    minres,
    solve,
)
from collops.solvers.state import CONSTANT, SCRATCH
from tests.preconditioners.matrices import distributed, poisson

pytestmark = pytest.mark.usefixtures("jax_double")
jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy


@pytest.fixture
def matrices(comm):
    whole = np.random.default_rng(3).standard_normal((7 * comm.size, 5))
    mine = whole[7 * comm.rank : 7 * comm.rank + 7]
    return whole, mine, VStack([mine], comm), VStack([jnp.asarray(mine)], comm)


def sparse(solver, A, y, threshkind):
    """Solve with a penalty for which the first step cuts off what is below 0.6 of its largest value."""
    alpha = 0.01
    cut = 0.6 * alpha * float((A.H @ y).norm(np.inf))
    thresholds = {"soft": cut, "hard": cut**2 / 2, "half": (cut * 4 / 54 ** (1 / 3)) ** 1.5}
    return solver(A, y, niter=12, eps=2 * thresholds[threshkind] / alpha, alpha=alpha, threshkind=threshkind)


def ascending(A):
    return Diagonal(np.arange(1.0, 6), A.domain, comm=A.comm)


SOLVERS = {
    "cgls": lambda A, y: cgls(A, y, niter=20, damp=0.3, tol=1e-20),
    "cgls, one reduction": lambda A, y: cgls(A, y, niter=20, damp=0.3, tol=1e-20, reductions=1),
    # Tolerances are relative to a start from zero.
    "minres, from near the solution": lambda A, y: minres(
        A.H @ A, A.H @ y, minres(A.H @ A, A.H @ y, niter=2, rtol=0).x, niter=4, rtol=0.1
    ),
    "lsqr": lambda A, y: lsqr(A, y, niter=20, damp=0.3, calc_var=True),
    # Pipelined on the host only: with one reduction on JAX.
    "cgls, pipelined, with M": lambda A, y: cgls(
        A, y, niter=4, damp=0.3, tol=0, reductions="pipelined", M=ascending(A)
    ),
    "lsqr with M": lambda A, y: lsqr(A, y, niter=4, calc_var=True, M=ascending(A)),
    "lsmr": lambda A, y: lsmr(A, y, niter=20, damp=0.3, atol=1e-9, btol=1e-9),
    "minres": lambda A, y: minres(A.H @ A, A.H @ y, shift=0.7, niter=4, rtol=1e-9),
    "bicgstab": lambda A, y: bicgstab(A.H @ A, A.H @ y, niter=4, rtol=1e-9),
    "block CGLS": lambda A, y: block_cgls(A, Columns.join([y, y * y]), damp=0.3, niter=2, rtol=0),
    "ista": lambda A, y: sparse(ista, A, y, "soft"),
    "ista, hard": lambda A, y: sparse(ista, A, y, "hard"),
    "ista, half": lambda A, y: sparse(ista, A, y, "half"),
    "fista": lambda A, y: sparse(fista, A, y, "soft"),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_a_compiled_loop_is_the_loop(comm, matrices, name):
    _, _, A, compiled = matrices
    y, traced = (collops.random(A.range, seed=1, comm=comm, engine=engine) for engine in ("numpy", "jax"))
    expected, result = SOLVERS[name](A, y), SOLVERS[name](compiled, traced)
    assert (result.status, result.iterations) == (expected.status, expected.iterations)
    assert result.execution == "compiled loop"
    np.testing.assert_allclose(result.x.gather(), expected.x.gather(), atol=1e-11)
    np.testing.assert_allclose(result.residual_norms, expected.residual_norms, rtol=1e-9)
    assert result.details.keys() == expected.details.keys()
    for key, value in expected.details.items():
        found = result.details[key]
        found, value = (v.gather() if hasattr(v, "gather") else v for v in (found, value))
        np.testing.assert_allclose(found, value, rtol=1e-8, atol=1e-11, err_msg=key)
    if "alpha" in expected.details:
        assert 0 < np.count_nonzero(expected.x.gather()) < 5


def test_one_program_serves_all_data(comm, matrices, monkeypatch):
    compiled = matrices[3]
    y = collops.random(compiled.range, seed=1, comm=comm, engine="jax")
    first = cgls(compiled, y, niter=5, tol=0.0)
    monkeypatch.setattr("collops.solvers.compiled._run", None)  # nothing is traced any more
    second = cgls(compiled, 2 * y, niter=5, tol=0.0)
    with pytest.raises(TypeError):
        cgls(compiled, y, niter=6, tol=0.0)
    np.testing.assert_allclose(second.x.gather(), 2 * np.asarray(first.x.gather()))


def test_a_traced_result_is_a_tree(comm, matrices):
    _, _, A, compiled = matrices
    y, traced = (collops.random(A.range, seed=1, comm=comm, engine=engine) for engine in ("numpy", "jax"))
    result = jax.jit(lambda y: cgls(compiled, y, niter=30, tol=1e-18))(traced)
    expected = cgls(A, y, niter=30, tol=1e-18)
    assert result.status is expected.status and int(result.iterations) == expected.iterations
    np.testing.assert_allclose(result.x.gather(), expected.x.gather(), atol=1e-12)
    assert np.isnan(result.residual_norms[expected.iterations + 1 :]).all()


def test_cg_of_what_exchanges_halos(comm):
    A = Laplacian((11, 4), comm=comm)
    A = A.H @ A + 2 * Identity((11, 4), comm=comm)
    y, traced = (collops.random(A.range, seed=2, comm=comm, engine=engine) for engine in ("numpy", "jax"))
    expected, result = (cg(A, data, niter=15, tol=1e-18) for data in (y, traced))
    np.testing.assert_allclose(result.x.gather(), expected.x.gather(), atol=1e-10)


@pytest.mark.serial
def test_derivatives_of_a_block(comm, matrices):
    matrix, _, _, A = matrices
    y = collops.random(Columns(A, 2).range, seed=1, comm=comm, engine="jax")

    def objective(y):
        x = block_cgls(A, y, damp=0.5, rtol=1e-12).x
        return x.vdot(x)

    inverse = np.linalg.inv(matrix.T @ matrix + 0.25 * np.eye(5)) @ matrix.T
    expected = 2 * y.gather() @ inverse.T @ inverse
    np.testing.assert_allclose(jax.grad(objective)(y).gather(), expected, atol=1e-10)


def test_derivatives_with_a_preconditioner(comm):
    """Its factors are on the host. The program of the derivative is preconditioned as well."""
    matrix = poisson(3)
    A = distributed(matrix, comm)
    M = block_jacobi(A) + chebyshev(A, 1, M=jacobi(A))
    y, traced = (collops.random(A.range, seed=2, comm=comm, engine=engine) for engine in ("numpy", "jax"))
    expected, result = (cg(A, data, M=M, niter=60, tol=1e-22) for data in (y, traced))
    assert result.iterations == expected.iterations < 60
    np.testing.assert_allclose(result.x.gather(), expected.x.gather(), atol=1e-12)

    def objective(y):
        x = cg(A, y, M=M, niter=60, tol=1e-22).x
        return x.vdot(x)

    by_data = jax.grad(objective)(traced)
    exact = np.linalg.inv(matrix.toarray())
    np.testing.assert_allclose(by_data.gather(), 2 * exact @ exact @ y.gather(), atol=1e-9)


@pytest.mark.parametrize("how", ["implicit", "unroll"])
def test_derivatives_through_a_solution(comm, matrices, how):
    whole, _, _, compiled = matrices
    y = collops.random(compiled.range, seed=1, comm=comm, engine="jax")
    data, damp = np.asarray(y.gather()), 0.5

    def objective(y, damp):
        x = cgls(compiled, y, niter=12, damp=damp, tol=1e-24, differentiate=how).x
        return x.vdot(x)

    by_data, by_damp = jax.grad(objective, (0, 1))(y, damp)
    normal = whole.T @ whole + damp**2 * np.eye(5)
    solution = np.linalg.solve(normal, whole.T @ data)
    adjoint = np.linalg.solve(normal, 2 * solution)
    np.testing.assert_allclose(by_data.gather(), whole @ adjoint, atol=1e-9)
    np.testing.assert_allclose(by_damp, -2 * damp * adjoint @ solution, rtol=1e-8)


@pytest.mark.parametrize(("solver", "how"), [(lsqr, "implicit"), (lsmr, "implicit"), (lsqr, "unroll")])
def test_derivatives_by_the_start(comm, matrices, solver, how):
    """Damping pulls the solution to the starting point, so that it depends on it."""
    whole, _, _, compiled = matrices
    y = collops.random(compiled.range, seed=1, comm=comm, engine="jax")
    start = collops.random(compiled.domain, seed=2, comm=comm, engine="jax")
    data, x0, damp = np.asarray(y.gather()), np.asarray(start.gather()), 0.7

    def objective(y, start, damp):
        x = solver(compiled, y, start, niter=12, damp=damp, atol=1e-14, btol=1e-14, differentiate=how).x
        return x.vdot(x)

    by_data, by_start, by_damp = jax.grad(objective, (0, 1, 2))(y, start, damp)
    normal = whole.T @ whole + damp**2 * np.eye(5)
    change = np.linalg.solve(normal, whole.T @ (data - whole @ x0))
    adjoint = np.linalg.solve(normal, 2 * (x0 + change))
    np.testing.assert_allclose(by_data.gather(), whole @ adjoint, atol=1e-9)
    np.testing.assert_allclose(by_start.gather(), damp**2 * adjoint, atol=1e-9)
    np.testing.assert_allclose(by_damp, -2 * damp * adjoint @ change, rtol=1e-8)


@pytest.mark.parametrize("solver", [bicgstab, minres])
def test_derivatives_through_other_solutions(comm, matrices, solver):
    """Also of an unsymmetric operator, whose derivative needs the adjoint of operator and preconditioner."""
    whole, _, _, compiled = matrices
    square = compiled.H @ compiled
    weight = np.diag(np.linspace(1, 2, 5))
    A = Diagonal(collops.from_global(jnp.linspace(1, 2, 5), square.domain, comm=comm)) @ square
    matrix = weight @ whole.T @ whole
    M = Identity(square.domain, comm=comm)
    if solver is minres:
        A, matrix = square, whole.T @ whole
    y = collops.random(A.range, seed=1, comm=comm, engine="jax")

    def objective(y):
        x = solver(A, y, niter=30, rtol=1e-13, M=M).x
        return x.vdot(x)

    solution = np.linalg.solve(matrix, np.asarray(y.gather()))
    np.testing.assert_allclose(jax.grad(objective)(y).gather(), np.linalg.solve(matrix.T, 2 * solution), atol=1e-9)


def test_gmres_runs_step_by_step(comm, matrices):
    _, _, A, compiled = matrices
    y, traced = (collops.random(A.range, seed=1, comm=comm, engine=engine) for engine in ("numpy", "jax"))
    expected, result = (gmres(op.H @ op, op.H @ data, niter=2) for op, data in ((A, y), (compiled, traced)))
    assert result.execution == "eager" and result.iterations == expected.iterations
    np.testing.assert_allclose(result.x.gather(), expected.x.gather(), atol=1e-11)
    with pytest.raises(collops.errors.UnsupportedTypeError, match="GMRES cannot be traced by JAX"):
        jax.jit(lambda y: gmres(compiled.H @ compiled, compiled.H @ y).x)(traced)


def test_derivatives_by_what_an_operator_is_made_of(comm, matrices):
    whole, mine, _, compiled = matrices
    y = collops.random(compiled.range, seed=1, comm=comm, engine="jax")
    data = np.asarray(y.gather())

    def objective(scale):
        A = VStack([jnp.asarray(mine) * collops.array.shared(scale, comm)], comm)
        x = cgls(A, y, niter=12, damp=0.4, tol=1e-24).x
        return x.sum()

    def exact(scale):
        return np.linalg.solve(scale**2 * whole.T @ whole + 0.16 * np.eye(5), scale * whole.T @ data).sum()

    slope = (exact(1.3 + 1e-5) - exact(1.3 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(objective)(1.3), slope, rtol=1e-6)


def test_derivatives_by_a_weight(comm):
    def objective(weight, engine="jax"):
        A = StackedVStack([Identity((13, 3), comm=comm), weight * FirstDerivative((13, 3), comm=comm)])
        y = collops.random((13, 3), seed=4, comm=comm, engine=engine)
        zero = collops.zeros((13, 3), comm=comm, engine=engine)
        x = cgls(A, collops.StackedArray([y, zero]), niter=40, tol=1e-26).x
        return x.vdot(x)

    # On NumPy's engine, which compiles nothing.
    slope = (objective(0.8 + 1e-4, "numpy") - objective(0.8 - 1e-4, "numpy")) / 2e-4
    np.testing.assert_allclose(jax.grad(objective)(0.8), slope, rtol=1e-5)


@pytest.mark.parametrize("solver", [ista, fista])
def test_derivatives_of_sparse_solutions(comm, solver):
    """In reverse mode by unrolled iterations only; in forward mode by both, and several at once."""
    y = collops.random(5 * comm.size, seed=1, comm=comm, engine="jax")
    A = Diagonal(jnp.asarray(np.linspace(1, 2, 5 * comm.size)), comm=comm)

    def square(scale, differentiate="unroll"):
        x = solver(A, scale * y, niter=9, eps=0.1, alpha=0.1, differentiate=differentiate).x
        return x.vdot(x)

    slope = float(square(0.7 + 1e-5) - square(0.7 - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.grad(square)(0.7), slope, rtol=1e-5)
    np.testing.assert_allclose(jax.jacfwd(square)(0.7, "implicit"), slope, rtol=1e-5)
    reverse = jax.grad(lambda scale: square(scale, "implicit"))
    for derivative, scale in ((reverse, 0.7), (jax.jit(reverse), 0.7), (jax.vmap(reverse), jnp.full(2, 0.7))):
        with pytest.raises(UnsupportedTypeError, match=r"ISTA.* pass differentiate='unroll'.*or use jax.jvp"):
            derivative(scale)


def test_what_cannot_be_compiled_is_refused(comm, matrices):
    compiled = matrices[3]
    y = collops.random(compiled.range, seed=1, comm=comm, engine="jax")
    with pytest.raises(collops.errors.InputError, match="implicit"):
        cgls(compiled, y, differentiate="somehow")
    with pytest.raises(UnsupportedTypeError, match="percentile"):
        ista(compiled, y, alpha=0.01, threshkind="soft-percentile", perc=50)


@dataclass
class DescentState:
    x: Any
    square: Any
    count: int
    last: Any
    data: Any = field(metadata=CONSTANT)
    residual: Any = field(metadata=SCRATCH)


class DescentNumbers(NamedTuple):
    square: Any
    count: Any


@dataclass(frozen=True)
class Descent(Method):
    """Steepest descent with a fixed step, and a state that has numbers of Python."""

    alpha: float
    remembers: bool = False
    name = "Descent"
    numbers = DescentNumbers
    stops = ((lambda self, now, first: now.count >= 6, Status.CONVERGED),)

    def init(self, A, y, x0):
        x = collops.zeros(A.domain, comm=y.comm, dtype=y.dtype, engine=y.engine)
        return DescentState(x, y.vdot(y), 0, None, y, None)

    def step(self, A, state):
        state.residual = state.data - A @ state.x
        state.x = collops.axpby(self.alpha, A.H @ state.residual, 1.0, state.x, out=state.x)
        state.square = state.residual.vdot(state.residual)
        state.count += 2
        state.last = state.square if self.remembers else None
        return state

    def report(self, state):
        return state.square, np.float64(state.count) if isinstance(state.count, int) else state.count

    def residual_norm(self, now):
        return now.square**0.5


@pytest.mark.parametrize("solver", [bicgstab, minres])
@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_tolerances_of_zero_are_no_tests(comm, solver, engine):
    """The identity leaves no residual at all, which is not below a bound of 0 but exact to rounding."""
    y = collops.ones(5, comm=comm, engine=engine)
    result = solver(Identity(5, comm=comm), y, rtol=0.0, atol=0.0)
    assert (result.status, result.residual_norms[-1]) == (Status.COMPATIBLE_TO_ROUNDING, 0)


def test_a_method_of_ones_own(comm):
    operator = 2 * Identity(7, comm=comm)
    for engine in ("numpy", "jax"):
        y = collops.random(7, seed=2, comm=comm, engine=engine)
        result = solve(Descent(0.1), operator, y, niter=9)
        assert (result.status, result.iterations) == (Status.CONVERGED, 3)
        assert result.execution == ("compiled loop" if engine == "jax" else "eager")
        np.testing.assert_allclose(result.x.gather(), np.asarray(y.gather()) / 2 * (1 - 0.6**3), rtol=1e-12)
    with pytest.raises(CollopsError, match="changes which fields"):
        solve(Descent(0.1, remembers=True), operator, y, niter=9)


def _cotangents():
    """Return solvers of square systems and of least squares, by name."""
    square = {"cg": cg, "minres": minres, "bicgstab": bicgstab}
    return {**square, "cgls": cgls, "lsqr": lsqr, "lsmr": lsmr}


@pytest.mark.parametrize("name", _cotangents())
def test_derivatives_of_small_objectives(comm, name):
    """Squares of the cotangents are 0 in single precision; differentiation is linear in them."""
    diagonal = np.array([1, 2, 4], np.float32)
    layout = collops.Layout.replicated(3, comm.size)
    A = collops.Diagonal(collops.from_global(diagonal, layout, engine="jax", comm=comm))
    y = collops.from_global(np.ones(3, np.float32), layout, engine="jax", comm=comm)

    def gradient(scale, data=1.0):
        options = {"atol": 1e-6, "btol": 1e-6} if name.startswith("ls") else {"rtol": 1e-6}

        def objective(y):
            return _cotangents()[name](A, y, niter=20, **options).x.sum() * np.float32(scale)

        return np.asarray(jax.grad(objective)(np.float32(data) * y).local_array, float) / scale

    for scale, data in ((1e-22, 1.0), (1e25, 1.0), (1.0, 1e-25)):
        np.testing.assert_allclose(gradient(scale, data) * diagonal, 1, rtol=1e-3)


@pytest.mark.parametrize(("solver", "scale"), [(cgls, 1e-30), (minres, 1e30), (block_cgls, 1e-30)])
def test_operators_far_from_one(comm, solver, scale):
    """A second program finds the unit of the operator, which shows in the numbers of the first."""
    whole = np.random.default_rng(5).standard_normal((7 * comm.size, 5))
    whole = np.tile(np.eye(5) * np.arange(2, 7) + 1, (comm.size, 1)) if solver is minres else whole
    rows = len(whole) // comm.size
    mine = jnp.asarray((whole * scale)[rows * comm.rank : rows * (comm.rank + 1)], np.float32)
    A = (BlockDiag if solver is minres else VStack)([mine], comm)
    data = np.linspace(-1, 2, len(whole)).astype("f4")
    y = collops.from_global(data, A.range, comm=comm, engine="jax")
    result = solver(A, Columns.join([y, 1e-25 * y]) if solver is block_cgls else y, niter=30)
    assert result.status.successful and result.iterations > 2
    x = np.asarray(result.x.gather(), float) * scale
    if solver is minres:
        expected = np.linalg.solve(whole[:5], data.reshape(comm.size, 5).T).T.ravel()
    else:
        expected = np.linalg.lstsq(whole, data, rcond=None)[0]
    if solver is block_cgls:
        np.testing.assert_allclose(x[1] / 1e-25, expected, atol=1e-3)
    np.testing.assert_allclose(x[0] if solver is block_cgls else x, expected, atol=1e-3)


@pytest.mark.parametrize("solver", [cg, cgls, lsqr])
def test_data_far_from_one(comm, jax_double, solver):
    """The first residual norm shows it, also if its square is 0 or infinite; a second program scales the data."""
    diagonal = 1.0 + np.arange(7 * comm.size)
    A = collops.Diagonal(collops.from_global(diagonal, comm=comm, engine="jax"))
    for scale in (1.0, 1e-200, 1e200):
        y = collops.from_global(np.full(len(diagonal), scale), A.range, comm=comm, engine="jax")
        result = solver(A, y, niter=200)
        assert result.status.successful and result.iterations > 2
        np.testing.assert_allclose(np.asarray(result.x.gather()) / scale * diagonal, 1, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_derivatives_through_operators_far_from_one(comm, scale):
    """The normal equations of the derivative have the square of the operator."""
    whole = np.random.default_rng(5).standard_normal((7 * comm.size, 5))
    mine = jnp.asarray((whole * scale)[7 * comm.rank : 7 * comm.rank + 7], np.float32)
    A = VStack([mine], comm)
    y = collops.ones(A.range, comm=comm, engine="jax", dtype="float32")

    def objective(y):
        return cgls(A, y, niter=30, damp=0.5 * scale).x.sum()

    found = np.asarray(jax.jit(jax.grad(objective))(y).gather(), float) * scale
    inverse = np.linalg.solve(whole.T @ whole + 0.25 * np.eye(5), whole.T)
    np.testing.assert_allclose(found, inverse.T @ np.ones(5), atol=1e-3)
