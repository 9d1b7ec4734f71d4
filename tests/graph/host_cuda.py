"""As much of CuPy as prepares and launches kernels, on the host: sources are compiled as C++, threads run in turn.

Threads that wait for each other, or pass numbers to each other, cannot be run in this way.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import types
from pathlib import Path
from typing import Any

import numpy as np

COMPILER = shutil.which("g++") or shutil.which("clang++")
DRIVER = """
#include <cstring>
#define __HIPCC_RTC__
#define __global__
#define __device__
#define __restrict__
struct Index { int x; };
extern "C" { Index blockIdx, blockDim, gridDim, threadIdx; }
inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
template <typename T> T atomicAdd(T* place, T value) { T old = *place; *place += value; return old; }
template <typename T> T __shfl_down(T value, int, int) { return value; }
#include SOURCE
"""


class RawModule:
    """A source, compiled."""

    folder: Path

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        name = f"{abs(hash((code, options)))}"
        source, driver, library = (self.folder / f"{name}{suffix}" for suffix in (".cu", ".cpp", ".so"))
        source.write_text(code)
        driver.write_text(DRIVER)
        kept = [option for option in options if option.startswith("-D")]
        command = [COMPILER, "-O1", "-ffp-contract=off", "-w", "-fPIC", "-shared", "-std=c++20", *kept]
        command += [f'-DSOURCE="{source}"', "-o", str(library), str(driver)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self._library = ctypes.CDLL(str(library))

    def get_function(self, name: str) -> Any:
        """Return what runs a kernel."""
        function = getattr(self._library, name)
        indices = {
            each: (ctypes.c_int * 1).in_dll(self._library, each)
            for each in ("blockIdx", "blockDim", "gridDim", "threadIdx")
        }

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
            passed = [_argument(value) for value in arguments]
            indices["gridDim"][0], indices["blockDim"][0] = grid[0], block[0]
            for indices["blockIdx"][0] in range(grid[0]):
                for indices["threadIdx"][0] in range(block[0]):
                    function(*passed)

        return launch


def _argument(value: Any) -> Any:
    """Return an argument as CuPy passes it."""
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, np.generic):
        return {"i": ctypes.c_int, "u": ctypes.c_uint64, "f": ctypes.c_double}[value.dtype.kind](value.item())
    return ctypes.c_longlong(value)


class _Memory:
    """The memory of an array, as far as copies need it."""

    def __init__(self, address: int) -> None:
        self.ptr = address

    def __add__(self, offset: int) -> _Memory:
        return _Memory(self.ptr + offset)

    def copy_from_device_async(self, source: _Memory, nbytes: int, stream: Any) -> None:
        ctypes.memmove(self.ptr, source.ptr, nbytes)


class Array(np.ndarray):
    """An array that shows its memory as CuPy's do."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return _Memory(self.ctypes.data)


class _Device:
    id = 0
    attributes = types.MappingProxyType({"MultiProcessorCount": 1})

    def __init__(self, number: int = 0) -> None:
        pass


def fake_cupy(folder: Path) -> types.ModuleType:
    """Return the module, which compiles into `folder`."""
    RawModule.folder = folder
    module = types.ModuleType("cupy")
    module.RawModule = RawModule  # type: ignore[attr-defined]
    module.asarray = np.asarray  # type: ignore[attr-defined]
    runtime = types.SimpleNamespace(is_hip=False)
    module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        Device=_Device, runtime=runtime, get_current_stream=lambda: None
    )
    return module
