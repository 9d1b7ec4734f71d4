"""Numbers and lists of points as users give them: brought to 64-bit integers, or refused."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from collops.errors import LayoutError, UnsupportedTypeError

__all__ = ["as_count", "as_indices"]

_LARGEST = 2**63 - 1


def as_count(value: Any, what: str) -> int:
    """Return how many of something there are.

    Raises
    ------
    LayoutError
        If it is no integer from 0 to ``2**63 - 1``.
    """
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
    """Return a list of integers as a 64-bit array, which may be negative.

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
