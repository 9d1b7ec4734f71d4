"""``collops jacobi`` as a user runs it: the options with one dash, the output, the exit code."""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

from collops.comm.nccl import NO_P2P
from collops.errors import InputError
from tests.cli.commands import assert_one_line, collops

pytestmark = pytest.mark.serial
needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")
LINE = "nccl, 30, 24, 6, 1, 2, 1, 0.000060, 0.000100"
SMALL = ("-nx", 30, "-ny", 24, "-niter", 6, "--engine", "numpy")


@needs_mpi
def test_csv_line_on_two_ranks(tmp_path):
    result = collops("jacobi", *SMALL, "--ranks", 2, "-nccheck", 2, "-csv", "--variant", "shared", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    fields = result.stdout.strip().split(", ")
    assert fields[:7] == ["shared", "30", "24", "6", "2", "2", "1"]
    assert not list(tmp_path.iterdir())


def test_json_is_all_there_is(here):
    result = here("jacobi", *SMALL, "--json", "--quiet")
    assert result.returncode == 0, result.stderr
    numbers = json.loads(result.stdout)
    assert numbers["variants"][0]["differing_points"] == 0
    assert numbers["problem"]["nx"] == 30
    assert result.stderr == ""


def test_a_tolerance_that_is_asked_for_and_not_reached_is_exit_code_3(here):
    short = here("jacobi", *SMALL, "-csv", "--tolerance", "1e-6")
    assert short.returncode == 3
    assert "the tolerance 1e-06 was not reached in 6 iterations" in short.stderr
    assert here("jacobi", *SMALL, "-csv", "--tolerance", "10").returncode == 0
    assert here("jacobi", *SMALL, "-csv").returncode == 0


def test_compare_prints_a_table(tmp_path, here):
    result = here("jacobi", *SMALL, "--compare", "--profile", "--peer", f"theirs=sh -c 'echo {LINE}'", "--out", "out")
    assert result.returncode == 0, result.stderr
    for word in ("mpi_overlap", "shared", "efficiency", "theirs (peer)", "jacobi.png", "first call", "in 30", "idle"):
        assert word in result.stdout
    assert (tmp_path / "out" / "jacobi.png").is_file()


def test_nccl_is_told_of_nop2p_before_the_ranks_connect(here, monkeypatch):
    def connect(transport):
        raise InputError(f"{NO_P2P}={os.environ[NO_P2P]}")

    monkeypatch.setattr("collops.cli.command.world", connect)
    for option, value in (((), "0"), (("-nop2p",), "1")):
        monkeypatch.setenv(NO_P2P, "0")
        assert f"{NO_P2P}={value}" in here("jacobi", *SMALL, *option).stderr


@pytest.mark.parametrize("wrong", [("-nx", 1), ("--variant", "peer"), ("--process-grid", "2x2"), ("-nz", 3)])
def test_bad_input_is_one_line(here, wrong):
    assert_one_line(here("jacobi", *SMALL, *wrong), command="jacobi")
