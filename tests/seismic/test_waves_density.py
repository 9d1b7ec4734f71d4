"""Waves with variable density: reflections, convergence, exact adjoints, the same numbers in all kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.extend.communication import alone
from collops.seismic.waves import Geometry, Grid, Layers, Propagator
from tests.seismic.test_waves import arrays_of, assert_exact_adjoint, products, small
from tests.seismic.test_waves_jax import on_jax
from tests.seismic.test_waves_physics import VELOCITY, analytic, ricker
from tests.seismic.wave_media import varying_density as varying


@pytest.mark.parametrize(("ndim", "order", "surface"), [(1, 16, True), (2, 4, True), (3, 2, False)])
def test_the_adjoint_is_exact(comm, ndim, order, surface):
    grid, geometry = small(ndim, order, surface)
    F = Propagator(grid, geometry, dtype="float64", density=varying(grid), kernels="numpy", comm=comm)
    assert_exact_adjoint(F)


def test_the_same_bits_from_numba_on_any_ranks_and_with_checkpoints(comm):
    grid, geometry = small(2, 8, samples=30)
    options = {"density": varying(grid), "dtype": "float32"}
    serial = products(Propagator(grid, geometry, kernels="numpy", comm=alone(), **options))
    field = Propagator(grid, geometry, kernels="numpy", comm=comm, **options).storage.bytes // 29
    for kernels, memory in (("numba", None), ("numpy", 12 * field)):
        assert products(Propagator(grid, geometry, kernels=kernels, memory=memory, comm=comm, **options)) == serial


def test_the_same_bits_on_any_tiles(comm):
    grid, geometry = small(2, 8, shots=1, samples=30)
    grid = replace(grid, shape=(24, 21))  # three tiles of a halo's width
    options = {"density": varying(grid), "dtype": "float32"}
    serial = products(Propagator(grid, geometry, kernels="numpy", comm=alone(), **options))
    for tiles, kernels in (((comm.size, 1), "numba"), ((1, comm.size), "numpy")):
        if comm.size <= 3:
            assert products(Propagator(grid, geometry, tiles=tiles, kernels=kernels, comm=comm, **options)) == serial


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 2)])
def test_grids_with_fewer_points_than_a_stencil(comm, shape):
    grid = Grid(shape, (10.0,) * len(shape), order=8, layers=Layers(1), free_surface=True)
    positions = np.full((1, len(shape)), 9.0)
    geometry = Geometry(positions, positions, ricker(40.0, np.arange(12) * 0.001), 0.001)
    options = {"density": varying(grid), "dtype": "float32", "comm": comm}
    numba, F = (Propagator(grid, geometry, kernels=kernels, **options) for kernels in ("numba", "numpy"))
    assert products(numba) == products(F)
    assert F.jacobian(arrays_of(F)[0]).dottest(rtol=1e-4)


def test_jax_differentiates_the_same_scheme(comm, jax_double):
    """Of fourth order in time, which applies the operator of the second order twice."""
    import jax

    grid = Grid((14,), (10.0,), order=4, layers=Layers(3), free_surface=True, time_order=4)
    geometry = Geometry([[33.0]], [[40.0], [70.0]], ricker(40.0, np.arange(18) * 0.002), 0.002)
    tiles = (comm.size,) if comm.size < 4 else None
    F = Propagator(grid, geometry, dtype="float64", density=varying(grid), tiles=tiles, kernels="numpy", comm=comm)
    model, _, data = arrays_of(F)
    slope = jax.grad(lambda v: F(v).dot(on_jax(data)))(on_jax(model))
    expected = F.jacobian(model).adjoint(data)
    np.testing.assert_allclose(slope.local_array, expected.local_array, rtol=0, atol=1e-13 * float(expected.norm()))


def traces(grid, source, receivers, interval, samples, density, velocity=VELOCITY, frequency=25.0):
    wavelet = ricker(frequency, np.arange(samples) * interval)
    options = {"dtype": "float64", "kernels": "numpy", "comm": alone()}
    F = Propagator(grid, Geometry([source], receivers, wavelet, interval), density=density, **options)
    values = np.broadcast_to(np.asarray(velocity, float), grid.shape).copy()
    return F(collops.from_global(values, layout=F.domain, comm=F.comm)).local_array[0]


@pytest.mark.serial
def test_reflection_at_all_angles():
    """In a constant velocity, a step of the density reflects all angles alike: the field of an image source."""
    h, samples = 6.0, 220
    grid = Grid((70, 40), (h, h), layers=Layers(12))
    density = np.full(grid.shape, 1000.0)
    density[:, 25:] = 3000.0
    source, receivers = np.array([66.0, 100.0]), np.array([[66.0, 60.0], [180.0, 90.0], [330.0, 120.0]])
    image, t = np.array([source[0], 2 * 24.5 * h - source[1]]), np.arange(samples) * 0.001
    found, direct = (traces(grid, source, receivers, 0.001, samples, x) for x in (density, np.full(grid.shape, 1.0)))
    for receiver, reflected in zip(receivers, found - direct, strict=True):  # at 0, 48 and 74 degrees
        expected = (3000 - 1000) / (3000 + 1000) * analytic(2, np.linalg.norm(image - receiver), t)
        assert reflected @ expected == pytest.approx(expected @ expected, rel=0.02)
        assert np.abs(reflected - expected).max() < 0.04 * np.abs(expected).max()


@pytest.mark.serial
def test_reflection_and_transmission_of_impedance():
    grid = Grid((240,), (2.0,), layers=Layers(20))
    velocity, density = np.full(240, 2000.0), np.full(240, 1000.0)
    velocity[120:], density[120:] = 2600.0, 1800.0
    one, two = 2000.0 * 1000, 2600.0 * 1800
    t = np.arange(700) * 0.0005
    there, behind = traces(grid, [100.0], [[180.0], [300.0]], 0.0005, 700, density, velocity)
    direct, interface = analytic(1, 80.0, t), 239.0
    reflected = (two - one) / (two + one) * analytic(1, 2 * interface - 100 - 180, t)
    assert np.abs(there - direct - reflected).max() < 0.01 * np.abs(reflected).max()
    late = t - (interface - 100) / 2000 - (300 - interface) / 2600
    transmitted = 2 * two / (two + one) * np.interp(late + 80 / VELOCITY, t, direct)
    assert np.abs(behind - transmitted).max() < 0.02 * np.abs(transmitted).max()


@pytest.mark.serial
def test_convergence():
    """Of second order where the density varies; of the order of the grid where it is constant."""

    def error(order, n, density):
        h, interval = 800 / n, 0.32 / n ** (order // 2) * 80 ** (order // 2 - 1) / 2
        grid = Grid((n,), (h,), order=order, layers=Layers(0))
        samples = round(0.2 / interval)
        found = traces(grid, [300.0], [[500.0]], interval, samples, density(np.arange(n) * h), frequency=15.0)[0]
        return found, np.arange(samples) * interval

    def constant(x):
        return np.full(len(x), 1700.0)

    for order in (2, 4):
        errors = [
            np.abs(found - analytic(1, 200.0, t, frequency=15.0)).max()
            for found, t in (error(order, n, constant) for n in (80, 160))
        ]
        assert errors[0] / errors[1] > 0.8 * 2**order

    def bump(x):
        return 1000 * (1 + np.exp(-(((x - 400) / 60) ** 2)))

    (coarse, t), (middle, t2), (fine, t3) = (error(2, n, bump) for n in (80, 160, 320))
    reference = np.interp(t, t3, fine)
    errors = [np.abs(x - reference).max() for x in (coarse, np.interp(t, t2, middle))]
    assert 4 < errors[0] / errors[1] < 6  # the reference is of a grid twice finer: (16 - 1) / (4 - 1) = 5


@pytest.mark.serial
def test_the_longest_step_is_stable_and_layers_absorb():
    rng = np.random.default_rng(4)
    grid = Grid((16, 18), (10.0, 8.0), order=4, layers=Layers(8), free_surface=True)
    density = 1000 * np.exp(0.3 * rng.standard_normal(grid.shape))
    geometry = Geometry([[70.0, 60.0]], [[30.0, 50.0]], np.ones(3), 1.0)
    with pytest.raises(InputError, match="at most") as error:
        F = Propagator(grid, geometry, density=density, kernels="numpy", comm=alone())
        F(collops.full(F.domain, VELOCITY, comm=F.comm))
    longest = float(str(error.value).split("at most ")[1].split()[0])
    assert longest < grid.largest_step(VELOCITY)
    found = traces(grid, [70.0, 60.0], [[30.0, 50.0]], 0.999 * longest, 900, density, frequency=40.0)[0]
    assert np.abs(found[-100:]).max() < 5e-3 * np.abs(found).max()


def test_unusable_densities(comm):
    grid, geometry = small(2)
    for density, words in [
        (np.ones(5), "shape"),
        (-np.ones(grid.shape), "positive"),
        (np.full(grid.shape, np.nan), "NaN"),
        (np.full(grid.shape, 1j), "real"),
        ([["a"]], "real numbers"),
    ]:
        with pytest.raises(InputError, match=words):
            Propagator(grid, geometry, density=density, kernels="numpy", comm=comm)
