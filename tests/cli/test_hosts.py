"""Applications on two hosts with two ranks each, against one rank."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from tests.cli.commands import SMALL, numbers_of, several_under_mpiexec
from tests.hosts import Hosts

pytestmark = pytest.mark.serial


def test_applications_find_what_one_rank_finds(tmp_path, here):
    lsm = ["lsm", *SMALL, "--dtype", "float64", "--quiet", "--json"]
    solve = ["solve", "--points", 60, "--partition", "rows", "--quiet", "--json"]
    safe = ["--checkpoint", "saved", "--every", "1h"]
    with Hosts(2) as two:
        begun, ended, solved, swept = several_under_mpiexec(
            4,
            [
                [*lsm, *safe, "--out", "begun", "--iterations", 2],
                [*lsm, *safe, "--out", "ended", "--resume"],
                [*solve, "--out", "solved"],
                ["jacobi", "-nx", 30, "-ny", 24, "-niter", 6, "--compare", "--quiet", "--json", "--out", "swept"],
            ],
            tmp_path,
            two.launcher(2),
        )
    assert numbers_of(begun)["iterations"] == 2
    assert (numbers_of(ended)["resumed_from"], numbers_of(ended)["ranks"]) == (2, 4)
    assert numbers_of(here(*lsm, "--out", "one"))["residual_final"] == pytest.approx(
        numbers_of(ended)["residual_final"]
    )
    expected = result(tmp_path, "one", "image")
    np.testing.assert_allclose(result(tmp_path, "ended", "image"), expected, rtol=0, atol=1e-8 * np.abs(expected).max())
    assert numbers_of(solved)["status"] == numbers_of(here(*solve, "--out", "alone"))["status"] == "converged"
    expected = result(tmp_path, "alone", "solution")
    np.testing.assert_allclose(
        result(tmp_path, "solved", "solution"), expected, rtol=0, atol=1e-3 * np.abs(expected).max()
    )
    found = numbers_of(swept)
    assert {each["variant"]: each["differing_points"] for each in found["variants"]} == {"mpi": 0, "mpi_overlap": 0}
    assert found["missing"]["shared"] == "shared needs all ranks on one node"
    assert all(reason == f"{name} runs on one rank" for name, reason in found["missing"].items() if name != "shared")


def result(folder, name, array):
    return zarr.open_group(str(folder / name / "result.zarr"), mode="r")[array][...]
