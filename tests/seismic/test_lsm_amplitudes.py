"""Intercept and gradient of a migration, of echoes whose amplitudes are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic import fit_avo
from collops.seismic.lsm import Options, run
from collops.seismic.lsm.amplitudes import Amplitudes, field_bytes, realisations
from collops.seismic.signals import ricker_shape
from collops.seismic.survey import Geometry
from tests.apps.jobs import group_of, job_numbers
from tests.seismic.files import write_survey

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
def test_it_needs_gathers():
    wrong: dict[str, Any]
    for wrong in ({"avo": True}, {"avo": True, "gathers": 2}):
        with pytest.raises(InputError, match="--avo needs --gathers with at least 3 classes"):
            Options(**wrong).check()
    with pytest.raises(InputError, match="--gather-columns needs --gathers"):
        Options(gather_columns=4).check()


@pytest.mark.serial
def test_the_picture_is_drawn(tmp_path):
    z, angles = 5.0 * np.arange(60), np.array([5.0, 15.0, 25.0])
    gathers = np.random.default_rng(0).normal(size=(2, 3, 60))
    x, avo = np.array([0.0, 100.0]), fit_avo(angles, gathers)
    found = Amplitudes(x, z, angles, gathers, avo, gathers[:, 0], False)
    path = found.draw(tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path in Options(gathers=3, avo=True, out=str(tmp_path)).results()
