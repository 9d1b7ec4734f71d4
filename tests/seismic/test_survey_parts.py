"""Details of reading a survey and a velocity that no image would show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collops.seismic.survey import Geometry, Grid, Survey, read
from collops.seismic.survey.geometry import Bins, Line, cover
from collops.seismic.survey.segy import _positions, image_traces, read_headers, shot_traces
from collops.seismic.survey.traveltimes import seconds_from
from collops.seismic.survey.velocity import Volume, load_velocity
from tests.seismic.files import (
    random_traces,
    set_binary,
    set_header,
    small_geometry,
    small_survey,
    write_alone,
    write_traces,
)

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("mode", ["analytic", "eikonal"])
def test_times_at_some_points_are_those_of_all(mode):
    grid = Grid(31, 21, 10.0, 10.0)
    velocity = np.broadcast_to(1500 + 0.6 * grid.z, grid.shape)
    position, at = np.array([113.0, 4.0]), np.ix_([0, 7, 30], [2, 20])
    some = seconds_from(position, velocity, grid, mode, at)
    assert some.shape == (3, 2)
    np.testing.assert_allclose(some, seconds_from(position, velocity, grid, mode)[at], rtol=1e-14)


def test_shots_of_one_record_and_place_differ_in_their_source_point(tmp_path):
    path = small_survey(tmp_path / "a.sgy")
    for trace in range(15):
        set_header(path, trace, 9, 7, size=4)  # one field record
        for byte in (73, 77):
            set_header(path, trace, byte, 2_000_000, size=4)
    assert read_headers(path).geometry.shots == 3
    for trace in range(15):
        set_header(path, trace, 17, 1, size=4)
    assert read_headers(path).geometry.shots == 1


def test_the_profile_of_a_velocity_is_the_mean_of_its_columns_below_its_delay(tmp_path):
    values = np.array([[1500.0, 2500.0, 3500.0], [1700.0, 2900.0, 3900.0]], dtype=np.float32)
    headers = {"CDP_X": np.array([0, 100]), "DelayRecordingTime": np.array([40, 40])}
    model = load_velocity(write_traces(tmp_path / "v.sgy", values, headers, 20_000, "VELOCITY"), 2, None)
    assert isinstance(model, Volume)
    assert model.depth.tolist() == [40.0, 60.0, 80.0]
    np.testing.assert_allclose(model(np.array([0.0, 50.0, 60.0, 99.0])), [1600, 2150, 2700, 3700])


def test_velocities_of_a_file_in_feet_are_in_metres(tmp_path):
    values = np.array([[5000.0, 7000.0, 9000.0], [5500.0, 7500.0, 9500.0]], dtype=np.float32)
    headers = {"CDP_X": np.array([0, 1000]), "CDP_Y": np.array([50, 90])}
    path = write_traces(tmp_path / "v.sgy", values, headers, 20_000, "VELOCITY")
    set_binary(path, 3255, 2)
    model = load_velocity(path, 2, None)
    assert isinstance(model, Volume)
    for found, expected in (
        (model.velocity, values),
        (model.depth, [0, 20, 40]),
        (model.east, [0, 1000]),
        (model.north, [50, 90]),
    ):
        np.testing.assert_allclose(found, 0.3048 * np.asarray(expected, float), rtol=1e-6)


@pytest.mark.parametrize(("code", "live"), [(0, 15), (1, 15), (9, 15), *((code, 14) for code in range(2, 9))])
def test_traces_of_all_auxiliary_kinds_are_left_out(tmp_path, code, live):
    path = small_survey(tmp_path / "a.sgy")
    set_header(path, 4, 29, code)
    assert read_headers(path).geometry.traces == live


def test_results_of_a_survey_in_feet_say_so_in_the_binary_header(tmp_path):
    path = small_survey(tmp_path / "a.sgy")
    set_binary(path, 3255, 2)
    survey = read(path)
    assert survey.headers is not None
    values = np.concatenate(survey.traces)
    write_alone(tmp_path / "b.sgy", shot_traces("RESULT", survey.headers, survey.shots, values))
    assert int.from_bytes((tmp_path / "b.sgy").read_bytes()[3254:3256], "big") == 2
    np.testing.assert_allclose(read(tmp_path / "b.sgy").geometry.sources, survey.geometry.sources)


def test_images_below_a_datum_have_its_elevation(tmp_path):
    import segyio

    headers = replace(read_headers(small_survey(tmp_path / "a.sgy")), datum=12.34)
    grid = Grid(3, 9, 50.0, 4.0)
    write_alone(tmp_path / "b.sgy", image_traces("IMAGE", np.ones(grid.shape), grid, headers, 0))
    field = segyio.TraceField
    with segyio.open(str(tmp_path / "b.sgy"), ignore_geometry=True) as file:
        for each in file.header:
            assert each[field.ElevationScalar] == -100
            assert each[field.ReceiverDatumElevation] == each[field.SourceDatumElevation] == 1234


def test_spectra_leave_out_traces_that_are_much_stronger_than_others():
    geometry = small_geometry(samples=60)
    traces = [each.astype(float) for each in random_traces(geometry)]
    traces[1][3] *= 1e4
    survey = Survey(geometry)
    survey.traces = traces
    every = np.concatenate(traces)
    for outliers, rows in ((10.0, np.delete(every, 8, axis=0)), (0.0, every)):
        power = (np.abs(np.fft.rfft(rows, axis=1)) ** 2).sum(axis=0)
        np.testing.assert_allclose(survey.spectrum(outliers=outliers), power, rtol=1e-9)


def test_results_below_a_datum_keep_the_elevations_of_sources_and_receivers(tmp_path):
    """A survey in Zarr has no headers to copy: those of SEG-Y are made from depths below the highest station."""
    geometry = Geometry(np.array([[0.0, 50.0], [30.0, 32.0]]), [np.array([[0.0, 20.0], [0.0, 12.0]])] * 2, 9, 0.004)
    fields = _positions(geometry, Line(), 40.0, np.arange(2) + 1, geometry.counted())
    scale = -fields["ElevationScalar"][0]
    np.testing.assert_allclose((fields["SourceSurfaceElevation"] - fields["SourceDepth"]) / scale, [10, 10, 8, 8])
    np.testing.assert_allclose(fields["ReceiverGroupElevation"] / scale, [40, 28, 40, 28])


def test_the_image_reaches_below_the_stations_of_a_short_record():
    deep = Geometry(np.array([[0.0], [400.0]]), [np.array([[0.0, 100.0], [0.0, 0.0]])], 50, 0.004)
    grid = cover(deep, lambda z: np.full(np.shape(z), 1500.0))
    assert 600 <= grid.z[-1] < 600 + grid.dz  # the deepest echo is from 147 m


def test_rows_below_bins_have_round_spacings():
    area = np.array([[0.0, 300.0, 0.0, 300.0], [0.0, 0.0, 300.0, 300.0], [0.0, 0.0, 0.0, 0.0]])
    bins = Bins((1, 1), (1, 1), (25.000123, 12.500321))
    grid = cover(Geometry(area[:, :1], [area], 99, 0.004), lambda z: np.full(np.shape(z), 1500.0), bins=bins)
    assert (grid.dx, grid.dy, grid.dz) == (12.500321, 25.000123, 12.5)
