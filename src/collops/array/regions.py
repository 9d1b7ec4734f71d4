"""Regions of a global array that ranks need, and the ranks that hold their pieces, computed by arithmetic.

A region may extend beyond the ends of the array and over any number of blocks. Every rank computes the senders of its
pieces, without a message.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeAlias

from collops.array.layout import Layout
from collops.exchange import Box

__all__ = ["Region", "transfers"]

Region: TypeAlias = tuple[tuple[int, int], ...]
"""First index and the index after the last, per axis of the global array; both may be outside the array."""


class Transfers(NamedTuple):
    """The pieces that one rank sends and receives so that all ranks receive their regions.

    Attributes
    ----------
    sends : list of (int, int, Box)
        The rank that receives a piece, the number of its region, and the box of this rank's array.
    receives : list of (int, int, Box)
        The rank that holds a piece, the number of the region, and the box of the piece, relative to the region's start.
        The *n*-th receive from a rank is its *n*-th send to this one. A rank also receives local pieces, from itself.
    travels : bool
        Whether any rank needs a piece of another.
    """

    sends: list[tuple[int, int, Box]]
    receives: list[tuple[int, int, Box]]
    travels: bool


def transfers(
    layout: Layout, rank: int, regions_of: Callable[[int], Sequence[Region]], *, periodic: bool = False
) -> Transfers:
    """Return what `rank` sends and receives so that every rank receives its regions. Sends nothing.

    Parameters
    ----------
    layout : Layout
        Layout of the array. If a block has several copies, a rank receives the one at its own process coordinates.
    rank : int
        The rank whose transfers are returned.
    wanted : callable
        ``wanted(rank)`` is the sequence of that rank's regions. A region may not contain an element of another rank
        twice unless `periodic`.
    periodic : bool
        Whether the array wraps around; otherwise there is nothing beyond its ends.

    Examples
    --------
    >>> from collops.array import Layout, transfers
    >>> moves = transfers(Layout.split(4, 2), 0, lambda rank: [((1, 3),)])  # both ranks want elements 1 and 2
    >>> [(peer, box) for peer, _, box in moves.receives]
    [(0, (slice(0, 1, None),)), (1, (slice(1, 2, None),))]
    """
    sends: list[tuple[int, int, Box]] = []
    receives: list[tuple[int, int, Box]] = []
    travels = False
    coordinates = layout.coordinates(rank)
    copied = [axis for axis in range(len(coordinates)) if axis not in layout.axes]
    for peer in range(layout.ranks):
        owner_coordinates = layout.coordinates(peer)
        same_copy = all(owner_coordinates[axis] == coordinates[axis] for axis in copied)
        for number, region in enumerate(regions_of(peer)):
            if peer == rank:
                for owner, source_box, target_box in _pieces(layout, owner_coordinates, region, periodic):
                    receives.append((owner, number, target_box))
                    if owner == rank:
                        sends.append((rank, number, source_box))
                    else:
                        travels = True
                continue
            if same_copy:
                sends += [
                    (peer, number, source_box)
                    for _, source_box, _ in _pieces(layout, coordinates, region, periodic, True)
                ]
            # Stop at the first rank that needs a piece: examining all pieces of all ranks would take long.
            travels = travels or any(
                owner != peer for owner, *_ in _pieces(layout, owner_coordinates, region, periodic)
            )
    return Transfers(sends, receives, travels)


def holders(layout: Layout, rank: int, region: Region) -> set[int]:
    """Return the ranks from which `rank` receives a region, by `transfers`."""
    return {owner for owner, *_ in _pieces(layout, layout.coordinates(rank), region, False)}


def _pieces(
    layout: Layout, coordinates: Sequence[int], region: Region, periodic: bool, only_here: bool = False
) -> Iterator[tuple[int, Box, Box]]:
    """Yield the rank that holds each piece of a region, and the boxes of its block and of the region.

    Of several copies, the copy at the process coordinates `place` is used; with `only_here`, only pieces there.
    """
    owning = list(coordinates)
    along = [
        list(
            _overlaps(
                layout, axis, *bounds, periodic, coordinates[grid_axis] if only_here and grid_axis is not None else None
            )
        )
        for axis, (bounds, grid_axis) in enumerate(zip(region, layout.axes, strict=True))
    ]
    for parts in product(*along):
        for grid_axis, part in zip(layout.axes, parts, strict=True):
            if grid_axis is not None:
                owning[grid_axis] = part[0]
        owner = 0
        for coordinate, extent in zip(owning, layout.process_grid, strict=True):
            owner = owner * extent + coordinate
        source_box = tuple(slice(begin, begin + count) for _, begin, _, count in parts)
        yield owner, source_box, tuple(slice(begin, begin + count) for _, _, begin, count in parts)


def _overlaps(
    layout: Layout, axis: int, start: int, stop: int, periodic: bool, only: int | None
) -> Iterator[tuple[int, int, int, int]]:
    """Yield, for each block that overlaps the interval, its number, the first index in either, and the length.

    With `only`, for this block only.
    """
    extent, sizes, starts = layout.shape[axis], layout.sizes[axis], layout.starts[axis]
    if not extent:
        return
    first, last = (start // extent, (stop - 1) // extent) if periodic else (0, 0)
    for shift in range(first * extent, (last + 1) * extent, extent):
        low, high = max(start - shift, 0), min(stop - shift, extent)
        if low >= high:
            continue
        overlapping = range(bisect_right(starts, low) - 1, bisect_left(starts, high))
        for number in overlapping if only is None else (only,):
            begin, end = max(low, starts[number]), min(high, starts[number] + sizes[number])
            if begin < end:
                yield number, begin - starts[number], begin + shift - start, end - begin
