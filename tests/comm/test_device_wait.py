"""Kernels that wait for other devices have a deadline, which is put before their text."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import collops
from collops.comm import wait_while_source

pytestmark = pytest.mark.serial
PACKAGE = Path(collops.__file__).parent


def test_none_without_a_deadline(monkeypatch):
    monkeypatch.setenv("COLLOPS_TIMEOUT", "none")
    assert wait_while_source() == ""
    monkeypatch.setenv("COLLOPS_TIMEOUT", "2.5")
    assert wait_while_source().startswith("#define DEADLINE 32500000000ull\n")


KERNEL = """
extern "C" __global__ void wait(const volatile int* flag) { WAIT_WHILE(*flag < 1); }
"""


def test_the_loop_ends_with_an_error_of_the_device(tmp_path, monkeypatch):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    monkeypatch.setenv("COLLOPS_TIMEOUT", "2")
    source, target = tmp_path / "wait.cu", tmp_path / "wait.ptx"
    source.write_text(wait_while_source() + KERNEL)
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-ptx", "-o", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code = target.read_text()
    assert "globaltimer" in code and "trap;" in code


@pytest.mark.parametrize("name", ["jacobi/jacobi.cu", "exchange/transports/put.cu"])
def test_kernels_wait_in_no_other_loop(name):
    text = (PACKAGE / name).read_text()
    definition = text.index("#endif", text.index("#ifndef WAIT_WHILE"))
    assert "WAIT_WHILE(" in text[definition:]
    assert "volatile" not in "".join(line for line in text.splitlines() if line.strip().startswith("while"))
