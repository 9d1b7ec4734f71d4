"""Fixed-point travel times, which the kernels add, shift and mask instead of floating-point seconds.

A time is stored in units of the sampling interval, with as many fractional bits as the trace length leaves. The
sum of a source and a receiver time is then exact; in float32 the fraction that weights the interpolation would
keep only about four digits at the end of a thousand samples. A time takes 8 bytes for float64 operators. For float32
operators it takes 4 bytes if those keep the error below 1e-5, up to 8,191 samples, and 8 bytes on longer traces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.errors import InputError, UnsupportedTypeError

_MANTISSA_BITS = {np.dtype(np.float32): 23, np.dtype(np.float64): 52}
# Times rounded to b fractional bits change unfiltered traces by 0.7 * 2**-b of their norm: 5e-6 for 17 bits.
_ENOUGH_BITS = 17
_LONGEST = 1 << 30  # samples; the kernels' sample numbers, of two times, are 32-bit integers


@dataclass(frozen=True)
class Scale:
    """How seconds become fixed-point numbers, for an operator in float32 or float64."""

    interval: float  # of the samples of a trace, in seconds
    samples: int
    early: int  # samples by which source times may lie before the first sample
    dtype: np.dtype

    def __post_init__(self) -> None:
        if self.dtype not in _MANTISSA_BITS:
            raise UnsupportedTypeError(f"Kirchhoff operators are float32 or float64, not {self.dtype}")
        if self.latest >= _LONGEST:
            raise InputError(
                f"traces of {self.samples} samples with times up to {self.early} samples early are too long; the "
                f"two together must be less than {_LONGEST}"
            )

    @property
    def fixed_type(self) -> np.dtype:
        """Integer type of the numbers."""
        narrow = self.dtype.itemsize == 4 and self._free_bits(32) >= _ENOUGH_BITS
        return np.dtype(np.int32 if narrow else np.int64)

    @property
    def latest(self) -> int:
        """Where times are cut off, in samples; added to any other time it is after the last sample."""
        return self.samples + self.early

    @property
    def fraction_bits(self) -> int:
        """Fractional bits, such that the sum of two times that were cut off fits."""
        return min(self._free_bits(8 * self.fixed_type.itemsize), _MANTISSA_BITS[self.dtype])

    def _free_bits(self, width: int) -> int:
        """Bits of an integer besides the sign and the largest sum of two times."""
        return width - 1 - int(2 * self.latest).bit_length()

    def table(self, rows: Iterable[np.ndarray], count: int, points: int) -> np.ndarray:
        """Return travel times in seconds, one array of `points` at a time, as a table (count, points)."""
        fixed = np.empty((count, points), dtype=self.fixed_type)
        for target, times in zip(fixed, rows, strict=True):
            samples = np.minimum(np.asarray(times, dtype=np.float64).reshape(-1) / self.interval, self.latest)
            np.copyto(target, np.rint(np.ldexp(samples, self.fraction_bits)), casting="unsafe")
        return fixed


@dataclass(frozen=True)
class FixedTables:
    """The travel times of one rank's shots, as the kernels read them: tables of int32 or int64."""

    sources: np.ndarray  # (sources, points)
    receivers: np.ndarray  # (receivers, points); never negative
    scale: Scale  # how seconds became these numbers

    @classmethod
    def from_seconds(
        cls, source_times: Any, receiver_times: Any, interval: float, samples: int, dtype: Any
    ) -> FixedTables:
        """Convert tables of seconds, of shapes (sources, …) and (receivers, …) with the same image axes.

        Infinity means that nothing arrives. Times may be negative if recording began late; arrivals before the first
        sample are omitted. Traces have at least two `samples`, at an `interval` in seconds, and the operator `dtype`
        float32 or float64. Raises InputError if shapes differ, or a time is NaN or minus infinity.
        """
        source_times, receiver_times = np.asarray(source_times), np.asarray(receiver_times)
        if source_times.ndim < 2 or source_times.shape[1:] != receiver_times.shape[1:]:
            raise InputError(
                f"travel times of shapes {source_times.shape} and {receiver_times.shape} have no image axes in common; "
                "give (sources, *image) and (receivers, *image)"
            )
        earliest = [_earliest(times, what) for times, what in ((source_times, "source"), (receiver_times, "receiver"))]
        # Only the sum counts: the negative part of receiver times is moved to the source times.
        shift = min(earliest[1], 0.0)
        early = int(np.ceil(max(0.0, -(earliest[0] + shift)) / interval))
        scale = Scale(float(interval), int(samples), early, np.dtype(dtype))
        points = int(np.prod(source_times.shape[1:]))
        return cls(
            scale.table((times + shift for times in source_times), len(source_times), points),
            scale.table((times - shift for times in receiver_times), len(receiver_times), points),
            scale,
        )


def _earliest(times: np.ndarray, what: str) -> float:
    """Return the smallest time; raise InputError for NaN and minus infinity."""
    if times.size == 0:
        return 0.0
    smallest = float(times.min())  # NaN if any is
    if not np.isfinite(smallest) and not smallest > 0:
        raise InputError(
            f"the {what} travel times contain NaN or minus infinity; give seconds, or infinity where nothing arrives"
        )
    return 0.0 if np.isinf(smallest) else smallest
