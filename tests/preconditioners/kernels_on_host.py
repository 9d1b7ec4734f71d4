"""The kernels of the set-up of multigrid on the host: their sources as C++, with threads in the place of a device's.

A block has one row, and blocks run one after the other.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collops.operators.csr import row_kernels

COMPILER = shutil.which("g++") or shutil.which("clang++")
FOLDER = Path(row_kernels.__file__).parent
DRIVER = """
#include <cmath>
#include <utility>
#define __global__
#define __device__
#define __shared__
struct Number { int x, y; };
static thread_local Number blockIdx, blockDim, threadIdx;
#if THREADS > 1
#include <barrier>
#include <thread>
#include <vector>
static std::barrier barrier(THREADS);
inline void wait() { barrier.arrive_and_wait(); }
inline void __syncwarp(unsigned) { wait(); }
template <typename T> T __shfl_xor_sync(unsigned, T value, int distance)
{
    static T values[THREADS];
    values[threadIdx.x] = value;
    wait();
    const T other = values[threadIdx.x ^ distance];
    wait();
    return other;
}
#else
inline void wait() {}
inline void __syncwarp(unsigned) {}
template <typename T> T __shfl_xor_sync(unsigned, T value, int) { return value; }
#endif
template <typename T> T atomicAdd(T* place, T value) { return __sync_fetch_and_add(place, value); }
inline int atomicCAS(int* place, int expected, int value)
{
    return __sync_val_compare_and_swap(place, expected, value);
}
#include ENTRIES
#include SOURCE
double shared_memory[1 << 13];
template <typename... A, std::size_t... I>
void run(void (*kernel)(Long, A...), Long rows, void** parameters, std::index_sequence<I...>)
{
    auto run_lane = [=](int number) {
        threadIdx.x = number, blockDim.x = THREADS, blockDim.y = 1;
        for (blockIdx.x = 0; blockIdx.x < rows; ++blockIdx.x) {
            kernel(rows, *static_cast<A*>(parameters[I])...);
            wait();
        }
    };
#if THREADS > 1
    std::vector<std::thread> others;
    for (int number = 1; number < THREADS; ++number) others.emplace_back(run_lane, number);
#endif
    run_lane(0);
#if THREADS > 1
    for (std::thread& other : others) other.join();
#endif
}
template <typename... A>
void run(void (*kernel)(Long, A...), Long rows, void** parameters)
{
    run(kernel, rows, parameters, std::index_sequence_for<A...>());
}
"""
ENTRY = 'extern "C" void run_{0}(long long rows, void** parameters) {{ run({0}, rows, parameters); }}\n'


class Kernels:
    """Replacements for the functions of :mod:`collops.operators.csr.row_kernels` that compile into a folder.

    Rows have `lanes` threads each.
    """

    def __init__(self, folder: Path, lanes: int = 1) -> None:
        self._folder, self._lanes = folder, lanes
        self._library = cache(self._compiled)

    def launch(
        self,
        name: str,
        matrix: Any,
        *arguments: Any,
        source: str = "rows.cu",
        rows: int | None = None,
        lanes: int | None = None,
    ) -> None:
        self._run(name, matrix, source, 0, matrix.shape[0] if rows is None else rows, arguments)

    def launch_with_tables(
        self, name: str, matrix: Any, shape: tuple[int, int, int], size: int, *arguments: Any, rows: int
    ) -> None:
        self._run(name, matrix, "products.cu", int(shape[2] > 0), rows, (shape[2], *arguments))

    def _run(self, name: str, matrix: Any, source: str, shared: int, rows: int, arguments: tuple[Any, ...]) -> None:
        library = self._library(source, "fdFD".index(matrix.dtype.char), shared)
        values = [self._as_parameter(value) for value in arguments]
        addresses = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        getattr(library, f"run_{name}")(ctypes.c_longlong(rows), addresses)

    @staticmethod
    def _as_parameter(value: Any) -> np.ndarray:
        if isinstance(value, np.ndarray):
            assert value.flags.c_contiguous
            return np.array(value.ctypes.data)
        return np.array(0 if value is None else value)

    def _compiled(self, source: str, element: int, shared: int) -> ctypes.CDLL:
        text = (FOLDER / source).read_text()
        names = [line.split("(")[0].split()[-1] for line in text.splitlines() if "__global__" in line]
        path = self._folder / f"{Path(source).stem}-{element}-{shared}.so"
        driver = path.with_suffix(".cpp")
        driver.write_text(DRIVER + "".join(map(ENTRY.format, names)))
        command = [COMPILER, "-std=c++20", "-O0", "-ffp-contract=off", "-fPIC", "-shared", "-w", "-pthread"]
        command += [f"-DTHREADS={self._lanes}", f"-DELEMENT={element}", f"-DSHARED={shared}"]
        command += [f'-DSOURCE="{FOLDER / source}"']
        command += [f'-DENTRIES="{FOLDER / "entries.cu"}"', "-o", str(path), str(driver)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(path))
