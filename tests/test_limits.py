"""Limits of memory and room: files as kernels write them, and the limits of this machine where tests may set them."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collops.limits import available_memory, free_room, in_words, memory_limit

pytestmark = pytest.mark.serial

GIB = 1 << 30
PAGE = os.sysconf("SC_PAGE_SIZE")
UNLIMITED = 9223372036854771712  # as version 1 writes it


def machine(root: Path, files: dict[str, object]) -> Path:
    """Write the files of a machine of 64 GiB with 60 available, on which this process has 1 GiB; and those given."""
    usual = {
        "proc/meminfo": f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable: {60 << 20} kB\nHugePages_Total: 0\n",
        "proc/self/statm": f"{2 * GIB // PAGE} {GIB // PAGE} 1 1 0 1 0\n",
    }
    for name, text in (usual | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


CASES = {
    "the machine alone": ({}, {}, 64, 60),
    "version 2, and the group around it is tighter": (
        {
            "proc/self/cgroup": "0::/slurm/job_7/step_0",
            "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max",
            "sys/fs/cgroup/slurm/job_7/step_0/memory.current": 5 * GIB,
            "sys/fs/cgroup/slurm/job_7/memory.max": 20 * GIB,
            "sys/fs/cgroup/slurm/job_7/memory.current": 9 * GIB,
            "sys/fs/cgroup/slurm/job_7/memory.stat": f"anon {5 * GIB}\nfile {4 * GIB}\ninactive_file {3 * GIB}",
            "sys/fs/cgroup/slurm/memory.max": 63 * GIB,
            "sys/fs/cgroup/slurm/memory.current": 9 * GIB,
        },
        {},
        20,
        14,
    ),
    "version 2, and a fuller group around it leaves less": (
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/memory.max": 20 * GIB,
            "sys/fs/cgroup/a/b/memory.current": 1 * GIB,
            "sys/fs/cgroup/a/memory.max": 30 * GIB,
            "sys/fs/cgroup/a/memory.current": 28 * GIB,
        },
        {},
        20,
        2,
    ),
    "a container, whose own group is the top": (
        {
            "proc/self/cgroup": "0::/../../docker/4f",
            "sys/fs/cgroup/memory.max": 8 * GIB,
            "sys/fs/cgroup/memory.current": 2 * GIB,
        },
        {},
        8,
        6,
    ),
    "version 1 beside version 2": (
        {
            "proc/self/cgroup": "9:name=systemd:/user\n4:cpu,memory:/slurm/uid_1/job_7\n1:cpuset:/\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 50 * GIB,
            "sys/fs/cgroup/memory/slurm/uid_1/job_7/memory.limit_in_bytes": 16 * GIB,
            "sys/fs/cgroup/memory/slurm/uid_1/job_7/memory.usage_in_bytes": 7 * GIB,
            "sys/fs/cgroup/memory/slurm/uid_1/job_7/memory.stat": f"cache {9 * GIB}\ntotal_inactive_file {5 * GIB}",
        },
        {},
        16,
        14,
    ),
    "a group that is over its limit": (
        {
            "proc/self/cgroup": "0::/a",
            "sys/fs/cgroup/a/memory.max": GIB,
            "sys/fs/cgroup/a/memory.current": GIB + PAGE,
        },
        {},
        1,
        0,
    ),
    "Slurm, by node": ({}, {"SLURM_MEM_PER_NODE": "4096"}, 4, 3),
    "Slurm, by processor": ({}, {"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_ON_NODE": "8"}, 8, 7),
    "Slurm, all of the node": ({}, {"SLURM_MEM_PER_NODE": "0"}, 64, 60),
    "Slurm, by processor without their number": ({}, {"SLURM_MEM_PER_CPU": "1024"}, 64, 60),
}


@pytest.mark.parametrize("name", CASES)
def test_the_tightest_limit_counts(tmp_path, name):
    files, environment, limit, available = CASES[name]
    root = machine(tmp_path, files)
    assert memory_limit(root, environment) == limit * GIB
    assert available_memory(1, root, environment) == available * GIB
    assert available_memory(4, root, environment) == available * GIB // 4


def limited(megabytes: int, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with an address space of so many MiB."""
    command = ["sh", "-c", f'ulimit -v {megabytes << 10} && exec "$@"', "sh", sys.executable, "-c", program]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


def test_what_a_limited_address_space_leaves_can_be_allocated_and_no_more():
    program = """
import numpy as np
from collops.limits import available_memory, memory_limit
print(memory_limit(), available_memory() // 4 >= available_memory(4) - 4096)
left = available_memory()
np.empty(left - (1 << 25), np.uint8)
try:
    np.empty(left + (1 << 20), np.uint8)
except MemoryError:
    print("no more")
"""
    done = limited(3000, program)
    assert done.stdout == f"{3000 << 20} False\nno more\n", done


def test_a_matrix_that_a_limited_address_space_cannot_hold_is_refused(tmp_path):
    matrix = tmp_path / "a.mtx.gz"
    head = b"%%MatrixMarket matrix coordinate real symmetric\n60000 60000 60000000\n1 1 1.0\n"
    matrix.write_bytes(gzip.compress(head))
    program = "from collops.cli import main; main(['solve', '--matrix', %r, '--out', %r])"
    done = limited(1500, program % (str(matrix), str(tmp_path / "out")))
    assert done.returncode == 2, done
    assert "1.79 GiB" in done.stderr and "can still use" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.fixture
def control_group():
    """A memory group of version 1 inside that of this process, with 300 MB."""
    lines = Path("/proc/self/cgroup").read_text().splitlines() if Path("/proc/self/cgroup").exists() else []
    path = next((line.split(":", 2)[2] for line in lines if "memory" in line.split(":", 2)[1].split(",")), None)
    if path is None:
        pytest.skip("this machine has no memory control groups of version 1")
    group = Path(f"/sys/fs/cgroup/memory{path}", f"collops-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as problem:
        pytest.skip(f"this user may make no control groups ({problem})")
    (group / "memory.limit_in_bytes").write_text(str(300 << 20))
    yield group
    group.rmdir()


def test_a_real_control_group(tmp_path, control_group):
    (tmp_path / "file").write_bytes(bytes(100 << 20))
    program = """
import sys, pathlib, os
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
from collops.limits import available_memory, memory_limit
print(memory_limit())
print(available_memory() >> 20)
kept = b"1" * (100 << 20)
print(available_memory() >> 20)
pathlib.Path(sys.argv[2]).read_bytes()
print(available_memory() >> 20)
"""
    command = [sys.executable, "-c", program, str(control_group), str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    limit, free, fewer, after_reading = map(int, done.stdout.split())
    assert limit == 300 << 20
    assert 250 < free <= 300
    assert 80 < free - fewer < 120
    assert abs(fewer - after_reading) < 20  # file cache can be dropped


def test_room_is_what_the_file_system_says(tmp_path):
    said = subprocess.run(["df", "--output=avail", "-B1", tmp_path], capture_output=True, text=True, check=True)
    assert free_room(tmp_path) == pytest.approx(int(said.stdout.split()[1]), rel=0.05)
    assert free_room(tmp_path / "not" / "yet") == pytest.approx(free_room(tmp_path), rel=0.05)


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 KiB"), (512, "0.5 KiB"), (999 << 20, "999 MiB"), (1 << 30, "1 GiB"), (3 << 52, "1.23e+04 TiB")],
)
def test_sizes_in_words(size, said):
    assert in_words(size) == said
