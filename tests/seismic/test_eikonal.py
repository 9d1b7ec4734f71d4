"""Eikonal travel times against formulas, whatever the position of the source and the memory order of the velocity."""

from __future__ import annotations

import numpy as np
import pytest

from collops.array import from_global
from collops.seismic import Kirchhoff
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.traveltimes import eikonal
from tests.seismic.test_kirchhoff import peer

pytest.importorskip("skfmm")

GRIDS = {
    "2-D": ((61, 41), (10.0, 10.0)),
    "2-D, flat cells": ((41, 61), (20.0, 10.0)),
    "3-D": ((17, 21, 23), (20.0,) * 3),
}
PLACES = {
    "node": (0.5, 0.5),
    "between nodes": (0.513, 0.322),
    "surface": (0.5, 0.0),
    "corner": (0.0, 0.0),
    "far corner": (1.0, 1.0),
}
VELOCITIES = {"constant": (1500.0, 0.0), "increasing": (1500.0, 0.6), "decreasing": (3000.0, -0.5)}


def grid_of(name: str) -> ImageGrid:
    shape, spacing = GRIDS[name]
    return ImageGrid(tuple(step * np.arange(n) for n, step in zip(shape, spacing, strict=True)), spacing)


def position_in(grid: ImageGrid, place: str) -> np.ndarray:
    across, down = PLACES[place]
    parts = [across] * (len(grid.axes) - 1) + [down]
    return np.array([part * axis[-1] for part, axis in zip(parts, grid.axes, strict=True)])


def exact_times(grid: ImageGrid, position: np.ndarray, surface: float, gradient: float) -> np.ndarray:
    """Return the times along arcs of circles in a linear gradient (Slotnick, 1959), or straight rays."""
    distance = np.sqrt(sum(part**2 for part in np.ix_(*(a - p for a, p in zip(grid.axes, position, strict=True)))))
    here, there = surface + gradient * position[-1], surface + gradient * grid.axes[-1]
    if not gradient:
        return distance / surface
    return np.arccosh(1 + (gradient * distance) ** 2 / (2 * here * there)) / abs(gradient)


@pytest.mark.serial
@pytest.mark.parametrize("velocity", VELOCITIES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", GRIDS)
def test_times_are_exact_to_half_a_cell_and_next_to_the_source(name, place, velocity):
    grid = grid_of(name)
    position, (surface, gradient) = position_in(grid, place), VELOCITIES[velocity]
    values = np.broadcast_to(surface + gradient * grid.axes[-1], grid.shape)
    exact = exact_times(grid, position, surface, gradient)
    error = eikonal(grid, position, values) - exact
    cell = max(grid.spacing)
    half = cell / values.min() / 2
    assert np.abs(error).max() < half
    # Fast marching is late, and the start adds nothing to that: the mean is what a start half a cell early would miss.
    assert abs(error.mean()) < 0.3 * half
    near = np.linalg.norm(np.stack(np.meshgrid(*grid.axes, indexing="ij"), -1) - position, axis=-1) < 2.5 * cell
    assert np.abs(error[near]).max() < 0.01 * half


@pytest.mark.serial
def test_a_jump_of_the_velocity_next_to_the_source_is_crossed_at_the_right_time():
    """A boat above a shallow sea floor: vertical times add up over the layers."""
    x, z = 5.0 * np.arange(81), 5.0 * np.arange(61)
    grid, position = ImageGrid((x, z), (5.0, 5.0)), np.array([200.0, 2.0])
    velocity = np.broadcast_to(np.where(z < 12, 1500.0, 4500.0), grid.shape)
    below = z > 20
    exact = (12.5 - 2.0) / 1500 + (z[below] - 12.5) / 4500
    assert np.abs(eikonal(grid, position, velocity)[40, below] - exact).max() < 5.0 / 1500 / 2


ORDERS = {
    "Fortran": np.asfortranarray,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "reversed": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "every second": lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2],
    "big-endian": lambda a: a.astype(">f8"),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "float32": lambda a: a.astype(np.float32),
    "big-endian float32": lambda a: a.astype(">f4"),
    "integers": lambda a: a.astype(np.int32),
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_memory_order_of_no_argument_matters(comm, order):
    rng = np.random.default_rng(2)
    velocity = np.rint(1500 + 400 * rng.random((13, 11)) + 20 * np.arange(13)[:, None])
    arguments = {
        "velocity": velocity,
        "sources": np.array([[0.0, 30.0, 60.0], [0.0, 0.0, 20.0]]),
        "receivers": np.array([[10.0, 50.0, 80.0, 120.0], [0.0, 10.0, 0.0, 0.0]]),
    }
    axes = {"z": 10.0 * np.arange(11), "x": 10.0 * np.arange(13), "t": 0.004 * np.arange(60)}
    wavelet = np.arange(1.0, 6.0)
    plain = Kirchhoff(**axes, **arguments, wavelet=wavelet, wavelet_center=2, comm=comm)
    other = {name: ORDERS[order](values) for name, values in arguments.items()}
    turned = Kirchhoff(**axes, **other, wavelet=wavelet[::-1].copy()[::-1], wavelet_center=2, comm=comm)
    image, data = rng.standard_normal(plain.dims), rng.standard_normal(plain.dimsd)
    for one, two, values in ((plain, turned, image), (plain.H, turned.H, data.ravel())):
        expected = (one @ from_global(values, one.domain, comm=comm)).gather()
        found = (two @ from_global(np.asfortranarray(values), two.domain, comm=comm)).gather()
        np.testing.assert_array_equal(found, expected)
    assert np.abs(expected).max() > 0


@pytest.mark.parametrize("ndim", [2, 3])
def test_arrivals_from_points_between_the_grid_points(comm, ndim):
    """Spikes of one diffractor, by the default mode, are where straight rays put them."""
    h, velocity, interval = 10.0, 2000.0, 0.002
    x, z = h * np.arange(31), h * np.arange(29)
    y = h * np.arange(15) if ndim == 3 else None
    sources, receivers = np.array([[203.0, 0.0], [4.0, 13.7]]), np.array([[96.4, 300.0, 151.0], [0.0, 3.3, 7.0]])
    if ndim == 3:
        sources, receivers = (
            np.concatenate([[[67.0, 140.0, 5.0][: p.shape[1]]], p])[:, :] for p in (sources, receivers)
        )
    shape, point = ((31, 29), (17, 22)) if ndim == 2 else ((15, 31, 29), (6, 17, 22))
    t = interval * np.arange(250)
    A = Kirchhoff(z, x, t, sources, receivers, np.full(shape, velocity), np.ones(1), 0, y=y, comm=comm)
    image = np.zeros(shape)
    image[point] = 1
    traces = (A @ from_global(image, A.domain, comm=comm)).gather().reshape(A.dimsd)
    place = h * np.array(point)
    down, up = (np.linalg.norm(stations.T - place, axis=1) / velocity for stations in (sources, receivers))
    assert np.abs(traces @ t / traces.sum(axis=-1) - (down[:, None] + up)).max() < h / velocity / 2


def test_the_times_of_pylops_give_the_results_of_pylops(comm):
    """PyLops moves stations to grid points, and starts half a cell around them."""
    x, z = 9.0 * np.arange(13), 7.0 * np.arange(11)
    rng = np.random.default_rng(3)
    s = {
        "z": z,
        "x": x,
        "t": 0.004 * np.arange(90),
        "sources": rng.uniform([[0], [0]], [[108], [20]], (2, 3)),
        "receivers": rng.uniform([[0], [0]], [[108], [20]], (2, 4)),
        "velocity": np.broadcast_to(400.0 + 2.0 * z, (13, 11)).copy(),
        "wavelet": rng.standard_normal(21),
        "wavelet_center": 7,
        "y": None,
    }
    reference = peer(s, "eikonal", "float64")
    times = reference.trav_srcs, reference.trav_recs
    image = rng.standard_normal((13, 11))
    A = Kirchhoff(**s, mode="byot", travel_times=times, comm=comm)
    found = (A @ from_global(image, A.domain, comm=comm)).gather()
    np.testing.assert_allclose(found, reference.matvec(image.ravel()), rtol=0, atol=1e-10 * np.abs(found).max())
