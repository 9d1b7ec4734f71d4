"""The kernels of waves on the host, compiled as C++: threads of a block are coroutines that switch at barriers."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collops.seismic.waves import modelling
from collops.seismic.waves.cuda import clock, march, media_march, steps, storage

COMPILER = shutil.which("g++")
_PREAMBLE = """
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#include <cstdlib>
#define STACK 65536
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
struct Index { int x, y, z; };
static Index blockIdx, threadIdx, gridDim;
static int min(int a, int b) { return a < b ? a : b; }
static ucontext_t scheduler, coroutines[1024];
static int current;
static void __syncthreads() { swapcontext(&coroutines[current], &scheduler); }
#include SOURCE
static char* const stacks = static_cast<char*>(malloc(1024 * STACK));
static bool ended[1024];
static void (*kernel)(const Step, int);
static void** arguments;
static void thread() {
    kernel(*static_cast<Step*>(arguments[0]), *static_cast<int*>(arguments[1]));
    ended[current] = true;
}
static void run_block(Index block) {
    int threads = block.x * block.y, left = threads;
    for (int t = 0; t < threads; ++t) {
        ended[t] = false;
        getcontext(&coroutines[t]);
        coroutines[t].uc_stack.ss_sp = stacks + t * STACK;
        coroutines[t].uc_stack.ss_size = STACK;
        coroutines[t].uc_link = &scheduler;
        makecontext(&coroutines[t], thread, 0);
    }
    while (left > 0)
        for (int t = 0; t < threads; ++t) {
            if (ended[t]) continue;
            current = t, threadIdx = {t % block.x, t / block.x, 0};
            swapcontext(&scheduler, &coroutines[t]);
            left -= ended[t];
        }
}
extern "C" int step_bytes() { return sizeof(Step); }
extern "C" void run(const char* name, const int* grid, const int* block, void** parameters) {
    struct { const char* name; void (*kernel)(const Step, int); } table[] = {KERNELS};
    for (auto& row : table) if (!strcmp(name, row.name)) kernel = row.kernel;
    arguments = parameters, gridDim = {grid[0], grid[1], grid[2]};
    const bool barriers = BARRIERS && (!strncmp(name, "forward", 7) || !strncmp(name, "adjoint", 7));
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) {
                if (barriers) { run_block({block[0], block[1], 1}); continue; }
                for (int t = 0; t < block[0] * block[1]; ++t) {
                    threadIdx = {t % block[0], t / block[0], 0};
                    kernel(*static_cast<Step*>(parameters[0]), *static_cast<int*>(parameters[1]));
                }
            }
}
"""


class Compiled:
    """The kernels for some options; a function is its name."""

    def __init__(self, folder: Path, name: str, options: tuple[str, ...]) -> None:
        path = folder / f"{name}{abs(hash(options))}.so"
        source = path.with_suffix(".cu")
        source.write_text(steps.source_of(name))
        driver = path.with_suffix(".cpp")
        macros = [option for option in options if option.startswith("-D")]
        preprocess = [COMPILER, "-E", "-P", "-xc++", *macros, str(source)]
        text = subprocess.run(preprocess, capture_output=True, text=True, check=True).stdout
        names = re.findall(r"(\w+)\(const Step s, int \w+\)", text)
        table = ", ".join(f'{{"{found}", {found}}}' for found in names)
        barriers = str(int("__syncthreads" in text))
        driver.write_text(_PREAMBLE.replace("KERNELS", table).replace("BARRIERS", barriers))
        command = [
            COMPILER,
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fPIC",
            "-shared",
            "-Wl,-Bsymbolic",
            "-fno-gnu-unique",
        ]
        command += ["-Wno-unknown-pragmas", *macros, f'-DSOURCE="{source}"', "-o", str(path), str(driver)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.library = ctypes.CDLL(str(path))

    def get_function(self, name: str) -> tuple[Compiled, str]:
        return self, name


_COMPILED: dict[tuple[str, tuple[str, ...]], Compiled] = {}  # of all tests of this process


def replace_device(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the time loops of devices run in arrays of NumPy, by kernels on the host."""

    def kernels(device: int, name: str, options: tuple[str, ...]) -> Compiled:
        if (name, options) not in _COMPILED:
            _COMPILED[name, options] = Compiled(folder, name, options)
        return _COMPILED[name, options]

    def launch(kernel: Any, grid: Any, block: Any, arguments: Any, ahead: int) -> None:
        made, name = kernel
        assert made.library.step_bytes() == arguments._struct.nbytes
        sizes = [(ctypes.c_int * 3)(*map(int, each)) for each in (grid, block)]
        made.library.run(name.encode(), *sizes, ctypes.c_void_p(arguments.parameters(ahead)))

    def one_after_the_other(first: Any, others: Any, sides: Any) -> None:
        for work in (first, *others):
            work()

    monkeypatch.setattr(steps, "current_device", lambda: 0)
    monkeypatch.setattr(steps, "address_of", lambda array: array.ctypes.data)
    monkeypatch.setattr(steps, "kernels", kernels)
    monkeypatch.setattr(steps, "launch", launch)
    monkeypatch.setattr(clock, "recorded", lambda work: work)
    monkeypatch.setattr(clock, "side_streams", lambda count: [None] * count)
    for module in (steps, media_march):
        monkeypatch.setattr(module, "side_by_side", one_after_the_other)
    monkeypatch.setattr(storage, "free_memory", lambda engine: 1 << 40)
    for module in (storage, clock):
        monkeypatch.setattr(module, "empty_on_host", np.empty)
        monkeypatch.setattr(module, "download", lambda array, out: np.copyto(out, array), raising=False)
        monkeypatch.setattr(module, "upload", np.copyto)


@pytest.fixture
def on_device(monkeypatch, tmp_path):
    """A function after which propagators use the form for devices."""

    def replace():
        replace_device(monkeypatch, tmp_path)
        monkeypatch.setattr(modelling, "_loops_of", lambda engine: march)

    return replace
