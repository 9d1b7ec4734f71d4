"""All transports carry the same bits, and one table says which there are and when they can be used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import collops
from collops import profile
from collops.backend import engine
from collops.comm import parts, symmetric
from collops.errors import InputError
from collops.exchange import TRANSPORTS, StarForest, possible_transports
from collops.extend.exchanges import Exchange
from tests.docs.pages import ROOT, names_of_table
from tests.exchange.model import Graph, values
from tests.exchange.test_forest import EXAMPLES

PLACES = {
    "mpi": "several ranks with MPI",
    "tcp": "several ranks without MPI (tests/comm/test_tcp.py runs these tests there)",
    "shared": "ranks of one host, with MPI",
    "mixed": "several hosts, of which one has several ranks, with MPI",
}


class AllToAll(Exchange):
    """All values by one call of the communicator."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.allocate()
        self.counts = [side.counts(self.comm.size) for side in (self.pattern.sends, self.pattern.receives)]

    def send(self, slot, use):
        self.comm.alltoallv(self.outgoing[slot][0], *self.counts, out=self.incoming[slot])


@pytest.fixture(params=("auto", "mpi", "tcp", "shared", "mixed", AllToAll), scope="module")
def transport(request, comm):
    if request.param not in ("auto", AllToAll) and request.param not in possible_transports(comm, engine()):
        pytest.skip(f"the transport {request.param} needs {PLACES[request.param]}")
    return request.param


@settings(max_examples=EXAMPLES // 8)
@given(seed=st.integers(0, 2**32 - 1))
def test_transports_carry_the_same_bits(comm, transport, seed):
    rng = np.random.default_rng(seed)
    graph = Graph.drawn(rng, comm.size, most_roots=4, most_leaves=12)
    rank = comm.rank
    edges = (graph.nroots[rank], graph.leaves[rank], graph.ranks[rank], graph.indices[rank])
    block = ((), (2,))[rng.integers(2)]
    with StarForest(comm, *edges, transport=transport) as forest:
        under_way = []
        for op in ("replace", "sum", "min", "max", "sum"):  # more than there are slots, each with values of its own
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


def test_long_messages_and_use_after_free(comm, transport):
    size, width = 3001, 23  # points too few for compiled loops
    rng = np.random.default_rng(comm.rank)
    ranks, indices = rng.integers(0, comm.size, size), rng.integers(0, size, size)
    forest = StarForest(comm, size, None, ranks, indices, transport=transport)
    for turn in range(3):
        roots = (np.arange(size) + 1000000 * comm.rank + turn)[:, None] + np.arange(width) * 10000
        want = (indices + 1000000 * ranks + turn)[:, None] + np.arange(width) * 10000
        np.testing.assert_array_equal(forest.bcast(roots), want)
    forest.free()
    np.testing.assert_array_equal(forest.bcast(roots), want)
    forest.free()


@pytest.mark.parametrize("shape", ["neighbours", "one root rank", "all roots everywhere"])
def test_long_runs_of_points(comm, transport, shape, monkeypatch):
    monkeypatch.setattr("collops.exchange.transports.mpi._MAX_CACHED", 5)
    count, size = 600, comm.size  # in blocks of two, long enough to leave from, and arrive in, the arrays themselves
    run, zero = np.arange(count), np.zeros(count, int)
    owners = {"neighbours": lambda r: [(r + 1) % size, (r + 2) % size], "one root rank": lambda r: [0]}
    owned = [owners.get(shape, lambda r: range(size))(rank) for rank in range(size)]
    ranks = [np.concatenate([zero + owner for owner in each]) for each in owned]
    indices = [np.concatenate([run + 3 for _ in each]) for each in owned]
    leaves = [np.arange(len(each)) + 5 for each in ranks]
    leaves[-1] = leaves[-1][::-1]  # one rank packs, whatever the others do
    graph = Graph([count + 3] * size, leaves, ranks, indices)
    rank = comm.rank
    rng = np.random.default_rng(7)
    with StarForest(comm, count + 3, leaves[rank], ranks[rank], indices[rank], transport=transport) as forest:
        kept = []
        for op in ("replace", "sum") * 4:  # with new arrays each time, more than messages are kept for
            roots = values(rng, graph.nroots, (2,), "float64")
            there = values(rng, [graph.space(r) + 1 for r in range(size)], (2,), "float64")
            late = forest.start_bcast(roots[rank], there[rank].copy(), op)
            down = forest.bcast(roots[rank].copy(), there[rank].copy(), op)
            assert down.tobytes() == graph.bcast(roots, there, op)[rank].tobytes()
            up = forest.reduce(there[rank], roots[rank].copy(), op)
            assert up.tobytes() == graph.reduce(there, roots, op)[rank].tobytes()
            assert late.finish().tobytes() == down.tobytes()
            kept.append((down, up))


def test_a_displaced_transfer_is_finished_before_others_begin(comm, transport):
    """More are in flight than an exchange has buffers; the buffer of the oldest has a newer one's values."""
    forest = StarForest(comm, 2, None, [(comm.rank + 1) % comm.size] * 2, [0, 1], transport=transport)
    after, under_way = (comm.rank + 1) % comm.size, []
    for step in range(12):
        under_way.append((forest.start_bcast(np.array([10.0 * step + comm.rank, step])), step))
        if len(under_way) == 4:
            for which in (0, -1):  # a displaced one, and one in its buffer
                started, number = under_way.pop(which)
                assert started.finish().tolist() == [10 * number + after, number]
    for started, number in under_way:
        assert started.finish().tolist() == [10 * number + after, number]
    forest.free()


def test_moves_between_one_source_and_several_targets(comm, transport):
    """Long runs of points, for which messages are kept, each for one source and one target."""
    count = 400
    forest = StarForest(comm, count, None, [(comm.rank + 1) % comm.size] * count, range(count), transport=transport)
    roots, targets = np.empty(count), [np.zeros(count) for _ in range(3)]
    for step in range(6):
        roots[...] = np.arange(count) + 1000 * comm.rank + step
        for target in targets:
            target[...] = -1
        assert forest.bcast(roots, targets[step % 3]) is targets[step % 3]
        want = np.arange(count) + 1000 * ((comm.rank + 1) % comm.size) + step
        for number, target in enumerate(targets):
            np.testing.assert_array_equal(target, want if number == step % 3 else -np.ones(count))
    forest.free()


def test_the_last_leaf_replaces_a_root_when_messages_are_early(comm, transport):
    """A root's own leaf comes before those of other ranks, also if these have arrived before the call."""
    if transport is AllToAll:
        pytest.skip("an all-to-all waits for all ranks: no message is early")
    count = 400
    forest = StarForest(comm, count if comm.rank == 0 else 0, None, [0] * count, range(count), transport=transport)
    leaves = np.arange(count) + 1000.0 * comm.rank
    for early in (False, True, True):
        if early and comm.rank == 0:
            comm.barrier()  # which the others enter when they have sent, and in which their messages arrive
        roots = forest.reduce(leaves, np.zeros(forest.nroots), "replace")
        if early and comm.rank > 0:
            comm.barrier()
        np.testing.assert_array_equal(roots, (np.arange(count) + 1000.0 * (comm.size - 1))[: forest.nroots])
    forest.free()


def test_transports_in_the_documented_order(comm):
    possible = possible_transports(comm, engine())
    if comm.control is None:
        assert possible == []
    elif comm.host_transport == "tcp":
        assert possible == ["tcp"]
    else:
        hosts = comm.control.allgather(comm.local_rank).count(0)
        memory = ["shared"] if hosts == 1 else ["mixed"] if hosts < comm.size else []
        assert possible == [*memory, "mpi"]
        assert (f"each of {hosts} nodes" in comm.describe()) == (memory == ["mixed"])


def test_a_transport_that_is_not_possible(comm):
    following = (comm.rank + 1) % comm.size
    forest = StarForest(comm, 1, None, [following], [0], transport="nccl")
    if comm.size == 1:
        assert forest.bcast(np.ones(1)).tolist() == [1]  # nothing is sent
        return
    with pytest.raises(
        InputError, match="'nccl' cannot send numpy arrays between these ranks: it supports arrays in dev"
    ):
        forest.bcast(np.ones(1))
    other = forest.with_transport(possible_transports(comm, engine())[-1])
    assert other.bcast(np.array([comm.rank])).tolist() == [following]


def test_a_class_as_transport(comm):
    edges = 1, None, [(comm.rank + 1) % comm.size], [0]
    forest = StarForest(comm, *edges, transport=AllToAll)
    assert f"transport {AllToAll.__name__}>" in repr(forest)
    with pytest.raises(InputError, match="subclass of Exchange"):
        StarForest(comm, *edges, transport=AllToAll(comm, forest.pattern, np.dtype(float), 1, engine(), 0))
    layout, moved = collops.Layout.split(7, comm.size), 1 if comm.size > 1 else 0
    scatters = (
        collops.IndexScatter.to_all(layout, comm=comm, transport=AllToAll),
        collops.IndexScatter.to_all(layout, comm=comm).with_transport(AllToAll),
    )
    matrix = collops.CSRMatrix.from_global(sparse.eye_array(7, k=1).tocsr(), comm=comm, transport=AllToAll)
    with profile.count_messages() as sent:
        for scatter in scatters:
            whole = collops.zeros(scatter.target, comm=comm)
            scatter.forward(collops.from_global(np.arange(7.0), layout), whole)
            assert whole.local_array.tolist() == [*range(7)]
        assert (matrix @ collops.ones(7)).gather().tolist() == [1.0] * 6 + [0.0]
    assert sent["alltoallv"] == 3 * moved


def test_ranks_that_name_different_transports(comm):
    class Other(AllToAll):
        pass

    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    for first, others in ((AllToAll, Other), (AllToAll, "auto"), ("mpi", "staged")):
        forest = StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0], transport=others if comm.rank else first)
        with pytest.raises(InputError, match="a transport differs between ranks") as caught:
            forest.bcast(np.ones(1))
        assert caught.value.on_all_ranks


def test_auto_takes_the_next_one_where_a_host_cannot_have_the_first(comm, monkeypatch):
    possible = possible_transports(comm, engine())
    if len(possible) < 2 or comm.size == 1:
        pytest.skip("needs ranks that share memory")

    monkeypatch.setattr(parts, "_SHARED", 0)  # earlier pieces have places
    lack, scarce = symmetric._lack_of, comm.nodes[0]  # one of the hosts has no memory
    monkeypatch.setattr(
        symmetric, "_lack_of", lambda size: MemoryError("no window") if comm.nodes[comm.rank] == scarce else lack(size)
    )
    following = (comm.rank + 1) % comm.size
    forest = StarForest(comm, 1, None, [following], [0])
    assert forest.bcast(np.array([comm.rank])).tolist() == [following]
    with pytest.raises(MemoryError, match="no window"):
        forest.with_transport(possible[0]).bcast(np.ones(1))


def test_a_forest_knows_whether_a_graph_can_record_its_moves(comm, monkeypatch):
    class OnStream(AllToAll):
        on_stream = True

    forest = StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0])
    if comm.size == 1:
        assert forest.with_transport("staged").on_stream  # nothing is sent
        return
    known = {name: forest.with_transport(name).on_stream for name in ("auto", "mpi", "staged", "nccl", "shared")}
    # There is no device here, and "nccl" raises its own error when it is made.
    assert known == {"auto": False, "mpi": False, "staged": False, "nccl": True, "shared": False}
    assert not forest.with_transport(AllToAll).on_stream and forest.with_transport(OnStream).on_stream
    monkeypatch.setattr(type(comm), "device_transport", "nccl")
    known = {name: forest.with_transport(name).on_stream for name in ("auto", "mpi", "staged", "nccl", "shared")}
    assert known == {"auto": True, "mpi": False, "staged": False, "nccl": True, "shared": False}


def test_the_page_lists_the_table(comm):
    listed = names_of_table(ROOT / "docs" / "starforest.md", "name")
    assert listed == [*TRANSPORTS[1:], "auto"]


def test_names_that_do_not_exist(comm):
    with pytest.raises(InputError, match="no transport 'pigeon'; choose auto"):
        StarForest(comm, 1, None, [0], [0], transport="pigeon")
