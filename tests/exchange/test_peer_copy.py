"""What ranks copy to and from each other's memory: the boxes of all ranks, copied by their kernel run as C++."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import accumulate, pairwise
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from collops.array import Layout
from collops.array.redistribute import region_copy
from collops.exchange.peer_copy import MAX_BOXES
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


def run(kernel, copy, memory, array, blocks=5):
    """Do on the host what a launch does, with the memory of all ranks as NumPy arrays."""
    address = array.ctypes.data
    arguments = copy.arguments(array.strides, address % 8)
    assert arguments is not None
    unit, count, sizes, places = arguments
    assert address % unit == 0 or not copy._boxes
    addresses = copy.addresses([array.ctypes.data for array in memory], address, places)
    addresses += [0] * (2 * MAX_BOXES - len(addresses))
    words = (ctypes.c_int64 * (2 * MAX_BOXES + 2 + len(sizes)))(*addresses, count, copy._writes, *sizes)
    kernel(unit)(blocks * count, words)


CASES = {
    "slabs of an even matrix": ((64, 288), (0, 1), 3),
    "slabs of an odd matrix": ((67, 301), (0, 1), 3),
    "cubes": ((13, 14, 33), (0, 1), 4),
    "backwards": ((13, 21, 33), (1, 0), 2),
    "planes": ((5, 7, 300), (1, 2), 3),
    "fewer rows than ranks": ((3, 400), (0, 1), 4),
    "rows of almost two blocks": ((4, 8, 1023), (0, 1), 4),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("shift", [0, 1, 2])  # floats by which own arrays begin after a whole number
def test_pieces_come_and_go(kernel, name, pieces, dtype, shift):
    """All ranks write the pieces of all, and read them back."""
    shape, (from_, to), ranks = CASES[name]
    whole = (np.arange(prod(shape)) + 1j * np.arange(prod(shape))[::-1]).reshape(shape).astype(dtype)
    before, parts = (Layout.split(shape, ranks, axis) for axis in (from_, to))
    arrays = [shifted(whole[before.slices(rank)], shift) for rank in range(ranks)]
    results = [shifted(np.zeros_like(array), shift) for array in arrays]
    regions = []
    for rank in range(ranks):
        bounds = [(along.start, along.stop) for along in parts.slices(rank)]
        start, stop = bounds[to]
        cuts = [start + number * (stop - start) // pieces for number in range(pieces + 1)]
        regions.append([(*bounds[:to], pair, *bounds[to + 1 :]) for pair in pairwise(cuts)])
    shapes = [[tuple(stop - start for start, stop in region) for region in each] for each in regions]
    begins = [[*accumulate(map(prod, each), initial=0)] for each in shapes]
    memory = [np.zeros(each[-1], dtype) for each in begins]

    def copy_of(rank, number, *, writes):
        wanted, places = [[each[number]] for each in regions].__getitem__, [each[number] for each in begins]
        comm = SimpleNamespace(rank=rank, size=ranks)
        copy = region_copy(comm, before, wanted, places, np.dtype(dtype).itemsize, writes=writes)
        assert copy.supports(before.local_shape(rank))
        return copy

    for number in range(pieces):
        for rank, array in enumerate(arrays):
            run(kernel, copy_of(rank, number, writes=True), memory, array)
    for rank in range(ranks):
        for number, region in enumerate(regions[rank]):
            piece = memory[rank][begins[rank][number] : begins[rank][number + 1]]
            assert np.array_equal(piece.reshape(shapes[rank][number]), whole[tuple(slice(*b) for b in region)])
    for number in range(pieces):
        for rank, result in enumerate(results):
            run(kernel, copy_of(rank, number, writes=False), memory, result)
    for result, array in zip(results, arrays, strict=True):
        assert np.array_equal(result, array)


def shifted(array, shift):
    """Return a copy that begins so many floats after a multiple of the size of its elements."""
    memory = np.zeros(array.nbytes + 16 * shift, np.uint8)[4 * shift :]
    copy = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_every_rank_may_want_all(kernel):
    """Parts of uneven and empty ranks, written to the memory of all."""
    sizes, shape = [3, 0, 5, 1], (9, 4, 33)
    whole = np.random.default_rng(1).standard_normal((*shape, 2)).view("c16")[..., 0]
    layout = Layout.split(shape, 4, sizes=sizes)
    memory = [np.zeros(prod(shape) + 7, "c16") for _ in range(4)]
    for rank in range(4):
        comm = SimpleNamespace(rank=rank, size=4)
        copy = region_copy(comm, layout, lambda _: [((0, 9), (0, 4), (0, 33))], [0, 7, 3, 5], 16, writes=True)
        run(kernel, copy, memory, np.ascontiguousarray(whole[layout.slices(rank)]))
    for begin, array in zip([0, 7, 3, 5], memory, strict=True):
        assert np.array_equal(array[begin : begin + prod(shape)], whole.ravel())
        assert not array[:begin].any()
        assert not array[begin + prod(shape) :].any()


def test_rows_that_are_too_short_are_left_to_messages():
    layout = Layout.split((8, 8), 2)
    comm = SimpleNamespace(rank=0, size=2)
    copy = region_copy(comm, layout, lambda rank: [((0, 8), (rank, rank + 4))], [0, 0], 8, writes=False)
    assert not copy.supports((4, 8))
