"""The kernels of boxes.cu on the host, compiled as C++ with loops in the place of the threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

from collops import backend

COMPILER = shutil.which("g++") or shutil.which("clang++")
_SOURCE = Path(backend.__file__).with_name("boxes.cu")
_PREAMBLE = """
#define __global__
#define __launch_bounds__(threads)
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct Index { int x, y; };
static Index blockIdx, blockDim, gridDim, threadIdx;
#include SOURCE
"""


def compiled(folder: Path, unit: int, run: str) -> Any:
    """Return the C++ function `run`, whose text calls a kernel for units of so many bytes."""
    path = folder / "boxes.so"
    driver = path.with_suffix(".cpp")
    driver.write_text(_PREAMBLE + run)
    command = [COMPILER, "-std=c++17", "-O1", "-fPIC", "-shared", "-Wno-unknown-pragmas", f"-DBYTES={unit}"]
    command += [f'-DSOURCE="{_SOURCE}"', "-o", str(path), str(driver)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(path)).run
