"""Common-image gathers, the moveout that is left in them, and spectra."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collops.seismic.lsm import Options, angles, quality, run
from collops.seismic.lsm.angles import by_angle
from collops.seismic.lsm.moveout import RATIOS, picks, semblance, surrounding
from collops.seismic.lsm.problem import Problem
from collops.seismic.lsm.quality import Gathers, Quality, field_bytes
from collops.seismic.lsm.setup import recorded
from collops.seismic.signals import ricker_shape
from collops.seismic.survey import Geometry, Grid, Survey, read
from tests.apps.jobs import group_of, job_numbers
from tests.seismic.files import random_traces, small_geometry, write_survey

SPEED, FREQUENCY = 2000.0, 20.0


def echoes_of_layers(path: Path) -> None:
    """Write shots over two flat layers in a constant velocity."""
    sources = np.stack([np.linspace(0, 800, 9), np.zeros(9)])
    spread = np.stack([np.linspace(0, 800, 33), np.zeros(33)])
    geometry = Geometry(sources, [spread] * 9, 160, 0.005)
    squares = [geometry.offsets(shot)[:, None] ** 2 for shot in range(9)]
    arrivals = [[np.sqrt(square + 4 * z**2) / SPEED for z in (250.0, 450.0)] for square in squares]
    traces = [sum(ricker_shape(FREQUENCY * (geometry.times - time)) for time in times) for times in arrivals]
    traces[4][16] *= 1e4  # a bad trace, which is left out
    write_survey(path, geometry, [np.asarray(each, np.float32) for each in traces], {})


def test_the_moveout_of_a_gather_gives_its_velocity_ratio():
    z, half = 5.0 * np.arange(120), np.linspace(0, 300, 12)
    square = RATIOS[:, None, None] ** 2 - 1
    for ratio in (0.9, 1.0, 1.12):
        depths = np.sqrt(300.0**2 + (ratio**2 - 1) * half**2)
        gather = ricker_shape((z - depths[:, None]) / 60)
        power, flatness = semblance(gather, z, np.sqrt(np.maximum(z**2 + square * half[:, None] ** 2, 0)), 9)
        assert power.shape == flatness.shape == (len(RATIOS), 120)
        assert RATIOS[power.sum(axis=1).argmax()] == pytest.approx(ratio, abs=0.011)
        ((row, picked, flat),) = picks(power, flatness, 9)
        assert abs(row - 60) <= 2 and picked == pytest.approx(ratio, abs=0.011) and flat > 0.9
        assert 0.9 < flatness[:, 60].max() <= 1 and RATIOS[flatness[:, 60].argmax()] == pytest.approx(ratio, abs=0.011)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_wrong_velocity_is_seen(comm, folder, monkeypatch, factor):
    path, windows = folder / "a.sgy", set()

    def watched(gather: Any, z: Any, depths: Any, window: int) -> Any:
        windows.add(window)
        return semblance(gather, z, depths, window)

    monkeypatch.setattr(quality, "semblance", watched)
    if comm.rank == 0:
        echoes_of_layers(path)
    comm.barrier()
    files = {"survey": str(path), "velocity": str(SPEED * factor), "out": str(folder / "out")}
    sizes = {"dx": 20.0, "dz": 5.0, "nz": 120, "iterations": 2, "gathers": 6, "frequency": FREQUENCY}
    numbers = job_numbers(run, Options(engine="numpy", **files, **sizes), comm)
    assert windows == {round(factor * SPEED / FREQUENCY / 2 / 5)}  # half a wavelength in rows of 5 m
    assert numbers["velocity_ratio"] == pytest.approx(factor, abs=0.021)
    for name in ("offset", "angle"):
        # Both layers are picked at all positions but the first and last, whose gathers have fewer offsets.
        picked = np.loadtxt(folder / "out" / f"{name}_moveout.txt")
        for depth in (250 * factor, 450 * factor):
            near = picked[np.abs(picked[:, 2] - depth) <= 20]
            assert len(near) >= 2
            assert np.median(near[:, 3]) == pytest.approx(factor, abs=0.031)
    assert numbers["angle_velocity_ratio"] == pytest.approx(factor, abs=0.031)
    group = group_of(folder, "out")
    assert group["common_image_gathers"].shape == group["angle_gathers"].shape == (5, 6, 120)
    assert group["gather_angle"][...].tolist() == [5, 15, 25, 35, 45, 55]
    names = ("common_image_gathers", "angle_gathers", "semblance", "angle_semblance", "illumination")
    grid: Any = SimpleNamespace(image_grid=Grid(numbers["nx"], numbers["nz"], 20.0, 5.0))
    assert field_bytes(grid, 6) == 8 * sum(group[name].size for name in names)
    illumination = group["illumination"][...]
    assert illumination.max() == 1 and illumination[0, -1] < 0.95  # fewer echoes come from the corner in time
    images = {name: group[name][...] for name in ("image", "adjoint_image")}
    for name, image in images.items():
        power = (np.abs(np.fft.rfft(image, axis=1)) ** 2).sum(axis=0)
        np.testing.assert_allclose(
            group[f"{name}_spectrum"][...], np.sqrt(power), rtol=1e-3, atol=1e-3 * power.max() ** 0.5
        )
    data = np.concatenate(read(path, comm).traces)
    power = comm.allreduce((np.abs(np.fft.rfft(data, axis=1)) ** 2).sum(axis=0))
    np.testing.assert_allclose(group["data_spectrum"][...], np.sqrt(power), rtol=1e-3, atol=1e-3 * power.max() ** 0.5)
    assert group["residual_spectrum"].shape == group["frequency"].shape == (81,)


def test_gathers_are_written_as_segy(comm, folder):
    import segyio

    path = folder / "a.sgy"
    if comm.rank == 0:
        echoes_of_layers(path)
    comm.barrier()
    options: dict[str, Any] = {"survey": str(path), "velocity": str(SPEED), "out": str(folder / "out")}
    options["gather_columns"] = 3
    sizes: dict[str, Any] = {"dx": 40.0, "dz": 10.0, "nz": 60, "iterations": 1, "gathers": 4, "frequency": FREQUENCY}
    job_numbers(run, Options(engine="numpy", **options, **sizes, image_z="100,"), comm)
    group, field = group_of(folder, "out"), segyio.TraceField
    columns = np.searchsorted(group["x"][...], group["gather_x"][...])
    assert len(columns) == 3
    with segyio.open(str(folder / "out" / "image.sgy"), ignore_geometry=True) as image:
        positions = [image.header[column][field.CDP_X] for column in columns.tolist()]
    for name, array, axis in (
        ("offset_gathers", "common_image_gathers", "gather_offset"),
        ("angle_gathers", "angle_gathers", "gather_angle"),
    ):
        with segyio.open(str(folder / "out" / f"{name}.sgy"), ignore_geometry=True) as file:
            assert np.array_equal(file.trace.raw[:], group[array][...].reshape(12, -1).astype(np.float32))
            assert file.attributes(field.CDP)[:].tolist() == np.repeat(columns + 1, 4).tolist()
            assert file.attributes(field.CDP_X)[:].tolist() == np.repeat(positions, 4).tolist()
            middles = np.floor(group[axis][...] + 0.5)
            assert file.attributes(field.offset)[:].tolist() == np.tile(middles, 3).tolist()
            assert file.header[0][field.DelayRecordingTime] == 100 * -file.header[0][215]


def test_gathers_are_parts_of_the_adjoint_image_also_with_weights(comm, folder):
    path = folder / "a.sgy"
    if comm.rank == 0:
        echoes_of_layers(path)
    comm.barrier()
    options = {"trace_weights": "balance", "mute": "1500,0.05", "gain": "1", "polarity": "reversed"}
    options |= {"survey": str(path), "velocity": str(SPEED), "out": str(folder / "out"), "dtype": "float64"}
    sizes = {"dx": 20.0, "dz": 5.0, "nz": 120, "iterations": 1, "gathers": 3, "frequency": FREQUENCY}
    job_numbers(run, Options(engine="numpy", **options, **sizes), comm)
    group = group_of(folder, "out")
    columns = np.searchsorted(group["x"][...], group["gather_x"][...])
    expected = group["adjoint_image"][...][columns]
    found = group["common_image_gathers"][...].sum(axis=1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("dims", [2, 3])
def test_all_angles_together_are_the_adjoint_image(comm, monkeypatch, dims):
    monkeypatch.setattr(angles, "_MAX_ANGLE", 91.0)
    geometry, grid = small_geometry(shots=4, samples=90, towed=True), Grid(13, 21, 60.0, 10.0)
    columns = np.array([3, 6, 9])
    if dims == 3:
        sources, *groups = (np.insert(each, 0, 20.0, axis=0) for each in (geometry.sources, *geometry.receivers))
        geometry, grid = Geometry(sources, groups, 90, 0.004), Grid(13, 21, 60.0, 10.0, ny=4, dy=25.0)
        columns = np.array([1, 13 * 2 + 3, 13 * 2 + 9, 13 * 4 - 1])
    # Two columns at a time, of which the traces of a shot are added one by one.
    monkeypatch.setattr(angles, "_TABLE_BYTES", 4 * 21 * 2 * len(geometry.stations[0]) * (1 + dims))
    monkeypatch.setattr(angles, "_SHOT_BYTES", 1)
    geometry = replace(geometry, start=0.02)
    survey, traces = Survey(geometry, comm), random_traces(geometry)
    survey.traces = [traces[shot] for shot in survey.shots]
    velocity = survey.velocity(1500.0, grid)
    A = survey.operator(velocity, grid, frequency=30.0, mode="analytic", dtype="float64")
    expected = A.adjoint(survey.data(dtype="float64")).local_array.reshape(-1, 21)[columns]
    problem = Problem(survey, grid, velocity, "1500", "analytic", 30.0)
    _, gathers = by_angle(problem, survey.traces, columns, 7)
    np.testing.assert_allclose(gathers.sum(axis=1), expected, rtol=0, atol=1e-3 * np.abs(expected).max())


def test_a_flat_reflector_gives_flat_gathers_at_the_angles_of_the_geometry(comm, folder):
    path = folder / "a.sgy"
    if comm.rank == 0:
        echoes_of_layers(path)
    comm.barrier()
    sizes = {"nx": 41, "dx": 20.0, "dz": 5.0, "nz": 120, "x0": 0.0, "frequency": FREQUENCY}
    problem = recorded(Options(engine="numpy", survey=str(path), velocity=f"{SPEED:g}", **sizes), comm)
    # Two images of 41 columns and two files of 297 traces, with headers of 3600 bytes a file and 240 a trace.
    assert problem.segy_bytes == 2 * (3600 + 41 * (240 + 4 * 120)) + 2 * (3600 + 297 * (240 + 4 * 160))
    believed = [each.traces * each.trust[:, None] for each in problem.conditioned or ()]
    angles, gathers = by_angle(problem, believed, np.array([20]), 6)
    assert angles.tolist() == [5, 15, 25, 35, 45, 55]
    # With depths of 250 m and half offsets of 400 m at most, angles reach 58 degrees at the first layer.
    for angle, trace in zip(angles, gathers[0], strict=True):
        if angle < 50:
            assert abs(5 * trace[:70].argmax() - 250) <= 10, angle
    # One trace, whose midpoint is the column: at the depth z its angle is atan(half offset / z).
    geometry = problem.survey.geometry
    for shot, traces in zip(problem.survey.shots, believed, strict=True):
        traces[np.arange(33) != 32 - round(geometry.sources[0, shot] / 25)] = 0
        if shot != 1:
            traces[:] = 0
        else:
            traces[traces.any(axis=1)] = 1
    assert comm.allreduce(np.array(float(sum(each.any(axis=1).sum() for each in believed)))) == 1
    _, gathers = by_angle(problem, believed, np.array([20]), 6)
    half = 400.0 - geometry.sources[0, 1]
    expected = np.rad2deg(np.arctan2(half, problem.grid.z))
    for row in range(40, 100):
        if min(abs(expected[row] - edge) for edge in range(0, 61, 10)) > 0.5:  # not between classes
            assert np.flatnonzero(gathers[0, :, row]).tolist() == [int(expected[row] // 10)]


@pytest.mark.serial
def test_the_pictures_are_drawn(comm, tmp_path):
    z, names = 5.0 * np.arange(60), ("data", "explained", "residual")
    values, flatness = np.random.default_rng(0).normal(size=(5, 6, 60)), np.zeros((5, len(RATIOS), 60))
    spectra = dict.fromkeys(names, np.linspace(1, 2, 41))
    by_offset, by_angles = (
        Gathers(of, np.arange(6.0), values, flatness, ratio, np.empty((0, 4)))
        for of, ratio in (("offsets, m", 1.0), ("angles, degrees", None))
    )
    x = 100.0 * np.arange(5)
    found = Quality(
        np.arange(5), x, None, z, by_offset, by_angles, 90.0, 5, np.arange(41.0), spectra, np.arange(41.0), spectra
    )
    options = Options(survey="a.sgy", velocity="1500", gathers=4, out=str(tmp_path))
    for path in found.draw(tmp_path):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path in options.results()


def test_images_of_all_offsets_together_are_the_adjoint_image(comm):
    geometry = small_geometry(shots=4, samples=60, towed=True)
    survey, traces = Survey(geometry, comm), random_traces(geometry)
    survey.traces = [traces[shot] for shot in survey.shots]
    A = survey.operator(1500.0, Grid(13, 9, 60.0, 10.0), frequency=30.0, dtype="float64")
    offsets, images = survey.by_offset(A, 3)
    adjoint = A.adjoint(survey.data(dtype="float64")).local_array
    np.testing.assert_allclose(np.sum(images, axis=0), adjoint, rtol=0, atol=1e-9 * np.abs(adjoint).max())
    assert len(images) == len(offsets) <= 3 and (np.diff(offsets) > 0).all()
    # Every shot has the same offsets, of which those above 150 m are in the last class.
    every = np.abs(geometry.offsets(0))
    assert offsets[-1] == pytest.approx(every[every >= np.quantile(every, 2 / 3)].mean())


@pytest.mark.parametrize("offset", [120.0, 400.0])
def test_a_dipping_reflector_is_imaged_at_its_specular_angle(comm, offset):
    dip, speed, origin = np.radians(20.0), 2000.0, np.array([0.0, 250.0])
    along, normal = np.array([np.cos(dip), np.sin(dip)]), np.array([-np.sin(dip), np.cos(dip)])
    sources = np.stack([12.5 * np.arange(48), np.zeros(48)])
    geometry = Geometry(sources, [source[:, None] + [[offset], [0.0]] for source in sources.T], 200, 0.004)
    # The wave seems to come from the mirror image of the source.
    mirrored = sources - 2 * normal[:, None] * (normal @ (sources - origin[:, None]))
    rays = np.concatenate(list(geometry.receivers), axis=1) - mirrored
    lengths = np.hypot(*rays)
    survey = Survey(geometry, comm)
    survey.traces = [ricker_shape(25 * (geometry.times - lengths[shot] / speed))[None] for shot in survey.shots]
    grid = Grid(61, 81, 15.0, 6.0, x0=-50.0)
    problem = Problem(survey, grid, np.full(grid.shape, speed), "2000", "analytic", 25.0)
    middle = rays[:, 24] / lengths[24]
    point = mirrored[:, 24] + middle * (normal @ (origin - mirrored[:, 24])) / (normal @ middle)
    assert abs((point - origin) @ normal) < 1e-9
    angle = np.degrees(np.arccos(abs(normal @ middle)))  # of incidence: between the ray and the normal
    column = round((point[0] + 50) / 15)
    depth = origin[1] + (grid.x[column] - origin[0]) * along[1] / along[0]
    middles, gathers = by_angle(problem, survey.traces, np.array([column]), 30)
    stack = gathers[0].sum(axis=0)
    assert abs(grid.z[stack.argmax()] - depth) <= 6
    energy = np.clip(gathers[0][:, stack.argmax()], 0, None) ** 2
    assert float(energy @ middles / energy.sum()) == pytest.approx(angle, abs=1.5)
    assert {120.0: 8, 400.0: 22}[offset] < angle < {120.0: 12, 400.0: 30}[offset]


@pytest.mark.serial
def test_midpoints_surround_a_column():
    receivers = np.stack([100.0 * np.arange(9), np.zeros(9)])
    geometry = Geometry(np.array([[0.0, 400.0, 800.0], [0.0] * 3]), [receivers] * 3, 10, 0.004)
    # Midpoints of all traces are 50 m apart, of those of one shot they begin at the shot.
    columns, one = np.array([[400.0], [10.0], [500.0]]), np.repeat([0, 1, 2], 9)
    assert surrounding(geometry, np.zeros(27, int), columns, 120.0).tolist() == [[True], [False], [True]]
    assert surrounding(geometry, one, columns, 120.0).tolist() == [
        [False, True, False],
        [False] * 3,
        [False, True, True],
    ]
    area = Geometry(
        np.array([[0.0, 100.0], [0.0, 0.0], [0.0, 0.0]]),
        [np.insert(receivers, 0, y, axis=0) for y in (0.0, 100.0)],
        10,
        0.004,
    )
    columns = np.array([[50.0, 220.0], [150.0, 220.0], [50.0, 900.0]])
    assert surrounding(area, np.zeros(18, int), columns, 120.0)[:, 0].tolist() == [True, False, False]


def test_few_shots_have_a_sentence_and_no_number(comm, folder):
    sizes: dict[str, Any] = {
        "nx": 31,
        "nz": 21,
        "shots": 1,
        "receivers": 9,
        "samples": 101,
        "iterations": 1,
        "gathers": 4,
    }
    numbers = job_numbers(run, Options(engine="numpy", out=str(folder / "out"), **sizes), comm)
    assert numbers["velocity_ratio"] is None and numbers["angle_velocity_ratio"] is None
    if comm.rank == 0:
        lines = (folder / "out" / "offset_moveout.txt").read_text().splitlines()
        assert "more shots or fewer classes are needed" in lines[0] and all(line[0] == "#" for line in lines)
