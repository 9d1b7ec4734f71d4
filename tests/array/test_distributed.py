"""Distributed arrays: creation, arithmetic, shapes and representation, against NumPy on the global array."""

from __future__ import annotations

import copy
import operator
import pickle

import numpy as np
import pytest

import collops
import collops.array as ca
from collops import profile
from collops.array import DistributedArray, Layout
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from tests.array.cases import HALF, INEXACT, WHOLE, dtype_of, layouts, masks, values

SHAPES = [(7,), (1,), (0,), (5, 4), (2, 7), (0, 3)]


def pair(comm, shape=(7, 3), dtype=np.float64):
    layout = Layout.split(shape, comm.size)
    a, b = values(shape, dtype), values(shape, dtype, seed=1)
    return a, b, ca.from_global(a, layout, comm=comm), ca.from_global(b, layout, comm=comm)


@pytest.mark.parametrize("name", [*INEXACT, *HALF, *WHOLE])
def test_global_round_trip(comm, name):
    for shape in SHAPES:
        expected = values(shape).astype(dtype_of(name))
        for layout in layouts(shape, comm.size):
            x = ca.from_global(expected, layout, comm=comm)
            assert x.dtype == expected.dtype
            assert x.local_array.flags.owndata
            np.testing.assert_array_equal(x.local_array, expected[layout.slices(comm.rank)])
            np.testing.assert_array_equal(x.gather(), expected)
            root = comm.size - 1
            on_root = x.gather(root)
            if comm.rank == root:
                np.testing.assert_array_equal(on_root, expected)
            else:
                assert on_root is None


def test_scatter_from_a_root(comm):
    for shape in SHAPES:
        expected = values(shape, "complex64")
        for layout in [None, *layouts(shape, comm.size)]:
            root = comm.size // 2
            x = ca.from_global(expected if comm.rank == root else None, layout, comm=comm, root=root)
            assert x.dtype == expected.dtype
            np.testing.assert_array_equal(x.gather(), expected)


def test_scatter_reports_the_roots_error_everywhere(comm):
    layout = Layout.split(5, comm.size)
    given = np.zeros(4) if comm.rank == 0 else None
    with pytest.raises(LayoutError, match="does not fit"):
        ca.from_global(given, layout, comm=comm, root=0)
    with pytest.raises(InputError, match="must be a rank from 0 to"):
        ca.from_global(given, layout, comm=comm, root=comm.size)


@pytest.mark.parametrize("name", [*INEXACT, *HALF, "int32", "bool"])
def test_filled_arrays(comm, name):
    dtype = dtype_of(name)
    for layout in layouts((5, 3), comm.size):
        np.testing.assert_array_equal(ca.zeros(layout, dtype=name).gather(), np.zeros((5, 3), dtype))
        np.testing.assert_array_equal(ca.ones(layout, dtype=dtype).gather(), np.ones((5, 3), dtype))
        np.testing.assert_array_equal(ca.full(layout, 1, dtype=dtype).gather(), np.ones((5, 3), dtype))
        assert ca.empty(layout, dtype=name).dtype == dtype
    x = ca.ones((5, 3), dtype=name)
    assert x.layout is Layout.split((5, 3), comm.size)
    assert x.comm is collops.world() is comm
    with profile.count_messages() as messages:
        like = [ca.zeros_like(x), ca.ones_like(x, "float32"), ca.full_like(x, 1), ca.empty_like(x)]
    assert messages.total == 0
    assert [a.dtype for a in like] == [dtype, np.float32, dtype, dtype]
    np.testing.assert_array_equal(like[0].gather(), np.zeros((5, 3)))
    assert ca.full(4, 2.5j).dtype == np.complex128


def test_creation_refuses_nonsense(comm):
    with pytest.raises(InputError, match="no dtype"):
        ca.zeros(3, dtype="float31")
    with pytest.raises(InputError, match="not object"):
        ca.zeros(3, dtype=object)
    with pytest.raises(InputError, match="no engine"):
        ca.zeros(3, engine="abacus")
    with pytest.raises(LayoutError, match="ranks"):
        ca.zeros(Layout.split(3, comm.size + 1))
    with pytest.raises(LayoutError, match="does not fit"):
        ca.from_global(np.zeros(4), Layout.split(5, comm.size))
    with pytest.raises(LayoutError, match="local array has the shape"):
        DistributedArray(Layout.split(5, comm.size), comm, np.zeros(9))


def test_numbers_in_another_byte_order(comm):
    given = np.arange(7.0).astype(">f8")
    x = ca.from_global(given, comm=comm)
    assert x.dtype == ca.zeros(3, dtype=">f8").dtype == ca.full(3, given[1:2].reshape(())).dtype == np.float64
    np.testing.assert_array_equal(x.gather(), given)
    for local in (lambda: ca.from_local(given), lambda: ca.from_local(given, Layout.replicated(7, comm.size))):
        with pytest.raises(UnsupportedTypeError, match=r"astype\('float64'\)"):
            local()


def test_arrays_of_numpy_that_are_more_than_arrays(comm):
    square = np.arange(4.0).reshape(2, 2)
    for given in (square.view(np.matrix), np.ma.array(square)):
        for x in (ca.from_local(given, comm=comm), ca.from_global(given, comm=comm)):
            assert type(x.local_array) is np.ndarray
            np.testing.assert_array_equal((x * x).local_array, x.local_array**2)
    assert np.shares_memory(ca.from_local(square.view(np.matrix), comm=comm).local_array, square)
    holes = np.ma.array(square, mask=square > 2)
    for make in (lambda: ca.from_local(holes, comm=comm), lambda: ca.from_global(holes, comm=comm)):
        with pytest.raises(UnsupportedTypeError, match="filled"):
            make()


def test_deep_copies_share_the_communicator(comm):
    x = ca.from_global(values((7, 3), np.float64), comm=comm)
    found = copy.deepcopy(x)
    assert found.comm is comm and found.layout is x.layout
    x *= 0
    np.testing.assert_array_equal(found.gather(), values((7, 3), np.float64))


def test_nothing_is_pickled(comm):
    x = ca.ones(5, comm=comm)
    A = collops.BlockDiag([np.eye(3)], comm)
    for value in (x, ca.StackedArray([x]), A, A.H @ A, collops.Diagonal(x), comm):
        with pytest.raises(UnsupportedTypeError, match=r"collops.save\(path, x\).*make operators on each rank"):
            pickle.dumps(value)


def test_from_local(comm):
    local = np.full((comm.rank, 2), comm.rank, np.float32)
    x = ca.from_local(local, comm=comm)
    assert x.local_array is local
    np.testing.assert_array_equal(x.gather()[:, 0], np.repeat(np.arange(comm.size), np.arange(comm.size)))
    layout = Layout.split(6, comm.size)
    with profile.count_messages() as messages:
        ca.from_local(np.zeros(layout.local_shape(comm.rank)), layout, comm=comm)
    assert messages.total == messages["metadata"] <= 1
    wrong = np.zeros(layout.local_size(comm.rank) + (comm.rank == comm.size - 1))
    with pytest.raises(LayoutError):  # on every rank, though one is wrong
        ca.from_local(wrong, layout, comm=comm)


def test_from_local_needs_one_dtype(comm):
    """A part without elements, too: sums and gathered values would be wrong, or MPI would abort."""
    last = comm.rank == comm.size - 1
    part = np.zeros(0) if last else np.arange(3, dtype=np.int32)
    for layout in (None, Layout.split(3 * comm.size - 3, comm.size, sizes=[3] * (comm.size - 1) + [0])):
        if comm.size == 1:
            assert ca.from_local(part, layout, comm=comm).dtype == np.float64
            continue
        with pytest.raises(UnsupportedTypeError, match="one dtype and engine") as caught:
            ca.from_local(part, layout, comm=comm)
        assert caught.value.on_all_ranks
        assert f"rank {comm.size - 1}: float64 of numpy" in str(caught.value)
        assert ca.from_local(part.astype(np.int32), layout, comm=comm).sum() == 3 * (comm.size - 1)


OPERATIONS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
]
SCALARS = [2, 2.5, 1.5 + 0.5j, True, np.float32(0.5), np.float64(0.5), np.int8(2), np.array(3.0)]


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "int32", "uint16", "float16"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operators_promote_like_numpy(comm, name):
    for function in OPERATIONS:
        a, b, x, y = pair(comm, dtype=name)
        cases = [(x, y, a, b)]
        cases += [(x, s, a, s) for s in SCALARS] + [(s, x, s, a) for s in SCALARS]
        for left, right, one, other in cases:
            try:
                expected = function(one, other)
            except TypeError:
                with pytest.raises(TypeError):
                    function(left, right)
                continue
            with profile.count_messages() as messages:
                result = function(left, right)
            assert messages.total == 0
            assert result.dtype == expected.dtype, (one, other)
            np.testing.assert_array_equal(result.local_array, expected[x.layout.slices(comm.rank)])


@pytest.mark.parametrize("function", [operator.and_, operator.or_, operator.xor], ids=lambda f: f.__name__)
def test_bitwise_operators(comm, function):
    a, b, x, y = pair(comm, dtype=bool)
    np.testing.assert_array_equal(function(x, y).gather(), function(a, b))
    np.testing.assert_array_equal(function(True, y).gather(), function(True, b))
    np.testing.assert_array_equal((~x).gather(), ~a)


def test_unary_operators(comm):
    a, _, x, _ = pair(comm, dtype=np.complex128)
    for function in (operator.neg, operator.pos, abs, np.conj, np.exp, np.isfinite):
        np.testing.assert_array_equal(function(x).gather(), function(a))
    np.testing.assert_array_equal(x.conj().gather(), a.conj())
    np.testing.assert_array_equal(x.real.gather(), a.real)
    np.testing.assert_array_equal(x.imag.gather(), a.imag)
    real = x.real.copy()
    assert not np.shares_memory(real.conj().local_array, real.local_array)


IN_PLACE = ["iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"]


@pytest.mark.parametrize("dtype", ["float64", "int32", "complex64", "bool"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_in_place_is_in_place(comm, dtype):
    for name in IN_PLACE:
        function = getattr(operator, name)
        for other_is_array in (True, False):
            a, b, x, y = pair(comm, dtype=dtype)
            right, other = (y, b) if other_is_array else (2, 2)
            local, before = x.local_array, x
            try:
                function(a, other)
            except TypeError as error:
                with pytest.raises(type(error)):
                    function(x, right)
                continue
            x = function(x, right)
            assert x is before
            assert x.local_array is local
            np.testing.assert_array_equal(x.gather(), a)


def test_in_place_follows_numpys_casting(comm):
    _, _, x, y = pair(comm, dtype=np.int64)
    with pytest.raises(np._core._exceptions._UFuncOutputCastingError):
        x += 0.5
    with pytest.raises(TypeError):
        x *= y.astype(float)
    z = ca.zeros(5, dtype=np.float32)
    z += np.float64(1)
    assert z.dtype == np.float32


def test_ufuncs(comm):
    a, b, x, y = pair(comm)
    mask = a > 0
    np.testing.assert_array_equal(np.hypot(x, y).gather(), np.hypot(a, b))
    np.testing.assert_array_equal(np.maximum(1, x).gather(), np.maximum(1, a))
    np.testing.assert_array_equal(np.add(x, y, dtype=np.float32).gather(), np.add(a, b, dtype=np.float32))
    fraction, whole = np.modf(x)
    np.testing.assert_array_equal(fraction.gather(), np.modf(a)[0])
    np.testing.assert_array_equal(whole.gather(), np.modf(a)[1])
    out = ca.full_like(x, 9.0)
    local = out.local_array
    result = np.multiply(x, y, out=out, where=x > 0)
    assert result is out
    assert out.local_array is local
    np.testing.assert_array_equal(out.gather(), np.multiply(a, b, out=np.full_like(a, 9.0), where=mask))
    first = ca.empty_like(x)
    got, rest = np.modf(x, out=(first, None))
    assert got is first
    np.testing.assert_array_equal(rest.gather(), np.modf(a)[1])
    np.testing.assert_array_equal((np.float64(2) * x).gather(), 2 * a)
    np.testing.assert_array_equal(ca.where(x > 0, x, -1.0).gather(), np.where(mask, a, -1.0))
    np.testing.assert_array_equal(ca.where(x > 0, y, x).gather(), np.where(mask, b, a))
    for reduction in (np.sum, np.min, np.max, np.mean, np.all, np.any):
        np.testing.assert_allclose(reduction(x), reduction(a))


def test_what_is_refused_and_why(comm):
    _a, b, x, y = pair(comm)
    other = x.redistribute(Layout.split(x.shape, comm.size, 1)) if comm.size > 1 else ca.zeros(7)
    for plain in (lambda: x + b, lambda: b + x, lambda: np.add(x, b), lambda: np.add(x, y, out=b)):
        with pytest.raises(UnsupportedTypeError, match=r"from_global|out="):
            plain()
    with pytest.raises(LayoutError, match=r"redistribute|one shape") as caught:
        x + other
    assert str(x.layout) in str(caught.value)
    assert str(other.layout) in str(caught.value)
    for mixed in (lambda: np.add.reduce(x), lambda: np.add.outer(x, y), lambda: np.matmul(x, y)):
        with pytest.raises(UnsupportedTypeError, match="ranks"):
            mixed()
    with pytest.raises(UnsupportedTypeError, match="gather"):
        np.asarray(x)
    with pytest.raises(UnsupportedTypeError, match="gather"):
        list(x)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x == y)
    with pytest.raises(TypeError):
        x + "text"
    with pytest.raises(TypeError):
        hash(x)
    with pytest.raises(UnsupportedTypeError, match="out"):
        x.sum(out=b)
    for condition in (x, b > 0):
        with pytest.raises(UnsupportedTypeError, match="condition"):
            ca.where(condition, x, y)
    with pytest.raises(UnsupportedTypeError, match="from_global"):
        ca.where(x > 0, b, y)
    assert (x == None) is False  # noqa: E711 - compared element by element, None would be a number


def test_astype_copy_fill(comm):
    a, _, x, _ = pair(comm)
    assert x.astype(np.float64, copy=False) is x
    assert x.astype("float32").dtype == np.float32
    y = x.copy()
    y.fill(3)
    np.testing.assert_array_equal(x.gather(), a)
    np.testing.assert_array_equal(y.gather(), np.full_like(a, 3))
    assert (x.shape, x.ndim, x.size, len(x), x.nbytes) == ((7, 3), 2, 21, 7, 168)


def test_reshape(comm):
    a = values((6, 4))
    x = ca.from_global(a, Layout.split(a.shape, comm.size), comm=comm)
    with profile.count_messages() as messages:
        flat = x.ravel()
        back = flat.reshape(x.layout)
        deep = x.reshape(6, -1, 2)
    assert messages.total == 0
    assert flat.layout is x.layout.reshape(-1)
    np.testing.assert_array_equal(flat.gather(), a.ravel())
    assert np.shares_memory(back.local_array, x.local_array) or x.local_array.size == 0
    assert back.layout is x.layout
    np.testing.assert_array_equal(deep.gather(), a.reshape(6, 2, 2))
    if comm.size > 1:
        with pytest.raises(LayoutError, match="redistribute"):
            ca.from_global(a, Layout.split(a.shape, comm.size, 1), comm=comm).ravel()
        with pytest.raises(LayoutError, match="redistribute"):
            flat.reshape(Layout.replicated(a.shape, comm.size))


def test_repr_says_what_and_where(comm):
    x = ca.zeros((10, 4), dtype=np.float32)
    text = repr(x)
    for part in ("float32", "(10, 4)", f"{comm.size} rank", f"rank {comm.rank} holds", "numpy", comm.host_transport):
        assert part in text
    with profile.count_messages() as messages:
        repr(ca.StackedArray([x, x]))
    assert messages.total == 0


def test_a_mask_stays_and_makes_no_communicator_later(comm):
    for mask in masks(comm.size):
        x = ca.ones(Layout.split((max(5, comm.size + 1), 2), comm.size, mask=mask), comm=comm)
        ca.zeros(Layout.grid((4, 4), (comm.size, 1), mask=mask), comm=comm)
        with profile.count_messages() as messages:
            results = [x.copy(), x + x, 2 * x, x.conj(), x.astype("float32"), ca.zeros_like(x), x.real]
            x.dot(x), x.norm(), x.sum(), x.mean(axis=0), x.max()
        assert messages["split"] == 0
        assert messages["metadata"] == 0
        assert all(result.layout is x.layout for result in results)


def test_check_replicated(comm):
    layout = Layout.replicated((3, 2), comm.size)
    x = ca.ones(layout, comm=comm)
    x.check_replicated()
    ca.zeros((3, 2), comm=comm).check_replicated()
    DistributedArray(layout, comm, np.full((3, 2), -0.0 if comm.rank else 0.0)).check_replicated()
    if comm.size == 1:
        return
    x.local_array[0, 0] += comm.rank == comm.size - 1
    with pytest.raises(LayoutError, match=f"rank {comm.size - 1} from rank 0"):
        x.check_replicated()
    mask = tuple(range(comm.size))
    own = DistributedArray(Layout.replicated(2, comm.size, mask=mask), comm, np.full(2, float(comm.rank)))
    own.check_replicated()


def test_plot(comm):
    plt = pytest.importorskip("matplotlib.pyplot")
    for number, a in enumerate((values((6, 5)), values(9), values(4, complex), values((3, 3), complex))):
        every = layouts(a.shape, comm.size)
        for layout in every[:1] if number else every:
            axes = ca.from_global(a, layout, comm=comm).plot()
            assert (axes is not None) == (comm.rank == 0)
            if axes is None:
                continue
            if a.ndim == 1:
                np.testing.assert_array_equal(axes.lines[0].get_ydata(), a.real)
            else:
                np.testing.assert_allclose(axes.images[0].get_array(), np.abs(a) if np.iscomplexobj(a) else a)
            # Boundaries lie halfway between the last element of a rank and the first of the next.
            drawn = [line.get_xydata()[0] for line in axes.lines if line.get_linestyle() == "--"]
            ends = [sorted({*np.cumsum(sizes)} - {0, n}) for sizes, n in zip(layout.sizes, a.shape, strict=True)]
            rows, columns = ends if a.ndim == 2 else ([], *ends)
            assert sorted(y for _, y in drawn[: len(rows)]) == [end - 0.5 for end in rows]
            assert sorted(x for x, _ in drawn[len(rows) :]) == [end - 0.5 for end in columns]
            plt.close(axes.figure)
    with pytest.raises(InputError, match="axes"):
        ca.zeros((2, 2, 2)).plot()
