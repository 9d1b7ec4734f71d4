"""Volumes and sections as plain arrays, in NumPy files and Zarr stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from collops.apps.arrays import open_array, read_rows
from collops.apps.volume.cube import Axis, Cube
from collops.errors import InputError

__all__ = ["DATA_NAMES", "ArrayVolume"]

DATA_NAMES = ("data", "seismic", "amplitude")
"""What the data are called in a Zarr group."""

_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3}


class ArrayVolume:
    """A volume of shape (inlines, crosslines, samples), or a section of shape (traces, samples).

    An array in a Zarr group has the coordinates that belong to it by the names of its axes, as xarray writes them.

    Parameters
    ----------
    path : pathlib.Path
        A .npy file or a Zarr store.
    interval : float, optional
        Seconds between samples, in place of what the store says.
    names : tuple of str
        See `open_array`.

    Raises
    ------
    InputError
        If there is no such array, or nothing says its sample interval.
    """

    def __init__(self, path: Path, interval: float | None = None, names: tuple[str, ...] = DATA_NAMES) -> None:
        self._path = path
        self.notes: list[str] = []
        self._array, group = open_array(path, names)
        shape = tuple(self._array.shape)
        if len(shape) not in (2, 3) or 0 in shape:
            raise InputError(
                f"{path} holds an array of shape {shape}: save a volume of shape (inlines, crosslines, samples) "
                "or a section of shape (traces, samples)"
            )
        named = _coordinates(self._array, group)
        start = 0.0
        if len(shape) - 1 in named:
            _, times, unit = named[len(shape) - 1]
            times = times * _SECONDS.get(unit, 1.0)
            start = float(times[0])
            if interval is None and len(times) > 1:
                interval = float(times[-1] - times[0]) / (len(times) - 1)
        if interval is None:
            raise InputError(f"{path} does not say its sample interval: give it in milliseconds with --interval")
        standard = ("trace",) if len(shape) == 2 else ("inline", "crossline")
        lateral = tuple(
            Axis(*named[axis][:2]) if axis in named else Axis(standard[axis], np.arange(extent) + 1)
            for axis, extent in enumerate(shape[:-1])
        )
        # Rounded to a nanosecond: differences of times carry rounding errors that no file means.
        self.cube = Cube(lateral, shape[-1], round(interval, 9), start)

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return traces of some rows along the first axis, all of which are there."""
        values = read_rows(self._array, self._path, rows)
        return values, np.ones(values.shape[:-1], dtype=bool)


def _coordinates(array: Any, group: Any) -> dict[int, tuple[str, np.ndarray, str]]:
    """Return the names, values and units of those axes whose coordinates lie beside an array, by axis."""
    names = None if group is None else array.metadata.dimension_names
    if group is None or names is None:
        return {}
    present = {
        axis: (name, group[name])
        for axis, name in enumerate(names)
        if name is not None and name in group and group[name].shape == (array.shape[axis],)
    }
    return {axis: (name, found[...], str(found.attrs.get("units", "s"))) for axis, (name, found) in present.items()}
