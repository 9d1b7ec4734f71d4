"""The source wavelet: a Ricker, and the frequency of the one that looks like the data."""

from __future__ import annotations

import numpy as np

__all__ = ["frequency_from_power", "power_spectrum", "ricker", "ricker_half"]


def ricker_half(frequency: float, interval: float) -> float:
    """Return how many samples a Ricker wavelet has on either side of its centre; may be infinite."""
    return float(np.ceil(4.3 / (np.pi * frequency) / interval))


def ricker(frequency: float, interval: float, dtype: str | np.dtype = "float64") -> tuple[np.ndarray, int]:
    r"""Return a Ricker wavelet long enough to have decayed to a millionth, and the position of its centre.

    Parameters
    ----------
    frequency : float
        Frequency :math:`f` of the largest amplitude in hertz.
    interval : float
        Sample interval in seconds.
    dtype : str or numpy.dtype
        Type of the samples.

    Notes
    -----
    .. math:: w(t) = (1 - 2 \pi^2 f^2 t^2) e^{-\pi^2 f^2 t^2}
    """
    half = int(ricker_half(frequency, interval))
    argument = (np.pi * frequency * interval * np.arange(-half, half + 1)) ** 2
    return ((1 - 2 * argument) * np.exp(-argument)).astype(dtype), half


def power_spectrum(traces: list[np.ndarray], samples: int) -> np.ndarray:
    """Return the power spectrum summed over traces.

    Returns
    -------
    numpy.ndarray
        float64, shape ``(samples // 2 + 1,)``; zeros if there are no traces.
    """
    power = np.zeros(samples // 2 + 1)
    for shot in traces:
        power += (np.abs(np.fft.rfft(shot.astype(np.float64), axis=1)) ** 2).sum(axis=0)
    return power


def frequency_from_power(power: np.ndarray, samples: int, interval: float) -> float:
    r"""Estimate the frequency of the Ricker wavelet whose power spectrum has the same centre of mass.

    Parameters
    ----------
    power : numpy.ndarray
        Power spectrum from `power_spectrum`.
    samples : int
        Samples of the traces it came from.
    interval : float
        Their sample interval in seconds.

    Notes
    -----
    The power spectrum of a Ricker wavelet is :math:`f^4 e^{-2 f^2 / f_0^2}`; its centre of mass lies at
    :math:`\Gamma(3) / \Gamma(5/2) / \sqrt 2 = 1.064` times :math:`f_0`.
    """
    # A constant shift of the samples is a fault of the recording and no part of any wavelet.
    frequencies, power = np.fft.rfftfreq(samples, interval)[1:], power[1:]
    total = power.sum()
    return float((frequencies * power).sum() / total / 1.063846) if total > 0 else 0.0
