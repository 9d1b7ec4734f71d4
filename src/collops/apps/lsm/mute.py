"""Silence the direct wave, which a migration of reflections would smear over the shallow image."""

from __future__ import annotations

import numpy as np

from collops.apps.lsm.survey import Geometry

__all__ = ["mute_direct"]


def mute_direct(traces: list[np.ndarray], geometry: Geometry, shots: range, speed: float, duration: float) -> None:
    """Set to zero, in place, what arrives before the direct wave has passed.

    Parameters
    ----------
    traces : list of numpy.ndarray
        One array per shot, shape ``(receivers, samples)``.
    geometry : Geometry
        Positions of all shots.
    shots : range
        The shots that `traces` belong to.
    speed : float
        Of the direct wave in m/s.
    duration : float
        Of the wavelet in seconds. Silence lasts until offset / speed + duration, and fades out for as long
        again.
    """
    times = geometry.times
    for shot, values in zip(shots, traces, strict=True):
        offsets = np.abs(geometry.receivers[shot][0] - geometry.sources[0, shot])
        passed = (times[None, :] - offsets[:, None] / speed - duration) / duration
        fade = np.clip(passed, 0, 1)
        values *= (fade * fade * (3 - 2 * fade)).astype(values.dtype)
