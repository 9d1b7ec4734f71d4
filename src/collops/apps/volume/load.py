"""Read a volume, each rank its own rows, and find the wavelet that its amplitudes ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collops.apps.memory import check_memory
from collops.apps.stages import local_stage, raised_together
from collops.apps.volume.arrays import DATA_NAMES, ArrayVolume
from collops.apps.volume.cube import Cube, Reader, Volume
from collops.apps.volume.options import VolumeOptions, is_segy
from collops.apps.volume.segy import SegyVolume
from collops.apps.volume.wavelet import from_power, make_wavelet, parse_wavelet
from collops.apps.wavelet import power_spectrum
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["check_size", "open_volume", "read_values", "recorded"]

_INLINE_BYTE, _CROSSLINE_BYTE = 189, 193
_STRENGTH = 0.05
# Arrays of the size of the data that a solver and its results need at once.
_ARRAYS = 12


def recorded(options: VolumeOptions, comm: Communicator) -> Volume:
    """Read data from a file, and choose the wavelet. Collective.

    Raises
    ------
    InputError
        On every rank, if the file or the wavelet cannot be used, also when only one rank sees that.
    """
    path = Path(str(options.volume))
    # Amplitudes whose squares are too large for their type become infinite, which is said below.
    with np.errstate(over="ignore", invalid="ignore"), local_stage(comm):
        interval = None if options.interval is None else options.interval / 1e3
        reader = open_volume(path, options, interval, DATA_NAMES)
        cube = reader.cube
        check_size(cube, comm, options.dtype)
        traces, live = read_values(reader, cube.layout(comm.size).slices(comm.rank)[0], str(path))
        traces = traces.astype(options.dtype)
        kind = parse_wavelet(options.wavelet or "data")
        given = None if kind is None else make_wavelet(kind, cube.samples, cube.interval)
        power = power_spectrum([traces[live]], cube.samples)
        own = np.array([(traces.astype(np.float64) ** 2).sum(), float(live.sum())])
    energy, count = comm.allreduce(own)
    power = comm.allreduce(power)
    notes = [f"read {cube.describe()}", *reader.notes]
    with raised_together():
        if not np.isfinite(energy):
            raise InputError(f"the amplitudes of {path} are too large for {options.dtype}: scale the data")
        if not energy:
            raise InputError(
                f"{path} holds nothing but zeros, or numbers whose squares are zero: there is nothing to invert"
            )
        wavelet = from_power(power, cube.samples, cube.interval) if given is None else given
    if given is None:
        notes.append(
            f"wavelet: zero phase, {len(wavelet)} samples, with the amplitude spectrum of the data (--wavelet)"
        )
    if not isinstance(kind, Path):
        # No well ties the amplitudes to reflection coefficients: something has to be assumed.
        strength = options.strength or _STRENGTH
        wavelet = wavelet / np.linalg.norm(wavelet) * np.sqrt(energy / (count * cube.samples)) / strength
        notes.append(f"amplitudes: reflection coefficients of {strength:g} (rms) are assumed (--strength)")
    return Volume(cube, traces, live, wavelet, notes=notes)


def open_volume(path: Path, options: VolumeOptions, interval: float | None, names: tuple[str, ...]) -> Reader:
    """Open a file of any kind that holds a volume, and read where its traces stand.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    options : VolumeOptions
        Where a SEG-Y file has its numbers.
    interval : float or None
        Seconds between samples, in place of what the file says.
    names : tuple of str
        What the array of a Zarr group is called.

    Raises
    ------
    InputError
        If the file cannot be read as a volume.
    """
    if is_segy(path):
        return SegyVolume(
            path, options.inline_byte or _INLINE_BYTE, options.crossline_byte or _CROSSLINE_BYTE, interval
        )
    return ArrayVolume(path, interval, names)


def read_values(reader: Reader, rows: slice, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Read rows of a volume, and which traces are there.

    Raises
    ------
    InputError
        If a sample is not a finite number.
    """
    values, live = reader.read(rows)
    if not np.isfinite(values).all():
        *place, sample = (int(n) for n in np.argwhere(~np.isfinite(values))[0])
        place[0] += rows.start
        where = ", ".join(
            f"{axis.name} {axis.values[number]}" for axis, number in zip(reader.cube.lateral, place, strict=True)
        )
        raise InputError(
            f"{name} is {values[(place[0] - rows.start, *place[1:], sample)]} at {where}, sample {sample + 1}: "
            "replace what is not a finite number"
        )
    return values, live


def check_size(cube: Cube, comm: Communicator, dtype: str) -> None:
    """Raise if this rank's part of the arrays on a cube exceeds the memory.

    Raises
    ------
    InputError
        Naming the size.
    """
    rows = -(-cube.shape[0] // comm.size)
    check_memory(
        _ARRAYS * rows * int(np.prod(cube.shape[1:])) * np.dtype(dtype).itemsize,
        f"the arrays of {cube.describe()} on {comm.size} ranks",
        "choose a smaller volume or more nodes",
    )
