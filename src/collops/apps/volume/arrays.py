"""Volumes and sections as plain arrays: NumPy files and Zarr stores, of which each rank reads its own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from collops.apps.volume.cube import Axis, Cube
from collops.errors import InputError

__all__ = ["DATA_NAMES", "ArrayVolume", "is_zarr", "open_array"]

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
        try:
            values = np.asarray(self._array[rows])
        except (OSError, ValueError, RuntimeError) as problem:
            raise InputError(f"{self._path} cannot be read ({problem}): it is damaged, copy it again") from None
        return values, np.ones(values.shape[:-1], dtype=bool)


def is_zarr(path: Path) -> bool:
    """Return whether a path names a Zarr store, or an array inside one."""
    return any(part.endswith(".zarr") for part in path.parts) or (path / "zarr.json").is_file()


def open_array(path: Path, names: tuple[str, ...]) -> tuple[Any, Any]:
    """Open an array of real numbers without reading it.

    Parameters
    ----------
    path : pathlib.Path
        A .npy file, a Zarr array, or a Zarr group.
    names : tuple of str
        Which array of a group is wanted, in order of preference; else its only array of two or three axes.

    Returns
    -------
    array, zarr.Group or None
        The array, and the group that it lies in.

    Raises
    ------
    InputError
        If there is no such array.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist: check the name")
    array, group = _open_zarr(path, names) if is_zarr(path) else (_open_npy(path), None)
    if np.dtype(array.dtype).kind not in "fiu":
        raise InputError(f"{path} holds {array.dtype}: save real numbers")
    return array, group


def _open_npy(path: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as problem:
        raise InputError(f"{path} is no NumPy file of numbers, or is damaged ({problem}): save it again") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} is an archive of arrays: save the one array alone with numpy.save")
    return array


def _open_zarr(path: Path, names: tuple[str, ...]) -> tuple[Any, Any]:
    import zarr

    try:
        node = zarr.open(str(path), mode="r")
        if isinstance(node, zarr.Array):
            return node, None
        arrays = dict(node.arrays())
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise InputError(f"{path} cannot be read as Zarr ({problem}): name the folder of an array or a group") from None
    several = [name for name, array in arrays.items() if array.ndim in (2, 3)]
    chosen = next((name for name in names if name in arrays), several[0] if len(several) == 1 else None)
    if chosen is None:
        found = ", ".join(sorted(several)) or "none of two or three axes"
        raise InputError(f"{path} holds the arrays {found}: name one, such as {path}/{(several or names)[0]}")
    return arrays[chosen], node


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
