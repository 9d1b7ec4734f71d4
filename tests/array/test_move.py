"""Moves between layouts into given memory, made once and used often."""

from __future__ import annotations

import numpy as np
import pytest

from collops import profile
from collops.array import Layout
from collops.array.redistribute import Move
from collops.errors import LayoutError
from tests.array.cases import layouts, values


@pytest.mark.parametrize("shape", [(7,), (0,), (5, 4), (3, 2, 4)])
def test_every_layout_to_every_other(comm, shape):
    whole = values(shape)
    for source in layouts(shape, comm.size):
        local = whole[source.slices(comm.rank)]
        for target in layouts(shape, comm.size):
            move = Move(source, target, comm)
            expected = whole[target.slices(comm.rank)]
            for _ in range(2):
                out = np.full(expected.shape, np.nan)
                with profile.count_messages() as sent:
                    assert move(local, out) is out
                np.testing.assert_array_equal(out, expected)
                assert sent.total == sent["alltoallv"] + sent["allgatherv"] == move.sends
            view = move.view(local)
            if move.sends:
                assert view is None
            elif view is not None:
                np.testing.assert_array_equal(view, expected)
                assert view.size == 0 or np.shares_memory(view, whole)


def test_rows_are_gathered_at_once(comm):
    if comm.size == 1:
        pytest.skip("nothing travels in a world of one")
    shape = (2 * comm.size + 1, 3)
    move = Move(Layout.split(shape, comm.size), Layout.replicated(shape, comm.size), comm)
    whole = values(shape)
    out = np.empty(shape)
    with profile.count_messages() as sent:
        move(whole[Layout.split(shape, comm.size).slices(comm.rank)], out)
    assert sent.total == sent["allgatherv"] == 1
    np.testing.assert_array_equal(out, whole)


def test_a_gather_after_a_rejected_call(comm):
    """Rows are never paired with a call that a rank has rejected, which the others have begun."""
    if comm.size == 1:
        pytest.skip("one rank has nobody to disagree with")
    shape = (2 * comm.size, 3)
    layout, whole = Layout.split(shape, comm.size), values(shape)
    move, out = Move(layout, Layout.replicated(shape, comm.size), comm), np.empty(shape)
    with pytest.raises(LayoutError, match="out must have shape"):
        comm.allgather(np.zeros((2, 3)), out=np.empty((comm.size + (comm.rank == 0), 2, 3)))
    np.testing.assert_array_equal(move(whole[layout.slices(comm.rank)], out), whole)
