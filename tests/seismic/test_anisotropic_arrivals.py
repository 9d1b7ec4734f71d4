"""First arrivals of qP waves in VTI and TTI media: group velocities, formulas, rotations, rays, and all three forms."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.interpolate import RegularGridInterpolator
from scipy.ndimage import gaussian_filter
from scipy.optimize import brentq

from collops.errors import InputError
from collops.seismic.kirchhoff.eikonal import device, first_arrivals, host, medium
from collops.seismic.kirchhoff.eikonal.anisotropy import parameters_of
from collops.seismic.kirchhoff.geometry import ImageGrid
from tests.seismic.arrivals import COMPILER, HostKernel, fake_cupy

MEDIA = {
    "VTI": (0.2, 0.1, 0.0, 0.0),
    "TTI": (0.25, 0.05, 35.0, 0.0),
    "delta above epsilon": (0.1, 0.2, -50.0, 0.0),
    "strong": (0.4, -0.1, 70.0, 0.0),
    "TTI in 3-D": (0.2, 0.05, 40.0, 115.0),
}
SPEED = 2000.0


def phase_velocity(angle: float, epsilon: float, delta: float) -> float:
    """Return the phase velocity at an angle from the symmetry axis, for f = 1 (Tsvankin, 1996): no shear waves."""
    sine = np.sin(angle) ** 2
    root = np.sqrt((1 + 2 * epsilon * sine) ** 2 - 2 * (epsilon - delta) * np.sin(2 * angle) ** 2)
    return float(SPEED * np.sqrt(0.5 + epsilon * sine + 0.5 * root))


def group_time(offset: np.ndarray, epsilon: float, delta: float, tilt: float, azimuth: float) -> float:
    """Return the time along a straight ray: the root of the phase angle whose group velocity has its direction."""
    lean, turn = np.deg2rad(tilt), np.deg2rad(azimuth)
    axis = np.array([np.sin(lean) * np.sin(turn), np.sin(lean) * np.cos(turn), np.cos(lean)])[3 - len(offset) :]
    distance = float(np.linalg.norm(offset))
    wanted = np.arccos(min(abs(axis @ offset) / distance, 1.0))

    def group(angle: float) -> tuple[float, float]:
        speed, step = phase_velocity(angle, epsilon, delta), 1e-5
        slope = (phase_velocity(angle + step, epsilon, delta) - phase_velocity(angle - step, epsilon, delta)) / (
            2 * step
        )
        return float(angle + np.arctan(slope / speed)), float(np.hypot(speed, slope))

    angle = brentq(lambda angle: group(angle)[0] - wanted, -0.1, np.pi / 2 + 0.1, xtol=1e-10)
    return distance / group(angle)[1]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return HostKernel(tmp_path_factory.mktemp("cuda"), np.dtype(np.float64), True)


@pytest.fixture(params=["numba", "numpy", "cuda"])
def form(request, monkeypatch):
    """Return the sweeps of a form, as a function of a medium and its sources; CUDA's kernel is compiled as C++."""
    if request.param == "cuda":
        if COMPILER is None:
            pytest.skip("needs a C++ compiler")
        kernel = request.getfixturevalue("kernel")
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
        monkeypatch.setattr(device, "_kernel", lambda *arguments: kernel)
        monkeypatch.setattr(device, "recorded", lambda work: work)
        monkeypatch.setattr(device, "_at_a_time", lambda medium: 32)
        return device.arrivals
    if request.param == "numpy":
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "numba" else find(name))
    return host.arrivals


def solved(form, grid: ImageGrid, positions: np.ndarray, velocity: np.ndarray, *thomsen) -> list[np.ndarray]:
    """Return the times from positions, by one of the forms."""
    anisotropy = parameters_of(grid, *thomsen)
    sources = [medium.Source.at(position, grid, velocity, anisotropy) for position in positions]
    return list(form(medium.Medium.of(grid, velocity, np.dtype(np.float64), anisotropy), sources, None))


@pytest.mark.serial
@pytest.mark.parametrize("name", MEDIA)
def test_times_in_a_homogeneous_medium_are_those_of_the_group_velocity(form, name):
    shape, spacing = ((7, 9, 8), (20.0,) * 3) if name.endswith("3-D") else ((25, 18), (20.0, 10.0))
    grid = ImageGrid(tuple(h * np.arange(n) for n, h in zip(shape, spacing, strict=True)), spacing)
    end = np.array([axis[-1] for axis in grid.axes])
    positions = np.array([[0.0] * len(end), 0.513 * end])
    cell = max(spacing) / SPEED
    for position, times in zip(
        positions, solved(form, grid, positions, np.full(shape, SPEED), *MEDIA[name]), strict=True
    ):
        for node in np.random.default_rng(1).integers(0, shape, (30, len(shape))):
            place = np.array([axis[n] for axis, n in zip(grid.axes, node, strict=True)])
            assert abs(times[tuple(node)] - group_time(place - position, *MEDIA[name])) < 1e-4 * cell


@pytest.mark.serial
def test_an_elliptic_medium_is_a_stretched_isotropic_one():
    """Also if the velocity increases with depth, where times have a formula; isotropic times are wrong by far."""
    x, z = 10.0 * np.arange(41), 10.0 * np.arange(31)
    speed, epsilon = np.broadcast_to(1500.0 + 0.6 * z, (41, 31)), 0.25
    (times,) = first_arrivals((x, z), [(203.0, 8.0)], speed, epsilon=epsilon, delta=epsilon, engine="numpy")
    distance = np.hypot((x[:, None] - 203.0) / np.sqrt(1 + 2 * epsilon), z - 8.0)
    exact = np.arccosh(1 + (0.6 * distance) ** 2 / (2 * speed * (1500.0 + 0.6 * 8.0))) / 0.6
    (isotropic,) = first_arrivals((x, z), [(203.0, 8.0)], speed, engine="numpy")
    cell = 10.0 / 1500
    assert np.abs(times - exact).max() < 0.02 * cell < 0.5 * cell < np.abs(isotropic - exact).max()


@pytest.mark.serial
def test_a_medium_turned_by_a_right_angle_has_turned_times():
    """And a tilt of 90 degrees exchanges depth and distance; in 3-D the azimuth exchanges x and y."""
    axis = 10.0 * np.arange(31)
    speed = 2000 + 50 * gaussian_filter(np.random.default_rng(3).standard_normal((31, 31)), 2)
    (times,) = first_arrivals((axis, axis), [(110.0, 70.0)], speed, epsilon=0.2, delta=0.05, tilt=20.0, engine="numpy")
    (turned,) = first_arrivals(
        (axis, axis), [(70.0, 110.0)], speed.T, epsilon=0.2, delta=0.05, tilt=70.0, engine="numpy"
    )
    np.testing.assert_allclose(turned.T, times, rtol=0, atol=1e-3 * 10 / 2000)
    short = 20.0 * np.arange(9)
    place, values = (40.0, 90.0, 31.0), 2000 + 100 * np.random.default_rng(4).random((9, 9, 9))
    given = {"epsilon": 0.2, "delta": 0.1, "tilt": 40.0, "engine": "numpy"}
    (times,) = first_arrivals((short,) * 3, [place], values, **given, azimuth=25.0)
    (turned,) = first_arrivals((short,) * 3, [(90.0, 40.0, 31.0)], values.swapaxes(0, 1), **given, azimuth=65.0)
    np.testing.assert_allclose(turned.swapaxes(0, 1), times, rtol=0, atol=1e-3 * 20 / 2000)


def varying(place: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return velocity, epsilon, delta and tilt at points (2, ...): smooth functions of x and z."""
    x, z = place
    tilt = 30 + 20 * np.sin(x / 400 + z / 300)
    return 2000 + 0.7 * z + 0.3 * x, 0.2 + 0.06 * np.sin(x / 400), 0.05 + 0.04 * np.cos(z / 300), tilt


def hamiltonian(state: np.ndarray) -> np.ndarray:
    """Return half of the squared ratio of slowness vectors to those of waves; states are (4, rays)."""
    speed, epsilon, delta, tilt = varying(state[:2])
    along = (np.sin(np.deg2rad(tilt)) * state[2] + np.cos(np.deg2rad(tilt)) * state[3]) ** 2 * speed**2
    across = (state[2] ** 2 + state[3] ** 2) * speed**2 - along
    total = (1 + 2 * epsilon) * across + along
    return (total + np.sqrt(total**2 - 8 * (epsilon - delta) * across * along)) / 4


@pytest.mark.serial
def test_times_where_everything_varies_are_those_of_rays():
    """Integrated by SciPy from Hamilton's equations."""
    source, angles = np.array([413.0, 207.0]), np.linspace(0, 2 * np.pi, 24, endpoint=False)
    start = np.concatenate([np.repeat(source[:, None], 24, 1), [np.cos(angles), np.sin(angles)]])
    start[2:] /= np.sqrt(2 * hamiltonian(start))
    steps = np.array([1e-2, 1e-2, 1e-8, 1e-8])

    def slopes(_: float, flat: np.ndarray) -> np.ndarray:
        state = flat.reshape(4, -1)
        by = [
            (hamiltonian(state + shift) - hamiltonian(state - shift)) / (2 * steps[n])
            for n, shift in enumerate(np.diag(steps)[..., None])
        ]
        return np.concatenate([*by[2:], *(-part for part in by[:2])])

    seconds = np.linspace(0.05, 0.3, 6)
    rays = solve_ivp(slopes, (0, 0.3), start.ravel(), t_eval=seconds, rtol=1e-7, atol=1e-7).y.reshape(4, 24, 6)[:2]
    x, z = 10.0 * np.arange(121), 10.0 * np.arange(81)
    speed, epsilon, delta, tilt = varying(np.stack(np.meshgrid(x, z, indexing="ij")))
    (times,) = first_arrivals((x, z), [source], speed, epsilon=epsilon, delta=delta, tilt=tilt, engine="numpy")
    found = RegularGridInterpolator((x, z), times, "cubic", bounds_error=False)(np.moveaxis(rays, 0, -1))
    # Not of rays that have left the grid.
    found[np.logical_or.accumulate(np.isnan(found), axis=1)] = np.nan
    error = np.abs(found - seconds)[np.isfinite(found)] / (10 / 2000)
    assert error.size > 70 and error.max() < 0.015


@pytest.mark.serial
def test_all_forms_find_the_same_in_a_rough_medium(form):
    rng = np.random.default_rng(6)
    x, z = 12.0 * np.arange(22), 9.0 * np.arange(18)
    grid = ImageGrid((x, z), (12.0, 9.0))
    speed = gaussian_filter(rng.uniform(1000, 4500, grid.shape), 3) + np.where(z > 80, 1200.0, 0.0)
    thomsen = rng.uniform(0, 0.3, grid.shape), rng.uniform(-0.1, 0.2, grid.shape), rng.uniform(-60, 60, grid.shape), 0
    positions = np.array([(0.0, 0.0), (200.0, 3.0), (96.0, 90.0)])
    expected = solved(host.arrivals, grid, positions, speed, *thomsen)
    for found, times in zip(solved(form, grid, positions, speed, *thomsen), expected, strict=True):
        assert np.abs(found - times).max() < 1e-3 * 9.0 / speed.min()


@pytest.mark.serial
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"delta": -0.5}, r"1 \+ 2 delta must be positive; at x 0, z 0, epsilon is 0 and delta -0.5"),
        ({"epsilon": -0.6}, r"1 \+ 2 epsilon must be positive"),
        ({"epsilon": 0.1, "delta": np.where(np.arange(3) > 1, 2.0, 0.0) * np.ones((5, 1))}, "wavefronts .* x 0, z 2"),
        ({"epsilon": np.zeros((3, 5))}, r"epsilon must be a number or have the shape \(5, 3\), not \(3, 5\)"),
        ({"tilt": np.nan}, "tilt contains NaN"),
        ({"epsilon": 0.1, "azimuth": 10.0}, "azimuth is for 3-D grids"),
    ],
)
def test_refusals(change, sentence):
    given = {"axes": (np.arange(5.0), np.arange(3.0)), "positions": [(1.0, 1.0)], "velocity": np.ones((5, 3))} | change
    with pytest.raises(InputError, match=sentence):
        list(first_arrivals(**given, engine="numpy"))
