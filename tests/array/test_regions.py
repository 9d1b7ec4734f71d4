"""Regions of arrays: the pieces that every rank sends and receives, for all ranks at once, without messages."""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
import pytest

from collops.array import Layout, transfers
from tests.array.cases import layouts

pytestmark = pytest.mark.serial


def received(layout, wanted, periodic):
    """What each rank's regions hold after the messages have been delivered, and whether any rank sent to another."""
    whole = np.arange(layout.size).reshape(layout.shape) + 1
    moves = [transfers(layout, rank, wanted, periodic=periodic) for rank in range(layout.ranks)]
    messages = defaultdict(deque)
    for rank, move in enumerate(moves):
        for peer, _, box in move.sends:
            messages[rank, peer].append(whole[layout.slices(rank)][box])
    found = []
    for rank, move in enumerate(moves):
        regions = [np.zeros([stop - start for start, stop in region], int) for region in wanted(rank)]
        for owner, number, box in move.receives:
            regions[number][box] = messages[owner, rank].popleft()
        found.append(regions)
    assert not any(messages.values())  # nothing is sent that no rank receives
    travels = any(owner != rank for rank, move in enumerate(moves) for owner, *_ in move.receives)
    assert {move.travels for move in moves} == {travels}
    return whole, found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("shape", [(7,), (2,), (0,), (5, 4), (3, 2, 4)])
@pytest.mark.parametrize("periodic", [False, True])
def test_every_rank_gets_its_regions(ranks, shape, periodic):
    for layout in layouts(shape, ranks):
        rng = np.random.default_rng(ranks)
        bounds = rng.integers(-3, 9, (ranks, 2, len(shape), 2))
        bounds.sort(axis=-1)

        def wanted(rank, bounds=bounds):
            return [tuple((int(a), int(b)) for a, b in region) for region in bounds[rank]]

        whole, found = received(layout, wanted, periodic)
        for rank, regions in enumerate(found):
            for region, values in zip(wanted(rank), regions, strict=True):
                places = [np.arange(*pair) for pair in region]
                inside = np.ones(values.shape, bool)
                for axis, (place, extent) in enumerate(zip(places, shape, strict=True)):
                    known = (place >= 0) & (place < extent) if not periodic else np.full(len(place), extent > 0)
                    inside &= known.reshape([-1 if a == axis else 1 for a in range(len(shape))])
                expected = np.zeros(values.shape, int)
                if whole.size and values.size:
                    indices = np.ix_(*(place % extent for place, extent in zip(places, shape, strict=True)))
                    expected = np.where(inside, whole[indices], 0)
                np.testing.assert_array_equal(values, expected)


def test_a_rank_keeps_what_it_holds():
    """Of several copies a rank takes its own, so that nothing travels."""
    layout = Layout((4, 6), 6, (2, 3), (0, None))
    moves = [transfers(layout, rank, lambda r: [((2 * (r // 3), 2 * (r // 3) + 2), (0, 6))]) for rank in range(6)]
    assert not any(move.travels for move in moves)
    assert [[peer for peer, *_ in move.receives] for move in moves] == [[rank] for rank in range(6)]
