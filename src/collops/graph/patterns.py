"""Edges of star forests that follow from a collective operation, or from a layout and global indices."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError, LayoutError
from collops.graph.indices import as_count, as_indices

if TYPE_CHECKING:
    from collops.array import Layout
    from collops.comm import Communicator

__all__ = ["edges_of", "owners"]


def edges_of(comm: Communicator, pattern: str, count: int, root: int) -> tuple[int, None, np.ndarray, np.ndarray]:
    """Return the number of roots and the edges of a pattern; see :meth:`StarForest.from_pattern`. Collective."""
    if pattern not in ("allgather", "gather", "alltoall"):
        raise InputError(f"there is no pattern {pattern!r}; choose allgather, gather or alltoall")
    if not 0 <= operator.index(root) < comm.size:
        raise InputError(f"root={root} is no rank of a communicator of {comm.size}")
    error = None
    try:
        count = as_count(count, "roots")
    except LayoutError as problem:
        error = problem
    comm.check(error)
    counts = comm.allgather(np.array(count, np.int64))
    if pattern == "alltoall":
        if (counts != counts[0]).any():
            raise LayoutError(f"alltoall needs one count on all ranks, not {counts.tolist()}")
        ranks = np.repeat(np.arange(comm.size), count)
        return comm.size * count, None, ranks, np.tile(comm.rank * count + np.arange(count), comm.size)
    if pattern == "gather" and comm.rank != root:
        counts = np.zeros_like(counts)
    ranks = np.repeat(np.arange(comm.size), counts)
    indices = np.concatenate([np.arange(n) for n in counts])
    return count, None, ranks, indices


def owners(layout: Layout, rank: int, indices: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return which rank holds each element of a layout, and its place in that rank's ravelled part.

    Parameters
    ----------
    layout : Layout
        Any.
    rank : int
        Who asks: of several copies it gets the one on its own coordinates.
    indices : sequence of int
        Global, in C order.

    Raises
    ------
    LayoutError
        If there is no such element, or the indices are no list.
    UnsupportedTypeError
        If they are no integers.
    """
    indices = as_indices(indices, "global indices")
    wrong = indices[(indices < 0) | (indices >= layout.size)]
    if len(wrong):
        raise LayoutError(f"there is no element {wrong[0]} in a layout of {layout.size}")
    grid = [np.full(len(indices), place) for place in layout.coordinates(rank)]
    local = np.zeros(len(indices), np.int64)
    for along, sizes, axis in zip(
        np.unravel_index(indices, layout.shape) if len(indices) else [indices] * layout.ndim,
        layout.sizes,
        layout.axes,
        strict=True,
    ):
        ends = np.cumsum(sizes)
        block = np.searchsorted(ends, along, side="right")
        if axis is not None:
            grid[axis] = block
        local = local * np.asarray(sizes)[block] + along - (ends - sizes)[block]
    ranks = np.ravel_multi_index(grid, layout.process_grid) if grid else np.zeros(len(indices), np.int64)
    return ranks.astype(np.int64), local
