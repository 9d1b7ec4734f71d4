"""Intercept and gradient of a migration, of echoes whose amplitudes are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic import fit_avo
from collops.seismic.lsm import Options, angles, run
from collops.seismic.lsm.amplitudes import Amplitudes, field_bytes, realisations
from collops.seismic.lsm.setup import recorded
from collops.seismic.signals import ricker_shape
from collops.seismic.survey import Geometry
from tests.apps.jobs import group_of, job_numbers
from tests.seismic.files import small_survey, write_survey

SPEED, FREQUENCY, DEPTH, RATIO = 2000.0, 20.0, 300.0, -1.5


def echoes(path: Path) -> None:
    """Write the echoes of point sources from a flat reflector with R = 1 + RATIO sin(angle)^2."""
    sources = np.stack([np.linspace(0, 1200, 13), np.zeros(13)])
    spread = np.stack([np.linspace(0, 1200, 49), np.zeros(49)])
    geometry, traces = Geometry(sources, [spread] * 13, 160, 0.005), []
    for shot in range(13):
        offset = geometry.offsets(shot)[:, None]
        path_length = np.hypot(offset, 2 * DEPTH)
        reflectivity = 1 + RATIO * (offset / path_length) ** 2
        wave = ricker_shape(FREQUENCY * (geometry.times - path_length / SPEED))
        traces.append((1e4 * reflectivity / path_length * wave).astype(np.float32))
    write_survey(path, geometry, traces, {})


def test_the_gradient_is_that_of_the_echoes(comm, folder):
    path = folder / "a.sgy"
    if comm.rank == 0:
        echoes(path)
    comm.barrier()
    files = {"survey": str(path), "velocity": str(SPEED), "out": str(folder / "out"), "amplitude": "2.5d"}
    sizes: dict[str, Any] = {
        "dx": 12.5,
        "dz": 6.0,
        "image_z": "200,400",
        "gathers": 8,
        "gather_columns": 3,
        "iterations": 3,
    }
    options = Options(engine="numpy", **files, **sizes, mute="none", frequency=FREQUENCY, avo=True)
    job_numbers(run, options, comm)
    group = group_of(folder, "out")
    gathers, intercept, gradient, *deviations = (
        group[f"avo_{name}"][...]
        for name in ("gathers", "intercept", "gradient", "intercept_deviation", "gradient_deviation")
    )
    assert field_bytes(3, 8, group["z"].size) == 8 * (gathers.size + 4 * intercept.size)
    columns, names = np.searchsorted(group["x"][...], group["gather_x"][...]), ("intercept", "gradient")
    for number, column in enumerate(columns):
        peak = np.abs(group["image"][column]).argmax()
        assert abs(group["z"][peak] - DEPTH) <= 6
        a, b = intercept[number, peak], gradient[number, peak]
        assert b / a == pytest.approx(RATIO, abs=0.15)
        assert 0 < deviations[0][number, peak] < 0.1 * a and 0 < deviations[1][number, peak] < 0.2 * abs(b)
    if comm.rank == 0:
        import segyio

        for name, expected in zip(names, (intercept, gradient), strict=True):
            with segyio.open(str(folder / "out" / f"avo_{name}.sgy"), ignore_geometry=True) as file:
                np.testing.assert_allclose(file.trace.raw[:], np.nan_to_num(expected), rtol=1e-6)
                assert file.attributes(segyio.TraceField.CDP)[:].tolist() == (columns + 1).tolist()


def echoes_of_an_area(path: Path) -> None:
    """Write the echoes of the same reflector on a grid of sources and receivers, which is symmetric in x and y."""
    source, group = (
        np.stack(np.meshgrid(axis, axis, indexing="ij")).reshape(2, -1)
        for axis in (np.linspace(0, 400, 5), np.linspace(50, 350, 4))
    )
    receivers = np.insert(group, 2, 0, axis=0)
    geometry, traces = Geometry(np.insert(source, 2, 0, axis=0), [receivers] * 25, 70, 0.008), []
    for shot in range(25):
        offset = np.hypot(*(group - source[:, [shot]]))[:, None]
        path_length = np.hypot(offset, 2 * DEPTH)
        reflectivity = 1 + RATIO * (offset / path_length) ** 2
        wave = ricker_shape(10 * (geometry.times - path_length / SPEED))
        traces.append((1e4 * reflectivity / path_length * wave).astype(np.float32))
    write_survey(path, geometry, traces, {})


def test_an_area_has_amplitudes_on_all_its_lines(comm, folder, monkeypatch):
    path = folder / "a.sgy"
    if comm.rank == 0:
        echoes_of_an_area(path)
    comm.barrier()
    files = {"survey": str(path), "velocity": str(SPEED), "out": str(folder / "out"), "amplitude": "3d"}
    sizes: dict[str, Any] = {"nx": 9, "ny": 9, "dx": 50.0, "dy": 50.0, "x0": 0.0, "y0": 0.0, "dz": 20.0}
    sizes |= {"image_z": "200,400", "gathers": 3, "gather_columns": 9, "gather_lines": 9, "iterations": 1}
    monkeypatch.setattr(angles, "_TABLE_BYTES", 4 * 41 * 4 * 11 * 25)  # 25 of 81 columns at a time
    options = Options(engine="numpy", **files, **sizes, mute="none", frequency=10.0, avo=True, dtype="float64")
    job_numbers(run, options, comm)
    group = group_of(folder, "out")
    assert np.array_equal(group["gather_x"][...], np.tile(group["x"][...], 9))
    assert np.array_equal(group["gather_y"][...], np.repeat(group["y"][...], 9))
    # All lines: the survey and its gathers are the same with x and y exchanged, and mirrored.
    for name in ("common_image_gathers", "angle_gathers", "avo_gathers", "avo_intercept", "avo_gradient"):
        values = group[name][...]
        values = values.reshape(9, 9, *values.shape[1:])
        same = values.swapaxes(0, 1), values[::-1], values[:, ::-1]
        assert all(np.allclose(values, other, atol=1e-3 * np.nanmax(np.abs(values)), equal_nan=True) for other in same)
        assert np.nanstd(values[4, :5]) > 0
    offsets, image = group["common_image_gathers"][...], group["adjoint_image"][...].reshape(81, -1)
    np.testing.assert_allclose(offsets.sum(axis=1), image, rtol=0, atol=1e-9 * np.abs(image).max())
    picked = np.loadtxt(folder / "out" / "offset_moveout.txt", ndmin=2)
    assert picked.shape[1] == 6 and set(picked[:, 2]) <= set(group["y"][...])
    if comm.rank == 0:
        import segyio

        field = segyio.TraceField
        with segyio.open(str(folder / "out" / "image.sgy"), ignore_geometry=True) as file:
            numbers = [file.attributes(key)[:] for key in (field.INLINE_3D, field.CROSSLINE_3D, field.CDP_Y)]
        assert numbers[0].tolist() == np.repeat(np.arange(9) + 1, 9).tolist()
        with segyio.open(str(folder / "out" / "angle_gathers.sgy"), ignore_geometry=True) as file:
            for key, column in zip((field.INLINE_3D, field.CROSSLINE_3D, field.CDP_Y), numbers, strict=True):
                assert np.array_equal(file.attributes(key)[:], np.repeat(column, 3))
            expected = group["angle_gathers"][...].reshape(243, -1)
            np.testing.assert_allclose(file.trace.raw[:], expected, rtol=1e-6)


@pytest.mark.serial
def test_realisations_of_noise():
    weights = [np.ones((4, 500)), np.full((4, 500), 0.5)]
    parts = realisations(weights, 3, 2.0, 7)
    assert np.std([first for first, _ in parts]) == pytest.approx(2.0, rel=0.05)
    assert np.std([second for _, second in parts]) == pytest.approx(1.0, rel=0.05)
    # Noise of a shot does not depend on the rank that has it.
    assert np.array_equal(parts[5][1], realisations(weights[1:], 4, 2.0, 7)[5][0])
    assert abs(np.corrcoef(parts[0][0].ravel(), parts[1][0].ravel())[0, 1]) < 0.1


@pytest.mark.serial
def test_it_needs_gathers(comm, tmp_path):
    wrong: dict[str, Any]
    for wrong in ({"avo": True}, {"avo": True, "gathers": 2}):
        with pytest.raises(InputError, match="--avo needs --gathers with at least 3 classes"):
            Options(**wrong).check()
    with pytest.raises(InputError, match="--gather-columns needs --gathers"):
        Options(gather_columns=4).check()
    with pytest.raises(InputError, match="--gather-lines needs --gathers"):
        Options(survey=str(small_survey(tmp_path / "a.sgy")), velocity="1500", gather_lines=4).check()
    line = Options(survey=str(tmp_path / "a.sgy"), velocity="1500", gathers=3, gather_lines=4, frequency=20.0)
    with pytest.raises(InputError, match="--gather-lines needs a 3-D survey"):
        recorded(line, comm)


@pytest.mark.serial
def test_the_picture_is_drawn(tmp_path):
    z, angles = 5.0 * np.arange(60), np.array([5.0, 15.0, 25.0])
    gathers = np.random.default_rng(0).normal(size=(2, 3, 60))
    x, avo = np.array([0.0, 100.0]), fit_avo(angles, gathers)
    found = Amplitudes(x, None, z, angles, gathers, avo, gathers[:, 0], False)
    path = found.draw(tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path in Options(gathers=3, avo=True, out=str(tmp_path)).results()
