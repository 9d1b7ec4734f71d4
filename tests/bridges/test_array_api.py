"""Functions of the array API standard on distributed arrays, against NumPy's functions of these names."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

import collops
from collops import Layout
from collops.backend import engine_of
from collops.bridges.array_api import VERSIONS, namespace
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from tests.array.cases import uneven

LINES = Path(__file__).with_name("array_api_skips.txt").read_text("utf-8").splitlines()
SKIPS = dict(line.split(": ") for line in LINES if not line.startswith("#"))

POSITIVE = (
    *("acos", "asin", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log1p", "log2", "log10", "reciprocal"),
    *("sin", "sinh", "sqrt", "tan", "tanh"),
)
REAL = (
    *("abs", "asinh", "ceil", "floor", "isfinite", "isinf", "isnan", "negative", "positive", "round", "sign"),
    *("signbit", "square", "trunc"),
)
COMPLEX = ("abs", "conj", "exp", "imag", "real", "square")
BINARY = (
    *("add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less"),
    *("less_equal", "logaddexp", "maximum", "minimum", "multiply", "nextafter", "not_equal", "pow", "remainder"),
    "subtract",
)
INTEGERS = (
    *("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor"),
    *("logical_and", "logical_or", "logical_xor"),
)
# Called with the namespace, two arrays of one layout, and the number of an axis that is whole.
CASES = {
    "acosh": lambda xp, x, y, w: xp.acosh(2 + abs(x)),
    "all": lambda xp, x, y, w: (xp.all(x > 0, axis=w), xp.all(x > -9)),
    "any": lambda xp, x, y, w: (xp.any(x > 1, axis=1 - w), xp.any(x > 9)),
    "argmax": lambda xp, x, y, w: (xp.argmax(x, axis=1 - w, keepdims=True), xp.argmax(x)),
    "argmin": lambda xp, x, y, w: xp.argmin(x, axis=w),
    "argsort": lambda xp, x, y, w: xp.argsort(x, axis=w),
    "asarray": lambda xp, x, y, w: (xp.asarray(x), xp.asarray([1.5, 2]), xp.asarray(3, dtype=xp.float32)),
    "arange": lambda xp, x, y, w: (xp.arange(7), xp.arange(2, 11, 3), xp.arange(1.0, -1.0, -0.25)),
    "astype": lambda xp, x, y, w: xp.astype(x, xp.float32),
    "bitwise_invert": lambda xp, x, y, w: xp.bitwise_invert(xp.astype(x, xp.int8)),
    "broadcast_arrays": lambda xp, x, y, w: tuple(xp.broadcast_arrays(x, xp.sum(y, axis=w, keepdims=True))),
    "broadcast_shapes": lambda xp, x, y, w: xp.zeros(xp.broadcast_shapes((3, 1), (4,))),
    "broadcast_to": lambda xp, x, y, w: xp.broadcast_to(x, (2, *x.shape)),
    "can_cast": lambda xp, x, y, w: xp.asarray(xp.can_cast(x.dtype, xp.float32)),
    "clip": lambda xp, x, y, w: xp.clip(x, -0.5, 0.5),
    "concat": lambda xp, x, y, w: (xp.concat([x, y], axis=w), xp.concat([x, y], axis=1 - w)),
    "count_nonzero": lambda xp, x, y, w: (xp.count_nonzero(x > 0, axis=w), xp.count_nonzero(x > 0)),
    "cumulative_prod": lambda xp, x, y, w: xp.cumulative_prod(x, axis=w),
    "cumulative_sum": lambda xp, x, y, w: xp.cumulative_sum(x, axis=w, include_initial=True),
    "diff": lambda xp, x, y, w: (xp.diff(x, axis=w), xp.diff(x, axis=w, n=2, prepend=y)),
    "empty": lambda xp, x, y, w: 0 * xp.empty((5, 2)),
    "empty_like": lambda xp, x, y, w: 0 * xp.empty_like(x),
    "expand_dims": lambda xp, x, y, w: (xp.expand_dims(x, axis=0), xp.expand_dims(x, axis=-1)),
    "eye": lambda xp, x, y, w: (xp.eye(4), xp.eye(5, 3, k=-1, dtype=xp.int32)),
    "finfo": lambda xp, x, y, w: xp.asarray(float(xp.finfo(x.dtype).eps)),
    "flip": lambda xp, x, y, w: xp.flip(x, axis=w),
    "full": lambda xp, x, y, w: (xp.full((3, 2), 4), xp.full((), True), xp.full(2, 1.5, dtype=xp.float32)),
    "full_like": lambda xp, x, y, w: xp.full_like(x, 2),
    "iinfo": lambda xp, x, y, w: xp.asarray(xp.iinfo(xp.int8).max),
    "isdtype": lambda xp, x, y, w: xp.asarray(xp.isdtype(x.dtype, ("integral", "real floating"))),
    "linspace": lambda xp, x, y, w: (xp.linspace(0.0, 1.0, 7), xp.linspace(2, 5, 4, endpoint=False)),
    "logical_not": lambda xp, x, y, w: xp.logical_not(x > 0),
    "matmul": lambda xp, x, y, w: xp.matmul(xp.permute_dims(x, (w, 1 - w)), xp.permute_dims(y, (1 - w, w))),
    "matrix_transpose": lambda xp, x, y, w: xp.matrix_transpose(x),
    "max": lambda xp, x, y, w: (xp.max(x, axis=1 - w, keepdims=True), xp.max(x)),
    "mean": lambda xp, x, y, w: (x - xp.mean(x, axis=w, keepdims=True), xp.mean(x, axis=(0, 1), keepdims=True)),
    "min": lambda xp, x, y, w: xp.min(x, axis=w),
    "moveaxis": lambda xp, x, y, w: xp.moveaxis(xp.expand_dims(x, axis=0), (0, 2), (1, 0)),
    "ones": lambda xp, x, y, w: xp.ones((2, 3), dtype=xp.complex64),
    "ones_like": lambda xp, x, y, w: xp.ones_like(x, dtype=xp.uint8),
    "permute_dims": lambda xp, x, y, w: xp.permute_dims(x, (1, 0)),
    "prod": lambda xp, x, y, w: (xp.prod(x, axis=1 - w), xp.prod(x, axis=w, keepdims=True), xp.prod(x)),
    "repeat": lambda xp, x, y, w: xp.repeat(x, 2, axis=w),
    "reshape": lambda xp, x, y, w: xp.reshape(x, (x.shape[0], 1, x.shape[1])),
    "result_type": lambda xp, x, y, w: xp.zeros(2, dtype=xp.result_type(x, xp.complex64, 1)),
    "roll": lambda xp, x, y, w: xp.roll(x, 2, axis=w),
    "sort": lambda xp, x, y, w: xp.sort(x, axis=w),
    "squeeze": lambda xp, x, y, w: (
        xp.squeeze(xp.sum(x, axis=w, keepdims=True), axis=w),
        xp.squeeze(xp.sum(x, axis=(0, 1), keepdims=True), axis=(0, 1)),
    ),
    "stack": lambda xp, x, y, w: xp.stack([x, y], axis=1),
    "std": lambda xp, x, y, w: xp.std(x, axis=1 - w, correction=1.0),
    "sum": lambda xp, x, y, w: (xp.sum(x, axis=w), xp.sum(xp.astype(x, xp.int8), keepdims=True), xp.sum(x)),
    "take": lambda xp, x, y, w: xp.take(x, np.array([2, 0, 2]), axis=w),
    "take_along_axis": lambda xp, x, y, w: xp.take_along_axis(x, xp.argsort(y, axis=w), axis=w),
    "tile": lambda xp, x, y, w: xp.tile(x, (2, 1, 2)),
    "tril": lambda xp, x, y, w: xp.tril(x, k=1),
    "triu": lambda xp, x, y, w: xp.triu(x, k=-1),
    "unstack": lambda xp, x, y, w: xp.unstack(x, axis=w),
    "var": lambda xp, x, y, w: (xp.var(x, axis=w, keepdims=True), xp.var(x)),
    "vecdot": lambda xp, x, y, w: (xp.vecdot(x, y, axis=w), xp.vecdot(x + 1j * y, y, axis=1 - w)),
    "where": lambda xp, x, y, w: (xp.where(x > 0, x, 1.0), xp.where(x > y, x, xp.sum(y, axis=w, keepdims=True))),
    "zeros": lambda xp, x, y, w: xp.zeros((4, 3), dtype=xp.bool),
    "zeros_like": lambda xp, x, y, w: xp.zeros_like(x),
    **{name: lambda xp, x, y, w, name=name: getattr(xp, name)(0.1 + 0.1 * abs(x)) for name in POSITIVE},
    **{name: lambda xp, x, y, w, name=name: getattr(xp, name)(3 * x) for name in REAL},
    **{name: lambda xp, x, y, w, name=name: getattr(xp, name)(x + 1j * y) for name in COMPLEX},
    **{name: lambda xp, x, y, w, name=name: getattr(xp, name)(abs(x), y) for name in BINARY},
    **{
        name: lambda xp, x, y, w, name=name: getattr(xp, name)(
            xp.astype(9 * abs(x), xp.int16), xp.astype(3 * abs(y), xp.int16)
        )
        for name in INTEGERS
    },
}
NEW_IN_NUMPY = {"cumulative_prod", "cumulative_sum", "unstack"}  # 2.1
CONSTANTS = {"e", "inf", "nan", "newaxis", "pi"}
DTYPES = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {
    *("bool", "float32", "float64", "complex64", "complex128"),
}
A, B = np.random.default_rng(3).standard_normal((2, 7, 4))


def layouts(comm):
    """Return pairs of a layout and a whole axis: even, uneven and empty parts, and copies."""
    found = [(Layout.split(A.shape, comm.size, axis), 1 - axis) for axis in (0, 1)]
    if comm.size > 1:
        found.append((Layout.split(A.shape, comm.size, sizes=uneven(7, comm.size)), 1))
    return [*found, (Layout.replicated(A.shape, comm.size), 0)]


def check(found, expected):
    if isinstance(found, tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            check(*pair)
        return
    if isinstance(found, collops.DistributedArray):
        assert found.local_array.shape == found.layout.local_shape(found.comm.rank)
        found.check_replicated()
        found = found.gather()
    if not isinstance(found, np.generic):
        found = engine_of(found).to_host(found)
    assert (np.shape(found), found.dtype) == (np.shape(expected), np.asarray(expected).dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_against_numpy(comm, name):
    if name in NEW_IN_NUMPY and not hasattr(np, name):
        pytest.skip(f"NumPy {np.__version__} has no {name}")
    for layout, whole in layouts(comm):
        x, y = (collops.from_global(values, layout, comm=comm) for values in (A, B))
        found = CASES[name](x.__array_namespace__(), x, y, whole)
        check(found, CASES[name](np, A, B, whole))


def test_on_jax(comm):
    """The same code: some functions, since JAX compiles each."""
    pytest.importorskip("jax", reason="JAX is not installed")
    a = A.astype(np.float32)
    x = collops.from_global(a, comm=comm, engine="jax")
    xp = x.__array_namespace__()
    assert xp.linspace(0, 1, 3).engine.name == "jax"
    for found, expected in (
        (x - xp.mean(x, axis=1, keepdims=True), a - a.mean(1, keepdims=True)),
        (xp.matmul(xp.matrix_transpose(x), x), a.T @ a),
        (xp.prod(x, axis=0), a.prod(0)),
        (xp.sort(x, axis=1, descending=True), np.sort(a, axis=1)[:, ::-1]),
    ):
        np.testing.assert_allclose(found.gather(), expected, rtol=1e-4, atol=1e-5)


def test_every_name_of_the_standard(comm):
    """Each name is a case above, or among the skips with a reason, which raise an error."""
    x = collops.ones((6, 2), comm=comm)
    xp = x.__array_namespace__()
    names = {name for name in dir(xp) if not name.startswith("_")} - {"comm", "engine"}
    assert names | {"fft", "linalg"} == {*CASES} | {*SKIPS} | CONSTANTS | DTYPES
    for name in {*SKIPS} - {"fft", "linalg"}:
        with pytest.raises(UnsupportedTypeError, match=f"{name} of the array API is not available .* use "):
            getattr(xp, name)(x)
    for name in ("fft", "linalg"):
        with pytest.raises(AttributeError, match=f"no extension {name} .* use "):
            getattr(xp, name)
    with pytest.raises(AttributeError, match="no name 'median'"):
        _ = xp.median
    for name in DTYPES:
        assert getattr(xp, name) == np.dtype(name)
    assert (xp.pi, xp.newaxis) == (np.pi, None)
    assert all(inspect.getdoc(getattr(xp, name)) for name in CASES)


def test_descending_and_stable(comm):
    values = np.tile([2, 1, 2, 3, 1], (5, 1))
    x = collops.from_global(values, comm=comm)
    xp = x.__array_namespace__()
    np.testing.assert_array_equal(xp.sort(x, descending=True).gather(), np.sort(values)[:, ::-1])
    np.testing.assert_array_equal(xp.argsort(x, descending=True).gather(), np.tile([3, 0, 2, 1, 4], (5, 1)))


def test_products(comm):
    """Of matrices, vectors and stacks whose parts meet, with at most one allreduce."""
    rows = Layout.split(A.shape, comm.size)
    x = collops.from_global(A, rows, comm=comm)
    matrix = collops.from_global(B[:4].copy(), Layout.replicated((4, 4), comm.size), comm=comm)
    column = collops.from_global(B[:4, 0].copy(), Layout.replicated(4, comm.size), comm=comm)
    along = collops.from_global(B[:, 1].copy(), Layout.split(7, comm.size), comm=comm)
    xp = x.__array_namespace__()
    for found, expected, count in (
        (lambda: xp.matmul(x, matrix), A @ B[:4], 0),
        (lambda: xp.matmul(x, column), A @ B[:4, 0], 0),
        (lambda: xp.matmul(along, x), B[:, 1] @ A, 1),
        (lambda: xp.matmul(column, matrix), B[:4, 0] @ B[:4], 0),
        (lambda: xp.matmul(along, along), B[:, 1] @ B[:, 1], 1),
        (lambda: xp.matmul(xp.stack([x, x]), matrix), np.stack([A, A]) @ B[:4], 0),
    ):
        with collops.profile.count_messages() as messages:
            product = found()
        assert messages.total == (count if comm.size > 1 else 0)
        check(product, expected)
    with pytest.raises(LayoutError, match="as many columns as rows"):
        xp.matmul(x, x)
    if comm.size > 1:
        with pytest.raises(LayoutError, match=r"collops\.MatrixMult"):
            xp.matmul(x, xp.matrix_transpose(x))


def test_what_would_move_data(comm):
    x = collops.ones((6, 2), comm=comm)
    xp = x.__array_namespace__()
    if comm.size == 1:
        return
    for call in (
        lambda: xp.sort(x, axis=0),
        lambda: xp.cumulative_sum(x, axis=0),
        lambda: xp.flip(x),
        lambda: xp.take(x, np.array([0]), axis=0),
        lambda: xp.diff(x, axis=0),
        lambda: xp.unstack(x, axis=0),
        lambda: xp.squeeze(xp.ones((1, 2)), axis=0),
        lambda: xp.broadcast_to(xp.ones((1, 2)), (6, 2)),
        lambda: xp.reshape(xp.matrix_transpose(x), (12,)),
    ):
        with pytest.raises(LayoutError, match=r"split|whole"):
            call()


def test_errors(comm):
    x = collops.ones((6, 2), comm=comm)
    xp = x.__array_namespace__()
    for call in (
        lambda: xp.sort(x, axis=2),
        lambda: xp.expand_dims(x, axis=(0, 0)),
        lambda: xp.cumulative_sum(x),
        lambda: xp.matrix_transpose(xp.ones(3)),
        lambda: xp.moveaxis(x, 0, (0, 1)),
        lambda: xp.tril(xp.ones(3)),
        lambda: xp.broadcast_to(x, (5, 2)),
    ):
        with pytest.raises(LayoutError):
            call()
    for call in (
        lambda: xp.expand_dims(3.0, axis=0),
        lambda: xp.zeros(3, device="gpu"),
        lambda: xp.matmul(x, A),
        lambda: xp.sort(A),
        lambda: xp.take_along_axis(x, np.zeros((6, 2), int), axis=1),
    ):
        with pytest.raises(UnsupportedTypeError):
            call()
    with pytest.raises(InputError, match="copy=False"):
        xp.asarray([1.0, 2.0], copy=False)
    with pytest.raises(InputError, match=r"api_version must be one of 2021\.12"):
        x.__array_namespace__(api_version="2020.01")


def test_the_namespace_of_an_array(comm):
    """One for all arrays of a communicator and an engine, with what inspection needs."""
    x, y = collops.ones((6, 2), comm=comm), collops.zeros(3, comm=comm)
    xp = x.__array_namespace__()
    assert {xp, y.__array_namespace__(api_version=VERSIONS[-1]), namespace(comm)} == {xp}
    made = xp.zeros((5, 2))
    assert (made.comm, made.engine, made.layout) == (comm, x.engine, Layout.split((5, 2), comm.size))
    info = xp.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"] is False and info.devices() == [x.device]
    assert info.default_dtypes()["real floating"] == xp.float64
    assert info.dtypes(kind="real floating") == {"float32": xp.float32, "float64": xp.float64}
    assert {*info.dtypes()} == DTYPES
    with pytest.raises(InputError, match="kind must be one of"):
        info.dtypes(kind="text")


def test_programs_of_other_libraries(comm):
    """They find the namespace, and compute what needs no values of other ranks."""
    compat = pytest.importorskip("array_api_compat", reason="array-api-compat is not installed")
    x, y = (collops.from_global(values, comm=comm) for values in (A, B))
    xp = compat.array_namespace(x, y, 1.0)
    assert (xp, compat.device(x), compat.size(x)) == (x.__array_namespace__(), x.device, 28)
    with pytest.raises(TypeError, match="Multiple namespaces"):
        compat.array_namespace(x, A)
