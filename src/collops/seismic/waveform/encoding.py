"""The problem of encoded shots, and the order in which an inversion uses bands of frequencies and random signs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from collops.errors import InputError
from collops.extend.applications import Job
from collops.extend.communication import raised_together
from collops.seismic.waveform.problem import WaveProblem, make_propagator
from collops.seismic.waves import SourceEncoding


class Stage(NamedTuple):
    """A run of the solver: the highest frequency of its band, the numbers of the band and of the draw, iterations.

    A draw has up to `redraw` iterations.
    """

    frequency: float | None
    band: int
    iterations: int
    draw: int | None = None  # None without encoded shots
    redraw: int | None = None

    @property
    def name(self) -> str:
        """The folder of its checkpoints."""
        return f"band-{self.band}{'' if self.draw is None else f'-draw-{self.draw}'}{_suffix(self.redraw)}"


def _suffix(redraw: int | None) -> str:
    return "" if redraw is None else f"-of-{redraw}-iterations"


def stages(bands: Sequence[float | None], iterations: int, redraw: int | None) -> list[Stage]:
    """Return the stages of an inversion; each band has draws of `redraw` iterations, or one stage with None."""
    found = []
    for band, frequency in enumerate(bands, 1):
        if redraw is None:
            found.append(Stage(frequency, band, iterations))
            continue
        for draw, first in enumerate(range(0, iterations, redraw), 1):
            found.append(Stage(frequency, band, min(redraw, iterations - first), draw, redraw))
    return found


def check_checkpoints(folder: Path, redraw: int | None) -> None:
    """Raise InputError if the folder has checkpoints of stages with another number of iterations of a draw."""
    for file in folder.glob("band-*/iteration-*"):
        kind = re.sub(r"^band-\d+(-draw-\d+)?", "", file.parent.name)
        if kind != _suffix(redraw):
            raise InputError(
                f"{folder} has checkpoints of another --encode or --redraw, such as {file.parent.name}: pass those "
                "values with --resume, or name another folder"
            )


def check_encoded(waves: WaveProblem, shots: int) -> None:
    """Raise InputError on every rank if the shots cannot be combined into this number of encoded ones. Collective."""
    geometry = waves.propagator.geometry
    with raised_together():
        try:
            SourceEncoding.random(geometry.shape[0], shots).geometry(geometry)
        except InputError as error:
            raise InputError(f"--encode {shots}: {error}") from None


def encoded(job: Job[Any], waves: WaveProblem, shots: int, seed: Sequence[int]) -> WaveProblem:
    """Return the problem with the shots combined into a number of encoded shots, with random signs. Collective.

    It has the traces of the encoded shots, and the original survey.
    """
    propagator = waves.propagator
    encoding = SourceEncoding.random(propagator.geometry.shape[0], shots, seed=seed)
    combined = make_propagator(job, propagator.grid, encoding.geometry(propagator.geometry), waves.medium)
    recording = waves.recording.encoded(encoding, combined)
    return replace(waves, propagator=combined, recording=recording, observed=encoding.data(waves.observed))
