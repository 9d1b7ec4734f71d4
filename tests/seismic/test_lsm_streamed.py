"""A migration of traces that do not fit into the memory against the same with all of them in it."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest
import segyio

import collops
from collops.errors import InputError
from collops.seismic.lsm import Options, migrate, run
from collops.seismic.lsm.normal import minimise
from collops.seismic.lsm.problem import StreamedShots
from collops.seismic.lsm.setup import recorded
from collops.seismic.lsm.streamed import StreamedSurvey
from collops.seismic.survey import checks
from tests.apps.jobs import group_of, job_numbers, job_of
from tests.seismic.files import random_traces, small_geometry, write_survey

IMAGE: dict[str, Any] = {"nx": 28, "nz": 15, "dx": 25.0, "dz": 20.0, "x0": -50.0}
FIELDS = ("image", "adjoint_image", "residual_norms", "data", "data_residual", "offset", "field_record")


def options_of(comm: Any, folder: Any, *, towed: bool, name: str = "a", **more: Any) -> Options:
    geometry = small_geometry(shots=6, samples=90, towed=towed)
    if comm.rank == 0:
        traces = random_traces(geometry)
        traces[2][1] = 0  # a dead trace
        write_survey(folder / "a.sgy", geometry, traces, {})
    comm.barrier()
    given: dict[str, Any] = {
        "engine": "numpy",
        "survey": str(folder / "a.sgy"),
        "velocity": "1500+0.6z",
        "frequency": 25.0,
        "dtype": "float64",
    }
    return Options(out=str(folder / name), **(given | IMAGE | more))


def both(comm: Any, folder: Any, monkeypatch: Any, *, towed: bool = True, **more: Any) -> tuple[Any, Any]:
    """Run the command with the traces in memory and streamed; return numbers and results of each."""
    found = []
    for name, copies in (("resident", checks._COPIES), ("streamed", 1 << 50)):
        monkeypatch.setattr(checks, "_COPIES", copies)
        numbers = job_numbers(run, options_of(comm, folder, towed=towed, name=name, **more), comm)
        assert numbers["streamed"] == (name == "streamed")
        assert sum("they are read from the file when needed" in note for note in numbers["notes"]) == (
            copies == 1 << 50
        )
        found.append((numbers, group_of(folder, name), folder / name))
    return found[0], found[1]


def traces_of(path: Any) -> tuple[np.ndarray, np.ndarray]:
    with segyio.open(str(path), ignore_geometry=True) as file:
        return file.trace.raw[:], file.attributes(segyio.TraceField.offset)[:]


def assert_equal(found: Any, expected: Any) -> None:
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * size)


@pytest.mark.parametrize(
    ("towed", "more"),
    [
        (
            True,
            {"gain": "agc:0.08", "mute": "1500,0.02", "interval": 5.0, "polarity": "reversed"}
            | {"regularise": "laplacian", "iterations": 1},
        ),
        (False, {"bandpass": "5,60", "trace_weights": "balance", "damp": 0.2, "iterations": 4}),
        pytest.param(
            True,
            {"window": "0.02,0.34", "precondition": "diagonal", "profile": True},
            marks=pytest.mark.serial,
        ),
        pytest.param(
            False,
            {
                "regularise": "dip",
                "weight": 0.1,
                "damp": 0.1,
                "iterations": 6,
                "precondition": "illumination",
                "amplitude": "none",
            },
            marks=pytest.mark.serial,
        ),
    ],
)
def test_results_are_those_with_the_traces_in_memory(comm, folder, monkeypatch, towed, more):
    monkeypatch.setattr("collops.seismic.segy.pieces._PIECE_BYTES", 4200 * comm.size)  # seven traces, five of a shot
    (resident, expected, first), (streamed, found, second) = both(comm, folder, monkeypatch, towed=towed, **more)
    for key in ("iterations", "weight", "traces_left_out", "conditioning"):
        assert streamed[key] == resident[key], key
    for key in ("residual_final", "noise_estimate", "held_out_residual"):
        assert streamed[key] == (None if resident[key] is None else pytest.approx(resident[key], rel=1e-6)), key
    assert resident["traces_left_out"] >= 1 and resident["iterations"] >= 1
    for name in (*FIELDS, *(["held_out_residuals"] if "held_out_residuals" in expected else [])):
        np.testing.assert_allclose(
            found[name][:], expected[name][:], rtol=0, atol=1e-6 * np.abs(expected[name][:]).max(), err_msg=name
        )
    for name in ("predicted", "residual"):
        for one, other in zip(traces_of(second / f"{name}.sgy"), traces_of(first / f"{name}.sgy"), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


@pytest.mark.serial
def test_a_job_resumes_from_its_checkpoint(comm, folder, monkeypatch):
    monkeypatch.setattr(checks, "_COPIES", 1 << 50)
    fixed = {"damp": 0.1, "precondition": "diagonal"}
    whole = job_numbers(run, options_of(comm, folder, towed=True, name="whole", iterations=5, **fixed), comm)
    part = options_of(comm, folder, towed=True, iterations=2, checkpoint=str(folder / "saved"), **fixed)
    job_numbers(run, part, comm)
    resumed = job_numbers(run, dataclasses.replace(part, iterations=5, resume=True), comm)
    assert resumed["resumed_from"] == 2 and resumed["iterations"] == 5
    for name in ("image", "residual_norms"):
        found, expected = (group_of(folder, each)[name][:] for each in ("a", "whole"))
        np.testing.assert_allclose(found, expected, rtol=1e-10, err_msg=name)
    assert resumed["residual_final"] == whole["residual_final"]


@pytest.mark.parametrize(
    "more",
    [
        {"gathers": 4},
        {"uncertainty": 8},
        {"regularise": "tv", "weight": 0.1, "iterations": 3},
        {"split_image": True},
    ],
)
def test_what_needs_all_traces_is_refused_before_any_is_read(comm, folder, monkeypatch, more):
    options = options_of(comm, folder, towed=True, **more)
    monkeypatch.setattr("collops.apps.stages.available_memory", lambda processes: 100_000)
    monkeypatch.setattr("collops.seismic.survey.survey.read_traces", None)
    name = next(iter(more)).replace("_", "-")
    with pytest.raises(InputError, match=rf"can still use 97\.7 KiB: .*, which --{name}.* does not support: omit it"):
        run(job_of(options, comm))


def test_traces_leave_room_for_travel_times_where_they_can_be_streamed(comm, folder, monkeypatch):
    largest = -(-6 // comm.size) * 5 * 90 * 8  # bytes of the traces of a rank
    monkeypatch.setattr("collops.apps.stages.available_memory", lambda processes: 2.5 * checks._COPIES * largest)
    for more, streamed in (({}, True), ({"gathers": 2}, False)):
        problem = recorded(options_of(comm, folder, towed=True, **more), comm)
        assert isinstance(problem.conditioned, StreamedShots) == streamed


@pytest.mark.serial
def test_memory_does_not_grow_with_the_data(comm, folder, monkeypatch):
    """Of 400 kB more for each shot, less than a fifth remains: mostly files of segyio that wait for collection."""
    monkeypatch.setattr(checks, "_COPIES", 1 << 50)
    monkeypatch.setattr("collops.seismic.survey.operator._SAMPLES", 1)  # one shot at a time
    path, image = str(folder / "long.sgy"), IMAGE | {"nx": 20, "nz": 3, "dx": 25.0, "dz": 20.0, "x0": -20.0}

    def peak(shots: int, traced: bool = True) -> int:
        geometry = small_geometry(shots, receivers=100, samples=1000)
        write_survey(folder / "long.sgy", geometry, random_traces(geometry), {})
        options = Options(survey=path, velocity="1500", frequency=25.0, iterations=2, damp=0.1, engine="numpy", **image)
        job = job_of(options, comm)
        if traced:
            tracemalloc.start()
        problem = recorded(options, comm, job.engine)
        stream = StreamedSurvey(job, problem, migrate.kirchhoff(job, problem))
        stream.explain(stream.invert().image)
        assert sum(1 for _ in stream.compared()) == shots
        predicted, residual = stream.rows()
        assert predicted[0:100].any() and residual[100 * shots - 1 : 100 * shots].any()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1, traced=False)  # what is imported and compiled
    few, many = peak(3), peak(9)
    assert many - few < 6 * 100 * 1000 * 4 / 5


@pytest.mark.parametrize(("data", "operator"), [(2.0**-110, 1.0), (2.0**-110, 2.0**-40), (2.0**90, 2.0**80)])
def test_normal_equations_of_very_small_and_large_traces(comm, data, operator):
    """Powers of two change the scale of the solution and of the energy that it explains, and no digit of them."""
    diagonal = np.arange(1, 8, dtype="f4")
    right = np.array([3, -1, 2, 5, -4, 1, 2], "f4")

    def solved(data, operator):
        A = collops.Diagonal(diagonal * np.float32(operator), comm=comm)
        y = collops.from_global(right * np.float32(data), comm=comm)
        return minimise(A, y, damp=0.5 * operator**0.5, M=None, niter=4, progress=False)

    plain, scaled = solved(1.0, 1.0), solved(data, operator)
    assert scaled.iterations == plain.iterations == 4
    np.testing.assert_array_equal(scaled.x.gather(), plain.x.gather() * np.float32(data / operator))
    energy = data * data / operator
    np.testing.assert_allclose(scaled.details["explained"], plain.details["explained"] * energy, rtol=1e-6)
