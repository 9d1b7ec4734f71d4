"""Sizes and samplings of wavefields on a line of receivers, and what holds a downgoing one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from collops.apps.memory import check_memory

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Acquisition", "Downgoing", "frequencies_within"]

# Of the strongest amplitude of the downgoing field: where there is less, a deconvolution finds noise only.
_LEAST_AMPLITUDE = 0.01
# Arrays of the size of model and data that a solver and its results need at once.
_ARRAYS = 10


@dataclass(frozen=True)
class Acquisition:
    """Sizes and samplings.

    Parameters
    ----------
    sources, receivers, virtual : int
        Sources, receivers of the downgoing field, and those of the upgoing one, which become virtual sources.
    samples : int
        Of every record.
    interval : float
        Between them, in seconds.
    spacing : float
        Between receivers, in metres.
    """

    sources: int
    receivers: int
    virtual: int
    samples: int
    interval: float
    spacing: float

    @property
    def total(self) -> int:
        """Samples of model and data: as many negative times of the model as there are positive ones."""
        return 2 * self.samples - 1

    @property
    def times(self) -> np.ndarray:
        """Of the model, in seconds."""
        return self.interval * np.arange(1 - self.samples, self.samples)

    @property
    def positions(self) -> np.ndarray:
        """Of the receivers along the line, in metres."""
        return self.spacing * np.arange(self.receivers)

    @property
    def frequencies(self) -> np.ndarray:
        """All that the samples have, in hertz."""
        return np.fft.rfftfreq(self.total, self.interval)

    def describe(self) -> str:
        """Return the sizes in words."""
        return (
            f"{self.sources} sources, {self.receivers} receivers {self.spacing:g} m apart, "
            f"{self.samples} samples of {1e3 * self.interval:g} ms"
        )

    def check_memory(self, comm: Communicator, dtype: str) -> None:
        """Raise if the arrays exceed the memory.

        Raises
        ------
        InputError
            Naming the sizes.
        """
        wavefields = _ARRAYS * self.total * self.virtual * (self.receivers + self.sources)
        kernel = 2 * len(self.frequencies) * self.sources * self.receivers
        check_memory(
            (wavefields + kernel) // comm.size * np.dtype(dtype).itemsize,
            f"the fields of {self.describe()} on {comm.size} ranks",
            "choose fewer sources, receivers or samples, or more nodes",
        )


class Downgoing(Protocol):
    """A downgoing field, made or recorded."""

    acquisition: Acquisition

    def power(self, sources: slice) -> np.ndarray:
        """Return the squared amplitude at each frequency, summed over some of the sources and all receivers."""
        ...

    def spectra(self, share: slice) -> np.ndarray:
        """Return the orthonormal spectra at some of the frequencies, of shape ``(frequencies, sources, receivers)``."""
        ...


def frequencies_within(power: np.ndarray) -> int:
    """Return how many frequencies, from 0 on, a downgoing field has enough of.

    Parameters
    ----------
    power : numpy.ndarray
        Its squared amplitude at each frequency.
    """
    return int(np.flatnonzero(power >= _LEAST_AMPLITUDE**2 * power.max())[-1]) + 1
