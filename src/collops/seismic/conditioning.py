"""Conditioning of the traces of one shot before an inversion: polarity, sampling, band, mutes, gain and weights.

The functions are pure: they take the traces of a shot, of shape ``(traces, samples)``, with values from their headers,
and return new arrays. `Conditioning` applies them in the order of its fields.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from io import StringIO
from typing import NamedTuple

import numpy as np

from collops.errors import InputError
from collops.seismic.signals import smooth_step
from collops.seismic.streams import Location, located, text_of

__all__ = [
    "Conditioned",
    "Conditioning",
    "Mute",
    "ShotHeaders",
    "bandpass",
    "parse_gain",
    "parse_mute",
    "parse_range",
    "read_table",
    "sound_traces",
]

_NEIGHBOURS = 11  # number of traces whose median amplitude is the reference for the middle trace
_BANDS = 10  # number of frequency bands
_MIN_BAND_AMPLITUDE = 0.3  # of one band, over the total amplitude of typical traces
_ORDER = 4  # of the Butterworth filter, which is applied forwards and backwards
_MAX_GAIN = 100.0  # of AGC, over the gain of the strongest window of a trace
_MUTE_HELP = (
    "pass the speed of the direct wave in m/s, such as 1500, with a delay in s, such as 1500,0.2, or a file of picks"
)


class ShotHeaders(NamedTuple):
    """The headers of the traces of one shot."""

    offsets: np.ndarray  # distance from the source along the line, m, not negative
    channels: np.ndarray  # their numbers in the field record
    times: np.ndarray  # of the samples after the shot, s
    shot: int  # the number of the shot among `records`, from 0
    records: np.ndarray  # field record numbers of all shots of the survey
    window: np.ndarray | None = None  # times of the first and the last recorded sample of each trace, s; None for all


@dataclass(frozen=True)
class Conditioned:
    r"""The traces of one shot, ready for an inversion that minimises :math:`\|W (d - A m)\|`.

    :math:`W d` are `traces` times `trust`, and :math:`W` is `mute` times `trust`. Traces modelled from the result,
    times `mute` and divided by `gain`, have the units and the polarity of the input data.
    """

    traces: np.ndarray  # shape ``(traces, samples)``, muted and with their gain
    mute: np.ndarray  # 0 to 1, for every sample, or of shape ``(1, 1)``
    gain: np.ndarray  # nonzero, broadcasts to the shape of the traces; negative where they are reversed
    trust: np.ndarray  # weights of the traces, not negative

    @property
    def weights(self) -> np.ndarray:
        """The weight of every sample, of the shape of the traces: mute times trust."""
        return np.broadcast_to(self.mute * self.trust[:, None], self.traces.shape)

    @property
    def without_gain(self) -> np.ndarray:
        """The muted traces in the units and polarity of the input data."""
        return self.traces if (self.gain == 1).all() else self.traces / self.gain


def parse_range(name: str, text: str, unit: str, lowest: float = 0.0) -> tuple[float, float]:
    """Parse the range ``"LOW,HIGH"`` of an option; one end may be missing (`lowest`, infinity)."""
    low, comma, high = text.partition(",")
    try:
        first, last = float(low or lowest), float(high or "inf")
    except ValueError:
        first, last = np.nan, np.nan
    if not (comma and lowest <= first < last) or (first, last) == (lowest, np.inf):
        raise InputError(f"{name} must be LOW,HIGH in {unit} with LOW below HIGH, not {text!r}")
    return first, last


def read_table(path: Location, columns: Sequence[int], meaning: str) -> np.ndarray:
    """Read a text file of numbers in columns, float64; ``#`` begins a comment, commas and spaces separate columns.

    Raises `InputError` unless the number of columns is in `columns`; `meaning` describes them.
    """
    try:
        text = text_of(path, "utf-8").replace(",", " ")
    except (OSError, UnicodeDecodeError) as problem:
        reason = "it is not text" if isinstance(problem, UnicodeDecodeError) else problem.strerror or problem
        raise InputError(f"{path} cannot be read ({reason}): pass a text file with {meaning}") from None
    lines = [line for line in text.splitlines() if line.partition("#")[0].strip()]
    try:
        table = np.loadtxt(StringIO("\n".join(lines)), ndmin=2) if lines else np.empty((0, 0))
    except ValueError as problem:
        raise InputError(f"{path} must hold a table of numbers ({problem}): {meaning}") from None
    if table.shape[1] not in columns or not np.isfinite(table).all():
        raise InputError(f"each line of {path} must hold {meaning} as finite numbers")
    return table


@dataclass(frozen=True)
class Mute:
    """A time of each trace of a shot, a moveout or picked: the end of a mute at the top, or the start of one below."""

    text: str  # the value of the option
    speed: float = np.inf  # m/s
    delay: float | None = None  # s; by default the length of a wavelet
    picks: np.ndarray | None = None  # rows of offset (m) and time (s), or of field record number, offset and time

    def times(self, headers: ShotHeaders, period: float) -> np.ndarray:
        """Return the time of each trace; `period` is the length of a wavelet, in seconds."""
        if self.picks is None:
            return headers.offsets / self.speed + (period if self.delay is None else self.delay)
        if self.picks.shape[1] == 2:
            return _interpolated(self.picks, headers.offsets)
        numbers = np.unique(self.picks[:, 0])
        _check_records("the picks", numbers, headers)
        positions = np.array([np.flatnonzero(headers.records == number)[0] for number in numbers])
        order = np.argsort(positions)
        numbers, positions = numbers[order], positions[order]
        times_of_picks = [
            _interpolated(self.picks[self.picks[:, 0] == number, 1:], headers.offsets) for number in numbers
        ]
        after = int(np.searchsorted(positions, headers.shot).clip(1, max(1, len(positions) - 1)))
        if len(positions) == 1:
            return times_of_picks[0]
        share = np.clip((headers.shot - positions[after - 1]) / (positions[after] - positions[after - 1]), 0, 1)
        return (1 - share) * times_of_picks[after - 1] + share * times_of_picks[after]


def parse_mute(text: str, name: str = "--mute") -> Mute:
    """Return the mute of ``"SPEED"``, ``"SPEED,DELAY"`` or the name of a file of picks; `name` is the option."""
    speed, comma, delay = text.partition(",")
    try:
        numbers = float(speed), float(delay) if comma else None
    except ValueError:
        path = located(text)
        if not path.is_file():  # pyright: ignore[reportAttributeAccessIssue] - of a text, a path or a URL
            raise InputError(f"cannot understand the mute {text!r}: {_MUTE_HELP}") from None
        meaning = "offset (m) and time (s), or field record, offset and time,"
        return Mute(text, picks=read_table(path, (2, 3), meaning))
    if not (numbers[0] > 0 and np.isfinite([numbers[0], numbers[1] or 0.0]).all()):
        raise InputError(f"{name} needs a positive speed and a finite delay, not {text}: {_MUTE_HELP}")
    return Mute(text, *numbers)


@dataclass(frozen=True)
class Gain:
    """The gain of the samples of a shot."""

    text: str  # the value of the option
    power: float | None = None  # of the time in seconds
    window: float = 0.0  # of automatic gain control, s

    def factors(self, traces: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return positive factors that broadcast to the shape of the traces."""
        interval = float(times[1] - times[0])
        return agc_gain(traces, self.window / interval) if self.power is None else time_gain(times, self.power)


def parse_gain(text: str) -> Gain:
    """Return the gain of ``"POWER"`` or ``"agc:SECONDS"``."""
    kind, colon, number = text.rpartition(":")
    try:
        value = float(number)
    except ValueError:
        value = np.nan
    if kind != ("agc" if colon else "") or not np.isfinite(value) or (colon and value <= 0) or abs(value) > 10:
        raise InputError(
            f"cannot understand the gain {text!r}: pass a power of time, such as 2, or the window of an automatic "
            "gain control in seconds, such as agc:0.5"
        )
    return Gain(text, window=value) if colon else Gain(text, power=value)


def bandpass(traces: np.ndarray, interval: float, band: tuple[float, float], margin: int | None = None) -> np.ndarray:
    """Apply a zero-phase band-pass filter, in hertz; at the ends of the band the amplitude is a half.

    SciPy's Butterworth filter of order 4 is applied forwards and backwards. A band may begin at 0 or end at infinity.
    Traces are padded antisymmetrically by `margin` samples.
    """
    from scipy.signal import butter, sosfiltfilt

    low, high = band
    kind = "lowpass" if low == 0 else "highpass" if high == np.inf else "bandpass"
    corners = [corner for corner in band if 0 < corner < np.inf]
    sections = butter(_ORDER, corners if len(corners) == 2 else corners[0], kind, fs=1 / interval, output="sos")
    longest = traces.shape[-1] - 1
    padding = round(1 / ((low or high) * interval)) if margin is None else margin
    filtered = sosfiltfilt(sections, traces.astype(np.float64), axis=-1, padlen=min(padding, longest))
    return filtered.astype(traces.dtype)


def resample(traces: np.ndarray, interval: float, new_interval: float) -> np.ndarray:
    """Resample traces from `interval` to a longer `new_interval` (s), with SciPy's zero-phase anti-alias filter.

    The time of the first sample does not change.
    """
    from scipy.signal import resample_poly

    ratio = _ratio(interval, new_interval)
    return resample_poly(traces.astype(np.float64), ratio.numerator, ratio.denominator, axis=-1).astype(traces.dtype)


def _ratio(interval: float, new_interval: float) -> Fraction:
    """Return the ratio of two intervals; one may be rounded, such as a third of a millisecond."""
    return Fraction(interval / new_interval).limit_denominator(0xFFFF)


def time_gain(times: np.ndarray, power: float) -> np.ndarray:
    """Return a power of time, of shape ``(1, samples)``: 1 at one second; times are at least one interval."""
    return np.maximum(times, times[1] - times[0])[None] ** power


def agc_gain(traces: np.ndarray, window: float) -> np.ndarray:
    """Return the inverse root mean square in a sliding window of `window` samples.

    It is at most a hundred times the gain of the strongest window of the trace; dead traces have gain 1.
    """
    from scipy.ndimage import uniform_filter1d

    mean = uniform_filter1d(traces.astype(np.float64) ** 2, max(1, round(window)), axis=1, mode="nearest")
    amplitude = np.sqrt(np.maximum(mean, 0))
    strongest = amplitude.max(axis=1, keepdims=True)
    return 1 / np.where(strongest > 0, np.maximum(amplitude, strongest / _MAX_GAIN), 1)


def sound_traces(traces: np.ndarray, factor: float) -> np.ndarray:
    """Return a mask of the traces of a shot that are neither dead nor much stronger or noisier than their neighbours.

    `traces` has the shape ``(traces, samples)``. Dead traces are zero. The root mean square of an outlier exceeds
    `factor` times the median of the nearest eleven nonzero traces. The same test applies to each tenth of the
    frequencies, as noise stands out where the signal is weak, if the amplitude in this band is at least 0.3 times the
    total amplitude of typical traces. With a `factor` of 0, all traces pass.
    """
    if not factor:
        return np.ones(len(traces), dtype=bool)
    from scipy.fft import rfft
    from scipy.ndimage import median_filter

    values = traces.astype(np.float64)
    amplitudes = np.sqrt((values**2).mean(axis=1))
    sound = amplitudes > 0
    if sound.any():
        usual = median_filter(amplitudes[sound], _NEIGHBOURS, mode="nearest")
        # By Parseval's theorem, the parts of a trace in all bands add up to its mean square.
        power = np.abs(rfft(values[sound], axis=1)) ** 2
        power[:, 1 : (traces.shape[1] + 1) // 2] *= 2
        edges = np.linspace(0, power.shape[1], min(_BANDS, power.shape[1]) + 1).astype(int)[:-1]
        parts = np.sqrt(np.add.reduceat(power, edges, axis=1)) / traces.shape[1]
        limits = np.maximum(
            factor * median_filter(parts, (_NEIGHBOURS, 1), mode="nearest"), _MIN_BAND_AMPLITUDE * usual[:, None]
        )
        sound[sound] = (amplitudes[sound] <= factor * usual) & (parts <= limits).all(axis=1)
    return sound


@dataclass(frozen=True)
class Conditioning:
    """The conditioning steps for the traces of every shot, all optional.

    Polarity, sampling and band-pass are the same for all traces (`filtered`); the other steps depend on their headers
    (`conditioned`). Outliers are detected before mutes and gain change the amplitudes.
    """

    reverse: bool = False  # whether the polarity is reversed
    interval: float | None = None  # between samples in seconds, at least the interval of the data
    band: tuple[float, float] | None = None  # in hertz, see `bandpass`
    outliers: float = 10.0  # see `sound_traces`
    offsets: tuple[float, float] | None = None  # range of the traces in use, m
    window: tuple[float, float] | None = None  # range of the samples in use, s
    mute: Mute | None = None  # of the samples before its times
    gain: Gain | None = None  # of the muted traces
    # Rows of field record number, channel and weight (other traces have weight 1), or "balance".
    weights: np.ndarray | str | None = None
    bottom: Mute | None = None  # of the samples after its times
    ground_roll: tuple[float, float] | None = None  # range of the speeds of arrivals that are muted, m/s
    edits: np.ndarray | None = None  # rows of field record number, channel and factor: 0 or -1

    def sampling(self, interval: float, samples: int) -> tuple[float, int]:
        """Return the interval and the number of samples of `filtered` traces, for this sampling of the data.

        Raises `InputError` unless the options suit the sampling.
        """
        if self.interval is not None:
            microseconds, before = 1e6 * self.interval, 1e6 * interval
            if microseconds < before - 1e-3 or abs(microseconds - round(microseconds)) > 1e-3:
                raise InputError(
                    f"--interval must be a whole number of microseconds, and at least the {1e3 * interval:g} ms of the "
                    f"data, not {1e3 * self.interval:g} ms"
                )
            samples, interval = math.ceil(samples * _ratio(interval, self.interval)), self.interval
        if self.band is not None:
            low, high = self.band
            highest, lowest = 0.5 / interval, 1 / (samples * interval)
            if not (low < highest and (high == np.inf or high < highest) and (low == 0 or low >= lowest)):
                raise InputError(
                    f"--bandpass {low:g},{high:g} does not fit {samples} samples of {1e3 * interval:g} ms: choose "
                    f"frequencies from {lowest:.3g} to below {highest:g} Hz"
                )
        if self.gain is not None and self.gain.power is None and self.gain.window < 2 * interval:
            raise InputError(
                f"the window of --gain {self.gain.text} must be at least {2e3 * interval:g} ms, two samples"
            )
        return interval, samples

    def filtered(self, traces: np.ndarray, interval: float) -> np.ndarray:
        """Apply polarity, sampling and band-pass to traces with an `interval` in seconds."""
        if self.reverse:
            traces = -traces
        if self.interval is not None and self.interval != interval:
            traces, interval = resample(traces, interval, self.interval), self.interval
        return traces if self.band is None else bandpass(traces, interval, self.band)

    def muting(self, headers: ShotHeaders, period: float) -> np.ndarray:
        """Return the mute factors of the samples of a shot, 0 to 1; of shape ``(1, 1)`` without a mute."""
        times, mute = headers.times, np.ones((1, 1))
        if self.mute is not None:
            mute = smooth_step((times - self.mute.times(headers, period)[:, None]) / period)
        if self.bottom is not None:
            mute = mute * smooth_step((self.bottom.times(headers, period)[:, None] - times) / period)
        if self.ground_roll is not None:
            slow, fast = self.ground_roll
            first, last = headers.offsets[:, None] / fast, headers.offsets[:, None] / slow + period
            mute = mute * (1 - smooth_step((times - first) / period + 1) * smooth_step((last - times) / period + 1))
        if self.window is not None:
            first, last = self.window
            fade = np.minimum((times - first) / period if first else 1.0, (last - times) / period)
            mute = mute * smooth_step(fade)
        if headers.window is not None:
            first, last = headers.window[..., None]
            rounding = 1e-6 * float(times[1] - times[0])
            mute = mute * ((times >= first - rounding) & (times <= last + rounding))
        return mute

    def conditioned(self, traces: np.ndarray, headers: ShotHeaders, period: float) -> Conditioned:
        """Mute, scale and weight the `filtered` traces of a shot; `period` is the length of a wavelet in seconds."""
        dtype, times, mute = traces.dtype, headers.times, self.muting(headers, period)
        trust = sound_traces(traces, self.outliers).astype(np.float64)
        if self.offsets is not None:
            trust *= (headers.offsets >= self.offsets[0]) & (headers.offsets <= self.offsets[1])
        edits = self._edits(headers)
        trust *= edits != 0
        sign = np.where(edits < 0, -1, 1)[:, None] if (edits < 0).any() else np.ones((1, 1))
        muted = traces * mute * sign
        gain = np.ones((1, 1)) if self.gain is None else self.gain.factors(muted, times)
        muted = muted * gain
        if isinstance(self.weights, str):
            amplitude = np.sqrt((muted**2).mean(axis=1))
            trust /= np.where(amplitude > 0, amplitude, 1)
        elif self.weights is not None:
            trust *= _of_traces("the trace weights", self.weights, headers)
        sign = -sign if self.reverse else sign
        return Conditioned(muted.astype(dtype), mute.astype(dtype), (sign * gain).astype(dtype), trust)

    def _edits(self, headers: ShotHeaders) -> np.ndarray:
        """Return the factor of each trace: 1, 0 (left out) or -1 (reversed)."""
        if self.edits is None:
            return np.ones(len(headers.channels))
        return _of_traces("the edited traces", self.edits, headers)

    def describe(self) -> str:
        """Describe the steps in order; return an empty string without any."""
        steps = [
            "polarity reversed" if self.reverse else "",
            "" if self.interval is None else f"resampled to {1e3 * self.interval:g} ms",
            "" if self.band is None else f"band-pass {_ends(self.band)} Hz (zero phase)",
            "" if self.offsets is None else f"offsets {_ends(self.offsets)} m",
            "" if self.edits is None else f"{_edited(self.edits)}",
            "" if self.mute is None else f"mute {self.mute.text}",
            "" if self.bottom is None else f"bottom mute {self.bottom.text}",
            "" if self.ground_roll is None else f"mute of ground roll of {_ends(self.ground_roll)} m/s",
            "" if self.window is None else f"times {_ends(self.window)} s",
            "" if self.gain is None else f"gain {self.gain.text}",
            "" if self.weights is None else "trace weights",
        ]
        return ", ".join(filter(None, steps))


def _of_traces(what: str, rows: np.ndarray, headers: ShotHeaders) -> np.ndarray:
    """Return the product of the last columns of rows of field record number, channel and factor, for each trace."""
    _check_records(what, rows[:, 0], headers)
    factors, own = np.ones(len(headers.channels)), rows[rows[:, 0] == headers.records[headers.shot], 1:]
    trace, row = np.nonzero(headers.channels[:, None] == own[:, 0])
    np.multiply.at(factors, trace, own[row, 1])
    return factors


def _edited(rows: np.ndarray) -> str:
    """Describe edits of traces."""
    left_out, reverse = (int(chosen.sum()) for chosen in (rows[:, 2] == 0, rows[:, 2] < 0))
    return f"{left_out} trace{'s' * (left_out != 1)} left out and {reverse} reversed"


def _check_records(what: str, numbers: np.ndarray, headers: ShotHeaders) -> None:
    if (unknown := np.setdiff1d(numbers, headers.records)).size:
        raise InputError(f"{what} contain field record {unknown[0]:g}, which is not in the survey: correct the file")


def _ends(pair: tuple[float, float]) -> str:
    return f"{pair[0]:g} to {pair[1]:g}"


def _interpolated(picks: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Interpolate picks (rows of offset and time) linearly; times are constant beyond the outermost picks."""
    picks = picks[np.argsort(picks[:, 0])]
    return np.interp(offsets, picks[:, 0], picks[:, 1])
