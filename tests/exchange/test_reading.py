"""What ranks read from each other's memory: the boxes of all ranks, copied here by their kernel run as C++."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import accumulate, pairwise
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from collops.array import Layout
from collops.array.redistribute import region_reading
from collops.exchange.reading import MOST_BOXES
from tests.boxes_on_host import COMPILER, compiled

RUN = """
extern "C" void run(int blocks, const Boxes* boxes)
{
    gridDim = {blocks, 1};
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x) copy_boxes(*boxes);
}
"""

pytestmark = [pytest.mark.serial, pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A function that returns the kernel for units of some bytes, compiled."""
    return cache(lambda unit: compiled(tmp_path_factory.mktemp("boxes"), unit, RUN))


def read(kernel, reading, memory, target, blocks=5):
    """Do on the host what a launch does, with the memory of all ranks as NumPy arrays."""
    address = target.ctypes.data
    arguments = reading.arguments(target.strides, address % 16)
    assert arguments is not None
    unit, count, sizes, places = arguments
    addresses = reading.addresses([array.ctypes.data for array in memory], address, places)
    addresses += [0] * (2 * MOST_BOXES - len(addresses))
    words = (ctypes.c_int64 * (2 * MOST_BOXES + 1 + len(sizes)))(*addresses, count, *sizes)
    kernel(unit)(blocks * count, words)


CASES = {
    "slabs of an even matrix": ((64, 288), (0, 1), 3),
    "slabs of an odd matrix": ((67, 301), (0, 1), 3),
    "cubes": ((13, 14, 33), (0, 1), 4),
    "backwards": ((13, 21, 33), (1, 0), 2),
    "planes": ((5, 7, 300), (1, 2), 3),
    "fewer rows than ranks": ((3, 400), (0, 1), 4),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("pieces", "slabs"), [(1, 1), (3, 1), (3, 2), (1, 5)])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("shift", [0, 1])  # 1: targets at half a unit
def test_pieces_come_and_go(kernel, name, pieces, slabs, dtype, shift):
    shape, (from_, to), ranks = CASES[name]
    whole = (np.arange(prod(shape)) + 1j * np.arange(prod(shape))[::-1]).reshape(shape).astype(dtype)
    before, parts = (Layout.split(shape, ranks, axis) for axis in (from_, to))
    arrays = [np.ascontiguousarray(whole[before.slices(rank)]) for rank in range(ranks)]
    regions = []
    for rank in range(ranks):
        bounds = [(along.start, along.stop) for along in parts.slices(rank)]
        start, stop = bounds[to]
        cuts = [start + number * (stop - start) // pieces for number in range(pieces + 1)]
        regions.append([(*bounds[:to], pair, *bounds[to + 1 :]) for pair in pairwise(cuts)])
    shapes = [[tuple(stop - start for start, stop in region) for region in each] for each in regions]
    begins = [[*accumulate(map(prod, each), initial=0)] for each in shapes]
    slots = [np.zeros(each[-1] + shift, dtype)[shift:] for each in begins]
    results = [np.zeros_like(array) for array in arrays]
    for number in range(pieces):
        wanted = [[each[number]] for each in regions].__getitem__
        for rank in range(ranks):
            comm, itemsize = SimpleNamespace(rank=rank, size=ranks), np.dtype(dtype).itemsize
            piece = slots[rank][begins[rank][number] : begins[rank][number + 1]].reshape(shapes[rank][number])
            for slab in range(slabs):  # of rows of all ranks
                rows = [(slab * len(each) // slabs, (slab + 1) * len(each) // slabs) for each in arrays]
                come = region_reading(comm, before, wanted, itemsize, rows=None if slabs == 1 else rows)
                assert come.can(piece.shape)
                read(kernel, come, arrays, piece)
            assert np.array_equal(piece, whole[tuple(slice(*bounds) for bounds in regions[rank][number])])
    for number in range(pieces):
        wanted = [[each[number]] for each in regions].__getitem__
        for rank in range(ranks):
            comm = SimpleNamespace(rank=rank, size=ranks)
            places = [each[number] for each in begins]
            go = region_reading(comm, before, wanted, np.dtype(dtype).itemsize, begins=places)
            read(kernel, go, slots, results[rank])
    for result, array in zip(results, arrays, strict=True):
        assert np.array_equal(result, array)


def test_rows_that_are_too_short_are_left_to_messages():
    layout = Layout.split((8, 8), 2)
    reading = region_reading(SimpleNamespace(rank=0, size=2), layout, lambda rank: [((0, 8), (rank, rank + 4))], 8)
    assert not reading.can((8, 4))
