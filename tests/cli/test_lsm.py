"""``collops lsm`` as a user runs it: its output, its exit code, and the ranks that it starts."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex

import numpy as np
import pytest
import zarr

from collops.apps.recipe import _MAX_FIGURE_BYTES
from tests.cli.commands import SMALL, assert_one_line, collops, numbers_of
from tests.comm import without_mpi

pytestmark = pytest.mark.serial

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")


def image_of(folder) -> np.ndarray:
    return zarr.open_group(str(folder / "result.zarr"), mode="r")["image"][...]


def test_without_files_it_shows_what_it_found(tmp_path, here):
    result = here("lsm", *SMALL)
    assert result.returncode == 0, result.stderr
    for word in ("residual", "image error", "ms per iteration", "image.png"):
        assert word in result.stdout
    for word in ("modelling", "communication", "messages "):
        assert word not in result.stdout.replace("messages by", "")
    assert "\x1b" not in result.stdout + result.stderr
    assert sorted(os.listdir(tmp_path / "collops-lsm")) == [
        "convergence.png",
        "image.png",
        "result.html",
        "result.zarr",
        "shots",
    ]
    again = here("lsm", *SMALL)
    assert_one_line(again, "image.png", "convergence.png", "result.html", "result.zarr", "--overwrite")
    assert (
        sum(path.stat().st_size for path in (tmp_path / "collops-lsm").iterdir() if path.is_file()) < _MAX_FIGURE_BYTES
    )


def test_a_profile_shows_where_the_time_goes(here):
    result = here("lsm", *SMALL, "--profile")
    assert result.returncode == 0, result.stderr
    for word in ("messages", "modelling", "communication", "rest"):
        assert word in result.stdout
    numbers = numbers_of(here("lsm", *SMALL, "--profile", "--json", "--quiet", "--overwrite"))
    split = numbers["seconds_split"]
    assert split.keys() == {"modelling", "communication", "rest"}
    assert sum(part["max"] for part in split.values()) == pytest.approx(numbers["seconds_per_iteration"])


@needs_mpi
def test_ranks_that_it_starts_find_the_same_image(tmp_path, here):
    # Two shots for three ranks: one has nothing to do, and says so.
    arguments = shlex.split("lsm --nx 31 --nz 21 --shots 2 --receivers 9 --samples 101 --iterations 3")
    arguments += ["--dtype", "float64", "--json", "--quiet", "--profile"]
    one = numbers_of(here(*arguments, "--out", "one"))
    result = collops(*arguments, "--out", "three", "--ranks", 3, cwd=tmp_path)
    three = numbers_of(result)
    assert result.stderr == "collops lsm: warning: 2 shots for 3 ranks: 1 of the ranks are idle\n"
    assert (one["ranks"], one["transport"], one["messages_per_iteration"]) == (1, "serial", 0)
    assert (three["ranks"], three["transport"]) == (3, "mpi")
    assert 2 <= three["messages_per_iteration"] <= 3
    expected = image_of(tmp_path / "one")
    np.testing.assert_allclose(image_of(tmp_path / "three"), expected, rtol=0, atol=1e-8 * np.abs(expected).max())


def test_info_tells_what_there_is(here):
    result = here("info")
    assert result.returncode == 0 and "numpy" in result.stdout
    facts = json.loads(here("info", "--json").stdout)
    assert facts["choice"]["ranks"] == 1


def test_one_rank_resumes_what_ranks_without_mpi_have_saved(tmp_path, here):
    program = "from collops.__main__ import main\nmain()"
    saved = ["--checkpoint", str(tmp_path / "saved"), "--quiet", "--out"]
    arguments = ["lsm", *SMALL[:-1], "3", *saved, str(tmp_path / "several")]
    for code, _, err in without_mpi.run(program, without_mpi.meeting(2), range(2), *arguments):
        assert (code, err) == (0, "")
    assert here("lsm", *SMALL, *saved, "resumed", "--resume").returncode == 0
    assert here("lsm", *SMALL, "--quiet", "--out", "one").returncode == 0
    one = image_of(tmp_path / "one")
    np.testing.assert_allclose(image_of(tmp_path / "resumed"), one, rtol=0, atol=1e-4 * np.abs(one).max())
