"""Volumes and sections in SEG-Y: the grid from inline and crossline numbers, and each rank's own rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from collops.apps.segy import TIMING, SegyFile, live_traces, sample_interval, start_time
from collops.apps.volume.cube import Axis, Cube
from collops.errors import InputError

__all__ = ["SegyVolume"]

# A grid that is emptier than this is no grid: its numbers mean something else.
_MOST_POINTS_PER_TRACE = 20


class SegyVolume:
    """A post-stack SEG-Y file.

    Traces are put on the grid of the inline and crossline numbers that occur. Where only one of them varies, or none
    does, the file is a section: its traces follow the number that varies, or the order in the file.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    inline_byte, crossline_byte : int
        Where the trace headers hold these numbers, counted from 1.
    interval : float, optional
        Seconds between samples, in place of what the headers say.

    Raises
    ------
    InputError
        If the file is not whole, or its headers describe no grid.
    """

    def __init__(self, path: Path, inline_byte: int, crossline_byte: int, interval: float | None = None) -> None:
        import segyio

        self._file = SegyFile.inspect(path)
        fields = {int(value): name for name, value in vars(segyio.TraceField).items() if isinstance(value, int)}
        names = [
            _field(fields, byte, option) for byte, option in ((inline_byte, "inline"), (crossline_byte, "crossline"))
        ]
        headers = self._file.headers(*dict.fromkeys([*names, *TIMING]))
        live = live_traces(headers)
        if not live.any():
            raise InputError(f"{path} has no live seismic traces: all are marked as dead or auxiliary")
        numbers = np.flatnonzero(live)
        headers = {name: values[live] for name, values in headers.items()}
        inlines, crosslines = (headers[name] for name in names)
        self.notes: list[str] = []
        varying = [
            (name, values) for name, values in (("inline", inlines), ("crossline", crosslines)) if np.ptp(values) > 0
        ]
        if not varying:
            varying = [("trace", numbers + 1)]
            self.notes.append(
                f"{path} has one inline and one crossline number: its traces are a section, in their order "
                "(--inline-byte, --crossline-byte)"
            )
        elif len(varying) == 1:
            # What does not vary says which section it is, what varies names its traces.
            self.notes.append(f"{path} is a section of {len(numbers)} traces along its {varying[0][0]} numbers")
        lateral = [(name, *np.unique(values, return_inverse=True)) for name, values in varying]
        shape = tuple(len(values) for _, values, _ in lateral)
        points = int(np.prod(shape))
        if points > _MOST_POINTS_PER_TRACE * len(numbers):
            raise InputError(
                f"{path} has {len(numbers)} traces for {' x '.join(map(str, shape))} inline and crossline numbers, "
                "which is no grid: name the bytes that hold them with --inline-byte and --crossline-byte"
            )
        places = np.ravel_multi_index([inverse.reshape(-1) for _, _, inverse in lateral], shape)
        if len(np.unique(places)) < len(places):
            raise InputError(
                f"{path} has several traces at one inline and crossline: is it stacked, and do --inline-byte and "
                "--crossline-byte name the bytes of these numbers?"
            )
        self._trace_at = np.full(points, -1, dtype=np.int64)
        self._trace_at[places] = numbers
        self._trace_at = self._trace_at.reshape(shape)
        if points > len(numbers):
            self.notes.append(f"{points - len(numbers)} of {points} grid points have no trace")
        self.cube = Cube(
            tuple(Axis(name, values) for name, values, _ in lateral),
            self._file.samples,
            sample_interval(self._file, headers) if interval is None else interval,
            start_time(self._file, headers),
        )

    def read(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return traces of some rows along the first axis, and which of them are there; missing ones are zero."""
        wanted = self._trace_at[rows]
        live = wanted >= 0
        traces = self._file.read(wanted[live])
        result = np.zeros((*wanted.shape, self.cube.samples), traces.dtype)
        result[live] = traces
        return result, live


def _field(fields: dict[int, str], byte: int, option: str) -> str:
    if byte not in fields:
        raise InputError(
            f"--{option}-byte {byte} is not where a number of the trace header begins: take 189 or 193, say"
        )
    return fields[byte]
