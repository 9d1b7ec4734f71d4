"""The kernels of Fourier transforms on GPUs, which run here as C++ with one thread a block, against NumPy."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from collops.backend import engine
from collops.operators import fourier
from collops.operators.fourier import real as real_transforms
from collops.operators.fourier.lines import digits, radices
from collops.operators.fourier.real import Axis, RealTransform, real_plan

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
extern "C" void run(int back, int width, int height, void* source, void* target, Long after, Long source_row,
                    Long target_row, Axis* axis, Complex* roots, Complex* spectrum, Complex* chirp, REAL* factors)
{
    EACH_BLOCK(width, height)
        if (back)
            real_adjoint((Complex*)source, (REAL*)target, after, source_row, target_row, *axis, roots, spectrum, chirp,
                         factors);
        else
            real_forward((REAL*)source, (Complex*)target, after, source_row, target_row, *axis, roots, spectrum, chirp,
                         factors);
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
    Axis(100, 50, 127, 0, 40, 20),
    Axis(128, 3, 90, 5, 41, 0),
    Axis(128, 3, 89, 5, 40, 0),
    Axis(9, 4, 9, 0, 5, 0),
    Axis(1, 0, 1, 0, 1, 0),
    Axis(2, 1, 2, 0, 2, 1),
    Axis(907, 0, 907, 0, 454, 0),
    Axis(1000, 0, 2000, 0, 1001, 0),
]


@pytest.fixture
def launches_on_host(compiled, monkeypatch):
    """Let the kernels of real transforms be launched here, with the arguments that CuPy gets."""

    def kernel(module, sources, name, *options):
        run = compiled("real.cu", REAL, *options).run

        def launch(grid, block, arguments, shared_mem):
            assert all(array.base is not None for array in arguments[:2])  # columns are not copied
            values = [pointer(v) if isinstance(v, np.ndarray) else ctypes.c_longlong(v) for v in arguments]
            run(name == "real_adjoint", *grid, *values)

        return launch

    monkeypatch.setattr(real_transforms, "cuda_kernel", kernel)


@pytest.mark.usefixtures("launches_on_host")
@pytest.mark.parametrize("real", TYPES)
@pytest.mark.parametrize("axis", AXES, ids=str)
def test_real_transforms_of_any_length(axis, real):
    """Along a middle axis, and of some columns of arrays whose other columns stay as they are."""
    real_type, complex_type, tolerance = TYPES[real]
    plan = real_plan(axis.samples, 1, 36)
    assert plan is not None
    rng = np.random.default_rng(axis.samples)
    factors = rng.standard_normal(axis.samples // 2 + 1).astype(real_type)
    transform = RealTransform(axis, plan, factors, engine("numpy"))
    for place, before, after, part in ((1, (2,), (37,), ...), (0, (), (5, 12), np.s_[:, 1:4])):
        shapes = (*before, axis.extent, *after), (*before, axis.frequencies, *after)
        x = rng.standard_normal(shapes[0]).astype(real_type)
        padded = np.zeros((*before, axis.samples, *after))
        common = np.arange(min(axis.extent, axis.samples))
        np.moveaxis(padded, place, 0)[common] = np.moveaxis(np.roll(x, -axis.shift, place), place, 0)[common]
        columns = (-1, *[1] * len(after))
        spectra = np.fft.rfft(padded, axis=place) * factors.reshape(columns)
        taken = np.take(spectra, np.arange(axis.first, axis.first + axis.frequencies), place)
        expected = np.full(shapes[1], np.nan, complex)
        expected[part] = np.roll(taken, -axis.turn, place)[part]
        result = np.full(shapes[1], np.nan, complex_type)
        transform(x[part], result[part], place, back=False)
        np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance * np.abs(spectra).max())
        # The adjoint over the real numbers, element by element through random data.
        s = (rng.standard_normal(shapes[1]) + 1j * rng.standard_normal(shapes[1])).astype(complex_type)
        back = np.full(shapes[0], np.nan, real_type)
        transform(s[part], back[part], place, back=True)
        scale = np.linalg.norm(expected[part]) * np.linalg.norm(s)
        assert (
            abs(np.vdot(expected[part], s[part]).real - np.vdot(x[part].astype(float), back[part])) < tolerance * scale
        )
        assert np.count_nonzero(np.isnan(back)) == back.size - back[part].size


@pytest.mark.parametrize("real", TYPES)
@pytest.mark.parametrize("length", [2, 12, 13, 49, 120, 144, 272, 275, 343, 344, 19 * 23, 1584])
def test_lines(compiled, length, real):
    """Both directions, into another array and in place."""
    _, complex_type, tolerance = TYPES[real]
    factors = radices(length, large=True)
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


@pytest.mark.parametrize(("length", "factors"), [(344, (43, 8)), (19 * 31, (31, 19)), (47, None)])
def test_large_radices(length, factors):
    assert radices(length, large=True) == factors


@pytest.mark.parametrize(
    ("samples", "before", "after", "length"),
    [
        (501, 1, 19800, 1024),
        (1019, 1, 16, 2048),
        (2000, 1, 16, 2000),
        (2049, 1, 16, None),
        (9, 1, 15, None),
        (9, 65536, 16, None),
    ],
)
def test_lengths_of_real_transforms(samples, before, after, length):
    plan = real_plan(samples, before, after)
    assert (plan and plan.length) == length
    assert plan is None or (plan.radices is None) == (length > samples)
