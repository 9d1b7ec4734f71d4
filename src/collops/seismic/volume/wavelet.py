"""The wavelet: a Ricker wavelet, a wavelet from a file, or a zero-phase wavelet with the spectrum of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collops.errors import InputError
from collops.extend.applications import Url, located, open_array
from collops.seismic.real_numbers import finite_array
from collops.seismic.signals import ricker, ricker_half

__all__ = ["from_power", "make_wavelet", "parse_wavelet"]

_HELP = "pass ricker:FREQUENCY, such as ricker:25 (Hz), a file .npy, or data (from the spectrum of the data)"
# Half the length of a wavelet from data: about three periods of 25 Hz.
_HALF_SECONDS = 0.12


def parse_wavelet(text: str) -> float | Path | Url | None:
    """Return the frequency of ``"ricker:25"`` in hertz, the path of a .npy file, or None for ``"data"``."""
    kind, _, number = text.partition(":")
    if kind == "ricker":
        try:
            frequency = float(number)
        except ValueError:
            frequency = float("nan")
        if not (np.isfinite(frequency) and frequency > 0):
            raise InputError(f"the frequency of the wavelet {text!r} must be positive: {_HELP}")
        return frequency
    path = located(text)
    if path.suffix.lower() == ".npy":
        if not path.is_file():
            raise InputError(f"{text} does not exist: check the path of the wavelet file")
        return path
    if text != "data":
        raise InputError(f"cannot understand the wavelet {text!r}: {_HELP}")
    return None


def make_wavelet(kind: float | Path | Url | None, samples: int, interval: float) -> np.ndarray:
    """Return a Ricker wavelet of amplitude 1, or the wavelet in a file without scaling.

    `kind` is from `parse_wavelet`. A trace has `samples` samples, and the wavelet at most as many; `interval` is in
    seconds. The result is float64, of odd length; time zero is its middle sample.
    """
    if kind is None:
        raise InputError("--wavelet data needs data from a file: pass --volume, or another wavelet")
    if isinstance(kind, Path | Url):
        wavelet = _read(kind)
        _check_length(len(wavelet), samples, str(kind))
        return wavelet
    if kind >= 0.5 / interval:
        raise InputError(
            f"a wavelet of {kind:g} Hz cannot be sampled every {1e3 * interval:g} ms: "
            f"choose less than {0.5 / interval:g} Hz"
        )
    _check_length(2 * ricker_half(kind, interval) + 1, samples, f"a Ricker wavelet of {kind:g} Hz")
    return ricker(kind, interval)[0]


def from_power(power: np.ndarray, samples: int, interval: float) -> np.ndarray:
    """Return the zero-phase wavelet of energy 1 that has the smoothed amplitude spectrum of data.

    It assumes white reflection coefficients, so that data and wavelet have the same spectrum. Tapering the
    autocorrelation to the length of the wavelet, which is odd, smooths the power spectrum.
    """
    from scipy.fft import irfft, rfft
    from scipy.signal.windows import hann

    half = max(1, min(round(_HALF_SECONDS / interval), (samples - 1) // 2))
    taper = hann(2 * half + 3)[1:-1]
    lags = np.arange(-half, half + 1)
    autocorrelation = np.zeros(samples)
    autocorrelation[lags] = irfft(power, samples)[lags] * taper
    smooth = np.maximum(rfft(autocorrelation).real, 0)
    wavelet = irfft(np.sqrt(smooth), samples)[lags] * taper
    return wavelet / np.linalg.norm(wavelet)


def _read(path: Path | Url) -> np.ndarray:
    array, _ = open_array(path, ())
    if array.ndim != 1 or array.size % 2 == 0:
        raise InputError(
            f"{path} has shape {tuple(array.shape)}: a wavelet must be 1-D, with an odd number of samples and time "
            "zero at the middle sample"
        )
    wavelet = finite_array(str(path), array)
    if not wavelet.any():
        raise InputError(f"{path} must not hold zeros only")
    return wavelet


def _check_length(length: float, samples: int, name: str) -> None:
    if length > samples:
        raise InputError(f"{name} has {length:g} samples, but a trace only {samples}: choose a shorter wavelet")
