"""Waves of all media on devices: the bits of hosts, on any ranks, tiles and storage, and exact transposes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collops.extend.communication import alone
from collops.seismic.waves import Propagator
from tests.seismic.test_waves import assert_exact_adjoint, small
from tests.seismic.wave_media import CASES, parameters_of

pytestmark = pytest.mark.usefixtures("device")
pytest.importorskip("cupy", reason="CuPy is not installed")

from tests.gpu.test_waves import products  # noqa: E402  (it skips without CuPy)


@pytest.mark.parametrize(("medium", "time_order", "ndim", "order"), [*CASES, ("density", 2, 3, 4)])
def test_the_bits_of_hosts(comm, medium, time_order, ndim, order):
    grid, geometry = small(ndim, order, surface=ndim < 3, samples=50)
    grid = replace(grid, time_order=time_order)
    options = {"dtype": "float64" if order == 2 else "float32", "comm": comm, **parameters_of(medium, grid)}
    F = Propagator(grid, geometry, kernels="numpy", **options)
    (*traces, image), (*expected, image_of_hosts) = products(F), products(F, "numpy")
    assert traces == expected
    # CuPy adds images of shots and of the layers, and takes subnormal numbers for zero.
    difference = np.frombuffer(image, F.dtype) - np.frombuffer(image_of_hosts, F.dtype)
    assert np.abs(difference).max() <= 100 * np.finfo(F.dtype).tiny


@pytest.mark.parametrize(("medium", "time_order"), [("constant", 4), ("density", 2), ("VTI", 2), ("attenuation", 2)])
def test_the_adjoint_is_exact(comm, medium, time_order):
    grid, geometry = small(2, 8)
    grid = replace(grid, time_order=time_order)
    assert_exact_adjoint(Propagator(grid, geometry, dtype="float64", comm=comm, **parameters_of(medium, grid)), "cupy")


@pytest.mark.parametrize(("medium", "time_order"), [("density", 4), ("VTI", 2), ("attenuation and density", 2)])
def test_the_same_bits_on_any_tiles_and_storage(comm, medium, time_order):
    """Also with checkpoints, and with wavefields that are compressed."""
    grid, geometry = small(2, 4, shots=2, samples=100)
    grid = replace(grid, time_order=time_order)
    own = parameters_of(medium, grid)
    stored = Propagator(grid, geometry, comm=alone(), **own)
    serial, memory = products(stored), stored.storage.bytes // 4
    for tiles in dict.fromkeys([None, (comm.size, 1), (1, comm.size)]):
        if tiles is None or comm.size < 4:
            assert products(Propagator(grid, geometry, tiles=tiles, memory=memory, comm=comm, **own)) == serial
    lossy = {"memory": memory, "wavefield_bits": 16, "kernels": "numpy"}
    F = Propagator(grid, geometry, comm=comm, **lossy, **own)
    assert F.storage.bits == 16 and F.storage.checkpoints
    image, expected = (np.frombuffer(products(F, engine)[2], F.dtype) for engine in ("cupy", "numpy"))
    np.testing.assert_allclose(image, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
