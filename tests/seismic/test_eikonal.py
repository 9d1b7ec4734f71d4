"""Eikonal travel times against formulas, whatever the position of the source and the memory order of the velocity."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from scipy.integrate import cumulative_trapezoid
from scipy.ndimage import gaussian_filter, map_coordinates

from collops.array import from_global
from collops.errors import InputError
from collops.seismic import Kirchhoff
from collops.seismic.kirchhoff.eikonal import arrivals_error, device, first_arrivals, host, medium
from collops.seismic.kirchhoff.eikonal.coarse import CoarseGrid
from collops.seismic.kirchhoff.geometry import ImageGrid
from tests.seismic.arrivals import COMPILER, HostKernel, eikonal, fake_cupy
from tests.seismic.test_kirchhoff import peer

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


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return HostKernel(tmp_path_factory.mktemp("cuda"), np.dtype(np.float64))


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


@pytest.mark.serial
@pytest.mark.parametrize("name", GRIDS)
def test_times_are_those_of_a_formula(form, name):
    """Exact in a constant velocity, and within a fortieth of a cell in a gradient; fast marching is off by a third."""
    grid = grid_of(name)
    positions = [position_in(grid, place) for place in PLACES]
    for velocity, (surface, gradient) in VELOCITIES.items():
        values = np.broadcast_to(surface + gradient * grid.axes[-1], grid.shape)
        sources = [medium.Source.at(position, grid, values) for position in positions]
        solved = form(medium.Medium.of(grid, values, np.dtype(np.float64)), sources, 2)
        cell = max(grid.spacing) / values.min()
        for place, position, times in zip(PLACES, positions, solved, strict=True):
            error = np.abs(times - exact_times(grid, position, surface, gradient)) / cell
            # The first arc from a deep corner to the other side leaves the grid.
            leaves = velocity == "increasing" and place == "far corner"
            assert error.max() < (0.1 if leaves else 1e-3 if velocity == "constant" else 0.03)
            assert (error**2).mean() ** 0.5 < (1e-3 if velocity == "constant" else 0.01)


def rough_model(rng: np.random.Generator) -> tuple[ImageGrid, np.ndarray]:
    """Return layers of random thickness with random lenses, on a grid whose cells are not square."""
    x, z = 12.0 * np.arange(90), 9.0 * np.arange(70)
    velocity = gaussian_filter(rng.uniform(1000, 4500, (90, 70)), 4) + np.where(np.arange(70) > 35, 1200.0, 0.0)
    return ImageGrid((x, z), (12.0, 9.0)), velocity


@pytest.mark.serial
def test_times_in_a_rough_medium_approach_those_on_a_finer_grid():
    """More than those of scikit-fmm, by fast marching of second order, do; the finer grid is computed by scikit-fmm."""
    skfmm = pytest.importorskip("skfmm")
    grid, velocity = rough_model(np.random.default_rng(5))
    position = np.array([480.0, 180.0])  # a point of both grids
    places = [np.arange(0, n - 0.99, 0.25) for n in grid.shape]
    dense = map_coordinates(velocity, np.meshgrid(*places, indexing="ij"), order=1)
    fine = ImageGrid(tuple(h * each for h, each in zip(grid.spacing, places, strict=True)), (3.0, 2.25))

    def marched(on: ImageGrid, speed: np.ndarray) -> np.ndarray:
        """Start from a circle of straight rays; cells are counted from its radius."""
        distance = np.hypot(*np.ix_(*(axis - x for axis, x in zip(on.axes, position, strict=True))))
        radius = 24.0
        beyond = skfmm.travel_time(distance - radius, speed, dx=list(on.spacing), order=2)
        return radius / on.value_at(speed, position) + np.asarray(beyond)

    reference = marched(fine, dense)[::4, ::4]
    away = np.hypot(*np.ix_(*(axis - x for axis, x in zip(grid.axes, position, strict=True)))) > 48.0
    ours, theirs = (times - reference for times in (eikonal(grid, position, velocity), marched(grid, velocity)))
    rms = [float(np.sqrt((error[away] ** 2).mean()) / (12.0 / velocity.min())) for error in (ours, theirs)]
    assert rms[0] < 0.06 and rms[0] < 0.8 * rms[1]


@pytest.mark.serial
def test_all_forms_find_the_same(form):
    grid, velocity = rough_model(np.random.default_rng(6))
    positions = [np.array(place) for place in ((0.0, 0.0), (1000.0, 3.0), (511.0, 300.0))]
    sources = [medium.Source.at(position, grid, velocity) for position in positions]
    found = form(medium.Medium.of(grid, velocity, np.dtype(np.float64)), sources, None)
    for position, times in zip(positions, found, strict=True):
        # Loops that skip unchanged points leave out changes below a small tolerance.
        assert np.abs(times - eikonal(grid, position, velocity)).max() < 1e-3 * 9.0 / velocity.min()


@pytest.mark.serial
@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_devices_compute_in_single_precision(tmp_path, monkeypatch):
    """Rests have enough digits at the end of a large model, where times are thousands of cells."""
    kernel = HostKernel(tmp_path, np.dtype(np.float32))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setattr(device, "_kernel", lambda *arguments: kernel)
    monkeypatch.setattr(device, "recorded", lambda work: work)
    monkeypatch.setattr(device, "_at_a_time", lambda medium: 32)
    grid = ImageGrid((10.0 * np.arange(5), 10.0 * np.arange(1200)), (10.0, 10.0))
    velocity, position = np.broadcast_to(1500 + 0.3 * grid.axes[1], grid.shape), np.array([20.0, 11990.0])
    source = medium.Source.at(position, grid, velocity)
    (times,) = device.arrivals(medium.Medium.of(grid, velocity, np.dtype(np.float32)), [source], None)
    error = times - exact_times(grid, position, 1500.0, 0.3)
    assert times.dtype == np.float32 and np.abs(error).max() < 0.01 * 10.0 / 1500.0


@pytest.mark.serial
def test_sources_are_computed_in_batches():
    """Threads and batches change nothing."""
    grid, velocity = rough_model(np.random.default_rng(7))
    positions = np.random.default_rng(8).uniform(0, (1068, 621), (5, 2))
    one = list(first_arrivals(grid.axes, positions, velocity, engine="numpy"))
    three = list(first_arrivals(grid.axes, positions, velocity, engine="jax", threads=3))
    np.testing.assert_array_equal(one, three)
    assert list(first_arrivals(grid.axes, positions[:0], velocity, engine="numpy")) == []


@pytest.mark.serial
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"axes": (np.arange(5.0),)}, "not 1 arrays"),
        ({"axes": (np.arange(5.0), np.array([0.0, 1.0, 3.0]))}, "z must be uniform"),
        ({"velocity": np.ones((5, 4))}, r"the shape \(5, 3\)"),
        ({"velocity": np.zeros((5, 3))}, "positive"),
        ({"positions": [(1.0, 2.5)]}, "within the grid: z from 0 to 2 m"),
        ({"positions": [(np.nan, 1.0)]}, "positions"),
    ],
)
def test_refusals(change, sentence):
    given = {"axes": (np.arange(5.0), np.arange(3.0)), "positions": [(1.0, 1.0)], "velocity": np.ones((5, 3))} | change
    with pytest.raises(InputError, match=sentence):
        list(first_arrivals(**given, engine="numpy"))
    with pytest.raises(InputError, match=sentence):
        arrivals_error(**given, coarsen=2, engine="numpy")


@pytest.mark.serial
@pytest.mark.parametrize("coarsen", [1, 2])
def test_indices_are_those_of_ix_and_may_be_negative(coarsen):
    axes, velocity = (np.arange(9.0), np.arange(7.0)), np.linspace(1, 2, 63).reshape(9, 7)
    given = {"axes": axes, "positions": [(1.0, 1.0)], "velocity": velocity, "coarsen": coarsen, "engine": "numpy"}
    (whole,), at = first_arrivals(**given), np.ix_([-1, 3], [0, -7, -2])
    (found,) = first_arrivals(**given, indices=at)
    np.testing.assert_allclose(found, whole[at], rtol=0, atol=1e-15)
    for wrong, sentence in (
        (np.ix_([9], [0]), "within the grid"),
        (np.ix_([0], [-8]), "within the grid"),
        ((np.array([0, 1]), np.array([0, 1])), "a tuple from numpy.ix_"),
        (np.meshgrid([0, 1], [0, 1], indexing="ij"), "a tuple from numpy.ix_"),
        ((np.array([[0.0]]), np.array([[0]])), "array of integers"),
        (np.ix_([0]), "2 axes"),
    ):
        with pytest.raises(InputError, match=sentence):
            list(first_arrivals(**given, indices=wrong))


@pytest.mark.serial
def test_times_that_do_not_converge(monkeypatch, form):
    grid, velocity = rough_model(np.random.default_rng(7))
    for module in ("device", "numba_sweeps", "numpy_sweeps"):
        monkeypatch.setattr(f"collops.seismic.kirchhoff.eikonal.{module}.MAX_SWEEPS", 3)
    sources = [medium.Source.at(np.array([100.0, 100.0]), grid, velocity)] * 2
    with pytest.raises(InputError, match="have not converged in"):
        list(form(medium.Medium.of(grid, velocity, np.dtype(np.float64)), sources, 2))


@pytest.mark.serial
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(61, 45), (14, 17, 18)])
def test_times_of_a_coarser_grid_are_interpolated_within_their_estimated_error(shape, epsilon):
    """Sizes of which the last points lie beyond the grid; the source is between points."""
    axes, last = tuple(10.0 * np.arange(n) for n in shape), [10.0 * (n - 1) for n in shape]
    velocity = np.broadcast_to(1500 + 1.5 * axes[-1], shape)
    places = np.array([[0.31 * end for end in last], last])
    given = {"axes": axes, "positions": places, "velocity": velocity, "epsilon": epsilon, "engine": "numpy"}
    some = np.ix_(*(np.array([1, n // 2, n - 1]) for n in shape))
    whole, coarse = list(first_arrivals(**given)), list(first_arrivals(**given, coarsen=4))
    errors = [np.sqrt(np.mean((one - other) ** 2)) for one, other in zip(whole, coarse, strict=True)]
    estimate = arrivals_error(coarsen=4, **given)
    assert 1e-6 < max(errors) < 1.2 * estimate < 6 * max(errors)
    assert all(np.abs(one - other).max() < 0.25 * 10.0 / 1500 for one, other in zip(whole, coarse, strict=True))
    for full, factor in ((whole, 1), (coarse, 4)):
        for one, other in zip(full, first_arrivals(**given, coarsen=factor, indices=some), strict=True):
            np.testing.assert_allclose(other, one[some], rtol=0, atol=1e-15)


@pytest.mark.serial
def test_errors_along_grid_lines_are_those_of_the_trapezoidal_rule():
    """In 2-D by SciPy, with last points beyond a multiple of the factor."""
    slowness, spacing, factor = 1e-3 * np.random.default_rng(0).uniform(0.3, 0.6, (14, 20)), (10.0, 7.0), 3
    grid = ImageGrid(tuple(h * np.arange(n) for h, n in zip(spacing, slowness.shape, strict=True)), spacing)
    errors = []
    for lines, others, h in [(slowness.T, 14, 10.0), (slowness, 20, 7.0)]:
        nodes, across = (np.append(np.arange(0, n - 1, factor), n - 1) for n in lines.shape[::-1])
        lines, x = lines[across], h * np.arange(others)
        exact = cumulative_trapezoid(lines, x, initial=0)[:, nodes]
        errors.append(np.sqrt(np.mean((exact - cumulative_trapezoid(lines[:, nodes], x[nodes], initial=0)) ** 2)))
    np.testing.assert_allclose(CoarseGrid(grid, factor).line_error(slowness, None), max(errors), rtol=1e-12)


def test_the_estimate_sees_a_layer_that_both_grids_miss():
    axis = 10.0 * np.arange(41)
    velocity = np.full((41, 41), 2000.0)
    velocity[:, 13] = 1000.0
    given = (axis, axis), [(200.0, 0.0)], velocity
    exact = 0.005 * np.sqrt(27 / 41)  # seconds for 10 m of the layer, at the points below
    assert exact / 2 < arrivals_error(*given, 4, engine="numpy") < 2 * exact
    # Waves along x cross a column at (1 + 2 epsilon)^(1/2) times the velocity along the axis.
    given, epsilon = ((axis, axis), [(0.0, 200.0)], np.full((41, 41), 2000.0)), np.zeros((41, 41))
    epsilon[13] = 0.3
    exact = 0.005 * (1 - 1.6**-0.5) * np.sqrt(27 / 41)
    assert exact / 2 < arrivals_error(*given, 4, engine="numpy", epsilon=epsilon) < 2 * exact
    with pytest.raises(InputError, match="must be even"):
        arrivals_error(*given, 3, engine="numpy")


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
