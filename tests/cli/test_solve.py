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
    again = ("--points", "100", "--partition", "rows", "--json", "--overwrite")
    two = numbers_of(under_mpiexec(2, "solve", *again, cwd=tmp_path))
    assert one.keys() == two.keys()
    assert one["status"] == two["status"] == "converged"
    assert two["residual_final"] == pytest.approx(one["residual_final"], rel=1e-3)
    assert two["cut"] > one["cut"] == 0
    made = {path.name for path in (tmp_path / "collops-solve").iterdir()}
    assert {"image.png", "convergence.png", "result.zarr"} <= made


def test_a_tolerance_that_is_asked_for_and_not_reached_is_exit_code_3(tmp_path, here):
    def solve(*more: object):
        return here("solve", "--points", "100", "--iterations", "2", "--quiet", "--overwrite", *more)

    short = solve("--tol", "1e-9")
    assert short.returncode == 3 and (tmp_path / "collops-solve" / "result.zarr").is_dir()
    assert short.stderr.startswith("collops solve: the tolerance 1e-09 was not reached in 2 iterations (iteration lim")
    assert len(short.stderr.splitlines()) == 1
    for enough in ((), ("--tol", "0"), ("--tol", "1e-3", "--iterations", "500")):
        result = solve(*enough)
        assert (result.returncode, result.stderr) == (0, "")


@needs_mpi
def test_ranks_end_with_the_same_code(tmp_path):
    arguments = ("--points", "100", "--iterations", "2", "--tol", "1e-9", "--quiet")
    result = under_mpiexec(2, "solve", *arguments, cwd=tmp_path)
    assert result.returncode == 3
    assert result.stderr.count("was not reached") == 1


def test_an_error_is_one_line(here):
    assert_one_line(here("solve", "--matrix", "nothing.mtx"), "nothing.mtx does not exist", command="solve")
