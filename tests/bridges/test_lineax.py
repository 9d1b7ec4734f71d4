"""lineax, optimistix and equinox on distributed arrays: values and derivatives against dense matrices, and errors."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops import DistributedArray
from collops.errors import InputError, LayoutError, UnsupportedTypeError

jax = pytest.importorskip("jax", reason="JAX is not installed")
lx = pytest.importorskip("lineax", reason="lineax is not installed")
optx = pytest.importorskip("optimistix", reason="optimistix is not installed")
eqx = pytest.importorskip("equinox", reason="equinox is not installed")
jnp = jax.numpy

from collops.bridges.lineax import Solver, as_lineax, max_norm  # noqa: E402 - after it is known that lineax is there

pytestmark = pytest.mark.usefixtures("jax_double")
SIZE = 11  # uneven on two and on three ranks
DIFFERENCE = np.eye(SIZE, k=1)[:-1] - np.eye(SIZE)[:-1]
DIFFERENCE = np.vstack([DIFFERENCE, np.zeros(SIZE)])
DATA, WEIGHTS, GOAL = np.random.default_rng(5).standard_normal((3, SIZE))
OPTIONS = {"niter": 60, "rtol": 1e-13}
EXACT = {"niter": 60, "atol": 1e-14, "btol": 1e-14}
PSD = (lx.symmetric_tag, lx.positive_semidefinite_tag)


def split(values, comm):
    return collops.from_global(jnp.asarray(values), comm=comm)


def smoothing(comm, weights=None, shift=0.5):
    """Return ``D^T W D + shift``, whose product sends two halo exchanges."""
    D = collops.FirstDerivative(SIZE, kind="forward", comm=comm)
    W = collops.Identity(D.range, comm=comm) if weights is None else collops.Diagonal(weights)
    return D.H @ W @ D + shift * collops.Identity(D.domain, comm=comm)


def dense(weights=None, shift=0.5):
    W = np.eye(SIZE) if weights is None else np.diag(weights)
    return DIFFERENCE.T @ W @ DIFFERENCE + shift * np.eye(SIZE)


@pytest.mark.parametrize("method", ["cg", "minres", "lsmr"])
def test_a_square_system(comm, method):
    A, y = as_lineax(smoothing(comm), PSD), split(DATA, comm)
    solver = Solver(getattr(collops, method), **(EXACT if method == "lsmr" else OPTIONS))
    solution = lx.linear_solve(A, y, solver, throw=False)
    np.testing.assert_allclose(solution.value.gather(), np.linalg.solve(dense(), DATA), rtol=1e-9)
    assert solution.value.layout is y.layout
    assert 0 < int(solution.stats["num_steps"]) <= 60


def test_derivatives_of_least_squares(comm):
    """Of the terms of the pseudoinverse's derivative, those of wide matrices vanish, though rank 0 has a wide part."""
    ends = [1 + 3 * rank for rank in range(comm.size)]
    matrix = np.random.default_rng(1).standard_normal((ends[-1], 2))
    y, goal = np.random.default_rng(2).standard_normal(ends[-1]), np.array([0.4, -0.7])
    mine = slice([0, *ends][comm.rank], ends[comm.rank])
    part = jnp.asarray(matrix[mine])
    A = collops.VStack([part], comm)
    data, weights = (
        collops.from_global(jnp.asarray(values), layout, comm=comm)
        for values, layout in ((y, A.range), (goal, A.domain))
    )

    @jax.jit
    def objective(part, data):
        A = as_lineax(collops.VStack([part], comm))
        return weights.vdot(lx.linear_solve(A, data, Solver(collops.cgls, **OPTIONS), throw=False).value)

    value, gradient = jax.value_and_grad(objective)(part, data)
    exact = jax.value_and_grad(lambda A: goal @ (jnp.linalg.pinv(A) @ y))
    expected, expected_gradient = exact(jnp.asarray(matrix))
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(gradient, expected_gradient[mine], rtol=1e-7, atol=1e-9)


class Smoother(eqx.Module):
    """An operator with trainable leaves: this rank's part of the logarithms of weights, and a number for all ranks."""

    logarithms: DistributedArray
    shift: jax.Array

    def operator(self):
        comm = self.logarithms.comm
        D = collops.FirstDerivative(SIZE, kind="forward", comm=comm)
        W = collops.Diagonal(self.logarithms._like(jnp.exp(self.logarithms.local_array)))
        shift = collops.array.shared(self.shift, comm) * jnp.ones(D.domain.local_shape(comm.rank))
        return D.H @ W @ D + collops.Diagonal(DistributedArray(D.domain, comm, shift))


def test_gradients_of_an_equinox_module(comm):
    module = Smoother(split(WEIGHTS, comm), jnp.asarray(0.7))
    y, goal = split(DATA, comm), split(GOAL, comm)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def objective(module, y):
        A = as_lineax(module.operator(), PSD)
        return goal.vdot(lx.linear_solve(A, y, Solver(collops.cg, **OPTIONS)).value)

    value, gradient = objective(module, y)
    M = dense(np.exp(WEIGHTS), 0.7)
    x, dual = np.linalg.solve(M, np.stack([DATA, GOAL], 1)).T
    np.testing.assert_allclose(value, GOAL @ x, rtol=1e-9)
    expected = -(DIFFERENCE @ dual) * (DIFFERENCE @ x) * np.exp(WEIGHTS)
    np.testing.assert_allclose(gradient.logarithms.gather(), expected, atol=1e-9)
    np.testing.assert_allclose(gradient.shift, -dual @ x, rtol=1e-9)


class Weighted(eqx.Module):
    """Rows of this rank's matrix, and weights that are equal on all ranks."""

    rows: jax.Array
    weights: jax.Array

    def operator(self, comm):
        V = collops.VStack([self.rows], comm)
        return V.H @ collops.Diagonal(collops.array.shared(self.weights, comm), V.range, comm=comm) @ V


def test_gradients_of_a_product_and_of_a_solution(comm):
    """Through collops alone: ``A @ x`` and ``collops.cg``."""
    ends = [2 + 2 * rank for rank in range(comm.size)]  # uneven
    size, mine = ends[-1] + 2, slice([0, *ends][comm.rank], [*ends[:-1], ends[-1] + 2][comm.rank])
    rows = np.random.default_rng(1).standard_normal((size, 3))
    weights, (y, goal) = np.linspace(1, 2, size), np.random.default_rng(2).standard_normal((2, 3))
    module = Weighted(jnp.asarray(rows[mine]), jnp.asarray(weights))
    data, model = (
        collops.from_global(jnp.asarray(values), collops.Layout.replicated(3, comm.size), comm=comm)
        for values in (y, goal)
    )

    def dense(rows, weights):
        return rows.T @ (weights[:, None] * rows)

    for call, exact in (
        (lambda A: A @ data, lambda M: M @ y),
        (lambda A: collops.cg(A, data, **OPTIONS).x, lambda M: jnp.linalg.solve(M, y)),
    ):
        found = eqx.filter_jit(eqx.filter_grad(lambda module, call=call: model.vdot(call(module.operator(comm)))))(
            module
        )
        expected = jax.grad(lambda *leaves, exact=exact: goal @ exact(dense(*leaves)), (0, 1))(rows, weights)
        np.testing.assert_allclose(found.rows, expected[0][mine], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found.weights, expected[1], rtol=1e-6, atol=1e-9)


def test_complex_numbers(comm):
    rng = np.random.default_rng(7)
    blocks = rng.standard_normal((comm.size, 3, 3)) + 1j * rng.standard_normal((comm.size, 3, 3)) + 4 * np.eye(3)
    y = rng.standard_normal(3 * comm.size) + 1j * rng.standard_normal(3 * comm.size)
    A = as_lineax(collops.BlockDiag([jnp.asarray(blocks[comm.rank])], comm))
    x = lx.linear_solve(A, split(y, comm), Solver(collops.bicgstab, **OPTIONS), throw=False).value.gather()
    np.testing.assert_allclose(x, np.linalg.solve(blocks, y.reshape(comm.size, 3, 1)).ravel(), rtol=1e-8)


def test_solves_keep_their_order_among_other_messages(comm):
    """Independent of each other, so that only the effect orders them."""
    A, B = as_lineax(smoothing(comm), PSD), as_lineax(smoothing(comm, shift=2.0), PSD)

    @jax.jit
    def program(y, z):
        solver = Solver(collops.cg, **OPTIONS)
        return lx.linear_solve(A, y, solver).value, z.sum(), lx.linear_solve(B, z, solver).value, y.vdot(y)

    x, total, z, square = program(split(DATA, comm), split(GOAL, comm))
    np.testing.assert_allclose(x.gather(), np.linalg.solve(dense(), DATA), rtol=1e-9)
    np.testing.assert_allclose(z.gather(), np.linalg.solve(dense(shift=2.0), GOAL), rtol=1e-9)
    np.testing.assert_allclose([total, square], [GOAL.sum(), DATA @ DATA], rtol=1e-12)


LINEAX = {
    "CG": lambda: lx.CG(rtol=1e-12, atol=1e-12),
    "AutoLinearSolver": lambda: lx.AutoLinearSolver(well_posed=True),
}


@pytest.mark.parametrize("name", LINEAX)
def test_solvers_of_lineax(comm, name):
    """Right on one rank and on replicated vectors; on split vectors they raise an error on every rank."""
    matrix = np.random.default_rng(4).standard_normal((6 * comm.size, 3))
    V = collops.VStack([jnp.asarray(matrix[6 * comm.rank : 6 * comm.rank + 6])], comm)  # the product sums over ranks
    y = collops.from_global(jnp.arange(1.0, 4.0), V.domain, comm=comm)
    x = lx.linear_solve(as_lineax(V.H @ V, PSD), y, LINEAX[name](), throw=False).value
    np.testing.assert_allclose(x.gather(), np.linalg.solve(matrix.T @ matrix, np.arange(1.0, 4.0)), rtol=1e-6)
    for A in (smoothing(comm), collops.Diagonal(np.arange(1.0, SIZE + 1), comm=comm)):
        if comm.size > 1:
            with pytest.raises(UnsupportedTypeError, match=r"split over ranks; use .*collops\.bridges\.lineax\.Solver"):
                lx.linear_solve(as_lineax(A, PSD), split(DATA, comm), LINEAX[name]())


def residual(x, data):
    """A tridiagonal nonlinear system: messages of halos forward, and a nonlinearity of each element."""
    A = smoothing(x.comm)
    return A.forward(x) + 0.3 * x * x * x - data


def root(data):
    x = np.zeros(SIZE)
    for _ in range(30):
        x -= np.linalg.solve(dense() + np.diag(0.9 * x * x), dense() @ x + 0.3 * x**3 - data)
    return x, dense() + np.diag(0.9 * x * x)


def test_newton_and_its_derivative(comm):
    solver = optx.Newton(rtol=1e-11, atol=1e-11, norm=max_norm, linear_solver=Solver(collops.cg, **OPTIONS))
    adjoint = optx.ImplicitAdjoint(Solver(collops.cg, **OPTIONS))
    goal = split(GOAL, comm)

    @jax.jit
    def objective(data):
        x = optx.root_find(residual, solver, collops.zeros_like(data), data, adjoint=adjoint, max_steps=60).value
        return goal.vdot(x), x

    (_, x), gradient = jax.value_and_grad(objective, has_aux=True)(split(DATA, comm))
    expected, jacobian = root(DATA)
    np.testing.assert_allclose(x.gather(), expected, rtol=1e-9)
    np.testing.assert_allclose(gradient.gather(), np.linalg.solve(jacobian, GOAL), rtol=1e-8)


def test_gauss_newton(comm):
    solver = optx.GaussNewton(rtol=1e-9, atol=1e-9, norm=max_norm, linear_solver=Solver(collops.cgls, **OPTIONS))
    data = split(DATA, comm)
    x = optx.least_squares(residual, solver, collops.zeros_like(data), data, max_steps=60).value
    np.testing.assert_allclose(x.gather(), root(DATA)[0], rtol=1e-9)


def test_fixed_point_iteration(comm):
    A, data = smoothing(comm), split(DATA, comm)
    solver = optx.FixedPointIteration(rtol=1e-10, atol=1e-10, norm=max_norm)
    x = optx.fixed_point(lambda x, data: x - 0.4 * (A.forward(x) - data), solver, data, data, max_steps=500).value
    np.testing.assert_allclose(x.gather(), np.linalg.solve(dense(), DATA), atol=1e-8)


def test_the_iteration_limit_is_an_error_on_every_rank(comm):
    A, y = as_lineax(smoothing(comm), PSD), split(DATA, comm)
    solver = Solver(collops.cg, niter=2, rtol=1e-12)
    assert lx.linear_solve(A, y, solver, throw=False).result == lx.RESULTS.max_steps_reached
    with pytest.raises(eqx.EquinoxRuntimeError, match="maximum number of solver steps"):
        jax.block_until_ready(lx.linear_solve(A, y, solver).value.local_array)


def test_errors(comm):
    A, y = as_lineax(smoothing(comm), PSD), split(DATA, comm)
    with pytest.raises(UnsupportedTypeError, match="as_lineax takes a distributed operator of collops, not"):
        as_lineax(np.eye(3))
    with pytest.raises(InputError, match="method must be one of collops' solvers cg, minres, bicgstab, cgls"):
        Solver(collops.gmres)
    with pytest.raises(InputError, match="cgls inside lineax does not support the option damp"):
        Solver(collops.cgls, damp=0.1)
    with pytest.raises(InputError, match=r"pass options to Solver\(\.\.\.\), not to lineax: y0"):
        lx.linear_solve(A, y, Solver(collops.cg), options={"y0": y})
    with pytest.raises(UnsupportedTypeError, match="needs an operator between distributed arrays, not"):
        lx.linear_solve(lx.MatrixLinearOperator(jnp.eye(3)), jnp.ones(3), Solver(collops.cg))
    tall = collops.VStack([jnp.ones((3, 2))], comm)
    with pytest.raises(LayoutError, match=r"cg needs one layout on both sides .*; take Solver\(collops\.lsqr\)"):
        lx.linear_solve(as_lineax(tall), collops.ones(tall.range, comm=comm, engine="jax"), Solver(collops.cg))
    for tree in (jnp.ones(3), (y, jnp.ones(3)), ()):
        with pytest.raises(UnsupportedTypeError, match="max_norm takes distributed arrays, not"):
            max_norm(tree)


@pytest.mark.parametrize("name", ["BFGS", "Dogleg", "LBFGS"])
def test_minimisers_of_optimistix_on_split_arrays(comm, name):
    """An error on every rank: from the matrix that they form, or from the norm, which they also apply to numbers."""
    if comm.size == 1:
        pytest.skip("one rank has the whole array")
    solve = optx.least_squares if name == "Dogleg" else optx.minimise
    A, method = smoothing(comm), getattr(optx, name)(rtol=1e-4, atol=1e-4, norm=max_norm)
    with pytest.raises(UnsupportedTypeError, match=r"collops\.solvers\.nonlinear|max_norm takes distributed arrays"):
        solve(lambda x, _: A.forward(x) if name == "Dogleg" else x.vdot(A.forward(x)), method, split(DATA, comm))


def linear(solver):
    return lambda A, y: lx.linear_solve(as_lineax(A, PSD), y, solver, throw=False).value


def iterative(solve, solver):
    """Return a call of optimistix that solves the system as a nonlinear one."""
    function = {
        optx.minimise: lambda x, A, y: 0.5 * x.vdot(A.forward(x)) - x.vdot(y),
        optx.fixed_point: lambda x, A, y: x - 0.4 * (A.forward(x) - y),
    }.get(solve, lambda x, A, y: A.forward(x) - y)
    method = solver(rtol=1e-9, atol=1e-9)
    return lambda A, y: solve(lambda x, _: function(x, A, y), method, 0 * y, throw=False, max_steps=500).value


ON_WHOLE_ARRAYS = {
    **{
        f"jax.scipy's {name}": lambda A, y, name=name: getattr(jax.scipy.sparse.linalg, name)(A.forward, y, tol=1e-12)[
            0
        ]
        for name in ("cg", "bicgstab", "gmres")
    },
    **{name: linear(getattr(lx, name)(rtol=1e-12, atol=1e-12)) for name in ("CG", "GMRES", "LSMR")},
    "AutoLinearSolver": linear(lx.AutoLinearSolver(well_posed=True)),
    "Solver": linear(Solver(collops.cg, **OPTIONS)),
    **{name: iterative(optx.root_find, getattr(optx, name)) for name in ("Newton", "Chord")},
    **{
        name: iterative(optx.least_squares, getattr(optx, name))
        for name in ("GaussNewton", "LevenbergMarquardt", "Dogleg")
    },
    **{name: iterative(optx.minimise, getattr(optx, name)) for name in ("BFGS", "NonlinearCG")},
    "FixedPointIteration": iterative(optx.fixed_point, optx.FixedPointIteration),
}


@pytest.mark.parametrize("name", ON_WHOLE_ARRAYS)
def test_solvers_on_whole_arrays(comm, name):
    """Sharded over two devices on one rank, and replicated on several."""
    y = collops.from_global(jnp.asarray(DATA[:10]), collops.Layout.replicated(10, comm.size), comm=comm)
    if comm.size == 1:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "device")
        y = collops.from_jax(collops.to_jax(y, mesh, jax.sharding.PartitionSpec("device")))
    D = collops.FirstDerivative(y.layout, kind="forward", comm=comm)
    A = D.H @ D + 0.5 * collops.Identity(y.layout, comm=comm)
    matrix = np.vstack([DIFFERENCE[:9, :10], np.zeros(10)])
    expected = np.linalg.solve(matrix.T @ matrix + 0.5 * np.eye(10), DATA[:10])
    found = jax.jit(lambda y: ON_WHOLE_ARRAYS[name](A, y))(y)
    np.testing.assert_allclose(found.local_array, expected, atol=1e-6)
