"""A bank of filters along an axis, and the filter of every sample by interpolation between them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from collops.array.dtypes import real_of
from collops.backend import engine_of
from collops.errors import InputError, UnsupportedTypeError

__all__ = ["FilterBank"]


class FilterBank:
    """Filters at regularly spaced samples; linear interpolation between them, and the nearest one beyond them.

    Parameters
    ----------
    hs : array, 2-D
        The filters, of shape (filters, taps), centred in the middle of an odd number of taps.
    ih : sequence of int
        The samples where they are.
    extent : int
        Number of samples of the axis.
    dtype : dtype
        Of the filters that are kept.

    Attributes
    ----------
    taps : numpy.ndarray
        The filters, of shape (filters, taps).
    origin, step : int
        Sample of the first filter, and samples from each to the next.
    half : int
        Taps before the one in the middle.

    Raises
    ------
    InputError
        If the number of taps is even, filters and samples are not equally many, or the samples are not regularly
        spaced or not inside the axis.
    UnsupportedTypeError
        If the filters are complex and `dtype` is not.
    """

    def __init__(self, hs: Any, ih: Sequence[int] | np.ndarray, extent: int, dtype: Any) -> None:
        hs = np.asarray(hs) if isinstance(hs, list | tuple) else engine_of(hs).to_host(hs)
        samples = np.asarray(ih)
        if hs.ndim != 2 or hs.shape[0] == 0 or hs.shape[1] % 2 == 0:
            raise InputError(f"hs must be filters with an odd number of taps, of shape (filters, taps), not {hs.shape}")
        if samples.shape != hs.shape[:1] or samples.dtype.kind not in "iu":
            raise InputError(f"ih must be one integer for each of {len(hs)} filters")
        steps = np.unique(np.diff(samples))
        if len(steps) > 1 or (len(steps) == 1 and steps[0] <= 0):
            raise InputError(f"ih must be regularly spaced and increasing; its steps are {steps.tolist()}")
        if samples[0] < 0 or samples[-1] >= extent:
            raise InputError(f"ih goes from {samples[0]} to {samples[-1]}; the axis has {extent} samples")
        if hs.dtype.kind == "c" and np.dtype(dtype).kind != "c":
            raise UnsupportedTypeError(f"filters of dtype {hs.dtype} do not fit into {np.dtype(dtype)}")
        self.taps: np.ndarray = np.ascontiguousarray(hs, dtype)
        self.origin = int(samples[0])
        self.step = int(steps[0]) if len(steps) else 1
        self.half = hs.shape[1] // 2

    def converted(self, dtype: Any) -> FilterBank:
        """Return the same filters in another dtype."""
        if self.taps.dtype == dtype:
            return self
        other = copy(self)
        other.taps = self.taps.astype(dtype)
        return other

    def at(self, begin: int, end: int) -> np.ndarray:
        """Return the filters of the samples from `begin` to `end`, which may lie beyond the axis."""
        last = len(self.taps) - 1
        distance = np.clip(np.arange(begin, end) - self.origin, 0, last * self.step)
        number, rest = np.divmod(distance, self.step)
        weight = (rest / self.step).astype(real_of(self.taps.dtype))[:, None]
        near = self.taps[number]
        return near + weight * (self.taps[np.minimum(number + 1, last)] - near)
