"""First arrivals from one position, and the CUDA kernel that computes them compiled as C++ for the host."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from collops.seismic.kirchhoff import eikonal as package
from collops.seismic.kirchhoff.eikonal import first_arrivals
from collops.seismic.kirchhoff.geometry import ImageGrid

COMPILER = shutil.which("g++") or shutil.which("clang++")
DRIVER = """
#include <cmath>
#include <cstring>
using std::fabs; using std::sqrt;
#define __global__
#define __device__
#define __forceinline__ inline
template <typename T> T min(T a, T b) { return b < a ? b : a; }
template <typename T> T max(T a, T b) { return a < b ? b : a; }
static struct { int x, y, z; } blockIdx, threadIdx;
// The lanes of a warp run in turn, and the first one leaves its values to the others.
static int of_first_lane[64], calls;
inline int __shfl_sync(unsigned, int value, int, int)
{
    int& kept = of_first_lane[calls++];
    return threadIdx.x ? kept : kept = value;
}
inline long long __double_as_longlong(double value) { long long bits; memcpy(&bits, &value, 8); return bits; }
inline double __longlong_as_double(long long bits) { double value; memcpy(&value, &bits, 8); return value; }
inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
#include SOURCE
#ifdef COLLOPS_TILTED
#include TILTED
#endif
extern "C" void run(
    int x, int y, int z, Real* rests, unsigned char* active, const Real* slowness, const Real* sources,
    const Real* parameters, const Real* tables, int* flags, Real tolerance, Real least, Real h0, Real h1, Real h2,
    int n0, int n1, int n2, int level, int first0, int first1, int corner)
{
    blockIdx = {x, y, z};
    for (threadIdx.y = 0; threadIdx.y < ROWS; ++threadIdx.y)
        for (threadIdx.x = 0; threadIdx.x < LANES; ++threadIdx.x) {
            calls = 0;
            sweep_plane(
                rests, active, slowness, sources, parameters, tables, flags, tolerance, least, h0, h1, h2, n0, n1, n2,
                level, first0, first1, corner);
        }
}
"""


def eikonal(grid: ImageGrid, position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """Return the first arrivals from a position in seconds, on the host."""
    (times,) = first_arrivals(grid.axes, np.asarray(position)[np.newaxis], np.asarray(velocity), engine="numpy")
    return times


class HostKernel:
    """The kernel of sweep.cu; the threads of all blocks run in turn."""

    def __init__(self, folder: Path, dtype: np.dtype, tilted: bool = False, lanes: int = 8) -> None:
        driver, library = folder / "driver.cpp", folder / "sweep.so"
        driver.write_text(DRIVER)
        command = [COMPILER, "-O1", "-w", "-fPIC", "-shared", "-std=c++20"]
        for name, file in (("SOURCE", "sweep.cu"), ("TILTED", "tilted.cu")):
            command.append(f'-D{name}="{Path(package.__file__).with_name(file)}"')
        command += [f"-DLANES={lanes}"] + ["-DCOLLOPS_DOUBLE"] * (dtype.itemsize == 8) + ["-DCOLLOPS_TILTED"] * tilted
        command += ["-o", str(library), str(driver)]
        subprocess.run(command, check=True, capture_output=True)
        self._lanes = lanes
        real = ctypes.c_double if dtype.itemsize == 8 else ctypes.c_float
        self._run = ctypes.CDLL(str(library)).run
        self._run.argtypes = [ctypes.c_int] * 3 + [ctypes.c_void_p] * 7 + [real] * 5 + [ctypes.c_int] * 7

    def __call__(self, blocks: tuple[int, ...], threads: tuple[int, ...], arguments: tuple) -> None:
        """Launch it."""
        assert threads[0] == self._lanes
        values = [each.ctypes.data if isinstance(each, np.ndarray) else each.item() for each in arguments]
        for x, y, z in itertools.product(*map(range, blocks)):
            self._run(x, y, z, *values)


def fake_cupy() -> SimpleNamespace:
    """Return what the launches need of CuPy, for arrays of NumPy."""
    names = "asarray", "concatenate", "full", "minimum", "sqrt", "zeros"
    device = SimpleNamespace(Device=lambda: SimpleNamespace(id=0))
    return SimpleNamespace(**{name: getattr(np, name) for name in names}, cuda=device)
