"""Waves in viscoacoustic media: analytic fields, measured attenuation, exact adjoints, the same numbers everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import hankel2

import collops
from collops.errors import InputError, UnsupportedTypeError
from collops.extend.communication import alone
from collops.seismic.waves import Geometry, Grid, Layers, Propagator, Relaxation
from collops.seismic.waves.media.relaxation import Mechanisms
from tests.seismic.test_waves import arrays_of, assert_exact_on_tiles, assert_same_waves, products, small
from tests.seismic.test_waves_jax import on_jax
from tests.seismic.test_waves_physics import VELOCITY, ricker

RELAXATION = Relaxation(40.0)


def varying(grid, *others, seed=5):
    """A quality factor with jumps, and other parameters."""
    rng = np.random.default_rng(seed)
    quality = np.where(rng.random(grid.shape) < 0.3, 15.0, 40 + 60 * rng.random(grid.shape))
    values = {"density": 1500 + 1000 * rng.random(grid.shape), "epsilon": np.full(grid.shape, 0.2), "delta": 0.1}
    return {"quality_factor": quality, "relaxation": RELAXATION, **{name: values[name] for name in others}}


@pytest.mark.parametrize(
    ("ndim", "time_order", "others"),
    [(1, 2, ("density",)), (2, 4, ()), (2, 2, ("density",)), (2, 4, ("epsilon", "delta")), (3, 2, ())],
)
def test_the_adjoint_is_exact_on_any_tiles(comm, ndim, time_order, others):
    grid, geometry = small(ndim, 2, surface=ndim != 2, shots=1, samples=25)
    grid = replace(grid, time_order=time_order, shape=((13,), (17, 14), (12, 8, 12))[ndim - 1], layers=Layers(3))
    options = {"dtype": "float64", "kernels": "numpy", **varying(grid, *others)}
    tiles = ((comm.size,), (comm.size, 1), (1, 1, comm.size))[ndim - 1]
    assert_exact_on_tiles(comm, grid, geometry, tiles, share=2 / 3, **options)


def test_numba_computes_the_same_bits_as_numpy(comm):
    grid, geometry = small(3, 2, shots=1, samples=15)
    options = {"dtype": "float64", **varying(grid)}
    tiles = (1, 1, comm.size) if comm.size < 3 else None
    numba = Propagator(grid, geometry, kernels="numba", tiles=tiles, comm=comm, **options)
    assert products(numba) == products(Propagator(grid, geometry, kernels="numpy", comm=alone(), **options))


def test_a_large_quality_factor_changes_nothing(comm):
    grid, geometry = small(2, 4, samples=30)
    options = {"dtype": "float64", "kernels": "numpy", "comm": comm}
    F, lossless = (
        Propagator(grid, geometry, **options, **x) for x in ({"quality_factor": 1e15, "relaxation": RELAXATION}, {})
    )
    assert_same_waves(F, lossless)


def test_jax_differentiates_the_same_scheme(comm, jax_double):
    """Of fourth order in time, which applies the operator and its filter twice."""
    import jax

    grid = Grid((14,), (10.0,), order=2, layers=Layers(2), free_surface=True, time_order=4)
    geometry = Geometry([[33.0]], [[40.0], [70.0]], ricker(40.0, np.arange(18) * 0.002), 0.002)
    tiles = (comm.size,) if comm.size < 4 else None
    options = {"dtype": "float64", "tiles": tiles, "kernels": "numpy", "comm": comm}
    F = Propagator(grid, geometry, **options, **varying(grid))
    model, _, data = arrays_of(F)
    slope = jax.grad(lambda v: F(v).dot(on_jax(data)))(on_jax(model))
    expected = F.jacobian(model).adjoint(data)
    np.testing.assert_allclose(slope.local_array, expected.local_array, rtol=0, atol=1e-13 * float(expected.norm()))


def test_windows_and_wavelets(comm):
    grid, geometry = small(2, 4, shots=2, samples=20)
    options = {"dtype": "float64", "kernels": "numpy", "comm": comm, **varying(grid, "density")}
    F = Propagator(grid, geometry, **options)
    model = arrays_of(F)[0]
    expected = F(model).gather()
    assert (Propagator(grid, geometry, aperture=1e4, **options)(model).gather() == expected).all()
    W = F.wavelet_operator(model)
    wavelet = collops.from_global(np.asarray(geometry.wavelet), layout=W.domain, comm=comm)
    np.testing.assert_allclose(W.forward(wavelet).gather(), expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def constant_q(frequency, quality, reference):
    """The complex velocity of Kjartansson, relative to the phase velocity at the reference frequency."""
    gamma = np.arctan(1 / quality) / np.pi
    return (1j * frequency / reference) ** gamma * np.cos(np.pi * gamma / 2)


@pytest.mark.serial
@pytest.mark.parametrize("quality", [10.0, 20.0, 1000.0])
def test_the_discrete_relaxation_has_the_quality_factor(quality):
    """Measured by an impulse: the quality factor in the band, and the phase velocity of a constant one."""
    interval = 0.002
    mechanisms = Mechanisms(Relaxation(20.0), interval)
    filters = mechanisms.filters(np.array([quality]))
    signal, variables, response = 1.0, np.zeros(3), np.zeros(4096)
    for n in range(len(response)):
        response[n] = filters.first[0] * (signal + variables.sum())
        variables = mechanisms.decays * variables + filters.gains[:, 0] * signal
        signal = 0.0
    frequency = np.linspace(5, 80, 300)
    modulus = response @ np.exp(-2j * np.pi * interval * np.outer(np.arange(4096), frequency))
    np.testing.assert_allclose(modulus.real / modulus.imag, quality, rtol=0.01 if quality < 20 else 0.006)
    found, expected = (1 / np.real(1 / x) for x in (np.sqrt(modulus), constant_q(frequency, quality, 20.0)))
    np.testing.assert_allclose(found, expected, rtol=0.07 / quality)
    middle = (frequency > 10) & (frequency < 40)
    np.testing.assert_allclose(found[middle], expected[middle], rtol=0.011 / quality)


def traces(grid, source, receivers, interval, samples, frequency=25.0, velocity=VELOCITY, **medium):
    wavelet = ricker(frequency, np.arange(samples) * interval)
    medium = {"relaxation": Relaxation(25.0)} | medium
    options = {"dtype": "float64", "kernels": "numpy", "comm": alone()}
    F = Propagator(grid, Geometry([source], receivers, wavelet, interval), **options, **medium)
    values = np.broadcast_to(np.asarray(velocity, float), grid.shape).copy()
    return F(collops.from_global(values, layout=F.domain, comm=F.comm)).local_array[0]


def analytic(ndim, distance, interval, samples, quality):
    """The field of a point source in a medium with a constant quality factor, at complex frequencies: none wraps."""
    t, damping = np.arange(4 * samples) * interval, 8 / (4 * samples * interval)
    spectrum = np.fft.rfft(ricker(25.0, t) * np.exp(-damping * t))
    frequency = np.fft.rfftfreq(4 * samples, interval) - 0.5j * damping / np.pi
    k = 2 * np.pi * frequency / (VELOCITY * constant_q(frequency, quality, 25.0))
    green = {
        1: np.exp(-1j * k * distance) / (2j * k),
        2: -0.25j * hankel2(0, k * distance),
        3: np.exp(-1j * k * distance) / (4 * np.pi * distance),
    }[ndim]
    return (np.fft.irfft(spectrum * green, 4 * samples) * np.exp(damping * t))[:samples]


@pytest.mark.serial
@pytest.mark.parametrize(
    ("shape", "distance", "samples", "quality"),
    [((200,), 880.0, 900, 20.0), ((52, 12), 210.0, 210, 8.0), ((29, 8, 8), 100.0, 130, 4.0)],
)
def test_green_functions(shape, distance, samples, quality):
    ndim = len(shape)
    grid = Grid(shape, (6.0,) * ndim, layers=Layers(16 if ndim == 1 else 8), time_order=4)
    source = np.array([40.0, 25.0, 21.0][:ndim])
    receiver = source + np.array([distance, 0, 0][:ndim])
    found = traces(grid, source, [receiver], 0.001, samples, quality_factor=quality)[0]
    expected = analytic(ndim, distance, 0.001, samples, quality)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    assert np.abs(expected).max() < 0.4 * np.abs(analytic(ndim, distance, 0.001, samples, 1e9)).max()
    if ndim == 1:  # amplitude and phase after eleven wavelengths
        frequency = np.linspace(10, 50, 41)
        one, two = (
            x @ np.exp(-2j * np.pi * 0.001 * np.outer(np.arange(samples), frequency)) for x in (found, expected)
        )
        np.testing.assert_allclose(np.abs(one / two), 1, rtol=0.015)
        assert np.abs(np.angle(one / two)).max() < 0.045


@pytest.mark.serial
def test_energy_decreases():
    """Between rigid edges, from a source that ends: without attenuation the energy of the scheme is constant."""
    n, h, interval, begin = 40, 10.0, 0.002, 60
    grid = Grid((n,), (h,), order=2, layers=Layers(0))
    receivers = np.arange(n)[:, np.newaxis] * h
    energies = []
    for quality in (30.0, 1e15):
        u = traces(grid, [117.0], receivers, interval, 400, quality_factor=quality)
        change, slope = np.diff(u) / interval / VELOCITY, np.diff(np.pad(u, ((1, 1), (0, 0))), axis=0) / h
        energies.append(((change**2).sum(0) + (slope[:, 1:] * slope[:, :-1]).sum(0))[begin:])
    lossy, lossless = energies
    np.testing.assert_allclose(lossless, lossless[0], rtol=1e-9)
    assert (np.diff(lossy) < 0).all() and lossy[-1] < 0.1 * lossy[0]


@pytest.mark.serial
@pytest.mark.parametrize("time_order", [2, 4])
def test_the_longest_step_is_stable_with_layers(time_order):
    grid = Grid((16, 18), (10.0, 8.0), layers=Layers(8), free_surface=True, time_order=time_order)
    velocity = VELOCITY * (1 + 0.5 * np.random.default_rng(4).random(grid.shape))
    medium = varying(grid, "density") | {"velocity": velocity, "relaxation": Relaxation(25.0)}
    with pytest.raises(InputError, match="at most") as error:
        traces(grid, [70.0, 60.0], [[30.0, 50.0]], 0.004, 5, **medium)
    longest = float(str(error.value).split("at most ")[1].split()[0])
    found = traces(grid, [70.0, 60.0], [[30.0, 50.0]], 0.999 * longest, 700, 40.0, **medium)[0]
    assert longest < grid.largest_step(velocity.max())
    assert np.abs(found[-100:]).max() < 1e-3 * np.abs(found).max()


@pytest.mark.serial
def test_the_limit_of_stability_is_sharp():
    def largest(interval):
        geometry = Geometry([[155.0]], [[85.0]], ricker(40.0, np.arange(800) * interval), interval)
        options = {"dtype": "float64", "kernels": "numpy", "comm": alone()}
        grid = Grid((60,), (5.0,), order=2, layers=Layers(0))
        F = Propagator(grid, geometry, quality_factor=8.0, relaxation=Relaxation(25.0), **options)
        longest = 2 / (VELOCITY * F._modelling.wavenumber)
        F._modelling.wavenumber /= 2  # do not check the step
        return longest, np.abs(F(collops.full(F.domain, VELOCITY, comm=F.comm)).local_array).max()

    longest, amplitude = largest(0.0022)
    assert largest(0.998 * longest)[1] < 1.5 * amplitude
    assert largest(1.01 * longest)[1] > 1e20 * amplitude


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"quality_factor": 0.0}, "must be positive"),
        ({"quality_factor": -20.0}, "must be positive"),
        ({"quality_factor": np.inf}, "infinite"),
        ({"quality_factor": np.nan}, "NaN"),
        ({"quality_factor": 0.5}, "0.5 is too small"),
        ({"quality_factor": np.ones(5)}, "shape"),
        ({"quality_factor": 20.0, "relaxation": None}, "needs a reference frequency"),
        ({"quality_factor": None}, "needs a quality factor"),
        ({"quality_factor": 20.0, "relaxation": Relaxation(200.0)}, "below half the sampling frequency, 500 Hz"),
        ({"quality_factor": 20.0, "epsilon": 0.1}, "a medium takes .* not epsilon and quality_factor"),
    ],
)
def test_unusable_parameters(comm, arguments, words):
    with pytest.raises(InputError, match=words):
        Propagator(*small(2), kernels="numpy", comm=comm, **{"relaxation": RELAXATION} | arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0.0,), "positive number"),
        (("20",), "positive number"),
        ((20.0, 5.0), "two increasing positive frequencies"),
        ((20.0, (40.0, 5.0)), "two increasing positive frequencies"),
        ((20.0, (30.0, 50.0)), "in its band from 30 to 50 Hz, not 20 Hz"),
        ((20.0, None, 6), "1 to 5 mechanisms"),
        ((20.0, None, 1.0), "1 to 5 mechanisms"),
    ],
)
def test_unusable_descriptions(arguments, words):
    with pytest.raises(InputError, match=words):
        Relaxation(*arguments)


def test_a_relaxation_of_another_type(comm):
    with pytest.raises(UnsupportedTypeError, match=r"must be a Relaxation, not builtins\.float"):
        Propagator(*small(2), quality_factor=20.0, relaxation=20.0, kernels="numpy", comm=comm)
