"""The parts of waveform inversion and reverse-time migration: misfits, traces of a survey, and the synthetic earth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal

import collops
from collops.seismic.conditioning import Conditioned
from collops.seismic.signals import ricker, ricker_shape
from collops.seismic.survey import Grid
from collops.seismic.waveform.earth import WATER, smooth_model, velocity_model, water_points
from collops.seismic.waveform.imaging import laplacian
from collops.seismic.waveform.misfits import MISFITS, transport
from collops.seismic.waveform.problem import _reversed_as
from collops.seismic.waveform.recording import Recording, line_source, low_pass, time_steps, wavelet_at_steps, whitening
from collops.seismic.waves import Geometry, Layers, Propagator
from collops.seismic.waves import Grid as WaveGrid


@pytest.mark.serial
@pytest.mark.parametrize("samples", [40, 41])
@pytest.mark.parametrize("name", MISFITS)
def test_derivatives_of_misfits_are_exact(name, samples):
    u, d, change, other = np.random.default_rng(0).standard_normal((4, 2, 3, samples))
    attribute = MISFITS[name](u, d, np)
    forward = attribute.forward(change)
    np.testing.assert_allclose((forward * other).sum(), (change * attribute.adjoint(other)).sum(), rtol=1e-11)
    missed = [
        np.linalg.norm(MISFITS[name](u + step * change, d, np).values - attribute.values - step * forward)
        for step in (2e-4, 1e-4)
    ]
    assert missed[0] < 1e-12 * np.linalg.norm(u) or 3.9 < missed[0] / missed[1] < 4.1
    single = MISFITS[name](u.astype(np.float32), d.astype(np.float32), np)
    results = single.values, single.forward(change.astype(np.float32)), single.adjoint(other.astype(np.float32))
    assert {array.dtype for array in results} == {np.dtype(np.float32)}


@pytest.mark.serial
def test_misfits_are_what_their_names_say():
    u, d = np.random.default_rng(1).standard_normal((2, 3, 50))
    values = {name: (misfit(u, d, np).values, misfit(d, d, np).values) for name, misfit in MISFITS.items()}
    np.testing.assert_allclose(values["envelope"][0], np.abs(signal.hilbert(u)), atol=1e-3)
    half = 0.5 * ((values["correlation"][0] - values["correlation"][1]) ** 2).sum(axis=-1)
    cosine = (u * d).sum(axis=-1) / np.linalg.norm(u, axis=-1) / np.linalg.norm(d, axis=-1)
    np.testing.assert_allclose(half, 1 - cosine, rtol=1e-12)
    for trace, quantiles in zip(u, values["transport"][0], strict=True):
        density = np.log1p(np.exp(3 * trace / np.abs(d).max(axis=-1)[[np.array_equal(trace, row) for row in u]]))
        integral = np.concatenate([[0], np.cumsum(density)]) / density.sum()
        np.testing.assert_allclose(quantiles, np.interp((np.arange(50) + 0.5) / 50, integral, np.arange(51)), rtol=1e-9)


@pytest.mark.serial
def test_transport_measures_shifts_and_zeros_stay_finite():
    t = np.arange(300.0)
    shifted = np.exp(-(((t - np.array([[100.0], [110.0], [160.0]])) / 8) ** 2))
    at, near, far = transport(shifted, np.broadcast_to(shifted[:1], shifted.shape), np).values
    costs = [((other - at) ** 2).sum() for other in (near, far)]
    assert 0 < 20 * costs[0] < costs[1] < 40 * costs[0]  # 36 times for a density without background
    # Of shifted Ricker wavelets, it has no other minimum, unlike the difference of waveforms.
    shift, time = 0.02 * np.arange(20)[:, None], 0.004 * np.arange(500)
    waves = ricker_shape(7 * (time - 0.8 - shift))
    values = {
        name: misfit(waves, np.broadcast_to(waves[0], waves.shape), np).values for name, misfit in MISFITS.items()
    }
    rises = {name: np.diff(((part - part[0]) ** 2).sum(axis=-1)) > 0 for name, part in values.items()}
    assert rises["transport"].all() and rises["envelope"].all() and not rises["waveform"].all()
    zeros = np.zeros((2, 10))
    for misfit in MISFITS.values():
        attribute = misfit(zeros, zeros, np)
        assert np.isfinite([attribute.values, attribute.forward(zeros + 1), attribute.adjoint(zeros + 1)]).all()


@pytest.mark.serial
def test_wavelets_and_filters():
    taps, centre = ricker(20.0, 0.004)
    fine = wavelet_at_steps(taps, 5, 3, 700)
    expected = ricker_shape(20.0 * 0.004 / 5 * (np.arange(700) - 3 - 5 * centre))
    np.testing.assert_allclose(fine, expected, atol=2e-5)
    spike = wavelet_at_steps(np.array([0.0, 1.0, 0.0]), 3, 0, 18)
    np.testing.assert_allclose(spike[::3], [0, 1, 0, 0, 0, 0], atol=1e-15)
    assert [time_steps(0.004, longest) for longest in (0.004, 0.00401, 0.0039, 0.0013)] == [1, 1, 2, 4]
    sections = signal.butter(4, 30.0, fs=1 / 0.0001, output="sos")  # finely sampled: the filter of continuous time
    frequencies = np.fft.rfftfreq(200, 0.004)
    _, response = signal.sosfreqz(sections, frequencies, fs=1 / 0.0001)
    np.testing.assert_allclose(low_pass(30.0, 100, 0.004), np.abs(response) ** 2, atol=2e-3)


@pytest.mark.serial
@pytest.mark.parametrize("samples", [40, 100])  # the wavelet is longer than these with as many zeros, or shorter
def test_whitening_divides_by_the_spectrum_where_the_wavelet_is_strong(samples):
    wavelet, frequencies = 3 * ricker(8.0, 0.004)[0], np.fft.rfftfreq(2 * samples, 0.004)
    assert len(wavelet) == 87
    amplitudes = (frequencies / 8) ** 2 * np.exp(1 - (frequencies / 8) ** 2)  # of a Ricker wavelet, analytically
    response = whitening(wavelet, samples, 5.0)
    strong, absent = amplitudes > 0.4, amplitudes < 1e-4
    np.testing.assert_allclose((response * amplitudes)[strong], 1.0, atol=0.1)
    assert response[absent].max() < 0.05 and 3 < response.max() < 5.01
    for gain in (2.0, 20.0):
        assert 0.9 * gain < whitening(ricker(8.0, 0.004)[0], 2000, gain).max() < 1.0001 * gain


@pytest.mark.serial
def test_traces_of_any_unit_are_reversed_as_the_conditioned_ones():
    raw = np.full((2, 3), 1e-30, np.float32)  # its square underflows
    shot = Conditioned(raw, np.ones((1, 1)), np.array([[1.0], [-1.0]]), np.ones(2))
    np.testing.assert_array_equal(_reversed_as(shot, raw), [[1], [-1]] * raw)


@pytest.mark.serial
def test_traces_of_points_become_those_of_lines():
    speed, distance, times = 2000.0, 600.0, 0.002 * np.arange(300)

    def wave(t):
        return ricker_shape(25.0 * t)

    point = wave(times - distance / speed) / (4 * np.pi * distance)
    # The Green's function of a line, with the variable s: t^2 = (r/v)^2 + s^2.
    s = np.linspace(0, 1, 4001)
    delay = np.hypot(distance / speed, s)
    line = np.trapezoid(wave(times[:, None] - delay) / delay, s, axis=1) / (2 * np.pi)
    converted = line_source(point[None], times, speed)[0]
    assert np.linalg.norm(converted - line) < 0.04 * np.linalg.norm(line)


def test_recordings_have_exact_transposes(comm):
    grid = WaveGrid((8, 7), (10.0, 10.0), order=2, layers=Layers(2))
    geometry = Geometry([[20.0, 20.0]] * 4, [[30.0, 30.0], [40.0, 20.0]], np.ones(21), 0.001)
    F = Propagator(grid, geometry, dtype="float64", kernels="numpy", comm=comm)
    layout = collops.Layout.split((4, 2, 6), comm.size)
    weights = collops.random(layout, seed=1, comm=comm)
    recording = Recording(F, 4, 3, weights)
    assert recording.dottest() and recording.up_to(50.0, 0.003).dottest() and recording.scaled(2.0).dottest()
    traces = collops.random(F.range, seed=2, comm=comm)
    taken = recording.forward(traces).gather()
    np.testing.assert_array_equal(taken, traces.gather()[:, :, 4:20:3] * weights.gather())
    limited = recording.band_of(weights).gather()
    np.testing.assert_array_equal(limited, weights.gather())


@pytest.mark.serial
def test_the_earth_has_water_layers_and_no_grid():
    coarse, fine = Grid(41, 31, 20.0, 20.0), Grid(81, 61, 10.0, 10.0)
    velocity = velocity_model(coarse, 3)
    assert np.mean(velocity == velocity_model(fine, 3)[::2, ::2]) > 0.99  # but for points on an interface
    water = water_points(coarse)
    assert 0 < water[0].sum() < 10 and (velocity[water] == WATER).all() and (velocity[~water] > WATER).all()
    assert np.mean(velocity != velocity_model(coarse, 4)) > 0.5
    smooth = smooth_model(velocity, coarse, 100.0, water)
    assert (smooth[water] == WATER).all() and velocity.min() <= smooth.min() <= smooth.max() < velocity.max()
    # Travel times through the layers are kept where the Gaussian does not reach an edge.
    uniform = smooth_model(np.where(water, WATER, 2500.0), coarse, 100.0, water)
    np.testing.assert_allclose(uniform[~water], 2500.0)


@pytest.mark.serial
def test_the_laplacian_is_that_of_a_wave():
    grid = Grid(60, 50, 2.0, 3.0)
    wave = np.sin(0.05 * grid.x)[:, None] * np.cos(0.04 * grid.z)
    water = np.broadcast_to(grid.z < 20, grid.shape)
    found, inner = laplacian(np.where(water, 0.0, wave), grid, water), np.s_[1:-1, 9:-1]
    np.testing.assert_allclose(found[inner], (0.05**2 + 0.04**2) * wave[inner], rtol=3e-3)
    assert not found[:, :8].any() and np.abs(found).max() < 1.01 * (0.05**2 + 0.04**2)
