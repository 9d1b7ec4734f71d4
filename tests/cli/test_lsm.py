"""``collops lsm`` as a user runs it: its output, its exit code, and the ranks that it starts."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex

import numpy as np
import pytest
import zarr

from tests.cli.commands import SMALL, collops, numbers_of, under_mpiexec

pytestmark = pytest.mark.serial

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")


def image_of(folder) -> np.ndarray:
    return zarr.open_group(str(folder / "result.zarr"), mode="r")["image"][...]


def test_without_files_it_shows_what_it_found(tmp_path):
    result = collops("lsm", *SMALL, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for word in ("residual", "image error", "modelling", "communication", "rest", "image.png"):
        assert word in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    assert sorted(os.listdir(tmp_path / "collops-lsm")) == [
        "convergence.png",
        "image.png",
        "result.html",
        "result.zarr",
    ]


@needs_mpi
def test_three_ranks_find_the_same_image_however_they_are_started(tmp_path):
    arguments = ["lsm", *SMALL, "--dtype", "float64", "--json"]
    one = numbers_of(collops(*arguments, "--out", "one", cwd=tmp_path))
    own = numbers_of(collops(*arguments, "--out", "own", "--ranks", 3, cwd=tmp_path))
    given = numbers_of(under_mpiexec(3, *arguments, "--out", "given", cwd=tmp_path))
    assert (one["ranks"], one["transport"], one["messages_per_iteration"]) == (1, "serial", 0)
    for numbers in (own, given):
        assert (numbers["ranks"], numbers["transport"]) == (3, "mpi")
        assert 2 <= numbers["messages_per_iteration"] <= 3
    expected = image_of(tmp_path / "one")
    for name in ("own", "given"):
        np.testing.assert_allclose(image_of(tmp_path / name), expected, rtol=0, atol=1e-8 * np.abs(expected).max())


@needs_mpi
def test_ranks_without_shots_idle_and_say_so_once(tmp_path):
    arguments = shlex.split("lsm --nx 31 --nz 21 --shots 2 --receivers 9 --samples 101 --iterations 3")
    result = collops(*arguments, "--ranks", 3, "--json", "--quiet", cwd=tmp_path)
    numbers_of(result)
    assert result.stderr == "collops lsm: warning: 2 shots for 3 ranks: 1 of them have nothing to do\n"


def test_info_tells_what_there_is(tmp_path):
    result = collops("info", cwd=tmp_path)
    assert result.returncode == 0 and "numpy" in result.stdout
    facts = json.loads(collops("info", "--json", cwd=tmp_path).stdout)
    assert facts["choice"]["ranks"] == 1
