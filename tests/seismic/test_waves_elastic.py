"""Elastic waves: analytic fields at interfaces and a free surface, exact adjoints, the same numbers in all kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import collops
from collops.errors import InputError
from collops.extend.communication import alone
from collops.seismic.waves import Geometry, Grid, Layers, Propagator
from collops.seismic.waves.velocity_model import model_on_tile
from tests.seismic.elastic_models import elastic_propagator, stacks_of
from tests.seismic.test_waves import arrays_of, assert_exact_on_tiles, assert_same_waves, products, small
from tests.seismic.test_waves_jax import on_jax
from tests.seismic.test_waves_physics import VELOCITY, analytic, ricker
from tests.seismic.wave_media import at_depths_of_points, varying_solid


@pytest.mark.parametrize(("ndim", "time_order"), [(2, 4), (3, 2)])
def test_the_adjoint_is_exact_on_any_tiles(comm, ndim, time_order):
    grid, geometry = small(ndim, 4, shots=1, samples=20)
    shallow = [1.0] * (ndim - 1) + [0.2]  # waves reach the free surface
    geometry = replace(geometry, sources=geometry.sources * shallow, receivers=geometry.receivers * shallow)
    grid = replace(grid, time_order=time_order, shape=((7, 8, 12), (13, 14))[3 - ndim], layers=Layers(2))
    geometry = at_depths_of_points(grid, geometry)
    options = {"dtype": "float64", "kernels": "numpy", **varying_solid(grid)}
    tiles = ((1, 1, comm.size), (comm.size, 1))[3 - ndim]
    assert_exact_on_tiles(comm, grid, geometry, tiles, **options)


def test_numba_computes_the_same_bits_as_numpy(comm):
    grid, geometry = small(2, 8, shots=1, samples=12)  # the kernels of variable density
    geometry = at_depths_of_points(grid, geometry)
    made = [Propagator(grid, geometry, kernels=kind, comm=comm, **varying_solid(grid)) for kind in ("numba", "numpy")]
    assert products(made[0]) == products(made[1])


def test_fluids_are_acoustic(comm):
    grid, geometry = small(3, 4, shots=2, samples=15, width=2)
    geometry = at_depths_of_points(grid, geometry)
    density, none = varying_solid(grid)["density"], np.zeros(grid.shape)
    options = {"dtype": "float64", "kernels": "numpy", "comm": comm, "density": density}
    F, acoustic = (Propagator(grid, geometry, **options, **x) for x in ({"shear_velocity": none}, {}))
    assert_same_waves(F, acoustic)


@pytest.mark.serial
def test_windows_and_wavelets(comm):
    """A window with all points changes nothing, and traces are a linear function of the wavelet."""
    grid, geometry = small(2, 4, surface=False, shots=1, samples=25)
    options = {"dtype": "float64", "kernels": "numpy", "comm": comm, **varying_solid(grid)}
    F, windowed = (Propagator(grid, geometry, aperture=aperture, **options) for aperture in (None, 500.0))
    assert_same_waves(windowed, F)
    model = arrays_of(F)[0]
    W, expected = F.wavelet_operator(model), F(model)
    wavelet = collops.from_global(np.asarray(geometry.wavelet), layout=W.domain, comm=comm)
    assert float((W @ wavelet - expected).norm()) < 1e-12 * float(expected.norm())


def test_jax_differentiates_the_same_scheme(comm, jax_double):
    """With respect to both velocities; a program of one velocity computes its coefficients from the same functions."""
    import jax

    grid = Grid((8, 5), (10.0, 10.0), order=2, layers=Layers(1), free_surface=True)
    geometry = Geometry([[33.0, 20.0]], [[40.0, 10.0]], ricker(40.0, np.arange(12) * 0.002), 0.002)
    own = varying_solid(grid)
    tiles = (comm.size, 1) if comm.size == 2 else None
    F = elastic_propagator(grid, geometry, own, dtype="float64", kernels="numpy", tiles=tiles, comm=comm)
    model, _, data = stacks_of(F, own["shear_velocity"])
    slope = jax.grad(lambda v: F(v).dot(on_jax(data)))(collops.StackedArray([on_jax(v) for v in model]))
    for found, expected in zip(slope, F.jacobian(model).adjoint(data), strict=True):
        scale = float(expected.norm())
        np.testing.assert_allclose(found.local_array, expected.local_array, rtol=0, atol=1e-13 * scale)
    velocity = np.full(F._modelling.tile.inner, 2000.0)
    coefficients = F._program._coefficients(jax.numpy.asarray(velocity))
    expected = model_on_tile(F._modelling, collops.full(F.domain, 2000.0, comm=comm)).coefficients
    np.testing.assert_allclose(coefficients, expected, rtol=1e-14)


def traces(grid, source, receivers, interval, samples, shear, density=1.0, velocity=VELOCITY, frequency=25.0):
    values = {"shear_velocity": shear, "density": density, "velocity": velocity}
    arrays = {name: np.broadcast_to(np.asarray(x, float), grid.shape).copy() for name, x in values.items()}
    model = arrays.pop("velocity")
    wavelet = ricker(frequency, np.arange(samples) * interval)
    options = {"dtype": "float64", "kernels": "numpy", "comm": alone()}
    F = Propagator(grid, Geometry([source], receivers, wavelet, interval), **arrays, **options)
    return F(collops.from_global(model, layout=F.domain, comm=F.comm)).local_array[0]


@pytest.mark.serial
@pytest.mark.parametrize(("ndim", "n", "samples"), [(2, 40, 130), (3, 20, 60)])
def test_explosions_send_only_p_waves(ndim, n, samples):
    """The pressure is the acoustic one times the squared ratio of the bulk modulus to the modulus of P waves."""
    h, shear = 6.0, 1100.0
    grid = Grid((n,) * ndim, (h,) * ndim, layers=Layers(0 if ndim == 3 else 12))
    center = (n // 2) * h
    source, receiver = np.full(ndim, center + 2.1), np.full(ndim, center) - [31.0, 4.0, 7.5][:ndim]
    found = traces(grid, source, [receiver], 0.001, samples, shear)[0]
    ratio = 1 - (2 - 2 / ndim) * (shear / VELOCITY) ** 2
    expected = ratio**2 * analytic(ndim, np.linalg.norm(source - receiver), np.arange(samples) * 0.001)
    assert np.abs(found - expected).max() < 0.025 * np.abs(expected).max()


def columns(omega, k, medium, sign):
    """Displacement (x, z) and stress (zz, xz) of P and S waves along z, if sign is 1, or against it, by potentials."""
    velocity, shear, density = medium
    p, s = (np.sqrt((omega / max(v, 1e-3)) ** 2 - k**2 + 0j) for v in (velocity, shear))
    normal, modulus = density * (omega**2 - 2 * (shear * k) ** 2), density * shear**2
    return (
        p,
        np.stack([1j * k + 0 * p, 1j * sign * p, -normal + 0 * p, -2 * modulus * sign * k * p], axis=-1),
        np.stack([-1j * sign * s, 1j * k + 0 * s, -2 * modulus * sign * k * s, normal + 0 * s], axis=-1),
    )


def reflected(one, two, offset, height, t, frequency=25.0):
    """The pressure of a line source in a half space that an interface with another one, or with nothing, reflects.

    The source and the receiver have the sum `height` of distances from the interface. The field is an integral over
    plane waves with their exact coefficients of reflection; frequencies are complex, so that later times vanish.
    """
    period, extent = 2 * t[-1], 2 * (offset + VELOCITY * t[-1])
    omega = 2 * np.pi / period * np.arange(0.5, 4 * frequency * period)[:, np.newaxis] + 8j / period
    k = 2 * np.pi / extent * np.arange(min(25 / height, 0.8) * extent / (2 * np.pi))
    p, down, _ = columns(omega, k, one, 1)
    _, *back = columns(omega, k, one, -1)
    rows = [2, 3]
    if two is not None:
        back += [-x for x in columns(omega, k, two, 1)[1:]]
        rows = [0, 1, 2, 3]
    if one[1] == 0:  # a fluid: no S waves, and any displacement along the interface
        del back[1], rows[0]
    matrix = np.stack([x[..., rows] for x in back], axis=-1)
    scale = np.abs(matrix).max(axis=-1, keepdims=True)
    coefficient = np.linalg.solve(matrix / scale, -(down[..., rows, np.newaxis] / scale))[..., 0, 0]
    weights = np.where(k == 0, 0.5, 1.0) * np.cos(k * offset) / extent
    field = (weights * coefficient * 1j / p * np.exp(1j * p * height)).sum(axis=1)
    field *= (ricker(frequency, t) * np.exp(1j * omega * t)).sum(axis=1) * (t[1] - t[0])
    ratio = 1 - (one[1] / one[0]) ** 2  # as of the direct wave
    return ratio**2 * 2 / period * (field[:, np.newaxis] * np.exp(-1j * omega * t)).sum(axis=0).real


SOLID, ROCK, WATER = (2000.0, 1100.0, 1800.0), (2600.0, 1500.0, 2300.0), (2000.0, 0.0, 1000.0)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("one", "two", "distances", "frequency", "bound"),
    [
        (SOLID, ROCK, (33.0, 45.0), 25.0, 0.14),
        (WATER, ROCK, (33.0, 21.0), 15.0, 0.1),
        (SOLID, None, (24.0, 12.0), 15.0, 0.08),
    ],
    ids=["solids", "sea floor", "free surface"],
)
def test_interfaces_reflect_at_all_angles(one, two, distances, frequency, bound):
    """With head waves, and with waves of Scholte or Rayleigh along the interface."""
    for found, direct, expected in at_interface(one, two, distances, frequency, 6.0):
        assert np.abs(found - direct - expected).max() < bound * np.abs(expected).max()


@pytest.mark.serial
def test_errors_of_a_free_surface_fall_with_the_square_of_the_spacing():
    errors = []
    for h in (12.0, 6.0):
        found, direct, expected = at_interface(SOLID, None, (24.0, 12.0), 10.0, h)[-1]
        errors.append(np.abs(found - direct - expected).max())
    assert 3.3 < errors[0] / errors[1] < 4.7


def at_interface(one, two, distances, frequency, h):
    """The pressure at three receivers, without the interface, and what it reflects; `distances` are those from it."""
    interval, n = 0.001 * h / 6, round(6 / h * 32)
    t, z = np.arange(round((0.15 + 2.7 / frequency) / interval)) * interval, np.arange(n) * h
    grid = Grid((round(336 / h), n), (h, h), layers=Layers(round(72 / h)), free_surface=two is None)
    model = [np.where(z < 93, a, b) for a, b in zip(one, two, strict=True)] if two else one
    depth, height = ((93 - x for x in distances) if two else distances), sum(distances)
    below, above = depth
    offsets = np.array([0.0, 102.0, 222.0])
    receivers = np.stack([54 + offsets, np.full(3, above)], axis=1)
    velocity, shear, density = model
    traces_found = traces(grid, [54.0, below], receivers, interval, len(t), shear, density, velocity, frequency)
    ratio = 1 - (one[1] / one[0]) ** 2
    direct = [ratio**2 * analytic(2, np.hypot(x, below - above), t, frequency) for x in offsets]
    return list(zip(traces_found, direct, [reflected(one, two, x, height, t, frequency) for x in offsets], strict=True))


@pytest.mark.serial
def test_rayleigh_waves_have_their_speed():
    """For a Poisson's ratio of 1/4 it is 0.9194 times the shear velocity."""
    h, interval, frequency, shear = 8.0, 0.0018, 12.0, VELOCITY / np.sqrt(3)
    grid = Grid((82, 30), (h, h), order=4, layers=Layers(12), free_surface=True)
    t, offsets, speed = np.arange(430) * interval, np.array([320.0, 560.0]), 0.9194 * shear
    found = traces(grid, [40.0, 16.0], [[40 + x, 0.0] for x in offsets], interval, 430, shear, frequency=frequency)
    arrivals = offsets[:, np.newaxis] / speed + 1.2 / frequency
    near, far = found * np.exp(-(((t - arrivals) * frequency / 1.4) ** 8))
    factors = np.linspace(0.98, 1.02, 41)
    moved = [np.interp(t - (offsets[1] - offsets[0]) / (speed * factor), t, near) for factor in factors]
    fits = [far @ x / np.linalg.norm(far) / np.linalg.norm(x) for x in moved]
    assert max(fits) > 0.98
    assert abs(factors[np.argmax(fits)] - 1) < 0.008


@pytest.mark.serial
def test_reciprocity_and_energy_with_a_free_surface():
    """Without layers the scheme conserves energy: late waves are as large as early ones, at the longest step."""
    grid = Grid((14, 16), (10.0, 8.0), order=4, layers=Layers(0), free_surface=True)
    medium, velocity = varying_solid(grid), VELOCITY * (1 + 0.3 * np.random.default_rng(3).random(grid.shape))
    medium = medium["shear_velocity"], 1800.0
    ends = np.array([31.3, 0.0]), np.array([71.0, 77.7])
    with pytest.raises(InputError, match="at most") as error:
        traces(grid, ends[0], ends[1:], 1.0, 5, *medium, velocity)
    interval = 0.999 * float(str(error.value).split("at most ")[1].split()[0])
    assert 0.6 * grid.largest_step(velocity.max()) < interval < grid.largest_step(velocity.max())
    there, back = (traces(grid, x, [y], interval, 500, *medium, velocity, 40.0)[0] for x, y in (ends, ends[::-1]))
    assert np.abs(there - back).max() < 1e-11 * np.abs(there).max()
    assert 0.3 < np.abs(there[-200:]).max() / np.abs(there[100:300]).max() < 3


@pytest.mark.serial
def test_layers_absorb_below_water():
    grid = Grid((16, 18), (10.0, 8.0), layers=Layers(8), free_surface=True)
    shear = np.broadcast_to(np.where(np.arange(18) < 6, 0.0, 1200.0), grid.shape)
    found = traces(grid, [70.0, 16.0], [[30.0, 56.0]], 0.0015, 450, shear)[0]
    assert np.abs(found[-60:]).max() < 0.005 * np.abs(found).max()


def test_unusable_parameters(comm):
    grid, geometry = small(2, surface=False)
    good, line = np.full(grid.shape, 900.0), small(1)
    for arguments, words in [
        ({"shear_velocity": -good}, "must not be negative"),
        ({"shear_velocity": np.ones(5)}, "shape"),
        ({"shear_velocity": good, "density": -good}, "positive"),
        ({"shear_velocity": good, "epsilon": good}, "not epsilon and shear_velocity"),
    ]:
        with pytest.raises(InputError, match=words):
            Propagator(grid, geometry, kernels="numpy", comm=comm, **arguments)
    with pytest.raises(InputError, match="two or three axes"):
        Propagator(*line, kernels="numpy", comm=comm, shear_velocity=np.zeros(10))
    F = Propagator(grid, geometry, kernels="numpy", comm=comm, shear_velocity=good)
    with pytest.raises(InputError, match="Poisson's ratio"):
        F(collops.full(F.domain, 1250.0, comm=comm))


def test_stations_that_elastic_waves_cannot_have(comm):
    """Vertical weights are mirrored as if the pressure vanished at the surface, which it does not in a solid."""
    grid, good = Grid((9, 12), (10.0, 8.0), order=2, layers=Layers(3), free_surface=True), [[40.0, 16.0]]
    solid, sea = np.full(grid.shape, 900.0), np.broadcast_to(np.where(np.arange(12) < 3, 0.0, 900.0), grid.shape)

    def propagator(shear, sources=good, receivers=good, **options):
        geometry = Geometry(sources, receivers, np.ones(3), 0.001, **options)
        return Propagator(grid, geometry, kernels="numpy", comm=comm, shear_velocity=shear)

    for where in ({"sources": [[40.0, 17.0]]}, {"receivers": [[41.0, 8.0], [40.0, 31.0]]}):
        with pytest.raises(InputError, match=f"1 of the {next(iter(where))} .* every 8 m"):
            propagator(solid, **where)
        propagator(sea, **where)
    propagator(solid, [[43.0, 33.0]], [[41.0, 0.0], [7.0, 24.0]])
    for options in ({"components": "vz"}, {"source_components": "fx"}):
        with pytest.raises(InputError, match="of pressure"):
            propagator(sea, **options)
