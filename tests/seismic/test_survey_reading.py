"""Shots of a chunk, shots to hold out, checks and grids, in cases that the surveys of other tests lack."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import zarr

from collops.comm import alone
from collops.errors import InputError
from collops.seismic.survey import Geometry, Grid
from collops.seismic.survey.checks import (
    Terms,
    check_frequency,
    check_positions,
    check_reach,
    check_speed,
    table_factor,
)
from collops.seismic.survey.geometry import Bins, cover
from collops.seismic.survey.selection import held_out
from collops.seismic.survey.velocity import Gradient
from collops.seismic.survey.zarr import ZarrShots, read_headers


@pytest.mark.serial
@pytest.mark.parametrize("limit", [1 << 28, 0])
@pytest.mark.parametrize("shots", [[1, 2, 3], [6, 5, 4], [3, 4, 5, 6], [2, 7, 0]])
def test_shots_from_within_a_chunk_are_the_shots_of_the_file(tmp_path, monkeypatch, limit, shots):
    monkeypatch.setattr("collops.seismic.survey.zarr._MAX_CACHED_BYTES", limit)
    values = np.random.default_rng(0).normal(size=(9, 2, 6)).astype(np.float32)
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group.create_array("data", data=values, chunks=(4, 2, 6), dimension_names=("shot", "channel", "time"))
    group.create_array("time", data=np.arange(6.0), dimension_names=("time",))
    file = ZarrShots.inspect(tmp_path / "a.zarr")
    for shot in shots:
        np.testing.assert_array_equal(file.read(np.array([2 * shot, 2 * shot + 1])), values[shot])
    both = np.array([2 * shots[0] + 1, 2 * shots[-1]])
    np.testing.assert_array_equal(file.read(both), [values[shots[0], 1], values[shots[-1], 0]])


@pytest.mark.parametrize("longest", [0, 1])
def test_groups_are_strips_across_the_longer_side_and_depths_do_not_count(longest):
    far, near = np.array([0.0, 400.0, 100.0, 300.0, 200.0]), np.array([0.0, 60.0, 120.0, 30.0, 90.0])
    sources = np.stack([*((far, near) if longest == 0 else (near, far)), [0.0, 5000.0, 0.0, 0.0, 9000.0]])
    station = np.zeros((3, 2))
    held = held_out(Geometry(sources, [station] * 5, 50, 0.004), 150.0)
    # Groups of up to 150 m along the longer side: 0 and 100, 200 and 300, 400.
    assert [each.tolist() for each in held] == [[False] * 2, [False] * 2, [False] * 2, [True] * 2, [True] * 2]


@pytest.mark.serial
@pytest.mark.parametrize(
    ("off", "numbered", "dims"),
    [(0.15, True, 3), (0.15, False, 2), (0.3, False, 3), (0.05, True, 2), (0.021, False, 2), (0.019, False, 2)],
)
def test_a_survey_is_in_3d_a_tenth_off_its_line_with_numbers_and_a_quarter_without(tmp_path, off, numbered, dims):
    x = np.repeat(np.linspace(0, 1000, 5), 4)
    receivers = np.tile([300.0, 400.0, 600.0, 700.0], 5), np.tile([1000 * off, -1000 * off, -1000 * off, 1000 * off], 5)
    arrays = dict(zip(("source_coord_x", "source_coord_y"), (x, 0 * x), strict=True))
    arrays |= dict(zip(("group_coord_x", "group_coord_y"), receivers, strict=True))
    if numbered:
        arrays |= {"inline": np.arange(20) % 7, "crossline": np.arange(20) % 3}
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group.create_array("data", data=np.ones((20, 6)), dimension_names=("trace", "time"))
    group.create_array("time", data=np.arange(6.0), dimension_names=("time",), attributes={"units": "ms"})
    for name, values in arrays.items():
        group.create_array(name, data=values, dimension_names=("trace",))
    found = read_headers(tmp_path / "a.zarr")
    assert found.geometry.dims == dims
    doubt = f"stations lie up to {1000 * off:.0f} m off the straight line that the 2-D migration assumes"
    assert (doubt in found.notes) == (dims == 2 and off > 0.02)


@pytest.mark.parametrize(("ratio", "warned"), [(1.0, False), (0.6, False), (1.8, False), (0.3, True), (3.0, True)])
def test_offsets_that_disagree_with_positions_by_half_or_more_are_a_warning(ratio, warned):
    source, group = np.zeros((2, 8)), np.stack([100.0 * np.arange(1, 9), np.zeros(8)])
    terms = Terms("the positions", "offsets", "units", "leave traces out")
    found = check_positions(Path("a"), source, group, group[0] / ratio, 2, terms)
    assert ["check the units" in each for each in found] == [True] * warned


@pytest.mark.parametrize(
    ("ratio", "refused"), [(10.9, True), (0.00112, False), (0.00109, True), (9.2, True), (8.9, False)]
)
def test_offsets_that_disagree_by_a_power_of_ten_up_to_a_tenth_are_an_error(ratio, refused):
    source, group = np.zeros((2, 8)), np.stack([1000.0 * np.arange(1, 9), np.zeros(8)])
    terms = Terms("the positions", "offsets", "units", "leave traces out")
    with pytest.raises(InputError, match="correct the units") if refused else nullcontext():
        assert len(check_positions(Path("a"), source, group, group[0] / ratio, 2, terms)) == 1


def test_offsets_are_horizontal_distances():
    sources, receivers = np.array([[40.0], [100.0], [5.0]]), np.array([[10.0, 70.0], [140.0, 60.0], [80.0, 0.0]])
    np.testing.assert_allclose(Geometry(sources, [receivers], 9, 0.004).offsets(0), [50, 50])
    np.testing.assert_allclose(Geometry(sources[1:], [receivers[1:]], 9, 0.004).offsets(0), [40, -40])


@pytest.mark.parametrize(("far", "warned"), [(4, False), (6, True), (9, True)])
def test_receivers_that_no_wave_reaches_are_a_warning_from_a_half_on(far, warned):
    x = np.where(np.arange(10) < far, 5000.0, 100.0) + np.arange(10)
    geometry = Geometry(np.zeros((2, 1)), [np.stack([x, np.zeros(10)])], 100, 0.004)
    grid = Grid(nx=60, nz=5, dx=100.0, dz=10.0)
    found = check_reach(geometry, grid, np.full(grid.shape, 1500.0), 10.0)
    assert [each.startswith(f"{10 * far} % of the receivers") for each in found] == [True] * warned


@pytest.mark.parametrize(("dx", "warned"), [(390.0, False), (410.0, True)])
def test_columns_more_than_four_wavelengths_apart_are_a_warning(dx, warned):
    line = np.stack([np.linspace(0, 2000, 11), np.zeros(11)])
    found = check_reach(Geometry(line, [line] * 11, 501, 0.004), Grid(6, 5, dx, 10.0), np.full((6, 5), 1500.0), 15.0)
    assert ["more than 4 wavelengths of 100 m" in each for each in found] == [True] * warned


@pytest.mark.parametrize(
    ("samples", "frequency", "complaint"),
    [
        (100, 5.0, None),  # two periods in 0.4 s
        (100, 4.9, "choose a --frequency of 5 to 125 Hz"),
        (100, 124.9, None),  # two samples in a period
        (100, 125.0, "choose a --frequency of 5 to 125 Hz"),
        (5, 110.0, None),
        (4, 110.0, "at least 5 samples for a wavelet"),
    ],
)
def test_a_wavelet_fits_two_periods_into_the_record_and_two_samples_into_a_period(samples, frequency, complaint):
    geometry = Geometry(np.zeros((2, 1)), [np.ones((2, 1))], samples, 0.004)
    with nullcontext() if complaint is None else pytest.raises(InputError, match=complaint):
        check_frequency(frequency, geometry)


@pytest.mark.parametrize(("speed", "warned"), [(4400.0, False), (4600.0, True)])
def test_velocities_above_4500_metres_per_second_at_all_depths_may_be_in_feet(speed, warned):
    assert [len(check_speed(model, "v")) for model in (Gradient(speed, 1.0), np.full((2, 3), speed))] == [warned] * 2


@pytest.mark.parametrize("fields", [0, 2])
def test_tables_of_weights_need_memory_like_those_of_times(monkeypatch, fields):
    grid, stations = Grid(21, 11, 10.0, 10.0), 50
    points = ((1 + fields) * stations + 8) * 21 * 11  # with eight images
    for share, factor in ((1.01, 1), (0.99, 2)):
        monkeypatch.setattr("collops.apps.stages.available_memory", lambda _, share=share: share * 4 * points / 0.8)
        assert table_factor(grid, stations, np.dtype("float32"), alone(), fields) == factor


def test_columns_from_a_given_one_on_cover_the_stations_with_their_margin():
    line = np.stack([np.linspace(0, 400, 5), np.zeros(5)])
    geometry = Geometry(line[:, 1:3], [line] * 2, 40, 0.004)
    grid = cover(geometry, Gradient(1500.0), dx=7.0, x0=-40.0)
    assert grid.x[0] == -40 and 420 <= grid.x[-1] < 427  # 5 % more


def test_stations_are_on_the_grid_up_to_a_thousandth_of_a_cell():
    grid = Grid(nx=5, nz=4, dx=20.0, dz=10.0, x0=100.0, ny=3, dy=40.0, y0=-40.0)
    inside = np.array([0.0, 150.0, 15.0])
    for axis, (first, last, spacing) in enumerate([(-40.0, 40.0, 40.0), (100.0, 180.0, 20.0), (0.0, 30.0, 10.0)]):
        for end, sign in ((first, -1), (last, 1)):
            for share, fits in ((0.0009, True), (0.0011, False)):
                station = inside.copy()
                station[axis] = end + sign * share * spacing
                geometry = Geometry(inside[:, np.newaxis], [station[:, np.newaxis]], 11, 0.004)
                with nullcontext() if fits else pytest.raises(InputError, match="outside the model"):
                    grid.check_contains(geometry)


def test_image_points_between_bins_have_no_numbers():
    bins = Bins((100, 7), (2, 1), (25.0, 20.0))
    at, between = (Grid(4, 4, 20.0, 10.0, x0=x0, ny=3, dy=25.0) for x0 in (40.0, 46.0))
    inlines, crosslines = bins.numbers(at) or ([], [])
    assert (list(inlines), list(crosslines)) == ([100, 102, 104], [9, 10, 11, 12])
    assert bins.numbers(between) is None


def test_the_image_covers_stations_across_the_line_and_at_depth():
    sources = np.array([[-300.0, 900.0], [0.0, 100.0], [5.0, 5.0]])
    deep = np.array([[0.0, 10.0], [20.0, 60.0], [800.0, 800.0]])
    geometry = Geometry(sources, [deep, deep], 11, 0.004)
    grid = cover(geometry, lambda z: np.full(np.shape(z), 1500.0))
    (first, last), bottom = grid.axes["y"][[0, -1]], grid.z[-1]
    assert first <= -300 and last >= 900 and bottom >= 1.5 * 800
    # Half as far apart as two receivers spread evenly over the area of 1200 m x 100 m, rounded down.
    assert grid.dx == grid.dy == np.floor(np.sqrt(1200 * 100 / 2) / 2)
    grid.check_contains(geometry)
    for name, change in {"x": 500.0, "y": 5000.0, "z": 5000.0}.items():
        moved = deep + change * np.array([[name == "y"], [name == "x"], [name == "z"]])
        with pytest.raises(InputError, match="outside the model"):
            grid.check_contains(Geometry(sources, [deep, moved], 11, 0.004))
