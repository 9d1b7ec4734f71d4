"""Where the traces of a volume stand, how they are sampled, and which rows of it each rank has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from collops.apps.outputs import Field
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.array import Layout

__all__ = ["Axis", "Cube", "Reader", "Volume"]


class Axis(NamedTuple):
    """One lateral axis.

    Parameters
    ----------
    name : str
        Such as "inline".
    values : numpy.ndarray
        Its numbers, growing.
    """

    name: str
    values: np.ndarray


@dataclass(frozen=True)
class Cube:
    """A regular grid of traces: a volume with two lateral axes, or a section with one.

    Parameters
    ----------
    lateral : tuple of Axis
        One or two.
    samples : int
        Of every trace.
    interval : float
        Between them, in seconds.
    start : float
        Time of the first, in seconds.

    Raises
    ------
    InputError
        If there are no traces, too few samples, or no sample interval.
    """

    lateral: tuple[Axis, ...]
    samples: int
    interval: float
    start: float = 0.0

    def __post_init__(self) -> None:
        if not all(len(axis.values) for axis in self.lateral):
            raise InputError("the volume has no traces")
        if self.samples < 2:
            raise InputError(f"the volume needs at least 2 samples a trace, not {self.samples}")
        if not (np.isfinite(self.interval) and self.interval > 0):
            raise InputError(f"the sample interval must be positive, not {self.interval} s: give one with --interval")

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the lateral axes, and the samples."""
        return (*(len(axis.values) for axis in self.lateral), self.samples)

    @property
    def traces(self) -> int:
        """Number of grid points, whether there is a trace or not."""
        return int(np.prod(self.shape[:-1]))

    @property
    def times(self) -> np.ndarray:
        """Of all samples, in seconds."""
        return self.start + self.interval * np.arange(self.samples)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the axes."""
        return (*(axis.name for axis in self.lateral), "time")

    def layout(self, ranks: int) -> Layout:
        """Return how arrays on the grid are split over ranks: along the first lateral axis."""
        from collops.array import Layout

        return Layout.split(self.shape, ranks)

    def coordinates(self) -> dict[str, Field]:
        """Return the coordinates of the axes for a file."""
        lateral = {axis.name: Field(axis.values, (axis.name,), "1") for axis in self.lateral}
        return lateral | {"time": Field(self.times, ("time",), "s")}

    def describe(self) -> str:
        """Return the size in words."""
        extents = " x ".join(f"{len(axis.values)} {axis.name}s" for axis in self.lateral)
        return f"{extents}, {self.samples} samples of {1e3 * self.interval:g} ms"


class Reader(Protocol):
    """A file that holds a volume."""

    cube: Cube
    notes: list[str]

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return traces of some rows along the first axis, and which of them are there; missing ones are zero."""
        ...


@dataclass(frozen=True)
class Volume:
    """The data of a job, this rank's rows of them.

    Parameters
    ----------
    cube : Cube
        Of all ranks.
    traces : numpy.ndarray
        Shape of the own rows, with all samples; zero where there is no trace.
    live : numpy.ndarray
        bool, the lateral shape of the own rows: where there is a trace.
    wavelet : numpy.ndarray
        With its time zero at the middle sample, in units that make the convolution with reflection coefficients data.
    truth : numpy.ndarray or None
        What is to be found, of the shape of `traces`; None for recorded data.
    noise_norm : float or None
        Norm of the noise of all ranks, where it is known.
    notes : list of str
        What was decided, in sentences for the user.
    """

    cube: Cube
    traces: np.ndarray
    live: np.ndarray
    wavelet: np.ndarray
    truth: np.ndarray | None = None
    noise_norm: float | None = None
    notes: list[str] = field(default_factory=list)
