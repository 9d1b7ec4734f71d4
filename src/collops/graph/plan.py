"""What a star forest moves where: worked out once, when the forest is made, by one exchange of indices.

Values go in *messages* between pairs of ranks, packed one after the other into a buffer that is ordered by rank. A rank
has two such buffers: one on the *root side*, for the roots that leaves of other ranks want, and one on the *leaf
side*, for its own leaves whose roots are elsewhere. What is on one rank is moved there and not sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collops.graph.packing import Index

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Plan", "Segment", "Side", "plan_of"]


class Segment(NamedTuple):
    """The part of a buffer that one other rank gets or fills.

    Attributes
    ----------
    rank : int
    start, stop : int
        In points.
    """

    rank: int
    start: int
    stop: int


class Side(NamedTuple):
    """One of the two buffers of a rank.

    Attributes
    ----------
    points : Index
        Where the points of the buffer are in the array of roots or leaves.
    segments : tuple of Segment
        The other ranks, ascending, and their parts of the buffer.
    """

    points: Index
    segments: tuple[Segment, ...]

    def counts(self, ranks: int) -> list[int]:
        """Return the points of each of so many ranks."""
        counts = [0] * ranks
        for rank, start, stop in self.segments:
            counts[rank] = stop - start
        return counts


class Plan(NamedTuple):
    """All that the movers of a forest need to know, on one rank.

    Attributes
    ----------
    roots, leaves : Side
        Buffers on the root and the leaf side.
    local_roots, local_leaves : Index
        Pairs of roots and leaves that are both here.
    leaf_edges, local_edges : numpy.ndarray
        Numbers of the edges behind the leaf side's buffer, and of those that are local.
    most_points : int
        Length of the longest buffer of any rank; 0 where no rank sends anything.
    """

    roots: Side
    leaves: Side
    local_roots: Index
    local_leaves: Index
    leaf_edges: np.ndarray
    local_edges: np.ndarray
    most_points: int


def plan_of(comm: Communicator, leaves: np.ndarray, ranks: np.ndarray, indices: np.ndarray) -> Plan:
    """Work out what moves where. Collective: the indices of roots travel once.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    leaves, ranks, indices : numpy.ndarray
        Of the edges that end here, checked: the leaf, and the rank and the index of its root.
    """
    own = ranks == comm.rank
    local = np.flatnonzero(own)
    away = np.flatnonzero(~own)
    # Edges stay in their order within each rank, which makes that of all sums.
    edges = away[np.argsort(ranks[away], kind="stable")]
    wanted = np.bincount(ranks[edges], minlength=comm.size).astype(np.int64)
    given = comm.alltoall(wanted)
    roots = comm.alltoallv(indices[edges], wanted.tolist(), given.tolist())
    longest = comm.allreduce(np.array(max(len(edges), len(roots)), np.int64), "max")
    return Plan(
        Side(Index(roots), _segments(given)),
        Side(Index(leaves[edges]), _segments(wanted)),
        Index(indices[local]),
        Index(leaves[local]),
        edges,
        local,
        int(longest),
    )


def _segments(counts: np.ndarray) -> tuple[Segment, ...]:
    ends = np.cumsum(counts)
    return tuple(
        Segment(rank, int(end - count), int(end))
        for rank, (count, end) in enumerate(zip(counts, ends, strict=True))
        if count
    )
