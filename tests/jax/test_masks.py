"""Derivatives under a mask: a number is that of a group of ranks, and so is its cotangent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import collops
from collops import Layout
from collops.operators import VStack
from collops.solvers import cgls


@pytest.fixture
def mask(comm):
    return [rank % 2 for rank in range(comm.size)]


def test_numbers_of_groups_that_meet_again(comm, mask):
    """With e the energy of a group, its part times e and then all ranks' energy: the sum over the groups of e**3."""
    layout = Layout.split((7,), comm.size, mask=mask)
    values = np.random.default_rng(1).standard_normal((2, 7))
    x, t = (collops.from_global(value, layout, comm=comm, engine="jax") for value in values)

    def energy(x):
        whole = (x * x.vdot(x)).redistribute(layout.without_mask())
        return whole.vdot(whole)

    @jax.jit
    def everything(x, t):
        slope, tangent = jax.jvp(jax.value_and_grad(energy), (x,), (t,))
        return slope, tangent

    (value, slope), (along, curvature) = everything(x, t)
    members = [layout.slices(rank) for rank in range(comm.size)]

    def of_group(rank, function):
        return sum(function(values[0][own], values[1][own]) for r, own in enumerate(members) if mask[r] == mask[rank])

    e = [of_group(rank, lambda x, _: x @ x) for rank in range(comm.size)]
    d = [of_group(rank, lambda x, t: 2 * x @ t) for rank in range(comm.size)]  # of e, along t
    mine = comm.rank
    here, there = values[0][members[mine]], values[1][members[mine]]
    np.testing.assert_allclose(value, sum({mask[rank]: e[rank] ** 3 for rank in range(comm.size)}.values()), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(slope.local_array), 6 * e[mine] ** 2 * here, rtol=1e-12)
    np.testing.assert_allclose(
        along, sum({mask[rank]: 3 * e[rank] ** 2 * d[rank] for rank in range(comm.size)}.values()), rtol=1e-12
    )
    expected = 12 * e[mine] * d[mine] * here + 6 * e[mine] ** 2 * there
    np.testing.assert_allclose(np.asarray(curvature.local_array), expected, rtol=1e-11)


def test_each_group_solves_its_own_problem(comm, mask):
    """And differentiates its own solution, which may take another number of iterations."""
    made = [np.random.default_rng([2, rank]).standard_normal((6, 3)) for rank in range(comm.size)]
    data = [np.random.default_rng([3, rank]).standard_normal(6) for rank in range(comm.size)]
    members = [rank for rank in range(comm.size) if mask[rank] == mask[comm.rank]]
    A = VStack([jnp.asarray(made[comm.rank])], comm, mask=mask)
    y = collops.from_local(jnp.asarray(data[comm.rank]), A.range, comm=comm)

    def objective(y, damp):
        x = cgls(A, y, niter=8, damp=damp, tol=1e-24).x
        return x.vdot(x)

    by_data, by_damp = jax.grad(objective, (0, 1))(y, 0.5)
    matrix, stacked = (np.concatenate([of[rank] for rank in members]) for of in (made, data))
    normal = matrix.T @ matrix + 0.25 * np.eye(3)
    solution = np.linalg.solve(normal, matrix.T @ stacked)
    adjoint = np.linalg.solve(normal, 2 * solution)
    np.testing.assert_allclose(np.asarray(by_data.local_array), made[comm.rank] @ adjoint, atol=1e-9)
    np.testing.assert_allclose(by_damp, -adjoint @ solution, rtol=1e-8)
