"""Layouts: arithmetic that must agree with cutting up a real array."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collops import profile
from collops.array import Layout, StackedLayout
from collops.errors import LayoutError
from tests.array.cases import layouts, masks

serial = pytest.mark.serial


@st.composite
def any_layout(draw):
    shape = draw(st.lists(st.integers(0, 7), min_size=1, max_size=3))
    grid = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    places = draw(st.permutations(list(range(len(grid))) + [None] * len(shape)))[: len(shape)]
    sizes = []
    for extent, place in zip(shape, places, strict=True):
        if place is None or draw(st.booleans()):
            sizes.append(None)
            continue
        cuts = sorted(draw(st.lists(st.integers(0, extent), min_size=grid[place] - 1, max_size=grid[place] - 1)))
        sizes.append(np.diff([0, *cuts, extent]).tolist())
    return Layout(shape, math.prod(grid), grid, places, sizes)


@serial
@given(any_layout())
def test_blocks_cover_the_array_once_per_copy(layout):
    held = np.zeros(layout.shape, int)
    counted = np.zeros(layout.shape, int)
    for rank in range(layout.ranks):
        part = held[layout.slices(rank)]
        assert part.shape == layout.local_shape(rank)
        assert part.size == layout.local_size(rank)
        assert layout.offset(rank) == tuple(s.start for s in layout.slices(rank))
        held[layout.slices(rank)] += 1
        if layout.representative(rank):
            counted[layout.slices(rank)] += 1
    assert (counted == 1).all()
    copies = layout.ranks // math.prod(len(layout.sizes[axis]) for axis in layout.split_axes)
    assert (held == copies).all()


@serial
@given(any_layout(), st.data())
def test_groups_hold_what_they_reduce_once(layout, data):
    axes = data.draw(st.one_of(st.none(), st.sets(st.integers(0, layout.ndim - 1))))
    groups = layout.reduction_groups(axes)
    reduced = set(range(layout.ndim)) if axes is None else axes
    if groups is None:
        assert not reduced & set(layout.split_axes)
        return
    for rank in range(layout.ranks):
        seen = np.zeros(layout.shape, int)
        for other in range(layout.ranks):
            if groups[other] == groups[rank]:
                seen[layout.slices(other)] += 1
        # The lines through this rank's block along the reduced axes, each element once, and nothing else.
        expected = np.zeros(layout.shape, int)
        lines = tuple(slice(None) if a in reduced else s for a, s in enumerate(layout.slices(rank)))
        expected[lines] = 1
        assert (seen == expected).all()
        assert layout.reduction_count(rank, axes) == math.prod(layout.shape[a] for a in reduced)


def layouts_of_eight_ranks():
    """Yield every way to split an array over every process grid of eight ranks, none of which is without elements."""
    shape = (9, 8, 11)
    for grid in ((8,), (2, 4), (4, 2), (2, 2, 2)):
        for places in itertools.permutations([*range(len(grid)), None, None, None], 3):
            yield Layout(shape, 8, grid, places)


@serial
def test_groups_on_every_process_grid():
    """Two ranks are of one group if their blocks lie on the same lines along the reduced axes, of the same copy."""
    for layout in set(layouts_of_eight_ranks()):
        slices = [layout.slices(rank) for rank in range(8)]
        held = [tuple((s.start, s.stop) for s in slices[rank]) for rank in range(8)]
        for axes in itertools.chain.from_iterable(itertools.combinations(range(3), k) for k in range(4)):
            groups = layout.reduction_groups(axes)
            if groups is None:
                assert not {*axes} & {*layout.split_axes}, (layout, axes)
                continue
            blocks = [tuple(pair for axis, pair in enumerate(held[rank]) if axis not in axes) for rank in range(8)]
            for group in set(groups):
                members = [rank for rank in range(8) if groups[rank] == group]
                # The same block of the result; among the members each block of the array once, and none missing.
                assert len({blocks[rank] for rank in members}) == 1, (layout, axes)
                assert len({held[rank] for rank in members}) == len(members), (layout, axes)
                wanted = {held[rank] for rank in range(8) if blocks[rank] == blocks[members[0]]}
                assert {held[rank] for rank in members} == wanted, (layout, axes)


@serial
@given(any_layout())
def test_owner_holds_the_element(layout):
    for index in np.ndindex(*layout.shape):
        owner = layout.owner(index)
        holders = [
            rank
            for rank in range(layout.ranks)
            if all(s.start <= i < s.stop for i, s in zip(index, layout.slices(rank), strict=True))
        ]
        assert owner == holders[0] == layout.owner([i - n for i, n in zip(index, layout.shape, strict=True)])


@serial
@given(any_layout(), st.data())
def test_reshape_moves_nothing(layout, data):
    size = layout.size
    options = [(size,), (1, size), (size, 1), layout.shape]
    options += [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    shape = data.draw(st.sampled_from(options))
    values = np.arange(size).reshape(layout.shape)
    try:
        new = layout.reshape(shape)
    except LayoutError as error:
        assert "redistribute" in str(error)
        assert layout.split_axes
        return
    assert new.ranks == layout.ranks
    for rank in range(layout.ranks):
        before = values[layout.slices(rank)]
        after = values.reshape(shape)[new.slices(rank)]
        np.testing.assert_array_equal(before.reshape(new.local_shape(rank)), after)


@serial
@given(any_layout())
def test_equal_layouts_are_one_object(layout):
    again = Layout(layout.shape, layout.ranks, layout.process_grid, layout.axes, layout.sizes, layout.mask)
    assert again is layout
    assert copy.deepcopy(layout) is layout
    assert copy.copy(layout) is layout
    assert pickle.loads(pickle.dumps(layout)) is layout
    assert hash(again) == hash(layout)


@serial
@given(any_layout(), st.data())
def test_drop(layout, data):
    axis = data.draw(st.integers(0, layout.ndim - 1))
    if layout.ndim == 1:
        with pytest.raises(LayoutError):
            layout.drop(axis)
        return
    dropped = layout.drop(axis)
    for rank in range(layout.ranks):
        assert dropped.slices(rank) == tuple(s for a, s in enumerate(layout.slices(rank)) if a != axis)


@serial
def test_first_ranks_get_one_more():
    layout = Layout.split((10, 3), 4)
    assert layout.sizes == ((3, 3, 2, 2), (3,))
    assert [layout.offset(rank) for rank in range(4)] == [(0, 0), (3, 0), (6, 0), (8, 0)]
    assert layout.split_axes == (0,)
    assert not layout.is_replicated


@serial
def test_more_ranks_than_rows():
    layout = Layout.split(2, 4)
    assert [layout.local_shape(rank) for rank in range(4)] == [(1,), (1,), (0,), (0,)]
    assert layout.owner(-1) == 1


@serial
def test_normal_form():
    shape = (6, 4)
    assert Layout.grid(shape, (3, 1)) is Layout.split(shape, 3)
    assert Layout.grid(shape, (1, 3)) is Layout.split(shape, 3, 1)
    assert Layout.split(shape, 1) is Layout.replicated(shape, 1)
    assert Layout(shape, 6, (2, 3), (None, None)) is Layout.replicated(shape, 6)
    assert Layout.split(shape, 3, -1) is Layout.split(shape, 3, 1)
    assert Layout.split(shape, 3, mask=(5, 5, 5)) is Layout.split(shape, 3)
    assert Layout.split(shape, 3, mask=(7, 7, 2)).mask == (0, 0, 1)
    assert Layout.grid(shape, (2, 2)).process_grid == (2, 2)
    assert Layout.split(np.array(shape), np.int64(3)) is Layout.split(shape, 3)
    assert Layout.split(np.int32(7), 3) is Layout.split((7,), 3) is Layout.split(7, 3)


@serial
@pytest.mark.parametrize(
    "make",
    [
        lambda: Layout.split((), 2),
        lambda: Layout.split((-1,), 2),
        lambda: Layout.split((4,), 0),
        lambda: Layout.split((4,), 2, 1),
        lambda: Layout.split((4,), 2, sizes=(1, 2)),
        lambda: Layout.split((4,), 1, sizes=(3,)),
        lambda: Layout.split((4,), 2, sizes=(5, -1)),
        lambda: Layout.split((4,), 2, mask=(0,)),
        lambda: Layout.grid((4, 4), (2,)),
        lambda: Layout((4,), 4, (2, 2), (2,)),
        lambda: Layout((4, 4), 4, (2, 2), (0, 0)),
        lambda: Layout((4,), 3, (2, 2), (0,)),
        lambda: Layout((4,), 4, (2, 2), (0,), mask=(0, 0, 0, 1)),  # cuts a copy in two
        lambda: Layout.split((4,), 2).owner(4),
        lambda: Layout.split((4,), 2).block(2),
        lambda: Layout.split((4,), 2).reshape((5,)),
        lambda: Layout.split((4,), 2).reshape((-1, 3)),
    ],
)
def test_contradictions_are_refused(make):
    with pytest.raises(LayoutError):
        make()


@serial
def test_layouts_are_immutable():
    layout = Layout.split((4,), 2)
    with pytest.raises(AttributeError):
        layout.shape = (5,)
    with pytest.raises(AttributeError):
        layout.colour = "red"
    with pytest.raises(AttributeError):
        StackedLayout([layout]).layouts = ()


@serial
def test_masked_groups():
    layout = Layout.split((8, 2), 4, mask=(0, 0, 1, 1))
    assert layout.reduction_groups() == (0, 0, 1, 1)
    assert layout.reduction_groups((1,)) is None
    assert layout.reduction_count(3) == 8
    assert layout.reduction_count(3, (0,)) == 4
    assert layout.without_mask() is Layout.split((8, 2), 4)
    copies = Layout((4,), 4, (2, 2), (1,), mask=(0, 0, 1, 1))
    assert copies.reduction_groups() == (0, 0, 1, 1)
    assert [copies.representative(rank) for rank in range(4)] == [True] * 4


@serial
def test_text_shows_shape_ranks_and_split():
    assert str(Layout.split((10, 4), 3)) == "(10, 4) on 3 ranks, split along axis 0 as 4+3+3"
    assert "split along axis 0 as 20 parts of 5 to 5" in str(Layout.split(100, 20))
    assert str(Layout.replicated(5, 1)) == "(5,) on 1 rank, replicated"
    assert "in copies" in str(Layout((4,), 4, (2, 2), (0,)))


@serial
def test_stacked_layout():
    one, two = Layout.split(5, 3), Layout.replicated((2, 2), 3)
    stacked = StackedLayout([one, StackedLayout([two, one])])
    assert stacked is StackedLayout([one, StackedLayout([two, one])])
    assert pickle.loads(pickle.dumps(stacked)) is stacked
    assert stacked.leaves == (one, two, one)
    assert stacked.size == 14
    assert stacked.local_size(0) == 2 + 4 + 2
    assert not stacked.is_replicated
    assert list(stacked) == [one, stacked[1]]
    for wrong in ([], [one, Layout.split(5, 2)], [one, "x"]):
        with pytest.raises(LayoutError):
            StackedLayout(wrong)


def test_from_local_gathers_shapes_once(comm):
    with profile.count_messages() as messages:
        layout = Layout.from_local((comm.rank, 3), comm)
    assert messages.total == messages["metadata"] == (1 if comm.size > 1 else 0)
    assert layout is Layout.split((sum(range(comm.size)), 3), comm.size, sizes=range(comm.size))
    other = Layout.from_local((2, comm.rank + 1), comm, axis=-1)
    assert other.sizes[1] == tuple(range(1, comm.size + 1))


def test_from_local_refuses_what_does_not_fit_on_every_rank(comm):
    if comm.size == 1:
        pytest.skip("one rank always fits itself")
    with pytest.raises(LayoutError, match="differ along axis 0 only"):
        Layout.from_local((2, comm.rank), comm)
    with pytest.raises(LayoutError, match="number of axes"):
        Layout.from_local((2,) * (1 + (comm.rank == 0)), comm)


def test_asking_a_layout_sends_nothing(comm):
    with profile.count_messages() as messages:
        for layout in layouts((5, 4), comm.size):
            layout.block(comm.rank), layout.owner((0, 0)), layout.reduction_groups(), layout.drop(0)
        for mask in masks(comm.size):
            Layout.split(7, comm.size, mask=mask).reduction_groups()
    assert messages.total == 0
