"""What errors advise: each call that a message names succeeds, and nothing impossible is advised."""

import itertools
import re

import numpy as np
import pytest

import collops
from collops import Layout, StackedArray, StackedLayout
from collops.array.operands import way_to
from collops.errors import LayoutError

SHAPES = (8, 5), (40,), (5, 8), (1, 40), (2, 4, 5), (7,), (0, 3), (3, 0, 2)


def layouts(shape, ranks):
    yield Layout.replicated(shape, ranks)
    yield from (Layout.split(shape, ranks, axis) for axis in range(len(shape)))
    yield Layout.split(shape, ranks, sizes=[0] * (ranks - 1) + [shape[0]])


def followed(text, **names):
    """Return the array that the call at the end of a message makes."""
    return eval(text[text.index(next(iter(names)) + ".") :], {"Layout": Layout, **names})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ways_between_layouts(comm, shape):
    given = [*layouts(shape, comm.size)]
    wanted = [layout for other in SHAPES for layout in layouts(other, comm.size)]
    values = np.arange(given[0].size, dtype=float).reshape(shape)
    for one, other in itertools.product(given, wanted):
        if one is other:
            continue
        x, y = collops.from_global(values, one), collops.zeros(other)
        if {one.shape, other.shape} == {(40,), (1, 40)} and one.sizes[-1] == other.sizes[-1]:
            wide = one if one.ndim == 2 else other
            if wide.axes[0] is None:
                assert (x + y).layout is wide  # broadcast
                continue
        with pytest.raises(LayoutError) as caught:
            x + y
        text = str(caught.value)
        assert way_to(one, other) in text
        if one.size != other.size:
            assert "redistribute(" not in text and "reshape(" not in text
            continue
        moved = followed(text.splitlines()[-1], x=x, y=y)
        assert moved.layout is other
        assert np.array_equal(moved.gather(), values.reshape(other.shape))


def test_a_shape_that_parts_do_not_fit(comm):
    if comm.size == 1:
        pytest.skip("one rank has all rows")
    values = np.arange(40.0).reshape(8, 5)
    x = collops.from_global(values, Layout.split((8, 5), comm.size, 1))
    for shape in ((40,), (5, 8), (1, 40), (40, 1)):
        with pytest.raises(LayoutError) as caught:
            x.reshape(shape)
        call = re.search(r"redistribute\(.*\)$", str(caught.value))
        assert call is not None
        moved = followed("x." + call.group(), x=x)
        assert np.array_equal(moved.reshape(shape).gather(), values.reshape(shape))


def test_operators_and_solvers(comm):
    A = collops.Identity(40)
    x = collops.from_global(np.arange(40.0).reshape(8, 5))
    for misfit in (lambda: A @ x, lambda: A.adjoint(x)):
        with pytest.raises(LayoutError) as caught:
            misfit()
        assert followed(str(caught.value), x=x, layout=A.domain).layout is A.domain
    with pytest.raises(LayoutError) as caught:
        collops.cg(A, x)
    assert followed(str(caught.value).partition(";")[2], y=x, layout=A.range).layout is A.range
    with pytest.raises(LayoutError) as caught:
        A @ collops.ones(41)
    assert "(41,) and (40,) have different numbers of elements" in str(caught.value)
    with pytest.raises(LayoutError, match="different numbers of elements"):
        x.redistribute(Layout.split(7, comm.size))


def test_a_diagonal_on_other_ranks(comm):
    if comm.size == 1:
        pytest.skip("one rank has all elements")
    model = Layout.split((6, 4), comm.size)
    diag = collops.random(Layout.split((6, 4), comm.size, 1))
    with pytest.raises(LayoutError) as caught:
        collops.Diagonal(diag, model)
    A = collops.Diagonal(followed(str(caught.value), diag=diag), model)
    assert np.array_equal((A @ collops.ones(model)).gather(), diag.gather())


def test_stacks(comm):
    ones = collops.ones
    x = StackedArray([ones((8, 5)), ones(3)])
    others = {
        "part 1: make the arrays of one shape": StackedArray([ones((8, 5)), ones(4)]),
        "stacks of as many parts: 2 and 1": StackedArray([ones((8, 5))]),
        "part 0: .*reshape": StackedArray([ones(40), ones(3)]),
    }
    for text, other in others.items():
        with pytest.raises(LayoutError, match=text):
            x + other
    layout = StackedLayout([Layout.replicated((8, 5), comm.size), Layout.replicated(3, comm.size)])
    if layout is not x.layout:
        y = collops.zeros(layout)
        with pytest.raises(LayoutError) as caught:
            x + y
        assert followed(str(caught.value).splitlines()[-1].partition("first: ")[2], x=x, y=y).layout is layout
