"""The impedance that a post-stack inversion starts from: constant, smooth, or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.poststack.options import BACKGROUND_NAMES, Options, parse_background
from collops.apps.stages import local_stage
from collops.apps.volume.cube import Volume
from collops.apps.volume.load import open_volume, read_values
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["log_background"]

# Frequencies below about 5 Hz, which the data do not hold, are what a background is there for.
_SMOOTH_SECONDS = 0.06


def log_background(options: Options, volume: Volume, comm: Communicator) -> np.ndarray:
    """Return the logarithm of the background on this rank's part of the volume. Collective.

    Raises
    ------
    InputError
        On every rank, if the background has another shape than the volume, or is not positive and finite.
    """
    with local_stage(comm):
        if options.background is not None:
            kind = parse_background(options.background)
        else:
            kind = 1.0 if volume.truth is None else None
        if isinstance(kind, Path):
            values = np.log(_read(kind, options, volume, comm)).astype(volume.traces.dtype)
        elif kind is not None:
            values = np.full_like(volume.traces, np.log(kind))
        else:
            values = _smooth(volume)
    return values


def _smooth(volume: Volume) -> np.ndarray:
    from scipy.ndimage import gaussian_filter1d

    if volume.truth is None or not volume.truth.size:
        return np.zeros_like(volume.traces)
    return gaussian_filter1d(volume.truth, _SMOOTH_SECONDS / volume.cube.interval, axis=-1, mode="nearest")


def _read(path: Path, options: Options, volume: Volume, comm: Communicator) -> np.ndarray:
    cube = volume.cube
    reader = open_volume(path, options, cube.interval, BACKGROUND_NAMES)
    if reader.cube.shape != cube.shape:
        raise InputError(f"{path} has shape {reader.cube.shape}, but the volume is {cube.shape}: resample it")
    values, live = read_values(reader, cube.layout(comm.size).slices(comm.rank)[0], str(path))
    if not live.all() or (values <= 0).any():
        raise InputError(f"{path} has impedances that are missing or not positive: fill them in")
    return values
