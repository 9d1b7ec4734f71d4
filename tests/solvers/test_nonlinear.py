"""Nonlinear least squares against SciPy's solvers of the whole problem, on one process."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import scipy.optimize

import collops
from collops import profile
from collops.array import StackedArray, from_global, full, zeros
from collops.errors import InputError, LayoutError, NotFiniteError, UnsupportedTypeError
from collops.operators import Diagonal, Identity, StackedHStack, StackedVStack
from collops.solvers import Status
from collops.solvers.nonlinear import gauss_newton, jax_problem, lbfgs
from collops.solvers.nonlinear.descent import Trial, halving, wolfe

from .problems import Cubic, assert_close, problem, random_matrix, start


def cubic(kind, comm, dtype):
    """A problem, its starting point, and the same for SciPy: residual, Jacobian and starting point."""
    op, serial, data, y = problem(kind, comm, dtype)
    x0, x0d = start(op, comm, dtype)

    def residual(x):
        return serial.A @ (x + 0.25 * x**3) - data

    def jacobian(x):
        return serial.A * (1 + 0.75 * x**2)

    return Cubic(op, y), x0d, residual, jacobian, x0


def objective(residual, jacobian):
    return lambda x: (0.5 * np.sum(residual(x) ** 2), jacobian(x).T @ residual(x))


@pytest.mark.parametrize("solver", [lbfgs, gauss_newton])
@pytest.mark.parametrize("kind", ["vstack", "hstack", "block_diag"])
def test_solutions(comm, solver, kind):
    nonlinear, x0, residual, jacobian, start_ = cubic(kind, comm, "f8")
    expected = scipy.optimize.least_squares(residual, start_, jacobian, xtol=1e-15, ftol=1e-15, gtol=1e-13)
    result = solver(nonlinear, x0, niter=200, tol=1e-9, **({"inner": 100} if solver is gauss_newton else {}))
    assert result.status is Status.CONVERGED and result.status.successful
    np.testing.assert_allclose(result.residual_norms[-1] ** 2 / 2, expected.cost, rtol=1e-10)
    np.testing.assert_allclose(result.x.gather(), expected.x, atol=1e-6)
    gradient = jacobian(result.x.gather()).T @ residual(result.x.gather())
    np.testing.assert_allclose(result.details["gradient_norm"], np.linalg.norm(gradient), rtol=1e-2, atol=1e-12)
    assert_close(x0.gather(), start_)


@pytest.mark.parametrize("solver", [lbfgs, gauss_newton])
@pytest.mark.parametrize(("kind", "dtype"), [("block_diag", "c16"), ("vstack", "c8"), ("vstack", "f4")])
def test_dtypes_and_their_gradients(comm, solver, kind, dtype):
    nonlinear, x0, residual, jacobian, start_ = cubic(kind, comm, dtype)
    tol = 1e-6 if dtype == "c16" else 1e-3
    result = solver(nonlinear, x0, niter=300, tol=tol)
    assert result.status is Status.CONVERGED and result.x.dtype == np.dtype(dtype)
    first, last = (np.linalg.norm(jacobian(x).conj().T @ residual(x)) for x in (start_, result.x.gather()))
    assert last <= 1.01 * tol * first
    assert np.linalg.norm(residual(result.x.gather())) < 0.5 * np.linalg.norm(residual(start_))


@pytest.mark.parametrize("bounds", [(-0.04, 0.05), (-0.04, None), (None, "array")])
def test_bounds(comm, bounds):
    nonlinear, x0, residual, jacobian, start_ = cubic("vstack", comm, "f8")
    lower, upper = bounds
    given = {"lower": lower, "upper": upper}
    if upper == "array":
        upper = random_matrix(len(start_), 1, "f8", 7)[:, 0]
        given["upper"] = from_global(upper, x0.layout, comm=comm)
    result = lbfgs(nonlinear, x0, niter=300, tol=1e-8, **given)
    low, high = (
        np.broadcast_to(inf if b is None else b, start_.shape) for b, inf in ((lower, -np.inf), (upper, np.inf))
    )
    expected = scipy.optimize.minimize(
        objective(residual, jacobian),
        np.clip(start_, low, high),
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"ftol": 0, "gtol": 1e-10, "maxiter": 1000},
    )
    x = result.x.gather()
    assert result.status is Status.CONVERGED and (x >= low).all() and (x <= high).all()
    assert ((x == low) | (x == high)).any()  # or the bounds would not matter
    np.testing.assert_allclose(x, expected.x, atol=1e-6)


class Rosenbrock:
    """Rosenbrock's function for each pair of elements of a stack of two arrays."""

    def residual(self, x):
        a, b = x
        return StackedArray([10.0 * (b - a * a), 1.0 - a])

    def jacobian(self, x):
        one = Identity(x[0].layout, comm=x.comm)
        return StackedVStack(
            [StackedHStack([Diagonal(-20.0 * x[0]), 10.0 * one]), StackedHStack([-1.0 * one, 0.0 * one])]
        )


def test_as_many_iterations_as_scipy(comm):
    pairs = 11
    x0 = StackedArray([full(pairs, -1.2, comm=comm), full(pairs, 1.0, comm=comm)])
    result = lbfgs(Rosenbrock(), x0, niter=200, tol=1e-8)
    assert result.status.successful
    assert_close(np.concatenate(result.x.gather()), np.ones(2 * pairs), factor=1e6)

    def function(x):
        a, b = x.reshape(2, -1)
        residual = np.concatenate([10 * (b - a * a), 1 - a])
        gradient = np.concatenate([-20 * a * residual[:pairs] - residual[pairs:], 10 * residual[:pairs]])
        return residual @ residual / 2, gradient

    given = np.repeat([-1.2, 1.0], pairs)
    options = {"ftol": 0, "gtol": 1e-8 * np.linalg.norm(function(given)[1])}
    expected = scipy.optimize.minimize(function, given, jac=True, method="L-BFGS-B", options=options)
    assert result.iterations <= 1.3 * expected.nit
    quick = gauss_newton(Rosenbrock(), x0, niter=40)
    assert quick.status.successful
    assert quick.residual_norms[-1] < 0.1 * quick.residual_norms[-2]  # faster than linear


def test_regularisation_is_one_more_part(comm):
    nonlinear, x0, residual, jacobian, start_ = cubic("block_diag", comm, "f8")
    weight = 3.0

    class Damped:
        def residual(self, x):
            return StackedArray([nonlinear.residual(x), weight * x])

        def jacobian(self, x):
            return StackedVStack([nonlinear.jacobian(x), weight * Identity(x.layout, comm=comm)])

    expected = scipy.optimize.least_squares(
        lambda x: np.concatenate([residual(x), weight * x]),
        start_,
        lambda x: np.vstack([jacobian(x), weight * np.eye(len(x))]),
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-13,
    )
    for solver in (lbfgs, gauss_newton):
        np.testing.assert_allclose(solver(Damped(), x0, niter=200, tol=1e-8).x.gather(), expected.x, atol=1e-6)


def test_messages(comm):
    """Besides the problem's: one for a trial step, and one for the length of the first."""
    nonlinear, x0, *_ = cubic("block_diag", comm, "f8")  # sends none itself
    trials = []
    counted = nonlinear.residual
    nonlinear.residual = lambda x: (trials.append(x), counted(x))[1]
    with profile.count_messages() as sent:
        result = lbfgs(nonlinear, x0, niter=8, tol=0, memory=3)
    assert result.iterations == 8
    reductions = [message for message in sent.records if message.operation == "allreduce"]
    assert len(reductions) == (len(trials) + 1 if comm.size > 1 else 0)


class SquaresOf:
    """The unknowns are the roots of the data."""

    def __init__(self, data):
        self.data = data

    def residual(self, x):
        return x * x - self.data

    def jacobian(self, x):
        return Diagonal(2 * x)


@pytest.mark.parametrize(("solver", "bounds"), [(gauss_newton, False), (lbfgs, False), (lbfgs, True)])
def test_units_do_not_matter(comm, solver, bounds):
    """Data are scaled by powers of four: roots and their bounds by powers of two, which changes no rounding."""
    roots = np.linspace(1, 3, 7)
    expected = None
    for exponent in (0, -40, 40, 25):
        unit = 2.0**exponent
        problem_ = SquaresOf(from_global(unit**2 * roots**2, comm=comm))
        options = {"lower": 1.5 * unit, "upper": 2.5 * unit} if bounds else {}
        result = solver(problem_, full(7, 2 * unit, comm=comm), niter=60, tol=1e-9, **options)
        assert result.status is Status.CONVERGED
        x = result.x.gather() / unit
        np.testing.assert_allclose(x, np.clip(roots, 1.5, 2.5) if bounds else roots, atol=1e-6)
        expected = (result.iterations, x) if expected is None else expected
        assert result.iterations == expected[0]
        np.testing.assert_allclose(x, expected[1], atol=1e-12)


@pytest.mark.parametrize("solver", [lbfgs, gauss_newton])
def test_the_result_has_memory_of_its_own(comm, solver):
    x0 = full(7, 2.0, comm=comm)
    result = solver(SquaresOf(x0 * x0), x0)
    assert result.iterations == 0
    result.x.fill(5.0)
    assert_close(x0.gather(), np.full(7, 2.0))


def test_a_wrong_jacobian_ends_the_search(comm):
    nonlinear, x0, residual, _, start_ = cubic("vstack", comm, "f8")
    right = nonlinear.jacobian
    nonlinear.jacobian = lambda x: -1.0 * right(x)
    for solver in (lbfgs, gauss_newton):
        result = solver(nonlinear, x0)
        assert result.status is Status.NO_DESCENT and not result.status.successful and "Jacobian" in str(result.status)
        assert_close(result.x.gather(), x0.gather())
        np.testing.assert_allclose(result.residual_norms, np.linalg.norm(residual(start_)))


def test_errors(comm):
    nonlinear, x0, *_ = cubic("vstack", comm, "f8")
    with pytest.raises(UnsupportedTypeError, match=r"must have a method residual\(x\), unlike .*function"):
        lbfgs(lambda x: x, x0)
    with pytest.raises(UnsupportedTypeError, match="x0 must be a distributed array"):
        gauss_newton(nonlinear, np.zeros(6))
    with pytest.raises(UnsupportedTypeError, match="floating-point"):
        lbfgs(nonlinear, x0.astype("i8"))
    with pytest.raises(InputError, match="memory must be an integer of at least 1"):
        lbfgs(nonlinear, x0, memory=0)
    with pytest.raises(InputError, match="needs a real x0"):
        lbfgs(nonlinear, x0.astype("c16"), lower=0)
    with pytest.raises(LayoutError):
        lbfgs(nonlinear, x0, upper=zeros(x0.size + 1, comm=comm))
    with pytest.raises(TypeError, match="did you mean 'memory'"):
        lbfgs(nonlinear, x0, memori=3)
    nonlinear.data = 0.0 * nonlinear.data + float("nan")
    for solver in (lbfgs, gauss_newton):
        with pytest.raises(NotFiniteError, match="residual"):
            solver(nonlinear, x0)
    nonlinear.jacobian = lambda x: Identity(x.size + 1, comm=comm)
    with pytest.raises(LayoutError, match="the domain of the Jacobian must be"):
        lbfgs(nonlinear, x0)
    nonlinear.jacobian = lambda x: np.eye(6)
    with pytest.raises(UnsupportedTypeError, match=r"jacobian must return a distributed operator, not .*ndarray"):
        lbfgs(nonlinear, x0)


@pytest.mark.usefixtures("jax_single")
def test_functions_of_jax(comm):
    op, serial, data, y = problem("vstack", comm, "f4")
    x0, x0d = start(op, comm, "f4")
    other = random_matrix(len(x0), 1, "f4", 4)[:, 0]
    of_jax = {
        name: from_global(values, layout, comm=comm, engine="jax")
        for name, values, layout in (("y", data, op.range), ("x0", x0, op.domain), ("other", other, op.domain))
    }
    traced = jax_problem(lambda x: op.forward(x + 0.25 * x**3) - of_jax["y"])
    jacobian, dense = traced.jacobian(of_jax["x0"]), serial.A * (1 + 0.75 * x0**2)
    np.testing.assert_allclose(jacobian.forward(of_jax["other"]).gather(), dense @ other, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(jacobian.adjoint(of_jax["y"]).gather(), dense.T @ data, rtol=1e-4, atol=1e-4)
    expected = gauss_newton(Cubic(op, y), x0d, tol=1e-4)
    result = gauss_newton(traced, of_jax["x0"], tol=1e-4)
    np.testing.assert_allclose(result.x.gather(), expected.x.gather(), atol=1e-3)
    with pytest.raises(UnsupportedTypeError, match="needs arrays of JAX, not numpy"):
        gauss_newton(traced, x0d)
    with pytest.raises(UnsupportedTypeError, match="a nonlinear problem needs a function"):
        jax_problem(3)


class Squares:
    """The squares of x are given; the Jacobian at ones is twice the identity, which CGLS inverts in one iteration."""

    def __init__(self, data) -> None:
        self.data = data

    def residual(self, x):
        return x * x - self.data

    def jacobian(self, x):
        return Diagonal(2 * x)


@pytest.mark.parametrize("damp", [0.0, 1.0, 2.0])
def test_damping_shortens_the_step_of_gauss_newton(comm, damp):
    problem_ = Squares(full(5, 1.44, comm=comm))
    result = gauss_newton(problem_, full(5, 1.0, comm=comm), niter=1, damp=damp)
    assert_close(result.x.gather(), np.full(5, 1 + 2 * 0.44 / (4 + damp**2)))


class Hill:
    """The top of a hill in the first half of the unknowns, a narrow valley at 2 in the others."""

    def __init__(self, hill) -> None:
        self.hill = hill

    def residual(self, x):
        return self.hill * (10 + np.cos(x)) + (1 - self.hill) * 0.1 * (x - 2)

    def jacobian(self, x):
        return Diagonal((1 - self.hill) * 0.1 - self.hill * np.sin(x))


def test_a_step_of_negative_curvature_is_forgotten(comm):
    """Down from the top of a hill the slope grows: the matrix of such a step would point uphill."""
    hill = from_global((np.arange(6) < 3).astype(float), comm=comm)
    x0 = 0.1 * hill + 1.5 * (1 - hill)
    pairs = []
    options = {"lower": -1.0, "upper": 1.0 + 9.0 * (1 - hill), "niter": 60}
    result = lbfgs(Hill(hill), x0, callback=lambda _, view: pairs.append(view.state.pairs), **options)
    assert pairs[0] == 0  # the first step is not remembered
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x.gather(), [1, 1, 1, 2, 2, 2], atol=1e-4)


def test_a_step_that_does_not_decrease_enough_is_not_taken():
    for rise in (1e-15, 1e-6, 1.0):
        assert halving(lambda step, rise=rise: Trial(1.0 + rise, -1e-12 * step, "kept"), 1.0) == (0.0, None)
    # A decrease by less than 1e-4 of what the slope promises is not enough; by more it is.
    assert halving(lambda step: Trial(1.0 - 0.5e-4 * step, -step, "kept"), 1.0) == (0.0, None)
    assert halving(lambda step: Trial(1.0 - 2e-4 * step, -step, "kept"), 1.0) == (1.0, "kept")
    assert halving(lambda step: Trial(1.0 - step * (0.3 - step), -0.3 * step, "kept"), 1.0) == (0.25, "kept")
    # Steps are halved often enough for a path that is good at its very beginning alone.
    short = 2.0**-20
    assert halving(lambda step: Trial(1.0 - step * (2 * short - step), -step * short, "kept"), 1.0) == (short, "kept")


def test_linear_problems_are_solved_as_accurately_as_the_gradient_deserves(comm):
    """Where the residual vanishes, the gradient falls faster than any fixed accuracy of CGLS would make it."""
    scales = from_global(np.logspace(0, 1.5, 12), comm=comm)

    class Scaled:
        def residual(self, x):
            return scales * (x + 0.1 * x * x - 1.1)

        def jacobian(self, x):
            return Diagonal(scales * (1 + 0.2 * x))

    gradients = []

    def watch(_, view):
        gradients.append(view.state.gg**0.5)

    result = gauss_newton(Scaled(), full(12, 3.0, comm=comm), niter=20, inner=60, tol=1e-8, callback=watch)
    assert result.status is Status.CONVERGED
    ratios = np.divide(gradients[1:], gradients[:-1])
    assert ratios[-1] < 1e-2 and len(gradients) <= 9


def test_complex_functions_of_jax_have_an_adjoint(comm):
    """<J p, q> is <p, J^H q>, which JAX's transposition is only after conjugation."""
    pytest.importorskip("jax")
    if comm.size > 2:
        pytest.skip("a rank compiles its own programs")
    layout = zeros(6, comm=comm).layout
    x, p, q = (collops.random(layout, seed=n, dtype="complex64", comm=comm, engine="jax") for n in range(3))
    jacobian = jax_problem(lambda x: (1 + 2j) * x * x - 1j * x).jacobian(x)
    left, right = complex(jacobian.forward(p).vdot(q)), complex(p.vdot(jacobian.adjoint(q)))
    assert abs(left - right) < 1e-4 * abs(left) and abs(left.imag) > 1e-3


def test_the_line_search_lengthens_steps_to_where_the_slope_is_less_steep():
    """Nocedal and Wright, section 3.1: a decrease by 1e-4 of the slope's promise, and a slope of at most 0.9 of it."""
    step, kept = wolfe(lambda t: Trial(0.5 * (t - 20) ** 2, t - 20, t), 200.0, -20.0)
    assert step == kept and abs(step - 20) <= 0.9 * 20
    assert 0.5 * (step - 20) ** 2 <= 200 - 1e-4 * 20 * step


@pytest.mark.parametrize("memory", [1, 2, 3])
def test_directions_are_those_of_bfgs_updates_of_the_last_steps(comm, memory, monkeypatch):
    """Nocedal and Wright, equations 6.17 and 7.20, with dense matrices; so are the slopes along them."""
    slopes = []

    def watched(evaluate, value, slope):
        step, kept = wolfe(evaluate, value, slope)
        slopes.append(step * slope)
        return step, kept

    monkeypatch.setattr(importlib.import_module("collops.solvers.nonlinear.lbfgs"), "wolfe", watched)
    nonlinear, x0, residual, jacobian, start_ = cubic("vstack", comm, "f8")
    points = [start_]
    options = {"niter": 7, "tol": 0, "memory": memory}
    lbfgs(nonlinear, x0, callback=lambda _, view: points.append(view.x.gather()), **options)
    gradients = [jacobian(x).T @ residual(x) for x in points]
    steps, changes = np.diff(points, axis=0), np.diff(gradients, axis=0)
    np.testing.assert_allclose(slopes, np.sum(steps * gradients[:-1], axis=1), rtol=1e-6)
    for k in range(1, len(steps)):
        eye = np.eye(len(start_))
        inverse = steps[k - 1] @ changes[k - 1] / (changes[k - 1] @ changes[k - 1]) * eye
        for s, y in zip(steps[max(0, k - memory) : k], changes[max(0, k - memory) : k], strict=True):
            left = eye - np.outer(s, y) / (s @ y)
            inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
        expected = -inverse @ gradients[k]
        expected *= np.linalg.norm(steps[k]) / np.linalg.norm(expected)
        np.testing.assert_allclose(steps[k], expected, atol=1e-8 * np.linalg.norm(expected))


def test_a_step_that_a_bound_shortens_is_remembered(comm):
    class Linear:
        def residual(self, x):
            return x - 10.0

        def jacobian(self, x):
            return Identity(x.layout, comm=comm)

    pairs = []
    lbfgs(Linear(), zeros(5, comm=comm), upper=0.5, niter=1, callback=lambda _, view: pairs.append(view.state.pairs))
    assert pairs == [1]


def test_inner_iterations_are_those_of_all_linear_problems(comm):
    """CGLS inverts a multiple of the identity in one iteration."""
    result = gauss_newton(SquaresOf(full(5, 2.0, comm=comm)), full(5, 1.0, comm=comm), niter=3, tol=0)
    assert (result.iterations, result.details["inner_iterations"]) == (3, 3)


@pytest.mark.parametrize(("solver", "options"), [(lbfgs, {}), (gauss_newton, {"inner": 1})])
def test_the_first_step_minimises_a_linear_residual_along_the_gradient(comm, solver, options):
    op, serial, data, y = problem("vstack", comm, "f8")
    start_, x0 = start(op, comm, "f8")

    class Linear:
        def residual(self, x):
            return op.forward(x) - y

        def jacobian(self, x):
            return op

    gradient = serial.A.T @ (serial.A @ start_ - data)
    length = gradient @ gradient / np.sum((serial.A @ gradient) ** 2)
    expected = start_ - length * gradient
    assert np.linalg.norm(serial.A.T @ (serial.A @ expected - data)) > 0.1 * np.linalg.norm(gradient)
    assert_close(solver(Linear(), x0, niter=1, **options).x.gather(), expected)


def test_at_most_inner_iterations_of_cgls(comm):
    """The scales are so far apart that one iteration does not halve the gradient."""
    scales = from_global(np.logspace(0, 3, 12), comm=comm)

    class Linear:
        def residual(self, x):
            return scales * x - 1.0

        def jacobian(self, x):
            return Diagonal(scales)

    result = gauss_newton(Linear(), zeros(12, comm=comm), niter=4, inner=1, tol=0)
    assert (result.iterations, result.details["inner_iterations"]) == (4, 4)


def test_the_accuracy_of_linear_problems_is_the_root_of_the_relative_gradient(comm, monkeypatch):
    """Nocedal and Wright, equation 7.3: min(1/2, sqrt(|g| / |g_0|))."""
    module = importlib.import_module("collops.solvers.nonlinear.gauss_newton")
    nonlinear, x0, residual, jacobian, start_ = cubic("block_diag", comm, "f8")
    asked, points, original = [], [start_], module.cgls
    monkeypatch.setattr(module, "cgls", lambda *args, **run: (asked.append(run["gtol"]), original(*args, **run))[1])
    gauss_newton(nonlinear, x0, niter=6, tol=0, callback=lambda _, view: points.append(view.x.gather()))
    norms = np.array([np.linalg.norm(jacobian(x).T @ residual(x)) for x in points[: len(asked)]])
    np.testing.assert_allclose(asked, np.minimum(0.5, np.sqrt(norms / norms[0])), rtol=1e-6)
    assert min(asked) < 0.25


@pytest.mark.parametrize("solver", [lbfgs, gauss_newton])
def test_without_a_tolerance_residuals_fall_to_rounding(comm, solver):
    """The square of the rounded root of 2 is not 2, so that neither the residual nor the gradient vanishes."""
    result = solver(SquaresOf(full(5, 2.0, comm=comm)), full(5, 10.0, comm=comm), niter=50, tol=0)
    assert result.status is Status.COMPATIBLE_TO_ROUNDING and result.details["gradient_norm"] > 0
    assert_close(result.x.gather(), np.full(5, 2**0.5))


@pytest.mark.parametrize("solver", [lbfgs, gauss_newton])
def test_a_jacobian_that_is_not_finite_is_told_from_the_residual(comm, solver):
    nonlinear, x0, *_ = cubic("vstack", comm, "f8")
    nonlinear.jacobian = lambda x: nonlinear.A @ Diagonal(float("nan") * x)
    with pytest.raises(NotFiniteError) as caught:
        solver(nonlinear, x0)
    assert caught.value.array == "gradient"


def test_the_starting_point_is_projected(comm):
    result = lbfgs(SquaresOf(full(5, 2.0, comm=comm)), full(5, 9.0, comm=comm), lower=1.0, upper=3.0, niter=0)
    assert_close(result.x.gather(), np.full(5, 3.0))
    np.testing.assert_allclose(result.residual_norms, [7 * 5**0.5])


class InUnits:
    """A problem whose residual and unknowns have another unit, with the same Jacobian."""

    def __init__(self, problem, unit) -> None:
        self.problem, self.unit = problem, unit

    def residual(self, x):
        return self.unit * self.problem.residual((1 / self.unit) * x)

    def jacobian(self, x):
        return self.problem.jacobian((1 / self.unit) * x)


@pytest.mark.parametrize(
    ("solver", "options", "dtype", "exponents"),
    [
        (gauss_newton, {"damp": 0.5}, "f4", (-100, -74, 84)),
        (gauss_newton, {"damp": 0.5}, "c8", (-74, 84)),
        (gauss_newton, {}, "f8", (-900, 900)),
        (lbfgs, {}, "f4", (-100, -74, 84)),
        (lbfgs, {}, "c8", (-74, 84)),
        (lbfgs, {}, "f8", (-900, 900)),
        (lbfgs, {"lower": -0.25, "upper": 0.25}, "f4", (-100, -74, 84)),
    ],
)
def test_squares_of_the_residual_neither_underflow_nor_overflow(comm, solver, options, dtype, exponents):
    nonlinear, x0, residual, *_ = cubic("vstack", comm, dtype)
    views = []

    def solved(exponent):
        unit = 2.0**exponent
        own = {name: value * (1.0 if name == "damp" else unit) for name, value in options.items()}
        views.clear()
        run = {"tol": 1e-3, "niter": 300, "callback": lambda _, view: views.append(view.residual_norm / unit)}
        result = solver(InUnits(nonlinear, unit), unit * x0, **own, **run)
        gradient = result.details["gradient_norm"] / unit
        return result, result.x.gather() / np.array(unit, dtype), result.residual_norms / unit, gradient, list(views)

    expected = solved(0)
    assert expected[0].status is Status.CONVERGED and expected[0].iterations > 3
    np.testing.assert_allclose(expected[2][-1], np.linalg.norm(residual(expected[1])), rtol=1e-4)
    for exponent in exponents:
        result, *numbers = solved(exponent)
        assert (result.status, result.iterations) == (expected[0].status, expected[0].iterations)
        for found, wanted in zip(numbers, expected[1:], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("solver", "bounds"), [(gauss_newton, False), (lbfgs, False), (lbfgs, True)])
def test_small_residuals_with_a_small_jacobian(comm, solver, bounds):
    """In single precision, the squares of these residuals are zero, and fourth powers of the Jacobian too."""
    unit, roots = 2.0**-32, np.linspace(1, 3, 7)
    options = {"lower": 1.5 * unit, "upper": 2.5 * unit} if bounds else {}
    data = from_global((unit**2 * roots**2).astype("f4"), comm=comm)
    result = solver(SquaresOf(data), full(7, 2 * unit, comm=comm, dtype="f4"), tol=1e-4, **options)
    assert result.status is Status.CONVERGED
    np.testing.assert_allclose(result.x.gather() / unit, np.clip(roots, 1.5, 2.5) if bounds else roots, rtol=1e-3)


@pytest.mark.parametrize("solver", [lbfgs, gauss_newton])
def test_a_residual_of_zero_has_no_unit(comm, solver):
    x0 = full(3, 2.0, comm=comm, dtype="f4")
    result = solver(SquaresOf(x0 * x0), x0, tol=0)
    assert result.status is Status.CONVERGED and result.iterations == 0 and result.residual_norms[0] == 0
