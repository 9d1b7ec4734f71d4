"""Patterns: who sends what to whom. Pure data of one rank, worked out before any values move.

There are two kinds. A :class:`Pattern` of *points* names rows of arrays by index; star forests, index scatters and
sparse matrices find theirs by one exchange of indices. Its values are packed into a buffer that is ordered by rank,
and combined with those of the target. A pattern of *boxes*, two lists of ranks and slices, is what halos, derivatives
and redistributions work out by arithmetic; boxes travel from and to where they lie (:class:`ExchangePlan`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from collops.exchange.packing import Index

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Pattern", "Side"]

Box: TypeAlias = tuple[slice, ...]
"""One slice per axis, with explicit non-negative start and stop."""


class Segment(NamedTuple):
    """The points ``start .. stop - 1`` of a packed buffer, which go to or come from `rank`."""

    rank: int
    start: int
    stop: int


class Side(NamedTuple):
    """The values that a rank sends, or those that it receives.

    Examples
    --------
    >>> import collops
    >>> from collops.extend.communication import alone
    >>> side = collops.StarForest(alone(), 1, None, [0], [0]).pattern.sends
    >>> side.segments, side.counts(1)  # a rank sends itself no message
    ((), [0])
    """

    points: Index  # where the points of the packed buffer are in the array
    segments: tuple[Segment, ...]  # the other ranks, ascending, and their parts of the buffer

    def counts(self, ranks: int) -> list[int]:
        """Return the number of points for each of `ranks` ranks."""
        counts = [0] * ranks
        for rank, start, stop in self.segments:
            counts[rank] = stop - start
        return counts


class Pattern(NamedTuple):
    """The points that one rank sends, receives and keeps.

    A packed buffer is ordered by the other rank. ``sends.segments`` and ``receives.segments`` have ``(rank, start,
    stop)`` for each rank to which, or from which, points ``start .. stop - 1`` of the buffer travel.

    Examples
    --------
    >>> import collops
    >>> from collops.extend.communication import alone
    >>> pattern = collops.StarForest(alone(), 2, None, [0, 0, 0], [0, 1, 1]).pattern
    >>> pattern.here.points, pattern.there.points, pattern.most_points
    (array([0, 1, 1]), array([0, 1, 2]), 0)
    """

    sends: Side  # of the source array
    receives: Side  # of the target array
    here: Index  # the points of the source whose values stay on this rank
    there: Index  # and of the target, where they go
    most_points: int  # of the longest packed buffer of any rank; 0 where no rank sends anything

    def reversed(self) -> Pattern:
        """Return the pattern from target to source."""
        return Pattern(self.receives, self.sends, self.there, self.here, self.most_points)


def edges_by_rank(ranks: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the edges to `rank` itself, and of all other edges, ordered by rank.

    Edges to one rank stay in their order, which determines the order of all sums.
    """
    own = ranks == rank
    others = np.flatnonzero(~own)
    return np.flatnonzero(own), others[np.argsort(ranks[others], kind="stable")]


def pattern_of_edges(comm: Communicator, leaves: np.ndarray, ranks: np.ndarray, indices: np.ndarray) -> Pattern:
    """Return the pattern that takes roots to leaves. Collective: the indices of roots travel once.

    Each edge that ends on this rank has a leaf, and the rank and the index of its root; all have been checked.
    """
    local, others = edges_by_rank(ranks, comm.rank)
    wanted = np.bincount(ranks[others], minlength=comm.size).astype(np.int64)
    given = comm.alltoall(wanted)
    roots = comm.alltoallv(indices[others], wanted.tolist(), given.tolist())
    longest = comm.allreduce(np.array(max(len(others), len(roots)), np.int64), "max")
    return Pattern(
        Side(Index(roots), _segments(given)),
        Side(Index(leaves[others]), _segments(wanted)),
        Index(indices[local]),
        Index(leaves[local]),
        int(longest),
    )


def _segments(counts: np.ndarray) -> tuple[Segment, ...]:
    ends = np.cumsum(counts)
    return tuple(
        Segment(rank, int(end - count), int(end))
        for rank, (count, end) in enumerate(zip(counts, ends, strict=True))
        if count
    )
