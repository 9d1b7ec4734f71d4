"""The page that shows a migration: what its script gets is what was found."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pytest

from collops.apps.lsm import Options, run
from collops.apps.lsm.migrate import kirchhoff, model_traces, some_gathers
from collops.apps.lsm.page import _convergence, _packed, write_page
from collops.apps.lsm.problem import synthetic
from tests.apps.jobs import group_of, job_numbers, job_of

pytestmark = pytest.mark.usefixtures("with_pictures")

SIZES: dict[str, Any] = {"nx": 31, "nz": 21, "shots": 5, "receivers": 9, "samples": 101, "dtype": "float64"}


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    kind = {1: "<i1", 2: "<i2"}[packed["bytes"]]
    return packed["middle"] + packed["scale"] * np.frombuffer(base64.b64decode(packed["values"]), kind)


def test_the_page_shows_the_contents_of_the_group(comm, folder):
    job_numbers(run, Options(**SIZES, iterations=3, engine="numpy", out=str(folder / "out")), comm)
    text = (folder / "out" / "result.html").read_text()
    assert "http" not in text.replace("http-equiv", "")
    assert len(text) < 500_000
    group = group_of(folder, "out")
    (payload,) = re.findall(r'<script type="application/json" id="fields">(.*?)</script>', text)
    content = json.loads(payload)
    for name, limit in (("image", 2e-5), ("truth", 2e-5), ("adjoint_image", 2e-5), ("velocity", 2e-5)):
        wanted = group[name][...].ravel()
        error = np.abs(unpacked(content["images"][name]) - wanted).max()
        assert error <= limit * np.abs(wanted).max()
    assert content["x"] == group["x"][...].tolist()
    data, residual = (group[name][...] for name in ("data", "data_residual"))
    assert data.shape == residual.shape == (3, 9, 101)
    assert np.abs(unpacked(content["data"]) - data.ravel()).max() <= 0.005 * np.abs(data).max()
    # The residual is smaller than the data, but not zero: there is noise.
    assert 0 < np.linalg.norm(residual) < 0.9 * np.linalg.norm(data)
    assert group["seconds"].shape == (comm.size, len(group.attrs["kinds"]))
    assert text.count('<li><span class="name">rank') == comm.size


def test_gathers_are_those_of_their_shots(comm):
    job = job_of(Options(**SIZES), comm)
    problem = synthetic(job.options, comm)
    operator = kirchhoff(job, problem)
    truth = problem.truth
    assert truth is not None
    traces = model_traces(job, problem, operator)
    # Every shot is told from others by its number: what the true image leaves unexplained is that number.
    problem.survey.traces = [shot + number for shot, number in zip(traces, problem.survey.shots, strict=True)]
    gathers = some_gathers(problem.survey, traces)
    names = ("shot", "time", "offset", "data", "data_residual")
    shots, times, offsets, data, residuals = (gathers[name].values for name in names)
    assert shots.tolist() == [1, 2, 3]
    assert offsets.shape == (3, 9)
    assert times[1] - times[0] == pytest.approx(problem.survey.geometry.interval)
    if comm.rank > 0:
        assert data.shape == (0, 9, 101)
        return
    for shot, residual in zip(shots, residuals, strict=True):
        np.testing.assert_allclose(residual, shot, atol=1e-5)


def test_one_shot_with_few_receivers(comm):
    job = job_of(Options(**(SIZES | {"shots": 1, "receivers": 2})), comm)
    problem = synthetic(job.options, comm)
    operator = kirchhoff(job, problem)
    traces = model_traces(job, problem, operator)
    problem.survey.traces = traces
    gathers = some_gathers(problem.survey, [np.zeros_like(shot) for shot in traces])
    assert gathers["shot"].values.tolist() == [0]
    assert gathers["data"].values.shape == ((1, 2, 101) if comm.rank == 0 else (0, 2, 101))
    np.testing.assert_array_equal(gathers["data_residual"].values, gathers["data"].values)


@pytest.mark.serial
@pytest.mark.parametrize(
    "values", [np.array([-3.0, 0.0, 2.0]), np.array([1500.0, 1600.0]), np.zeros(4), np.empty(0), np.array([7.0])]
)
def test_packing(values: np.ndarray) -> None:
    packed = _packed(values)
    json.dumps(packed, allow_nan=False)
    span = np.ptp(values) if values.size else 0.0
    np.testing.assert_allclose(unpacked(packed), values, atol=span / 30_000 + 1e-12)
    if 0.0 in values:
        assert unpacked(packed)[list(values).index(0.0)] == 0.0


@pytest.mark.serial
@pytest.mark.parametrize(("iterations", "shown"), [(0, 1), (1, 2), (499, 500), (100_000, 499)])
def test_however_many_iterations_the_page_stays_small(iterations: int, shown: int) -> None:
    line = _convergence(np.geomspace(1.0, 0.5, iterations + 1))
    assert len(set(re.findall(r"iteration \d+, ", line))) == shown
    assert f"iteration {iterations}, " in line


@pytest.mark.serial
def test_a_folder_without_results_is_left_alone(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        write_page(tmp_path)
    assert list(tmp_path.iterdir()) == []
