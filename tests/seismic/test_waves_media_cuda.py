"""All media on devices by their CUDA kernels, compiled for the host: the same bits as NumPy's steps."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

import collops
from collops.errors import InputError
from collops.seismic.waves import Propagator, modelling
from collops.seismic.waves.cuda import march, media_kernels, media_march, storage
from tests.seismic.test_waves import arrays_of, linearised_products, products, small
from tests.seismic.wave_media import CASES, parameters_of
from tests.seismic.waves_on_host import COMPILER

pytestmark = [pytest.mark.serial, pytest.mark.skipif(COMPILER is None, reason="needs g++")]


@pytest.mark.parametrize(("medium", "time_order", "ndim", "order"), CASES)
def test_the_bits_of_hosts(comm, on_device, medium, time_order, ndim, order):
    """Recorded steps and others, with a surface in 2-D and layers that overlap."""
    grid, geometry = small(ndim, order, surface=ndim < 3, shots=1, samples=36, width=3)
    grid = replace(grid, time_order=time_order)
    options = {"dtype": "float64" if order == 2 else "float32", "comm": comm, **parameters_of(medium, grid)}
    expected = products(Propagator(grid, geometry, kernels="numpy", **options))
    on_device()
    F = Propagator(grid, geometry, **options)
    assert products(F) == expected
    if ndim == 2:
        assert linearised_products(F) == expected


@pytest.mark.parametrize(("medium", "time_order"), [("constant", 4), ("density", 2), ("VTI", 2)])
def test_any_share_of_the_points(comm, on_device, monkeypatch, medium, time_order):
    """Blocks that end before the grid does along each axis, within layers and between them."""
    grid, geometry = small(3, 4, shots=1, samples=12, width=3)
    grid = replace(grid, time_order=time_order, shape=(9, 8, 33))
    options = {"comm": comm, **parameters_of(medium, grid)}
    expected = products(Propagator(grid, geometry, kernels="numpy", **options))
    on_device()
    monkeypatch.setattr(media_kernels, "_PLANES", 6)
    monkeypatch.setattr(media_kernels, "_ROWS", {"LAPLACIAN": 5, "FLUXES": 5})
    assert products(Propagator(grid, geometry, **options)) == expected


@pytest.mark.parametrize(("medium", "time_order"), [("VTI", 2), ("attenuation", 4)])
def test_any_storage(comm, on_device, monkeypatch, medium, time_order):
    """Checkpoints, wavefields that do not fit the device, compressed wavefields, and shots on windows."""
    grid, geometry = small(2, 4, shots=1, samples=45, width=3)
    grid = replace(grid, time_order=time_order)
    options = {"comm": comm, **parameters_of(medium, grid)}
    size = Propagator(grid, geometry, kernels="numpy", **options).storage.bytes
    cases = [{}, {"memory": size // 4}, {"memory": size // 3, "wavefield_bits": 16}, {"aperture": 20.0}]
    expected = [products(Propagator(grid, geometry, kernels="numpy", **options, **case)) for case in cases]
    on_device()
    for case, right in zip(cases, expected, strict=True):
        assert products(Propagator(grid, geometry, **options, **case)) == right
    monkeypatch.setattr(storage, "free_memory", lambda engine: size // 3)
    assert products(Propagator(grid, geometry, **options)) == expected[0]


@pytest.mark.parametrize(("medium", "module"), [("constant", march), ("density", media_march)])
def test_the_memory_of_wavefields_is_free_with_the_jacobian(comm, on_device, monkeypatch, medium, module):
    """Without waiting for Python to collect cycles: another gradient, or another library, needs it now."""
    grid, geometry = small(2, 4, shots=1, samples=45, width=3)
    kept = []

    class Store(storage.CudaStorage):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            kept.append(weakref.ref(self))

    on_device()
    monkeypatch.setattr(module, "CudaStorage", Store)
    F = Propagator(grid, geometry, comm=comm, **parameters_of(medium, grid))
    model, _, data = arrays_of(F)
    F(model)
    gc.collect()
    gc.disable()
    try:
        J = F.jacobian(model)
        J.adjoint(data)
        assert kept[0]() is not None
        del J
        assert [reference() for reference in kept] == [None]
    finally:
        gc.enable()


def test_large_tiles_are_refused_before_indices_overflow(comm, monkeypatch):
    grid, geometry = small(2, 4)
    F, constant = (Propagator(grid, geometry, kernels="numpy", comm=comm, **o) for o in ({"density": 2000.0}, {}))
    model = collops.full(F.domain, 2000.0, comm=comm)
    monkeypatch.setattr(modelling, "_MAX_POINTS", 100)
    F(model)  # hosts have no such limit
    monkeypatch.setattr(model.engine, "memory", "device")
    with pytest.raises(InputError, match="variable density in order 2 in time may have at most 100 points"):
        F(model)
    assert constant._modelling.velocity(model).shape
    monkeypatch.setattr(modelling, "_MAX_PLANE", 50)
    assert constant._modelling.velocity(model).shape  # with two axes there are no planes
    cube = Propagator(*small(3, 4), kernels="numpy", comm=comm)
    with pytest.raises(InputError, match="at most 50 points across its first axis"):
        cube._modelling.velocity(collops.full(cube.domain, 2000.0, comm=comm))
