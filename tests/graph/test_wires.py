"""All wires carry the same bits, and a default is chosen from what they take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collops.backend import engine
from collops.errors import InputError
from collops.graph import StarForest
from collops.graph.wires.choice import candidates, measured
from tests.graph.model import Graph, values
from tests.graph.test_forest import EXAMPLES

HOST = ("own", "p2p", "neighbor", "shared")


@pytest.fixture(params=HOST, scope="module")
def wire(request, comm):
    if request.param != "own" and (comm.control is None or request.param not in candidates(comm, engine())):
        pytest.skip(f"the wire {request.param} needs MPI, and ranks of one host")
    return request.param


@settings(max_examples=EXAMPLES // 8)
@given(seed=st.integers(0, 2**32 - 1))
def test_wires_carry_the_same_bits(comm, wire, seed):
    rng = np.random.default_rng(seed)
    graph = Graph.drawn(rng, comm.size, most_roots=4, most_leaves=12)
    rank = comm.rank
    edges = (graph.nroots[rank], graph.leaves[rank], graph.ranks[rank], graph.indices[rank])
    block = ((), (2,))[rng.integers(2)]
    with StarForest(comm, *edges, wire=wire) as forest:
        under_way = []
        for op in ("replace", "sum", "min", "max", "sum"):  # more than a ring has places, each with values of its own
            roots = values(rng, graph.nroots, block, "float32")
            leaves = values(rng, [graph.space(r) for r in range(comm.size)], block, "float32")
            under_way.append((forest.start_bcast(roots[rank], leaves[rank].copy(), op), graph.bcast(roots, leaves, op)))
            under_way.append(
                (forest.start_reduce(leaves[rank], roots[rank].copy(), op), graph.reduce(leaves, roots, op))
            )
        at_once = forest.bcast(roots[rank], leaves[rank].copy())  # while the others are under way
        assert at_once.tobytes() == graph.bcast(roots, leaves, "replace")[rank].tobytes()
        for number in np.random.default_rng(seed + rank).permutation(len(under_way)):
            started, want = under_way[number]
            assert started.finish().tobytes() == want[rank].tobytes()
        fetched = forest.fetch_and_op(roots[rank].copy(), leaves[rank])
        want = graph.fetch_and_op(roots, leaves, [np.zeros_like(part) for part in leaves], "sum")[1]
        assert fetched.tobytes() == want[rank].tobytes()


def test_long_messages_and_use_after_free(comm, wire):
    size, width = 3001, 23  # points too few for compiled loops
    rng = np.random.default_rng(comm.rank)
    ranks, indices = rng.integers(0, comm.size, size), rng.integers(0, size, size)
    forest = StarForest(comm, size, None, ranks, indices, wire=wire)
    for turn in range(3):
        roots = (np.arange(size) + 1000000 * comm.rank + turn)[:, None] + np.arange(width) * 10000
        want = (indices + 1000000 * ranks + turn)[:, None] + np.arange(width) * 10000
        np.testing.assert_array_equal(forest.bcast(roots), want)
    forest.free()
    np.testing.assert_array_equal(forest.bcast(roots), want)
    forest.free()


def test_the_default_is_measured_and_agreed_on(comm):
    if comm.control is None:
        pytest.skip("a world of one without MPI has nothing to measure")
    table = measured(comm, engine())
    assert set(table.values()) <= set(candidates(comm, engine()))
    assert measured(comm, engine()) is table
    assert comm.allgather_metadata(list(table.values())) == [list(table.values())] * comm.size


def test_a_wire_that_cannot_be(comm):
    following = (comm.rank + 1) % comm.size
    forest = StarForest(comm, 1, None, [following], [0], wire="nccl")
    if comm.size == 1:
        assert forest.bcast(np.ones(1)).tolist() == [1]  # nothing is sent
        return
    with pytest.raises(InputError, match="'nccl' carries no numpy arrays"):
        forest.bcast(np.ones(1))
    other = forest.with_wire("own")
    assert other.bcast(np.array([comm.rank])).tolist() == [following]
