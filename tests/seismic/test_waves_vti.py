"""Waves in VTI media: analytic fields and travel times, exact adjoints, the same numbers in all kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.extend.communication import alone
from collops.seismic.waves import Geometry, Grid, Layers, Propagator
from tests.seismic.test_anisotropic_arrivals import group_time
from tests.seismic.test_waves import arrays_of, assert_exact_on_tiles, assert_same_waves, products, small
from tests.seismic.test_waves_jax import on_jax
from tests.seismic.test_waves_physics import VELOCITY, analytic, ricker
from tests.seismic.wave_media import varying_anisotropy as varying


@pytest.mark.parametrize(("ndim", "time_order"), [(2, 4), (3, 2)])
def test_the_adjoint_is_exact_on_any_tiles(comm, ndim, time_order):
    grid, geometry = small(ndim, 2, surface=ndim == 3, shots=1, samples=25)
    grid = replace(grid, time_order=time_order, shape=((12, 8, 12), (17, 14))[3 - ndim], layers=Layers(3))
    options = {"dtype": "float64", "kernels": "numpy", **varying(grid)}
    tiles = ((1, 1, comm.size), (comm.size, 1))[3 - ndim]
    assert_exact_on_tiles(comm, grid, geometry, tiles, **options)


def test_numba_computes_the_same_bits_as_numpy(comm):
    grid, geometry = small(2, 2, shots=1, samples=20)
    made = [Propagator(grid, geometry, kernels=kind, comm=comm, **varying(grid)) for kind in ("numba", "numpy")]
    assert products(made[0]) == products(made[1])


def test_without_anisotropy_waves_are_acoustic(comm):
    grid, geometry = small(2, 8, samples=30)
    none = np.zeros(grid.shape)
    options = {"dtype": "float64", "kernels": "numpy", "comm": comm}
    F, acoustic = (Propagator(grid, geometry, **options, **x) for x in ({"epsilon": none, "delta": none}, {}))
    assert_same_waves(F, acoustic)


def test_jax_computes_the_same_traces(comm, jax_double):
    grid = Grid((8, 5), (10.0, 10.0), order=2, layers=Layers(1), free_surface=True)
    geometry = Geometry([[33.0, 20.0]], [[40.0, 10.0]], ricker(40.0, np.arange(12) * 0.002), 0.002)
    tiles = (comm.size, 1) if comm.size < 3 else None
    F = Propagator(grid, geometry, dtype="float64", kernels="numpy", tiles=tiles, comm=comm, **varying(grid))
    model = arrays_of(F)[0]
    expected = F(model)
    np.testing.assert_allclose(
        F(on_jax(model)).local_array, expected.local_array, rtol=0, atol=1e-13 * float(expected.norm())
    )


def traces(grid, source, receivers, interval, samples, epsilon, delta, frequency=25.0, velocity=VELOCITY):
    values = {"epsilon": epsilon, "delta": delta, "velocity": velocity}
    arrays = {name: np.broadcast_to(np.asarray(x, float), grid.shape).copy() for name, x in values.items()}
    model = arrays.pop("velocity")
    wavelet = ricker(frequency, np.arange(samples) * interval)
    options = {"dtype": "float64", "kernels": "numpy", "comm": alone()}
    F = Propagator(grid, Geometry([source], receivers, wavelet, interval), **arrays, **options)
    return F(collops.from_global(model, layout=F.domain, comm=F.comm)).local_array[0]


SOURCE, OFFSETS = np.array([90.0, 90.0]), np.array([[200.0, 0.0], [150.0, 100.0], [40.0, 160.0]])
GRID = Grid((62, 46), (6.0, 6.0), layers=Layers(10))
TIMES = np.arange(170) * 0.001


@pytest.mark.serial
def test_elliptical_media_stretch_the_horizontal_axes():
    found = traces(GRID, SOURCE, SOURCE + OFFSETS, 0.001, 170, 0.15, 0.15)
    stretch = np.sqrt(1 + 2 * 0.15)
    for offset, trace in zip(OFFSETS, found, strict=True):
        expected = analytic(2, np.linalg.norm(offset / [stretch, 1]), TIMES) / stretch
        assert np.abs(trace - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.serial
def test_travel_times_are_those_of_the_group_velocity():
    for offset, trace in zip(OFFSETS, traces(GRID, SOURCE, SOURCE + OFFSETS, 0.001, 170, 0.2, 0.05), strict=True):
        time = group_time(offset, 0.2, 0.05, 0.0, 0.0)
        # The waveform is that of a constant velocity: the isotropic field that fits best has the same travel time.
        factors = np.linspace(0.991, 1.009, 7)
        waves = [analytic(2, VELOCITY * time * factor, TIMES) for factor in factors]
        fits = [trace @ wave / np.linalg.norm(wave) / np.linalg.norm(trace) for wave in waves]
        assert max(fits) > 0.999
        assert abs(factors[np.argmax(fits)] - 1) < 0.0045


@pytest.mark.serial
def test_the_longest_step_is_stable_with_layers():
    grid = Grid((16, 18), (10.0, 8.0), layers=Layers(8), free_surface=True)
    velocity = VELOCITY * (1 + 0.5 * np.random.default_rng(4).random(grid.shape))
    medium = tuple(varying(grid).values())
    with pytest.raises(InputError, match="at most") as error:
        traces(grid, [70.0, 60.0], [[30.0, 50.0]], 1.0, 5, *medium, velocity=velocity)
    longest = float(str(error.value).split("at most ")[1].split()[0])
    assert longest < grid.largest_step(velocity.max())
    found = traces(grid, [70.0, 60.0], [[30.0, 50.0]], 0.999 * longest, 900, *medium, 40.0, velocity)[0]
    assert np.abs(found[-100:]).max() < 0.05 * np.abs(found).max()  # slow shear waves leave late


def test_unusable_parameters(comm):
    grid, geometry = small(2)
    good, line = np.full(grid.shape, 0.1), small(1)
    for arguments, words in [
        ({"epsilon": good}, "a medium takes density, or delta and epsilon, or .*, not epsilon"),
        ({"epsilon": good, "delta": good, "density": good}, "not delta and density and epsilon"),
        ({"epsilon": good, "delta": 2 * good}, "at least delta"),
        ({"epsilon": good, "delta": good - 1}, "greater than -0.5"),
        ({"epsilon": good, "delta": good[1:]}, "shape"),
    ]:
        with pytest.raises(InputError, match=words):
            Propagator(grid, geometry, kernels="numpy", comm=comm, **arguments)
    with pytest.raises(InputError, match="two or three axes"):
        Propagator(*line, kernels="numpy", comm=comm, epsilon=np.zeros(10), delta=np.zeros(10))
