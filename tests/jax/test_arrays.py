"""Distributed arrays of the engine jax: values as NumPy's, holders as results, derivatives of what ranks share."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import collops
import collops.array as ca
from collops import Layout, profile
from collops.errors import InputError, LayoutError, UnsupportedTypeError


def both(comm, layout, seed=1, dtype=float):
    """The same array on NumPy and on JAX."""
    return [collops.random(layout, seed=seed, dtype=dtype, comm=comm, engine=name) for name in ("numpy", "jax")]


def same(found, expected):
    if hasattr(expected, "leaves"):
        for a, b in zip(found.leaves, expected.leaves, strict=True):
            assert isinstance(a.local_array, jax.Array)
            np.testing.assert_allclose(np.asarray(a.local_array), b.local_array, rtol=1e-12, atol=1e-13)
    else:
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12)


OPERATIONS = {
    "arithmetic": lambda x, y: 2 - x * y + x / (3 + abs(y)) - np.float64(2) * y,
    "ufunc": lambda x, y: np.add(np.sin(x), y),
    "axpby": lambda x, y: ca.axpby(ca.Finite((-1.0, x.vdot(x), y.vdot(y))), x, 3, y),
    "zero divisor": lambda x, y: ca.axpby((1.0, x.vdot(x), 0 * x.vdot(x)), x, 3, y),
    "where": lambda x, y: ca.where(x > 0, x, y),
    "sum": lambda x, y: x.sum() + y.mean(),
    "norms": lambda x, y: x.norm() + y.norm(1) + x.norm(np.inf) + y.norm(-np.inf) + x.norm(0) + x.norm(3),
    "extremes": lambda x, y: x.min() + y.max(),
    "truth": lambda x, y: (x > 0).any() & (y < 9).all(),
    "dots": lambda x, y: ca.dots((x, x), (x, y), (y, y))[1],
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(comm, name):
    """Of split arrays and of stacks of a split and a replicated one: at once, and compiled."""
    operation = OPERATIONS[name]
    layouts = Layout.split((7, 2), comm.size), Layout.replicated(3, comm.size)
    split, whole, other, rest = (both(comm, layout, seed) for seed, layout in enumerate([*layouts, *layouts]))
    stacks = [
        [collops.StackedArray([a, b]) for a, b in zip(*parts, strict=True)] for parts in ((split, whole), (other, rest))
    ]
    for x, y in ((split, other), stacks):
        expected = operation(x[0], y[0])
        same(operation(x[1], y[1]), expected)
        same(jax.jit(operation)(x[1], y[1]), expected)


def test_operations_in_place_replace_the_local_array(comm):
    (a, x), (b, y) = (both(comm, (5, 3), seed) for seed in (1, 2))
    kept = x.local_array
    for one, other in ((a, b), (x, y)):
        one += 2 * other
        one *= 3
        assert ca.axpby(2.0, one, 1.0, other, out=one) is one
        assert np.multiply(one, other, out=one) is one
        results = ca.update_solution_and_direction(one, 0.5, other, 2.0, one.copy())
        assert results[0] is one and results[1] is other
    same(x, a)
    same(y, b)
    same(kept, collops.random((5, 3), seed=1, comm=comm).local_array)
    x.fill(4)
    assert float(x.sum()) == 60 and x.dtype == float
    with pytest.raises(UnsupportedTypeError, match="fit"):
        x *= 1j
    with pytest.raises(UnsupportedTypeError, match="fit"):
        ca.axpby(1j, x, 1, y, out=x)
    whole = collops.ones(3, dtype="int32", engine="jax", comm=comm)
    with pytest.raises(UnsupportedTypeError, match="fit"):
        whole += 0.5


def test_changes_of_layout_send_what_they_do_on_numpy(comm):
    a, x = both(comm, (6, 4))
    for change in (
        lambda x: x.redistribute(Layout.split((6, 4), comm.size, 1)),
        lambda x: x.redistribute(Layout.replicated((6, 4), comm.size)),
        lambda x: x.halo(1),
        lambda x: x.halo((2, 1), "periodic"),
    ):
        change(x)  # the first use of a communicator by JAX sends metadata
        with profile.count_messages() as expected:
            wanted = change(a)
        with profile.count_messages() as sent:
            found = change(x)
        same(found, wanted)
        assert sent.total == expected.total
    for root in (None, 0, comm.size - 1):
        found, wanted = x.gather(root), a.gather(root)
        assert (found is None) == (wanted is None)
        if wanted is not None:
            np.testing.assert_array_equal(found, wanted)


def test_derivative_of_a_halo(comm):
    """Each element counts as often as it is held; some ranks have none and only receive."""
    sizes = [0] * (comm.size - 1) + [5]
    layout = Layout.split((5, 2), comm.size, sizes=sizes)
    x = collops.random(layout, seed=1, comm=comm, engine="jax")

    def energy(x):
        wide = x.halo((1, 0), "periodic")
        return wide.vdot(wide)

    slope, tangent = jax.jit(lambda x: (jax.grad(energy)(x), jax.jvp(energy, (x,), (x,))[1]))(x)
    copies = collops.ones(layout, comm=comm).halo((1, 0), "periodic")
    weight = np.zeros((5, 2)) + 1.0
    rows = np.concatenate(
        [
            np.arange(start - 1, stop + 1) % 5
            for start, stop in zip([0, *np.cumsum(sizes)], np.cumsum(sizes), strict=False)
        ]
    )
    np.add.at(weight, rows, 1.0)
    weight -= 1
    assert float(copies.sum()) == weight.sum()
    whole = collops.random(layout, seed=1, comm=comm).gather()
    np.testing.assert_allclose(slope.gather(), 2 * weight * whole)
    np.testing.assert_allclose(tangent, 2 * np.sum(weight * whole**2))


def test_derivative_of_replicated_parts(comm):
    """Of a stack with copies in different places: every rank has the whole derivative of what it holds."""
    layouts = [Layout.split((6,), comm.size), Layout.replicated((3,), comm.size)]
    if comm.size == 4:
        layouts.append(Layout((4, 2), 4, (2, 2), (0, None)))
    x = collops.StackedArray(
        [collops.random(layout, seed=k, comm=comm, engine="jax") for k, layout in enumerate(layouts)]
    )

    def function(x, scale):
        y = scale * x
        return y.vdot(y) * x.sum() + x.norm()

    slope, by_scale = jax.jit(jax.grad(function, (0, 1)))(x, 1.5)
    total, square = float(x.sum()), float(x.vdot(x))
    for found, given in zip(slope.leaves, x.leaves, strict=True):
        expected = 2.25 * (2 * total * given.local_array + square) + given.local_array / np.sqrt(square)
        np.testing.assert_allclose(found.local_array, expected, rtol=1e-12)
    np.testing.assert_allclose(by_scale, 3 * square * total, rtol=1e-12)


def test_a_batch_of_arrays(comm):
    layout = Layout.split((6,), comm.size)
    xs = [collops.random(layout, seed=seed, comm=comm, engine="jax") for seed in (1, 2)]
    batch = jax.tree.map(lambda *parts: jnp.stack(parts), *xs)
    found = jax.vmap(lambda x: (x + x.vdot(x)).norm())(batch)
    np.testing.assert_allclose(found, [float((x + x.vdot(x)).norm()) for x in xs], rtol=1e-13)


def test_trees_with_other_leaves(comm):
    """Leaves of split arrays may be batches, and no arrays; not reductions, or matrices of a rank's part."""
    x = collops.random(7, comm=comm, engine="jax")
    part = x.local_array.shape
    _, history = jax.eval_shape(lambda x: jax.lax.scan(lambda carry, _: (carry, carry), x, None, length=3), x)
    batches = jax.tree.map(lambda part: jnp.broadcast_to(part, (2, 3, *part.shape)), x)
    assert (history.local_array.shape, batches.local_array.shape) == ((3, *part), (2, 3, *part))
    assert jax.tree.map(lambda part: part.dtype, x).local_array == x.dtype
    if comm.size > 1:
        for refused in (lambda part: part[:, None], lambda part: part[1:], jnp.sum):
            with pytest.raises(UnsupportedTypeError, match=r"reduces this rank's part of .* collops\.gmres"):
                jax.tree.map(refused, x)
        with pytest.raises(UnsupportedTypeError, match=r"a Jacobian, .* jax\.jvp"):
            jax.eval_shape(jax.jacrev(lambda x: x * x), x)


@pytest.mark.parametrize("name", ["cg", "bicgstab", "gmres", "batched gmres"])
def test_krylov_methods_of_jax(comm, name):
    """Right if the vectors are replicated; an error with split ones."""
    solve = getattr(jax.scipy.sparse.linalg, name.split()[-1])
    if name == "batched gmres":
        solve = functools.partial(solve, solve_method="batched")
    matrix = np.random.default_rng(4).standard_normal((4 * comm.size, 3))
    V = collops.VStack([jnp.asarray(matrix[4 * comm.rank : 4 * comm.rank + 4])], comm)  # the product sums over ranks
    y = collops.from_global(jnp.arange(1.0, 4.0), V.domain, comm=comm)
    x, _ = solve((V.H @ V).forward, y, tol=1e-12)
    np.testing.assert_allclose(x.gather(), np.linalg.solve(matrix.T @ matrix, np.arange(1.0, 4.0)), rtol=1e-8)
    if comm.size > 1:
        A = 2 * collops.Identity(7, comm=comm)
        for call in (solve, jax.jit(solve, static_argnums=0)):
            with pytest.raises(UnsupportedTypeError, match=r"reduces this rank's part of .* collops\.cg"):
                call(A.forward, collops.ones(7, comm=comm, engine="jax"))


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda comm, x: comm.allreduce(1j * x, "prod"), UnsupportedTypeError),
        (lambda comm, x: comm.reduce(x, "sum", comm.size), InputError),
        (lambda comm, x: comm.reduce_scatter(x), LayoutError),
        (lambda comm, x: comm.alltoall(x), LayoutError),
        (lambda comm, x: comm.alltoallv(x, [1] * comm.size, [1] * comm.size), LayoutError),
        (lambda comm, x: comm.gather(x, comm.size), InputError),
    ],
)
def test_methods_of_a_communicator_check_their_arguments(comm, call, kind):
    """Also with a single rank, where nothing is sent."""
    with pytest.raises(kind):
        call(comm, jnp.ones((comm.size + 2, 2)))
