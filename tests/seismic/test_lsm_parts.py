from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import chi

from collops.errors import InputError
from collops.seismic.lsm.synthetic import default_frequency, fixed_spread, reflectivity
from collops.seismic.signals import frequency_from_power, highest_frequency, noise_from_power, power_spectrum, ricker
from collops.seismic.survey.geometry import Geometry, Grid, check_traces, cover
from collops.seismic.survey.selection import held_out
from collops.seismic.survey.traveltimes import analytic, seconds_from
from collops.seismic.survey.velocity import Gradient, on_grid
from tests.seismic.files import small_geometry


@given(st.floats(5, 60))
def test_the_frequency_of_a_ricker_is_found_in_its_spectrum(frequency):
    wavelet, centre = ricker(frequency, 0.002)
    assert wavelet[centre] == 1
    np.testing.assert_allclose(wavelet, wavelet[::-1])
    assert abs(wavelet[0]) < 1e-6
    trace = np.zeros((1, 1001))
    trace[0, 500 - centre : 501 + centre] = wavelet
    power = power_spectrum([trace], 1001)
    assert frequency_from_power(power, 1001, 0.002) == pytest.approx(frequency, rel=1e-3)


def test_no_power_has_no_frequency():
    assert frequency_from_power(power_spectrum([], 8), 8, 0.004) == 0


def test_the_noise_is_found_below_a_signal_that_is_much_stronger():
    noise, spikes = np.random.default_rng(4).normal(size=(2, 40, 300))
    spikes[:, :30] = spikes[:, -30:] = 0  # a wavelet that is cut has all frequencies
    signal = 20 * np.apply_along_axis(np.convolve, 1, spikes, ricker(20, 0.004)[0], "same")
    assert noise_from_power(power_spectrum([signal + noise], 300)) == pytest.approx(np.linalg.norm(noise), rel=0.1)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([0, 300, 100, 200], ["none", "all", "all", "none"]),
        ([0, 25, 50, 75], ["none", "none", "all", "all"]),  # shots 25 m apart record nearly the same
        ([0, 5, 10, 15], ["others"] * 4),  # so do all of these
    ],
)
def test_shots_a_wavelength_apart_are_held_out_else_receivers(sources, expected):
    stations = np.array([[0.0, 30.0, 60.0, 90.0, 120.0], np.zeros(5)])
    positions = np.array([sources, np.zeros(4)], dtype=float)
    held = held_out(Geometry(positions, [stations] * 4, 50, 0.004), 50.0)
    meaning = {"none": [False] * 5, "all": [True] * 5, "others": [False, False, True, True, False]}
    assert [each.tolist() for each in held] == [meaning[one] for one in expected]


def test_nothing_is_held_out_of_a_single_trace():
    one = Geometry(np.zeros((2, 1)), [np.ones((2, 1))], 50, 0.004)
    assert [each.tolist() for each in held_out(one, 50.0)] == [[False]]


@pytest.mark.parametrize("position", [(0.0, 0.0), (1003.0, 6.0), (3000.0, 0.0)])
def test_eikonal_times_are_those_of_a_linear_gradient(position):
    grid = Grid(241, 121, 12.5, 12.5)
    gradient = 0.6
    velocity = on_grid(Gradient(1500, gradient), grid, None, [])
    x, z = np.meshgrid(grid.x - position[0], grid.z - position[1], indexing="ij")
    at = 1500 + gradient * position[1]
    exact = np.arccosh(1 + gradient**2 * (x**2 + z**2) / (2 * at * velocity)) / gradient
    error = seconds_from(np.array(position), velocity, grid, "eikonal") - exact
    assert np.abs(error).max() < 2.5e-3
    assert np.sqrt((error**2).mean()) < 1e-3


def test_eikonal_times_are_straight_where_the_velocity_is_constant():
    grid = Grid(61, 41, 10, 10, 500.0)
    velocity = np.full(grid.shape, 2000.0)
    position = np.array([700.0, 0.0])
    exact = np.hypot(grid.x[:, None] - 700.0, grid.z) / 2000.0
    assert np.abs(seconds_from(position, velocity, grid, "eikonal") - exact).max() < 1.5e-3
    np.testing.assert_allclose(analytic(position, velocity, grid), exact, rtol=1e-15)
    # A gradient that the velocities can just hold changes the times by as little.
    almost = on_grid(Gradient(2000.0, 1e-9), grid, None, [])
    np.testing.assert_allclose(analytic(position, almost, grid), exact, rtol=1e-9)


@pytest.mark.parametrize("position", [(0.0, 0.0), (1003.0, 6.0), (2900.0, 1400.0)])
def test_analytic_times_are_integrals_along_arcs_of_circles(position):
    """Rays in a linear gradient are circles around points of the level at which the velocity would be zero."""
    surface, gradient = 1500.0, 0.6
    grid = Grid(25, 13, 125.0, 125.0)
    times = analytic(np.array(position), on_grid(Gradient(surface, gradient), grid, None, []), grid)
    for column, row in [(1, 3), (3, 12), (12, 0), (24, 0), (20, 7)]:
        # Heights below that level, and the centre and radius of the circle through both ends.
        x0, h0 = position[0], position[1] + surface / gradient
        x1, h1 = grid.x[column], grid.z[row] + surface / gradient
        centre = ((x1**2 + h1**2) - (x0**2 + h0**2)) / (2 * (x1 - x0))
        radius = np.hypot(x0 - centre, h0)
        ends = sorted(np.arctan2(h, x - centre) for x, h in ((x0, h0), (x1, h1)))
        expected, _ = quad(lambda angle, r=radius: r / (gradient * r * np.sin(angle)), *ends, epsabs=1e-12)
        assert times[column, row] == pytest.approx(expected, rel=1e-9)


def test_the_grid_covers_the_survey_with_a_margin_and_reaches_as_deep_as_the_record():
    geometry = small_geometry(samples=501)
    grid = cover(geometry, Gradient(2000.0))
    (left, _), (right, deepest) = geometry.bounds
    assert grid.x[0] < left and grid.x[-1] > right
    assert grid.dx == 50  # half of the 100 m between receivers
    assert grid.z[-1] == pytest.approx(2000, abs=grid.dz)
    assert grid.z[-1] > deepest
    grid.check_contains(geometry)


@pytest.mark.parametrize(("highest", "expected", "why"), [
    (40.0, 9.37, "row spacing 9.37 m: a quarter of the wavelength of 40 Hz in 1500 m/s"),  # rounded down
    (4.0, 50.0, "the column spacing, less than 93.7 m"),
    (400.0, 4.16, "limited by the maximum of 401 rows, more than 0.937 m"),
])  # fmt: skip
def test_rows_are_a_quarter_of_the_shortest_wavelength_apart(highest, expected, why):
    notes: list[str] = []
    grid = cover(small_geometry(samples=501), Gradient(1500, 0.2), highest=highest, notes=notes)
    depth = 1500 / 0.2 * (np.exp(0.2 * 2.0 / 2) - 1)
    assert grid.dz == pytest.approx(expected, rel=1e-3) and depth <= grid.z[-1] < depth + grid.dz
    assert why in notes[0]


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_highest_frequency_is_that_of_the_signal(noise):
    generator, samples, interval = np.random.default_rng(3), 500, 0.004
    wavelet, _ = ricker(25.0, interval)
    spikes = generator.normal(size=(200, samples)) * (generator.random((200, samples)) < 0.05)
    traces = np.stack([np.convolve(row, wavelet, mode="same") for row in spikes])
    traces += noise * traces.std() * generator.normal(size=traces.shape)
    found = highest_frequency(power_spectrum([traces], samples), samples, interval)
    # The energy of a Ricker wavelet has a chi distribution of 5 degrees of freedom over twice the frequency.
    assert found == pytest.approx(25 * chi(5).ppf(0.99) / 2, rel=0.06)
    assert highest_frequency(np.zeros(251), samples, interval) == 0


def test_the_deepest_echo_of_a_gradient_has_its_formula():
    geometry = small_geometry(samples=501)
    grid = cover(geometry, Gradient(1500, 0.6), dx=5, dz=5)
    expected = 1500 / 0.6 * (np.exp(0.6 * 2.0 / 2) - 1)
    assert grid.z[-1] == pytest.approx(expected, abs=5)


@settings(max_examples=40)
@given(st.integers(2, 90), st.integers(2, 90))
def test_given_sizes_stay_and_still_cover(nx, nz):
    geometry = small_geometry()
    grid = cover(geometry, Gradient(1500, 0.6), nx=nx, nz=nz)
    assert grid.shape == (nx, nz)
    # One cell of room is what the snapping of the first column may take.
    assert grid.x[0] <= geometry.bounds[0][0] + grid.dx and grid.x[-1] >= geometry.bounds[1][0] - grid.dx


@pytest.mark.parametrize("change", [{"x0": 150.0}, {"dx": 1.0, "nx": 10}, {"nz": 2, "dz": 1.0}])
def test_stations_off_the_model_are_named(change):
    geometry = small_geometry()
    grid = cover(geometry, Gradient(1500.0), **change)
    with pytest.raises(InputError, match="outside the model"):
        grid.check_contains(geometry)


@pytest.mark.parametrize("size", [{"nx": 1}, {"nz": 0}, {"dx": 0.0}, {"dz": float("nan")}, {"x0": float("inf")}])
def test_a_grid_needs_sizes(size):
    with pytest.raises(InputError, match=f"--{next(iter(size))}"):
        Grid(**({"nx": 5, "nz": 5, "dx": 1.0, "dz": 1.0} | size))


def test_the_synthetic_model_is_in_the_band_of_the_wavelet():
    grid = Grid(241, 121, 12.5, 12.5)
    velocity = on_grid(Gradient(1500, 0.6), grid, None, [])
    frequency = default_frequency(velocity, grid)
    model = reflectivity(grid, velocity, frequency)
    assert model.shape == grid.shape and 0.5 < np.abs(model).max() < 3
    assert not model[0].any() and not model[-1].any()
    # Nothing of importance at wavenumbers that the data cannot see: averages over depth nearly vanish.
    assert np.abs(model.mean(axis=1)).max() < 0.05 * np.abs(model).max()


@pytest.mark.parametrize(("nx", "nz"), [(2, 2), (5, 3), (31, 21)])
def test_small_models_are_finite(nx, nz):
    grid = Grid(nx, nz, 12.5, 12.5)
    velocity = np.full(grid.shape, 1500.0)
    assert np.isfinite(reflectivity(grid, velocity, default_frequency(velocity, grid))).all()
    geometry = fixed_spread(grid, velocity, 1, 1, None)
    grid.check_contains(geometry)
    assert geometry.sources[0, 0] == pytest.approx(grid.x.mean(), abs=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_numbers_are_found(value):
    traces = [np.zeros((5, 40), np.float32)]
    traces[0][3, 17] = value
    with pytest.raises(InputError, match="shot 3, trace 4, sample 18"):
        check_traces(range(2, 3), traces)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": 1},
        {"interval": 0.0},
        {"interval": float("inf")},
        {"start": float("nan")},
        {"receivers": []},
        {"sources": np.empty((2, 0))},
        {"sources": np.full((2, 3), np.nan)},
        {"receivers": [np.empty((2, 0))] * 3},
    ],
)
def test_an_invalid_geometry_raises(change):
    good = small_geometry()
    values = {name: getattr(good, name) for name in ("sources", "receivers", "samples", "interval", "start")}
    with pytest.raises(InputError):
        Geometry(**(values | change))


@pytest.mark.serial
@pytest.mark.parametrize(("dx", "samples"), [(1e300, None), (1e308, None), (10.0, 10**30)])
def test_records_that_would_last_too_long(dx, samples):
    with pytest.raises(InputError, match="at most 600 s long"), np.errstate(over="ignore"):
        fixed_spread(Grid(31, 21, dx, 10.0), np.full((31, 21), 1500.0), 2, 3, samples)
