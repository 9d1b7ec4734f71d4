"""Wavefields that a derivative keeps from modelling: the same bits, no step computed twice, and their memory."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

import collops
from collops.seismic.waves import Grid, Propagator, WaveformMisfit, modelling
from collops.seismic.waves.march import March
from collops.solvers.nonlinear import lbfgs
from tests.seismic.test_waves import arrays_of, linearised_products, products, small
from tests.seismic.wave_media import parameters_of


@pytest.mark.parametrize(("medium", "time_order"), [("constant", 2), ("density", 4), ("attenuation and VTI", 4)])
def test_products_are_the_same_bits(comm, monkeypatch, medium, time_order):
    grid, geometry = small(2, 4, samples=12)
    grid = Grid(grid.shape, grid.spacing, 4, grid.layers, grid.free_surface, time_order)
    tiles = (comm.size, 1) if comm.size < 4 else None
    options = {"dtype": "float64", "kernels": "numpy", "comm": comm, **parameters_of(medium, grid)}
    F = Propagator(grid, geometry, tiles=tiles, **options)
    expected = products(F)
    for shots in (None, 2, 3):  # of three, none is kept, then one, then all
        memory = None if shots is None else shots * F.storage.bytes
        assert linearised_products(Propagator(grid, geometry, tiles=tiles, memory=memory, **options)) == expected
    # With little memory on one rank, other tiles of its shots keep as few.
    monkeypatch.setattr(modelling, "available_memory", lambda processes: 0 if comm.rank == 0 else 1 << 40)
    assert linearised_products(Propagator(grid, geometry, tiles=tiles, memory=memory, **options)) == expected


def test_an_evaluation_computes_each_step_once(comm, monkeypatch):
    """L-BFGS needs the residual and the gradient at each point, and one product at the first."""
    grid, geometry = small(2, 4, samples=12)
    counts = {"_advance": 0, "_scatter": 0, "_retreat": 0}
    for name in counts:
        method = getattr(March, name)

        def counted(self, *arguments, name=name, method=method):
            counts[name] += 1
            return method(self, *arguments)

        monkeypatch.setattr(March, name, counted)
    one = Propagator(grid, geometry, kernels="numpy", comm=comm)
    steps, shots = geometry.shape[2] - 1, len(one.shots)
    for kept, memory in ((shots, 3 * one.storage.bytes), (shots == 1, None)):
        F = Propagator(grid, geometry, kernels="numpy", memory=memory, dtype="float32", comm=comm)
        problem = WaveformMisfit(F, F(collops.full(F.domain, 2050.0, comm=comm)))
        counts.update(dict.fromkeys(counts, 0))
        lbfgs(problem, collops.full(F.domain, 2000.0, comm=comm), niter=1, lower=1500.0)
        again = shots - int(kept)  # shots of which a gradient, and the first product, compute the wavefields again
        assert counts["_retreat"] == 2 * shots * steps
        assert counts["_scatter"] == shots * steps
        assert counts["_advance"] == (2 * (shots + again) + again) * steps
    # A model that has changed in place since its residual, on one of the ranks, has a derivative of its own.
    model = collops.full(F.domain, 2000.0, comm=comm)
    problem.residual(model)
    assert problem.jacobian(model) is problem.jacobian(model.copy())
    model.local_array[0, 0] += 10.0 * (comm.rank == 0)
    assert problem.jacobian(model) is not problem.jacobian(model)


def device_engine(returned):
    """An engine of a device, of which `kept` needs the pool; its free blocks are counted in a list."""
    pool = SimpleNamespace(free_all_blocks=lambda: returned.append(1))
    return SimpleNamespace(memory="device", xp=SimpleNamespace(get_default_memory_pool=lambda: pool))


@pytest.mark.parametrize("share", [False, pytest.param(True, marks=pytest.mark.needs_ranks(2))])
def test_devices_keep_the_wavefields_of_all_shots_or_of_none(comm, monkeypatch, share):
    """Ranks on one device divide what is free there."""
    grid, geometry = small(2, 4, samples=12)
    size = Propagator(grid, geometry, kernels="numpy", comm=comm).storage.bytes
    shared = Propagator(grid, geometry, kernels="numpy", memory=3 * size, comm=comm)._modelling
    shots, ranks = len(shared.shots), comm.size if share else 1
    monkeypatch.setattr(modelling, "name_of_device", lambda: "a" if share else f"a{comm.rank}")
    for fitting in range(4):
        free = 2 * fitting * size
        monkeypatch.setattr(modelling, "available_memory", lambda processes, free=free: free)
        monkeypatch.setattr(modelling, "free_memory", lambda engine, free=free: free * ranks)
        engines = SimpleNamespace(memory="host"), device_engine([])
        on_host, on_device = ((len(kept), again) for kept, again in (shared.kept(each, list) for each in engines))
        assert on_host == (shots if shots <= fitting else max(0, fitting - 1), True)
        fits = max(shared.range.sizes[0]) <= fitting
        assert on_device == (shots * fits, fits)


def test_without_memory_for_them_wavefields_are_not_kept(comm, monkeypatch):
    """On one rank, so that all ranks of its tiles, or all of a device, drop theirs; products need no kept ones."""
    grid, geometry = small(2, 4, samples=12)
    options = {"tiles": (comm.size, 1), "kernels": "numpy", "dtype": "float64", "comm": comm}
    memory = 3 * Propagator(grid, geometry, **options).storage.bytes
    F = Propagator(grid, geometry, memory=memory, **options)
    expected, kept, make = products(F), F._modelling.kept, March.wavefields
    calls = []

    def wavefields(march=None):
        calls.append(march)
        if comm.rank == comm.size - 1 and len(calls) % 2 == 0:  # the second of three
            raise MemoryError("no memory")
        return march and make(march)

    monkeypatch.setattr(March, "wavefields", wavefields)
    assert linearised_products(F) == expected and calls
    monkeypatch.setattr(modelling, "name_of_device", lambda: f"a{comm.rank}")
    monkeypatch.setattr(modelling, "free_memory", lambda engine: 1 << 40)
    returned, calls = [], []
    assert kept(device_engine(returned), wavefields) == ({}, False) and returned
    assert kept(SimpleNamespace(memory="host"), wavefields) == ({}, True)


def test_modelling_keeps_no_wavefields(comm):
    grid, geometry = Grid((60, 50), (10.0, 10.0), order=2), small(samples=50)[1]  # larger than what sources need
    F = Propagator(grid, geometry, kernels="numpy", comm=comm)
    model, _, data = arrays_of(F)
    data = data.astype("float32")
    F(model)  # makes what all calls share
    J = F.jacobian(model)
    tracemalloc.start()
    try:
        F(model)
        assert tracemalloc.get_traced_memory()[1] < F.storage.bytes / 2
        J.adjoint(data)
        expected = F.storage.bytes if F.shots else 0
        assert 0.99 * expected <= tracemalloc.get_traced_memory()[1] < 1.5 * F.storage.bytes
        del J
        kept = Propagator(grid, geometry, kernels="numpy", memory=3 * F.storage.bytes, comm=comm).linearise(model)
        wavefields = len(F.shots) * F.storage.bytes
        assert wavefields <= tracemalloc.get_traced_memory()[0] < wavefields + F.storage.bytes / 3
        del kept
        assert tracemalloc.get_traced_memory()[0] < F.storage.bytes / 3
    finally:
        tracemalloc.stop()
    assert np.isfinite(data.local_array).all()
