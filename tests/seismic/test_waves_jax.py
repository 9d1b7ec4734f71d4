"""The propagator on JAX: the traces of the host kernels, and the derivatives that they have by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import collops
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.seismic.signals import ricker
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, WaveformMisfit
from tests.seismic.test_waves import arrays_of, small

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.usefixtures("jax_double")


def line(shots, samples=18, layers=3):
    """A grid with one axis, whose programs compile fast."""
    grid = Grid((14,), (10.0,), order=2, layers=Layers(layers), free_surface=layers > 0)
    wavelet = np.roll(ricker(40.0, 0.002)[0], -5)[:samples]
    return grid, Geometry(np.linspace(33.0, 92.0, shots)[:, np.newaxis], [[40.0], [70.0]], wavelet, 0.002, ("p", "vz"))


def on_jax(x):
    return collops.DistributedArray(x.layout, x.comm, jax.numpy.asarray(x.local_array))


def assert_close(x, y):
    assert x.layout is y.layout
    np.testing.assert_allclose(x.local_array, y.local_array, rtol=0, atol=1e-13 * max(1e-30, float(y.norm())))


@pytest.mark.parametrize("tiled", [True, False])
def test_derivatives_are_those_of_the_host(comm, tiled):
    """On tiles with nested loops, or with ranks that have no shot."""
    tiles = (comm.size,) if tiled and comm.size < 4 else None
    if not tiled and comm.size == 1:
        pytest.skip("the same as with tiles")
    problem = line(2) if tiled else line(1, layers=0)
    F = Propagator(
        *problem,
        dtype="float64",
        kernels="numpy",
        tiles=tiles,
        memory={1: 2000, 2: 1400}.get(comm.size) if tiled else None,
        comm=comm,
    )
    model, change, data = arrays_of(F)
    J = F.jacobian(model)
    slope = jax.grad(lambda v: 0.5 * WaveformMisfit(F, on_jax(data)).residual(v).norm() ** 2)(on_jax(model))
    assert_close(slope, J.adjoint(F(model) - data))
    if tiled:
        assert_close(F.jacobian(on_jax(model)).forward(on_jax(change)), J.forward(change))
        assert len(F._program.loops) == 2


def test_traces_are_those_of_the_host(comm):
    grid, geometry = small(2, 4, samples=12, width=2)
    pairs = np.stack([geometry.sources, np.roll(geometry.sources, 1, axis=0)], axis=1)
    F = Propagator(
        grid,
        replace(geometry, sources=pairs, components=("p", "vx", "vz"), source_components=("p", "fz")),
        kernels="numpy",
        comm=comm,
    )
    model = arrays_of(F)[0]
    found, expected = F(on_jax(model.astype("float32"))), F(model)
    assert found.engine.traced
    assert found.dtype == np.float32
    assert float((on_jax(expected) - found).norm()) < 1e-5 * float(expected.norm())


@pytest.mark.parametrize(("budget", "loops"), [(None, [100]), (100, [100]), (60, [4, 25]), (48, [3, 3, 12])])
def test_loops_within_a_budget(budget, loops):
    from collops.seismic.waves.jax_program import loops_within

    assert loops_within(budget, 100, 1, 6) == loops


def test_unusable_arguments(comm):
    F = Propagator(*line(1), dtype="float64", kernels="numpy", comm=comm)
    with pytest.raises(InputError, match="positive and finite"):
        F(collops.full(F.domain, -1.0, engine="jax", comm=comm))
    with pytest.raises(LayoutError, match="layout"):
        F(collops.full(5, 2000.0, engine="jax", comm=comm))
    with pytest.raises(UnsupportedTypeError, match="real"):
        F(collops.full(F.domain, 2000j, engine="jax", comm=comm))
    with pytest.raises(InputError, match="too small for the wavefields of JAX"):
        few = Propagator(*line(1), dtype="float64", kernels="numpy", memory=1000, comm=comm)
        few(collops.full(F.domain, 2000.0, engine="jax", comm=comm))
    with pytest.raises(UnsupportedTypeError, match="x64"):
        jax.config.update("jax_enable_x64", False)  # the fixture sets it back
        other = Propagator(*line(1), dtype="float64", kernels="numpy", comm=comm)
        other(collops.full(F.domain, 2000.0, engine="jax", comm=comm))
