"""The fused operations on the host: every dtype, aliasing, coefficients and memory layout."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import collops.array as ca
from collops import profile
from collops.array import DistributedArray, Layout, StackedArray, StackedLayout
from collops.errors import LayoutError, UnsupportedTypeError
from tests.array.cases import HALF, INEXACT, dtype_of, layouts, masks, tolerance, values

COEFFICIENTS = [
    *(0, 1, -1.5, 2, np.float64(0.25), np.array(0.5, np.float32)),
    (-1.0, np.float32(0.5)),
    (2, 3.0, np.float32(4)),
    (2, np.float32(3), 0),
]


def number(c):
    if not isinstance(c, tuple):
        return float(c)
    factor, top, bottom = (*c, 1) if len(c) == 2 else c
    return factor * float(top) / float(bottom) if bottom else 0.0


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("name", [*INEXACT, *HALF])
@pytest.mark.parametrize("alias", ["none", "new", "x", "y", "same"])
def test_axpby(comm, name, alias):
    dtype = dtype_of(name)
    layout = Layout.split((9, 5), comm.size)
    a0, b0 = values(layout.shape, "float64").astype(dtype), values(layout.shape, "float64", seed=1).astype(dtype)
    wide = np.float32 if dtype.itemsize == 2 else dtype
    for a, b in itertools.product(COEFFICIENTS, COEFFICIENTS):
        x, y = ca.from_global(a0, layout, comm=comm), ca.from_global(b0, layout, comm=comm)
        if alias == "same":
            y = x
        out = {"none": None, "new": ca.empty_like(x), "x": x, "y": y, "same": x}[alias]
        kept = None if out is None else out.local_array
        second = a0 if alias == "same" else b0
        expected = (number(a) * a0.astype(wide) + number(b) * second.astype(wide)).astype(dtype)
        result = ca.axpby(a, x, b, y, out=out)
        assert result.dtype == dtype  # coefficients never raise the precision
        if out is not None:
            assert result is out
            assert out.local_array is kept
        np.testing.assert_allclose(result.gather().astype(wide), expected.astype(wide), **tolerance(dtype))


def test_axpby_of_long_arrays_goes_in_pieces(comm):
    size = 100_003
    for name in ("float64", "float16", "complex64"):
        a, b = values(size, name), values(size, name, seed=1)
        layout = Layout.split(size, comm.size)
        for out_of in ("none", "x", "y"):
            x, y = ca.from_global(a, layout, comm=comm), ca.from_global(b, layout, comm=comm)
            out = {"none": None, "x": x, "y": y}[out_of]
            result = ca.axpby(0.5, x, -3.0, y, out=out)
            np.testing.assert_allclose(result.gather(), (0.5 * a - 3.0 * b).astype(name), **tolerance(name))
        np.testing.assert_allclose(x.vdot(y), np.vdot(a.astype("complex128"), y.gather()), rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("loops")
def test_a_zero_coefficient_excludes_its_array(comm):
    x = ca.ones(5, comm=comm)
    bad = ca.full(5, np.nan, comm=comm)
    for one in (ca.axpby(0, bad, 2.0, x), ca.axpby(2.0, x, 0.0, bad), ca.axpby(2.0, x, 0, bad.copy(), out=bad)):
        assert float(one.sum()) == 10
    bad.fill(np.nan)
    assert float(ca.axpby(0, bad, 0, bad).sum()) == 0
    target = x.copy()
    assert float(ca.axpby(0.0, ca.full(5, np.nan), 1, target, out=target).sum()) == 5
    for name in ("float64", "float16", "complex64"):
        good = ca.ones(5, dtype=name, comm=comm)
        for a, b in ((0, 2), (2, 0)):
            for position in (0, 1):
                bad = ca.full(5, np.nan, dtype=name, comm=comm)
                pair = (bad, good) if a == 0 else (good, bad)
                out = (bad, good.copy())[position]
                assert complex(ca.axpby(a, pair[0], b, pair[1], out=out).sum()) == 10


def test_axpby_promotes(comm):
    shape = (6,)
    real, whole = values(shape, np.float32), values(shape, np.int32)
    x, n = ca.from_global(real, comm=comm), ca.from_global(whole, comm=comm)
    assert ca.axpby(2, n, 3, n).dtype == np.int32
    np.testing.assert_array_equal(ca.axpby(2, n, 3, n).gather(), 5 * whole)
    assert ca.axpby(2.5, n, 3, n).dtype == np.float64
    assert ca.axpby(1j, x, 1, x).dtype == np.complex64
    np.testing.assert_allclose(ca.axpby(1j, x, 2, x).gather(), (2 + 1j) * real)
    mixed = ca.axpby(1.5, x, 2, n)
    assert mixed.dtype == (real + whole).dtype
    np.testing.assert_allclose(mixed.gather(), 1.5 * real + 2 * whole)
    double = ca.zeros(shape, comm=comm)
    np.testing.assert_allclose(ca.axpby(1, x, 2, n, out=double).gather(), real + 2 * whole)
    before = x.gather()
    for wrong in (lambda: ca.axpby(1j, n, 0.5, x, out=x), lambda: ca.axpby(1j, x.copy(), 2.0, x, out=x)):
        if x.local_array.size:
            with pytest.raises(TypeError):
                wrong()
    np.testing.assert_array_equal(x.gather(), before)  # nothing was written before the error


@pytest.mark.usefixtures("loops")
def test_axpby_with_strides_and_shared_memory(comm):
    shape = (8, 6)
    layout = Layout.split(shape, comm.size)
    local = layout.local_shape(comm.rank)
    store = values((local[0] + 1, 2 * local[1]))
    a, b = store[1:, ::2].copy(), store[:-1, 1::2].copy()
    x = DistributedArray(layout, comm, store[1:, ::2])
    y = DistributedArray(layout, comm, store[:-1, 1::2])
    np.testing.assert_allclose(ca.axpby(2.0, x, 3.0, y).local_array, 2 * a + 3 * b)
    ca.axpby(2.0, x, 3.0, y, out=y)
    np.testing.assert_allclose(y.local_array, 2 * a + 3 * b)
    np.testing.assert_allclose(x.vdot(y), ca.from_global(x.gather()).vdot(ca.from_global(y.gather())))
    # The source one element behind the target: every element must be read before it is written.
    line = Layout.split(40 * comm.size, comm.size)
    memory = values(41)
    before = memory.copy()
    source, target = DistributedArray(line, comm, memory[:-1]), DistributedArray(line, comm, memory[1:])
    ca.axpby(2.0, source, 3.0, target, out=target)
    np.testing.assert_allclose(target.local_array, 2 * before[:-1] + 3 * before[1:])
    view = DistributedArray(line, comm, target.local_array[:])
    expected = 5 * target.local_array
    ca.axpby(2.0, view, 3.0, target, out=target)
    np.testing.assert_allclose(target.local_array, expected)


@pytest.mark.parametrize("size", [9, 50_000])
def test_axpby_into_memory_that_blas_cannot_write(comm, size):
    x = ca.ones(Layout.replicated(size, comm.size), comm=comm)
    y = DistributedArray(x.layout, comm, np.zeros(8 * size + 1, np.uint8)[1:].view(np.float64))
    assert not y.local_array.flags.aligned
    ca.axpby(2.0, x, 1.0, y, out=y)
    np.testing.assert_array_equal(y.local_array, 2.0)
    y.local_array = np.zeros(size)
    y.local_array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        ca.axpby(2.0, x, 1.0, y, out=y)
    assert not y.local_array.any()


def test_axpby_of_stacks(comm):
    leaves = [ca.random(layout, comm=comm) for layout in [*layouts((4, 3), comm.size), Layout.split(5, comm.size)]]
    x = StackedArray([leaves[0], StackedArray(leaves[1:])])
    y = x * 2
    result = ca.axpby(1.0, x, np.float64(0.5), y, out=y)
    assert result is y
    np.testing.assert_allclose((y - 2 * x).norm(), 0, atol=1e-14)
    np.testing.assert_allclose((ca.axpby(1.0, x, 1.0, x) - 2 * x).norm(), 0, atol=1e-14)


@pytest.mark.parametrize("name", INEXACT)
@pytest.mark.parametrize("columns", [(16, 32), (16, 3, 5)])  # parts in one block of memory, and apart
@pytest.mark.parametrize("copies", [False, True])
def test_combinations_of_new_stacks_and_their_squares(comm, name, columns, copies):
    layouts_of_parts = [Layout.split((comm.size * 4, n), comm.size) for n in columns]
    if copies:
        layouts_of_parts[0] = Layout.replicated((4, columns[0]), comm.size)
    layout = StackedLayout([layouts_of_parts[0], StackedLayout(layouts_of_parts[1:])])
    given = [values(part.shape, name, seed=seed) for seed, part in enumerate(layouts_of_parts)]
    x, y = (ca.empty(layout, comm=comm, dtype=name) for _ in range(2))
    assert (x._local_block is None) == (columns == (16, 3, 5) or (copies and comm.size > 1 and comm.rank > 0))
    for leaf, other, part, a in zip(x.leaves, y.leaves, layouts_of_parts, given, strict=True):
        leaf.local_array[...] = ca.from_global(a, part, comm=comm).local_array
        other.local_array[...] = 2 * leaf.local_array
    flat = np.concatenate([a.ravel() for a in given])
    with profile.count_messages() as messages:
        y, square = ca.axpby_and_square(-0.5, x, 2.0, y, out=y)
        assert not messages.total
        products = ca.dots(square, (x, x), (x, y))
    assert messages.total == (comm.size > 1)
    norms = np.vdot(flat, flat).real * np.array([3.5**2, 1, 3.5])
    np.testing.assert_allclose([complex(value) for value in products], norms, **tolerance(np.dtype(name)))
    np.testing.assert_allclose(complex(ca.dots(square)[0]), norms[0], **tolerance(np.dtype(name)))
    deep = copy.deepcopy(y)
    deep.leaves[0].local_array[...] *= 2
    alone = values(layouts_of_parts[0].shape, name) * 3.5
    grown = np.array([norms[0] + 3 * np.vdot(alone, alone).real])
    np.testing.assert_allclose([complex(deep.vdot(deep))], grown, **tolerance(np.dtype(name)))
    # A part may get other memory.
    x.leaves[-1].local_array = 3 * x.leaves[-1].local_array
    assert x._local_block is None
    y = ca.axpby(1.0, x, 0.0, y, out=y)
    flat[flat.size - given[-1].size :] *= 3
    np.testing.assert_allclose(float(y.norm()), np.linalg.norm(flat), **tolerance(np.dtype(name)))


def test_errors_of_a_combination_and_its_square(comm):
    """Those of axpby."""
    x = ca.ones(comm.size, comm=comm)
    with pytest.raises(UnsupportedTypeError, match="combines distributed arrays"):
        ca.axpby_and_square(1.0, x.local_array, 1.0, x, out=x)
    with pytest.raises(LayoutError):
        ca.axpby_and_square(1.0, x, 1.0, ca.ones(comm.size + 1, comm=comm), out=x)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("name", [*INEXACT, *HALF, "int32"])
def test_dots(comm, name):
    dtype = dtype_of(name)
    wide = np.float32 if dtype.itemsize == 2 else dtype
    arrays = []
    for number, layout in enumerate(layouts((5, 3), comm.size)):
        a = values(layout.shape, "float64" if dtype.itemsize == 2 else dtype, seed=number).astype(dtype)
        arrays.append((a.astype(wide), ca.from_global(a, layout, comm=comm)))
    pairs = *[(x, x) for _, x in arrays], *[(x, x + x) for _, x in arrays]
    expected = [np.vdot(a, a).real for a, _ in arrays] + [2 * np.vdot(a, a) for a, _ in arrays]
    finish = ca.start_dots(*pairs)
    for result, value in zip((*ca.dots(*pairs), *finish()), 2 * expected, strict=True):
        assert result.ndim == 0
        assert result.dtype == value.dtype
        np.testing.assert_allclose(result, value, **tolerance(dtype))


def test_dots_of_several_layouts(comm):
    x = ca.random((7, 2), comm=comm)
    whole = ca.random(Layout.replicated(3, comm.size), comm=comm)
    np.testing.assert_allclose(ca.dots((x, 2 * x), (x, -x)), [2 * x.vdot(x), -x.vdot(x)])
    for dots in (ca.dots, lambda *pairs: ca.start_dots(*pairs)()):
        np.testing.assert_allclose(dots((x, x), (whole, whole)), [x.vdot(x), whole.vdot(whole)])
        assert dots() == ()


def test_arrays_may_change_before_their_products_are_finished(comm):
    x = ca.ones(6, comm=comm)
    with profile.count_messages() as sent:
        finish = ca.start_dots((x, x), (x, 2 * x))
        x.local_array[...] = 5
    assert [message.elements for message in sent.records] == ([2] if comm.size > 1 else [])
    assert finish() == finish() == (6, 12)


@pytest.mark.usefixtures("loops")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_coefficients_that_count_if_finite(comm, dtype):
    x = ca.full((5,), np.nan, comm=comm, dtype=dtype)
    y = ca.ones((5,), comm=comm, dtype=dtype)
    real = np.dtype(dtype).type(0).real.dtype.type
    zero, one, two, inf, nan = (real(number) for number in (0, 1, 2, np.inf, np.nan))
    for parts in [(1.0, one, nan), (1.0, inf, one), (-1.0, nan), (1.0, one, inf), (1.0, one, zero)]:
        np.testing.assert_array_equal(ca.axpby(ca.Finite(parts), x, 1.0, y).local_array, y.local_array)
    assert np.isnan(ca.axpby((1.0, one, inf), y, 1.0, y).local_array).all()  # nothing is known of what has overflowed
    np.testing.assert_array_equal(ca.axpby(ca.Finite((3.0, one, two)), y, 1.0, y).local_array, 2.5 * y.local_array)


@pytest.mark.serial
def test_quotients_on_the_host():
    zero, one, two, inf, nan = map(np.float32, (0, 1, 2, np.inf, np.nan))
    pairs = (one, two), (one, zero), (zero, zero), (one, inf), (inf, inf), (inf, two), (nan, two)
    np.testing.assert_array_equal([ca.quotient(*pair) for pair in pairs], [0.5, 0, 0, nan, nan, inf, nan])
    np.testing.assert_array_equal([ca.finite(ca.quotient(*pair)) for pair in pairs], [0.5, 0, 0, 0, 0, 0, 0])


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_update_solution_and_direction(comm, monkeypatch, dtype):
    monkeypatch.setattr("collops.array.kernels.numpy_kernels.PIECE", 3)  # elements, fewer than a rank has
    layouts = [Layout.split((7, 2), comm.size), Layout.replicated(3, comm.size)]
    x, direction, gradient = (
        ca.StackedArray([ca.random(layout, seed=seed, comm=comm, dtype=dtype) for layout in layouts])
        for seed in range(3)
    )
    expected = x + 0.5 * direction, gradient - 3.0 * direction
    one = np.asarray(2, dtype)[()]
    ca.update_solution_and_direction(x, (1.0, one, 2 * one), direction, (-1.5, one), gradient)
    for result, wanted in zip((x, direction), expected, strict=True):
        for part, other in zip(result.leaves, wanted.leaves, strict=True):
            np.testing.assert_allclose(part.local_array, other.local_array, **tolerance(np.dtype(dtype)))
    with pytest.raises(LayoutError):
        ca.update_solution_and_direction(x, 1.0, direction, 1.0, gradient.arrays[0])


def test_dots_of_different_masks(comm):
    x = ca.ones(6, comm=comm)
    for mask in masks(comm.size):
        y = ca.ones(Layout.split(6, comm.size, mask=mask), comm=comm)
        mine = sum(y.layout.local_size(r) for r in range(comm.size) if mask[r] == mask[comm.rank])
        for products in (ca.dots((x, x), (y, y)), ca.start_dots((x, x), (y, y))()):
            assert [float(value) for value in products] == [6, mine]


def test_divide():
    assert ca.divide(3.0, 2.0) == 1.5
    assert ca.divide(3, 0) == 0
    result = ca.divide(np.float32(3), np.float32(2))
    assert result == 1.5
    assert result.dtype == np.float32
    zero = ca.divide(np.float32(1), np.float32(0))
    assert zero == 0
    assert zero.dtype == np.float32
    assert ca.divide(np.array(1j), 2).item() == 0.5j
    assert ca.divide(0.0, 0.0) == 0


def test_refusals(comm):
    x = ca.zeros(4, comm=comm)
    with pytest.raises(LayoutError):
        ca.axpby(1, x, 1, ca.zeros(5, comm=comm))
    with pytest.raises(LayoutError):
        ca.axpby(1, x, 1, x, out=ca.zeros(5, comm=comm))
    with pytest.raises(UnsupportedTypeError):
        ca.axpby(1, x, 1, np.zeros(4))
    with pytest.raises(UnsupportedTypeError):
        ca.dots((x, np.zeros(4)))
    with pytest.raises(LayoutError):
        x.dot(ca.zeros(5, comm=comm))
    twin = comm.split(0)
    if twin is not comm:
        with pytest.raises(LayoutError, match="communicator"):
            ca.zeros(4, comm=twin) + x
        with pytest.raises(LayoutError, match="communicator"):
            ca.axpby(1, ca.zeros(4, comm=twin), 1, x)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_inner_products_that_overflow(comm, dtype):
    """They are not finite, without a warning: solvers find out by their numbers."""
    x = ca.full(70_000 * comm.size, np.finfo(dtype).max / 2, comm=comm, dtype=dtype)
    y = x.copy()
    for value in (*ca.dots((x, x), (x, y)), x.dot(x), x.vdot(x), x.dot(y)):
        assert not np.isfinite(value)


@pytest.mark.serial
@pytest.mark.parametrize("size", (9_999, 10_000, 43_210))
@pytest.mark.parametrize("name", ("float32", "float64", "complex64", "complex128"))
def test_dots_do_not_depend_on_threads_of_blas(comm, name, size):
    x, y = (ca.random(Layout.split(size, comm.size), seed=seed, comm=comm, dtype=name) for seed in range(2))
    with threadpool_limits(2):
        found = ca.dots((x, y), (x, x))
    with threadpool_limits(1):
        assert [complex(value) for value in found] == [complex(value) for value in ca.dots((x, y), (x, x))]
    a, b = (array.gather().astype(complex) for array in (x, y))
    np.testing.assert_allclose(
        [complex(value) for value in found],
        [np.sum(a.conj() * b), np.sum(abs(a) ** 2)],
        rtol=1e-4 if np.dtype(name).char in "fF" else 1e-10,
    )
