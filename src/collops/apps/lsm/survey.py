"""What a seismic survey is: where shots and receivers stand, how they are sampled, and this rank's traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collops.apps.lsm.line import Line
from collops.errors import InputError

__all__ = ["Geometry", "Survey", "shots_of"]


def shots_of(rank: int, shots: int, ranks: int) -> range:
    """Return the shots that `rank` owns: blocks in order, the first ``shots % ranks`` one shot longer."""
    size, longer = divmod(shots, ranks)
    first = rank * size + min(rank, longer)
    return range(first, first + size + (rank < longer))


@dataclass(frozen=True)
class Geometry:
    """Positions and sampling of a 2-D survey, the same on every rank.

    Every shot has receivers of its own, as a towed streamer has; a fixed spread is the case where they
    coincide.

    Parameters
    ----------
    sources : numpy.ndarray
        Shape ``(2, shots)``, float64: distance along the line and depth, in metres.
    receivers : sequence of numpy.ndarray
        One array per shot, shape ``(2, receivers of that shot)``, in metres.
    samples : int
        Number of samples of every trace.
    interval : float
        Time between samples in seconds.
    start : float
        Time of the first sample after the shot, in seconds.

    Raises
    ------
    InputError
        If a size is not positive, a shot has no receivers, or a number is not finite.
    """

    sources: np.ndarray
    receivers: Sequence[np.ndarray]
    samples: int
    interval: float
    start: float = 0.0

    def __post_init__(self) -> None:
        if self.shots < 1 or self.sources.shape != (2, self.shots):
            raise InputError("a survey needs at least one shot with a position along the line and a depth")
        if len(self.receivers) != self.shots or any(r.ndim != 2 or r.shape[0] != 2 for r in self.receivers):
            raise InputError("a survey needs one array of receiver positions for each of its shots")
        if any(receivers.shape[1] < 1 for receivers in self.receivers):
            raise InputError("a survey needs at least one receiver for each shot")
        # A trace of one sample cannot be interpolated in time, which is how the operator reads it.
        if self.samples < 2:
            raise InputError(f"a survey needs at least 2 samples a trace, not {self.samples}")
        if not (np.isfinite(self.interval) and self.interval > 0):
            raise InputError(f"the sample interval must be positive and finite, not {self.interval} s")
        if not np.isfinite(self.start):
            raise InputError(f"the time of the first sample must be finite, not {self.start} s")
        if not all(np.isfinite(positions).all() for positions in (self.sources, *self.receivers)):
            raise InputError("the positions of sources and receivers must be finite numbers")

    @property
    def shots(self) -> int:
        """Number of shots."""
        return self.sources.shape[-1]

    @property
    def traces(self) -> int:
        """Number of traces of all shots together."""
        return sum(receivers.shape[1] for receivers in self.receivers)

    @property
    def times(self) -> np.ndarray:
        """Time of every sample after the shot, in seconds."""
        return self.start + self.interval * np.arange(self.samples)

    @property
    def fixed_spread(self) -> bool:
        """Whether all shots were recorded by the same receivers."""
        first = self.receivers[0]
        return all(r is first or np.array_equal(r, first) for r in self.receivers)

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Smallest and largest position along the line, and depth, of all sources and receivers."""
        positions = np.concatenate([self.sources, *self.distinct_receivers()], axis=1)
        low, high = positions.min(axis=1), positions.max(axis=1)
        return float(low[0]), float(high[0]), float(low[1]), float(high[1])

    def distinct_receivers(self) -> list[np.ndarray]:
        """Return the receiver arrays without those that are the very same object as one before."""
        return list({id(receivers): receivers for receivers in self.receivers}.values())


@dataclass(frozen=True)
class Survey:
    """A geometry, and the traces of those shots that this rank owns.

    Parameters
    ----------
    geometry : Geometry
        Of all shots.
    local_shots : range
        The shots whose traces are here; empty on a rank that idles.
    traces : list of numpy.ndarray
        One array per local shot, shape ``(receivers of that shot, samples)``.
    line : Line
        Where the line lies on the map.
    notes : list of str
        What the reader had to decide, in sentences for the user.
    defaults : dict
        Options that the file itself names (a survey written by this package describes its grid and velocity).

    Raises
    ------
    InputError
        If the shapes disagree, or a sample is not finite.
    """

    geometry: Geometry
    local_shots: range
    traces: list[np.ndarray]
    line: Line = field(default_factory=Line)
    notes: list[str] = field(default_factory=list)
    defaults: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.traces) != len(self.local_shots):
            raise InputError(f"{len(self.local_shots)} shots need as many arrays of traces, not {len(self.traces)}")
        for shot, traces in zip(self.local_shots, self.traces, strict=True):
            expected = (self.geometry.receivers[shot].shape[1], self.geometry.samples)
            if traces.shape != expected:
                raise InputError(f"the traces of shot {shot + 1} have shape {traces.shape}, not {expected}")
            finite = np.isfinite(traces)
            if not finite.all():
                trace, sample = np.argwhere(~finite)[0]
                raise InputError(
                    f"shot {shot + 1}, trace {trace + 1}, sample {sample + 1} is {traces[trace, sample]}: "
                    "repair or remove samples that are not finite numbers"
                )
