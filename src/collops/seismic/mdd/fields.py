"""Wavefields on a line of receivers, recorded or synthetic, and their sizes and sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import InputError
from collops.extend.applications import Url, check_memory, decoded, located, not_finite, open_array
from collops.seismic.signals import ricker, ricker_shape

if TYPE_CHECKING:
    from collops import Communicator

DOWN_NAMES, UP_NAMES = ("down", "downgoing"), ("up", "upgoing")
"""Names of the fields in a Zarr group."""

_BLOCK_BYTES = 64 << 20
# Frequencies below this fraction of the largest amplitude of the downgoing field are taken as noise.
_MIN_AMPLITUDE = 0.01
_ARRAYS = 10  # number of arrays of the size of model and data that exist at once
_INTERVAL, _SPACING = 0.004, 15.0
_SOURCES, _RECEIVERS, _SAMPLES = 61, 41, 300
_WAVELET_HZ, _RESPONSE_HZ = 25.0, 15.0
# The sea: depth, speed, reflection coefficients of surface and bed, and the number of reverberations.
_DEPTH, _SPEED, _SURFACE, _BED, _REVERBERATIONS = 150.0, 1500.0, -0.95, 0.5, 3
# Reflectors: depth below the bed, mean speed above them, and strength.
_REFLECTORS = ((120.0, 1800.0, 0.35), (230.0, 2000.0, -0.25), (380.0, 2300.0, 0.3))


@dataclass(frozen=True)
class Acquisition:
    """Sizes and sampling."""

    sources: int
    receivers: int  # of the downgoing field
    virtual: int  # virtual sources: the receivers of the upgoing field
    samples: int  # of every record
    interval: float  # between samples, in seconds
    spacing: float  # between receivers, in metres

    @property
    def total(self) -> int:
        """Number of times of model and data; the model has equally many negative and positive times."""
        return 2 * self.samples - 1

    @property
    def times(self) -> np.ndarray:
        """Times of the model, in seconds."""
        return self.interval * np.arange(1 - self.samples, self.samples)

    @property
    def positions(self) -> np.ndarray:
        """Positions of the receivers along the line, in metres."""
        return self.spacing * np.arange(self.receivers)

    @property
    def frequencies(self) -> np.ndarray:
        """Frequencies of the samples, in hertz."""
        return np.fft.rfftfreq(self.total, self.interval)

    def describe(self) -> str:
        """Return the sizes in words."""
        return (
            f"{self.sources} sources, {self.receivers} receivers {self.spacing:g} m apart, "
            f"{self.samples} samples of {1e3 * self.interval:g} ms"
        )

    def check_memory(self, comm: Communicator, dtype: str) -> None:
        """Raise if the arrays exceed the memory."""
        wavefields = _ARRAYS * self.total * self.virtual * (self.receivers + self.sources)
        kernel = 2 * len(self.frequencies) * self.sources * self.receivers
        check_memory(
            (wavefields + kernel) // comm.size * np.dtype(dtype).itemsize,
            f"the fields of {self.describe()} on {comm.size} ranks",
            "choose fewer sources, receivers or samples, or more nodes",
            processes=comm.local_size,
        )


def frequencies_within(power: np.ndarray) -> int:
    """Return the number of frequencies, from 0, of a downgoing field with this power spectrum."""
    return int(np.flatnonzero(power >= _MIN_AMPLITUDE**2 * power.max())[-1]) + 1


class RecordedFields:
    """Downgoing and upgoing field of the same sources, in two files."""

    def __init__(self, options: Any) -> None:
        self._paths = located(str(options.down)), located(str(options.up))
        self._down, _ = open_array(self._paths[0], DOWN_NAMES)
        self._up, _ = open_array(self._paths[1], UP_NAMES)
        down, up = (tuple(int(n) for n in array.shape) for array in (self._down, self._up))
        for path, shape in zip(self._paths, (down, up), strict=True):
            if len(shape) != 3 or 0 in shape:
                raise InputError(f"{path} must have the shape (sources, receivers, samples), not {shape}")
        if (down[0], down[2]) != (up[0], up[2]):
            raise InputError(
                f"{self._paths[0]} and {self._paths[1]} must have the same sources (first axis) and samples (last "
                f"axis), not the shapes {down} and {up}"
            )
        if down[2] < 2:
            raise InputError(f"{self._paths[0]} needs at least 2 samples per record, not {down[2]}")
        interval, spacing = float(options.interval or 0) / 1e3, float(options.spacing or 0)
        self.acquisition = Acquisition(down[0], down[1], up[1], down[2], interval, spacing)

    def power(self, sources: slice) -> np.ndarray:
        """Return the squared amplitude at each frequency, summed over some of the sources and all receivers."""
        power = np.zeros(len(self.acquisition.frequencies))
        for _, spectra in self._blocks(sources):
            power += (np.abs(spectra) ** 2).sum(axis=(0, 1))
        return power

    def spectra(self, share: slice) -> np.ndarray:
        """Return the orthonormal spectra at some of the frequencies, of shape ``(frequencies, sources, receivers)``."""
        size = share.stop - share.start, self.acquisition.sources, self.acquisition.receivers
        result = np.empty(size, dtype=np.complex128)
        for sources, spectra in self._blocks(slice(0, self.acquisition.sources)):
            result[:, sources] = np.moveaxis(spectra[..., share], -1, 0)
        return result

    def upgoing(self, sources: slice) -> np.ndarray:
        """Return the upgoing field of some sources, with zeros after it: ``(times, sources, virtual sources)``."""
        records = _finite(self._up, self._paths[1], sources)
        result = np.zeros((self.acquisition.total, *records.shape[:2]))
        result[: self.acquisition.samples] = np.moveaxis(records, -1, 0)
        return result

    def _blocks(self, sources: slice) -> Iterator[tuple[slice, np.ndarray]]:
        """Read the downgoing field of some sources in pieces of bounded size, and transform them."""
        from scipy.fft import rfft

        step = max(1, _BLOCK_BYTES // (8 * self.acquisition.receivers * self.acquisition.samples))
        for first in range(sources.start, sources.stop, step):
            block = slice(first, min(first + step, sources.stop))
            records = _finite(self._down, self._paths[0], block)
            yield block, rfft(records, self.acquisition.total, axis=-1, norm="ortho")


def _finite(array: Any, path: Path | Url, sources: slice) -> np.ndarray:
    records = decoded(array, path, sources, np.float64)
    if (index := not_finite(records)) is not None:
        source, receiver, sample = index
        raise InputError(
            f"{path} is {records[index]} at source {sources.start + source + 1}, receiver {receiver + 1}, "
            f"sample {sample + 1}: replace it with a finite number"
        )
    return records


class SyntheticSea:
    """The downgoing field at the sea bed: the direct wave, and its reverberations in the water layer.

    It has the methods of `RecordedFields` for the downgoing field. Raises `InputError` if the interval is too long for
    the wavelet.
    """

    def __init__(self, options: Any) -> None:
        interval = _INTERVAL if options.interval is None else options.interval / 1e3
        if 0.5 / interval <= 2 * _WAVELET_HZ:
            raise InputError(
                f"--interval must be less than {250 / _WAVELET_HZ:g} ms for the synthetic field, not {options.interval}"
            )
        receivers = options.receivers or _RECEIVERS
        self.acquisition = Acquisition(
            options.sources or _SOURCES,
            receivers,
            receivers,
            options.samples or _SAMPLES,
            interval,
            options.spacing or _SPACING,
        )

    def power(self, sources: slice) -> np.ndarray:
        """Return the power spectrum of the wavelet, times the number of sources."""
        return np.abs(self._wavelet(self.acquisition.frequencies)) ** 2 * (sources.stop - sources.start)

    def spectra(self, share: slice) -> np.ndarray:
        """Return the orthonormal spectra at some of the frequencies, of shape ``(frequencies, sources, receivers)``."""
        acquisition = self.acquisition
        line, frequencies = acquisition.positions, acquisition.frequencies[share]
        # The line of sources extends beyond the receivers by a quarter of their line on both sides.
        middle, half = (line[0] + line[-1]) / 2, 0.75 * (line[-1] - line[0] + acquisition.spacing)
        offsets = np.linspace(middle - half, middle + half, acquisition.sources)[:, None] - line[None, :]
        field = np.zeros((len(frequencies), *offsets.shape), dtype=np.complex128)
        for number in range(_REVERBERATIONS + 1):
            distance = np.hypot(offsets, (2 * number + 1) * _DEPTH)
            amplitude = (_SURFACE * _BED) ** number * np.sqrt(_DEPTH / distance)
            field += amplitude * np.exp(-2j * np.pi * frequencies[:, None, None] * distance / _SPEED)
        return field * (self._wavelet(frequencies) / np.sqrt(acquisition.total))[:, None, None]

    def _wavelet(self, frequencies: np.ndarray) -> np.ndarray:
        values, centre = ricker(_WAVELET_HZ, self.acquisition.interval)
        lags = self.acquisition.interval * (np.arange(len(values)) - centre)
        return np.exp(-2j * np.pi * np.outer(frequencies, lags)) @ values


def synthetic_response(acquisition: Acquisition, receivers: slice) -> np.ndarray:
    """Return the reflection response of the layers below the bed: the true result of the deconvolution.

    float64, shape ``(times, receivers, virtual sources)``, for some of the receivers: hyperbolas, with a wavelet within
    the band of the downgoing field.
    """
    line = acquisition.positions
    offsets = line[receivers, None] - line[None, :]
    result = np.zeros((acquisition.total, *offsets.shape))
    for depth, speed, strength in _REFLECTORS:
        distance = np.hypot(offsets, 2 * depth)
        delays = acquisition.times[:, None, None] - distance / speed
        result += strength * np.sqrt(2 * depth / distance) * ricker_shape(_RESPONSE_HZ * delays)
    return result
