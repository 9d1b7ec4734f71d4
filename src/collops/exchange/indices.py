"""Checks of counts and indices that users give, converted to 64 bits, and the edges of patterns and layouts."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.comm.agreement import collective_errors
from collops.errors import InputError, LayoutError, UnsupportedTypeError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["as_count", "as_indices", "owners"]

_LARGEST = 2**63 - 1


def as_count(value: Any, what: str) -> int:
    """Return a count; raise :class:`LayoutError` if it is no integer from 0 to ``2**63 - 1``."""
    try:
        count = operator.index(value)
    except TypeError:
        raise LayoutError(f"the number of {what} must be an integer, not {value!r}") from None
    if count < 0:
        raise LayoutError(f"the number of {what} must not be negative, as {count} is")
    if count > _LARGEST:
        raise LayoutError(f"64-bit indices cannot count {count} {what}")
    return count


def as_indices(values: Any, name: str) -> np.ndarray:
    """Return a list of integers, which may be negative, as a new 64-bit array.

    Raises
    ------
    LayoutError
        If it is no list, or an integer does not fit.
    UnsupportedTypeError
        If its elements are no integers.
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
            raise LayoutError(f"{name} has {large[0]}, which is no 64-bit index")
        raise UnsupportedTypeError(f"{name} must be integers, not {array.dtype}")
    if array.dtype.kind == "u" and array.size and array.max() > _LARGEST:
        raise LayoutError(f"{name} has {array.max()}, which is no 64-bit index")
    return array.astype(np.int64)


def edges_of(comm: Communicator, pattern: str, count: int, root: int) -> tuple[int, None, np.ndarray, np.ndarray]:
    """Return the number of roots and the edges of a pattern; see :meth:`StarForest.from_pattern`. Collective."""
    if pattern not in ("allgather", "gather", "alltoall"):
        raise InputError(f"there is no pattern {pattern!r}; choose allgather, gather or alltoall")
    if not 0 <= operator.index(root) < comm.size:
        raise InputError(f"root={root} is no rank of a communicator of {comm.size}")
    with collective_errors(comm):
        count = as_count(count, "roots")
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


def owners(layout: Any, rank: int, indices: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return which rank holds each element of a layout, and its place in that rank's ravelled part.

    The indices are global, in C order. Of several copies of an element, the one on the coordinates of `rank` is
    returned. The errors are those of :func:`as_indices`, and :class:`LayoutError` if there is no such element.
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
