"""A made-up sea: sources at its surface, receivers on its bed, waves that reverberate between, reflectors below."""

from __future__ import annotations

import numpy as np

from collops.apps.mdd.acquisition import Acquisition
from collops.apps.mdd.options import Options
from collops.apps.wavelet import ricker
from collops.errors import InputError

__all__ = ["MadeSea", "made_response"]

_INTERVAL, _SPACING = 0.004, 15.0
_SOURCES, _RECEIVERS, _SAMPLES = 61, 41, 300
_WAVELET_HZ, _RESPONSE_HZ = 25.0, 15.0
# The sea: its depth and speed, how its surface and bed reflect, and how often waves go up and down in it.
_DEPTH, _SPEED, _SURFACE, _BED, _REVERBERATIONS = 150.0, 1500.0, -0.95, 0.5, 3
# Reflectors below its bed: depth below it, mean speed above them, and their strength.
_REFLECTORS = ((120.0, 1800.0, 0.35), (230.0, 2000.0, -0.25), (380.0, 2300.0, 0.3))


class MadeSea:
    """The downgoing field on the bed of the sea: the direct wave, and what went up to the surface and down again.

    Parameters
    ----------
    options : Options
        Name the sizes.

    Raises
    ------
    InputError
        If the samples are too far apart for the wavelet.
    """

    def __init__(self, options: Options) -> None:
        interval = _INTERVAL if options.interval is None else options.interval / 1e3
        if 0.5 / interval <= 2 * _WAVELET_HZ:
            raise InputError(
                f"--interval must be less than {250 / _WAVELET_HZ:g} ms for the made field, not {options.interval}"
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
        """Return the squared amplitude of the wavelet at each frequency, for each of the sources."""
        return np.abs(self._wavelet(self.acquisition.frequencies)) ** 2 * (sources.stop - sources.start)

    def spectra(self, share: slice) -> np.ndarray:
        """Return the orthonormal spectra at some of the frequencies, of shape ``(frequencies, sources, receivers)``."""
        acquisition = self.acquisition
        line, frequencies = acquisition.positions, acquisition.frequencies[share]
        # Sources reach beyond the receivers by a quarter of the line on both sides.
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


def made_response(acquisition: Acquisition, receivers: slice) -> np.ndarray:
    """Return the reflection response of the layers below the bed: what the deconvolution should find.

    Parameters
    ----------
    acquisition : Acquisition
        Sizes and samplings.
    receivers : slice
        Which of them are wanted.

    Returns
    -------
    numpy.ndarray
        float64, shape ``(times, receivers, virtual sources)``: hyperbolas of a wavelet that the downgoing field holds.
    """
    line = acquisition.positions
    offsets = line[receivers, None] - line[None, :]
    result = np.zeros((acquisition.total, *offsets.shape))
    for depth, speed, strength in _REFLECTORS:
        distance = np.hypot(offsets, 2 * depth)
        argument = (np.pi * _RESPONSE_HZ * (acquisition.times[:, None, None] - distance / speed)) ** 2
        result += strength * np.sqrt(2 * depth / distance) * (1 - 2 * argument) * np.exp(-argument)
    return result
