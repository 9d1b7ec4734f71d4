"""MPI and NCCL are each reached from one module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import collops

pytestmark = pytest.mark.serial

SOURCE = Path(collops.__file__).parent
MPI = re.compile(r"^\s*(?:from mpi4py\b|import mpi4py\b)", re.MULTILINE)
NCCL = re.compile(r"(?:from|import) nccl\b|cupy\.cuda import nccl|cupy\.cuda\.nccl|\.nccl[A-Z]\w+\(|CDLL\([^)]*nccl")


def modules(pattern: re.Pattern[str]) -> set[str]:
    """Return the modules whose code, without examples in docstrings, has a pattern."""
    return {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if pattern.search(re.sub(r"^\s*>>>.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    }


def test_one_module_imports_mpi():
    assert modules(MPI) == {"comm/mpi.py"}


def test_one_module_calls_nccl():
    assert modules(NCCL) == {"comm/nccl.py"}
