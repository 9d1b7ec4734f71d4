"""PyLops-MPI's proximal operators and methods, with local operators such as PyProximal's."""

from __future__ import annotations

import numpy as np
import pylops
import pytest

import collops.compat.pylops_mpi as pylops_mpi
from collops.compat.pylops_mpi.proximal import MPIL2, MPIL21, MPIProxOperator
from collops.compat.pylops_mpi.proximal.optimization import ADMML2, PrimalDual, ProximalGradient
from tests.operators.problems import assert_close, vector

Distributed = pylops_mpi.DistributedArray


class L1:
    """A local proximal operator such as PyProximal's."""

    hasgrad = False

    def __call__(self, x):
        return np.abs(x).sum()

    def prox(self, x, tau):
        return np.sign(x) * np.maximum(np.abs(x) - tau, 0)

    def proxdual(self, x, tau):
        return x - tau * self.prox(x / tau, 1 / tau)


class Box(L1):
    """An indicator function, which returns a truth value."""

    def __call__(self, x):
        return bool(np.all((x >= -1) & (x <= 1)))

    def prox(self, x, tau):
        return np.clip(x, -1, 1)


def test_local_operators(comm) -> None:
    # With one element, all ranks but one are empty.
    for count in (2 * comm.size + 1, 1):
        values = np.linspace(-2, 3, count)
        x = Distributed.to_dist(values)
        f, local = MPIProxOperator(L1()), L1()
        assert f(x) == pytest.approx(local(values)) and isinstance(f(x), float)
        assert_close(f.prox(x, 0.5).asarray(), local.prox(values, 0.5))
        assert_close(f.proxdual(x, 0.5).asarray(), local.proxdual(values, 0.5))
        assert_close((2 * f).prox(x, 0.5).asarray(), local.prox(values, 1.0))
        moved = f.precomposition(2.0, x)
        assert_close(moved.prox(x, 0.1).asarray(), (local.prox(3 * values, 0.4) - values) / 2)
        box = MPIProxOperator(Box())
        assert box(x) is False and box(0.1 * x) is True
        with pytest.raises(ValueError):
            f.prox(x, 0.0)


def test_squared_norm(comm) -> None:
    values, data = vector(5, "float64", 1), vector(5, "float64", 2)
    x, b = Distributed.to_dist(values), Distributed.to_dist(data)
    f = MPIL2(b=b, sigma=3.0)
    assert f(x) == pytest.approx(1.5 * ((values - data) ** 2).sum())
    assert_close(f.grad(x).asarray(), 3 * (values - data))
    assert_close(f.prox(x, 0.5).asarray(), (values + 1.5 * data) / 2.5)
    n = b.local_shape[0]
    weights = np.linspace(1, 2, 5)
    op = pylops_mpi.MPIBlockDiag([pylops.Diagonal(weights[b.native.layout.slices(comm.rank)[0]])])
    for solver in ("cg", "cgls"):
        f = MPIL2(op, b, sigma=3.0, x0=x.zeros_like(), niter=8, solver=solver)
        expected = (values + 1.5 * weights * data) / (1 + 1.5 * weights**2)
        assert_close(f.prox(x, 0.5).asarray(), expected)
        assert_close(f.grad(x).asarray(), 3 * weights * (weights * values - data))
    assert n <= 5
    with pytest.raises(ValueError):
        MPIL2(op, b)


def test_lengths() -> None:
    values = vector(10, "float64", 1).reshape(2, 5)
    x = pylops_mpi.StackedDistributedArray([Distributed.to_dist(row) for row in values])
    f = MPIL21(ndim=2, sigma=2.0)
    lengths = np.linalg.norm(values, axis=0)
    assert f(x) == pytest.approx(2 * lengths.sum())
    assert_close(f.sum_squared(x).asarray(), lengths)
    expected = values * (1 - 0.2 / np.maximum(lengths, 0.2))
    assert_close(f.prox(x, 0.1).asarray(), expected.ravel())


class OwnL1(MPIProxOperator):
    """A user's proximal operator."""

    def __call__(self, x):
        return x.norm(1)

    def prox(self, x, tau):
        y = x.copy()
        y.local_array[:] = L1().prox(x.local_array, tau)
        return y


@pytest.mark.parametrize("kind", [OwnL1, lambda: MPIProxOperator(L1())])
def test_methods_find_the_known_minimum(comm, kind) -> None:
    data = vector(2 * comm.size + 3, "float64", 3)
    b = Distributed.to_dist(data)
    identity = pylops_mpi.MPIBlockDiag([pylops.Identity(b.local_shape[0])])
    expected = L1().prox(data, 1.0)  # the minimum of 1/2 |x - b|^2 + |x|
    x0, seen = b.zeros_like(), []
    g = kind()
    for acceleration in (None, "vandenberghe", "fista"):
        x = ProximalGradient(
            MPIL2(b=b), g, x0, tau=0.9, niter=60, acceleration=acceleration, callback=lambda x: seen.append(x.norm())
        )
        np.testing.assert_allclose(x.asarray(), expected, atol=1e-5)
    assert len(seen) == 180
    x, z = ADMML2(g, identity, b, identity, x0, tau=1.0, niter=60, kwargs_solver={"niter": 3})
    np.testing.assert_allclose(x.asarray(), expected, atol=1e-5)
    np.testing.assert_allclose(z.asarray(), expected, atol=1e-5)
    pairs = []
    x, y = PrimalDual(
        MPIL2(b=b),
        g,
        identity,
        x0,
        b.zeros_like(),
        tau=0.9,
        mu=0.9,
        niter=200,
        returny=True,
        callbacky=True,
        callback=lambda x, y: pairs.append((x, y)),
    )
    np.testing.assert_allclose(x.asarray(), expected, atol=1e-4)
    np.testing.assert_allclose(y.asarray(), data - expected, atol=1e-4)
    assert len(pairs) == 200
    with pytest.raises(ValueError):
        ADMML2(g, identity, b, identity, None, tau=1.0)
