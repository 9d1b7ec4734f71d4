"""``collops solve`` as a user runs it."""

from __future__ import annotations

import importlib.util

import pytest

from tests.cli.commands import assert_one_line, numbers_of, under_mpiexec

pytestmark = pytest.mark.serial

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")


@needs_mpi
def test_without_files_it_solves_a_mesh(tmp_path, here):
    one = numbers_of(here("solve", "--points", "100", "--partition", "rows", "--json", "--quiet"))
    two = numbers_of(under_mpiexec(2, "solve", "--points", "100", "--partition", "rows", "--json", cwd=tmp_path))
    assert one.keys() == two.keys()
    assert one["status"] == two["status"] == "converged"
    assert two["residual_final"] == pytest.approx(one["residual_final"], rel=1e-3)
    assert two["cut"] > one["cut"] == 0
    made = {path.name for path in (tmp_path / "collops-solve").iterdir()}
    assert {"image.png", "convergence.png", "result.zarr"} <= made


def test_an_error_is_one_line(here):
    assert_one_line(here("solve", "--matrix", "nothing.mtx"), "nothing.mtx does not exist", command="solve")
