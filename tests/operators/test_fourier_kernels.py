"""The kernels of Fourier transforms on GPUs, which run here as C++ with one thread a block, against NumPy."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from collops.operators import fourier
from collops.operators.fourier.chirp import Axis, chirp_length, tables
from collops.operators.fourier.lines import digits, radices

COMPILER = shutil.which("g++") or shutil.which("clang++")
FOLDER = Path(fourier.__file__).parent
SHIM = """
#define __global__
#define __device__
#define __shared__
#define __restrict__
#define __launch_bounds__(threads)
static void __syncthreads() {}
struct Index { int x, y; };
static Index threadIdx = {0, 0}, blockDim = {1, 1}, blockIdx, gridDim;
extern double memory[];
#include BEFORE
#include SOURCE
#define EACH_BLOCK(width, height) \\
    for (blockIdx.y = 0; blockIdx.y < height; ++blockIdx.y) \\
        for (blockIdx.x = 0; blockIdx.x < width; ++blockIdx.x)
"""
REAL = """
double memory[LENGTH * COLUMNS * sizeof(Complex) / sizeof(double)];
extern "C" void run(int back, int width, int height, void* source, void* target, Long after, Axis* axis, Complex* roots,
                    Complex* spectrum, Complex* chirp, REAL* factors)
{
    EACH_BLOCK(width, height)
        if (back)
            real_adjoint((Complex*)source, (REAL*)target, after, *axis, roots, spectrum, chirp, factors);
        else
            real_forward((REAL*)source, (Complex*)target, after, *axis, roots, spectrum, chirp, factors);
}
"""
LINES = """
double memory[LENGTH * COLUMNS * sizeof(Complex) / sizeof(double)];
extern "C" void run(int inverse, int width, int height, Complex* source, Complex* target, Long after, Complex* roots,
                    double scale)
{
    EACH_BLOCK(width, height)
        (inverse ? back : forward)(source, target, after, roots, scale);
}
"""
TYPES = {"float": ("f4", "c8", 1e-6), "double": ("f8", "c16", 1e-14)}

pytestmark = [pytest.mark.serial, pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A function that returns a source of this folder as a library, compiled with options."""

    @cache
    def library(source, driver, *options):
        path = tmp_path_factory.mktemp("kernels") / "kernel.so"
        path.with_suffix(".cpp").write_text(SHIM + driver)
        command = [COMPILER, "-std=c++17", "-O1", "-fPIC", "-shared", "-Wno-unknown-pragmas", *options]
        command += [
            f'-DBEFORE="{FOLDER / "steps.cu"}"',
            f'-DSOURCE="{FOLDER / source}"',
            "-o",
            str(path),
            str(path.with_suffix(".cpp")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(path))

    return library


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


# Samples given, the shift before, length, first and number of frequencies, the shift after.
AXES = [
    Axis(501, 250, 501, 0, 251, 0),
    Axis(501, 250, 501, 62, 63, 0),
    Axis(128, 7, 128, 3, 20, 4),
    Axis(100, 50, 125, 0, 40, 20),
    Axis(128, 3, 90, 5, 41, 0),
    Axis(9, 4, 9, 0, 5, 0),
    Axis(1, 0, 1, 0, 1, 0),
    Axis(2, 1, 2, 0, 2, 1),
    Axis(900, 0, 900, 0, 451, 0),
]


@pytest.mark.parametrize("real", TYPES)
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_real_transforms_of_any_length(compiled, axis, real):
    real_type, complex_type, tolerance = TYPES[real]
    before, after = 2, 37
    length = chirp_length(axis.samples, before, after)
    assert length is not None and length >= 2 * axis.samples - 1
    kernel = compiled("real.cu", REAL, f"-DREAL={real}", f"-DLENGTH={length}", "-DCOLUMNS=4", "-DTHREADS=1")
    rng = np.random.default_rng(axis.samples)
    x = rng.standard_normal((before, axis.given, after)).astype(real_type)
    factors = rng.standard_normal(axis.samples // 2 + 1).astype(real_type)
    constants = [table.astype(complex_type) for table in tables(axis.samples, length)]
    numbers = np.array(axis, np.int32)
    grid = -(-after // 8), before

    def run(back, source, target):
        tail = map(pointer, (numbers, *constants, factors))
        kernel.run(back, *grid, pointer(source), pointer(target), ctypes.c_longlong(after), *tail)
        return target

    padded = np.zeros((before, axis.samples, after))
    common = min(axis.given, axis.samples)
    padded[:, :common] = np.roll(x, -axis.shift, 1)[:, :common]
    spectra = np.fft.rfft(padded, axis=1) * factors[:, None]
    expected = np.roll(spectra[:, axis.first : axis.first + axis.taken], -axis.turn, 1)
    result = run(0, x, np.full(expected.shape, np.nan, complex_type))
    assert np.abs(result - expected).max() < tolerance * np.abs(spectra).max()
    # The adjoint over the real numbers, element by element through random data.
    s = (rng.standard_normal(expected.shape) + 1j * rng.standard_normal(expected.shape)).astype(complex_type)
    back = run(1, s, np.full(x.shape, np.nan, real_type))
    scale = np.linalg.norm(expected) * np.linalg.norm(s)
    assert abs(np.vdot(expected, s).real - np.vdot(x.astype(float), back)) < tolerance * scale


@pytest.mark.parametrize("real", TYPES)
@pytest.mark.parametrize("length", [2, 12, 13, 49, 120, 144, 272, 275, 343, 1584])
def test_lines(compiled, length, real):
    """Both directions, into another array and in place."""
    _, complex_type, tolerance = TYPES[real]
    factors = radices(length)
    assert factors is not None and np.prod(factors) == length
    options = f"-DREAL={real}", f"-DLENGTH={length}", f"-DRADICES={digits(factors)}", "-DCOLUMNS=4", "-DTHREADS=1"
    kernel = compiled("lines.cu", LINES, *options)
    rng = np.random.default_rng(length)
    x = (rng.standard_normal((2, length, 5)) + 1j * rng.standard_normal((2, length, 5))).astype(complex_type)
    roots = np.exp(-2j * np.pi * np.arange(length) / length).astype(complex_type)
    for inverse, transform in enumerate((np.fft.fft, np.fft.ifft)):
        norm = "forward" if inverse else "backward"
        expected = 0.5 * transform(x.astype(complex), axis=1, norm=norm)
        for result in (np.full(x.shape, np.nan, complex_type), x):
            arrays = pointer(x), pointer(result), ctypes.c_longlong(5), pointer(roots)
            kernel.run(inverse, 2, 2, *arrays, ctypes.c_double(0.5))
            assert np.abs(result - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.parametrize(
    ("length", "factors"), [(4480, (16, 8, 5, 7)), (6336, (16, 4, 9, 11)), (1, None), (19, None), (2 * 509, None)]
)
def test_radices(length, factors):
    assert radices(length) == factors


@pytest.mark.parametrize(
    ("samples", "before", "after", "length"),
    [(501, 1, 19800, 1024), (1024, 1, 16, 2048), (1025, 1, 16, None), (9, 1, 15, None), (9, 65536, 16, None)],
)
def test_lengths_of_real_transforms(samples, before, after, length):
    assert chirp_length(samples, before, after) == length
