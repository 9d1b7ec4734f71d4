"""From the time steps of a propagator to the traces of a survey: samples, weights and filters."""

from __future__ import annotations

import math
from copy import copy
from typing import Any

import numpy as np

from collops import DistributedArray, Layout, LinearOperator
from collops.errors import InputError
from collops.extend.arrays import Array
from collops.extend.communication import collective_errors
from collops.extend.operators import filled
from collops.seismic.waves import Propagator, SourceEncoding

_ORDER = 4  # of the Butterworth filter, which is applied forwards and backwards


class Recording(LinearOperator):
    r"""The traces of a survey from all time steps of its shots: :math:`L W S`.

    S takes the samples, W weights them, such as by a mute, and L is a filter without phase.

    Messages: none; one all-to-all-v of the samples if the propagator shares shots by the cost of their windows.

    Parameters
    ----------
    propagator : Propagator
        Its range is the domain of this operator.
    first, step : int
        The time step of the first sample, and the number of time steps between samples.
    weights : DistributedArray
        Weights of the samples, of shape (shots, receivers, samples), split by shots: the layout of the range.

    Attributes
    ----------
    traces : Layout
        The range.
    """

    capturable = False

    def __init__(self, propagator: Propagator, first: int, step: int, weights: Any) -> None:
        self.traces = weights.layout
        self._steps = slice(first, first + (self.traces.shape[2] - 1) * step + 1, step)
        self._weights, self._response = weights, None
        shots = propagator.range  # without tiles: split by shots only
        self._shape = shots.local_shape(propagator.comm.rank)
        self._samples = Layout.split(self.traces.shape, shots.ranks, sizes=shots.sizes[0])
        super().__init__(propagator.range, weights.layout, propagator.dtype, propagator.comm)

    def up_to(self, frequency: float | None, interval: float) -> Recording:
        """Return the same without frequencies above `frequency` in hertz; None keeps all."""
        return self if frequency is None else self._filtered(low_pass(frequency, self.traces.shape[2], interval))

    def whitened(self, wavelet: np.ndarray, gain: float) -> Recording:
        """Return the same with the spectrum of the wavelet flattened, by `whitening`; a gain of 1 changes nothing."""
        return self if gain == 1 else self._filtered(whitening(wavelet, self.traces.shape[2], gain))

    def _filtered(self, response: np.ndarray) -> Recording:
        return self._with(_response=response if self._response is None else self._response * response)

    def encoded(self, encoding: SourceEncoding, propagator: Propagator) -> Recording:
        """Return the same for the encoded shots that a propagator models. Collective.

        Raises InputError on every rank if not all shots have the same weights.
        """
        count, shots = np.shape(encoding.weights)
        first = np.zeros((shots, shots))
        first[:, 0] = 1  # the weights of the first shot, for each shot
        alike = SourceEncoding(first).data(self._weights).local_array == self._weights.local_array
        with collective_errors(self.comm):
            if not bool(alike.all()):
                raise InputError(
                    "shots can be encoded only if the traces of all are weighted alike: omit --mute, pass --outliers "
                    "0, and exclude receivers whose traces are not used in all shots"
                )
        steps = self._steps
        return Recording(propagator, steps.start, steps.step, SourceEncoding(first[:count]).data(self._weights))

    def scaled(self, factor: float) -> Recording:
        """Return the same times a factor."""
        return self._with(_weights=factor * self._weights)

    def _with(self, **changes: Any) -> Recording:
        other = copy(self)
        other.__dict__ |= changes
        return other

    def band_of(self, traces: Any) -> DistributedArray:
        """Return traces of the range without the frequencies that this operator leaves out."""
        return DistributedArray(self.traces, self.comm, self._limited(traces.local_array, traces.engine.xp))

    def _limited(self, traces: Any, xp: Any) -> Any:
        """Apply the filter, which is its own transpose, to traces of a rank."""
        if self._response is None:
            return traces
        samples = traces.shape[-1]
        spectrum = xp.fft.rfft(traces, 2 * samples, axis=-1) * xp.asarray(self._response)
        return xp.fft.irfft(spectrum, 2 * samples, axis=-1)[..., :samples].astype(traces.dtype)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        xp, weights = x.engine.xp, self._weights.local_array
        if not adjoint:
            samples = self._moved(x.local_array[..., self._steps], self._samples, self.traces)
            return filled(out, self._limited(samples * weights, xp))
        steps = xp.zeros(self._shape, self.dtype)
        samples = weights * self._limited(x.local_array, xp)
        steps[..., self._steps] = self._moved(samples, self.traces, self._samples)
        return filled(out, steps)

    def _moved(self, local: Any, source: Layout, target: Layout) -> Any:
        """Return this rank's part of traces in another layout."""
        if source is target:
            return local
        return DistributedArray(source, self.comm, local).redistribute(target).local_array


def low_pass(frequency: float, samples: int, interval: float) -> np.ndarray:
    """Return the response of a low-pass filter for traces that are padded with as many zeros as they have samples.

    A Butterworth filter of order 4, applied forwards and backwards, has this response: a half at `frequency`.
    """
    return 1 / (1 + (np.fft.rfftfreq(2 * samples, interval) / frequency) ** (2 * _ORDER))


def whitening(wavelet: np.ndarray, samples: int, gain: float) -> np.ndarray:
    r"""Return the response of a filter that flattens a spectrum, for traces padded as for :func:`low_pass`.

    It is :math:`(1 + \epsilon^2) W / (W^2 + \epsilon^2)` with the amplitudes W of the wavelet, at most 1: the Wiener
    filter for noise of the amplitude :math:`\epsilon`. No frequency is amplified by more than `gain`, and those
    that the wavelet lacks are removed. With a `gain` below 2 the spectrum would become narrower.
    """
    periodic = np.pad(wavelet, (0, -len(wavelet) % (2 * samples))).reshape(-1, 2 * samples).sum(axis=0)
    amplitudes = np.abs(np.fft.rfft(periodic))
    amplitudes = amplitudes / (amplitudes.max() or 1.0)
    noise = gain - np.sqrt(gain**2 - 1)
    return (1 + noise**2) * amplitudes / (amplitudes**2 + noise**2)


def time_steps(interval: float, longest: float) -> int:
    """Return the smallest number of time steps in a sampling interval that are at most `longest` seconds long."""
    return max(1, math.ceil(interval / longest * (1 - 1e-9)))


def wavelet_at_steps(taps: np.ndarray, step: int, before: int, steps: int) -> np.ndarray:
    """Return a wavelet at `steps` time steps, `step` of them in a sampling interval, after `before` steps of zeros.

    It is interpolated by a Fourier series, after padding with zeros.
    """
    from scipy.signal import resample

    samples = 2 * len(taps)
    fine = resample(np.pad(taps, (0, len(taps))), samples * step)
    wavelet = np.zeros(steps)
    wavelet[before : before + len(fine)] = fine[: max(0, steps - before)]
    return wavelet


def line_source(traces: np.ndarray, times: np.ndarray, speed: float) -> np.ndarray:
    r"""Convert traces of point sources to traces of lines across the section: :math:`v \sqrt{2 t} (t^{-1/2} * u)`.

    Exact for the far field in a constant velocity v [1]_. `times` are increasing and regular, in seconds; samples are
    along the last axis.

    References
    ----------
    .. [1] Forbriger, T., Groos, L., and Schaefer, M., "Line-source simulation for shallow-seismic data. Part 1:
       theoretical background", Geophysical Journal International 198, 1387-1404, 2014.
    """
    samples, interval = len(times), float(times[1] - times[0])
    frequencies = np.fft.rfftfreq(4 * samples, interval)
    frequencies[0] = frequencies[1] / 4  # the singularity at 0 is integrable
    # The Fourier transform of t^(-1/2), for positive t.
    response = np.sqrt(0.5 / frequencies) * np.exp(-0.25j * np.pi)
    convolved = np.fft.irfft(np.fft.rfft(traces, 4 * samples, axis=-1) * response, 4 * samples, axis=-1)
    return (speed * np.sqrt(2 * np.maximum(times, 0)) * convolved[..., :samples]).astype(traces.dtype)
