"""Bad input: one line that says what is wrong, exit code 2, on any number of ranks, and nothing written."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from collops.cli.launch import command_for
from tests.cli.commands import SMALL, assert_one_line, collops, environment, run
from tests.seismic.files import set_header, set_samples, small_survey

pytestmark = pytest.mark.serial

MPI = importlib.util.find_spec("mpi4py") is not None
VELOCITY = ("--velocity", "1500+0.6z")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--nx", "0"], ["--nx"]),
        (["--shots", "-3"], ["--shots"]),
        (["--receivers", "0"], ["--receivers"]),
        (["--samples", "1"], ["--samples"]),
        (["--samples", "4"], ["at least 5 samples", "not 4"]),
        (["--iterations", "0"], ["--iterations"]),
        (["--ranks", "0"], ["--ranks"]),
        (["--ranks", "-1"], ["--ranks"]),
        (["--ranks", "two"], ["--ranks"]),
        (["--transport", "pigeon"], ["transport", "pigeon"]),
        (["--engine", "abacus"], ["--engine"]),
        (["--engine", "cupy"], ["cupy"]),
        (["--dtype", "int8"], ["--dtype"]),
        (["--mode", "guess"], ["--mode"]),
        (["--mode", "analytic", "--velocity", "1500-0.1z"], ["--mode", "constant or increases"]),
        (["--noise", "nan"], ["--noise"]),
        (["--damp", "-1"], ["--damp"]),
        (["--dx", "inf"], ["--dx"]),
        (["--frequency", "500"], ["--frequency"]),
        (["--frequency", "0.001"], ["--frequency"]),
        (["--velocity", "fast"], ["fast"]),
        (["--velocity", "gone.npy"], ["gone.npy", "does not exist"]),
        (["--velocity", "gone.sgy"], ["gone.sgy", "does not exist"]),
        (["--survey", "gone.sgy", "--shots", "3"], ["--shots"]),
        (["--inline", "7"], ["--inline"]),
        (["--nx", "1000000", "--nz", "1000000"], ["iB"]),
        (["--out", "/dev/null"], ["/dev/null", "--out"]),
        (["--out", "/dev/null/x"], ["/dev/null/x", "--out"]),
        (["--write-survey", "no/such/folder.sgy"], ["no/such"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
)
def test_options(tmp_path, here, arguments, parts):
    if arguments == ["--engine", "cupy"] and importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed here")
    assert_one_line(here("lsm", *SMALL, *arguments), *parts)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


FILES = {
    "missing": (Path.unlink, ["does not exist"]),
    "empty": (lambda path: path.write_bytes(b""), ["is empty"]),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), ["truncated"]),
    "not SEG-Y": (lambda path: path.write_text("no traces here\n" * 900), ["cannot be read as SEG-Y"]),
    "nan": (lambda path: set_samples(path, 14, np.nan), ["shot 3, trace 5, sample 1", "nan"]),
    "mixed": (lambda path: set_header(path, 3, 117, 999), ["mixes sample intervals"]),
}


@pytest.mark.parametrize("damage", FILES)
def test_a_bad_survey_on_one_rank(tmp_path, here, damage):
    path = small_survey(tmp_path / "a.sgy")
    make, parts = FILES[damage]
    make(path)
    assert_one_line(here("lsm", "--survey", path, *VELOCITY), *parts)
    assert set(os.listdir(tmp_path)) <= {"a.sgy", "collops-lsm"}


@pytest.mark.skipif(not MPI, reason="mpi4py is not installed")
def test_a_bad_survey_on_three_ranks(tmp_path):
    make, parts = FILES["nan"]
    make(small_survey(tmp_path / "a.sgy"))  # only the last rank reads the trace that is not a number
    assert_one_line(collops("lsm", "--survey", "a.sgy", *VELOCITY, "--ranks", 3, cwd=tmp_path), *parts)


@pytest.mark.skipif(not MPI, reason="mpi4py is not installed")
def test_a_file_that_one_host_lacks(tmp_path):
    """Each rank in a folder of its own stands for hosts that do not share one."""
    for rank in range(2):
        (tmp_path / f"{rank}").mkdir()
    np.save(tmp_path / "0" / "v.npy", np.full((31, 21), 1500.0))
    command = command_for(2, ["lsm", *SMALL, "--velocity", "v.npy"], environment())
    there = ["sh", "-c", 'cd ${PMI_RANK:-$OMPI_COMM_WORLD_RANK} && exec "$@"', "sh"]
    done = run([*command[: -len(SMALL) - 6], *there, *command[-len(SMALL) - 6 :]], tmp_path, 60)
    assert_one_line(done, "rank 1: v.npy does not exist")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--nx", "5", "--dx", "10"], ["outside the model"]),
        (["--x0", "200"], ["outside the model"]),
        (["--dx", "1e-300"], ["--dx", "too fine"]),
        (["--dz", "1e-300"], ["--dz", "too fine"]),
        (["--dx", "1e-5", "--dz", "1e-5"], ["iB"]),
        (["--velocity", "1500+1e308z"], ["with a finite number"]),
        (["--velocity", "1e308"], ["metres per second"]),
        ([], ["--velocity"]),
        (["--velocity", "100-1z", "--nz", "30", "--dz", "10"], ["positive"]),
    ],
)
def test_a_survey_that_does_not_fit_the_model(tmp_path, here, arguments, parts):
    path = small_survey(tmp_path / "a.sgy")
    velocity = () if "--velocity" in arguments or not arguments else VELOCITY
    assert_one_line(here("lsm", "--survey", path, *velocity, *arguments), *parts)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0])
def test_a_velocity_that_is_none(tmp_path, here, value):
    velocity = np.full((31, 21), 1500.0)
    velocity[7, 3] = value
    np.save(tmp_path / "v.npy", velocity)
    assert_one_line(here("lsm", *SMALL, "--velocity", "v.npy"), "v.npy", "column 7, row 3")


def test_debug_shows_the_traceback(here):
    result = here("lsm", "--survey", "gone.sgy", *VELOCITY, "--debug")
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("collops lsm: ")


def test_a_command_that_is_none(here):
    result = here("lsmm")
    assert result.returncode == 2
    assert result.stderr.startswith("collops: ") and len(result.stderr.splitlines()) == 1


def test_an_interrupt_before_the_command_begins(here, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["collops.cli.main"], "application", lambda: interrupted)
    result = here("lsm")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
