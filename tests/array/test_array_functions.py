"""Slices, transposes and functions of NumPy across ranks, against NumPy on the global arrays."""

import numpy as np
import pytest

import collops
from collops import Layout, profile
from collops.errors import LayoutError, UnsupportedTypeError
from tests.array.cases import layouts, values


class Make:
    """Distributes arrays of NumPy, as arrays of an engine."""

    def __init__(self, comm, engine):
        self.comm, self.engine = comm, engine

    def __call__(self, array, layout):
        return collops.from_global(array, layout, comm=self.comm, engine=self.engine)

    def layouts(self, shape):
        """Return a layout of each sort; one for JAX, which compiles for each."""
        found = layouts(shape, self.comm.size)
        return self.few(found)

    def few(self, cases):
        """Return all cases, or the last for JAX."""
        return cases if self.engine == "numpy" else cases[-1:]


@pytest.fixture(params=["numpy", "jax"])
def make(request, comm):
    """Return a function that distributes an array of NumPy."""
    if request.param == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    return Make(comm, request.param)


def check(result, expected, exact=True):
    """Compare a result on all ranks: values, and, unless JAX has other ones, dtypes."""
    found = np.asarray(result.gather() if hasattr(result, "gather") else result)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=0 if exact else 2e-5, atol=0 if exact else 1e-6)
    if hasattr(result, "layout"):
        assert result.local_array.shape == result.layout.local_shape(result.comm.rank)
        result.check_replicated()


SLICES = [
    np.s_[2:5],
    np.s_[:, 1:],
    np.s_[::2, ::3],
    np.s_[3:100, -3:-1],
    np.s_[5:2],
    np.s_[1::4, ..., 2:3],
    np.s_[...],
    np.s_[-1:, :, 1:2],
    np.s_[4:9:3],
    np.s_[:3:2],
]


def test_slices(comm, make):
    a = values((7, 5, 3), np.float32)
    cases = make.layouts(a.shape)
    for layout in cases:
        x = make(a, layout)
        for index in SLICES[:: 1 if make.engine == "numpy" else 4]:
            with profile.count_messages() as messages:
                part = x[index]
            assert messages.counts() == {}
            check(part, a[index])
            check(part.sum(), a[index].sum(), exact=False)
    x = make(a, Layout.split(a.shape, comm.size, axis=1))
    for index in (np.s_[2], np.s_[::-2, :, -1], np.s_[np.int64(1), ..., 0], np.s_[0, 1:]):
        check(x[index], a[index])
    whole = make(a, Layout.replicated(a.shape, comm.size))
    check(whole[1, 2, -1], a[1, 2, -1])


def test_slices_that_stay_views(comm):
    x = collops.zeros(9, comm=comm)
    x[2:8:2].fill(1)
    np.testing.assert_array_equal(x.gather(), [0, 0, 1, 0, 1, 0, 1, 0, 0])


def test_indices_that_have_no_meaning(comm, make):
    if comm.size > 1:
        x = make(values((6, 4)), Layout.split((6, 4), comm.size))
        for index, message in ((2, r"x\[i:i\+1\]"), (np.s_[::-1], "negative step"), (np.s_[..., 1, :], "split axis 0")):
            with pytest.raises(LayoutError, match=message):
                x[index]
    x = make(values((6, 4)), Layout.split((6, 4), comm.size, axis=1))
    for index in (9, -7, (0, 0, 0), (..., ...), np.s_[:, :, :]):
        with pytest.raises(LayoutError, match=r"is outside axis|takes at most"):
            x[index]
    for index in (None, np.s_[:, :, None], [1, 2], np.array([0, 1]), x > 0, True, 1.0):
        with pytest.raises(UnsupportedTypeError, match=r"collops.Restriction .* collops.where .* x.reshape"):
            x[index]
    with pytest.raises(UnsupportedTypeError, match=r"collops.where\(condition, value, x\)"):
        x[0:2] = 1.0


def test_transpose(comm, make):
    a = values((5, 4, 3), np.float32)
    for layout in make.layouts(a.shape):
        x = make(a, layout)
        with profile.count_messages() as messages:
            turned = x.T
        assert messages.counts() == {} and turned.T.layout is layout
        check(turned, a.T)
        check(turned.sum(axis=0), a.T.sum(axis=0), exact=False)
        check(turned.redistribute(Layout.split(turned.shape, comm.size)), a.T)
    for axes in (None, (1, 0, 2), (-1, 0, 1)):
        check(np.transpose(x, axes), np.transpose(a, axes))
    check(x.transpose((2, 0, 1)), a.transpose(2, 0, 1))
    with pytest.raises(LayoutError, match="each axis"):
        x.transpose((0, 0, 1))


def test_a_transposed_array_in_other_operations(comm, tmp_path_factory):
    """Local arrays that are not contiguous, in messages, operators and files."""
    a = values((6, 5))
    x = collops.from_global(a, comm=comm).T
    wide = x.halo(1)
    other = collops.from_global(a.T.copy(), x.layout, comm=comm)
    np.testing.assert_array_equal(wide.local_array, other.halo(1).local_array)
    assert float(x.dot(x)) == pytest.approx(np.vdot(a, a))
    check(collops.axpby(2.0, x, 1.0, other), 3 * a.T)
    check(collops.FirstDerivative(x.layout, comm=comm) @ x, (collops.FirstDerivative(x.layout) @ other).gather())
    path = comm.allgather_metadata(str(tmp_path_factory.mktemp("turned") / "x.zarr"))[0]
    collops.save(path, x)
    check(collops.load(path, comm=comm), a.T)


def test_where_and_clip(comm, make):
    a, b = values((5, 4), np.float32), values((5, 4), np.float32, seed=1)
    for layout in make.layouts(a.shape):
        x, y = make(a, layout), make(b, layout)
        check(np.where(x > y, x, 0.0), np.where(a > b, a, 0.0))
        for low, high in ((-0.5, 0.5), (None, 0.1), (0.2, None)):
            check(np.clip(x, low, high), np.clip(a, low, high))
        check(np.clip(x, y, 1.0), np.clip(a, b, 1.0))
        check(np.clip(x, None, None), a)
    out = x.copy()
    assert np.clip(x, -0.1, 0.1, out=out) is out
    check(out, np.clip(a, -0.1, 0.1))
    np.clip(x, 0.0, None, out=out)
    check(out, np.clip(a, 0.0, None))
    both = np.clip(collops.StackedArray([x, y]), 0, None)
    check(both.arrays[1], np.clip(b, 0, None))
    with pytest.raises(UnsupportedTypeError, match="takes condition, x, y: missing"):
        np.where(x > 0)


def test_concatenate(comm, make):
    a, b, c = values((7, 3), np.float32), values((2, 3), np.float32, 1), values((4, 3), np.float32, 2)
    for axis, arrays in make.few([(1, (a, a[:, :2])), (-1, (a, a[:, :0], a)), (0, (a, b, c))]):
        for split in make.few([1, 0]):
            parts = [make(array, Layout.split(array.shape, comm.size, split)) for array in arrays]
            joined = np.concatenate(parts, axis=axis)
            check(joined, np.concatenate(arrays, axis=axis))
            assert joined.layout is Layout.split(joined.shape, comm.size, split)
    uneven = [0] * (comm.size - 1) + [7]
    x, y = make(a, Layout.split(a.shape, comm.size, sizes=uneven)), make(b, Layout.split(b.shape, comm.size))
    check(np.concatenate((x, y, x)), np.concatenate((a, b, a)))
    with profile.count_messages() as messages:  # along an axis that is whole on each rank
        np.concatenate([x, x], axis=1)
    assert messages.counts() == {}
    if comm.size > 1:
        with pytest.raises(LayoutError, match="redistribute"):
            np.concatenate([x, make(a, Layout.split(a.shape, comm.size, 1))])
    with pytest.raises(LayoutError, match="differ along axis 0 only"):
        np.concatenate([x, make(values((7, 4)), Layout.split((7, 4), comm.size))])
    with pytest.raises(UnsupportedTypeError, match=r"collops.from_global\(values, x.layout\)"):
        np.concatenate([x, a])


def test_std_and_var(comm, make):
    for dtype in ("float32", "complex64", "int16", "bool", "float16") if make.engine == "numpy" else ("complex64",):
        a = values((5, 4), dtype)
        tolerance = {"rtol": 5e-3} if dtype == "float16" else {"rtol": 2e-6}
        for layout in make.layouts(a.shape):
            x = make(a, layout)
            for axis in make.few([None, 0, (0, 1), (1,)]):
                for function in make.few([np.var, np.std]):
                    found, expected = function(x, axis), function(a, axis)
                    assert found.dtype == expected.dtype
                    found = found.gather() if np.ndim(expected) else found
                    np.testing.assert_allclose(found, expected, **tolerance)


def test_std_of_other_arguments(comm):
    a, b = values(7), values((3, 2))
    both = collops.StackedArray([collops.from_global(a, comm=comm), collops.from_global(b, comm=comm)])
    assert float(np.std(both, ddof=2)) == pytest.approx(np.std(np.concatenate([a, b.ravel()]), ddof=2))
    x, c = collops.from_global(b, comm=comm), values((3, 2), np.complex128)
    check(np.std(x, axis=0, ddof=1), np.std(b, axis=0, ddof=1), exact=False)
    check(np.var(collops.from_global(c, comm=comm), 1), np.var(c, 1), exact=False)
    with pytest.raises(UnsupportedTypeError, match=r"takes a, axis, ddof: .*keepdims.*x.gather\(\)"):
        np.std(both, keepdims=True)


def test_argmax_and_argmin(comm, make):
    a = values((5, 4, 2), np.float32)
    with_nan = a.copy()
    with_nan[2, 1, 0] = with_nan[4, 3, 1] = np.nan
    arrays = (with_nan, a, values(a.shape, np.int8), values(a.shape, bool))
    for array in arrays[: 1 if make.engine == "jax" else None]:
        for layout in make.layouts(a.shape):
            x = make(array, layout)
            for axis in (None, 0) if make.engine == "jax" else (None, 0, -1):
                for function in make.few([np.argmin, np.argmax]):
                    found, expected = function(x, axis=axis), function(array, axis=axis)
                    check(found, expected)
                    assert found.dtype.kind == "i"
    with pytest.raises(UnsupportedTypeError, match="complex numbers have no order"):
        np.argmax(x.astype(np.complex64))
    with pytest.raises(UnsupportedTypeError, match="parts of a stacked array"):
        np.argmax(collops.StackedArray([x]))
    with pytest.raises(ValueError, match="no elements"):
        np.argmin(make(np.empty((0, 3)), Layout.split((0, 3), comm.size)))


def test_messages(comm):
    x = collops.from_global(values((7, 3)), comm=comm)
    np.std(x, axis=0), np.argmax(x, axis=0), np.concatenate([x, x])
    cases = [(lambda: np.concatenate([x, x]), {"alltoallv": 2})]
    for function in (np.std, np.var, np.argmax, np.argmin):
        cases += [(lambda f=function: f(x), {"allreduce": 2}), (lambda f=function: f(x, axis=1), {})]
    for call, expected in cases:
        with profile.count_messages() as messages:
            call()
        assert messages.counts() == (expected if comm.size > 1 else {})
