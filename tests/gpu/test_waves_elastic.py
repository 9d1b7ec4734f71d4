"""Elastic waves on devices: the bits of hosts, on any tiles and storage, and exact transposes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collops.extend.communication import alone
from collops.seismic.waves import Propagator
from tests.seismic.elastic_models import elastic_propagator, stack_products, stacks_of
from tests.seismic.test_waves import assert_exact_adjoint, small
from tests.seismic.wave_media import at_depths_of_points, varying_solid

pytestmark = pytest.mark.usefixtures("device")
pytest.importorskip("cupy", reason="CuPy is not installed")

from tests.gpu.test_waves import products  # noqa: E402  (it skips without CuPy)


def elastic(ndim, order, time_order, **options):
    grid, geometry = small(ndim, order, **options)
    grid = replace(grid, time_order=time_order)
    return grid, at_depths_of_points(grid, geometry), varying_solid(grid)


@pytest.mark.parametrize(("ndim", "order", "time_order", "dtype"), [(2, 4, 4, "float32"), (3, 8, 2, "float64")])
def test_the_bits_of_hosts(comm, ndim, order, time_order, dtype):
    grid, geometry, own = elastic(ndim, order, time_order, samples=50)
    F = Propagator(grid, geometry, dtype=dtype, kernels="numpy", comm=comm, **own)
    (*traces, image), (*expected, image_of_hosts) = products(F), products(F, "numpy")
    assert traces == expected
    # CuPy adds images of shots and of the layers, and takes subnormal numbers for zero.
    difference = np.frombuffer(image) - np.frombuffer(image_of_hosts)
    assert np.abs(difference).max() <= 100 * np.finfo(dtype).tiny


def test_the_adjoint_is_exact(comm):
    grid, geometry, own = elastic(3, 8, 2, samples=30)
    assert_exact_adjoint(Propagator(grid, geometry, dtype="float64", comm=comm, **own), "cupy")


def test_the_same_bits_on_any_tiles_and_storage(comm):
    """Also with checkpoints, and with wavefields that are compressed."""
    grid, geometry, own = elastic(2, 4, 4, shots=2, samples=100)
    stored = Propagator(grid, geometry, comm=alone(), **own)
    serial, memory = products(stored), stored.storage.bytes // 4
    for tiles in dict.fromkeys([None, (comm.size, 1), (1, comm.size)]):
        if tiles is None or comm.size < 3:
            assert products(Propagator(grid, geometry, tiles=tiles, memory=memory, comm=comm, **own)) == serial
    lossy = {"memory": memory, "wavefield_bits": 16, "kernels": "numpy"}
    F = Propagator(grid, geometry, comm=comm, **lossy, **own)
    image, expected = (np.frombuffer(products(F, engine)[2]) for engine in ("cupy", "numpy"))
    np.testing.assert_allclose(image, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("ndim", "time_order", "dtype"), [(2, 4, "float32"), (3, 2, "float64")])
def test_derivatives_with_respect_to_both_velocities(comm, ndim, time_order, dtype):
    """The bits of hosts, but for images near the smallest numbers; an exact adjoint; tiles and checkpoints."""
    grid, geometry, own = elastic(ndim, 4, time_order, shots=2, samples=40)
    shear = own["shear_velocity"]
    tiles = (comm.size, *[1] * (ndim - 1)) if comm.size < 3 else None
    F = elastic_propagator(grid, geometry, own, dtype=dtype, kernels="numpy", tiles=tiles, comm=comm)
    memory = F.storage.bytes // 3
    few = elastic_propagator(grid, geometry, own, dtype=dtype, memory=memory, tiles=tiles, comm=comm)
    (*traces, p, s), (*expected, p_of_hosts, s_of_hosts) = (
        stack_products(G, shear, engine) for G, engine in ((few, "cupy"), (F, "numpy"))
    )
    assert traces == expected
    for found, right in ((p, p_of_hosts), (s, s_of_hosts)):
        # CuPy adds images of shots and of the layers, and takes subnormal numbers for zero.
        found, right = (np.frombuffer(x) for x in (found, right))  # of the type of the data, whatever `dtype`
        assert np.abs(found - right).max() <= 4 * np.finfo(dtype).eps * np.abs(right).max()
    model, change, data = stacks_of(few, shear, engine="cupy")
    J = few.jacobian(model)
    modelled, image = J.forward(change), J.adjoint(data)
    missed = abs(float(modelled.dot(data)) - float(change.dot(image)))
    assert missed < (1e-12 if dtype == "float64" else 1e-4) * float(modelled.norm()) * float(data.norm())


def test_windows_of_both_velocities(comm):
    grid, geometry, own = elastic(2, 4, 2, shots=3, samples=30, surface=False)
    F = elastic_propagator(grid, geometry, own, dtype="float64", aperture=30.0, comm=comm)
    found, expected = (stack_products(F, own["shear_velocity"], engine) for engine in ("cupy", "numpy"))
    assert found[0] == expected[0]
    for one, two in zip(found[1:], expected[1:], strict=True):
        one, two = np.frombuffer(one), np.frombuffer(two)
        assert np.abs(one - two).max() <= 1e-14 * np.abs(two).max()
