"""Residual moveout of common-image gathers: where they can show it, its measurement, and picks as text.

References
----------
Al-Yahya, K., *Velocity analysis by iterative profile migration*, Geophysics 54 (1989), 718-729.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.extend.applications import atomic

if TYPE_CHECKING:
    from collops.seismic.survey.geometry import Geometry

RATIOS = np.linspace(0.8, 1.2, 41)
"""The tried ratios of the migration velocity to a velocity that makes gathers flat."""

MIN_CLASSES = 3
"""Number of classes without which a gather shows no moveout: two depths have a slope, but no misfit."""

_MIN_SEMBLANCE, _MIN_POWER = 0.3, 0.02  # of picks; the power of the stack relative to the maximum of its gather


def surrounding(geometry: Geometry, classes: np.ndarray, columns: np.ndarray, radius: float) -> np.ndarray:
    """Return which classes of traces have midpoints all around which columns: bool, ``(columns, classes)``.

    Echoes that are migrated to a point add up if their midpoints surround the point by the radius of a Fresnel zone;
    otherwise the image of a class shows arcs, without moveout. In 2-D, midpoints must be in each quarter of
    the interval from `radius` before to `radius` after a column; in 3-D, in each quadrant of a circle.

    Parameters
    ----------
    geometry : Geometry
        The survey.
    classes : array of int
        The class of each trace, in the order of the shots.
    columns : array
        Shape ``(columns, axes)``: positions (across and) along the line, in metres.
    radius : float
        In metres.
    """
    from scipy.spatial import cKDTree

    sources = geometry.sources[:-1, geometry.shot_of_trace]
    midpoints = (sources + np.concatenate([group[:-1] for group in geometry.receivers], axis=1)).T / 2
    result = np.zeros((len(columns), classes.max() + 1), bool)
    for number in range(classes.max() + 1):
        own = midpoints[classes == number]
        for row, near in enumerate(cKDTree(own).query_ball_point(columns, radius)):
            offset = own[near] - columns[row]
            parts = (offset > 0) @ [2, 1] if columns.shape[1] == 2 else np.floor(2 * offset[:, 0] / radius).clip(-2, 1)
            result[row, number] = len(np.unique(parts)) == 4
    return result


def semblance(gather: np.ndarray, z: np.ndarray, depths: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the power of the stack of a gather and its semblance, for each velocity ratio and depth.

    `gather` has the shape ``(classes, rows)``, and the window is in rows. `depths`, of shape ``(ratios, classes,
    rows)``, are the depths at which a velocity of r times the true velocity images a flat reflector that lies at the
    depth of the row for offset and angle zero. For constant velocities these are sqrt(z^2 + (r^2 - 1) h^2) at half
    offset h, and z / sqrt(1 - (r^2 - 1) tan(a)^2) at the angle a. Both results have the shape ``(ratios, rows)``.
    """
    from scipy.ndimage import uniform_filter1d

    flat = np.stack([np.interp(depths[:, number], z, row, right=0.0) for number, row in enumerate(gather)])
    power = uniform_filter1d(flat.sum(axis=0) ** 2, window, axis=-1)
    energy = len(gather) * uniform_filter1d((flat**2).sum(axis=0), window, axis=-1)
    return power, power / (energy + 1e-6 * energy.max() + np.finfo(float).tiny)


def picks(power: np.ndarray, flatness: np.ndarray, window: int) -> np.ndarray:
    """Pick the velocity ratio of the reflectors of a gather, from the results of `semblance`.

    Returns rows of the row of the image, the ratio and the semblance: where the power of the best stack has a maximum
    of at least 2 % of the largest, its semblance is at least 0.3, and its ratio is between the first and the last.
    """
    from scipy.signal import find_peaks

    best = power.max(axis=0)
    rows, _ = find_peaks(best, height=_MIN_POWER * best.max(), distance=window)
    ratios = power[:, rows].argmax(axis=0)
    usable = (flatness[ratios, rows] >= _MIN_SEMBLANCE) & (ratios > 0) & (ratios < len(RATIOS) - 1)
    rows, ratios = rows[usable], ratios[usable]
    return np.stack([rows, RATIOS[ratios], flatness[ratios, rows]], axis=1)


def write_picks(path: Path, rows: np.ndarray, title: str) -> Path:
    """Write a text file of picks: column number, x, in 3-D y, depth, ratio and semblance; `#` begins a comment."""
    y = rows.shape[1] == 6
    header = (
        f"{title}\nvelocity ratio: migration velocity over the velocity that makes the reflector flat\n"
        f"column (CDP)   x (m)   {'y (m)   ' * y}depth (m)   velocity ratio   semblance"
    )
    with atomic(path) as temporary, temporary.open("w", encoding="ascii") as file:
        np.savetxt(file, rows, f"%8d %12.2f {'%11.2f ' * y}%11.2f %8.2f %10.3f", header=header)
    return path
