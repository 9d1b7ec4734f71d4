"""Star forests of JAX's arrays: eager, compiled, differentiated and batched, against the model in plain loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import collops.jax as cj
from collops.backend import engine
from collops.errors import UnsupportedTypeError
from collops.graph import StarForest
from tests.graph.model import Graph, values


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


@pytest.mark.parametrize(("dtype", "ops"), [("bool", ("sum", "prod", "max")), ("int32", ("land", "lor", "lxor"))])
def test_logical_operations(comm, dtype, ops):
    forest, graph, roots, leaves = drawn(comm, 7, dtype=dtype)
    x, y = jnp.asarray(roots[comm.rank]), jnp.asarray(leaves[comm.rank])
    got = cj.jit(lambda x, y: [(forest.bcast(x, y, op), forest.reduce(y, x, op)) for op in ops])(x, y)
    for op, (down, up) in zip(ops, got, strict=True):
        np.testing.assert_array_equal(down, graph.bcast(roots, leaves, op)[comm.rank])
        np.testing.assert_array_equal(up, graph.reduce(leaves, roots, op)[comm.rank])


def test_variables_are_written_to(comm):
    forest, graph, roots, leaves = drawn(comm, 5)
    xp = engine("jax").xp
    x, y = xp.asarray(roots[comm.rank]), xp.asarray(leaves[comm.rank])
    assert forest.bcast(x, y, "sum") is y
    np.testing.assert_allclose(np.asarray(y), graph.bcast(roots, leaves, "sum")[comm.rank])


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
    with pytest.raises(UnsupportedTypeError, match="there is no operation 'mean'"):
        forest.bcast(x, y, "mean")
    with pytest.raises(UnsupportedTypeError, match="'lor' needs booleans"):
        forest.bcast(x, y, "lor")
    with pytest.raises(UnsupportedTypeError, match="fetch_and_op writes"):
        forest.fetch_and_op(x, y)
    with pytest.raises(UnsupportedTypeError, match="no operation"):
        forest.bcast(x, y, "mean")
