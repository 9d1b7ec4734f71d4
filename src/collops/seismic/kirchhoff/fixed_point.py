"""Fixed-point travel times, which the kernels add, shift and mask instead of floating-point seconds.

A time is stored in units of the sampling interval, with as many fractional bits as the trace length leaves. The
sum of a source and a receiver time is then exact; in float32 the fraction that weights the interpolation would
keep only about four digits at the end of a thousand samples. A time takes 8 bytes for float64 operators. For float32
operators it takes 4 bytes if those keep the error below 1e-5, up to 8,191 samples, and 8 bytes on longer traces.

Tables on coarser nodes hold floating-point remainders: the time minus the time along the straight ray, which the
kernels compute. Unlike the time itself, the remainder is smooth also around the station; it is zero in a constant
velocity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from collops.errors import InputError, UnsupportedTypeError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine
from collops.seismic.kirchhoff.nodes import Nodes

_MANTISSA_BITS = {np.dtype(np.float32): 23, np.dtype(np.float64): 52}
# Times rounded to b fractional bits change unfiltered traces by 0.7 * 2**-b of their norm: 5e-6 for 17 bits.
_SUFFICIENT_BITS = 17
_LONGEST = 1 << 30  # samples; the kernels' sample numbers, of two times, are 32-bit integers


@dataclass(frozen=True)
class Scale:
    """The conversion of seconds to fixed-point numbers, for an operator in float32 or float64."""

    interval: float  # of the samples of a trace, in seconds
    samples: int
    early: int  # maximum number of samples by which times precede the first sample
    dtype: np.dtype

    def __post_init__(self) -> None:
        if self.dtype not in _MANTISSA_BITS:
            raise UnsupportedTypeError(f"Kirchhoff operators are float32 or float64, not {self.dtype}")
        if self.latest >= _LONGEST:
            raise InputError(
                f"traces of {self.samples} samples with times up to {self.early} samples before the first are too "
                f"long; the sum of both must be less than {_LONGEST}"
            )

    @property
    def fixed_type(self) -> np.dtype:
        """Integer type of the numbers."""
        fits_int32 = self.dtype.itemsize == 4 and self._free_bits(32) >= _SUFFICIENT_BITS
        return np.dtype(np.int32 if fits_int32 else np.int64)

    @property
    def real_type(self) -> np.dtype:
        """Type of the remainders on coarser nodes, of the same size."""
        return np.dtype(f"f{self.fixed_type.itemsize}")

    @property
    def latest(self) -> int:
        """Upper limit of a time, in samples; added to any other time it lies after the last sample."""
        return self.samples + self.early

    @property
    def fraction_bits(self) -> int:
        """Number of fractional bits; the sum of two times within the limit does not overflow."""
        return min(self._free_bits(8 * self.fixed_type.itemsize), _MANTISSA_BITS[self.dtype])

    def _free_bits(self, width: int) -> int:
        """Bits of an integer that the sign and the largest sum of two times leave free."""
        return width - 1 - int(2 * self.latest).bit_length()

    def fixed(self, samples: np.ndarray) -> np.ndarray:
        """Return times in samples as fixed-point numbers, of the same shape."""
        bounded = np.ldexp(np.minimum(samples, self.latest), self.fraction_bits)
        return np.rint(bounded, out=bounded).astype(self.fixed_type)


@dataclass(frozen=True)
class FixedTables:
    """Travel times of stations, one row each, and the row numbers of the sources and the receivers.

    Operators of different shots share the table and differ in their row numbers (`select`).

    Examples
    --------
    >>> import numpy as np
    >>> from collops.seismic.kirchhoff import FixedTables
    >>> tables = FixedTables.from_seconds(np.array([[0.1, 0.2]]), np.array([[0.3, np.inf]]), 0.004, 100, "float32")
    >>> tables.times / 2.0**tables.scale.fraction_bits  # in samples; times after the record are cut off
    array([[ 25.,  50.],
           [ 75., 100.]])
    """

    times: LocalArray  # (stations, nodes): integers; on coarser nodes the remainders in samples, of Scale.real_type
    scale: Scale  # how seconds became these numbers
    nodes: Nodes
    sources: np.ndarray  # numbers of the rows
    receivers: np.ndarray
    # On coarser nodes, (stations, 4): samples per metre; y (0 in 2-D), x and z in metres from the first image point
    straight: LocalArray | None = None
    spacing: tuple[float, ...] = ()  # of the image points, in metres
    # Root mean square error of interpolated times, in samples, at the station with the largest error.
    error: float = 0.0

    @classmethod
    def from_seconds(
        cls, source_times: ArrayLike, receiver_times: ArrayLike, interval: float, samples: int, dtype: DTypeLike
    ) -> FixedTables:
        """Convert tables of seconds, of shapes (sources, …) and (receivers, …) with the same image axes.

        Infinity marks points without an arrival. Times may be negative if recording began late; arrivals before the
        first sample are omitted. Traces have at least two `samples`, at an `interval` in seconds; the operator has the
        `dtype` float32 or float64. Raises InputError if shapes differ, or a time is NaN or minus infinity.
        """
        source_times, receiver_times = np.asarray(source_times), np.asarray(receiver_times)
        if source_times.ndim < 2 or source_times.shape[1:] != receiver_times.shape[1:]:
            raise InputError(
                f"travel times of shapes {source_times.shape} and {receiver_times.shape} have different image axes; "
                "pass (sources, *image) and (receivers, *image)"
            )
        early = early_samples(source_times, receiver_times, interval)
        scale, nodes = Scale(float(interval), int(samples), early, np.dtype(dtype)), Nodes(source_times.shape[1:])
        sources, receivers = len(source_times), len(receiver_times)
        times = np.empty((sources + receivers, nodes.points), scale.fixed_type)
        for row, seconds in zip(times, (*source_times, *receiver_times), strict=True):
            row[:] = scale.fixed(seconds.reshape(-1) / interval)
        return cls(times, scale, nodes, np.arange(sources), np.arange(sources, sources + receivers))

    def select(self, sources: np.ndarray, receivers: np.ndarray) -> FixedTables:
        """Return the same tables with other rows as sources and receivers."""
        return replace(self, sources=np.asarray(sources), receivers=np.asarray(receivers))

    def compact(self) -> tuple[FixedTables, np.ndarray]:
        """Return tables that hold only the rows in use, copied into memory, and the numbers of these rows."""
        used, rows = np.unique(np.concatenate([self.sources, self.receivers]), return_inverse=True)
        straight = None if self.straight is None else self.straight[used]
        fewer = replace(self, times=np.array(self.times[used]), straight=straight)
        return fewer.select(rows[: len(self.sources)], rows[len(self.sources) :]), used

    def to_engine(self, engine: Engine) -> FixedTables:
        """Return the same tables in the memory of an engine."""
        straight = None if self.straight is None else engine.from_host(self.straight)
        return replace(self, times=engine.from_host(self.times), straight=straight)

    def station_times(self, row: int) -> np.ndarray:
        """Return the fixed-point times of a station at all image points, flat."""
        if self.straight is None:
            return self.times[row]
        slowness, *position = self.straight[row].astype(float)
        straight = slowness * distance(self.nodes.shape, self.spacing, position[-len(self.nodes.shape) :])
        return self.scale.fixed(self.nodes.refine(self.times[row]) + straight.ravel())


def distance(shape: tuple[int, ...], spacing: tuple[float, ...], position: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the distances of the image points from a position, which is relative to the first point, in metres."""
    offsets = [step * np.arange(n) - coordinate for n, step, coordinate in zip(shape, spacing, position, strict=True)]
    return np.sqrt(sum(part**2 for part in np.ix_(*offsets)))


def early_samples(source_times: np.ndarray, receiver_times: np.ndarray, interval: float) -> int:
    """Return the number of samples from the earliest time to zero; raise InputError for NaN and minus infinity."""
    return max(
        int(np.ceil(max(0.0, -_earliest(times, what)) / interval))
        for times, what in ((source_times, "source"), (receiver_times, "receiver"))
    )


def _earliest(times: np.ndarray, what: str) -> float:
    """Return the smallest time; raise InputError for NaN and minus infinity."""
    if times.size == 0:
        return 0.0
    smallest = float(times.min())  # NaN if any is
    if not np.isfinite(smallest) and not smallest > 0:
        raise InputError(
            f"the {what} travel times contain NaN or minus infinity; pass seconds, or infinity where no wave arrives"
        )
    return 0.0 if np.isinf(smallest) else smallest
