"""Waves on devices: the bits of hosts, on any ranks, tiles and storage, and exact transposes."""

from __future__ import annotations

import numpy as np
import pytest

import collops
from collops.errors import UnsupportedTypeError
from collops.extend.communication import alone
from collops.seismic.waves import Grid, Layers, Propagator, SourceEncoding, WaveformMisfit
from collops.solvers.nonlinear import lbfgs
from tests.seismic.test_waves import assert_exact_adjoint, small
from tests.seismic.test_waves_components import directed
from tests.seismic.wave_media import parameters_of, varying_solid

pytestmark = pytest.mark.usefixtures("device")
pytest.importorskip("cupy", reason="CuPy is not installed")


def arrays_of(F, engine):
    """A model, a change of it, and data, the same on any ranks."""
    rng = np.random.default_rng(0)
    values = 2000 + 200 * rng.standard_normal(F.grid.shape), rng.standard_normal(F.grid.shape)
    data = rng.standard_normal(F.geometry.shape)
    layouts = F.domain, F.domain, F.range
    return [
        collops.from_global(x, layout=layout, comm=F.comm, engine=engine)
        for x, layout in zip((*values, data), layouts, strict=True)
    ]


def products(F, engine="cupy"):
    """Data, linearised data and image as bytes of global arrays."""
    model, change, data = arrays_of(F, engine)
    J = F.jacobian(model)
    found = [F(model), J.forward(change), J.adjoint(data)]
    assert all(x.engine.name == engine for x in found)
    return [np.asarray(x.engine.to_host(x.gather())).tobytes() for x in found]


@pytest.mark.parametrize(
    ("ndim", "order", "surface", "dtype"),
    [
        (1, 16, True, "float64"),
        (2, 2, True, "float32"),
        (2, 8, False, "float64"),
        (3, 4, True, "float32"),
        (3, 8, False, "float64"),
        (3, 16, True, "float32"),
    ],
)
def test_the_bits_of_hosts(comm, ndim, order, surface, dtype):
    grid, geometry = small(ndim, order, surface, samples=50)
    F = Propagator(grid, geometry, dtype=dtype, kernels="numpy", comm=comm)
    (*traces, image), (*expected, image_of_hosts) = products(F), products(F, "numpy")
    assert traces == expected
    # CuPy adds images of shots and of the layers, and takes subnormal numbers for zero.
    difference = np.frombuffer(image) - np.frombuffer(image_of_hosts)
    assert np.abs(difference).max() <= 100 * np.finfo(dtype).tiny


@pytest.mark.parametrize("medium", ["constant", "density", "elastic"])
def test_a_derivative_keeps_wavefields(comm, medium):
    """The same bits, and the misfit has no other derivative at the same model."""
    grid, geometry = small(2, 4, surface=False, shots=comm.size, samples=50)
    own = varying_solid(grid) if medium == "elastic" else parameters_of(medium, grid)
    F = Propagator(grid, geometry, comm=comm, **own)
    model, change, data = arrays_of(F, "cupy")
    traces, J = F.linearise(model)
    assert J.reusable
    found = [np.asarray(x.engine.to_host(x.gather())).tobytes() for x in (traces, J.forward(change), J.adjoint(data))]
    assert found == products(F)
    problem = WaveformMisfit(F, data)
    problem.residual(model)
    assert problem.jacobian(model.copy()) is problem.jacobian(model)


def test_points_that_layers_reach_and_others(comm):
    grid, geometry = Grid((60, 80), (10.0, 11.0), order=8, layers=Layers(5)), small(2, 8)[1]
    F = Propagator(grid, geometry, dtype="float64", kernels="numpy", comm=comm)
    assert products(F)[:2] == products(F, "numpy")[:2]


@pytest.mark.parametrize(("ndim", "order", "surface"), [(1, 16, True), (2, 8, True), (3, 8, False)])
def test_the_adjoint_is_exact(comm, ndim, order, surface):
    F = Propagator(*small(ndim, order, surface), dtype="float64", comm=comm)
    assert_exact_adjoint(F, "cupy")


@pytest.mark.parametrize("ndim", [2, 3])
def test_several_sources_forces_and_particle_velocities(comm, ndim):
    F = Propagator(*directed(ndim, shots=2, samples=50), dtype="float64", kernels="numpy", comm=comm)
    for found, expected in zip(products(F), products(F, "numpy"), strict=True):
        found, expected = np.frombuffer(found), np.frombuffer(expected)
        # CuPy's cumulative sums are in another order.
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    assert_exact_adjoint(F, "cupy")
    encoding = SourceEncoding([[1.0, -1.0]])
    encoded = (encoding.data(F(arrays_of(F, engine)[0])) for engine in ("cupy", "numpy"))
    found, expected = (x.engine.to_host(x.gather()) for x in encoded)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


@pytest.mark.parametrize(("ndim", "order"), [(2, 4), (3, 8)])
def test_the_same_bits_on_any_ranks_and_tiles(comm, ndim, order):
    grid, geometry = small(ndim, order, shots=2)
    serial = products(Propagator(grid, geometry, comm=alone()))
    rest = (1,) * (ndim - 1)
    for tiles in dict.fromkeys([None, (comm.size, *rest), (*rest, comm.size), (2, *rest)]):
        sizes = [n // max(count, 1) for n, count in zip(grid.shape, tiles or grid.shape, strict=True)]
        if tiles is None or (comm.size % np.prod(tiles) == 0 and min(sizes) >= max(4, order // 2)):
            assert products(Propagator(grid, geometry, tiles=tiles, comm=comm)) == serial


def test_storage_changes_no_bit(comm, monkeypatch):
    """Fewer wavefields than steps, and wavefields that do not fit the device."""
    grid, geometry = small(2, 4, shots=1, samples=100)
    stored = Propagator(grid, geometry, comm=comm)
    expected = products(stored)
    for share in (0.1, 0.6):
        F = Propagator(grid, geometry, memory=int(share * stored.storage.bytes), comm=comm)
        assert F.storage.checkpoints > 0
        assert products(F) == expected
    for room in (0, stored.storage.bytes // 3):
        monkeypatch.setattr("collops.seismic.waves.cuda.storage.free_memory", lambda engine, room=room: room)
        assert products(stored) == expected
        assert products(F) == expected


def test_compressed_storage_is_that_of_hosts(comm):
    grid, geometry = small(2, 4, shots=1, samples=100)
    memory = Propagator(grid, geometry, comm=comm).storage.bytes // 3
    F = Propagator(grid, geometry, memory=memory, wavefield_bits=16, kernels="numpy", comm=comm)
    assert F.storage.bits == 16
    image, expected = (np.frombuffer(products(F, engine)[2], F.dtype) for engine in ("cupy", "numpy"))
    np.testing.assert_allclose(image, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_apertures_are_those_of_hosts(comm):
    grid, geometry = small(2, 4, shots=3)
    F = Propagator(grid, geometry, dtype="float64", aperture=20.0, kernels="numpy", comm=comm)
    for found, expected in zip(products(F), products(F, "numpy"), strict=True):
        found, expected = np.frombuffer(found), np.frombuffer(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_inversion(comm):
    """A few iterations, with the same residuals as on hosts."""
    F = Propagator(*small(2, 4), dtype="float64", comm=comm)
    norms = {}
    for engine in ("numpy", "cupy"):
        start = collops.full(F.domain, 2000.0, comm=comm, engine=engine)
        problem = WaveformMisfit(F, F(collops.full(F.domain, 2050.0, comm=comm, engine=engine)))
        norms[engine] = lbfgs(problem, start, niter=3, lower=1500.0).residual_norms
    assert norms["cupy"][-1] < norms["cupy"][0]
    np.testing.assert_allclose(norms["cupy"], norms["numpy"], rtol=1e-9)


def test_arrays_of_two_engines(comm):
    F = Propagator(*small(2, 4), comm=comm)
    J = F.jacobian(collops.full(F.domain, 2000.0, comm=comm, engine="cupy"))
    with pytest.raises(UnsupportedTypeError, match="of cupy, as the model is"):
        J.forward(collops.ones(F.domain, comm=comm, engine="numpy"))
