"""The choice of traces: held-out traces, which check an image made from the others, and classes of offsets."""

from __future__ import annotations

import numpy as np

from collops.seismic.survey.geometry import Geometry

__all__ = ["held_out", "offset_classes"]


def offset_classes(geometry: Geometry, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide the traces into classes of offsets with about the same number of traces.

    Returns the mean distance from source to receiver of each class in metres, increasing, and the class of each trace,
    in the order of the shots. There are fewer classes if there are fewer distinct offsets.
    """
    offsets = np.abs(np.concatenate([geometry.offsets(shot) for shot in range(geometry.shots)]))
    edges = np.unique(np.quantile(offsets, np.linspace(0, 1, classes + 1)))[1:-1]
    _, number = np.unique(np.searchsorted(edges, offsets, side="right"), return_inverse=True)
    return np.bincount(number, offsets) / np.bincount(number), number


def held_out(geometry: Geometry, wavelength: float) -> list[np.ndarray]:
    """Choose held-out traces for the validation of an image made from the others; none if the survey is too small.

    Returns an array for each shot: bool, one per trace. Two shots less than a wavelength apart record nearly the same
    coherent noise, so that one predicts the noise of the other. Shots are therefore divided into groups a wavelength
    (m) long, and every other group is held out. In 3-D, groups are strips across the longer side of the shots' area. If
    all shots are in one group, receivers are held out in the same way.
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
    """Return a mask of the positions in every other group; groups are at most `width` long."""
    distinct, inverse = np.unique(positions, return_inverse=True)
    group, start = np.zeros(len(distinct), dtype=int), distinct[0]
    for index in range(1, len(distinct)):
        group[index] = group[index - 1]
        if distinct[index] - start >= width:
            group[index], start = group[index] + 1, distinct[index]
    return group[inverse] % 2 == 1
