"""Which traces of a survey to hold out to check an image that was made from the others."""

from __future__ import annotations

import numpy as np

from collops.seismic.survey.geometry import Geometry

__all__ = ["held_out"]


def held_out(geometry: Geometry, wavelength: float) -> list[np.ndarray]:
    """Choose traces by which to judge an image that was made from the others; none if the survey is too small.

    Returns an array for each shot: bool, one per trace. Two shots less than a wavelength apart record nearly the same
    coherent noise, so that one predicts the noise of the other: shots are held out in groups that are a wavelength (m)
    long, every other group. In 3-D, groups are strips across the longer side of the area of the shots. If all shots are
    in one group, receivers are held out in the same way.
    """
    shots = _every_other(_along(geometry.sources), wavelength)
    if shots.any():
        return [np.full(r.shape[1], held) for r, held in zip(geometry.receivers, shots, strict=True)]
    held = _every_other(_along(np.concatenate(list(geometry.receivers), axis=1)), wavelength)
    ends = np.cumsum([receivers.shape[1] for receivers in geometry.receivers])[:-1]
    return np.split(held, ends)


def _along(positions: np.ndarray) -> np.ndarray:
    """Return the horizontal coordinate in which positions differ most."""
    return positions[int(np.ptp(positions[:-1], axis=1).argmax())]


def _every_other(positions: np.ndarray, width: float) -> np.ndarray:
    """Return which positions are in every other group, where a group is no longer than `width`."""
    distinct, inverse = np.unique(positions, return_inverse=True)
    group, start = np.zeros(len(distinct), dtype=int), distinct[0]
    for place in range(1, len(distinct)):
        group[place] = group[place - 1]
        if distinct[place] - start >= width:
            group[place], start = group[place] + 1, distinct[place]
    return group[inverse] % 2 == 1
