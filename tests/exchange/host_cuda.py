"""As much of CuPy as prepares and launches kernels, on the host: sources are compiled as C++.

The threads of a block run in turn, so that kernels in which they pass numbers to each other, or wait for each other,
can only be run with blocks of one thread. Blocks run at once, and may wait for each other and for other processes'.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np

COMPILER = shutil.which("g++") or shutil.which("clang++")
DRIVER = """
#include <cstring>
#include <sched.h>
#include <utility>
#define __HIPCC_RTC__
#define __global__
#define __device__
#define __shared__ static thread_local
#define __restrict__
#define __launch_bounds__(...)
struct Number { int x; };
thread_local Number blockIdx, blockDim, gridDim, threadIdx;
inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
template <typename T> T atomicAdd(T* place, T value) { T old = *place; *place += value; return old; }
inline unsigned long long atomicAdd(unsigned long long* place, unsigned long long value)
{
    return __atomic_fetch_add(place, value, __ATOMIC_SEQ_CST);
}
template <typename T> T __shfl_down(T value, int, int) { return value; }
inline void __syncthreads() {}
#define WAIT_WHILE(condition) while (condition) sched_yield() // who waits may have the core of whom it waits for
inline void __threadfence_system() { __sync_synchronize(); }
#include SOURCE
template <typename... A, std::size_t... I>
void call(void (*kernel)(A...), void** parameters, std::index_sequence<I...>)
{
    kernel(*static_cast<A*>(parameters[I])...);
}
template <typename... A>
void run(void (*kernel)(A...), void** parameters, int block, int blocks, int threads)
{
    blockIdx.x = block, gridDim.x = blocks, blockDim.x = threads;
    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x)
        call(kernel, parameters, std::index_sequence_for<A...>());
}
"""
ENTRY = """
extern "C" void run_{0}(void** parameters, int block, int blocks, int threads)
{{
    run({0}, parameters, block, blocks, threads);
}}
"""


class RawModule:
    """A source, compiled."""

    folder: Path

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        name = f"{abs(hash((code, options)))}"
        source, driver, library = (self.folder / f"{name}{suffix}" for suffix in (".cu", ".cpp", ".so"))
        source.write_text(
            code.replace("< least) {", "< least) {\n            sched_yield();")
        )  # others may have its core
        kept = [option for option in options if option.startswith("-D")]
        chosen = subprocess.run(
            [COMPILER, "-E", "-x", "c++", *kept, str(source)], capture_output=True, text=True, check=True
        )
        kernels = re.findall(r"__global__ void (?:__launch_bounds__\(\w+\) )?(\w+)\(", chosen.stdout)
        driver.write_text(DRIVER + "".join(ENTRY.format(kernel) for kernel in kernels))
        command = [COMPILER, "-O0", "-ffp-contract=off", "-w", "-fPIC", "-shared", "-std=c++20", *kept]
        command += [f'-DSOURCE="{source}"', "-o", str(library), str(driver)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self._library = ctypes.CDLL(str(library))

    def get_function(self, name: str) -> Any:
        """Return a kernel, as far as it can be launched by the driver."""
        address = ctypes.cast(getattr(self._library, f"run_{name}"), ctypes.c_void_p).value
        return types.SimpleNamespace(kernel=types.SimpleNamespace(ptr=address), module=self)


_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int)


def _launch(function: int, blocks: int, _y: int, _z: int, threads: int, *rest: int) -> None:
    parameters, run = rest[4], _RUN(function)
    if blocks == 1:
        run(parameters, 0, 1, threads)
        return
    workers = [threading.Thread(target=run, args=(parameters, block, blocks, threads)) for block in range(blocks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


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
    module.ndarray = Array  # type: ignore[attr-defined]
    module.uint64 = np.uint64  # type: ignore[attr-defined]
    module.asarray = lambda values: np.asarray(values).view(Array)  # type: ignore[attr-defined]
    module.zeros = lambda *given: np.zeros(*given).view(Array)  # type: ignore[attr-defined]
    module.empty = lambda *given: np.empty(*given).view(Array)  # type: ignore[attr-defined]
    module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        Device=_Device,
        runtime=types.SimpleNamespace(is_hip=True, getDevice=lambda: 0),  # CuPy compiles the source itself
        driver=types.SimpleNamespace(launchKernel=_launch),
        get_current_stream=lambda: types.SimpleNamespace(ptr=0),
    )
    return module
