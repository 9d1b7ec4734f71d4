"""Star forests of JAX's arrays: eager, compiled, differentiated and batched, against the model in plain loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import collops.jax as cj
from collops.errors import UnsupportedTypeError
from collops.exchange import StarForest
from tests.exchange.model import Graph, values, with_nan


def drawn(comm, seed, block=(), dtype="float64"):
    """A forest of a random graph, values at its roots and leaves, and the graph."""
    rng = np.random.default_rng(seed)
    graph = Graph.drawn(rng, comm.size)
    rank = comm.rank
    forest = StarForest(comm, graph.nroots[rank], graph.leaves[rank], graph.ranks[rank], graph.indices[rank])
    roots = values(rng, graph.nroots, block, dtype)
    leaves = values(rng, [graph.space(r) + 1 for r in range(comm.size)], block, dtype)
    return forest, graph, roots, leaves


@pytest.mark.parametrize("op", ["replace", "sum", "max"])
def test_movers(comm, op):
    for seed, block in ((1, (3,)),) if op == "sum" else ((0, ()),):
        forest, graph, roots, leaves = drawn(comm, seed, block)
        mine = jnp.asarray(roots[comm.rank]), jnp.asarray(leaves[comm.rank])
        down, up = graph.bcast(roots, leaves, op)[comm.rank], graph.reduce(leaves, roots, op)[comm.rank]

        def both(x, y, forest=forest):
            return forest.bcast(x, y, op), forest.start_reduce(y, x, op).finish()

        for got in (both(*mine), cj.jit(both)(*mine)):
            np.testing.assert_allclose(got[0], down, rtol=1e-14)
            np.testing.assert_allclose(got[1], up, rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(mine[1], leaves[comm.rank])
    np.testing.assert_array_equal(
        forest.bcast(mine[0]), graph.bcast(roots, [0 * y for y in leaves], "replace")[comm.rank][:-1]
    )
    np.testing.assert_array_equal(forest.gather(mine[1]), graph.gather(leaves, comm.rank))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins(comm, dtype, op):
    forest, graph, roots, leaves = drawn(comm, 3, dtype=dtype)
    rng = np.random.default_rng(0)
    roots, leaves = with_nan(rng, roots), with_nan(rng, leaves)
    x, y = jnp.asarray(roots[comm.rank]), jnp.asarray(leaves[comm.rank])
    down, up = cj.jit(lambda x, y: (forest.bcast(x, y, op), forest.reduce(y, x, op)))(x, y)
    np.testing.assert_array_equal(down, graph.bcast(roots, leaves, op)[comm.rank])
    np.testing.assert_array_equal(up, graph.reduce(leaves, roots, op)[comm.rank])


@pytest.mark.parametrize(("dtype", "ops"), [("bool", ("sum", "prod", "max")), ("int32", ("land", "lor", "lxor"))])
def test_logical_operations(comm, dtype, ops):
    forest, graph, roots, leaves = drawn(comm, 7, dtype=dtype)
    x, y = jnp.asarray(roots[comm.rank]), jnp.asarray(leaves[comm.rank])
    got = cj.jit(lambda x, y: [(forest.bcast(x, y, op), forest.reduce(y, x, op)) for op in ops])(x, y)
    for op, (down, up) in zip(ops, got, strict=True):
        np.testing.assert_array_equal(down, graph.bcast(roots, leaves, op)[comm.rank])
        np.testing.assert_array_equal(up, graph.reduce(leaves, roots, op)[comm.rank])


@pytest.mark.parametrize(
    ("seed", "block", "dtype", "op"),
    [  # each one compiles
        (0, (), "float64", "sum"),
        (1, (3,), "float32", "replace"),
        (5, (), "bool", "prod"),
        (7, (), "uint8", "lxor"),
        (4, (0,), "float64", "sum"),
    ],
)
def test_fetch_and_op(comm, seed, block, dtype, op):
    forest, graph, roots, leaves = drawn(comm, seed, block, dtype)
    old = [np.full_like(part, 1) for part in leaves]
    want_roots, want = (parts[comm.rank] for parts in graph.fetch_and_op(roots, leaves, old, op))
    x, y, z = (jnp.asarray(parts[comm.rank]) for parts in (roots, leaves, old))

    def fetch(x, y, z):
        started = [forest.start_fetch_and_op(x, y, start, op) for start in (z, None)]
        return started[0].finish(), started[1].finish()

    for got, without in (fetch(x, y, z), cj.jit(fetch)(x, y, z)):
        # One after the other, in the order of all other engines.
        assert np.asarray(got[0]).tobytes() == want.tobytes()
        assert np.asarray(got[1]).tobytes() == np.asarray(without[1]).tobytes() == want_roots.tobytes()
        mine = graph.leaves[comm.rank]
        np.testing.assert_array_equal(without[0][mine], want[mine])
        assert not np.delete(without[0], mine, 0).any()
    np.testing.assert_array_equal(x, roots[comm.rank])


def test_fetch_and_op_from_a_root_with_many_leaves(comm):
    counts = np.array([40, 3, 1, 0, 7])  # leaves of each root of rank 0, on each rank
    indices = np.repeat(np.arange(5), counts)
    forest = StarForest(comm, 5 if comm.rank == 0 else 0, None, np.zeros(len(indices), int), indices)
    fetched, roots = cj.jit(forest.fetch_and_op)(jnp.zeros(forest.nroots, int), jnp.ones(len(indices), int))
    within = np.concatenate([np.arange(count) for count in counts])
    np.testing.assert_array_equal(fetched, within + comm.rank * counts[indices])
    np.testing.assert_array_equal(roots, comm.size * counts[: forest.nroots])


def test_fetch_and_op_is_finished_twice(comm):
    forest, graph, roots, leaves = drawn(comm, 5)
    old = [np.zeros_like(part) for part in leaves]
    want_roots, want = (parts[comm.rank] for parts in graph.fetch_and_op(roots, leaves, old, "sum"))
    x, y, z = (jnp.asarray(parts[comm.rank]) for parts in (roots, leaves, old))
    started = forest.start_fetch_and_op(x, y, z)
    for fetched, sums in (started.finish(), started.finish()):
        assert np.asarray(fetched).tobytes() == want.tobytes()
        assert np.asarray(sums).tobytes() == want_roots.tobytes()
    for given, before in zip((x, y, z), (roots, leaves, old), strict=True):
        np.testing.assert_array_equal(given, before[comm.rank])


def test_fetch_and_op_is_differentiated(comm):
    forest, _, roots, leaves = drawn(comm, 3)
    x, y = jnp.asarray(roots[comm.rank]), jnp.asarray(leaves[comm.rank])
    (fetched, sums), transpose = jax.vjp(cj.jit(forest.fetch_and_op), x, y)
    u, v = fetched + 1, sums - 2
    # It is linear: <A(x, y), (u, v)> is <(x, y), A^T(u, v)>, over all ranks.
    back = transpose((u, v))
    sides = [jnp.vdot(fetched, u) + jnp.vdot(sums, v), jnp.vdot(x, back[0]) + jnp.vdot(y, back[1])]
    ahead, behind = comm.allreduce(np.array(sides))
    assert ahead == pytest.approx(behind, rel=1e-12)
    many = jax.vmap(forest.fetch_and_op)(jnp.stack([x, 3 * x]), jnp.stack([y, 3 * y]))
    np.testing.assert_allclose(many[0][1], 3 * fetched)


@pytest.mark.parametrize("number", [0, 1])
def test_fetch_and_op_is_differentiated_with_one_argument(comm, number):
    # Leaves of rank 0 only, with roots on the last rank only: ranks differ in what they send.
    count = 3 if comm.rank == 0 else 0
    forest = StarForest(comm, 2 if comm.rank == comm.size - 1 else 0, None, [comm.size - 1] * count, [1, 0, 1][:count])
    given = [jnp.arange(float(forest.nroots)) + 5, jnp.arange(float(count)) + 1]

    @cj.jit
    def tangents(*given):
        def fetch(one):
            return forest.fetch_and_op(*given[:number], one, *given[number + 1 :])

        return jax.jvp(fetch, given[number : number + 1], (jnp.ones_like(given[number]),))[1]

    fetched, roots = tangents(*given)
    np.testing.assert_array_equal(fetched, [[1, 1, 1], [0, 0, 1]][number][:count])
    np.testing.assert_array_equal(roots, [[1, 1], [1, 2]][number][: forest.nroots])
    many = jax.vmap(forest.fetch_and_op, in_axes=(0, None) if number == 0 else (None, 0))(
        *(jnp.stack([each, each]) if place == number else each for place, each in enumerate(given))
    )
    np.testing.assert_array_equal(many[0][1], [6, 5, 7][:count])


def test_a_mover_is_finished_twice(comm):
    forest, graph, roots, leaves = drawn(comm, 5)
    x, y = jnp.asarray(roots[comm.rank]), jnp.asarray(leaves[comm.rank])
    started = forest.start_bcast(x, y, "sum")
    for _ in range(2):
        np.testing.assert_allclose(started.finish(), graph.bcast(roots, leaves, "sum")[comm.rank])
    np.testing.assert_array_equal(y, leaves[comm.rank])


def test_transpose_of_bcast_is_reduce(comm):
    forest, graph, roots, leaves = drawn(comm, 3)
    x, y = jnp.asarray(roots[comm.rank]), jnp.asarray(leaves[comm.rank][:-1])
    zero = [np.zeros_like(part) for part in roots]
    want = graph.reduce([part[:-1] for part in leaves], zero, "sum")[comm.rank]

    @cj.jit
    def back(x, y):
        _, transpose = jax.vjp(forest.bcast, x)
        return transpose(y)[0]

    np.testing.assert_allclose(back(x, y), want, rtol=1e-12, atol=1e-14)
    tangent = jax.jvp(forest.bcast, (x,), (2 * x,))[1]
    np.testing.assert_allclose(tangent, 2 * forest.bcast(x))
    many = jnp.stack([x, 3 * x])
    np.testing.assert_allclose(jax.vmap(forest.bcast)(many)[1], 3 * forest.bcast(x))


def test_what_cannot_be(comm):
    forest, _, roots, leaves = drawn(comm, 4)
    x, y = jnp.asarray(roots[comm.rank]), jnp.asarray(leaves[comm.rank])
    with pytest.raises(UnsupportedTypeError, match="unknown operation 'mean'"):
        forest.bcast(x, y, "mean")
    with pytest.raises(UnsupportedTypeError, match="'lor' needs booleans"):
        forest.bcast(x, y, "lor")
    with pytest.raises(UnsupportedTypeError, match="unknown operation 'mean'"):
        forest.fetch_and_op(x, y, op="mean")
