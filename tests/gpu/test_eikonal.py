"""First arrivals computed on a device: against formulas, and against those of hosts in rough media."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from collops.errors import InputError
from collops.seismic.kirchhoff.eikonal import arrivals_error, device, first_arrivals
from collops.seismic.kirchhoff.eikonal import medium as media
from tests.seismic.test_anisotropic_arrivals import MEDIA, SPEED, group_time
from tests.seismic.test_eikonal import GRIDS, PLACES, VELOCITIES, exact_times, grid_of, position_in, rough_model

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("velocity", VELOCITIES)
@pytest.mark.parametrize("name", GRIDS)
def test_times_are_those_of_a_formula(comm, name, velocity, dtype):
    grid, (surface, gradient) = grid_of(name), VELOCITIES[velocity]
    values = np.broadcast_to(surface + gradient * grid.axes[-1], grid.shape)
    positions = np.array([position_in(grid, place) for place in PLACES])
    cell = max(grid.spacing) / values.min()
    found = first_arrivals(grid.axes, positions, values, engine="cupy", dtype=dtype)
    for place, position, times in zip(PLACES, positions, found, strict=True):
        assert isinstance(times, cupy.ndarray) and times.dtype == dtype and times.shape == grid.shape
        error = np.abs(times.get() - exact_times(grid, position, surface, gradient)) / cell
        leaves = velocity == "increasing" and place == "far corner"
        assert error.max() < (0.1 if leaves else 2e-3 if velocity == "constant" else 0.03)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_in_a_rough_medium_are_those_of_hosts(comm, dtype, monkeypatch):
    """More sources than a warp has lanes, in batches of one group and of several."""
    grid, velocity = rough_model(np.random.default_rng(6))
    positions = np.random.default_rng(1).uniform(0, (1068, 621), (71, 2))
    host = list(first_arrivals(grid.axes, positions, velocity, engine="numpy"))
    for share in (0.1, 1e-9):
        monkeypatch.setattr(device, "_SHARE", share)
        found = first_arrivals(grid.axes, positions, velocity, engine="cupy", dtype=dtype)
        for times, expected in zip(found, host, strict=True):
            assert np.abs(times.get() - expected).max() < 2e-3 * 9.0 / velocity.min()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MEDIA)
def test_times_in_an_anisotropic_medium_are_those_of_the_group_velocity(comm, name, dtype):
    shape = (17, 21, 23) if name.endswith("3-D") else (61, 41)
    axes = tuple(20.0 * np.arange(n) for n in shape)
    places = np.array([[0.0] * len(shape), [0.513 * axis[-1] for axis in axes]])
    medium = dict(zip(("epsilon", "delta", "tilt", "azimuth"), MEDIA[name], strict=True))
    found = first_arrivals(axes, places, np.full(shape, SPEED), **medium, engine="cupy", dtype=dtype)
    for place, times in zip(places, found, strict=True):
        assert isinstance(times, cupy.ndarray) and times.dtype == dtype and times.shape == shape
        for node in np.random.default_rng(1).integers(0, shape, (40, len(shape))):
            point = np.array([axis[n] for axis, n in zip(axes, node, strict=True)])
            error = times[tuple(node.tolist())].item() - group_time(point - place, *MEDIA[name])
            assert abs(error) < 2e-3 * 20.0 / SPEED


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_times_in_a_rough_anisotropic_medium_are_those_of_hosts(comm, dtype):
    grid, velocity = rough_model(np.random.default_rng(6))
    rng = np.random.default_rng(2)
    medium = {"epsilon": rng.uniform(0, 0.3, grid.shape), "delta": rng.uniform(-0.1, 0.2, grid.shape)}
    medium["tilt"] = gaussian_filter(rng.uniform(-500, 500, grid.shape), 5)
    positions = rng.uniform(0, (1068, 621), (37, 2))
    host = first_arrivals(grid.axes, positions, velocity, **medium, engine="numpy")
    found = first_arrivals(grid.axes, positions, velocity, **medium, engine="cupy", dtype=dtype)
    for times, expected in zip(found, host, strict=True):
        assert np.abs(times.get() - expected).max() < 4e-3 * 9.0 / velocity.min()


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_times_of_a_coarser_grid_and_their_error_are_those_of_hosts(comm, dtype, epsilon):
    grid, velocity = rough_model(np.random.default_rng(6))
    positions = np.random.default_rng(1).uniform(0, (1068, 621), (5, 2))
    at = np.ix_(np.arange(3, 60, 7), np.arange(0, 50, 3))
    given = {"epsilon": epsilon, "coarsen": 4}
    host = first_arrivals(grid.axes, positions, velocity, **given, indices=at, engine="numpy")
    found = first_arrivals(grid.axes, positions, velocity, **given, indices=at, engine="cupy", dtype=dtype)
    for times, expected in zip(found, host, strict=True):
        assert isinstance(times, cupy.ndarray) and times.dtype == dtype
        assert np.abs(times.get() - expected).max() < 4e-3 * 36.0 / velocity.min()
    errors = [arrivals_error(grid.axes, positions, velocity, 4, engine=each) for each in ("numpy", "cupy")]
    np.testing.assert_allclose(errors[1], errors[0], rtol=0.05)


def test_times_that_do_not_converge(comm, monkeypatch):
    grid, velocity = rough_model(np.random.default_rng(6))
    monkeypatch.setattr(device, "MAX_SWEEPS", 3)
    with pytest.raises(InputError, match=f"in {media.MAX_SWEEPS} sweeps"):
        next(iter(first_arrivals(grid.axes, np.array([[9.0, 9.0]]), velocity, engine="cupy")))
