"""Run ``banded.cu`` on the host: compiled as C++, with a loop in the place of the threads.

They never meet, so that they cannot pass numbers to each other (SHUFFLE): each reads its own. The threads of a block
run from the last to the first, so that each finds in shared memory what those after it have added up.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

from collops.operators.derivatives.kernels import cuda

COMPILER = shutil.which("g++") or shutil.which("clang++")
SOURCE = Path(cuda.__file__).with_name("banded.cu")
DRIVER = """
#define __global__
#define __device__
#define __shared__ static
#define __syncthreads()
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct Index { int x, y; };
static Index blockIdx, blockDim, gridDim, threadIdx;
template <typename T> T __ldg(const T* address) { return *address; }
template <typename T> void __stwb(T* address, T value) { *address = value; }
#include SOURCE
extern "C" void run(const Problem* problem, int across, int down, int width, int height)
{
    blockDim = {width, height};
    gridDim = {across, down};
    for (blockIdx.y = 0; blockIdx.y < down; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < across; ++blockIdx.x)
            for (threadIdx.y = height - 1; threadIdx.y >= 0; --threadIdx.y)
                for (threadIdx.x = width - 1; threadIdx.x >= 0; --threadIdx.x) banded(*problem);
}
extern "C" unsigned long long argument_bytes() { return sizeof(Problem); }
"""


@cache
def library(options: tuple[str, ...], folder: Path) -> ctypes.CDLL:
    """Compile with these options and load."""
    path = folder / f"banded_{abs(hash(options))}.so"
    driver = path.with_suffix(".cpp")
    driver.write_text(DRIVER)
    options = tuple(option for option in options if "SHUFFLE" not in option)
    command = [COMPILER, "-O0", "-fPIC", "-shared"]
    command += ["-Wno-unknown-pragmas", *options, f'-DSOURCE="{SOURCE}"', "-o", str(path), str(driver)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(path))


def run(options: tuple[str, ...], launch: cuda.Launch, folder: Path) -> None:
    """Do what a launch would do."""
    loaded = library(options, folder)
    loaded.argument_bytes.restype = ctypes.c_ulonglong
    assert loaded.argument_bytes() == launch.argument.itemsize
    submit(options, *launch.grid, *launch.block, launch.parameters, folder)


def submit(
    options: tuple[str, ...], across: int, down: int, width: int, height: int, parameters: int, folder: Path
) -> None:
    """Run the kernel with the argument whose address is at `parameters`."""
    (argument,) = (ctypes.c_void_p * 1).from_address(parameters)
    library(options, folder).run(ctypes.c_void_p(argument), across, down, width, height)
