"""Validate the counts and indices of users, convert them to 64 bits, and compute the edges of patterns and layouts."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from collops.comm.agreement import collective_errors
from collops.comm.call import check_rank
from collops.errors import InputError, LayoutError, UnsupportedTypeError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["as_count", "as_indices", "distinct", "owners", "sent_to"]

_LARGEST = 2**63 - 1


def as_count(value: SupportsIndex, what: str) -> int:
    """Return a count; raise :class:`LayoutError` unless it is an integer from 0 to ``2**63 - 1``."""
    try:
        count = operator.index(value)
    except TypeError:
        raise LayoutError(f"the number of {what} must be an integer, not {value!r}") from None
    if count < 0:
        raise LayoutError(f"the number of {what} must not be negative, but is {count}")
    if count > _LARGEST:
        raise LayoutError(f"64-bit indices cannot count {count} {what}")
    return count


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the different integers of an array, ascending.

    They are sorted, which counting them requires: without, NumPy 2.4.6 hashes, and took 20 times as long for a million
    different integers.
    """
    return np.unique(values, return_counts=True)[0]


def as_indices(values: object, name: str, what: str = "", count: int = 0) -> np.ndarray:
    """Return a list of integers as a new 64-bit array; with `what`, each must be the number of one of `count` items.

    Raises
    ------
    LayoutError
        If it is not a list, or an integer is out of range.
    UnsupportedTypeError
        If an element is not an integer.
    """
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        raise LayoutError(f"{name} must be a list of integers, not {values!r}") from None
    if array.ndim != 1:
        raise LayoutError(f"{name} must have one axis, not shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        # NumPy makes objects or floats of integers that have no common type.
        large = [value for value in np.asarray(values, object) if isinstance(value, int) and abs(value) > _LARGEST]
        if large:
            raise LayoutError(f"{name} has {large[0]}, which does not fit into a 64-bit index")
        raise UnsupportedTypeError(f"{name} must be integers, not {array.dtype}")
    if array.dtype.kind == "u" and array.size and array.max() > _LARGEST:
        raise LayoutError(f"{name} has {array.max()}, which does not fit into a 64-bit index")
    indices = array.astype(np.int64)
    wrong = indices[(indices < 0) | (indices >= count)] if what else indices[:0]
    if len(wrong):
        raise LayoutError(f"{what} {wrong[0]} is out of range (size {count})")
    return indices


def sent_to(comm: Communicator, ranks: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
    """Send row *i* of each array to ``ranks[i]``; return the rows that arrive, in the order of ranks. Collective."""
    order = np.argsort(ranks, kind="stable")
    send_counts = np.bincount(ranks, minlength=comm.size).astype(np.int64)
    counts = send_counts.tolist(), comm.alltoall(send_counts).tolist()
    return [comm.alltoallv(array[order], *counts) for array in arrays]


def edges_of(comm: Communicator, pattern: str, count: int, root: int) -> tuple[int, None, np.ndarray, np.ndarray]:
    """Return the number of roots and the edges of a pattern; see :meth:`StarForest.from_pattern`. Collective."""
    if pattern not in ("allgather", "gather", "alltoall"):
        raise InputError(f"unknown pattern {pattern!r}; choose allgather, gather or alltoall")
    check_rank(operator.index(root), comm.size, "root")
    with collective_errors(comm):
        count = as_count(count, "roots")
    counts = comm.allgather(np.array(count, np.int64))
    if pattern == "alltoall":
        if (counts != counts[0]).any():
            raise LayoutError(f"alltoall needs the same count on all ranks, not {counts.tolist()}")
        ranks = np.repeat(np.arange(comm.size), count)
        return comm.size * count, None, ranks, np.tile(comm.rank * count + np.arange(count), comm.size)
    if pattern == "gather" and comm.rank != root:
        counts = np.zeros_like(counts)
    ranks = np.repeat(np.arange(comm.size), counts)
    indices = np.concatenate([np.arange(n) for n in counts])
    return count, None, ranks, indices


def owners(layout: Any, rank: int, indices: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the rank that owns each element of a layout, and its index in the ravelled part of this rank.

    The indices are global, in C order. If an element has several replicas, the replica at the coordinates of `rank` is
    returned. Raises the errors of :func:`as_indices`.
    """
    indices = as_indices(indices, "global indices", "element", layout.size)
    grid = [np.full(len(indices), coordinate) for coordinate in layout.coordinates(rank)]
    local = np.zeros(len(indices), np.int64)
    for axis_indices, sizes, axis in zip(
        np.unravel_index(indices, layout.shape) if len(indices) else [indices] * layout.ndim,
        layout.sizes,
        layout.axes,
        strict=True,
    ):
        ends = np.cumsum(sizes)
        block = np.searchsorted(ends, axis_indices, side="right")
        if axis is not None:
            grid[axis] = block
        local = local * np.asarray(sizes)[block] + axis_indices - (ends - sizes)[block]
    ranks = np.ravel_multi_index(grid, layout.process_grid) if grid else np.zeros(len(indices), np.int64)
    return ranks.astype(np.int64), local
