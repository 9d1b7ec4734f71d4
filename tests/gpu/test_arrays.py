"""Arrays in device memory: the kernels of vector.cu, and everything that arrays do on hosts, against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import collops.array as ca
from collops import profile
from collops.array import Layout, StackedArray, StackedLayout
from collops.errors import UnsupportedTypeError
from tests.array.cases import HALF, INEXACT, dtype_of, layouts, tolerance, uneven, values

pytestmark = pytest.mark.usefixtures("device")
cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

SIZES = [0, 1, 7, 1000, 4099, 300_001]


def host(x):
    return cupy.asnumpy(x.gather())


def on_device(a, layout, comm):
    return ca.from_global(a, layout, comm=comm, engine="cupy")


def pair(comm, size, dtype):
    """Two vectors split unevenly, as host and as device arrays."""
    layout = Layout.split(size, comm.size, sizes=uneven(size, comm.size))
    a, b = (values(size, "float64", seed=seed).astype(dtype) for seed in (0, 1))
    if dtype.kind == "c":
        a, b = values(size, dtype), values(size, dtype, seed=1)
    return a, b, on_device(a, layout, comm), on_device(b, layout, comm)


def coefficients(dtype):
    """What a coefficient may be, and the number that it stands for."""
    scalar = cupy.float32 if dtype.itemsize == 2 else np.dtype(dtype).type(0).real.dtype.type
    found = [
        (2.0, 2.0),
        (-1, -1.0),
        (0, 0.0),
        (np.float64(0.5), 0.5),
        (np.array(0.25), 0.25),
        (cupy.full((), 1.5, scalar), 1.5),
        (cupy.full((), 0, scalar), 0.0),
        ((-1.0, cupy.full((), 0.75, scalar)), -0.75),
        ((2, cupy.full((), 3, np.int32)), 6.0),
        ((-1.0, cupy.full((), 3, scalar), cupy.full((), 4, scalar)), -0.75),
        ((1, cupy.full((), 3, scalar), cupy.full((), 0, scalar)), 0.0),
        ((0.5, cupy.full((), 3, np.float64), cupy.full((), 2, np.int32)), 0.75),
        (cupy.full((), 0.5, np.float64), 0.5),
    ]
    if dtype.kind == "c":
        found += [(1 - 2j, 1 - 2j), ((1j, cupy.full((), 1 + 1j, dtype)), -1 + 1j)]
        found += [((1.0, cupy.full((), 3, scalar), cupy.full((), 2j, dtype)), -1.5j)]
    return found


@pytest.mark.parametrize("name", [*INEXACT, *HALF])
def test_axpby_coefficients(comm, name):
    dtype = dtype_of(name)
    wide = np.dtype("float32") if dtype.itemsize == 2 else dtype
    a, b, x, y = pair(comm, 1000, dtype)
    for (p, p_value), (q, q_value) in itertools.product(coefficients(dtype), coefficients(dtype)):
        result = ca.axpby(p, x, q, y)
        expected = (p_value * a.astype(wide) + q_value * b.astype(wide)).astype(dtype)
        assert result.dtype == dtype
        np.testing.assert_allclose(host(result).astype(wide), expected.astype(wide), **tolerance(dtype))


@pytest.mark.parametrize("name", [*INEXACT, *HALF])
@pytest.mark.parametrize("alias", ["none", "new", "x", "y", "same"])
def test_axpby_sizes_and_aliases(comm, name, alias):
    dtype = dtype_of(name)
    wide = np.dtype("float32") if dtype.itemsize == 2 else dtype
    for size in SIZES:
        a, b, x, y = pair(comm, size, dtype)
        if alias == "same":
            y, b = x, a
        out = {"none": None, "new": ca.empty_like(x), "x": x, "y": y, "same": x}[alias]
        kept = None if out is None else out.local_array
        result = ca.axpby(0.5, x, -3.0, y, out=out)
        if out is not None:
            assert result is out
            assert out.local_array is kept
        expected = (0.5 * a.astype(wide) - 3 * b.astype(wide)).astype(dtype)
        np.testing.assert_allclose(host(result).astype(wide), expected.astype(wide), **tolerance(dtype))


def test_axpby_without_alignment_and_with_strides(comm):
    for name in ("float32", "float16", "complex64"):
        local = values(2 * 1000 + 3, name)
        layout = Layout.split(1000 * comm.size, comm.size)
        store = cupy.asarray(local)
        aligned = cupy.asarray(local[3:1003].copy())
        for view in (store[1:1001], store[:2000:2], store[3:1003]):
            expected = cupy.asnumpy(view)
            x, y = ca.DistributedArray(layout, comm, view), ca.DistributedArray(layout, comm, aligned)
            result = ca.axpby(2.0, x, 3.0, y)
            np.testing.assert_allclose(
                cupy.asnumpy(result.local_array), 2 * expected + 3 * local[3:1003], **tolerance(name)
            )
            np.testing.assert_allclose(
                cupy.asnumpy(x.vdot(y)), comm.size * np.vdot(expected.astype(complex), local[3:1003]), **tolerance(name)
            )
        # In place where the source lies one element behind the target.
        source, target = (ca.DistributedArray(layout, comm, store[k : k + 1000]) for k in (0, 1))
        before = cupy.asnumpy(store).copy()
        ca.axpby(1.0, source, 1.0, target, out=target)
        np.testing.assert_allclose(cupy.asnumpy(target.local_array), before[:1000] + before[1:1001], **tolerance(name))
        rows = cupy.asarray(values((40, 50), name))
        across = ca.DistributedArray(Layout.split((40, 50 * comm.size), comm.size, 1), comm, rows[:, ::-1])
        ca.axpby(1.0, across, 2.0, across, out=across)
        np.testing.assert_allclose(cupy.asnumpy(rows), 3 * values((40, 50), name), **tolerance(name))


def test_a_zero_coefficient_excludes_its_array(comm):
    x = ca.ones(999, comm=comm, engine="cupy")
    bad = ca.full(999, np.nan, comm=comm, engine="cupy")
    zero = cupy.zeros(())
    for result in (ca.axpby(0, bad, 2.0, x), ca.axpby(2.0, x, zero, bad), ca.axpby(2.0, x, (5.0, zero), bad)):
        assert float(result.sum()) == 2 * 999


def test_axpby_promotes_and_refuses(comm):
    whole = on_device(values(50, "int32"), None, comm)
    real = on_device(values(50, "float32"), None, comm)
    a, n = host(real), host(whole)
    assert ca.axpby(2, whole, 3, whole).dtype == np.int32
    np.testing.assert_array_equal(host(ca.axpby(2, whole, 3, whole)), 5 * n)
    assert ca.axpby(2.5, whole, 1, whole).dtype == np.float64
    assert ca.axpby(1j, real, 1, real).dtype == np.complex64
    np.testing.assert_allclose(host(ca.axpby(1j, real, 1, real)), (1 + 1j) * a, rtol=1e-6)
    mixed = ca.axpby(2.0, real, 1.0, real.astype("float64"))
    assert mixed.dtype == np.float64
    np.testing.assert_allclose(host(mixed), 3 * a, rtol=1e-6)
    with pytest.raises(TypeError):
        ca.axpby(1j, real, 1, real, out=real)
    with pytest.raises(UnsupportedTypeError, match="engines"):
        ca.axpby(1, real, 1, ca.zeros(50, dtype="float32", comm=comm, engine="numpy"))


@pytest.mark.parametrize("name", [*INEXACT, *HALF, "int32", "bool"])
def test_inner_products(comm, name):
    dtype = dtype_of(name)
    wide = np.dtype("float32") if dtype.itemsize == 2 else dtype
    for size in SIZES:
        a, b, x, y = pair(comm, size, dtype)
        a, b = a.astype(wide), b.astype(wide)
        checks = [(x.vdot(y), np.vdot(a, b)), (x.dot(y), np.dot(a, b)), (x.vdot(x), np.vdot(a, a).real)]
        for result, expected in checks:
            assert isinstance(result, cupy.ndarray)
            assert result.shape == ()
            assert result.dtype == expected.dtype
            near = tolerance(wide)
            scale = 1 + np.sqrt(size)
            np.testing.assert_allclose(
                float(abs(result)) if dtype.kind == "c" else cupy.asnumpy(result).astype(float),
                abs(expected) if dtype.kind == "c" else float(expected),
                rtol=near["rtol"] * 10,
                atol=near["atol"] * scale,
            )


@pytest.mark.parametrize("count", range(1, 10))
def test_many_pairs_one_message(comm, count):
    arrays = [on_device(values(100 * number + 3, "float32", seed=number), None, comm) for number in range(count)]
    expected = [np.vdot(host(x), host(x) + 1) for x in arrays]
    pairs = [(x, x + 1) for x in arrays]
    with profile.count_messages() as messages:
        results = ca.dots(*pairs)
    assert messages.total == messages["allreduce"] == (1 if comm.size > 1 else 0)
    for result, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(float(result), value, rtol=1e-4, atol=1e-3)


def test_pairs_of_different_dtypes_and_layouts(comm):
    single, double = pair(comm, 500, np.dtype("float32")), pair(comm, 500, np.dtype("complex128"))
    whole = on_device(values(30), Layout.replicated(30, comm.size), comm)
    results = ca.dots(
        (single[2], single[3]), (double[2], double[3]), (whole, whole), (double[2], double[2]), (single[2], single[2])
    )
    expected = [np.vdot(single[0], single[1]), np.vdot(double[0], double[1]), np.vdot(values(30), values(30))]
    expected += [np.vdot(double[0], double[0]).real, np.vdot(single[0], single[0])]
    for result, value in zip(results, expected, strict=True):
        assert result.dtype == value.dtype
        np.testing.assert_allclose(cupy.asnumpy(result), value, rtol=1e-4, atol=1e-3)


def test_dots_repeat_bit_by_bit(comm):
    _, _, x, y = pair(comm, 1000, np.dtype("float32"))
    pairs = [(x, y), (x, x), (y, y)]
    first = ca.dots(*pairs)
    expected = [float(value) for value in ca.dots(*pairs)]
    assert [float(value) for value in first] == expected
    y *= 2
    second = ca.dots(*pairs)
    assert [float(value) for value in first] == expected  # in memory of their own
    np.testing.assert_allclose([float(value) for value in second], np.multiply(expected, [2, 1, 4]), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("size", [3, 5000])
@pytest.mark.parametrize("first", [0, 1])  # 1: not at a multiple of 16 bytes
def test_update_solution_and_direction(comm, dtype, size, first):
    layout = Layout.split(size * comm.size, comm.size)
    whole = [values(size + first, dtype, seed=seed) for seed in range(3)]
    x, direction, gradient = (ca.from_local(cupy.asarray(a)[first:], layout, comm=comm) for a in whole)
    factor = cupy.asarray(4, direction.dtype if dtype != "float16" else "float32")
    ca.update_solution_and_direction(x, (1.0, factor, 2 * factor), direction, (-0.25, factor), gradient)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == "float16" else {"rtol": 1e-5, "atol": 1e-5}
    old = [a[first:].astype("complex128" if dtype == "complex64" else "float64") for a in whole]
    np.testing.assert_allclose(cupy.asnumpy(x.local_array), old[0] + 0.5 * old[1], **tolerance)
    np.testing.assert_allclose(cupy.asnumpy(direction.local_array), old[2] - old[1], **tolerance)


@pytest.mark.parametrize("name", [*INEXACT, "float16"])
@pytest.mark.parametrize("size", [1, 1000, 300_001])
@pytest.mark.parametrize("aligned", [True, False])
def test_square_of_a_combination(comm, name, size, aligned):
    first, kind = 0 if aligned else 1, np.dtype(name)
    layout = Layout.split(size * comm.size, comm.size)
    whole = [values((comm.size, size + first), name, seed=seed)[comm.rank] for seed in range(2)]
    x, y = (ca.from_local(cupy.asarray(a)[first:], layout, comm=comm) for a in whole)
    factor = cupy.asarray(4, kind if name != "float16" else "float32")
    y, square = ca.axpby_and_square((-1.0, factor, 2 * factor), x, 2.0, y, out=y)
    assert (square.parts is not None) == (kind.kind == "f")
    got = [complex(value) for value in ca.dots((x, x), square)] + [complex(ca.dots(square)[0])]
    wide = "complex128" if kind.kind == "c" else "float64"
    parts = comm.allgather_metadata([np.linalg.norm(a[first:].astype(wide)) ** 2 for a in whole[:1]])
    mine = cupy.asnumpy(y.local_array).astype(wide)
    np.testing.assert_allclose(mine, 2 * whole[1][first:].astype(wide) - 0.5 * whole[0][first:], **tolerance(kind))
    expected = sum(comm.allgather_metadata(float(np.linalg.norm(mine) ** 2)))
    np.testing.assert_allclose(
        got, [sum(part for (part,) in parts), expected, expected], rtol=1e-2 if kind.itemsize == 2 else 1e-5
    )
    assert got == [complex(value) for value in ca.dots((x, x), square)] + [complex(ca.dots(square)[0])]


@pytest.mark.parametrize("first", [0, 1])  # 1: not at a multiple of 16 bytes
def test_large_arrays(comm, first):
    """Passes over arrays that are larger than the cache, to the same bits each time."""
    size, generator = 4_200_003, cupy.random.default_rng(comm.rank)
    layout = Layout.split(size * comm.size, comm.size)
    whole = [generator.standard_normal(size + first, dtype="f4") for _ in range(3)]
    given = [a[first:] for a in whole]
    sums, combinations, updates = set(), [], []
    for _ in range(3):
        x, y, z = (ca.from_local(a.copy()[first:], layout, comm=comm) for a in whole)
        combinations.append(ca.axpby(2.0, x, -1.0, y).local_array)
        y, square = ca.axpby_and_square(2.0, x, -1.0, y, out=y)
        cupy.testing.assert_array_equal(y.local_array, combinations[0])
        sums.add(float(ca.dots(square)[0]))
        ca.update_solution_and_direction(x, 0.5, y, -1.0, z)
        updates.append((x.local_array, y.local_array))
    expected = 2 * given[0] - given[1]
    cupy.testing.assert_allclose(combinations[0], expected, atol=1e-5)
    cupy.testing.assert_allclose(updates[0][0], given[0] + 0.5 * expected, atol=1e-5)
    cupy.testing.assert_allclose(updates[0][1], given[2] - expected, atol=1e-5)
    for later in updates[1:]:
        for a, b in zip(later, updates[0], strict=True):
            cupy.testing.assert_array_equal(a, b)
    parts = comm.allgather_metadata(float(cupy.linalg.norm(expected.astype("f8")) ** 2))
    assert len(sums) == 1
    np.testing.assert_allclose(sums.pop(), sum(parts), rtol=1e-6)


@pytest.mark.parametrize("name", INEXACT)
def test_new_stacks_are_combined_as_one_array(comm, name):
    layout = StackedLayout(
        [Layout.split((comm.size * 4, 32), comm.size), Layout.split((comm.size * 50, 31), comm.size)]
    )
    x, y = (ca.empty(layout, comm=comm, dtype=name, engine="cupy") for _ in range(2))
    parts = [values(part.shape, name, seed=seed) for seed, part in enumerate(layout)]
    for leaf, other, part, a in zip(x.leaves, y.leaves, layout, parts, strict=True):
        leaf.local_array[...] = on_device(a, part, comm).local_array
        other.local_array[...] = 2 * leaf.local_array
    flat = np.concatenate([a.ravel() for a in parts])
    y, square = ca.axpby_and_square(-0.5, x, 2.0, y, out=y)
    with profile.count_messages() as messages:
        products = ca.dots((x, x), square, (x, y))
    assert messages.total == (comm.size > 1)
    expected = np.vdot(flat, flat).real * np.array([1, 3.5**2, 3.5])
    np.testing.assert_allclose([complex(value) for value in products], expected, rtol=1e-4)
    for got, a in zip(y, parts, strict=True):
        np.testing.assert_allclose(host(got), 3.5 * a, rtol=1e-5, atol=1e-5)


def test_stacks(comm):
    leaves = [*layouts((7, 5), comm.size), *[Layout.split(n, comm.size) for n in (0, 1, 1001, 64)]]
    parts = [values(layout.shape, "float32", seed=number) for number, layout in enumerate(leaves)]
    x = StackedArray([on_device(a, layout, comm) for a, layout in zip(parts, leaves, strict=True)])
    flat = np.concatenate([part.ravel() for part in parts])
    with profile.count_messages() as messages:
        product = x.dot(2 * x)
    assert messages.total == messages["allreduce"] == (1 if comm.size > 1 else 0)
    np.testing.assert_allclose(float(product), 2 * np.vdot(flat, flat), rtol=1e-5)
    np.testing.assert_allclose(float(x.norm()), np.linalg.norm(flat), rtol=1e-5)
    y = x.copy()
    assert ca.axpby(1.0, x, 1.0, y, out=y) is y
    np.testing.assert_allclose(float(y.norm(1)), 2 * np.abs(flat).sum(), rtol=1e-5)


def test_divide(comm):
    for name in INEXACT:
        dtype = np.dtype(name)
        a, b = cupy.full((), 3, dtype), cupy.full((), 2, dtype)
        assert ca.divide(a, b).dtype == dtype
        assert complex(ca.divide(a, b)) == 1.5
        assert complex(ca.divide(a, cupy.zeros((), dtype))) == 0
        assert complex(ca.divide(a, 2)) == 1.5
        assert complex(ca.divide(3.0, b)) == 1.5
    np.testing.assert_allclose(complex(ca.divide(cupy.full((), 3 + 1j), cupy.full((), 1 - 2j))), (3 + 1j) / (1 - 2j))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_square_of_a_sum(comm, dtype):
    ww, wq, qq, a, b, zero = (cupy.full((), value, dtype) for value in (2.0, -0.5, 3.0, 1.0, 4.0, 0.0))
    square = ca.square_of_sum(ww, wq, qq, -ca.quotient(a, b))
    assert square.dtype == dtype
    assert float(square) == 2.0 + 2 * 0.25 * 0.5 + 0.25**2 * 3.0
    assert float(ca.square_of_sum(ww, wq, qq, ca.quotient(a, zero))) == 2.0


@pytest.mark.parametrize("order", [None, 0, 1, 2, 3, 0.5, np.inf, -np.inf])
def test_norms(comm, order):
    for name in (*INEXACT, *HALF, "int32"):
        dtype = dtype_of(name)
        a = values((9, 5), "float64" if dtype.itemsize == 2 else dtype).astype(dtype)
        wide = a.astype(np.float32) if dtype.itemsize == 2 else a
        for layout in layouts(a.shape, comm.size):
            x = on_device(a, layout, comm)
            expected = np.linalg.norm(wide.ravel(), order)
            assert x.norm(order).dtype == expected.dtype
            np.testing.assert_allclose(float(x.norm(order)), expected, **tolerance(expected.dtype))
            if dtype.itemsize > 2:
                np.testing.assert_allclose(
                    host(x.norm(order, 0)), np.linalg.norm(wide, order, 0), **tolerance(expected.dtype)
                )
    nan = ca.full(7, np.nan, comm=comm, engine="cupy")
    if order not in (0,):
        assert np.isnan(float(nan.norm(order)))


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "int32", "bool"])
def test_reductions(comm, name):
    a = values((5, 4), name)
    for layout in layouts(a.shape, comm.size):
        x = on_device(a, layout, comm)
        for axis, function in itertools.product((None, 0, 1), ("sum", "mean", "min", "max", "all", "any")):
            if function in ("min", "max") and name.startswith("complex"):
                continue
            expected = getattr(a, function)(axis=axis)
            result = getattr(x, function)(axis=axis)
            assert result.dtype == expected.dtype
            result = cupy.asnumpy(result) if axis is None else host(result)
            np.testing.assert_allclose(result, expected, **tolerance("float32"))


def test_nan_wins(comm):
    a = values(9)
    a[-1] = np.nan
    x = on_device(a, None, comm)
    assert np.isnan(float(x.max()))
    assert np.isnan(float(x.min()))


def test_arithmetic(comm):
    a, b, x, y = pair(comm, 100, np.dtype("float32"))
    scalar = cupy.full((), 2, np.float32)
    cases = [(x + y, a + b), (2 * x - 1, 2 * a - 1), (np.sin(x), np.sin(a)), (x > y, a > b), (abs(x), abs(a))]
    cases += [
        (scalar * x, 2 * a),
        (x / scalar, a / 2),
        (np.float64(2) * x, np.float64(2) * a),
        (np.array(2.0) * x, 2.0 * a),
    ]
    cases += [(ca.where(x > 0, x, 0.0), np.where(a > 0, a, 0)), (np.hypot(x, y), np.hypot(a, b)), (x.conj(), a)]
    for result, expected in cases:
        assert isinstance(result.local_array, cupy.ndarray)
        np.testing.assert_allclose(host(result), expected, rtol=1e-6)
    local = x.local_array
    x += y
    np.multiply(x, 2, out=x)
    assert x.local_array is local
    np.testing.assert_allclose(host(x), 2 * (a + b), rtol=1e-6)
    for wrong in (lambda: x + cupy.zeros(100), lambda: cupy.zeros(100) * x, lambda: x + b, lambda: np.add.reduce(x)):
        with pytest.raises(TypeError):
            wrong()
    assert "cupy" in repr(x)


@pytest.mark.parametrize("name", ["float32", "float16", "bool", "complex128"])
def test_redistribute_and_gather(comm, name):
    a = values((5, 4), name)
    for source, target in itertools.product(layouts(a.shape, comm.size), repeat=2):
        x = on_device(a, source, comm)
        np.testing.assert_array_equal(host(x), a)
        y = x.redistribute(target)
        np.testing.assert_array_equal(cupy.asnumpy(y.local_array), a[target.slices(comm.rank)])
        whole = y.gather(root=comm.size - 1)
        assert (whole is None) == (comm.rank != comm.size - 1)
    given = cupy.asarray(a) if comm.rank == 0 else None
    np.testing.assert_array_equal(host(ca.from_global(given, comm=comm, root=0)), a)


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "float16", "bfloat16"])
def test_random_numbers_are_those_of_the_host(comm, name):
    layout = Layout.split((50, 7), comm.size, 1)
    for kind in ("uniform", "normal"):
        on_gpu = host(ca.random(layout, kind=kind, seed=4, dtype=name, comm=comm, engine="cupy"))
        on_cpu = ca.random(layout, kind=kind, seed=4, dtype=name, comm=comm, engine="numpy").gather()
        assert on_gpu.dtype == on_cpu.dtype
        if kind == "uniform":
            np.testing.assert_array_equal(on_gpu, on_cpu)
        else:
            wide = "complex128" if on_cpu.dtype.kind == "c" else "float64"
            np.testing.assert_allclose(on_gpu.astype(wide), on_cpu.astype(wide), **tolerance(name))


def test_save_and_load(comm, tmp_path):
    path = comm.allgather_metadata(str(tmp_path))[0] + "/x"
    x = ca.random((7, 3), dtype="float32", comm=comm, engine="cupy")
    x.save(path)
    y = ca.load(path, comm=comm, engine="cupy")
    assert isinstance(y.local_array, cupy.ndarray)
    np.testing.assert_array_equal(host(y), host(x))
    x.check_replicated()
    comm.barrier()


def test_capture_in_a_graph(comm):
    """A step of an iteration, captured and replayed, gives what it gives eagerly."""
    if comm.size > 1:
        pytest.skip("what a communicator can capture is tested with communicators")
    _, _, x, y = pair(comm, 5000, np.dtype("float32"))
    start = y.copy()

    def iterate():
        first, second = ca.dots((x, y), (x, x))
        ca.axpby((-0.5, first, second), x, 1.0, y, out=y)

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        for _ in range(4):
            iterate()
        eager = cupy.asnumpy(y.local_array)
        y.local_array[...] = start.local_array
        stream.begin_capture()
        iterate()
        graph = stream.end_capture()
        np.testing.assert_array_equal(cupy.asnumpy(y.local_array), cupy.asnumpy(start.local_array))
        for _ in range(4):
            graph.launch(stream)
        np.testing.assert_array_equal(cupy.asnumpy(y.local_array), eager)
        iterate()  # eager work on the same stream afterwards
        stream.synchronize()


def test_first_use_of_a_stream_may_be_inside_a_capture(comm):
    if comm.size > 1:
        pytest.skip("of one rank")
    x = ca.ones(5000, dtype="float32", comm=comm, engine="cupy")
    ca.dots((x, x), (x, x))  # compiles
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        results = ca.dots((x, x), (x, x))
        graph = stream.end_capture()
        for result in results:
            result.fill(0)
        graph.launch(stream)
        assert [float(result) for result in results] == [5000, 5000]
        assert float(ca.dots((x, x))[0]) == 5000


def test_streams_do_not_share_scratch_memory(comm):
    if comm.size > 1:
        pytest.skip("of one rank")
    sizes = (3_000_000, 2_999_999, 1000)
    arrays = [ca.full(size, number + 1, dtype="float32", comm=comm, engine="cupy") for number, size in enumerate(sizes)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in arrays]
    cupy.cuda.Device().synchronize()
    results = []
    for _ in range(50):
        for x, stream in zip(arrays, streams, strict=True):
            with stream:
                results.append((x.vdot(x), (float(x.size) * float(x.local_array.size > 0))))
    cupy.cuda.Device().synchronize()
    for number, (result, size) in enumerate(results):
        assert float(result) == np.float32(size * (number % 3 + 1) ** 2)


def test_the_host_does_not_wait(comm):
    """With the stream held up, everything below only queues work."""
    if comm.size > 1:
        pytest.skip("of one rank")
    _, _, x, y = pair(comm, 100_000, np.dtype("float32"))

    def work():
        first, second = ca.dots((x, y), (x, x))
        ca.axpby(ca.divide(first, second), x, 1.0, y, out=y)
        x.norm(), x.sum(), x.max(), x.mean(), x.norm(1), x + y, x.copy()

    work()  # compiles
    stream = cupy.cuda.get_current_stream()
    stream.synchronize()
    done = cupy.cuda.Event()
    sleeper = cupy.RawKernel(
        'extern "C" __global__ void pause() { long long t = clock64(); while (clock64() - t < 400000000LL); }', "pause"
    )
    sleeper((1,), (1,), ())
    work()
    done.record(stream)
    assert not done.done
    stream.synchronize()
