"""Locks that end with their process, and files that a killed writer leaves."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collops.comm.files import Lock, atomic, atomic_together, is_seen

pytestmark = pytest.mark.serial

SOURCE = str(Path(__file__).parents[2] / "src")
HOLD = """
import os, sys
from pathlib import Path
from collops.comm.files import Lock
lock = Lock.acquire(Path(sys.argv[1]))
if len(sys.argv) > 2 and os.fork() == 0:
    sys.stdin.read()  # a child that lives on
    os._exit(0)
print(lock is not None, flush=True)
sys.stdin.read()
"""
WRITE = """
import sys
from pathlib import Path
from collops.comm.files import atomic
with atomic(Path(sys.argv[1])) as temporary:
    temporary.mkdir()
    (temporary / "new").touch()
    print(True, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other():
    """Start another process, which has come to the line that it prints; all are ended after the test."""
    started = []

    def start(program: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": SOURCE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        return process

    yield start
    for process in started:
        process.kill()
        with process:  # closes the pipes, which ends a child
            pass


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("child", [[], ["fork"]])
def test_a_lock_ends_with_its_process(tmp_path, other, child):
    path = tmp_path / "a.lock"
    holder = other(HOLD, path, *child)
    assert Lock.acquire(path) is None
    assert f"process {holder.pid} on {os.uname().nodename}" in Lock.holder(path)
    kill(holder)
    assert path.exists()
    with Lock.acquire(path) as lock:
        assert lock.path == path
        assert Lock.acquire(path) is None  # also from the process that holds it
    assert not path.exists()


def test_a_holder_may_read_its_own_lock(tmp_path):
    """To open and close the file would release it."""
    path = tmp_path / "a.lock"
    program = "import sys\nfrom pathlib import Path\nfrom collops.comm.files import Lock\n"
    program += "print(Lock.acquire(Path(sys.argv[1])) is None)"
    with Lock.acquire(path) as lock:
        assert is_seen(path, lock.text) and f"process {os.getpid()} " in Lock.holder(path)
        command, environment = [sys.executable, "-c", program, str(path)], os.environ | {"PYTHONPATH": SOURCE}
        assert subprocess.run(command, env=environment, capture_output=True, check=True).stdout == b"True\n"


def test_the_job_of_a_holder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    with Lock.acquire(tmp_path / "lock") as lock:
        assert "of job 4711" in Lock.holder(lock.path)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_systems_without_locks(tmp_path, other, monkeypatch, code):
    """The file counts while its process runs; of a process on another host nothing is known."""

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    path = tmp_path / "lock"
    holder = other(HOLD, path)
    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert Lock.acquire(path) is None
    about = path.read_text()
    kill(holder)
    Lock.acquire(path).release()
    path.write_text(json.dumps(json.loads(about) | {"pid": os.getpid()}))  # its number has been used again
    Lock.acquire(path).release()
    path.write_text(json.dumps(json.loads(about) | {"host": "elsewhere"}))
    with pytest.warns(RuntimeWarning, match="has no locks: make sure that process .* on elsewhere"):
        Lock.acquire(path).release()


def test_what_a_killed_writer_leaves_is_removed_by_the_next(tmp_path, other):
    path = tmp_path / "result.zarr"
    path.mkdir()
    (path / "old").touch()
    writers = [other(WRITE, path) for _ in range(2)]
    killed, running = writers
    kill(killed)
    assert len(list(tmp_path.glob(".result.zarr-*"))) == 4
    (tmp_path / ".result.zarr-9f_x2abc").mkdir()  # of a version without locks
    (tmp_path / ".result.zarr-9f_x2abc" / "result.zarr").mkdir()
    (tmp_path / ".result.zarr-20261127").mkdir()  # of a user
    (tmp_path / ".result.zarr-20261127" / "zarr.json").touch()
    (tmp_path / ".result.zarr-99999999").touch()
    (tmp_path / ".other.zarr-12345678").mkdir()  # of another file
    assert os.listdir(path) == ["old"]
    with atomic(path) as temporary:
        temporary.mkdir()
        (temporary / "mine").touch()
    assert os.listdir(path) == ["mine"]
    running.communicate("")  # it has lost nothing
    assert running.returncode == 0
    assert os.listdir(path) == ["new"]
    kept = {".result.zarr-20261127", ".result.zarr-99999999", ".other.zarr-12345678", "result.zarr"}
    assert set(os.listdir(tmp_path)) == kept


def test_a_writer_killed_between_two_names_loses_nothing(tmp_path, other):
    """The old folder has been moved away, and the new one has not got its name."""
    path = tmp_path / "a.zarr"
    path.mkdir()
    (path / "old").touch()
    killed = other(WRITE, path)
    (scratch,) = (each for each in tmp_path.glob(".a.zarr-*") if each.is_dir())
    kill(killed)
    path.rename(scratch / "previous")
    with pytest.raises(RuntimeError), atomic(path):
        raise RuntimeError
    assert os.listdir(path) == ["old"]
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_an_old_folder_returns_if_the_new_one_cannot_have_its_name(tmp_path, monkeypatch):
    path = tmp_path / "a.zarr"
    path.mkdir()
    (path / "old").touch()
    replace = os.replace

    def fail(source, target):
        if Path(source).name == "a.zarr" and Path(source).parent != tmp_path:
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="Input/output"), atomic(path) as temporary:
        temporary.mkdir()
    assert os.listdir(path) == ["old"]
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_a_folder_of_another_writer_is_only_replaced_on_request(tmp_path, comm):
    path = tmp_path / "a.zarr"
    with pytest.raises(OSError, match="not empty"), atomic_together(path, comm, replace=False) as temporary:
        temporary.mkdir()
        (path / "theirs").mkdir(parents=True)
    assert os.listdir(path) == ["theirs"]
    assert os.listdir(tmp_path) == ["a.zarr"]
    with atomic_together(path, comm) as temporary:
        (temporary / "ours").mkdir(parents=True)
    assert os.listdir(path) == ["ours"]


def test_writers_that_begin_together_do_not_disturb_each_other(tmp_path, other):
    path = tmp_path / "b"
    program = (
        "import sys\nfrom pathlib import Path\nfrom collops.comm.files import atomic\nprint(True, flush=True)\n"
        "for number in range(500):\n"
        "    with atomic(Path(sys.argv[1])) as temporary:\n"
        "        temporary.write_text('x' * 1000)\n"
    )
    writers = [other(program, path) for _ in range(4)]
    for writer in writers:
        assert writer.wait(60) == 0
    assert path.read_text() == "x" * 1000
    deadline = time.monotonic() + 5
    while os.listdir(tmp_path) != ["b"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert os.listdir(tmp_path) == ["b"]
