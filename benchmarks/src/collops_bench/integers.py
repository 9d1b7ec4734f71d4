"""Vectors of small integers, filled and checked piece by piece: sums and copies of them have one right answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["fill", "largest_error"]

_PIECE = 1 << 24  # elements


def fill(xp: Any, vector: Any, values: Callable[[Any], Any], first: int = 0) -> None:
    """Set a vector, whose first element has the index `first`, to what `values` says of the indices."""
    for piece, index in _pieces(xp, vector.size, first):
        vector[piece] = values(index)
    return vector


def largest_error(xp: Any, vector: Any, values: Callable[[Any], Any], first: int = 0) -> float:
    """Return the largest distance of an element from what `values` says of its index: NaN where one is NaN."""
    worst = 0.0
    for piece, index in _pieces(xp, vector.size, first):
        error = float(abs(vector[piece] - values(index)).max())
        if math.isnan(error):  # which no comparison would keep
            return error
        worst = max(worst, error)
    return worst


def _pieces(xp: Any, size: int, first: int) -> Iterator[tuple[slice, Any]]:
    for start in range(0, size, _PIECE):
        stop = min(start + _PIECE, size)
        yield slice(start, stop), xp.arange(first + start, first + stop)
