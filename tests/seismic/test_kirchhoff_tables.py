"""Tables of Kirchhoff operators: shared rows, coarser nodes, and which rank computes and keeps what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

import collops
from collops.comm import alone
from collops.errors import InputError
from collops.extend.engines import engine
from collops.seismic.kirchhoff import FixedTables, LocalKirchhoff, Thomsen, TravelTimes, first_arrivals
from collops.seismic.kirchhoff.fixed_point import Scale
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.nodes import Nodes
from collops.seismic.kirchhoff.stations import distinct_rows, tables_of_stations
from collops.seismic.kirchhoff.traveltimes import analytic, coarsest_grid

pytest.importorskip("numba")

DT = 0.004
TOLERANCE = {"float32": 2e-5, "float64": 1e-10}


@pytest.mark.serial
@pytest.mark.parametrize(("shape", "factor"), [((23, 14), 4), ((5, 9, 7), 3), ((6, 1), 2)])
def test_values_between_nodes_are_those_of_scipy(shape, factor):
    nodes, rng = Nodes(shape, factor), np.random.default_rng(1)
    values = rng.normal(size=(2, *shape))
    kept = [np.unique(np.append(np.arange(0, n, factor), n - 1)) for n in shape]
    assert nodes.counts == tuple(len(each) for each in kept)
    coarse = nodes.coarsen(values)
    np.testing.assert_array_equal(coarse, values[(slice(None), *np.ix_(*kept))].reshape(2, -1))
    long = [axis for axis, n in enumerate(shape) if n > 1]
    points = np.stack(np.meshgrid(*(np.arange(shape[axis]) for axis in long), indexing="ij"), -1)
    for found, row in zip(nodes.refine(coarse), coarse, strict=True):
        known = row.reshape([nodes.counts[axis] for axis in long])
        expected = RegularGridInterpolator([kept[axis] for axis in long], known)(points)
        np.testing.assert_allclose(found, expected.ravel(), rtol=0, atol=1e-12)
    apart = [np.abs(np.arange(n)[:, np.newaxis] - each) for n, each in zip(shape, kept, strict=True)]
    places = np.stack(np.unravel_index(nodes.nearest(), nodes.counts), -1).reshape(*shape, -1)
    for axis, distance in enumerate(apart):
        here = np.take_along_axis(distance, np.moveaxis(places[..., axis], axis, 0).reshape(len(distance), -1), 1)
        assert (here.min(axis=1) == here.max(axis=1)).all() and (here[:, 0] == distance.min(axis=1)).all()


@pytest.mark.serial
@pytest.mark.parametrize(("factor", "bound"), [(2, 0.01), (4, 0.04), (8, 0.15)])
def test_coarse_times_are_wrong_by_much_less_than_a_sample(factor, bound):
    """At all points, also next to the stations, which are between grid points; samples of 4 ms, cells of 12.5 m."""
    axes, gradient = (12.5 * np.arange(150), 12.5 * np.arange(80)), 0.7
    grid, deep = ImageGrid(axes, (12.5, 12.5)), np.broadcast_to(axes[1], (150, 80))
    positions = np.array([[0.0, 0.0], [763.0, 8.0], [1060.0, 37.0]])

    def everywhere(station: int) -> np.ndarray:
        (x, z), velocity = positions[station], 1500 + gradient * deep
        apart = np.hypot(axes[0][:, np.newaxis] - x, deep - z)
        return 2 / gradient * np.arcsinh(gradient * apart / (2 * np.sqrt(velocity * (1500 + gradient * z))))

    asked = []

    def seconds(stations: Sequence[int], at: tuple[np.ndarray, ...]) -> Iterator[np.ndarray]:
        asked.append(at)
        return (everywhere(station)[at] for station in stations)

    scale = Scale(DT, 700, 0, np.dtype("float32"))
    tables, _, rows = tables_of_stations(
        *(seconds, positions, 1500 + gradient * deep, grid, scale, [np.arange(3)], collops.comm.alone()), factor=factor
    )
    assert tables.times.nbytes < 1.2 * 3 * 4 * grid.points / factor**2
    fixed = np.array([tables.station_times(rows[k]).reshape(grid.shape) for k in range(3)]) * 2.0**-scale.fraction_bits
    errors = fixed - np.array([everywhere(k) for k in range(3)]) / DT
    assert np.abs(errors).max() < bound
    # Only the nodes and the points between them are asked for, where the error is largest.
    assert len(asked) == 1 and all(
        each.size <= 3 + 2 * n // factor for each, n in zip(asked[0], (150, 80), strict=True)
    )
    rms, there = np.sqrt(np.mean(np.square(errors), axis=(1, 2))).max(), errors[(slice(None), *asked[0])]
    assert tables.error == pytest.approx(np.sqrt(np.mean(np.square(there), axis=(1, 2))).max(), rel=1e-3)
    assert 0.8 * rms < tables.error < 1.3 * rms


def survey(axes: int, **more) -> dict:
    rng = np.random.default_rng(3)
    z, x, y = 10.0 * np.arange(33), 12.0 * np.arange(21), 15.0 * np.arange(9)
    sides = (240.0, 40.0) if axes == 2 else (120.0, 240.0, 40.0)
    sources, receivers = (rng.uniform(0, 1, (axes, n)) * np.array(sides)[:, np.newaxis] for n in (5, 37))
    wavelet = {"wavelet": rng.standard_normal(15), "wavelet_center": 5}
    return {
        **{"z": z, "x": x, "y": None if axes == 2 else y, "t": DT * np.arange(120), "threads": 1},
        **{"sources": sources, "receivers": receivers, "velocity": 900.0, **wavelet, "mode": "analytic", **more},
    }


@pytest.mark.parametrize(
    ("axes", "dtype", "more"),
    [
        (2, "float32", {}),
        (3, "float64", {}),
        (2, "float64", {"amplitude": "2.5d", "aperture": 150.0, "max_dip": 60.0, "antialias": True}),
        (3, "float32", {"amplitude": "3d", "antialias": True}),
        (3, "float64", {"mode": "eikonal"}),
        (2, "float32", {"velocity": 100.0, "t": DT * np.arange(20)}),  # most times are far beyond the traces
    ],
)
def test_kernels_interpolate(comm, axes, dtype, more):
    """In constant velocity the times are those of fine tables. The NumPy kernels take what `Nodes.refine` returns."""
    s = survey(axes, dtype=dtype, comm=comm, **more)
    if "mode" in more:
        y, x, z = np.meshgrid(s["y"], s["x"], s["z"], indexing="ij")
        s["velocity"] = 600 + 2 * y + x + 2 * z
    coarse = collops.seismic.Kirchhoff(**s, coarsen=4)
    assert coarse.dottest()
    slow = collops.seismic.Kirchhoff(**s | {"threads": None}, coarsen=4, kernels="numpy").local
    fine = collops.seismic.Kirchhoff(**s).local
    rng = np.random.default_rng(2)
    for size, name in ((fine.shape[1], "forward_local"), (fine.shape[0], "adjoint_local")):
        vector = rng.standard_normal(size).astype(dtype)
        found, expected, exact = (getattr(each, name)(vector) for each in (coarse.local, slow, fine))
        assert np.linalg.norm(found - expected) <= TOLERANCE[dtype] * np.linalg.norm(expected)
        if not {"mode", "antialias"} & more.keys():
            assert np.linalg.norm(found - exact) <= TOLERANCE[dtype] * np.linalg.norm(exact)


def test_operators_share_the_rows_of_one_table():
    rng = np.random.default_rng(5)
    seconds = rng.uniform(0, 0.1, (6, 4, 5))
    whole = FixedTables.from_seconds(seconds[:2], seconds[2:], DT, 60, "float64")
    sources, receivers = np.array([3, 0]), np.array([5, 3, 1])
    some = whole.select(sources, receivers)
    assert some.times is whole.times
    fewer, used = some.compact()
    assert used.tolist() == [0, 1, 3, 5] and len(fewer.times) == 4
    own = FixedTables.from_seconds(seconds[sources], seconds[receivers], DT, 60, "float64")
    image = rng.standard_normal(20)
    for kernels in ("numba", "numpy"):
        one, two, three = (LocalKirchhoff(each, (4, 5), [1.0, 2], 0, kernels=kernels) for each in (own, some, fewer))
        data = one.forward_local(image)
        for other in (two, three):
            np.testing.assert_array_equal(other.forward_local(image), data)
            np.testing.assert_array_equal(other.adjoint_local(data), one.adjoint_local(data))


def test_ranks_compute_a_station_once_and_have_what_they_need(comm):
    grid = ImageGrid((10.0 * np.arange(9), 5.0 * np.arange(7)), (10.0, 5.0))
    places = np.array([[30.0, 5.0], [0.0, 0.0], [30.0, 5.0], [80.0, 10.0], [10.0, 0.0], [45.0, 2.0]])
    positions, number = distinct_rows(places)
    assert number.tolist() == [0, 1, 0, 2, 3, 4]
    calls = []

    def seconds(stations: Sequence[int], at: tuple[np.ndarray, ...]) -> Iterator[np.ndarray]:
        calls.extend(stations)
        return (analytic(grid, positions[station], 1000.0, at) for station in stations)

    # All need the first two, one rank each of the others; the last one is nobody's.
    needed = [np.unique([0, 1, 2 + rank % 2]) for rank in range(comm.size)]
    for factor in (1, 2):
        calls.clear()
        tables, _, rows = tables_of_stations(
            *(
                seconds,
                positions,
                np.full(grid.shape, 1000.0),
                grid,
                Scale(DT, 99, 0, np.dtype("float64")),
                needed,
                comm,
            ),
            start=0.1,
            factor=factor,
        )
        used = set(np.concatenate(needed).tolist())
        assert int(comm.allreduce(np.array(len(calls)))) == len(used) and set(calls) <= set(needed[comm.rank].tolist())
        assert len(tables.times) == len(needed[comm.rank])
        for station in needed[comm.rank]:
            apart = np.hypot(*np.ix_(*(axis - x for axis, x in zip(grid.axes, positions[station], strict=True))))
            expected = (apart / 1000.0 - 0.05) / DT
            found = tables.station_times(rows[station]) * 2.0**-tables.scale.fraction_bits
            np.testing.assert_allclose(found, expected.ravel(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("factor", [0, 2.5, True])
def test_a_factor_is_a_whole_number(comm, factor):
    with pytest.raises(InputError, match="coarsen must be an integer of at least 1"):
        collops.seismic.Kirchhoff(**survey(2, comm=comm), coarsen=factor)


def test_times_that_are_given_are_not_coarsened(comm):
    times = np.zeros((33 * 21, 5)), np.zeros((33 * 21, 37))
    with pytest.raises(InputError, match="coarsen needs computed travel times"):
        collops.seismic.Kirchhoff(**survey(2, comm=comm, mode="byot", travel_times=times), coarsen=2)


def test_a_tolerance_chooses_the_coarsest_grid_and_bounds_the_error(comm):
    """Of the times in a velocity that increases with depth, which have a formula; no grid will do for a small one."""
    axes, surface = (12.5 * np.arange(61), 12.5 * np.arange(41)), np.stack([np.linspace(0, 750, 17), np.zeros(17)])
    velocity = np.broadcast_to(1500 + 0.6 * axes[1], (61, 41))
    given = {"z": axes[1], "x": axes[0], "t": DT * np.arange(300), "sources": surface, "receivers": surface[:, :3]}
    given |= {"velocity": velocity, "wavelet": np.ones(1), "wavelet_center": 0, "engine": "numpy", "comm": comm}
    layout = collops.Layout.split((61, 41), comm.size)  # each rank has tables of all stations
    for tolerance, coarsen in ((2e-4, 4), (1e-7, 1)):
        tables = collops.seismic.Kirchhoff(**given, coarsen=coarsen, tolerance=tolerance, layout=layout)
        plain = collops.seismic.Kirchhoff(**given, coarsen=coarsen, layout=layout)
        image = collops.from_global(np.random.default_rng(2).normal(size=(61, 41)), layout, comm=comm)
        found, expected = (each.adjoint(each @ image).gather() for each in (tables, plain))
        difference = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert 1e-6 < difference < 0.02 if coarsen > 1 else difference == 0
        step, error = tables.swept
        assert (step in (2, 4, 8) and 0 < error <= tolerance) if coarsen > 1 else (step, error) == (1, 0.0)
        assert plain.swept == (1, 0.0)


@pytest.mark.parametrize("missed", ["fast row", "anisotropic rows", "spot at the last station"])
def test_a_grid_is_no_coarser_than_what_the_model_has_between_its_points(comm, missed):
    """Times of every 4th and 8th point miss the rows alike; only the last of the few stations is near the spot."""
    axes, velocity = (10.0 * np.arange(41), 10.0 * np.arange(49)), np.full((41, 49), 2000.0)
    epsilon = np.zeros_like(velocity)
    places = np.stack([np.linspace(0, 400, 10), np.full(10, 250.0)], axis=1)
    if missed == "fast row":
        velocity[:, 26] = 4000.0
    elif missed == "anisotropic rows":
        epsilon[:, 25:28] = 0.3
    else:
        velocity[38:40, 20:30] = 4000.0
    grid, medium = ImageGrid.from_axes(*reversed(axes)), Thomsen(epsilon=epsilon)
    options = engine("numpy"), np.dtype(np.float64), 1, medium
    factor, error = coarsest_grid(grid, places, velocity, *options, 4e-3, comm)
    given = {"velocity": velocity, "epsilon": epsilon, "engine": "numpy"}
    whole, coarse = (first_arrivals(axes, places[[0, -1]], **given, coarsen=each) for each in (1, factor))
    true = max(np.sqrt(np.mean((one - other) ** 2)) for one, other in zip(whole, coarse, strict=True))
    assert factor <= 2 and true < 1.2 * error if factor > 1 else true == 0


@pytest.mark.serial
def test_many_stations_are_probed_closely():
    """8 of 640 would all be far from a slow pocket of 60 m, near which times at every 2nd point are wrong by 4 ms."""
    velocity = np.full((401, 49), 2000.0)
    velocity[25:31, :7] = 500.0
    grid = ImageGrid((10.0 * np.arange(401), 10.0 * np.arange(49)), (10.0, 10.0))
    stations = np.stack([np.linspace(0, 4000, 640), np.zeros(640)], axis=1)
    options = engine("numpy"), np.dtype(np.float64), 1, None, 2e-3, alone()
    assert coarsest_grid(grid, stations, velocity, *options) == (1, 0.0)


def test_tolerances_that_cannot_be_used(comm):
    assert TravelTimes(tolerance=[1e-3]).tolerance == 1e-3  # type: ignore[arg-type]
    for wrong in (-1.0, "1e-3", True, [1e-3, 1e-3]):
        with pytest.raises(InputError, match="positive number of seconds"):
            TravelTimes(tolerance=wrong)  # type: ignore[arg-type]
    for options, sentence in (
        ({"tolerance": 0.0}, "positive number of seconds"),
        ({"tolerance": 1e-4, "amplitude": "2d"}, "need travel times of all points"),
        ({"tolerance": 1e-4, "mode": "analytic"}, "tolerance is for times of mode 'eikonal'"),
    ):
        with pytest.raises(InputError, match=sentence):
            collops.seismic.Kirchhoff(**survey(2, comm=comm) | {"mode": "eikonal"} | options)
