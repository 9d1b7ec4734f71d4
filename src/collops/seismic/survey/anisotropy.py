"""Thomsen's parameters of a survey: numbers, NumPy files, and text or SEG-Y files in depth, on the points of a grid."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collops.errors import InputError
from collops.seismic.kirchhoff.eikonal import Thomsen
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.segy import is_segy
from collops.seismic.streams import located
from collops.seismic.survey.geometry import Grid, Line
from collops.seismic.survey.profiles import PARAMETER
from collops.seismic.survey.velocity import VelocityFile, load_file, on_grid

_UNITS = {"epsilon": "", "delta": "", "tilt": " degrees", "azimuth": " degrees"}


def parse_parameter(name: str, text: str) -> float | VelocityFile:
    """Return a number, or a file with the suffix .npy, .sgy or .segy or after ``depth:``."""
    kind, _, path = text.partition(":")
    if kind == "depth":
        return VelocityFile(located(path), PARAMETER)
    if located(text).suffix.lower() == ".npy" or is_segy(text):
        return VelocityFile(located(text), PARAMETER)
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise InputError(
            f"cannot understand --{name} {text}: pass a number, a file .npy, .sgy or .segy, or a text or SEG-Y file in "
            "depth as depth:FILE"
        )
    return value


def thomsen_on(
    grid: Grid, line: Line | None, texts: Mapping[str, str], inline: int | None, notes: list[str]
) -> Thomsen | None:
    """Return the anisotropy at the points of a grid, or None for an isotropic medium; see `on_grid`.

    `texts` has an entry for each chosen parameter. Sentences about the files and the values are added to `notes`.
    """
    dims, values = len(grid.shape), {}
    for name, text in texts.items():
        parsed = parse_parameter(name, text)
        if isinstance(parsed, VelocityFile):
            section = inline if parsed.is_segy else None
            values[name] = on_grid(load_file(parsed, dims, section), grid, line, notes, name)
        else:
            values[name] = parsed
    thomsen = Thomsen(**values)
    if thomsen.parameters(ImageGrid.from_axes(*map(grid.axes.get, "zxy"))) is None:
        return None
    notes.append(f"anisotropy: times of qP waves in a medium that is {described(thomsen)}")
    return thomsen


def described(thomsen: Thomsen) -> str:
    """Return the kind of the medium, and the ranges of its parameters."""
    chosen = [f"{name} {_range(value)}{_UNITS[name]}" for name, value in vars(thomsen).items() if np.any(value)]
    return ", ".join(["TTI" if np.any(thomsen.tilt) else "VTI", *chosen])


def _range(values: float | np.ndarray) -> str:
    """Describe a number, or the smallest and the largest value."""
    lowest, highest = float(np.min(values)), float(np.max(values))
    return f"{lowest:g}" if lowest == highest else f"{lowest:.3g} to {highest:.3g}"
