"""Wavelets, spectra and noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from collops.errors import InputError

if TYPE_CHECKING:
    from collops import Communicator

__all__ = [
    "check_unbiased",
    "count_biased",
    "frequency_from_power",
    "frequency_of",
    "highest_frequency",
    "moved",
    "noise_from_power",
    "onset_times",
    "power_spectrum",
    "ricker",
    "ricker_half",
    "ricker_shape",
    "smooth_step",
    "with_noise",
]

_ONSET = 0.2  # of the largest amplitude of a trace
_ROUNDING = 1e-6  # of positions in samples: smaller fractions count as 0


def ricker_shape(position: np.ndarray) -> np.ndarray:
    r"""Return :math:`(1 - 2 u^2) e^{-u^2}` at :math:`u = \pi x`, with `position` :math:`x` in peak wavelengths."""
    argument = (np.pi * position) ** 2
    return (1 - 2 * argument) * np.exp(-argument)


def smooth_step(position: np.ndarray) -> np.ndarray:
    """Rise smoothly from 0 to 1 between the positions 0 and 1."""
    inside = np.clip(position, 0, 1)
    return inside * inside * (3 - 2 * inside)


def moved(traces: np.ndarray, firsts: np.ndarray, samples: int) -> np.ndarray:
    """Move each trace along a time axis with `samples` samples, which is zero before and after the trace.

    Parameters
    ----------
    traces : numpy.ndarray
        Shape ``(traces, n)``, real.
    firsts : numpy.ndarray
        The index on the axis of the first sample of each trace; may be negative. For whole numbers, samples are copied.
        For fractions, they are interpolated by the phase of a Fourier transform, in which each trace is followed by its
        mirror image, so that it has no steps.
    samples : int
        Number of samples of the axis.

    Examples
    --------
    >>> import numpy as np
    >>> moved(np.array([[1.0, 2.0, 3.0]]), np.array([2.0]), 4)
    array([[0., 0., 1., 2.]])
    """
    from scipy.fft import irfft, rfft

    result = np.zeros((len(traces), samples), traces.dtype)
    if not traces.size:
        return result
    starts = np.floor(firsts + _ROUNDING).astype(int)
    fractions = firsts - starts
    between = np.flatnonzero(np.abs(fractions) > _ROUNDING)
    if between.size:
        both = np.concatenate([traces[between], traces[between, ::-1]], axis=1).astype(np.float64)
        phase = np.exp(-2j * np.pi * np.fft.rfftfreq(both.shape[1]) * fractions[between, None])
        delayed = irfft(rfft(both, axis=1) * phase, both.shape[1], axis=1)[:, : traces.shape[1]]
        traces = traces.copy()
        traces[between] = delayed
    for row, trace, first in zip(result, traces, starts, strict=True):
        begin, end = max(first, 0), min(first + len(trace), samples)
        if begin < end:
            row[begin:end] = trace[begin - first : end - first]
    return result


def ricker_half(frequency: float, interval: float) -> float:
    """Return the number of samples on either side of the centre of a Ricker wavelet; may be infinite."""
    return float(np.ceil(4.3 / (np.pi * frequency) / interval))


def ricker(frequency: float, interval: float) -> tuple[np.ndarray, int]:
    """Return a Ricker wavelet, truncated where it has decayed to a millionth, and the index of its centre.

    The peak frequency is in hertz, the sample interval in seconds.
    """
    half = int(ricker_half(frequency, interval))
    return ricker_shape(frequency * interval * np.arange(-half, half + 1)), half


def power_spectrum(traces: Iterable[np.ndarray], samples: int) -> np.ndarray:
    """Return the power spectrum, of shape ``(samples // 2 + 1,)``, summed over the rows of all arrays of traces."""
    from scipy.fft import rfft

    power = np.zeros(samples // 2 + 1)
    for rows in traces:
        power += (np.abs(rfft(rows.astype(np.float64), axis=1)) ** 2).sum(axis=0)
    return power


def count_biased(traces: Sequence[np.ndarray]) -> np.ndarray:
    """Return the number of traces (rows) whose mean exceeds their standard deviation, and of nonzero traces."""
    counts = np.zeros(2)
    for rows in traces:
        means, squares = rows.mean(axis=1, dtype=np.float64), (rows.astype(np.float64) ** 2).mean(axis=1)
        counts += np.count_nonzero(2 * means**2 > squares), np.count_nonzero(squares)
    return counts


def check_unbiased(counts: np.ndarray, name: str) -> None:
    """Raise `InputError` if most traces are biased; `counts` are summed over the ranks, `name` names the file."""
    if 2 * counts[0] > counts[1]:
        raise InputError(
            f"the traces of {name} do not oscillate about zero: pass seismic data, not velocities or another model, "
            "or subtract the mean"
        )


def frequency_from_power(power: np.ndarray, samples: int, interval: float) -> float:
    r"""Estimate the frequency of the Ricker wavelet whose power spectrum has the same centre of mass.

    Notes
    -----
    The power spectrum of a Ricker wavelet is :math:`f^4 e^{-2 f^2 / f_0^2}`; its centre of mass lies at
    :math:`\Gamma(3) / \Gamma(5/2) / \sqrt 2 = 1.064` times :math:`f_0`.
    """
    # Ignore frequency 0: a constant offset of the samples is a recording error.
    frequencies, power = np.fft.rfftfreq(samples, interval)[1:], power[1:]
    total = power.sum()
    return float((frequencies * power).sum() / total / 1.063846) if total > 0 else 0.0


def frequency_of(wavelet: np.ndarray, interval: float) -> float:
    """Return `frequency_from_power` of a wavelet, zero-padded for a finer spectrum."""
    size = 8 * len(wavelet)
    padded = np.pad(wavelet, (0, size - len(wavelet)))
    return frequency_from_power(power_spectrum([padded[None]], size), size, interval)


def highest_frequency(power: np.ndarray, samples: int, interval: float) -> float:
    """Return the frequency below which 99 % of the energy above white noise lies; 0 without energy."""
    signal = power[1:] - noise_from_power(power) ** 2
    energy = np.cumsum(signal)
    below = int(np.argmax(energy >= 0.99 * energy[-1])) if energy.size and energy[-1] > 0 else -1
    return float(np.fft.rfftfreq(samples, interval)[below + 1])


def noise_from_power(power: np.ndarray) -> float:
    """Estimate the norm of white noise in traces from the sum of their power spectra.

    The estimate assumes that the contiguous tenth of the frequencies with the smallest mean power is noise only. It is
    too small for traces without energy at some frequencies, such as filtered traces.
    """
    tenth = max(1, len(power) // 10)
    bands = power[1 : 1 + (len(power) - 1) // tenth * tenth].reshape(-1, tenth)
    # By Parseval's theorem, the mean power of a frequency is the mean power of the samples times their number.
    return float(np.sqrt(bands.mean(axis=1).min(initial=np.inf))) if bands.size else 0.0


def with_noise(
    clean: Sequence[np.ndarray], numbers: range, relative: float, seed: int, comm: Communicator
) -> tuple[list[np.ndarray], float]:
    """Add white noise; return new arrays and the norm of the noise. Collective.

    `clean` has one array per record of this rank (the traces of a shot, or a row of a volume), `numbers` the global
    numbers of these records. The noise of a record depends only on its number and the seed, and is thus the same on any
    number of ranks. `relative` is the root mean square of the noise over the root mean square of the data.
    """

    def square(values: np.ndarray) -> float:
        return float((values.astype(np.float64) ** 2).sum())

    sums = np.array([sum(map(square, clean)), float(sum(record.size for record in clean))])
    signal, samples = comm.allreduce(sums)
    deviation = relative * float(np.sqrt(signal / samples)) if samples else 0.0
    noisy = [record.copy() for record in clean]
    if deviation > 0:
        for number, values in zip(numbers, noisy, strict=True):
            generator = np.random.default_rng([seed, number])
            values += (deviation * generator.standard_normal(values.shape)).astype(values.dtype)
    norm = sum((square(a - b) for a, b in zip(noisy, clean, strict=True)), 0.0)
    return noisy, float(np.sqrt(comm.allreduce(np.array(norm))[()]))


def onset_times(traces: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the time of the first sample of each trace with a fifth of its largest amplitude; NaN for dead traces."""
    sizes = np.abs(traces)
    largest = sizes.max(axis=1, keepdims=True)
    return np.where(largest[:, 0] > 0, times[(sizes >= _ONSET * largest).argmax(axis=1)], np.nan)
