"""The native library's transports compile without warnings and run without errors of the sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native" / "src"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.serial
def test_transports_under_sanitizers(tmp_path):
    """All calls of the NCCL transport, by threads on one to four devices, recorded or not; one rank; host devices."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    empty, program = tmp_path / "empty.cpp", tmp_path / "transports"
    empty.write_text("int main() {}\n")
    if subprocess.run([compiler, *SANITIZERS, empty, "-o", program], check=False, capture_output=True).returncode:
        pytest.skip("the compiler has no sanitizers")
    sources = [
        HERE / "native_transports.cpp",
        *(NATIVE / f"{name}.cpp" for name in ("transport", "alone", "devices", "nccl", "recordings")),
    ]
    flags = ["-std=c++17", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread", *SANITIZERS, f"-I{NATIVE}"]
    subprocess.run([compiler, *flags, *sources, "-o", program], check=True)
    ended = subprocess.run([program], check=False, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "all right\n", "")
