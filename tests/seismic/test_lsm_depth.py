"""Images of recorded surveys are at the right depth by default: zero-phase echoes of exact formulas, on files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic import lsm
from collops.seismic.signals import ricker_shape
from collops.seismic.survey import Geometry
from tests.apps.jobs import group_of, job_numbers
from tests.seismic.files import write_survey

SPEED, FREQUENCY, INTERVAL, DEPTH = 2000.0, 20.0, 0.004, 312.0
WAVELENGTH = SPEED / FREQUENCY


def echoes(geometry: Geometry, depth: float, dip: float = 0.0) -> list[np.ndarray]:
    """Return zero-phase echoes of a plane, at this depth below x = 0, from the mirror images of the sources."""
    normal = np.array([np.sin(dip), np.cos(dip)])
    normal = normal if geometry.dims == 2 else np.array([0.0, *normal])
    traces = []
    for source, receivers in zip(geometry.sources.T, geometry.receivers, strict=True):
        mirrored = source + 2 * (depth * np.cos(dip) - source @ normal) * normal
        path = np.linalg.norm(receivers.T - mirrored, axis=1)
        times = geometry.times - path[:, None] / SPEED
        traces.append((300 / path[:, None] * ricker_shape(FREQUENCY * times)).astype(np.float32))
    return traces


def line(samples: int = 200) -> Geometry:
    x = 20.0 * np.arange(61)
    sources = np.stack([x[5:-5:5], np.zeros(len(x[5:-5:5]))])
    return Geometry(sources, [np.stack([x, np.zeros(61)])] * sources.shape[1], samples, INTERVAL)


def area() -> Geometry:
    y, x = (axis.ravel() for axis in np.meshgrid(50.0 * np.arange(12), 50.0 * np.arange(12), indexing="ij"))
    receivers = np.stack([y, x, np.zeros(144)])
    return Geometry(receivers[:, 13::16].copy(), [receivers] * len(range(13, 144, 16)), 110, INTERVAL)


def migrated(comm: Any, folder: Path, geometry: Geometry, traces: list[np.ndarray], **options: Any) -> dict[str, Any]:
    if comm.rank == 0:
        write_survey(folder / "a.sgy", geometry, traces, {})
    comm.barrier()
    given = {"survey": str(folder / "a.sgy"), "velocity": f"{SPEED:g}", "out": str(folder / "out"), "engine": "numpy"}
    return job_numbers(lsm.run, lsm.Options(**given | {"mute": "none", "dz": 4.0, "nz": 101} | options), comm)


def peak(column: np.ndarray, dz: float) -> float:
    """Return the depth of the largest positive value, from a parabola through it and its neighbours."""
    row = int(column.argmax())
    before, at, after = column[row - 1 : row + 2]
    return dz * (row + 0.5 * (before - after) / (before - 2 * at + after))


@pytest.mark.parametrize("field", ["adjoint_image", "image"])
def test_a_plane_is_imaged_at_its_depth(comm, folder, field):
    traces = echoes(line(), DEPTH)
    said = migrated(comm, folder, line(), traces, iterations=1 if field == "adjoint_image" else 4)
    assert (said["amplitude"], said["max_dip"]) == ("2.5d", 60.0)
    columns = group_of(folder, "out")[field][...]
    middle = columns[len(columns) // 2 - 5 : len(columns) // 2 + 5].mean(axis=0)
    assert abs(peak(middle, 4.0) - DEPTH) < WAVELENGTH / 80
    migrated(comm, folder, line(), traces, iterations=1, amplitude="none")
    columns = group_of(folder, "out")["adjoint_image"][...]
    shallow = DEPTH - peak(columns[len(columns) // 2 - 5 : len(columns) // 2 + 5].mean(axis=0), 4.0)
    assert shallow == pytest.approx(WAVELENGTH / 16, rel=0.3)  # what the default was, and what its note says


def test_a_dipping_plane_is_imaged_at_its_depth(comm, folder):
    dip = np.radians(20.0)
    migrated(comm, folder, line(), echoes(line(), 150.0, -dip), iterations=1)
    group = group_of(folder, "out")
    image, x = group["adjoint_image"][...], group["x"][...]
    for at in (400.0, 500.0, 600.0):
        column = int(np.abs(x - at).argmin())
        expected = 150.0 + x[column] * np.tan(dip)
        assert abs(peak(image[column], 4.0) - expected) < WAVELENGTH / 40 / np.cos(dip)


def test_a_plane_below_an_area_is_imaged_at_its_depth(comm, folder):
    said = migrated(comm, folder, area(), echoes(area(), 200.0), iterations=1, dx=50.0, dy=50.0, nz=66)
    assert said["amplitude"] == "3d"
    image = group_of(folder, "out")["adjoint_image"][...]
    ny, nx = np.array(image.shape[:2]) // 2
    assert abs(peak(image[ny - 1 : ny + 2, nx - 1 : nx + 2].mean(axis=(0, 1)), 4.0) - 200.0) < WAVELENGTH / 40


def test_limits_are_those_that_the_page_derives(comm, folder):
    traces = echoes(line(), DEPTH)
    said = migrated(comm, folder, line(), traces, iterations=1)
    half = np.abs(np.concatenate([line().offsets(shot) for shot in range(line().shots)])).max() / 2
    assert said["aperture"] == np.ceil(400 * np.sin(np.radians(60)) + half)
    assert any(f"2.5d), up to {said['aperture']:g} m" in note and "60 degrees" in note for note in said["notes"])
    said = migrated(comm, folder, line(), traces, iterations=1, max_dip=30.0, aperture=700.0)
    assert (said["amplitude"], said["aperture"], said["max_dip"]) == ("2.5d", 700.0, 30.0)
    said = migrated(comm, folder, line(), traces, iterations=1, amplitude="2d")
    assert (said["amplitude"], said["aperture"], said["max_dip"]) == ("2d", None, None)
    said = migrated(comm, folder, line(), traces, iterations=1, amplitude="none", time_tolerance=1e-3)
    assert said["amplitude"] == "none"
    assert any("by a formula: the tolerance of their errors does not apply" in note for note in said["notes"])
    assert any("a sixteenth of a wavelength too shallow" in note for note in said["notes"])
    with pytest.raises(InputError, match=r"illumination does not support --amplitude.* or --amplitude none"):
        migrated(comm, folder, line(), traces, iterations=1, precondition="illumination")
    with pytest.raises(InputError, match=r"--time-tolerance does not support --amplitude and --max-dip"):
        migrated(comm, folder, line(), traces, iterations=1, time_tolerance=1e-4)


def test_synthetic_surveys_keep_the_amplitudes_that_they_were_made_with(comm, folder):
    small = {"nx": 31, "nz": 21, "shots": 3, "receivers": 7, "samples": 60, "iterations": 1, "engine": "numpy"}
    for amplitude in (None, "2d"):
        written = str(folder / f"{amplitude}.sgy")
        options = lsm.Options(**small, amplitude=amplitude, write_survey=written, out=str(folder / "made"))
        assert job_numbers(lsm.run, options, comm)["amplitude"] == (amplitude or "none")
        again = lsm.Options(survey=written, iterations=1, engine="numpy", out=str(folder / "again"))
        said = job_numbers(lsm.run, again, comm)
        assert (said["amplitude"], said["aperture"], said["max_dip"]) == (amplitude or "none", None, None)
        assert not any("too shallow" in note for note in said["notes"])
        images = [group_of(folder, name)["image"][...] for name in ("made", "again")]
        np.testing.assert_allclose(*images, rtol=0, atol=1e-5 * np.abs(images[0]).max())
