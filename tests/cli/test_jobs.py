"""The jobs beside the migration as a user runs them: they share its manners."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex

import numpy as np
import pytest
import zarr

from tests.apps.files import stacked_volume
from tests.apps.jobs import COMMON_KEYS
from tests.cli.commands import assert_one_line, collops, numbers_of, under_mpiexec

pytestmark = pytest.mark.serial

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
SMALL = {
    "mdd": shlex.split("--sources 7 --receivers 5 --samples 60 --iterations 4"),
    "poststack": shlex.split("--inlines 5 --crosslines 4 --samples 60 --iterations 4"),
    "reflectivity": shlex.split("--inlines 5 --samples 60 --iterations 4"),
}
RESULT = {"mdd": "response", "poststack": "impedance", "reflectivity": "reflectivity"}
PICTURES = {
    "mdd": ["convergence.png", "image.png"],
    "poststack": ["convergence.png", "image.png", "map.png"],
    "reflectivity": ["convergence.png", "image.png"],
}
ONE_PART = {
    "mdd": (["--fmax", "1"], "1 frequencies"),
    "poststack": (["--inlines", "1"], "1 inlines"),
    "reflectivity": (["--inlines", "1"], "1 traces"),
}


@pytest.mark.parametrize("command", SMALL)
def test_without_files_it_shows_what_it_found(tmp_path, here, command):
    result = here(command, *SMALL[command])
    assert result.returncode == 0, result.stderr
    for word in ("residual", " error", "modelling", "communication", "rest", "image.png", "result.zarr"):
        assert word in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    folder = f"collops-{command}"
    assert sorted(os.listdir(tmp_path / folder)) == [*PICTURES[command], "result.zarr"]
    for picture in PICTURES[command]:
        assert (tmp_path / folder / picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", SMALL)
def test_recorded_data_have_no_error_but_pictures(tmp_path, here, command):
    if command == "mdd":
        for name, traces in (("down", 5), ("up", 3)):
            np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).normal(size=(6, traces, 40)))
        arguments = shlex.split("--down down.npy --up up.npy --interval 4 --spacing 10")
    else:
        stacked_volume(tmp_path / "a.sgy", VALUES)
        arguments = ["--volume", "a.sgy"]
    result = here(command, *arguments, "--iterations", 4)
    assert result.returncode == 0, result.stderr
    assert " error" not in result.stdout
    assert sorted(os.listdir(tmp_path / f"collops-{command}")) == [*PICTURES[command], "result.zarr"]


@needs_mpi
@pytest.mark.parametrize("command", SMALL)
def test_three_ranks_find_the_same_as_one(tmp_path, here, command):
    arguments = [command, *SMALL[command], "--dtype", "float64", "--json", "--quiet"]
    one = numbers_of(here(*arguments, "--out", "one"))
    three = numbers_of(collops(*arguments, "--out", "three", "--ranks", 3, cwd=tmp_path))
    assert (one["ranks"], one["transport"], one["messages_per_iteration"]) == (1, "serial", 0)
    assert (three["ranks"], three["transport"]) == (3, "mpi")
    assert one.keys() == three.keys() >= COMMON_KEYS
    assert three["relative_error"] == pytest.approx(one["relative_error"], rel=1e-6)
    found, expected = (
        zarr.open_group(str(tmp_path / name / "result.zarr"), mode="r")[RESULT[command]][...]
        for name in ("three", "one")
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


@needs_mpi
@pytest.mark.parametrize("command", SMALL)
def test_ranks_without_work_idle_and_say_so_once(tmp_path, command):
    arguments, said = ONE_PART[command]
    result = under_mpiexec(2, command, *SMALL[command], *arguments, "--json", "--quiet", cwd=tmp_path)
    numbers_of(result)
    assert result.stderr == f"collops {command}: warning: {said} for 2 ranks: 1 of them have nothing to do\n"


COMMON = [
    (["--iterations", "0"], ["--iterations"]),
    (["--samples", "0"], ["--samples"]),
    (["--samples", "-5"], ["--samples"]),
    (["--noise", "nan"], ["--noise"]),
    (["--seed", "-1"], ["--seed"]),
    (["--dtype", "int8"], ["--dtype"]),
    (["--engine", "abacus"], ["--engine"]),
    (["--ranks", "0"], ["--ranks"]),
    (["--transport", "pigeon"], ["pigeon"]),
    (["--interval", "0"], ["--interval"]),
    (["--interval", "nan"], ["--interval"]),
    (["--out", "/dev/null"], ["/dev/null", "--out"]),
]
VOLUMES = [
    (["--inlines", "0"], ["--inlines"]),
    (["--crosslines", "-1"], ["--crosslines"]),
    (["--volume", "gone.sgy"], ["--inlines", "leave it out"]),
    (["--strength", "0.1"], ["--strength"]),
    (["--inline-byte", "9"], ["--inline-byte"]),
    (["--wavelet", "ricker"], ["'ricker'"]),
    (["--wavelet", "ricker:0"], ["ricker:0"]),
    (["--wavelet", "ricker:200"], ["200 Hz"]),
    (["--wavelet", "ricker:5"], ["samples, but a trace only 60"]),
    (["--wavelet", "gone.npy"], ["gone.npy", "does not exist"]),
    (["--wavelet", "data"], ["--volume"]),
    (["--inlines", "1000000", "--samples", "1000000"], ["GiB"]),
]
OPTIONS = {
    "mdd": [
        (["--sources", "0"], ["--sources"]),
        (["--receivers", "-2"], ["--receivers"]),
        (["--spacing", "-1"], ["--spacing"]),
        (["--fmax", "0"], ["--fmax"]),
        (["--fmax", "9999"], ["--fmax", "Hz"]),
        (["--damp", "-1"], ["--damp"]),
        (["--interval", "11"], ["--interval", "less than 10 ms"]),
        (["--down", "gone.npy"], ["--down", "--up"]),
        (["--down", "gone.npy", "--up", "gone.npy"], ["--sources"]),
        (["--sources", "100000", "--receivers", "100000"], ["GiB"]),
    ],
    "poststack": [
        *VOLUMES,
        (["--weight", "-1"], ["--weight"]),
        (["--damp", "inf"], ["--damp"]),
        (["--background", "0"], ["--background"]),
        (["--background", "nan"], ["--background"]),
        (["--background", "gone.npy"], ["gone.npy", "does not exist"]),
        (["--background", "rough"], ["rough", "cannot be read"]),
    ],
    "reflectivity": [
        *VOLUMES,
        (["--sparsity", "1.5"], ["--sparsity"]),
        (["--sparsity", "nan"], ["--sparsity"]),
        (["--threshold", "gentle"], ["--threshold"]),
    ],
}


@pytest.mark.parametrize(
    ("command", "arguments", "parts"),
    [(command, *case) for command, cases in OPTIONS.items() for case in [*COMMON, *cases]],
)
def test_options(tmp_path, here, command, arguments, parts):
    assert_one_line(here(command, *SMALL[command], *arguments), *parts, command=command)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


VALUES = np.random.default_rng(0).normal(size=(4, 3, 60)).astype(np.float32)


def _nan(path) -> None:
    values = VALUES.copy()
    values[3, 2, 0] = np.nan
    stacked_volume(path, values)


FILES = {
    "missing": (lambda path: None, ["does not exist"]),
    "empty": (lambda path: path.write_bytes(b""), ["is empty"]),
    "truncated": (lambda path: path.write_bytes(stacked_volume(path, VALUES).read_bytes()[:-100]), ["truncated"]),
    "nan": (_nan, ["nan", "inline 106, crossline 22, sample 1"]),
    "long wavelet": (lambda path: stacked_volume(path, VALUES[..., :20]), ["samples, but a trace only 20"]),
}


@pytest.mark.parametrize("damage", FILES)
def test_a_bad_volume_on_one_rank(tmp_path, here, damage):
    make, parts = FILES[damage]
    make(tmp_path / "a.sgy")
    assert_one_line(here("poststack", "--volume", "a.sgy", "--wavelet", "ricker:30"), *parts, command="poststack")
    assert set(os.listdir(tmp_path)) <= {"a.sgy", "collops-poststack"}


@needs_mpi
@pytest.mark.parametrize("start", [collops, under_mpiexec])
def test_a_bad_sample_that_only_the_last_rank_reads(tmp_path, start):
    _nan(tmp_path / "a.sgy")
    arguments = ["reflectivity", "--volume", "a.sgy"]
    if start is collops:
        result = collops(*arguments, "--ranks", 3, cwd=tmp_path)
    else:
        result = under_mpiexec(3, *arguments, cwd=tmp_path)
    assert_one_line(result, "inline 106, crossline 22, sample 1", command="reflectivity")


def test_fields_without_their_samplings(tmp_path, here):
    for name in ("down", "up"):
        np.save(tmp_path / f"{name}.npy", VALUES)
    assert_one_line(here("mdd", "--down", "down.npy", "--up", "up.npy"), "--interval is needed", command="mdd")
    result = here("mdd", "--down", "down.npy", "--up", "up.npy", "--interval", "4")
    assert_one_line(result, "--spacing is needed", command="mdd")


def test_debug_shows_the_traceback(here):
    result = here("poststack", "--volume", "gone.sgy", "--debug")
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("collops poststack: ")


def test_numbers_are_json_that_any_reader_takes(here):
    result = here("mdd", *SMALL["mdd"], "--json", "--quiet")
    assert json.loads(result.stdout, parse_constant=pytest.fail)["seconds_split"].keys() == {
        "modelling",
        "communication",
        "rest",
    }
