"""Communication patterns: which values each rank sends and receives. Computed locally, before any values are sent.

There are two kinds. A :class:`Pattern` of *points* selects rows of arrays by index; star forests, index scatters and
sparse matrices compute it with one exchange of indices. Values are packed into a buffer ordered by rank, and combined
with the values of the target. A pattern of *boxes* consists of two lists of ranks and slices. Halos, derivatives and
redistributions compute it without communication; boxes are sent and received in place (:class:`ExchangePlan`).
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
    """The points ``start .. stop - 1`` of a packed buffer, sent to or received from `rank`."""

    rank: int
    start: int
    stop: int


class Side(NamedTuple):
    """The values that a rank sends, or the values that it receives.

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
    stop)`` for each rank that points ``start .. stop - 1`` of the buffer are sent to or received from.

    Examples
    --------
    >>> import collops
    >>> from collops.extend.communication import alone
    >>> pattern = collops.StarForest(alone(), 2, None, [0, 0, 0], [0, 1, 1]).pattern
    >>> pattern.local_sources.points, pattern.local_targets.points, pattern.most_points
    (array([0, 1, 1]), array([0, 1, 2]), 0)
    """

    sends: Side  # of the source array
    receives: Side  # of the target array
    local_sources: Index  # the points of the source whose values stay on this rank
    local_targets: Index  # and of the target, where they go
    most_points: int  # of the longest packed buffer of any rank; 0 where no rank sends anything

    def reversed(self) -> Pattern:
        """Return the pattern from target to source."""
        return Pattern(self.receives, self.sends, self.local_targets, self.local_sources, self.most_points)


def edges_by_rank(ranks: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the edges to `rank` itself, and of all other edges, sorted by rank.

    The sort is stable: the order of the edges to a rank determines the order of sums.
    """
    is_local = ranks == rank
    remote = np.flatnonzero(~is_local)
    return np.flatnonzero(is_local), remote[np.argsort(ranks[remote], kind="stable")]


def pattern_of_edges(comm: Communicator, leaves: np.ndarray, ranks: np.ndarray, indices: np.ndarray) -> Pattern:
    """Return the pattern from roots to leaves. Collective: the indices of the roots are exchanged once.

    `leaves`, `ranks` and `indices` describe the edges that end on this rank: the leaf, and the rank and index of its
    root. They have been validated.
    """
    local, remote = edges_by_rank(ranks, comm.rank)
    recv_counts = np.bincount(ranks[remote], minlength=comm.size).astype(np.int64)
    send_counts = comm.alltoall(recv_counts)
    roots = comm.alltoallv(indices[remote], recv_counts.tolist(), send_counts.tolist())
    longest = comm.allreduce(np.array(max(len(remote), len(roots)), np.int64), "max")
    return Pattern(
        Side(Index(roots), _segments(send_counts)),
        Side(Index(leaves[remote]), _segments(recv_counts)),
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
