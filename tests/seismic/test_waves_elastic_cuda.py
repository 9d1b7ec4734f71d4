"""Elastic waves on devices by their CUDA kernels, compiled for the host: the same bits as NumPy's steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collops.extend.communication import alone
from collops.seismic.waves import Propagator
from collops.seismic.waves.cuda import storage
from tests.seismic.elastic_models import stack_products
from tests.seismic.test_waves import linearised_products, products, small
from tests.seismic.wave_media import at_depths_of_points, varying_solid
from tests.seismic.waves_on_host import COMPILER

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")


def elastic(ndim, order, shape, *, surface=True, time_order=2, **options):
    grid, geometry = small(ndim, order, surface=surface, **options)
    grid = replace(grid, time_order=time_order, shape=shape)
    extent = [h * (n - 1) for h, n in zip(grid.spacing, shape, strict=True)]
    inside = {name: np.asarray(getattr(geometry, name)) % extent for name in ("sources", "receivers")}
    return grid, at_depths_of_points(grid, replace(geometry, **inside))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("ndim", "order", "shape", "width", "time_order"),
    [
        (3, 4, (7, 8, 6), 2, 2),
        (2, 8, (13, 4), 4, 4),  # stencils reach from the surface into the layer below, also if mirrored
    ],
)
def test_the_bits_of_hosts(comm, on_device, ndim, order, shape, width, time_order):
    """Recorded steps and others, with a free surface and a fluid, in vectors of 2 and of 4 points."""
    grid, geometry = elastic(ndim, order, shape, time_order=time_order, shots=1, samples=36, width=width)
    options = {"comm": comm, **varying_solid(grid)}
    shear = options["shear_velocity"]
    F = Propagator(grid, geometry, kernels="numpy", **options)
    expected, of_both = products(F), stack_products(F, shear)
    on_device()
    F = Propagator(grid, geometry, **options)
    assert products(F) == expected
    assert stack_products(F, shear) == of_both
    if ndim == 2:
        assert linearised_products(F) == expected


def test_any_tiles(comm, on_device):
    grid, geometry = elastic(2, 4, (13, 12), shots=1, samples=30, width=3)
    own = {"dtype": "float64", **varying_solid(grid)}
    expected = products(Propagator(grid, geometry, kernels="numpy", comm=alone(), **own))
    on_device()
    for tiles in ((comm.size, 1), (1, comm.size)):
        assert products(Propagator(grid, geometry, tiles=tiles, comm=comm, **own)) == expected


@pytest.mark.serial
def test_any_storage(comm, on_device, monkeypatch):
    """Checkpoints, wavefields that do not fit the device, compressed wavefields, windows, and several shots."""
    grid, geometry = elastic(2, 2, (13, 12), surface=False, shots=2, samples=40, width=3)
    options = {"comm": comm, **varying_solid(grid)}
    size = Propagator(grid, geometry, kernels="numpy", **options).storage.bytes
    cases = [{}, {"memory": size // 4}, {"memory": size // 3, "wavefield_bits": 16}, {"aperture": 20.0}]
    expected = [products(Propagator(grid, geometry, kernels="numpy", **options, **case)) for case in cases]
    on_device()
    for case, right in zip(cases, expected, strict=True):
        assert products(Propagator(grid, geometry, **options, **case)) == right
    monkeypatch.setattr(storage, "free_memory", lambda engine: size // 3)
    assert products(Propagator(grid, geometry, **options)) == expected[0]
