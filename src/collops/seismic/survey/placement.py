"""The position of each trace on the time axis of a survey: delays, static corrections and lengths that differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.seismic.signals import moved


@dataclass(frozen=True)
class Placement:
    """The time axis of a survey whose traces begin at different times, or have different lengths.

    The axis has the samples of the first trace that begins, and covers all traces, so that no sample is lost.
    """

    begins: list[np.ndarray]  # for each shot, the time of the first sample of each trace, in seconds
    counts: list[np.ndarray]  # for each shot, the number of recorded samples of each trace
    samples: int  # of the axis
    interval: float  # in seconds
    start: float  # time of the first sample of the axis, in seconds

    @staticmethod
    def axis(begins: np.ndarray, counts: np.ndarray, first: float, interval: float) -> tuple[int, float]:
        """Return the number of samples and the start of an axis that covers all traces.

        The time `first` (s) is a whole number of intervals from the start.
        """
        steps = (begins - first) / interval
        before, after = math.floor(steps.min() + 1e-6), math.ceil((steps + counts).max() - 1e-6)
        return after - before, first + before * interval

    def on_axis(self, shot: int, traces: np.ndarray) -> np.ndarray:
        """Return the recorded traces of a shot on the axis, zero where nothing was recorded."""
        recorded = np.arange(traces.shape[1]) < self.counts[shot][:, None]
        return moved(np.where(recorded, traces, 0), self._firsts(shot), self.samples)

    def window(self, shot: int) -> np.ndarray:
        """Return the times of the first and the last recorded sample of each trace of a shot: ``(2, traces)``, s."""
        begins = self.begins[shot]
        return np.stack([begins, begins + (self.counts[shot] - 1) * self.interval])

    def restored(self, shots: range, values: Any, interval: float, samples: int) -> RestoredRows:
        """Return rows of traces on the axis at the times of the recorded traces, for some shots.

        `interval` is the interval of the rows in seconds, `samples` the number of samples of the recorded traces.
        """
        firsts = np.concatenate([np.empty(0), *(self.begins[shot] - self.start for shot in shots)]) / interval
        return RestoredRows(values, -firsts, math.ceil(samples * self.interval / interval - 1e-6))

    def _firsts(self, shot: int) -> np.ndarray:
        return (self.begins[shot] - self.start) / self.interval


class RestoredRows:
    """Rows of traces for a file, each moved by its own number of samples when they are sliced.

    Parameters
    ----------
    values : array_like
        Traces, shape ``(rows, samples)``: an array, or an object that computes slices of rows.
    firsts : numpy.ndarray
        The index of the first sample of each row in the result; may be a fraction, or negative.
    samples : int
        Number of samples of the result.
    """

    def __init__(self, values: Any, firsts: np.ndarray, samples: int) -> None:
        self._values, self._firsts, self.shape = values, firsts, (values.shape[0], samples)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return moved(self._values[rows], self._firsts[rows], self.shape[1])
