"""Forests made of forests obey their laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collops.errors import LayoutError
from collops.exchange import StarForest
from tests.exchange.model import Graph
from tests.exchange.test_forest import EXAMPLES, forest_of

SOME = settings(max_examples=EXAMPLES // 4)
SEEDS = st.integers(0, 2**32 - 1)


def numbered(forest):
    """A different number for each root of all ranks."""
    return np.arange(forest.nroots) + 1000 * (forest.comm.rank + 1)


def test_values_of_a_point_may_be_as_far_apart_as_the_arrays_are_long(comm):
    ring = StarForest(comm, 2, [1, 2], [(comm.rank + 1) % comm.size] * 2, [1, 0])
    planes = ring.strided(2, root_stride=2, leaf_stride=3)
    got = planes.bcast(10.0 * comm.rank + np.arange(4))
    after = 10.0 * ((comm.rank + 1) % comm.size)
    np.testing.assert_array_equal(got, [0, after + 1, after, 0, after + 3, after + 2])


@SOME
@given(seed=SEEDS)
def test_compose_is_one_bcast_after_the_other(comm, seed):
    rng = np.random.default_rng(seed)
    first = forest_of(comm, graph := Graph.drawn(rng, comm.size), transport="mpi")
    spaces = [graph.space(rank) for rank in range(comm.size)]
    second_graph = _onto(rng, spaces)
    second = forest_of(comm, second_graph, transport="mpi")
    both = first.compose(second)
    roots = numbered(first)
    through = second.bcast(first.bcast(roots))
    got = both.bcast(roots, np.zeros(second.leaf_space, int))
    np.testing.assert_array_equal(got, through)


def _onto(rng, nroots):
    """A graph with these numbers of roots."""
    size = len(nroots)
    owners = [rank for rank in range(size) if nroots[rank]]
    leaves, ranks, indices = [], [], []
    for _ in range(size):
        count = int(rng.integers(0, 8)) if owners else 0
        leaves.append(rng.permutation(count + 2)[:count])
        ranks.append(rng.choice(owners, count) if count else np.empty(0, int))
        indices.append(np.array([rng.integers(nroots[rank]) for rank in ranks[-1]], int))
    return Graph(list(nroots), leaves, ranks, indices)


def _permutation(rng, size):
    """A graph whose roots have at most one leaf."""
    nroots = [int(rng.integers(0, 6)) for _ in range(size)]
    pairs = [(rank, number) for rank in range(size) for number in range(nroots[rank])]
    rng.shuffle(pairs)
    pairs = pairs[: int(rng.integers(0, len(pairs) + 1))]
    owner = rng.integers(0, size, len(pairs))
    leaves, ranks, indices = [], [], []
    for rank in range(size):
        mine = [pair for pair, at in zip(pairs, owner, strict=True) if at == rank]
        leaves.append(rng.permutation(len(mine) + 2)[: len(mine)])
        ranks.append(np.array([pair[0] for pair in mine], int))
        indices.append(np.array([pair[1] for pair in mine], int))
    return Graph(nroots, leaves, ranks, indices)


@SOME
@given(seed=SEEDS)
def test_inverse_leads_back(comm, seed):
    forest = forest_of(comm, _permutation(np.random.default_rng(seed), comm.size), transport="mpi")
    back = forest.inverse()
    roots = numbered(forest)
    leaves = forest.bcast(roots, np.full(back.nroots, -1))
    again = back.bcast(leaves, np.zeros_like(roots))
    np.testing.assert_array_equal(again, np.where(forest.degrees() > 0, roots, 0))
    twice = back.inverse()
    order = np.argsort(forest.leaves)
    np.testing.assert_array_equal(twice.leaves, forest.leaves[order])
    np.testing.assert_array_equal(twice.remote_ranks, forest.remote_ranks[order])
    np.testing.assert_array_equal(twice.remote_indices, forest.remote_indices[order])
    loop = forest.compose(back) if back.nroots >= forest.leaf_space else None
    assert loop is not None
    np.testing.assert_array_equal(loop.remote_indices, loop.leaves)
    assert (loop.remote_ranks == comm.rank).all()


@SOME
@given(seed=SEEDS)
def test_compose_inverse_follows_shared_leaves(comm, seed):
    rng = np.random.default_rng(seed)
    graphs = Graph.drawn(rng, comm.size), _permutation(rng, comm.size)
    first, second = (forest_of(comm, graph, transport="mpi") for graph in graphs)
    both = first.compose_inverse(second)
    space = max(first.leaf_space, second.leaf_space)
    leaves = first.bcast(numbered(first), np.zeros(space, int))
    want = second.reduce(leaves, np.zeros(second.nroots, int), "replace")
    got = both.bcast(numbered(first), np.zeros(second.nroots, int))
    np.testing.assert_array_equal(got, want)


@SOME
@given(seed=SEEDS)
def test_parts(comm, seed):
    rng = np.random.default_rng(seed)
    forest = forest_of(comm, Graph.drawn(rng, comm.size), transport="mpi")
    roots = numbered(forest)
    mine = np.random.default_rng([seed, comm.rank])
    chosen = np.flatnonzero(mine.integers(0, 2, forest.nroots))
    kept = forest.embed_roots(chosen)
    marked = np.zeros_like(roots)
    marked[chosen] = roots[chosen]
    np.testing.assert_array_equal(
        kept.bcast(roots, np.zeros(forest.leaf_space, int)), forest.bcast(marked, np.zeros(forest.leaf_space, int))
    )
    some = np.flatnonzero(mine.integers(0, 2, forest.leaf_space))
    part = forest.embed_leaves(some)
    want = np.zeros(forest.leaf_space, int)
    want[some] = forest.bcast(roots)[some]
    np.testing.assert_array_equal(part.bcast(roots, np.zeros(forest.leaf_space, int)), want)


@SOME
@given(seed=SEEDS, block=st.integers(0, 3), apart=st.booleans())
@example(seed=1, block=3, apart=True)
def test_strided_moves_all_values_of_a_point(comm, seed, block, apart):
    forest = forest_of(comm, Graph.drawn(np.random.default_rng(seed), comm.size), transport="mpi")
    roots = numbered(forest)[:, None] * 10 + np.arange(block)
    want = forest.bcast(roots, np.zeros((forest.leaf_space, block), int))
    if apart:
        near, far = forest.nroots + 1 + comm.rank, forest.leaf_space + 2
        wide = forest.strided(block, root_stride=near, leaf_stride=far)
        flat = np.zeros(wide.nroots, int)
        for j in range(block):
            flat[j * near : j * near + forest.nroots] = roots[:, j]
        got = wide.bcast(flat, np.zeros(max(0, block * far), int)).reshape(block, far)[:, : forest.leaf_space].T
    else:
        wide = forest.strided(block)
        got = wide.bcast(roots.reshape(-1), np.zeros(forest.leaf_space * block, int)).reshape(want.shape)
    np.testing.assert_array_equal(got, want)


@SOME
@given(seed=SEEDS, shared=st.booleans())
def test_concatenate(comm, seed, shared):
    rng = np.random.default_rng(seed)
    first_graph = Graph.drawn(rng, comm.size)
    second_graph = _onto(rng, first_graph.nroots) if shared else Graph.drawn(rng, comm.size)
    forests = [forest_of(comm, graph, transport="mpi") for graph in (first_graph, second_graph)]
    both = StarForest.concatenate(forests, shared_roots=shared)
    offset = forests[0].leaf_space
    roots = [numbered(forests[0]), numbered(forests[0 if shared else 1]) * (1 if shared else 7)]
    got = both.bcast(roots[0] if shared else np.concatenate(roots), np.zeros(offset + forests[1].leaf_space, int))
    np.testing.assert_array_equal(got[:offset], forests[0].bcast(roots[0]))
    np.testing.assert_array_equal(got[offset:], forests[1].bcast(roots[1]))


@SOME
@given(seed=SEEDS)
def test_distribute(comm, seed):
    forest = forest_of(comm, Graph.drawn(np.random.default_rng(seed), comm.size), transport="mpi")
    counts = (numbered(forest) * 7 + 3) % 4
    values, sizes = forest.distribute(counts)
    np.testing.assert_array_equal(sizes, forest.bcast(counts))
    owners = np.repeat(numbered(forest), counts)
    within = np.concatenate([np.arange(count) for count in [*counts, 0]])
    got = values.bcast(np.stack([owners, within], axis=1), np.zeros((sizes.sum(), 2), int))
    np.testing.assert_array_equal(got[:, 0], np.repeat(forest.bcast(numbered(forest)), sizes))
    np.testing.assert_array_equal(got[:, 1], np.concatenate([np.arange(count) for count in [*sizes, 0]]))


def test_what_cannot_be_is_one_error_on_all_ranks(comm):
    shared = StarForest(comm, 1, None, [0], [0])
    twice = StarForest(comm, 1, None, [comm.rank] * 2, [0, 0])
    if comm.size > 1:
        with pytest.raises(LayoutError, match="the inverse of a forest needs roots with at most one leaf"):
            shared.inverse()
    with pytest.raises(LayoutError, match="at most one leaf"):
        shared.compose_inverse(twice)
    with pytest.raises(LayoutError, match="the second forest has 1 roots for a leaf array of 2"):
        twice.compose(shared)
    with pytest.raises(LayoutError, match="root 4 is out of range"):
        shared.embed_roots([4] if comm.rank == comm.size - 1 else [])
    with pytest.raises(LayoutError, match="leaf -1 is out of range"):
        shared.embed_leaves([-1])
    with pytest.raises(LayoutError, match="stride of 1 is shorter"):
        twice.strided(2, leaf_stride=1)
    with pytest.raises(LayoutError, match="1 roots need as many non-negative counts"):
        shared.distribute([1, 2] if comm.rank == comm.size - 1 else [1])
    with pytest.raises(LayoutError, match="used 2 times"):
        StarForest.concatenate([shared, shared], leaf_offsets=[0, 0])
