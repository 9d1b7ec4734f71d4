"""The CUDA kernel's arithmetic without a GPU: the same source and the same launches, run on the host by a loop.

The halos of every rank are cut out of the global array, so that one process plays all ranks.
"""

from __future__ import annotations

import copy
import math
import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from collops.array import Layout
from collops.backend import engine
from collops.operators.derivatives.bands import (
    Face,
    LocalBand,
    Problem,
    Several,
    Term,
    first_derivative,
    second_derivative,
)
from collops.operators.derivatives.kernels import cuda
from collops.operators.derivatives.kernels.array_kernels import ArrayKernel
from collops.operators.derivatives.kernels.cuda import Launches, fits

from .host_cuda import COMPILER, run, submit
from .problems import assert_same, values

pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
]


class Rank:
    """What one rank has: its block of every source, and the sides that it would have received."""

    def __init__(self, layout, rank, bands, sources, several):
        self.block = layout.block(rank)
        self.terms = []
        pieces = [np.zeros(0, sources[0].dtype)]
        size = 0
        for number, (axis, band) in enumerate(bands):
            source = sources[number if several is Several.SOURCES else 0]
            start, stop = self.block.offset[axis], self.block.offset[axis] + self.block.shape[axis]
            low, high = band.columns(start, stop)
            faces = []
            for begin, end in ((low, start), (stop, high)):
                if begin == end:
                    faces.append(None)
                    continue
                box = [*self.block.slices]
                box[axis] = slice(begin, end)
                piece = source[tuple(box)]
                faces.append(Face(piece.shape, size, size + piece.size))
                padding = -piece.size % 16
                pieces += [piece.ravel(), np.full(padding, np.nan, piece.dtype)]
                size += piece.size + padding
            self.terms.append(Term(axis, LocalBand(band, start, stop - start), *faces))
        self.landing = aligned(np.concatenate(pieces))
        self.sources = [aligned(source[self.block.slices]) for source in sources]


def aligned(array):
    """A contiguous copy at a multiple of 16 bytes, between numbers that spoil every result they get into."""
    memory = np.full(array.size + 32, np.nan, array.dtype)
    first = -(memory.ctypes.data // array.itemsize) % 16
    assert memory.ctypes.data % array.itemsize == 0
    copy = memory[first : first + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def dense_product(band, axis, x):
    """The band times the global array."""
    matrix = np.zeros((band.size, band.size))
    for number in range(band.size):
        for offset, value in enumerate(band.row(number), -2):
            if value:
                matrix[number, number + offset] = value
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


def both(derivative, size, kind, edge, order, factor):
    """A band and its transpose."""
    made = (
        first_derivative(size, 0.5, kind, edge, order) if derivative == 1 else second_derivative(size, 0.5, kind, edge)
    )
    return made.scaled(factor), made.scaled(factor).transposed


class Sums:
    """A new array as `cupy.ndarray` makes it, at an address of the host."""

    def __init__(self, size, dtype):
        self.values = np.full(size, np.nan, dtype)
        self.itemsize = self.values.itemsize
        self.data = SimpleNamespace(ptr=self.values.ctypes.data)


LAYOUTS = [
    Layout.split(9, 4, sizes=[1, 6, 1, 1]),
    Layout.split((13, 16), 3),
    Layout.split((6, 24), 3, axis=1),
    Layout.grid((5, 7, 8), (2, 2, 1)),
]
NARROW = (Several.NONE, False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the compiled sources are."""
    return tmp_path_factory.mktemp("banded")


def check(layout, bands, several, dtype, wide, folder, add=False):
    """Compare the launches of every rank with the dense matrices, and with the kernel of ufuncs."""
    before = values(layout.shape, dtype, 99) if add else np.full(layout.shape, np.nan, dtype)
    inputs = len(bands) if several is Several.SOURCES else 1
    outputs = len(bands) if several is Several.TARGETS else 1
    sources = [values(layout.shape, dtype, number) for number in range(inputs)]
    products = [
        dense_product(band, axis, sources[number if inputs > 1 else 0]) for number, (axis, band) in enumerate(bands)
    ]
    expected = products if outputs > 1 else [sum(products) + before if add else sum(products)]
    for number, squares in product(range(layout.ranks), (False, True)):
        rank = Rank(layout, number, bands, sources, several)
        if 0 in rank.block.shape:
            continue
        shape, kind = rank.block.shape, np.dtype(dtype)
        assert fits(shape, rank.terms, kind)
        made = Launches(Problem(shape, rank.terms, several, kind, engine("numpy"), add, squares), wide)
        faces_of_others = any(
            (term.before or term.after) for place, term in enumerate(rank.terms) if place != made.march
        )
        ways = [["whole"]] if faces_of_others else [["whole"], ["inner", "rest"]]
        for way in ways:
            targets = [aligned(before[rank.block.slices]) for _ in range(outputs)]
            sums = np.full(sum(made.blocks[part] for part in way), np.nan)
            for part in way:
                launch = made.parts[part]
                if launch is None:
                    continue
                # What needs no face may run before any has come.
                landing = aligned(np.full_like(rank.landing, np.nan)) if part == "inner" else rank.landing
                made.point_at(
                    [array.ctypes.data for array in rank.sources],
                    [array.ctypes.data for array in targets],
                    landing.ctypes.data,
                    kind.itemsize,
                )
                if squares:
                    places = sums[made.blocks["inner"] if part == "rest" else 0 :]
                    launch.argument["squares"] = places.ctypes.data
                run(made.options, launch, folder)
            for target, whole in zip(targets, expected, strict=True):
                assert_same(target, whole[rank.block.slices], dtype)
            if squares:
                wanted = sum(np.linalg.norm(target.astype("c16")) ** 2 for target in targets)
                np.testing.assert_allclose(sums.sum(), wanted, rtol=1e-5 if dtype in ("f4", "c8") else 1e-13)
        targets = [before[rank.block.slices].copy() for _ in range(outputs)]
        kernel = ArrayKernel(Problem(shape, rank.terms, several, kind, engine("numpy"), add))
        kernel.run("whole", rank.sources, targets, rank.landing)
        for target, whole in zip(targets, expected, strict=True):
            assert_same(target, whole[rank.block.slices], dtype)


@pytest.mark.parametrize(
    ("dtype", "formula"),
    [("f4", (1, "centered", True, 5)), ("c16", (2, "centered", True, 3)), ("f8", (2, "forward", False, 3))],
)
def test_one_axis(dtype, formula, folder):
    for layout in LAYOUTS:
        for axis in range(layout.ndim):
            for band in both(formula[0], layout.shape[axis], *formula[1:], 1.0):
                check(layout, [(axis, band)], Several.NONE, dtype, True, folder)


@pytest.mark.parametrize(
    ("dtype", "several", "wide"),
    [("f4", Several.NONE, True), ("f8", Several.SOURCES, True), ("c8", Several.TARGETS, True), ("c16", *NARROW)],
)
def test_all_axes(dtype, several, wide, folder):
    for layout in LAYOUTS:
        made = [both(2, extent, "centered", True, 3, 1.0 + axis) for axis, extent in enumerate(layout.shape)]
        for way in range(2):
            check(layout, [(axis, pair[way]) for axis, pair in enumerate(made)], several, dtype, wide, folder)


@pytest.mark.parametrize(("dtype", "wide"), [("f4", True), ("c16", False)])
def test_added_to_what_there_is(dtype, wide, folder):
    for layout in LAYOUTS:
        made = [both(2, extent, "centered", True, 3, 1.0 + axis) for axis, extent in enumerate(layout.shape)]
        for bands in ([(axis, pair[1]) for axis, pair in enumerate(made)], [(0, made[0][0])]):
            check(layout, bands, Several.NONE, dtype, wide, folder, add=True)


def test_long_chunks(folder, monkeypatch):
    """Threads that go along as many rows as they may."""
    monkeypatch.setattr(cuda, "_THREADS_AT_ONCE", 1)
    layout = Layout.split((150, 40), 2)
    bands = [(axis, second_derivative(layout.shape[axis], 1.0, "centered", True)) for axis in (1, 0)]
    check(layout, bands, Several.NONE, "f4", True, folder)


def test_squares_in_a_fixed_order(folder, monkeypatch):
    """The sums are the same bits whether blocks begin with the first rows or the last."""
    monkeypatch.setattr(cuda, "_THREADS_AT_ONCE", 1)
    terms = [
        Term(axis, LocalBand(second_derivative(size, 1.0, "centered", True), 0, size), None, None)
        for axis, size in enumerate((600, 44))
    ]
    problem = Problem((600, 44), terms, Several.NONE, np.dtype("f4"), engine("numpy"), squares=True)
    made = Launches(problem, True)
    launch, source, target = (
        made.parts["whole"],
        aligned(values((600, 44), "f4", 1)),
        aligned(np.zeros((600, 44), "f4")),
    )
    assert launch is not None and launch.grid[1] > 1
    made.point_at([source.ctypes.data], [target.ctypes.data], 0, 4)
    results = []
    for _ in range(2):
        results.append(np.full(made.blocks["whole"], np.nan))
        launch.argument["squares"] = results[-1].ctypes.data
        run(made.options, launch, folder)
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0].sum(), np.linalg.norm(target.astype("f8")) ** 2, rtol=1e-5)


@pytest.fixture
def device(folder, monkeypatch):
    """Launches by a driver that runs them on the host; a list of their grids and blocks."""
    modules, sizes = [], []

    def launch_kernel(kernel, across, down, deep, width, height, long, shared, stream, parameters, extra):
        assert (deep, long, shared, stream, extra) == (1, 1, 0, 77, 0)
        sizes.append(((across, down), (width, height)))
        submit(modules[kernel], across, down, width, height, parameters, folder)

    def cuda_module(source, options):
        modules.append(options)
        kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=len(modules) - 1))
        return SimpleNamespace(get_function={"banded": kernel}.__getitem__)

    class Device:
        def __init__(self, number=0):
            self.id = number

        def __enter__(self): ...

        def __exit__(self, *error): ...

    driver, stream = SimpleNamespace(launchKernel=launch_kernel), SimpleNamespace(ptr=77)
    current = SimpleNamespace(Device=Device, driver=driver, get_current_stream=lambda: stream)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=current, ndarray=Sums))
    monkeypatch.setattr(cuda, "cuda_module", cuda_module)
    monkeypatch.setattr(cuda, "_compiled", cuda._compiled.__wrapped__)
    return sizes


def test_launches_by_the_driver(device):
    """The driver gets grid, block, the current stream and the argument, also of a deep copy with other arrays."""
    bands = [(0, first_derivative(40, 0.5, "centered", True)), (1, second_derivative(24, 1.0, "centered", True))]
    terms = [Term(axis, LocalBand(band, 0, band.size), None, None) for axis, band in bands]
    problem = Problem((40, 24), terms, Several.NONE, np.dtype("f4"), engine("numpy"), False)
    kernel = cuda.make_kernel(problem)
    for turn in range(4):
        source, target = values((40, 24), "f4", turn), np.full(40 * 24 + 1, np.nan, "f4")
        shifted = target[turn % 2 :][: 40 * 24].reshape(40, 24)  # also addresses that are no multiples of 16
        given, wanted = (SimpleNamespace(data=SimpleNamespace(ptr=array.ctypes.data)) for array in (source, shifted))
        kernel.run("whole", [given], [wanted], None)
        assert_same(shifted, sum(dense_product(band, axis, source) for axis, band in bands), "f4")
        launch = Launches(problem, wide=turn % 2 == 0).parts["whole"]
        assert launch is not None and device.pop() == (launch.grid, launch.block)
        kernel = copy.deepcopy(kernel)


@pytest.mark.parametrize("large", [False, True])
def test_squares_by_the_driver(large, folder, device, monkeypatch):
    """One array has the sums of all blocks, also of those that wait for the faces."""
    monkeypatch.setattr(cuda, "_LARGE", 0 if large else 1 << 60)
    layout = Layout.split((41, 24), 3)
    bands = [(axis, second_derivative(layout.shape[axis], 1.0, "centered", True)) for axis in (0, 1)]
    source = values(layout.shape, "f4", 1)
    expected = sum(dense_product(band, axis, source) for axis, band in bands)
    rank = Rank(layout, 1, bands, [source], Several.NONE)
    target = aligned(np.full(rank.block.shape, np.nan, "f4"))
    problem = Problem(rank.block.shape, rank.terms, Several.NONE, np.dtype("f4"), engine("numpy"), squares=True)
    kernel = cuda.make_kernel(problem)
    given, wanted, landing = (
        SimpleNamespace(data=SimpleNamespace(ptr=array.ctypes.data)) for array in (*rank.sources, target, rank.landing)
    )
    squares = []
    assert kernel.splits == large
    for part in ("inner", "rest") if large else ("whole",):
        kernel.run(part, [given], [wanted], landing, squares)
    assert_same(target, expected[rank.block.slices], "f4")
    ((sums, other),) = squares
    assert other is None and len(sums.values) == sum(math.prod(grid) for grid, _ in device)
    np.testing.assert_allclose(sums.values.sum(), np.linalg.norm(target.astype("f8")) ** 2, rtol=1e-5)


def test_what_does_not_fit():
    def terms(count):
        return [
            Term(axis, LocalBand(first_derivative(5, 1.0, "forward", False), 0, 5), None, None) for axis in range(count)
        ]

    assert fits((5, 5), terms(2), np.dtype("c8"))
    assert not fits((5, 5), terms(2), np.dtype("f2"))
    assert not fits((1 << 31, 2), terms(2), np.dtype("f4"))
    assert not fits((5,) * 10, terms(10), np.dtype("f8"))
