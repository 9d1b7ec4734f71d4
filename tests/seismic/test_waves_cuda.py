"""The time loops of devices with their CUDA kernels, compiled for the host: the same bits as NumPy's steps."""

from __future__ import annotations

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic.waves import Geometry, Grid, Layers, Propagator
from collops.seismic.waves.cuda import march, storage
from tests.seismic.test_waves import linearised_products, products, small
from tests.seismic.waves_on_host import COMPILER

pytestmark = [pytest.mark.serial, pytest.mark.skipif(COMPILER is None, reason="needs g++")]


def test_two_axes_and_any_storage(comm, on_device, monkeypatch):
    """All wavefields, checkpoints, what does not fit the device, and compressed wavefields."""
    grid, geometry = small(2, 4, surface=True, shots=2, samples=45)
    host = Propagator(grid, geometry, kernels="numpy", comm=comm)
    expected, whole = products(host), host.storage.bytes
    lossy = {"memory": whole // 3, "wavefield_bits": 16}
    compressed = Propagator(grid, geometry, kernels="numpy", comm=comm, **lossy)
    assert compressed.storage.bits == 16 and compressed.storage.checkpoints
    expected_compressed, size = products(compressed), compressed.storage.bytes
    on_device()
    for memory, free in [(None, 1 << 40), (whole // 4, 1 << 40), (None, whole // 3), (whole // 4, whole // 8)]:
        monkeypatch.setattr(storage, "free_memory", lambda engine, free=free: free)
        assert products(Propagator(grid, geometry, memory=memory, comm=comm)) == expected
    assert linearised_products(Propagator(grid, geometry, memory=2 * whole, comm=comm)) == expected
    far_checkpoints = []

    class Store(storage.CudaStorage):
        def __init__(self, *args):
            super().__init__(*args)
            far_checkpoints.append(self.checkpoints_far)

    monkeypatch.setattr(march, "CudaStorage", Store)
    for free in (1 << 40, size):  # checkpoints do not fit the part of the memory that is used
        monkeypatch.setattr(storage, "free_memory", lambda engine, free=free: free)
        F = Propagator(grid, geometry, comm=comm, **lossy)
        assert products(F) == expected_compressed
        assert far_checkpoints[-1] == (free == size)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "memory_of", lambda engine: 1000)
        with pytest.raises(InputError, match="of the host's memory"):
            products(Propagator(grid, geometry, comm=comm, **lossy))
    monkeypatch.setattr(storage, "free_memory", lambda engine: 4000)
    with pytest.raises(InputError, match="compressed wavefields need"):
        products(Propagator(grid, geometry, comm=comm, **lossy))


@pytest.mark.parametrize(("ndim", "order", "width"), [(1, 16, 5), (3, 4, 3)])
def test_other_grids(comm, on_device, ndim, order, width):
    grid, geometry = small(ndim, order, surface=ndim == 3, shots=1, samples=20, width=width)
    expected = products(Propagator(grid, geometry, dtype="float64", kernels="numpy", comm=comm))
    on_device()
    assert products(Propagator(grid, geometry, dtype="float64", comm=comm)) == expected


@pytest.mark.parametrize(
    ("shape", "station", "kinds"),
    [((14, 20, 104), [60.0, 90.0, 480.0], [0, 1, 2, 3, 4, 5, 6]), ((29, 60), [100.0, 250.0], [3, 6, 7])],
    ids=["3-D", "2-D"],
)
def test_points_that_layers_reach_and_others(comm, on_device, shape, station, kinds):
    """A grid large enough for points of every kind: in layers across one axis or several, and in the interior.

    The shot has two sources, which are forces, and receivers of two components.
    """
    grid = Grid(shape, (10.0, 11.0, 9.0)[: len(shape)], order=4, layers=Layers(3))
    receivers = [[x + 10 for x in station], [3.0] * (len(shape) - 1) + [station[-1] + 20]]
    sources = [[station, [25.0] * (len(shape) - 1) + [station[-1] + 60.5]]]
    geometry = Geometry(sources, receivers, np.ones(8), 0.001, ("p", "vx"), "fz")
    dtype = "float64" if len(shape) == 3 else "float32"
    expected = products(Propagator(grid, geometry, dtype=dtype, kernels="numpy", comm=comm))
    on_device()
    F = Propagator(grid, geometry, dtype=dtype, comm=comm)
    assert products(F) == expected
    (steps,) = F._modelling._steps.values()
    assert [kind for kind, blocks in enumerate(steps._boxes) if blocks] == kinds
