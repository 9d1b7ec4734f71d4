"""Broadcasting of arrays whose parts fit, against NumPy on the global arrays; and layouts that do not fit."""

import itertools

import numpy as np
import pytest

import collops
from collops import Layout, profile
from collops.errors import LayoutError
from tests.array.cases import layouts, masks, uneven, values


@pytest.fixture(params=["numpy", "jax"])
def engine(request):
    if request.param == "jax":
        pytest.importorskip("jax", reason="JAX is not installed")
    return request.param


def whole_where(layout, axes):
    """Return the layout of an array with extent 1 along some axes, split as another one along the others."""
    shape = [1 if axis in axes else n for axis, n in enumerate(layout.shape)]
    places = [None if axis in axes else place for axis, place in enumerate(layout.axes)]
    sizes = [None if axis in axes else blocks for axis, blocks in enumerate(layout.sizes)]
    return Layout(shape, layout.ranks, layout.process_grid, places, sizes, layout.mask)


def test_axes_of_extent_one(comm, engine):
    a = values((7, 5, 3), np.float32)
    for layout in layouts(a.shape, comm.size)[:: 1 if engine == "numpy" else 5]:
        x = collops.from_global(a, layout, comm=comm, engine=engine)
        for axes in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2, 3)):
            narrow = whole_where(layout, axes)
            b = values(narrow.shape, np.float32, seed=1)
            y = collops.from_global(b, narrow, comm=comm, engine=engine)
            with profile.count_messages() as messages:
                found = [x - y, y - x, np.maximum(y, x), collops.where(y > 0, x, 1.0)]
            assert messages.total == 0
            for result, expected in zip(
                found, (a - b, b - a, np.maximum(b, a), np.where(b > 0, a, np.float32(1))), strict=True
            ):
                assert result.layout is layout
                np.testing.assert_array_equal(result.gather(), expected)
                result.check_replicated()


def test_missing_axes(comm, engine):
    a, b = values((7, 5, 3), np.float32), values((5, 3), np.float32, seed=1)
    layout = Layout.split(a.shape, comm.size, 1, sizes=uneven(5, comm.size))
    x = collops.from_global(a, layout, comm=comm, engine=engine)
    y = collops.from_global(b, layout.drop(0), comm=comm, engine=engine)
    np.testing.assert_array_equal((y * x).gather(), b * a)
    z = collops.from_global(b[0], Layout.replicated(3, comm.size), comm=comm, engine=engine)
    np.testing.assert_array_equal((x - z).gather(), a - b[0])


def test_in_place(comm):
    a = values((6, 4))
    x = collops.from_global(a, comm=comm)
    local = x.local_array
    x -= collops.from_global(a[:1], Layout.replicated((1, 4), comm.size), comm=comm)
    np.testing.assert_array_equal(x.gather(), a - a[:1])
    assert x.local_array is local
    row = collops.from_global(a[:1], Layout.replicated((1, 4), comm.size), comm=comm)
    with pytest.raises(LayoutError, match="make the arrays of one shape"):
        row += x
    np.testing.assert_array_equal(row.gather(), a[:1])
    out = collops.empty_like(x)
    assert np.add(x, row, out=out) is out
    np.testing.assert_allclose(out.gather(), a, rtol=1e-14, atol=1e-15)
    with pytest.raises(LayoutError, match="different layouts"):
        np.add(x, row, out=row)


def test_both_are_broadcast(comm):
    """Rows and columns on a grid: the result has the layout that neither of them has."""
    for rows in (n for n in range(1, comm.size + 1) if comm.size % n == 0):
        grid = (rows, comm.size // rows)
        full = Layout.grid((6, 5), grid)
        a, b = values((6, 1)), values((1, 5), seed=1)
        x = collops.from_global(a, whole_where(full, (1,)), comm=comm)
        y = collops.from_global(b, whole_where(full, (0,)), comm=comm)
        product = x * y
        assert product.layout is full
        np.testing.assert_array_equal(product.gather(), a * b)
        np.testing.assert_allclose(product.sum(axis=0).gather(), (a * b).sum(0))


def test_an_empty_array(comm):
    x = collops.zeros((0, 4), comm=comm)
    y = collops.ones(Layout.replicated((1, 4), comm.size), comm=comm)
    assert (x + y).layout is x.layout


def test_layouts_that_do_not_fit(comm):
    x = collops.ones((6, 4), comm=comm)
    for shape in ((3, 1), (6,), (2, 3, 1)):
        with pytest.raises(LayoutError, match="one shape"):
            x + collops.ones(shape, comm=comm)
    if comm.size == 1:
        return
    with pytest.raises(LayoutError, match="make the arrays in layouts that fit"):
        x + collops.ones((1, 4), comm=comm)  # its first axis is on one rank
    with pytest.raises(LayoutError, match="make the arrays in layouts that fit"):
        x + collops.ones(Layout.split((6, 1), comm.size, sizes=uneven(6, comm.size)), comm=comm)
    with pytest.raises(LayoutError, match="make the arrays in layouts that fit"):
        collops.ones((6, 1)) + collops.ones(Layout.split((1, 5), comm.size, 1))  # both axes over the same ranks
    for mask in masks(comm.size):
        with pytest.raises(LayoutError, match="make the arrays in layouts that fit"):
            x + collops.ones(Layout.replicated((1, 4), comm.size, mask=mask), comm=comm)


def test_derivatives(comm):
    """The cotangent of an array that is broadcast over ranks is the sum over all of them."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    a, b = values((6, 4), np.float32), values((1, 4), np.float32, seed=1)
    x = collops.from_global(a, comm=comm, engine="jax")
    y = collops.from_global(b, Layout.replicated((1, 4), comm.size), comm=comm, engine="jax")
    gradients = jax.grad(lambda x, y: (x * y * y).sum(), (0, 1))(x, y)
    for found, expected in zip(gradients, (np.broadcast_to(b * b, a.shape), 2 * b * a.sum(0)), strict=True):
        np.testing.assert_allclose(found.gather(), expected, rtol=1e-5, atol=1e-5)
        found.check_replicated()
