"""The applications other than the migration as a user runs them: their behaviour is common to all."""

from __future__ import annotations

import json
import os
import re
import shlex

import numpy as np
import pytest
import zarr

from collops.apps.recipe import _MAX_FIGURE_BYTES
from tests.cli.commands import assert_one_line
from tests.seismic.files import stacked_volume

pytestmark = pytest.mark.serial
SMALL = {
    "mdd": shlex.split("--sources 7 --receivers 5 --samples 60 --iterations 4"),
    "poststack": shlex.split("--inlines 5 --crosslines 4 --samples 60 --iterations 4"),
    "reflectivity": shlex.split("--inlines 5 --samples 60 --iterations 4"),
}
PICTURES = {
    "mdd": ["convergence.png", "image.png"],
    "poststack": ["convergence.png", "image.png", "map.png"],
    "reflectivity": ["convergence.png", "image.png"],
}
SEGY = {
    "mdd": [],
    "poststack": ["impedance", "predicted", "residual"],
    "reflectivity": ["reflectivity", "impedance", "predicted", "residual"],
}


@pytest.mark.parametrize("command", SMALL)
def test_without_files_it_shows_what_it_found(tmp_path, here, command):
    result = here(command, *SMALL[command], "--profile")
    assert result.returncode == 0, result.stderr
    for word in ("residual", " error", "modelling", "communication", "rest", "image.png", "result.zarr"):
        assert word in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    folder = f"collops-{command}"
    assert sorted(os.listdir(tmp_path / folder)) == [*PICTURES[command], "result.zarr"]
    again = here(command, *SMALL[command])
    assert_one_line(again, *PICTURES[command], "result.zarr", "--overwrite", command=command)
    assert sum(path.stat().st_size for path in (tmp_path / folder).iterdir() if path.is_file()) < _MAX_FIGURE_BYTES
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
    written = [*PICTURES[command], "result.zarr", *(f"{name}.sgy" for name in SEGY[command])]
    assert sorted(os.listdir(tmp_path / f"collops-{command}")) == sorted(written)


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
    (["--volume", "gone.sgy"], ["--inlines", "omit it"]),
    (["--strength", "0.1"], ["--strength"]),
    (["--inline-byte", "9"], ["--inline-byte"]),
    (["--wavelet", "ricker"], ["'ricker'"]),
    (["--wavelet", "ricker:0"], ["ricker:0"]),
    (["--wavelet", "ricker:200"], ["200 Hz"]),
    (["--wavelet", "ricker:5"], ["samples, but a trace only 60"]),
    (["--interval", "1e-300"], ["samples, but a trace only 60"]),
    (["--wavelet", "gone.npy"], ["gone.npy", "does not exist"]),
    (["--wavelet", "data"], ["--volume"]),
    (["--inlines", "1000000", "--samples", "1000000"], ["iB"]),
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
        (["--sources", "100000", "--receivers", "100000"], ["iB"]),
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


@pytest.mark.parametrize("version", [2, 3])
def test_a_zarr_with_chunks_of_nothing(tmp_path, here, version):
    """Zarr divides by the size of a chunk."""
    volume = tmp_path / "a.zarr"
    zarr.create_array(str(volume), data=VALUES, chunks=(2, 3, 60), zarr_format=version)
    metadata = volume / ("zarr.json" if version == 3 else ".zarray")
    pattern = r'("chunk_shape"|"chunks"): \[\s*2,'
    metadata.write_text(re.sub(pattern, r"\1: [0,", metadata.read_text()))
    poststack = here("poststack", "--volume", "a.zarr", "--interval", 4, "--wavelet", "ricker:30")
    assert_one_line(poststack, "a.zarr has chunks of (0, 3, 60)", command="poststack")
    fields = here("mdd", "--down", "a.zarr", "--up", "a.zarr", "--interval", 4, "--spacing", 10)
    assert_one_line(fields, "a.zarr has chunks of (0, 3, 60)", command="mdd")


def test_fields_without_their_samplings(tmp_path, here):
    for name in ("down", "up"):
        np.save(tmp_path / f"{name}.npy", VALUES)
    assert_one_line(
        here("mdd", "--down", "down.npy", "--up", "up.npy"), "--down and --up need --interval", command="mdd"
    )
    result = here("mdd", "--down", "down.npy", "--up", "up.npy", "--interval", "4")
    assert_one_line(result, "--down and --up need --spacing", command="mdd")


def test_debug_shows_the_traceback(here):
    result = here("poststack", "--volume", "gone.sgy", "--debug")
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("collops poststack: ")


def test_numbers_are_json_that_any_reader_takes(here):
    result = here("mdd", *SMALL["mdd"], "--json", "--quiet", "--profile")
    assert json.loads(result.stdout, parse_constant=pytest.fail)["seconds_split"].keys() == {
        "modelling",
        "communication",
        "rest",
    }
