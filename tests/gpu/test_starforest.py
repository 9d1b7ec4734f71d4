"""Star forests on device arrays: every transport and mover against the same on the host, and in a CUDA graph."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops import IndexScatter, StarForest
from collops.array import Layout
from collops.backend import engine
from collops.exchange import TRANSPORTS, possible_transports
from collops.exchange.packing import Index
from tests.exchange.model import Graph, operations, values, with_nan

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

DTYPES = (
    *("float16", "float32", "float64", "complex64", "complex128", "int8", "uint8", "int16", "int32", "uint32"),
    *("int64", "uint64", "bool"),
)


@pytest.fixture(params=TRANSPORTS, scope="module")
def transport(request, comm):
    if request.param != "auto" and request.param not in possible_transports(comm, engine("cupy")):
        pytest.skip(f"no transport {request.param} between these ranks' devices")
    return request.param


def forest_of(comm, graph, **options):
    rank = comm.rank
    edges = graph.nroots[rank], graph.leaves[rank], graph.ranks[rank], graph.indices[rank]
    return StarForest(comm, *edges, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_movers_have_the_bits_of_the_host(comm, dtype):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        graph = Graph.drawn(rng, comm.size, most_roots=40, most_leaves=90)
        forest = forest_of(comm, graph)
        block = ((), (3,), (2, 2))[seed]
        roots = values(rng, graph.nroots, block, dtype)[comm.rank]
        leaves = values(rng, [graph.space(r) + 1 for r in range(comm.size)], block, dtype)[comm.rank]
        for op in operations(dtype):
            host = forest.bcast(roots, leaves.copy(), op)
            got = forest.bcast(cupy.asarray(roots), cupy.asarray(leaves), op)
            assert got.get().tobytes() == host.tobytes(), (op, "bcast", seed)
            host = forest.reduce(leaves, roots.copy(), op)
            got = forest.reduce(cupy.asarray(leaves), cupy.asarray(roots), op)
            assert got.get().tobytes() == host.tobytes(), (op, "reduce", seed)
            host_roots, device_roots = roots.copy(), cupy.asarray(roots)
            host = forest.fetch_and_op(host_roots, leaves, op=op)
            got = forest.fetch_and_op(device_roots, cupy.asarray(leaves), op=op)
            assert got.get().tobytes() == host.tobytes(), (op, "fetch", seed)
            assert device_roots.get().tobytes() == host_roots.tobytes(), (op, "fetch", seed)
        np.testing.assert_array_equal(forest.gather(cupy.asarray(leaves)).get(), forest.gather(leaves))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_nan_wins(comm, transport, dtype, op):
    rng = np.random.default_rng(5)
    graph = Graph.drawn(rng, comm.size, most_roots=40, most_leaves=90)
    forest = forest_of(comm, graph, transport=transport)
    roots = with_nan(rng, values(rng, graph.nroots, (), dtype))
    leaves = with_nan(rng, values(rng, [graph.space(r) for r in range(comm.size)], (), dtype))
    mine = cupy.asarray(roots[comm.rank]), cupy.asarray(leaves[comm.rank])
    up = forest.reduce(mine[1], mine[0].copy(), op).get()
    np.testing.assert_array_equal(up, graph.reduce(leaves, roots, op)[comm.rank])
    down = forest.bcast(*mine, op).get()
    np.testing.assert_array_equal(down, graph.bcast(roots, leaves, op)[comm.rank])


def test_transports_carry_the_same_bits(comm, transport):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        graph = Graph.drawn(rng, comm.size, most_roots=300, most_leaves=700)
        with forest_of(comm, graph, transport=transport) as forest:
            under_way = []
            for op in ("replace", "sum", "max", "sum"):  # more than there are slots, each with values of its own
                roots = values(rng, graph.nroots, (), "float32")
                leaves = values(rng, [graph.space(r) for r in range(comm.size)], (), "float32")
                mine = cupy.asarray(roots[comm.rank]), cupy.asarray(leaves[comm.rank])
                want = graph.bcast(roots, leaves, op)[comm.rank]
                under_way.append((forest.start_bcast(mine[0], mine[1].copy(), op), want))
                want = graph.reduce(leaves, roots, op)[comm.rank]
                under_way.append((forest.start_reduce(mine[1], mine[0].copy(), op), want))
            for started, want in reversed(under_way):
                assert started.finish().get().tobytes() == want.tobytes()


def test_long_messages(comm, transport):
    size = 1 << 21
    rng = np.random.default_rng(comm.rank)
    ranks, indices = rng.integers(0, comm.size, size), rng.integers(0, size, size)
    with StarForest(comm, size, None, ranks, indices, transport=transport) as forest:
        for turn in range(4):
            roots = cupy.arange(size) + 10000000 * comm.rank + turn
            got = forest.bcast(roots)
            assert bool((got == cupy.asarray(indices + 10000000 * ranks + turn)).all())


@pytest.mark.parametrize(
    "points", [[5], range(7, 20), range(1, 40, 3), np.arange(60).reshape(3, 4, 5)[:, 1:3, ::2], [3, 1, 4]]
)
def test_patterns_and_index_arrays(comm, points):
    index = Index(np.asarray(points).reshape(-1))
    forest = StarForest(comm, 64, None, np.full(index.size, (comm.rank + 1) % comm.size), index.points)
    roots = cupy.arange(64, dtype="f8") + 100 * comm.rank
    want = index.points + 100 * ((comm.rank + 1) % comm.size)
    np.testing.assert_array_equal(forest.bcast(roots).get(), want)


def test_sums_in_any_order(comm):
    forest = StarForest(comm, 2, None, [0] * 5000, [0, 1] * 2500, deterministic=False)
    for dtype in ("float32", "float64", "complex64", "int32", "int64"):
        sums = forest.reduce(cupy.ones(5000, dtype), cupy.zeros(2, dtype))
        np.testing.assert_array_equal(sums.get(), 2500 * comm.size if comm.rank == 0 else 0)


def test_replayed(comm):
    """Transports that never block the host can be recorded; a replay moves the values of its own time."""
    names = [name for name in possible_transports(comm, engine("cupy")) if name in ("nccl", "symmetric")]
    for name in [*names, *(["auto"] if names or comm.size == 1 else [])]:
        ranks = [(comm.rank + 1) % comm.size] * 64
        forest = StarForest(comm, 64, None, ranks, np.arange(64)[::-1], transport=name)
        roots, leaves, sums = cupy.zeros(64), cupy.zeros(64), cupy.zeros(64)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            for _ in range(2):
                forest.bcast(roots, leaves)
                forest.reduce(leaves, sums)
            sums.fill(0)
            stream.synchronize()
            stream.begin_capture()
            forest.bcast(roots, leaves)
            forest.reduce(leaves, sums)
            graph = stream.end_capture()
            for turn in range(1, 6):
                roots[...] = cupy.arange(64) * turn + comm.rank
                graph.launch()
            stream.synchronize()
        following = (comm.rank + 1) % comm.size
        np.testing.assert_array_equal(leaves.get(), np.arange(64)[::-1] * 5 + following)
        np.testing.assert_array_equal(sums.get(), np.arange(64) * 15 + 5 * comm.rank)
        forest.free()


def test_scatters(comm):
    layout = Layout.split(101, comm.size)
    mine = np.arange(101)[layout.slices(comm.rank)]
    permutation = np.random.default_rng(1).permutation(101)
    scatter = IndexScatter(layout, mine, layout, permutation[mine], comm=comm)
    x = collops.from_global(np.arange(101.0), layout, comm=comm, engine="cupy")
    y = scatter.forward(x, collops.zeros_like(x))
    np.testing.assert_array_equal(cupy.asnumpy(y.gather())[permutation], np.arange(101.0))
    np.testing.assert_array_equal(cupy.asnumpy(scatter.reverse(y, collops.zeros_like(x)).gather()), np.arange(101.0))
    scatter.free()
