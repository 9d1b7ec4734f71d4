"""The arithmetic of convolve.cu without a GPU: the same source as C++, with a loop in the place of the threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from collops.operators import convolve
from collops.operators.convolve.blocks import Convolution, FilterBank
from collops.operators.convolve.gpu import tiling

from .problems import assert_close, matrix

COMPILER = shutil.which("g++") or shutil.which("clang++")
SOURCE = Path(convolve.__file__).with_name("convolve.cu")
DRIVER = """
#define __global__
#define __device__
#define __launch_bounds__(threads)
struct Index { long long x; };
static Index blockIdx, blockDim, threadIdx;
#include SOURCE
#define RUN(NAME, T) \\
    extern "C" void run_##NAME(const T* extended, const T* bank, T* out, long long threads, long long extent, \\
                               long long inner, long long first, long long step, int filters, int taps) \\
    { \\
        blockDim.x = 256; \\
        for (blockIdx.x = 0; blockIdx.x < (threads + 255) / 256; ++blockIdx.x) \\
            for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x) \\
                NAME(extended, bank, out, threads, extent, inner, first, step, filters, taps); \\
    }
RUN(forward_f, float) RUN(forward_d, double) RUN(forward_F, Complex<float>) RUN(forward_D, Complex<double>)
RUN(adjoint_f, float) RUN(adjoint_d, double) RUN(adjoint_F, Complex<float>) RUN(adjoint_D, Complex<double>)
"""

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> dict[str, ctypes.CDLL]:
    """The kernels compiled with each of the options."""
    found = {}
    for option in ("-DWIDE=0", "-DWIDE=1"):
        path = tmp_path_factory.mktemp("convolve") / "convolve.so"
        driver = path.with_suffix(".cpp")
        driver.write_text(DRIVER)
        command = [COMPILER, "-std=c++17", "-O0", "-fPIC", "-shared", "-Wno-unknown-pragmas", option]
        command += [f'-DSOURCE="{SOURCE}"', "-o", str(path), str(driver)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[option] = ctypes.CDLL(str(path))
    return found


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(("ih", "taps"), [((0, 1, 2), 3), ((8, 20, 32), 5), ((17,), 7), ((3, 37), 1), ((0, 39), 61)])
@pytest.mark.parametrize(("offset", "extent"), [(0, 40), (0, 11), (11, 1), (12, 28)])
@pytest.mark.parametrize("inner", [3, 33])
def test_kernel(libraries, ih, taps, dtype, offset, extent, inner, adjoint):
    bank, outer = FilterBank(matrix(len(ih), taps, dtype, 1), ih, 40, dtype), 2
    extended = matrix(outer * (extent + 2 * bank.half), inner, dtype, 2).reshape(outer, -1, inner)
    expected = np.empty((outer, extent, inner), dtype)
    Convolution(bank, offset, extent)(extended, expected, adjoint=adjoint)
    actual = np.full_like(expected, np.nan)
    option, threads = tiling(actual.shape, actual.itemsize)
    run = getattr(libraries[option], f"run_{'adjoint' if adjoint else 'forward'}_{expected.dtype.char}")
    run(
        *(ctypes.c_void_p(array.ctypes.data) for array in (extended, bank.taps, actual)),
        *(ctypes.c_longlong(n) for n in (threads, extent, inner, offset - bank.origin, bank.step)),
        *(ctypes.c_int(n) for n in bank.taps.shape),
    )
    assert_close(actual, expected, dtype)
