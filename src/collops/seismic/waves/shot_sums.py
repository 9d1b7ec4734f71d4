"""Sums of images over all shots in one order, which depends neither on the ranks nor on how they share the shots.

Shots are the leaves of a binary tree: node (level, k) is the sum of the 2^level shots from k 2^level on,
and adds its two halves. A rank adds the nodes of its own shots, and all ranks add the others in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator

from collops import Communicator
from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of


class ShotSum:
    """The sum of images of the shots of one rank, and then of all ranks.

    Parameters
    ----------
    shots : range
        The shots of this rank.
    """

    def __init__(self, shots: range) -> None:
        self._next = shots.start
        self._nodes: list[tuple[int, int, LocalArray]] = []  # level, number, sum

    def add(self, image: LocalArray) -> None:
        """Add the image of the next shot. The sum takes its memory."""
        level, number = 0, self._next
        self._next += 1
        while number % 2 and self._nodes and self._nodes[-1][:2] == (level, number - 1):
            left = self._nodes.pop()[2]
            left += image
            image, level, number = left, level + 1, number // 2
        self._nodes.append((level, number, image))

    def total(self, shares: list[range], out: LocalArray, comm: Communicator) -> LocalArray:
        """Return the sum over the shots of all ranks, in the flat array `out`. `shares` are the shots of each rank.

        Collective: one all-to-all, by which each rank receives its part of all nodes, and one allgather of the sums.
        """
        nodes = [list(nodes_of(shots)) for shots in shares]
        width = -(-out.size // comm.size)
        xp = engine_of(out).xp
        own = xp.zeros((max(map(len, nodes)), width * comm.size), out.dtype)
        for row, (_, _, image) in zip(own, self._nodes, strict=False):
            row[: out.size] = image.reshape(-1)
        parts = xp.ascontiguousarray(own.reshape(len(own), comm.size, width).swapaxes(0, 1))
        parts = comm.alltoall(parts) if comm.size > 1 else parts
        rows = [row for rank, part in zip(nodes, parts, strict=True) for row in part[: len(rank)]]
        total = _root(dict(zip((node for rank in nodes for node in rank), rows, strict=True)), shares[-1].stop)
        out[...] = (comm.allgather(total) if comm.size > 1 else total).reshape(-1)[: out.size]
        return out


def nodes_of(shots: range) -> Iterator[tuple[int, int]]:
    """Yield level and number of the fewest nodes that contain these shots only, in their order."""
    first = shots.start
    while first < shots.stop:
        level = 0
        while first % (2 << level) == 0 and first + (2 << level) <= shots.stop:
            level += 1
        yield level, first >> level
        first += 1 << level


def _root(tree: dict[tuple[int, int], LocalArray], shots: int) -> LocalArray:
    """Return the sum of all shots from the nodes of the ranks."""

    def node(level: int, number: int) -> LocalArray | None:
        if (level, number) in tree:
            return tree[level, number]
        if level == 0 or number << level >= shots:
            return None
        left, right = node(level - 1, 2 * number), node(level - 1, 2 * number + 1)
        return left if right is None or left is None else left + right

    root = node(max(shots - 1, 0).bit_length(), 0)
    assert root is not None
    return root
