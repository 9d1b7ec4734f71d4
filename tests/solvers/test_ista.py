"""ISTA, and what it shares with FISTA, against serial PyLops and optimality conditions."""

from __future__ import annotations

import numpy as np
import pylops
import pytest
from pylops.optimization import sparsity

from collops import profile
from collops.array import Layout, StackedArray, from_global
from collops.errors import InputError, LayoutError, NotFiniteError, UnsupportedTypeError
from collops.operators import (
    FFT,
    BlockDiag,
    Diagonal,
    Identity,
    LinearOperator,
    StackedBlockDiag,
    StackedVStack,
    VStack,
)
from collops.solvers import Status, fista, ista
from collops.solvers.shrinkage import Percentile, find_threshold, shrink

from .problems import VARIETY, assert_close, problem, random_matrix, start
from .test_cgls import messages_of_one_iteration

SOLVERS = [pytest.param(ista, sparsity.ista, id="ista"), pytest.param(fista, sparsity.fista, id="fista")]
THRESHOLDS = [
    ("soft", None),
    ("hard", None),
    ("half", None),
    ("half-percentile", 30),
    ("soft-percentile", 40),
    ("hard-percentile", 30.5),
]


def step_size(serial) -> float:
    return float(1 / np.linalg.norm(serial.A, 2) ** 2)


def penalty(serial, y, threshkind: str = "soft") -> float:
    """The weight for which a first step from zero drops what is below 0.6 of its largest value."""
    alpha = step_size(serial)
    cut = 0.6 * alpha * np.abs(serial.A.conj().T @ y).max()
    thresholds = {"soft": cut, "hard": cut**2 / 2, "half": (cut * 4 / 54 ** (1 / 3)) ** 1.5}
    return float(2 * thresholds[threshkind[:4]] / alpha)


@pytest.mark.parametrize(
    ("threshkind", "perc", "kind", "dtype"),
    [(*threshold, *pair) for number, threshold in enumerate(THRESHOLDS) for pair in VARIETY[number % 2 :: 2]],
)
@pytest.mark.parametrize(("mine", "theirs"), SOLVERS)
def test_iterates_are_those_of_pylops(comm, mine, theirs, kind, threshkind, perc, dtype):
    op, serial, y, yd = problem(kind, comm, dtype)
    options = {"alpha": step_size(serial), "threshkind": threshkind, "perc": perc, "tol": 0}
    options["eps"] = penalty(serial, y, threshkind)
    for niter in (1, 4):
        result = mine(op, yd, niter=niter, **options)
        x, iterations, cost = theirs(serial, y, niter=niter, **options)
        assert result.iterations == iterations == niter
        assert result.x.dtype == np.dtype(dtype) and result.x.layout is op.domain
        assert_close(result.x.gather(), x, dtype)
        assert_close(result.details["cost"], cost, dtype)
    assert_close(result.residual_norms[-1], np.linalg.norm(y - serial.A @ x), dtype)
    assert 0 < np.count_nonzero(x) < x.size


@pytest.mark.parametrize(("threshkind", "power", "weight"), [("soft", 1, 1.0), ("half", 0.5, 0.5), ("hard", 0, 1.0)])
def test_minimises_the_documented_sum(comm, threshkind, power, weight):
    """Each element of the solution against the least of many values, which the docstring's formula ranks."""
    sizes, phase, t = np.array([0.3, 0.9, 1.3, 5.0]), np.exp(0.7j), np.linspace(0, 6, 60001)
    identity = Identity(4, comm=comm, dtype="complex128")
    y = from_global(sizes * phase, identity.range, comm=comm)
    found = ista(identity, y, eps=1.1, alpha=1, threshkind=threshkind)
    penalties = 1.1 * weight * (t > 0 if power == 0 else t**power)
    least = [t[np.argmin((size - t) ** 2 + penalties)] for size in sizes]
    np.testing.assert_allclose(found.x.gather(), np.array(least) * phase, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("threshkind", "perc"), [("soft", None), ("hard", None), ("soft-percentile", 40)])
@pytest.mark.parametrize(("mine", "theirs"), SOLVERS)
def test_long_vectors(comm, mine, theirs, threshkind, perc):
    """So long that the vector kernels cut the part of a rank into pieces, the last of which is shorter."""
    size = 70_001 * comm.size
    divisors, y = 1 + np.abs(random_matrix(size, 2, "f8", 1)).T
    op = Diagonal(1 / divisors, comm=comm)
    options = {"niter": 3, "alpha": 1.0, "eps": 2.0, "tol": 0, "threshkind": threshkind, "perc": perc}
    result = mine(op, from_global(y, op.range, comm=comm), **options)
    x, _, cost = theirs(pylops.Diagonal(1 / divisors), y, **options)
    assert_close(result.x.gather(), x)
    assert_close(result.details["cost"], cost)
    assert 0 < np.count_nonzero(x[-1000:]) < 1000


@pytest.mark.parametrize(("mine", "theirs"), SOLVERS)
def test_starting_model_and_decay(comm, mine, theirs):
    op, serial, y, yd = problem("hstack", comm, "f8")
    x0, x0d = start(op, comm, "f8")
    options = {"niter": 5, "eps": 9.0, "alpha": step_size(serial), "tol": 0, "decay": np.linspace(1, 0.1, 5)}
    result = mine(op, yd, x0d, **options)
    x, _, cost = theirs(serial, y, x0=x0, **options)
    assert_close(result.x.gather(), x)
    assert_close(result.details["cost"], cost)
    assert_close(x0d.gather(), x0)
    assert np.abs(mine(op, yd, x0d, **{**options, "decay": None}).x.gather() - x).max() > 1e-3


class OnEveryCopy(LinearOperator):
    """Every rank applies the same matrix to its copy of the model."""

    def __init__(self, layout, comm, matrix) -> None:
        super().__init__(layout, layout, matrix.dtype, comm)
        self.matrix = matrix

    def _forward(self, x, out):
        out.local_array[...] = self.matrix @ x.local_array
        return out

    def _adjoint(self, y, out):
        out.local_array[...] = self.matrix.T @ y.local_array
        return out


@pytest.mark.parametrize("percentile", [None, "soft-percentile"])
@pytest.mark.parametrize(("mine", "theirs"), SOLVERS)
def test_analysis(comm, mine, theirs, percentile):
    op, serial, y, yd = problem("vstack", comm, "f8")
    basis = np.linalg.qr(random_matrix(6, 6, "f8", 7))[0]
    options = {"niter": 5, "eps": penalty(serial, y), "alpha": step_size(serial), "tol": 0}
    if percentile:
        options.update(threshkind=percentile, perc=50)
    result = mine(op, yd, SOp=OnEveryCopy(op.domain, comm, basis), **options)
    x, _, cost = theirs(serial, y, SOp=pylops.MatrixMult(basis), **options)
    assert_close(result.x.gather(), x)
    assert_close(result.details["cost"], cost)


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize(("mine", "theirs"), SOLVERS)
def test_complex_coefficients_of_real_models(comm, mine, theirs, real):
    op, serial, y, yd = problem("vstack", comm, "f8")
    options = {"niter": 5, "eps": penalty(serial, y), "alpha": step_size(serial), "tol": 0}
    result = mine(op, yd, SOp=FFT(op.domain, real=real, comm=comm).H, **options)
    x, _, cost = theirs(serial, y, SOp=pylops.signalprocessing.FFT(6, real=real).H, **options)
    assert result.x.dtype.kind == ("f" if real else "c")
    assert_close(result.x.gather(), x)
    assert_close(result.details["cost"], cost)


@pytest.mark.parametrize(("mine", "theirs"), SOLVERS)
def test_stops_where_pylops_stops(comm, mine, theirs):
    op, serial, y, yd = problem("vstack", comm, "f8")
    # So few iterations that no update is zero yet, which is up to rounding.
    options = {"niter": 30, "eps": 5.0, "alpha": step_size(serial)}
    stops = [{"tol": 1e-1}, {"tol": 1e-4}, {"rtol": 0.9, "tol": 0}, {"rtol": 0.7, "tol": 0}, {"rtol1": 20.0}]
    # How far the cost can fall depends on the number of ranks.
    cost = theirs(serial, y, **options | {"eps": 0.1, "tol": 0})[2]
    stops.append({"rtol": (cost[1] + cost[2]) / 2 / cost[0], "eps": 0.1, "tol": 0})
    counts = []
    for stop in stops:
        result = mine(op, yd, **options | stop)
        x, iterations, cost = theirs(serial, y, **options | stop)
        assert result.iterations == iterations
        assert_close(result.x.gather(), x)
        assert_close(result.details["cost"], cost)
        assert result.status is (Status.ITERATION_LIMIT if iterations == 30 else Status.CONVERGED)
        counts.append(iterations)
    assert len(set(counts)) > 2 and counts[-1] == 3


@pytest.mark.parametrize(("mine", "theirs"), SOLVERS)
def test_a_residual_that_increases(comm, mine, theirs):
    op, serial, y, yd = problem("vstack", comm, "f8")
    alpha = 3 * step_size(serial)
    with pytest.raises(ValueError, match="residual increasing"):
        theirs(serial, y, niter=50, alpha=alpha, monitorres=True)
    result = mine(op, yd, niter=50, alpha=alpha, monitorres=True)
    assert result.status is Status.RESIDUAL_INCREASED and not result.status.successful
    assert result.residual_norms[-1] > result.residual_norms[-2]
    assert np.all(np.diff(result.residual_norms[:-1]) <= 0)
    fine = mine(op, yd, niter=50, alpha=step_size(serial), monitorres=True, tol=1e-3)
    assert fine.status is not Status.RESIDUAL_INCREASED or mine is fista


@pytest.mark.parametrize("solver", [ista, fista])
def test_a_residual_that_stays_does_not_increase(comm, solver):
    op = Identity(5, comm=comm)
    y = from_global(np.arange(5.0), op.range, comm=comm)
    result = solver(op, y, eps=0.0, alpha=1.0, monitorres=True)
    assert (result.status, result.iterations) == (Status.CONVERGED, 2)  # the second iteration changes nothing


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("solver", [ista, fista])
def test_solves_the_lasso(comm, solver, dtype):
    """The gradient is eps / 2 times the sign where x is not 0, and not larger elsewhere; with an estimated step."""
    op, serial, y, yd = problem("vstack", comm, dtype)
    eps = 0.7 * float(np.abs(serial.A.conj().T @ y).max())
    result = solver(op, yd, niter=4000, eps=eps, tol=1e-13)
    assert result.status is Status.CONVERGED
    assert_close(result.details["alpha"], step_size(serial), factor=1e9)
    x = result.x.gather()
    gradient = serial.A.conj().T @ (y - serial.A @ x)
    kept = x != 0
    assert 0 < kept.sum() < 6
    assert_close(gradient[kept], 0.5 * eps * x[kept] / np.abs(x[kept]), factor=1000)
    assert np.abs(gradient[~kept]).max() <= 0.5 * eps


@pytest.mark.parametrize("solver", [ista, fista])
def test_stacked_models_and_data(comm, solver):
    op, serial, y, yd = problem("block_diag", comm, "f8")
    both = StackedBlockDiag([op, 2 * op])
    options = {"niter": 4, "eps": 4.0, "alpha": step_size(serial) / 4, "tol": 0}
    result = solver(both, StackedArray([yd, yd]), **options)
    whole = pylops.MatrixMult(np.kron(np.diag([1.0, 2.0]), serial.A))
    theirs = sparsity.ista if solver is ista else sparsity.fista
    x, _, cost = theirs(whole, np.tile(y, 2), **options)
    assert_close(np.concatenate(result.x.gather()), x)
    assert_close(result.details["cost"], cost)
    above = StackedVStack([op, 2 * op])
    result = solver(above, StackedArray([yd, yd]), niter=4, threshkind="hard-percentile", perc=40, alpha=1e-3, tol=0)
    whole = pylops.MatrixMult(np.vstack([serial.A, 2 * serial.A]))
    x, *_ = theirs(whole, np.tile(y, 2), niter=4, threshkind="hard-percentile", perc=40, alpha=1e-3, tol=0)
    assert_close(result.x.gather(), x)


def test_images(comm):
    matrix = random_matrix(8, 6, "f8", comm.rank)
    flat, image = VStack([matrix], comm), VStack([matrix], comm, dims=(2, 3))
    y = from_global(random_matrix(8 * comm.size, 1, "f8", 3)[:, 0], flat.range, comm=comm)
    options = {"niter": 3, "alpha": 1e-2, "eps": 3.0, "threshkind": "half"}
    assert_close(fista(image, y, **options).x.gather().ravel(), fista(flat, y, **options).x.gather())


def test_masks_solve_one_problem_per_group(comm):
    mask = [rank % 2 for rank in range(comm.size)]
    op = VStack([random_matrix(8, 5, "f8", comm.rank)], comm, mask=mask)
    y = from_global(random_matrix(8 * comm.size, 1, "f8", 3)[:, 0], op.range, comm=comm)
    members = [rank for rank in range(comm.size) if mask[rank] == mask[comm.rank]]
    whole = pylops.MatrixMult(np.vstack([random_matrix(8, 5, "f8", rank) for rank in members]))
    every = y.gather()
    data = np.concatenate([every[8 * rank : 8 * rank + 8] for rank in members])
    result = ista(op, y, niter=5, alpha=1e-2, eps=2.0, tol=0, threshkind="soft-percentile", perc=50)
    x, *_ = sparsity.ista(whole, data, niter=5, alpha=1e-2, eps=2.0, tol=0, threshkind="soft-percentile", perc=50)
    assert_close(result.x.local_array, x)


@pytest.mark.parametrize("solver", [ista, fista])
def test_messages(comm, solver):
    op, _, _, yd = problem("vstack", comm, "f8")
    sent = messages_of_one_iteration(solver, op, yd, alpha=1e-3, tol=0)
    assert all(message.operation == "allreduce" for message in sent)
    assert sorted(message.elements for message in sent) == ([3, op.domain.size] if comm.size > 1 else [])
    diagonal, _, _, yd = problem("block_diag", comm, "f8")
    sent = messages_of_one_iteration(solver, diagonal, yd, alpha=1e-3, tol=0, decay=np.ones(3), rtol=1e-9)
    assert [message.elements for message in sent] == ([3] if comm.size > 1 else [])
    sent = messages_of_one_iteration(solver, diagonal, yd, alpha=1e-3, tol=0, threshkind="soft-percentile", perc=10)
    expected = [1, 3] + [2048] * 6 if comm.size > 1 else []
    assert sorted(message.elements for message in sent) == expected


@pytest.mark.parametrize(
    ("percent", "dtype"), [(0, "f4"), (12.5, "c16"), (12.5, "f4"), (70, "f8"), (99.9, "c8"), (99.9, "f8"), (100, "c16")]
)
def test_percentiles(comm, percent, dtype):
    values = random_matrix(203, 1, dtype, 1)[:, 0]
    values[::7] = values[3]  # ties
    values[5] = 0
    for layout in (
        Layout.split((203,), comm.size),
        Layout.replicated((203,), comm.size),
        Layout.split((203,), comm.size, sizes=[203] + [0] * (comm.size - 1)),
    ):
        x = from_global(values, layout, comm=comm)
        expected = np.percentile(np.abs(values), percent)
        assert_close(Percentile(x, percent)(x), expected, dtype)
        both = StackedArray([x, x])
        assert_close(Percentile(both, percent)(both), np.percentile(np.abs(np.tile(values, 2)), percent), dtype)
    nothing = from_global(values[:0], comm=comm)
    assert Percentile(nothing, percent)(nothing) == 0


def test_arguments_are_checked(comm):
    op, _, _, yd = problem("vstack", comm, "f8")
    for wrong in (
        {"eps": -1},
        {"alpha": float("nan")},
        {"threshkind": "weak"},
        {"threshkind": "soft-percentile"},
        {"perc": 50},
        {"threshkind": "soft-percentile", "perc": 101},
        {"niter": 3, "decay": [1, 1]},
        {"decay": [-1] * 10},
        {"decay": np.full(10, 0.5 + 1j)},
        {"niter": -1},
        {"tol": "small"},
    ):
        with pytest.raises(InputError):
            ista(op, yd, **{"alpha": 1e-3, **wrong})
    with pytest.raises(UnsupportedTypeError):
        ista(op, yd, SOp=np.eye(6))
    with pytest.raises(LayoutError, match="SOp"):
        ista(op, yd, SOp=BlockDiag([np.eye(3)], comm))
    with pytest.raises(InputError, match="alpha"):
        ista(0 * op, yd)
    with pytest.raises(LayoutError):
        fista(op.H, yd)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_that_are_not_finite_stop_it(comm):
    op, _, _, yd = problem("block_diag", comm, "f8")
    if comm.rank == 0:
        yd.local_array[1] = np.nan
    with pytest.raises(NotFiniteError, match="residual became infinite or not a number in iteration 0"):
        ista(op, yd, niter=10, alpha=1e-3)


def test_copies_stay_equal(comm):
    op, _, _, yd = problem("vstack", comm, "f4")
    with profile.count_messages() as sent:
        fista(op, yd, niter=20, alpha=1e-3, eps=2.0).x.check_replicated()
    assert sent.total > 0 or comm.size == 1


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", ["hard-percentile", "half-percentile"])
def test_the_value_at_the_cut_is_dropped_and_the_next_one_kept(comm, kind, dtype):
    """Whatever a square and its root, or a power and its, are rounded to."""
    rule = find_threshold(kind, 50).rule
    for number in np.random.default_rng(5).uniform(0.1, 2, 200).astype(dtype):
        x = from_global(np.array([number, np.nextafter(number, number.dtype.type(3))]), comm=comm)
        at, above = shrink(rule, number, x).gather()
        assert at == 0 and above != 0
