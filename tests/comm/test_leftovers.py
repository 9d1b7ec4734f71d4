"""Shared memory that an earlier run of a Slurm job has left: what is removed, and what stays."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
import types

import pytest

from collops.comm import mpi
from collops.comm.leftovers import remove_leftovers

pytestmark = pytest.mark.serial

STEP = {"SLURM_JOB_ID": "2", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0", "PMI_JOBID": "2.0"}
NAME = "mpich_shm_281e0ec3_0"  # what MPICH 5.0.2 has mapped in step 0 of job 2, on its first node


@pytest.fixture
def segment(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(bytes(mmap.PAGESIZE))
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    return path


def test_a_segment_of_an_earlier_run_is_removed_and_no_other(segment):
    others = [segment.with_name(name) for name in ("mpich_shm_281e0ec4_0", "mpich_shm_281e0ec30_0", "mpich_vci_1_0")]
    for other in others:
        os.link(segment, other)
    remove_leftovers(STEP, segment.parent)
    assert not segment.exists()
    assert all(other.exists() for other in others)


@pytest.mark.parametrize(
    "change", [{"PMI_JOBID": "2.1"}, {"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "3", "PMI_JOBID": "3.0"}]
)
def test_segments_of_other_jobs_and_launchers_stay(segment, change):
    remove_leftovers(STEP | change, segment.parent)
    assert segment.exists()


def test_nothing_is_removed_without_slurm(segment):
    remove_leftovers({}, segment.parent)
    remove_leftovers({"PMI_JOBID": "2.0"}, segment.parent)
    assert segment.exists()


def test_a_segment_that_is_as_young_as_this_process_stays(segment):
    os.utime(segment)
    remove_leftovers(STEP, segment.parent)
    assert segment.exists()


def test_a_segment_that_a_process_has_mapped_stays(segment):
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        remove_leftovers(STEP, segment.parent)
        assert segment.exists()
    remove_leftovers(STEP, segment.parent)
    assert not segment.exists()


def test_the_other_ranks_of_a_node_wait_for_the_one_that_removes(segment):
    """They go on as soon as the old segment is gone, and leave the new one of a faster rank alone."""

    def remove_and_create() -> None:
        segment.unlink()
        segment.write_bytes(bytes(mmap.PAGESIZE))

    timer = threading.Timer(0.5, remove_and_create)
    begin = time.monotonic()
    timer.start()
    remove_leftovers(STEP | {"SLURM_LOCALID": "1"}, segment.parent)
    assert 0.4 < time.monotonic() - begin < 30
    timer.join()
    assert segment.exists()


def test_they_are_removed_before_mpi_starts(monkeypatch):
    steps = []

    class Package(types.ModuleType):
        Is_initialized = staticmethod(lambda: True)
        Is_finalized = staticmethod(lambda: False)

        @property
        def MPI(self):
            steps.append("start")
            return self

    package = Package("mpi4py")
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(mpi, "_watch_end", lambda _: None)
    monkeypatch.setattr(mpi, "remove_leftovers", lambda: steps.append("remove"))
    assert mpi.mpi4py_module() is package
    assert steps == ["remove", "start"]
