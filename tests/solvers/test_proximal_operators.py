"""Proximal operators against their definition: the point is where no other one near it is better."""

from __future__ import annotations

import numpy as np
import pytest

from collops import profile
from collops.array import DistributedArray, Layout, StackedArray, from_global
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import BlockDiag, Identity
from collops.solvers.proximal import L0, L1, L2, L21, Box, Euclidean, Nuclear, admm_l2, lift_proximal

from .problems import VARIETY, assert_close, problem, random_matrix
from .references import lengths, soft

DTYPES = ["f4", "f8", "c8", "c16"]
SIZE = 12


def vector(dtype, seed: int = 1, size: int = SIZE) -> np.ndarray:
    return 2 * random_matrix(size, 1, dtype, seed)[:, 0]


def split(values, comm):
    """All on the first rank but one element, so that most ranks are empty."""
    sizes = [len(values) - 1, 1] + [0] * comm.size
    sizes = sizes[: comm.size] if comm.size > 1 else [len(values)]
    return from_global(values, Layout.split(len(values), comm.size, sizes=sizes), comm=comm)


class Halves:
    """A function of local arrays: half the squared norm, as PyProximal writes its operators."""

    hasgrad = True

    def __call__(self, x):
        return 0.5 * np.linalg.norm(x) ** 2

    def prox(self, x, tau):
        return x / (1 + tau)

    def grad(self, x):
        return x


class Positive:
    """An indicator that says yes or no, and knows the dual point only."""

    def __call__(self, x):
        return bool((x >= 0).all())

    def proxdual(self, x, tau):
        return np.minimum(x, 0)


def functions(comm, dtype):
    """Operators with their values and proximal points in NumPy."""
    g = vector(dtype, 2)
    weights = np.abs(vector("f8", 3)).astype(np.finfo(dtype).dtype)
    gd, wd = split(g, comm), split(weights, comm)
    cases = {
        "L1": (L1(0.7), lambda x: 0.7 * np.abs(x).sum(), lambda x, t: soft(x, 0.7 * t)),
        "L1 with g": (L1(0.7, gd), lambda x: 0.7 * np.abs(x - g).sum(), lambda x, t: g + soft(x - g, 0.7 * t)),
        "weighted L1": (L1(wd), lambda x: (weights * np.abs(x)).sum(), lambda x, t: soft(x, weights * t)),
        "L0": (L0(0.7), lambda x: 0.7 * np.count_nonzero(x), lambda x, t: np.where(np.abs(x) > np.sqrt(1.4 * t), x, 0)),
        "weighted L0": (
            L0(wd),
            lambda x: (weights * (x != 0)).sum(),
            lambda x, t: np.where(np.abs(x) > np.sqrt(2 * t * weights), x, 0),
        ),
        "L2": (L2(sigma=0.7), lambda x: 0.35 * np.linalg.norm(x) ** 2, lambda x, t: x / (1 + 0.7 * t)),
        "L2 of a misfit": (
            L2(b=gd, q=gd, sigma=0.7, alpha=0.3),
            lambda x: 0.35 * np.linalg.norm(x - g) ** 2 + 0.3 * np.vdot(g, x).real,
            lambda x, t: (x + 0.7 * t * g - 0.3 * t * g) / (1 + 0.7 * t),
        ),
        "Euclidean": (
            Euclidean(0.7),
            lambda x: 0.7 * np.linalg.norm(x),
            lambda x, t: max(0, 1 - 0.7 * t / np.linalg.norm(x)) * x,
        ),
        "lifted": (lift_proximal(Halves()), lambda x: 0.5 * np.linalg.norm(x) ** 2, lambda x, t: x / (1 + t)),
    }
    if np.dtype(dtype).kind != "c":
        cases["Box"] = (Box(-0.5, 1), lambda x: 0 if x.min() >= -0.5 and x.max() <= 1 else np.inf, None)
        cases["Box"] = (*cases["Box"][:2], lambda x, t: np.clip(x, -0.5, 1))
        cases["Box of arrays"] = (
            Box(-wd, wd),
            lambda x: 0 if (np.abs(x) <= weights).all() else np.inf,
            lambda x, t: np.clip(x, -weights, weights),
        )
        cases["dual only"] = (
            lift_proximal(Positive()),
            lambda x: 0 if x.min() >= 0 else np.inf,
            lambda x, t: np.maximum(x, 0),
        )
    return cases


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_points(comm, dtype):
    x = vector(dtype)
    xd = split(x, comm)
    for name, (f, value, prox) in functions(comm, dtype).items():
        for tau in (0.3, 2.0):
            point = f.prox(xd, tau)
            assert point.dtype == np.dtype(dtype) and point.layout is xd.layout, name
            assert_close(point.gather(), prox(x, tau), dtype)
            # By Moreau's identity, whatever the operator does by itself.
            assert_close(f.proxdual(xd, tau).gather(), x - tau * prox(x / tau, 1 / tau), dtype)
            given = xd.copy()
            for apply in (f.prox, f.proxdual):
                assert apply(given, tau, out=given) is given
                assert_close(given.gather(), apply(xd, tau).gather(), dtype)
                given = xd.copy()
            assert_close(
                f._prox_of_sum(2.0, xd, -0.5, point, tau, None).gather(), prox(2 * x - 0.5 * point.gather(), tau), dtype
            )
        for where in (x, prox(x, 1.0)):
            expected = value(where)
            assert float(f(split(where, comm))) == expected or abs(float(f(split(where, comm))) - expected) < 1e-4, name
        assert_close(xd.gather(), x, dtype)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_points_are_minima(comm, dtype):
    """Independent of any formula: no step from the point makes the sum smaller."""
    x = vector(dtype)
    xd, tau = split(x, comm), 0.8
    generator = np.random.default_rng(3)
    for name, (f, _, _) in functions(comm, dtype).items():
        point = f.prox(xd, tau)
        for size in (1e-3, 1e-1, 1.0):
            step = size * generator.standard_normal(SIZE)
            other = split((point.gather() + step).astype(dtype), comm)

            def total(y, f=f):
                return float(f(y)) + float((y - xd).norm()) ** 2 / (2 * tau)

            assert total(point) <= total(other) + 1e-12, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_compositions(comm, dtype):
    x, v = vector(dtype), vector(dtype, 5)
    xd, vd = split(x, comm), split(v, comm)
    tau, f = 0.6, L1(0.7)
    for composed, value, point in (
        (2.5 * f, 1.75 * np.abs(x).sum(), soft(x, 1.75 * tau)),
        (f * 2, 1.4 * np.abs(x).sum(), soft(x, 1.4 * tau)),
        (f.precomposition(-2.0, 0.3), 0.7 * np.abs(0.3 - 2 * x).sum(), (soft(0.3 - 2 * x, 2.8 * tau) - 0.3) / -2),
        (f.precomposition(3.0, vd), 0.7 * np.abs(3 * x + v).sum(), (soft(3 * x + v, 6.3 * tau) - v) / 3),
        (f + vd, 0.7 * np.abs(x).sum() + np.vdot(v, x).real, soft(x - tau * v, 0.7 * tau)),
        (f.chain(L2()), 0.7 * np.abs(x).sum() + 0.5 * np.linalg.norm(x) ** 2, soft(x, 0.7 * tau) / (1 + tau)),
    ):
        assert_close(float(composed(xd)), value, dtype, factor=10)
        assert_close(composed.prox(xd, tau).gather(), point, dtype)
        same = xd.copy()
        assert_close(composed.prox(same, tau, out=same).gather(), point, dtype)
        # Moreau, with what the class of each does by itself.
        dual = composed.proxdual(xd, tau).gather()
        assert_close(dual + tau * composed.prox(xd / tau, 1 / tau).gather(), x, dtype)
    dual = f.conjugate()
    assert_close(dual.prox(xd, tau).gather(), f.proxdual(xd, tau).gather(), dtype)
    assert_close(dual.conjugate().prox(xd, tau).gather(), soft(x, 0.7 * tau), dtype)
    with pytest.raises(UnsupportedTypeError, match="value"):
        dual(xd)
    smooth = (3 * L2(b=vd).precomposition(2.0, 0.5)) + vd
    assert smooth.has_gradient
    assert_close(smooth.grad(xd).gather(), 6 * (2 * x + 0.5 - v) + v, dtype)


@pytest.mark.parametrize(("kind", "dtype"), VARIETY)
def test_misfits(comm, kind, dtype):
    op, serial, y, yd = problem(kind, comm, dtype)
    q = vector(dtype, 6, op.domain.size)
    x = vector(dtype, 7, op.domain.size)
    qd, xd = (from_global(array, op.domain, comm=comm) for array in (q, x))
    f = L2(op, yd, qd, sigma=0.4, alpha=0.3, niter=max(30, 3 * x.size // 2))  # more than there are unknowns
    adjoint = serial.A.conj().T
    expected = 0.2 * np.linalg.norm(serial.A @ x - y) ** 2 + 0.3 * np.vdot(q, x).real
    assert_close(float(f(xd)), expected, dtype, factor=10)
    gradient = 0.4 * adjoint @ (serial.A @ x - y)
    assert_close(f.grad(xd).gather(), gradient + 0.3 * q, dtype, factor=10)
    assert_close(L2(op, yd, qd, sigma=0.4, qgrad=False).grad(xd).gather(), gradient, dtype, factor=10)
    tau = 0.5
    normal = np.eye(x.size) + 0.2 * adjoint @ serial.A
    exact = np.linalg.solve(normal, x + 0.2 * adjoint @ y - 0.15 * q)
    for _ in range(2):
        assert_close(f.prox(xd, tau).gather(), exact, dtype, factor=10)
    same = xd.copy()
    assert_close(f.prox(same, tau, out=same).gather(), exact, dtype, factor=10)
    assert_close(xd.gather(), x, dtype)


def test_misfits_of_weight_0(comm):
    op, _, _, yd = problem("hstack", comm, "f8")
    x, q = vector("f8", 7, op.domain.size), vector("f8", 6, op.domain.size)
    xd, qd = (from_global(array, op.domain, comm=comm) for array in (x, q))
    f = L2(op, yd, qd, sigma=0, alpha=0.3)
    assert_close(f.prox(xd, 0.5).gather(), x - 0.15 * q)
    assert_close(float(f(xd)), 0.3 * q @ x)


def test_a_misfit_without_an_operator_needs_no_inner_iterations(comm):
    b, x = vector("f8", 5), vector("f8", 7)
    bd, xd = split(b, comm), split(x, comm)
    f = L2(None, bd, niter=2, x0=xd, warm=False)
    assert_close(float(f(xd)), 0.5 * np.linalg.norm(x - b) ** 2)
    assert_close(f.prox(xd, 0.5).gather(), (x + 0.5 * b) / 1.5)


def test_factors_whose_product_with_the_step_size_has_no_value(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    xd = from_global(vector("f8", 7, op.domain.size), op.domain, comm=comm)
    f = L2(op, yd)
    for wrong in (
        lambda: f.precomposition(1e200),
        lambda: f.precomposition(1e-200),
        lambda: f.precomposition(10**400),
        lambda: f.precomposition(1.0, 10**400),
        lambda: f.precomposition(1e150).prox(xd, 1e100),
        lambda: (1e-200 * f).prox(xd, 1e-200),
        lambda: 10**400 * f,
        lambda: L2(sigma=10**400),
        lambda: f.prox(xd, 10**400),
    ):
        with pytest.raises(InputError):
            wrong()
    assert_close(L2(op, yd, sigma=1e-200).prox(xd, 1e-200).gather(), xd.gather())


@pytest.mark.parametrize("exponent", [-40, -27, 27, 40])
def test_inner_solutions_do_not_depend_on_the_size_of_the_data(comm, exponent):
    """Squares of numbers of single precision between 1e-12 and 1e+12 neither overflow nor vanish."""
    op, _, _, yd = problem("vstack", comm, "f4")
    xd, scale = from_global(vector("f4", 7, op.domain.size), op.domain, comm=comm), 2.0**exponent

    def solutions(scale):
        y, x = scale * yd, scale * xd
        misfit = L2(op, y, niter=12).prox(x, 0.7)
        return misfit, admm_l2(L1(0.3 * scale), op, y, Identity(op.domain, comm=comm), x, 0.8, inner=12, niter=4).x

    for scaled, expected in zip(solutions(scale), solutions(1.0), strict=True):
        assert scaled.dtype == np.float32
        np.testing.assert_array_equal((scaled / scale).gather(), expected.gather())


def test_searches_start_where_they_should(comm):
    op, serial, _, yd = problem("vstack", comm, "f8")
    x = vector("f8", 7, op.domain.size)
    xd = from_global(x, op.domain, comm=comm)
    normal = np.eye(6) + 0.5 * serial.A.T @ serial.A
    exact = np.linalg.solve(normal, x + 0.5 * serial.A.T @ yd.gather())

    def errors(**options):
        f = L2(op, yd, **options)
        return [np.linalg.norm(f.prox(xd, 0.5).gather() - exact) for _ in range(3)]

    cold, warm = errors(niter=2, warm=False), errors(niter=2)
    assert cold[0] == cold[1] == warm[0] > 2 * warm[2]
    solved = from_global(exact, op.domain, comm=comm)
    assert errors(niter=0, x0=solved) == [0, 0, 0]
    assert_close(errors(niter=lambda count: 30 * count, warm=False)[1:], [0, 0])
    assert L2(op, yd).capturable and not L2(op, yd, niter=lambda count: 1).capturable


@pytest.mark.parametrize("dtype", DTYPES)
def test_short_vectors(comm, dtype):
    x = vector(dtype, 8, 3 * SIZE)
    parts = [split(part, comm) for part in x.reshape(3, -1)]
    stacked = StackedArray(parts)
    axis = from_global(x.reshape(3, SIZE), Layout.split((3, SIZE), comm.size, axis=1), comm=comm)
    size, tau = lengths(x, 3), 0.9
    point = (x.reshape(3, -1) * np.maximum(1 - 0.7 * tau / size, 0)).ravel()
    for given in (stacked, axis):
        f = L21(3, 0.7)

        def whole(array):
            return np.ravel(np.concatenate([np.ravel(part) for part in array.gather()]))

        assert_close(whole(f.prox(given, tau)), point, dtype)
        assert_close(whole(f.proxdual(given, tau)), (x.reshape(3, -1) * np.minimum(0.7 / size, 1)).ravel(), dtype)
        assert_close(float(f(given)), 0.7 * size.sum(), dtype, factor=10)
        same = given.copy()
        assert_close(whole(f.prox(same, tau, out=same)), point, dtype)
        assert_close(whole(f.prox(0 * given, tau)), 0 * x, dtype)
        with pytest.raises(LayoutError):
            L21(2).prox(given, tau)
    with pytest.raises(LayoutError, match="split"):
        L21(3).prox(
            from_global(x.reshape(3, SIZE), Layout.split((3, SIZE), comm.size), comm=comm), tau
        ) if comm.size > 1 else L21(3).prox(parts[0], tau)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nuclear_norm(comm, dtype):
    matrix = random_matrix(4, 3, dtype, 9)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    for layout in (Layout.replicated((12,), comm.size), Layout.replicated((4, 3), comm.size)):
        x = from_global(matrix.reshape(layout.shape), layout, comm=comm)
        point = Nuclear((4, 3), 0.7).prox(x, 0.5).gather().reshape(4, 3)
        assert_close(point, (left * np.maximum(values - 0.35, 0)) @ right, dtype)
        assert_close(float(Nuclear((4, 3), 0.7)(x)), 0.7 * values.sum(), dtype)
        weighted = Nuclear((4, 3), [0.1, 0.2, 0.3])
        assert_close(float(weighted(x)), values @ [0.1, 0.2, 0.3], dtype)
        assert_close(
            weighted.prox(x, 1).gather().reshape(4, 3), (left * np.maximum(values - [0.1, 0.2, 0.3], 0)) @ right, dtype
        )
        with pytest.raises(LayoutError):
            Nuclear((3, 3)).prox(x, 1)


class DualOfRealArrays:
    """The L1 norm with a ``proxdual`` that clips real parts, as PyProximal 0.13 does."""

    def __call__(self, x):
        return np.abs(x).sum()

    def prox(self, x, tau):
        return soft(x, tau)

    def proxdual(self, x, tau):
        return np.clip(x.real, -1, 1).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_a_dual_for_real_arrays_is_not_asked_for_complex_ones(comm, dtype):
    x = vector(dtype)
    found = lift_proximal(DualOfRealArrays()).proxdual(split(x, comm), 0.7).gather()
    assert_close(found, x / np.maximum(1, np.abs(x)))


def test_stacked_and_nested_arrays(comm):
    x = vector("f8")
    nested = StackedArray([split(x, comm), StackedArray([split(2 * x, comm)])])
    for f in (L1(0.5), L0(0.5), Box(-1, 1), L2(), Euclidean(), lift_proximal(Halves())):
        one = f.prox(split(np.concatenate([x, 2 * x]), comm), 0.7).gather()
        first, (second,) = f.prox(nested, 0.7).gather()
        assert_close(np.concatenate([first, second]), one)
        assert_close(float(f(nested)), float(f(split(np.concatenate([x, 2 * x]), comm))))


def test_messages(comm):
    one = 1 if comm.size > 1 else 0
    x = from_global(vector("f8", 1, 5 * comm.size), comm=comm)
    for f, points, values in (
        (L1(), 0, one),
        (L0(), 0, one),
        (Box(0, 1), 0, one),
        (L2(b=x), 0, one),
        (Euclidean(), one, one),
        (lift_proximal(Halves()), 0, one),
        (L1() + x, 0, 2 * one),
    ):
        for apply in (f.prox, f.proxdual):
            with profile.count_messages() as sent:
                apply(x, 0.5)
            assert sent.total == points and all(message.elements == 1 for message in sent.records)
        with profile.count_messages() as sent:
            f(x)
        assert sent.total == values and all(message.elements == 1 for message in sent.records)
    with profile.count_messages() as sent:
        L21(2).prox(StackedArray([x, x]), 0.5)
    assert sent.total == 0


def test_values_of_copies_are_counted_once(comm):
    """Every rank has all elements, which one of them contributes to the sum."""
    x = vector("f8", 3, 2 * SIZE).reshape(2, SIZE)
    xd = from_global(x, Layout.replicated(x.shape, comm.size), comm=comm)
    for f, value in (
        (L1(0.7), 0.7 * np.abs(x).sum()),
        (L0(0.7), 0.7 * x.size),
        (L21(2, 0.7), 0.7 * np.linalg.norm(x, axis=0).sum()),
        (Euclidean(0.7), 0.7 * np.linalg.norm(x)),
        (Box(-10, 10), 0),
        (lift_proximal(Halves()), 0.5 * np.linalg.norm(x) ** 2),
    ):
        assert_close(float(f(xd)), value)
    both = StackedArray([xd, split(x[0], comm)])
    expected = 0.5 * np.linalg.norm(x) ** 2 + 0.5 * np.linalg.norm(x[0]) ** 2
    assert_close(float(lift_proximal(Halves())(both)), expected)


def test_what_is_captured_follows_from_the_parts(comm):
    x = split(vector("f8"), comm)
    for f, captured in ((L1(), True), (Nuclear((3, 4)), False), (lift_proximal(Halves()), False)):
        assert f.capturable is captured
        for made in (2 * f, f.precomposition(2.0), f + x, f.conjugate(), f.chain(L1()), L1().chain(f)):
            assert made.capturable is captured


def test_lifting(comm):
    f = lift_proximal(Halves())
    assert lift_proximal(f) is f
    assert f.has_gradient and not f.capturable and "Halves" in repr(f)
    x = split(vector("f8"), comm)
    assert_close(f.grad(x).gather(), vector("f8"))
    with pytest.raises(UnsupportedTypeError, match="prox"):
        lift_proximal(np.sin)
    with pytest.raises(UnsupportedTypeError, match="gradient"):
        lift_proximal(Positive()).grad(x)
    image = from_global(vector("f8").reshape(4, 3), Layout.split((4, 3), comm.size), comm=comm)
    assert_close(f.prox(image, 1.0).gather().ravel(), vector("f8") / 2)


@pytest.mark.serial
def test_lifted_operators_of_pyproximal(comm):
    pyproximal = pytest.importorskip("pyproximal", reason="PyProximal is not installed")
    x = vector("f8")
    xd = from_global(x, comm=comm)
    for theirs in (pyproximal.L1(0.7), pyproximal.Box(-1, 1), pyproximal.L0(0.7), pyproximal.Huber(0.3)):
        mine = lift_proximal(theirs)
        assert_close(mine.prox(xd, 0.4).gather(), theirs.prox(x, 0.4))
        assert_close(mine.proxdual(xd, 0.4).gather(), theirs.proxdual(x, 0.4))
    for theirs, mine in (
        (pyproximal.L1(0.7), L1(0.7)),
        (pyproximal.L0(0.7), L0(0.7)),
        (pyproximal.Box(-1, 1), Box(-1, 1)),
        (pyproximal.L2(b=x, q=x, alpha=0.3, sigma=0.7), L2(b=xd, q=xd, alpha=0.3, sigma=0.7)),
        (pyproximal.Euclidean(0.7), Euclidean(0.7)),
        (pyproximal.L1(0.7).precomposition(2.0, 0.3), L1(0.7).precomposition(2.0, 0.3)),
        (pyproximal.L1(0.7).affine_addition(x), L1(0.7).affine_addition(xd)),
    ):
        assert_close(mine.prox(xd, 0.4).gather(), theirs.prox(x, 0.4))
        assert_close(mine.proxdual(xd, 0.4).gather(), theirs.proxdual(x, 0.4))


def test_a_box_of_one_point(comm):
    point = Box(1, 1).prox(split(vector("f8"), comm), 0.5)
    np.testing.assert_array_equal(point.local_array, 1)


def test_arguments_are_checked(comm):
    x = split(vector("c16"), comm)
    for wrong in (
        lambda: L1(-1),
        lambda: L0("much"),
        lambda: Box(1, 0),
        lambda: Box(float("nan"), 0),
        lambda: L21(0),
        lambda: Nuclear((3,)),
        lambda: Nuclear((3, 4), [1, 2]),
        lambda: L2(niter=-1),
        lambda: 0.0 * L1(),
        lambda: L1().precomposition(0),
        lambda: L1().prox(x, 0),
        lambda: L1().prox(x, float("nan")),
        lambda: L1().prox(x, "1"),
    ):
        with pytest.raises(InputError):
            wrong()
    for wrong in (
        lambda: Box(0, 1).prox(x, 1),
        lambda: L1().prox(np.ones(3), 1),
        lambda: L1().grad(x),
        lambda: L1().affine_addition(np.ones(3)),
        lambda: L1().chain(Halves()),
        lambda: L2(np.eye(3)),
    ):
        with pytest.raises(UnsupportedTypeError):
            wrong()
    op = BlockDiag([np.eye(2)], comm)
    with pytest.raises(LayoutError):
        L2(op, x)
    with pytest.raises(LayoutError):
        L1(0.5, DistributedArray(op.domain, comm, np.zeros(2))).prox(x, 1)
