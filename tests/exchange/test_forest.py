"""Movers of star forests against a model in plain loops, on random graphs."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collops import IndexScatter, StarForest, profile
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.csr import CSRMatrix
from tests.exchange.model import Graph, operations, values, with_nan

EXAMPLES = int(os.environ.get("COLLOPS_EXAMPLES", "40"))  # `make examples` draws thousands
DTYPES = ("float64", "float32", "float16", "complex64", "complex128", "int64", "int32", "uint8", "bool")
BLOCKS = ((), (3,), (1,), (2, 2), (0,))


def forest_of(comm, graph, **options):
    rank = comm.rank
    leaves = graph.leaves[rank]
    contiguous = np.array_equal(leaves, np.arange(len(leaves)))
    return StarForest(
        comm, graph.nroots[rank], None if contiguous else leaves, graph.ranks[rank], graph.indices[rank], **options
    )


@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(DTYPES), block=st.sampled_from(BLOCKS))
def test_every_mover_does_what_the_model_does(comm, seed, dtype, block):
    rng = np.random.default_rng(seed)
    graph = Graph.drawn(rng, comm.size)
    forest = forest_of(comm, graph, transport="mpi")
    rank = comm.rank
    roots = values(rng, graph.nroots, block, dtype)
    leaves = values(rng, [graph.space(r) + int(rng.integers(0, 2)) for r in range(comm.size)], block, dtype)
    for op in rng.permutation(operations(dtype))[:2].tolist():
        got = forest.bcast(roots[rank].copy(), leaves[rank].copy(), op)
        np.testing.assert_array_equal(got, graph.bcast(roots, leaves, op)[rank])
        got = forest.reduce(leaves[rank].copy(), roots[rank].copy(), op)
        np.testing.assert_array_equal(got, graph.reduce(leaves, roots, op)[rank])
        changed, fetched = roots[rank].copy(), np.zeros_like(leaves[rank])
        forest.fetch_and_op(changed, leaves[rank].copy(), fetched, op)
        want_roots, want_fetched = graph.fetch_and_op(roots, leaves, [np.zeros_like(part) for part in leaves], op)
        np.testing.assert_array_equal(changed, want_roots[rank])
        np.testing.assert_array_equal(fetched, want_fetched[rank])
    collected = forest.gather(leaves[rank])
    np.testing.assert_array_equal(collected, graph.gather(leaves, rank))
    back = forest.scatter(collected, np.zeros_like(leaves[rank]))
    ours = graph.leaves[rank]
    np.testing.assert_array_equal(back[ours], leaves[rank][ours])
    np.testing.assert_array_equal(forest.degrees(), forest.reduce(*_ones(forest)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins(comm, dtype, op):
    """Whatever the order of the edges."""
    rng = np.random.default_rng(11)
    for block in ((), (3,)):
        graph = Graph.drawn(rng, comm.size)
        forest, rank = forest_of(comm, graph), comm.rank
        roots = with_nan(rng, values(rng, graph.nroots, block, dtype))
        leaves = with_nan(rng, values(rng, [graph.space(r) for r in range(comm.size)], block, dtype))
        got = forest.bcast(roots[rank].copy(), leaves[rank].copy(), op)
        np.testing.assert_array_equal(got, graph.bcast(roots, leaves, op)[rank])
        got = forest.reduce(leaves[rank].copy(), roots[rank].copy(), op)
        np.testing.assert_array_equal(got, graph.reduce(leaves, roots, op)[rank])
        changed = roots[rank].copy()
        forest.fetch_and_op(changed, leaves[rank].copy(), op=op)
        np.testing.assert_array_equal(changed, got)


def _ones(forest):
    return np.ones(forest.leaf_space, np.int64), np.zeros(forest.nroots, np.int64)


@settings(max_examples=EXAMPLES // 4)
@given(seed=st.integers(0, 2**32 - 1))
def test_many_at_once_finish_in_any_order(comm, seed):
    rng = np.random.default_rng(seed)
    graphs = [Graph.drawn(rng, comm.size) for _ in range(2)]
    forests = [forest_of(comm, graph, transport="mpi") for graph in graphs]
    under_way = []
    for _ in range(7):
        number, down = int(rng.integers(2)), bool(rng.integers(2))
        graph = graphs[number]
        dtype = str(rng.choice(["float64", "int32"]))
        op = str(rng.choice(["replace", "sum", "max"]))
        roots = values(rng, graph.nroots, (), dtype)
        leaves = values(rng, [graph.space(r) for r in range(comm.size)], (), dtype)
        if down:
            want = graph.bcast(roots, leaves, op)[comm.rank]
            source = roots[comm.rank]
            started = forests[number].start_bcast(source, leaves[comm.rank], op)
        else:
            want = graph.reduce(leaves, roots, op)[comm.rank]
            source = leaves[comm.rank]
            started = forests[number].start_reduce(source, roots[comm.rank], op)
        source[...] = 99  # it is ours again
        under_way.append((started, want))
    order = np.random.default_rng(seed + comm.rank).permutation(len(under_way))  # its own on each rank
    for number in order:
        started, want = under_way[number]
        np.testing.assert_array_equal(started.finish(), want)
        np.testing.assert_array_equal(started.finish(), want)


def test_forests_do_not_take_each_others_messages(comm):
    """Ranks may finish fetches of different forests in different orders: tags tell their answers apart."""
    last = comm.size - 1
    named = [0] * (comm.rank == last)  # the last rank has a leaf of each forest, rank 0 their roots
    forests = [StarForest(comm, 1 - min(comm.rank, 1), None, named, named, transport="mpi") for _ in range(2)]
    roots = [np.full(forest.nroots, 10.0 * number) for number, forest in enumerate(forests, 1)]
    started = [
        forest.start_fetch_and_op(root, np.ones(len(named))) for forest, root in zip(forests, roots, strict=True)
    ]
    order = (1, 0) if comm.rank == last else (0, 1)
    fetched = {number: started[number].finish().tolist() for number in order}
    assert fetched == ({0: [10], 1: [20]} if named else {0: [], 1: []})
    assert [root.tolist() for root in roots] == ([[11], [21]] if comm.rank == 0 else [[], []])


def test_strided_arrays_are_checked_at_every_call(comm):
    following = (comm.rank + 1) % comm.size
    forest = StarForest(comm, 3, None, [following, comm.rank], [2, 0])
    for roots in (np.arange(3.0), np.repeat(np.arange(3.0), 2)[::2], np.arange(3.0)[::-1][::-1]):
        assert forest.bcast(roots, np.zeros(2)).tolist() == [2, 0]
    with pytest.raises(LayoutError, match="leaves must be contiguous"):
        forest.bcast(np.arange(3.0), np.zeros(4)[::2])


def test_one_exchange_for_each_mover(comm):
    following = (comm.rank + 1) % comm.size
    forest = StarForest(comm, 2, None, [following, following], [1, 0], transport="mpi")
    roots = np.array([1.0, 2.0])
    forest.bcast(roots), forest.reduce(roots, roots.copy())
    with profile.count_messages() as messages:
        forest.bcast(roots)
        forest.reduce(roots, roots.copy())
    assert messages.counts() == ({"exchange": 2} if comm.size > 1 else {})


def test_what_is_local_is_not_sent(comm):
    forest = StarForest(comm, 3, None, [comm.rank] * 4, [0, 2, 1, 1])
    with profile.count_messages() as messages:
        got = forest.bcast(np.array([5, 6, 7]))
        roots = forest.reduce(np.array([1, 2, 3, 4]), np.zeros(3, int))
    assert messages.total == 0
    assert got.tolist() == [5, 7, 6, 6] and roots.tolist() == [1, 7, 2]


@pytest.mark.parametrize("pattern", ["allgather", "gather", "alltoall"])
def test_patterns(comm, pattern):
    size, rank = comm.size, comm.rank
    count = 2 if pattern == "alltoall" else rank + 1
    forest = StarForest.from_pattern(comm, pattern, count, root=size - 1)
    if pattern == "alltoall":
        roots = np.array([[10 * rank + other, 10 * rank + other + 0.5] for other in range(size)]).reshape(-1)
        want = np.array([[10 * other + rank, 10 * other + rank + 0.5] for other in range(size)]).reshape(-1)
    else:
        roots = np.full(count, float(rank))
        want = np.repeat(np.arange(size), np.arange(size) + 1).astype(float)
        want = want if pattern == "allgather" or rank == size - 1 else want[:0]
    np.testing.assert_array_equal(forest.bcast(roots), want)
    forest.free()


@pytest.mark.parametrize("kind", ["split", "grid", "replicated", "partly replicated"])
def test_roots_of_a_layout(comm, kind):
    from collops.array import Layout, from_global

    size = comm.size
    shape = (3, 5)
    if kind == "split":
        layout = Layout.split(shape, size, axis=1, sizes=[5, *[0] * (size - 1)])
    elif kind == "grid":
        layout = Layout.grid(shape, (1, size))
    elif kind == "replicated":
        layout = Layout.replicated(shape, size)
    elif size % 2:
        pytest.skip("needs an even number of ranks")
    else:
        layout = Layout(shape, size, (2, size // 2), (0, None))
    values_ = np.arange(15.0).reshape(shape)
    local = from_global(values_, layout, comm=comm).local_array
    wanted = np.random.default_rng(comm.rank).integers(0, 15, 6)
    forest = StarForest.from_layout(comm, layout, wanted, [7, 1, 2, 3, 4, 5])
    got = forest.bcast(np.ascontiguousarray(local).reshape(-1))
    assert got[[7, 1, 2, 3, 4, 5]].tolist() == wanted.tolist()
    if kind == "replicated":
        assert (forest.remote_ranks == comm.rank).all()
    forest.free()


LAST = object()  # stands for the last rank


@pytest.mark.parametrize(
    ("leaves", "ranks", "indices", "text"),
    [
        ([0, 0], [0, 0], [0, 0], "leaf 0 is used 2 times"),
        ([-1], [0], [0], "leaf -1 is negative"),
        ([0, 1], [0], [0], "must have the same length"),
        (None, [99], [0], "root on rank 99"),
        (None, [0], [3], "refers to root 3 of rank 0, which has 3 roots"),
        (None, [0], [-1], "refers to root -1 of rank 0"),
        (None, [[0]], [[0]], "must have one axis"),
        (None, [0], [2**63], "9223372036854775808, which does not fit into a 64-bit index"),
        (None, [0], [2**70], "which does not fit into a 64-bit index"),
        ([2**63], [0], [0], "leaves has 9223372036854775808"),
        (None, [-(2**64)], [0], "remote_ranks has -18446744073709551616"),
        (None, [[0], [0, 1]], [0], "must be a list of integers"),
    ],
)
def test_wrong_edges_are_one_error_on_all_ranks(comm, leaves, ranks, indices, text):
    wrong = comm.rank == comm.size - 1
    with pytest.raises(LayoutError, match=text) as caught:
        StarForest(comm, 3, leaves if wrong else None, ranks if wrong else [], indices if wrong else [])
    assert ("rank" in str(caught.value)) or comm.size == 1


def test_sizes_beyond_64_bits_are_one_error_on_all_ranks(comm):
    large = 2**64 if comm.rank == comm.size - 1 else 1
    with pytest.raises(LayoutError, match="cannot count 18446744073709551616 roots"):
        StarForest(comm, large, None, [0], [0])
    with pytest.raises(LayoutError, match="cannot count 18446744073709551616 roots"):
        StarForest.from_pattern(comm, "allgather", large)
    forest = StarForest(comm, 1, None, [0], [0])
    with pytest.raises(LayoutError, match="cannot count 18446744073709551616 points in a root stride"):
        forest.strided(2, root_stride=large)
    with pytest.raises(LayoutError, match="root values"):
        forest.strided(2**62, root_stride=2)
    with pytest.raises(LayoutError, match="leaf_offsets has 18446744073709551616"):
        StarForest.concatenate([forest], leaf_offsets=[large] if large > 1 else [0])
    with pytest.raises(LayoutError, match="elements of the source"):
        IndexScatter(large, [0], 1, [0], comm=comm)
    with pytest.raises(LayoutError, match="source_indices has 18446744073709551616"):
        IndexScatter(3, [large] if large > 1 else [0], 1, [0], comm=comm)
    with pytest.raises(LayoutError, match="columns has 18446744073709551616"):
        CSRMatrix.from_coo([0], [large] if large > 1 else [0], [1.0], (4, 4), comm=comm)


def test_wrong_types_and_shapes(comm):
    with pytest.raises(UnsupportedTypeError, match="must be integers"):
        StarForest(comm, 3, None, [0.5], [0])
    with pytest.raises(UnsupportedTypeError, match="columns must be integers, not float64"):
        CSRMatrix.from_coo([0], [0.5], [1.0], (4, 4), comm=comm)
    with pytest.raises(LayoutError, match="negative"):
        StarForest(comm, -1, None, [], [])
    with pytest.raises(LayoutError, match="integer"):
        StarForest(comm, 1.5, None, [], [])
    with pytest.raises(InputError, match="unknown pattern 'star'"):
        StarForest.from_pattern(comm, "star")
    forest = StarForest(comm, 2, [3], [comm.rank], [1])
    with pytest.raises(LayoutError, match="roots must have 2 points"):
        forest.bcast(np.zeros(3))
    with pytest.raises(LayoutError, match="leaves must have at least 4 points"):
        forest.reduce(np.zeros(3), np.zeros(2))
    with pytest.raises(UnsupportedTypeError, match="share engine and dtype"):
        forest.bcast(np.zeros(2), np.zeros(4, "f4"))
    with pytest.raises(LayoutError, match="shape"):
        forest.bcast(np.zeros((2, 3)), np.zeros((4, 2)))
    with pytest.raises(LayoutError, match="contiguous"):
        forest.bcast(np.zeros(2), np.zeros(8)[::2])
    with pytest.raises(UnsupportedTypeError, match="expected an array"):
        forest.bcast([1.0, 2.0], np.zeros(4))
    with pytest.raises(UnsupportedTypeError, match="complex"):
        forest.reduce(np.zeros(4, complex), np.zeros(2, complex), "max")
    with pytest.raises(UnsupportedTypeError, match="unknown operation"):
        forest.reduce(np.zeros(4), np.zeros(2), "mean")
    np.testing.assert_array_equal(forest.bcast(np.arange(4.0)[::2]), [0, 0, 0, 2])


def test_deep_copies_are_the_forest_itself(comm):
    ring = StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0])
    assert copy.deepcopy({"ring": ring})["ring"] is ring


def test_leaves_are_combined_in_the_order_of_edges(comm) -> None:
    # PETSc would sort the edges of a rank by leaf.
    forest = StarForest(comm, int(comm.rank == 0), [3, 1, 2], [0, 0, 0], [0, 0, 0])
    leaves, roots = 10.0 * comm.rank + np.arange(5), np.full(forest.nroots, 0.5)
    sent = np.concatenate([10.0 * rank + np.array([3, 1, 2]) for rank in range(comm.size)])
    gathered = forest.gather(leaves)
    reduced = forest.reduce(leaves, roots - 5, "replace")
    fetched = np.full(5, -1.0)
    forest.fetch_and_op(roots, leaves, fetched, "sum")
    sums = 0.5 + np.concatenate([[0.0], np.cumsum(sent)])
    np.testing.assert_array_equal(fetched[[3, 1, 2]], sums[3 * comm.rank :][:3])
    if comm.rank == 0:
        np.testing.assert_array_equal(gathered, sent)
        assert reduced == sent[-1] and roots == sums[-1]
