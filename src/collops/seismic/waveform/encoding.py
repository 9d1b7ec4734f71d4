"""The problem of encoded shots, and the order in which an inversion uses bands of frequencies and random signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from collops.extend.applications import Job
from collops.seismic.waveform.problem import WaveProblem, make_propagator
from collops.seismic.waves import SourceEncoding


class Stage(NamedTuple):
    """A run of the solver: the highest frequency of its band, the numbers of the band and of the draw, iterations."""

    frequency: float | None
    band: int
    draw: int | None  # None without encoded shots
    iterations: int

    @property
    def name(self) -> str:
        """The folder of its checkpoints."""
        return f"band-{self.band}" if self.draw is None else f"band-{self.band}-draw-{self.draw}"


def stages(bands: Sequence[float | None], iterations: int, redraw: int | None) -> list[Stage]:
    """Return the stages of an inversion; each band has draws of `redraw` iterations, or one stage with None."""
    found = []
    for band, frequency in enumerate(bands, 1):
        if redraw is None:
            found.append(Stage(frequency, band, None, iterations))
            continue
        for draw, first in enumerate(range(0, iterations, redraw), 1):
            found.append(Stage(frequency, band, draw, min(redraw, iterations - first)))
    return found


def encoded(job: Job[Any], waves: WaveProblem, shots: int, seed: Sequence[int]) -> WaveProblem:
    """Return the problem with the shots combined into a number of encoded shots, with random signs. Collective.

    Its traces are those of the encoded shots, and its survey is the original one.
    """
    propagator = waves.propagator
    encoding = SourceEncoding.random(propagator.geometry.shape[0], shots, seed=seed)
    combined = make_propagator(job, propagator.grid, encoding.geometry(propagator.geometry), waves.medium)
    recording = waves.recording.encoded(encoding, combined)
    return replace(waves, propagator=combined, recording=recording, observed=encoding.data(waves.observed))
