"""The Kirchhoff operator in plain NumPy: for machines without Numba, and for checking the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.signal import oaconvolve

from collops.operators.kirchhoff.fixed_point import FixedTables

__all__ = ["NumpyKernels"]


class NumpyKernels:
    """Forward and adjoint, one trace at a time.

    Parameters
    ----------
    tables : FixedTables
        The travel times.
    wavelet : numpy.ndarray
        Taps of the wavelet.
    center : int
        Index of the tap at time zero.
    """

    def __init__(self, tables: FixedTables, wavelet: np.ndarray, center: int) -> None:
        self._tables = tables
        self._wavelet, self._center = wavelet, center

    def forward(self, image: np.ndarray, traces: np.ndarray) -> None:
        """Demigrate a flat image into flat traces."""
        samples = self._tables.scale.samples
        for trace, (points, index, fraction) in zip(traces.reshape(-1, samples), self._arrivals(), strict=True):
            values = image[points]
            far = values * fraction
            raw = np.bincount(index, values - far, samples) + np.bincount(index + 1, far, samples)
            trace[...] = oaconvolve(raw, self._wavelet)[self._center : self._center + samples]

    def adjoint(self, traces: np.ndarray, image: np.ndarray) -> None:
        """Migrate flat traces into a flat image."""
        samples = self._tables.scale.samples
        total = np.zeros(image.size)
        first = self._wavelet.size - 1 - self._center
        for trace, (points, index, fraction) in zip(traces.reshape(-1, samples), self._arrivals(), strict=True):
            filtered = oaconvolve(trace, self._wavelet[::-1])[first : first + samples]
            total[points] += filtered[index] * (1 - fraction) + filtered[index + 1] * fraction
        image[...] = total

    def _arrivals(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield for each trace which points arrive within it, the sample before each and the fraction behind it."""
        scale = self._tables.scale
        mask = (1 << scale.fraction_bits) - 1
        for outward in self._tables.sources:
            for back in self._tables.receivers:
                time = outward + back
                index = time >> scale.fraction_bits
                points = np.flatnonzero((index >= 0) & (index < scale.samples - 1))
                yield points, index[points], np.ldexp((time[points] & mask).astype(float), -scale.fraction_bits)
