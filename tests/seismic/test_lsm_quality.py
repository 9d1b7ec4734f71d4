"""Common-image gathers, the moveout that is left in them, and spectra."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collops.seismic.lsm import Options, quality, run
from collops.seismic.lsm.problem import Problem, recorded
from collops.seismic.lsm.quality import _RATIOS, Gathers, Quality, by_angle, field_bytes, semblance
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
    square = _RATIOS[:, None, None] ** 2 - 1
    for ratio in (0.9, 1.0, 1.12):
        depths = np.sqrt(300.0**2 + (ratio**2 - 1) * half**2)
        gather = ricker_shape((z - depths[:, None]) / 60)
        power, flatness = semblance(gather, z, np.sqrt(np.maximum(z**2 + square * half[:, None] ** 2, 0)), 9)
        assert power.shape == flatness.shape == (len(_RATIOS), 120)
        assert _RATIOS[power.sum(axis=1).argmax()] == pytest.approx(ratio, abs=0.011)
        assert 0.9 < flatness[:, 60].max() <= 1 and _RATIOS[flatness[:, 60].argmax()] == pytest.approx(ratio, abs=0.011)


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
    monkeypatch.setattr(quality, "_MAX_ANGLE", 91.0)
    geometry, grid = small_geometry(shots=4, samples=90, towed=True), Grid(13, 21, 60.0, 10.0)
    columns: tuple[Any, ...] = (np.array([3, 6, 9]),)
    if dims == 3:
        sources, *groups = (np.insert(each, 0, 20.0, axis=0) for each in (geometry.sources, *geometry.receivers))
        geometry, grid = Geometry(sources, groups, 90, 0.004), Grid(13, 21, 60.0, 10.0, ny=4, dy=25.0)
        columns = 2, *columns
    geometry = replace(geometry, start=0.02)
    survey, traces = Survey(geometry, comm), random_traces(geometry)
    survey.traces = [traces[shot] for shot in survey.shots]
    velocity = survey.velocity(1500.0, grid)
    A = survey.operator(velocity, grid, frequency=30.0, mode="analytic", dtype="float64")
    expected = A.adjoint(survey.data(dtype="float64")).local_array[columns]
    problem = Problem(survey, grid, velocity, "1500", "analytic", 30.0)
    _, gathers = by_angle(problem, survey.traces, columns[-1], 7)
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
    values, flatness = np.random.default_rng(0).normal(size=(5, 6, 60)), np.zeros((5, len(_RATIOS), 60))
    spectra = dict.fromkeys(names, np.linspace(1, 2, 41))
    by_offset, by_angles = (
        Gathers(of, np.arange(6.0), values, flatness, 1.0) for of in ("offsets, m", "angles, degrees")
    )
    found = Quality(100.0 * np.arange(5), z, by_offset, by_angles, np.arange(41.0), spectra, np.arange(41.0), spectra)
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
