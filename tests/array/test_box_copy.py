"""Copies of large boxes on GPUs, whose kernel runs here as C++ with loops in the place of the threads."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import pytest

from collops import backend
from tests.boxes_on_host import COMPILER, compiled

RUN = """
extern "C" void run(const int* grid, const int* block, const Unit* source, Unit* target, const Long* sizes)
{
    gridDim = {grid[0], grid[1]};
    blockDim = {block[0], block[1]};
    for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
            for (threadIdx.y = 0; threadIdx.y < block[1]; ++threadIdx.y)
                for (threadIdx.x = 0; threadIdx.x < block[0]; ++threadIdx.x)
                    copy_box(source, target, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]);
}
"""

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A function that returns the kernel for units of some bytes, compiled."""
    return cache(lambda unit: compiled(tmp_path_factory.mktemp("boxes"), unit, RUN))


def copy_of(source, target):
    addresses = source.ctypes.data, target.ctypes.data
    return backend.box_copy(source.shape, source.strides, target.strides, source.itemsize, addresses)


ARRAYS = {
    "put in halos": ((37, 70), (39, 72), np.s_[:], np.s_[1:-1, 1:-1], "f4"),
    "columns": ((9, 200), (9, 64), np.s_[:, 64:128], np.s_[:], "c8"),
    "planes": ((5, 40, 33), (5, 7, 33), np.s_[:, 3:10], np.s_[:], "f8"),
    "rows of planes": ((5, 40, 33), (6, 9, 35), np.s_[1:4, 3:10], np.s_[1:4, 1:8, 1:34], "f8"),
    "long rows": ((3, 2500), (3, 2501), np.s_[:], np.s_[:, 1:], "c16"),
    "bytes": ((4, 5, 6, 133), (4, 5, 6, 131), np.s_[..., 2:], np.s_[:], "i1"),
    "reversed planes": ((4, 5, 40), (4, 5, 40), np.s_[::-1], np.s_[:], "f4"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_the_kernel_copies_a_box_and_nothing_else(kernel, name):
    given, wanted, taken, filled, dtype = ARRAYS[name]
    rng = np.random.default_rng(3)
    whole, target = (rng.integers(1, 99, shape).astype(dtype) for shape in (given, wanted))
    expected = target.copy()
    expected[filled] = whole[taken]
    source, box = whole[taken], target[filled]
    copy = copy_of(source, box)
    assert copy is not None and np.prod(copy.block) == 256
    grid, block = ((ctypes.c_int * 2)(*pair) for pair in (copy.grid, copy.block))
    addresses = (ctypes.c_void_p(array.ctypes.data) for array in (source, box))
    kernel(copy.unit)(grid, block, *addresses, (ctypes.c_longlong * 7)(*copy.sizes))
    assert np.array_equal(target, expected)


@pytest.mark.parametrize(("shift", "unit"), [(0, 16), (4, 4), (8, 8), (12, 4), (2, 2), (1, 1)])
def test_units_are_as_large_as_addresses_and_spacings_allow(shift, unit):
    copy = backend.box_copy((10, 256), (272, 1), (256, 1), 1, (4096 + shift, 8192))
    assert copy is not None and copy.unit == unit


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (np.zeros((40, 40)).T, np.zeros((40, 40))),
        (np.zeros((9, 9, 9, 41))[1:-1, 1:-1, 1:-1, :40], np.zeros((7, 7, 7, 40))),
        (np.zeros((40, 80))[:, ::2], np.zeros((40, 40))),
        (np.zeros((40, 80))[:, :10], np.zeros((40, 10))),
    ],
    ids=["transposed", "four axes", "every second element", "short rows"],
)
def test_other_boxes_are_left_to_cupy(source, target):
    assert copy_of(source, target) is None
