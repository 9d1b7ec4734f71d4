"""MPI, NCCL and NVSHMEM are each called from one module, and on devices from one file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import collops

pytestmark = pytest.mark.serial

SOURCE = Path(collops.__file__).parent
MPI = re.compile(r"^\s*(?:from mpi4py\b|import mpi4py\b)|\bMPI_[A-Z]\w+\(", re.MULTILINE)
NCCL = re.compile(
    r"(?:from|import) nccl\b|cupy\.cuda import nccl|cupy\.cuda\.nccl|\.nccl[A-Z]\w+\(|CDLL\([^)]*nccl"
    r"|\bnccl[A-Z]\w+\(|<nccl"  # device code
)
SPLIT = re.compile(r"\b\w*(?:comm|control)\.(?:Dup|Split|Split_type|Clone|Create|Create_group)\(")
NVSHMEM = re.compile(r"^\s*(?:from|import) nvshmem\b|\bnvshmemx?_\w+\(|<(?:device/)?nvshmem", re.MULTILINE)


def modules(pattern: re.Pattern[str], ends: str = "py") -> set[str]:
    """Return the files whose code, without examples in docstrings, has a pattern."""
    return {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.*")
        if path.suffix[1:] in ends.split()
        and pattern.search(re.sub(r"^\s*>>>.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    }


def test_one_module_imports_mpi():
    assert modules(MPI) == {"comm/mpi.py"}


def test_few_modules_split_or_duplicate_communicators():
    of_compat = {f"compat/pylops_mpi/{name}.py" for name in ("_arrays", "_grids")}
    of_core = {"comm/mpi.py", "comm/mpi_exchanges.py", "comm/mpi_transport.py", "comm/world.py", "jax/communicators.py"}
    assert modules(SPLIT) == of_core | of_compat


def test_one_module_calls_nccl():
    assert modules(NCCL) == {"comm/nccl.py"}


def test_one_module_calls_nvshmem():
    assert modules(NVSHMEM) == {"comm/symmetric_device.py"}


def test_device_code_calls_each_library_from_one_file():
    device = "cu cuh h cpp"
    assert modules(MPI, device) == set()
    assert modules(NCCL, device) == {"comm/nccl_device.cuh"}
    assert modules(NVSHMEM, device) == {"comm/nvshmem_device.cuh"}
