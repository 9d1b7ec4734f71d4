"""Amplitudes of angle gathers relative to the image, and their intercept and gradient.

The gathers of the recorded traces are compared with the gathers of traces that are modelled from the image, with the
same reflectivity at all angles. Both have the same spreading, fold, weights and stretch, which therefore cancel: the
ratio depends on the angle only as the reflectivity of the subsurface does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.extend.applications import COLORS, Field, balanced, figure, symmetric_limit
from collops.seismic.avo import Avo, fit_avo
from collops.seismic.lsm.angles import column_blocks
from collops.seismic.lsm.quality import positions_in_words

if TYPE_CHECKING:
    from collops.seismic.lsm.problem import Problem
    from collops.seismic.lsm.quality import Quality

_MIN_ENERGY = 0.01  # of the modelled gather at an angle, over the angle with the largest energy at this depth
_MIN_DEPTH_ENERGY = 1e-6  # the same over the largest energy of the gather
_REALISATIONS = 8  # of the noise
_SHOWN = 12  # number of reflectors of a picture


@dataclass(frozen=True)
class Amplitudes:
    """Gathers whose amplitudes are reflectivities in the unit of the image, and their intercept and gradient."""

    x: np.ndarray  # position of the columns along the line in metres
    y: np.ndarray | None  # the same across the line; None in 2-D
    z: np.ndarray  # depth of the rows in metres
    angles: np.ndarray  # the middle of each class in degrees
    gathers: np.ndarray  # shape ``(columns, classes, rows)``; 0 where no trace has this angle
    avo: Avo  # shape ``(columns, rows)``
    image: np.ndarray  # the columns of the image
    known: bool  # whether deviations follow from the noise of the data, otherwise from the residual

    @property
    def parts(self) -> dict[str, np.ndarray]:
        """The arrays of `avo` by their names in the results; 0 where the angles do not determine them."""
        named = {
            "avo_intercept": self.avo.intercept,
            "avo_gradient": self.avo.gradient,
            "avo_intercept_deviation": self.avo.intercept_deviation,
            "avo_gradient_deviation": self.avo.gradient_deviation,
        }
        return {name: np.nan_to_num(values) for name, values in named.items()}

    @property
    def summary(self) -> str:
        """The root mean squares of intercept, gradient and their deviations, in a sentence."""
        sizes = {name: float(np.sqrt(np.mean(values**2))) for name, values in self.parts.items()}
        text = ", ".join(
            f"{name} {sizes[f'avo_{name}']:.3g} with a deviation of {sizes[f'avo_{name}_deviation']:.2g}"
            for name in ("intercept", "gradient")
        )
        source = "the noise of the data" if self.known else "the residual of the fit"
        return f"{text} (root mean squares), from {source}"

    def fields(self) -> dict[str, Field]:
        """Return the arrays of ``result.zarr``; the intercept and its like are NaN where they are unknown."""
        fields = {"avo_gathers": Field(self.gathers, ("column", "angle", "z"), "1")}
        names = zip(self.parts, vars(self.avo).values(), strict=True)
        return fields | {name: Field(values, ("column", "z"), "1") for name, values in names}

    def draw(self, folder: Path) -> Path:
        """Draw the gathers, and intercept and gradient of the strongest reflectors; return the path."""
        from scipy.signal import find_peaks

        path, avo = folder / "avo.png", self.avo
        middle, words = len(self.x) // 2, positions_in_words(self.x, self.y)
        with figure(path, 2, (11, 5)) as (_, axes):
            shown = balanced(self.gathers[middle])
            limit = symmetric_limit(shown)
            extent = (self.angles[0], self.angles[-1], self.z[-1], self.z[0])
            axes[0].imshow(shown.T, cmap="gray", vmin=-limit, vmax=limit, extent=extent, aspect="auto")
            axes[0].set(title=f"angle gather at {words[middle]}, amplitudes balanced")
            axes[0].set(xlabel="angle of incidence (degrees)", ylabel="depth (m)")
            crossed = np.unique(np.linspace(0, len(self.x) - 1, len(COLORS)).round().astype(int))
            for number, color in zip(crossed.tolist(), COLORS, strict=False):
                strength = np.where(np.isnan(avo.intercept_deviation[number]), 0, np.abs(self.image[number]))
                rows, peaks = find_peaks(strength, height=1e-30)
                rows = rows[np.argsort(peaks["peak_heights"])[-_SHOWN:]]
                axes[1].errorbar(
                    avo.intercept[number, rows],
                    avo.gradient[number, rows],
                    avo.gradient_deviation[number, rows],
                    avo.intercept_deviation[number, rows],
                    fmt="o",
                    markersize=3,
                    elinewidth=0.7,
                    color=color,
                    label=words[number],
                )
            axes[1].axhline(0, color="gray", lw=0.7)
            axes[1].axvline(0, color="gray", lw=0.7)
            axes[1].set(title="strongest reflectors, with standard deviations", xlabel="intercept", ylabel="gradient")
            axes[1].legend()
        return path


def field_bytes(columns: int, classes: int, rows: int) -> int:
    """Return the bytes of `Amplitudes.fields`."""
    return 8 * columns * rows * (classes + 4)


def amplitudes(
    problem: Problem,
    quality: Quality,
    recorded: list[np.ndarray],
    modelled: list[np.ndarray],
    image: np.ndarray,
    noise: list[list[np.ndarray]],
) -> Amplitudes:
    """Measure amplitudes against angles at the columns of `quality`. Collective.

    Parameters
    ----------
    problem, quality : Problem, Quality
        The migration, and its gathers.
    recorded, modelled : list of arrays
        The traces of this rank's shots, recorded and modelled from the image, times the squares of their weights.
    image : array
        The image.
    noise : list of lists of arrays
        Realisations of the noise in `recorded`; empty if the noise is unknown.
    """
    grid, columns, angles = problem.image_grid, quality.columns, quality.angles.classes
    column, window = image.reshape(-1, grid.nz)[columns], quality.window
    shape = len(columns), len(angles), grid.nz
    energy, gathers, squares = np.empty(shape), np.empty(shape), np.zeros(shape if noise else 0)
    for part, migrated in column_blocks(problem, columns, len(angles)):
        reference = migrated(modelled)
        energy[part] = _smooth(reference**2, window)
        scale = np.divide(column[part, None], energy[part], out=np.zeros(energy[part].shape), where=energy[part] > 0)
        gathers[part] = _smooth(migrated(recorded) * reference, window) * scale
        for realisation in noise:
            squares[part] += (_smooth(migrated(realisation) * reference, window) * scale) ** 2 / len(noise)
    strongest = energy.max(axis=1, keepdims=True)
    used = (energy >= _MIN_ENERGY * strongest) & (strongest > _MIN_DEPTH_ENERGY * energy.max())
    gathers[~used] = 0
    deviation = None
    if noise:
        squares[~used] = 0
        deviation = np.sqrt(np.maximum(_smooth(squares, 2 * window), 0))
    avo = fit_avo(angles, gathers, weights=used, noise=deviation, window=2 * window)
    return Amplitudes(quality.x, quality.y, quality.z, angles, gathers, avo, column, deviation is not None)


def realisations(weights: list[np.ndarray], first: int, deviation: float, seed: int) -> list[list[np.ndarray]]:
    """Return realisations of white noise in weighted traces, times their weights.

    `weights` weight the traces of this rank's shots; `first` is the number of its first shot.
    """
    result = []
    for number in range(_REALISATIONS):
        shots = enumerate(weights, start=first)  # the same noise on any number of ranks
        result.append(
            [deviation * np.random.default_rng([seed, number, shot]).normal(size=w.shape) * w for shot, w in shots]
        )
    return result


def _smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Return moving averages over `window` rows."""
    from scipy.ndimage import uniform_filter1d

    return uniform_filter1d(values, window, axis=-1)
