"""The kernels of one-sided stores, compiled for the host, between ranks whose memory is a shared window of MPI."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

import collops.exchange.packing
from collops.backend import Engine
from collops.exchange.exchange import Exchange, Mover
from tests.exchange.host_cuda import COMPILER, Array, fake_cupy
from tests.exchange.model import Graph, values
from tests.exchange.test_forest import forest_of

FAKED = (
    "collops.comm.device_launch",
    "collops.exchange.packing.cupy_moves",
    "collops.exchange.transports.symmetric",
)


class _Memory:
    """Symmetric memory of hosts that looks like that of devices."""

    def __init__(self, window):
        self._window = window
        self.local = window.local.view(Array)
        self.free, self.barrier, self.fence, self._wait = window.free, window.barrier, window.fence, window._wait

    def peer(self, rank):
        return self._window.peer(rank).view(Array)


class _Ranks:
    """A communicator whose symmetric memory is on the host."""

    def __init__(self, comm):
        self._comm = comm

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def symmetric(self, shape, dtype, engine):
        return _Memory(self._comm.symmetric(shape, dtype, engine="numpy"))


class _Engine(Engine):
    """The engine of a stand-in for CuPy."""

    def synchronize(self):
        pass


@pytest.fixture(scope="module")
def device(comm, tmp_path_factory):
    """A function that makes exchanges, and the engine of their arrays."""
    if COMPILER is None or comm.control is None or comm.local_size < comm.size:
        pytest.skip("needs a C++ compiler, MPI, and ranks of one host")
    with pytest.MonkeyPatch.context() as patch:
        for name in FAKED:
            patch.delitem(sys.modules, name, raising=False)
        patch.setitem(sys.modules, "cupy", fake_cupy(tmp_path_factory.mktemp("kernels")))
        patch.delattr(collops.exchange.packing, "cupy_moves", raising=False)
        symmetric = importlib.import_module("collops.exchange.transports.symmetric")
        # Threads of a block cannot wait for each other here, but blocks can.
        patch.setattr(
            sys.modules["collops.exchange.packing.cupy_moves"], "wait_while_source", str, raising=False
        )  # deadlines of devices
        symmetric._THREADS = symmetric._WAITING = 1
        engine = _Engine("cupy", sys.modules["cupy"], "device")

        def exchange_of(pattern, dtype, width):
            kind = symmetric.SymmetricExchange if pattern.most_points and width else Exchange
            return kind(_Ranks(comm), pattern, dtype, width, engine, 0)

        yield exchange_of
        for name in FAKED:
            sys.modules.pop(name, None)
        del collops.exchange.packing.cupy_moves


@pytest.mark.parametrize(
    ("dtype", "block", "op", "most"),
    [
        ("float32", (), "sum", 100),
        ("float32", (), "sum", 12),
        ("float32", (3,), "replace", 100),
    ],
)
def test_kernels(comm, device, monkeypatch, dtype, block, op, most):
    # Some ranks take what arrives by the kernel that waits for it, and some by others, where `most` is small.
    monkeypatch.setattr(sys.modules["collops.exchange.transports.symmetric"], "_MAX_AT_ONCE", most)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        graph = Graph.drawn(rng, comm.size, most_roots=5, most_leaves=12)
        forest = forest_of(comm, graph, transport="mpi")
        roots = values(rng, graph.nroots, block, dtype)
        leaves = values(rng, [graph.space(r) for r in range(comm.size)], block, dtype)
        mine = [arrays[comm.rank].view(Array) for arrays in (roots, leaves)]
        patterns = forest.pattern, forest.pattern.reversed()
        down, up = (device(pattern, np.dtype(dtype), int(np.prod(block))) for pattern in patterns)
        movers = [Mover(exchange, op, block, True, "") for exchange in (down, up)]
        wants = graph.bcast(roots, leaves, op)[comm.rank], graph.reduce(leaves, roots, op)[comm.rank]
        under_way = []
        for turn in range(3):  # more than there are slots
            for mover, source, target, want in zip(movers, mine, mine[::-1], wants, strict=True):
                whole, halves = target.copy(), target.copy()
                if turn != 1:
                    mover.move(source, whole)
                    assert whole.tobytes() == want.tobytes()
                under_way.append((mover.start(source, halves), want))
        for number in np.random.default_rng(seed + comm.rank).permutation(len(under_way)):
            started, want = under_way[number]
            assert started.finish().tobytes() == want.tobytes()
        for exchange in (down, up):
            exchange.free()
