"""Sparse and proximal solvers on device arrays: against the host, launched and as a replayed CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import Layout, StackedArray, from_global
from collops.operators import VStack
from collops.solvers import fista, ista, power_iteration
from collops.solvers.proximal import (
    L0,
    L1,
    L2,
    L21,
    Box,
    Euclidean,
    Nuclear,
    admm,
    admm_l2,
    linearized_admm,
    primal_dual,
    proximal_gradient,
)
from collops.solvers.shrinkage import Percentile
from tests.solvers.problems import ROWS, assert_close, joined, random_matrix

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

DTYPES = ["f4", "f8", "c8", "c16"]
REPLAYED = "replayed CUDA graph"


def both(comm, dtype):
    """Return one operator with its data and a start on the host, and the same on the device."""
    every = [[random_matrix(n + 3, 6, dtype, n) for n in rows] for rows in ROWS[: comm.size]]
    mine = every[comm.rank]
    host, device = VStack(mine, comm), VStack([cupy.asarray(block) for block in mine], comm)
    y = random_matrix(host.range.size, 1, dtype, 99)[:, 0]
    x = random_matrix(6, 1, dtype, 98)[:, 0]
    norm = float(np.linalg.norm(np.vstack(joined(every)), 2))
    return (
        norm,
        (host, from_global(y, host.range, comm=comm), from_global(x, host.domain, comm=comm)),
        (
            device,
            from_global(cupy.asarray(y), device.range, comm=comm),
            from_global(cupy.asarray(x), device.domain, comm=comm),
        ),
    )


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize(
    "threshkind", ["soft", "hard", "half", "soft-percentile", "hard-percentile", "half-percentile"]
)
@pytest.mark.parametrize("solver", [ista, fista])
@pytest.mark.parametrize("dtype", DTYPES)
def test_thresholding_agrees_with_the_host(comm, dtype, solver, threshkind, graph):
    norm, host, device = both(comm, dtype)
    options = {"niter": 6, "alpha": 1 / norm**2, "eps": 3.0, "threshkind": threshkind, "tol": 0}
    if threshkind.endswith("percentile"):
        options["perc"] = 40
    else:
        options["decay"] = np.linspace(1, 0.2, 6)
    expected = solver(*host, **options)
    result = solver(*device, graph=graph, **options)
    assert result.execution == (REPLAYED if graph else "eager")
    assert result.x.engine.name == "cupy" and result.iterations == 6
    assert_close(result.x.gather().get(), expected.x.gather(), dtype, factor=10)
    assert_close(result.residual_norms, expected.residual_norms, dtype, factor=10)
    assert_close(result.details["cost"], expected.details["cost"], dtype, factor=10)


@pytest.mark.parametrize("solver", [ista, fista])
def test_tolerances_and_estimated_steps(comm, solver):
    _, host, device = both(comm, "f8")
    for options in ({"rtol": 0.5}, {"rtol1": 1.0}, {"tol": 1e-6}):
        expected, result = (solver(*args, niter=60, eps=3.0, **options) for args in (host, device))
        assert result.status is expected.status
        assert_close(result.details["alpha"], expected.details["alpha"], factor=1e6)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_power_iteration(comm, dtype, graph):
    _, (host, _, x), (device, _, xd) = both(comm, dtype)
    expected = power_iteration(host.H @ host, x, niter=8, tol=0)
    result = power_iteration(device.H @ device, xd, niter=8, tol=0, graph=graph)
    assert result.execution == (REPLAYED if graph else "eager")
    assert_close(result.details["eigenvalue"], expected.details["eigenvalue"], dtype, factor=10)
    assert_close(result.x.gather().get(), expected.x.gather(), dtype, factor=10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 13, 5000, 3_000_001])
def test_percentiles(comm, size, dtype):
    values = random_matrix(size, 1, dtype, 1)[:, 0]
    x = from_global(cupy.asarray(values), comm=comm)
    for percent in (0, 37.5, 99, 100):
        assert_close(Percentile(x, percent)(x).get(), np.percentile(np.abs(values), percent), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_proximal_operators(comm, dtype):
    values = 2 * random_matrix(1003, 1, dtype, 1)[:, 0]
    other = random_matrix(1003, 1, dtype, 2)[:, 0]
    engines = [
        [from_global(move(array), comm=comm) for array in (values, other)] for move in (np.asarray, cupy.asarray)
    ]

    def functions(g):
        weights = abs(g)
        cases = [
            L1(0.7),
            L1(0.7, g),
            L1(weights),
            L0(0.7),
            L2(b=g, q=g),
            Euclidean(0.7),
            L1(0.7).precomposition(2.0, g),
        ]
        return cases if np.dtype(dtype).kind == "c" else [*cases, Box(-0.5, 1.0), Box(-weights, weights)]

    for host, device in zip(*(functions(g) for _, g in engines), strict=True):
        (x, _), (xd, _) = engines
        for name in ("prox", "proxdual"):
            expected, result = (getattr(f, name)(array, 0.6) for f, array in ((host, x), (device, xd)))
            assert_close(result.gather().get(), expected.gather(), dtype)
            same = xd.copy()
            assert_close(getattr(device, name)(same, 0.6, out=same).gather().get(), expected.gather(), dtype)
        expected, result = float(host(x)), float(device(xd))
        assert expected == result or abs(expected - result) < 1e-4 * abs(expected)


@pytest.mark.parametrize("components", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("dtype", DTYPES)
def test_short_vectors(comm, dtype, components):
    values = random_matrix(components, 501, dtype, 1)
    layout = Layout.split(values.shape, comm.size, axis=1)
    x, xd = (from_global(move(values), layout, comm=comm) for move in (np.asarray, cupy.asarray))
    f = L21(components, 0.7)
    for name in ("prox", "proxdual"):
        expected = getattr(f, name)(x, 0.9).gather()
        assert_close(getattr(f, name)(xd, 0.9).gather().get(), expected, dtype)
        parts = [from_global(cupy.asarray(part), comm=comm) for part in values]
        stacked = getattr(f, name)(StackedArray(parts), 0.9).gather()
        assert_close(np.array([part.get() for part in stacked]), expected, dtype)
    assert_close(float(f(xd)), float(f(x)), dtype, factor=10)


def test_nuclear_norm(comm):
    matrix = random_matrix(4, 3, "f8", 9)
    layout = Layout.replicated((4, 3), comm.size)
    x, xd = (from_global(move(matrix), layout, comm=comm) for move in (np.asarray, cupy.asarray))
    assert_close(Nuclear((4, 3)).prox(xd, 0.5).gather().get(), Nuclear((4, 3)).prox(x, 0.5).gather())


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["gradient", "fista", "admm", "linearized", "admm_l2", "primal_dual"])
def test_proximal_methods(comm, method, dtype, graph):
    norm, host, device = both(comm, dtype)

    def solve(op, y, x, **options):
        f, near, g = L2(op, y, niter=8), L2(b=x), L1(0.7)
        options = {"niter": 6, "objective": True, **options}
        if method in ("gradient", "fista"):
            acceleration = "fista" if method == "fista" else None
            return proximal_gradient(f, g, x, tau=0.9 / norm**2, acceleration=acceleration, eta=0.8, **options)
        if method == "admm":
            return admm(f, g, x, 0.8, **options)
        if method == "linearized":
            return linearized_admm(near, g, op, x, 0.8, 0.7 / norm**2, **options)
        if method == "admm_l2":
            return admm_l2(g, op, y, op, x, 0.8, inner=5, **options)
        return primal_dual(near, g, op, x, 0.9 / norm, 1 / norm, **options)

    expected, result = solve(*host), solve(*device, graph=graph)
    assert result.execution == (REPLAYED if graph else "eager")
    assert_close(result.x.gather().get(), expected.x.gather(), dtype, factor=100)
    assert_close(result.residual_norms[1:], expected.residual_norms[1:], dtype, factor=100)
    assert_close(result.details["objective"], expected.details["objective"], dtype, factor=100)


def test_what_cannot_be_captured_says_so(comm):
    _, host, device = both(comm, "f8")
    results = [proximal_gradient(L2(op, y), L1(0.7), x, niter=6) for op, y, x in (host, device)]
    assert results[1].execution == "eager: Backtracking cannot be captured"
    assert_close(results[1].x.gather().get(), results[0].x.gather(), factor=100)
    op, _, x = device
    varied = primal_dual(L2(b=x), L1(), op, x, [0.01] * 6, [0.01] * 6, niter=6)
    assert varied.execution == "eager: StepSizes cannot be captured"


def test_arrays_in_another_order(comm):
    matrix = cupy.asarray(random_matrix(8, 6, "f8", comm.rank))
    op = VStack([matrix], comm, dims=(2, 3))
    y = from_global(cupy.asarray(random_matrix(8 * comm.size, 1, "f8", 3)[:, 0]), op.range, comm=comm)
    x0 = from_global(cupy.asarray(random_matrix(2, 3, "f8", 4)), op.domain, comm=comm)
    expected = fista(op, y, x0, niter=5, alpha=1e-3, tol=0)
    x0.local_array = cupy.asfortranarray(x0.local_array)
    assert_close(fista(op, y, x0, niter=5, alpha=1e-3, tol=0).x.gather().get(), expected.x.gather().get())
