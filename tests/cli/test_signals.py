"""Signals to a job: one exit code in every phase, one sentence, and a checkpoint where there is something to save.

``python -m tests.cli.phases`` tries all phases, signals and launchers.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys

import pytest

from collops.apps.interruption import INTERRUPTED, TO_BE_RESUMED
from tests.cli.phases import end

pytestmark = pytest.mark.serial

on_ranks = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed")


@on_ranks
@pytest.mark.parametrize("phase", ["imports", "set-up of MPI", "travel times"])
def test_there_is_nothing_to_save_during_set_up(tmp_path, phase):
    ended = end(phase, signal.SIGTERM, "command", tmp_path)
    assert ended.code == TO_BE_RESUMED, ended
    assert "nothing was saved" in ended.said
    assert ended.said.count("collops lsm: ") == 1
    assert not ended.checkpoints and not ended.results


@on_ranks
def test_a_signal_to_one_rank_ends_all(tmp_path):
    ended = end("operator", signal.SIGUSR1, "rank", tmp_path)
    assert ended.code == TO_BE_RESUMED, ended
    assert "SIGUSR1 ended the job" in ended.said


@on_ranks
def test_a_signal_during_iterations_writes_a_checkpoint(tmp_path):
    ended = end("solver", signal.SIGTERM, "command", tmp_path)
    assert ended.code == TO_BE_RESUMED, ended
    assert f"resume from {tmp_path / 'checkpoints'}" in ended.said and len(ended.said.splitlines()) == 1
    assert ended.checkpoints == 1 and not ended.results


@on_ranks
@pytest.mark.parametrize("phase", ["results", "end"])
def test_a_job_with_a_solution_is_complete(tmp_path, phase):
    ended = end(phase, signal.SIGTERM, "command", tmp_path)
    assert ended.code == 0, ended
    assert ended.said == ""
    assert ended.checkpoints == 1 and ended.results


@on_ranks
def test_a_signal_ends_samples_of_the_posterior_and_the_image_is_written(tmp_path):
    ended = end("samples", signal.SIGUSR1, "rank", tmp_path, checkpoint=False)
    assert ended.code == 0, ended
    assert "samples of the posterior were ended by a signal" in ended.said and len(ended.said.splitlines()) == 1
    assert ended.results


@pytest.mark.parametrize("checkpoint", [True, False])
def test_ctrl_c_writes_a_checkpoint_if_one_is_asked_for(tmp_path, checkpoint):
    ended = end("solver", signal.SIGINT, "command", tmp_path, ranks=1, checkpoint=checkpoint)
    assert ended.code == INTERRUPTED, ended
    assert (f"resume from {tmp_path / 'checkpoints'}" if checkpoint else "nothing was saved") in ended.said
    assert len(ended.said.splitlines()) == 1 and ended.checkpoints == checkpoint


@on_ranks
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_second_ctrl_c_does_not_wait_for_files(tmp_path, ranks):
    ended = end("a chunk", signal.SIGINT, "command", tmp_path, ranks=ranks, timeout=200, times=2)
    assert ended.code == INTERRUPTED, ended
    assert ended.seconds < 30


@on_ranks
def test_a_file_system_that_does_not_answer_ends_all_ranks(tmp_path):
    """Zarr's thread waits in it, and Python would wait for this thread at its end."""
    ended = end("a chunk", 0, "command", tmp_path, timeout=15)
    assert ended.code == 2, ended
    assert "the file system does not respond within 13.5 s" in ended.said
    assert ended.seconds < 30


def test_handlers_of_a_program_that_calls_the_command_line_stay():
    program = """
import signal
from collops.cli import main

before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
try:
    main(["--version"])
except SystemExit:
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)] == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
