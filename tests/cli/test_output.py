"""Output that cannot be written, and where escape codes go: no traceback, one sentence, and an exit code."""

from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import SMALL, environment

pytestmark = pytest.mark.serial

COMMAND = [sys.executable, "-m", "collops"]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def closed_pipe() -> int:
    """Return the end of a pipe from which nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def ended(arguments, cwd, **streams) -> tuple[int, str]:
    """Run a command; return its exit code and what it wrote on standard error."""
    chosen = {"stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | streams
    command = [*COMMAND, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment(), text=True, timeout=200, check=False, **chosen)
    return done.returncode, done.stderr


@needs_full
@pytest.mark.parametrize(
    "command", ["info", "info --json", "--version", "lsm --help", "jacobi -nx 30 -ny 30 -niter 4 --engine numpy"]
)
def test_a_full_disk_behind_the_output(tmp_path, command):
    with FULL.open("w") as full:
        code, said = ended(command.split(), tmp_path, stdout=full)
    *notes, line = said.splitlines()
    assert code == 74
    assert line.startswith("collops") and line.endswith(": standard output cannot be written: No space left on device")
    assert not any("Traceback" in note or "bug" in note for note in notes)


@pytest.mark.parametrize("command", ["info", "info --json", "--version", "lsm --help"])
def test_a_reader_that_has_gone(tmp_path, command):
    writer = closed_pipe()
    assert ended(command.split(), tmp_path, stdout=writer) == (141, "")
    os.close(writer)


@needs_full
def test_a_job_ends_without_its_notes(tmp_path):
    with FULL.open("w") as full:
        arguments = ["lsm", *SMALL, "--velocity", "1500", "--out", "out"]
        code, _ = ended(arguments, tmp_path, stdout=subprocess.DEVNULL, stderr=full)
    assert code == 0
    assert (tmp_path / "out" / "result.zarr").is_dir()


def test_a_job_whose_table_nobody_reads_has_written_its_results(tmp_path):
    writer = closed_pipe()
    code, said = ended(["solve", "--points", "60", "--out", "out"], tmp_path, stdout=writer)
    assert (code, "Traceback" in said) == (141, False)
    assert (tmp_path / "out" / "result.zarr").is_dir()
    os.close(writer)


def on_terminal(arguments: str, cwd: Path, **variables: str) -> str:
    """Return what a command writes on a terminal, from a process of its own."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, *shlex.split(arguments)]
    with subprocess.Popen(
        command, cwd=cwd, env=environment() | {"TERM": "xterm"} | variables, stdout=theirs, stderr=theirs, stdin=theirs
    ):
        os.close(theirs)
        written = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            written += piece
    os.close(ours)
    return written.decode()


RANK = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
TERMINAL = {"COLLOPS_STDOUT_TERMINAL": "1", "TTY_COMPATIBLE": "1"}  # as collops --ranks says that there is one


@pytest.mark.parametrize("arguments", ["info", "info --help"])
def test_escape_codes_are_for_terminals_of_users(tmp_path, arguments):
    """Open MPI gives its ranks terminals although its own output goes to a file."""
    assert "\x1b[1m" in on_terminal(arguments, tmp_path)
    assert "\x1b" not in on_terminal(arguments, tmp_path, **RANK)
    assert "\x1b[1m" in on_terminal(arguments, tmp_path, **RANK, **TERMINAL)


def test_a_job_shows_no_progress_on_the_terminal_of_a_rank(tmp_path):
    written = on_terminal("solve --points 60", tmp_path, **RANK)
    assert "\x1b" not in written and "result.zarr" in written


def test_no_color_means_no_styles(tmp_path):
    assert "\x1b" not in on_terminal("info", tmp_path, NO_COLOR="1")
