"""Recorded wavefields: the downgoing one as spectra, the upgoing one in time, each rank its own part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from collops.apps.arrays import open_array, read_rows
from collops.apps.mdd.acquisition import Acquisition
from collops.apps.mdd.options import DOWN_NAMES, UP_NAMES, Options
from collops.errors import InputError

__all__ = ["RecordedFields"]

_BLOCK_BYTES = 64 << 20


class RecordedFields:
    """Downgoing and upgoing field of the same sources, in two files.

    Parameters
    ----------
    options : Options
        Name the files, the sample interval and the spacing of receivers.

    Raises
    ------
    InputError
        If a file cannot be read, or they do not fit together.
    """

    def __init__(self, options: Options) -> None:
        self._paths = Path(str(options.down)), Path(str(options.up))
        self._down, _ = open_array(self._paths[0], DOWN_NAMES)
        self._up, _ = open_array(self._paths[1], UP_NAMES)
        down, up = (tuple(int(n) for n in array.shape) for array in (self._down, self._up))
        for path, shape in zip(self._paths, (down, up), strict=True):
            if len(shape) != 3 or 0 in shape:
                raise InputError(f"{path} has shape {shape}: save a field of shape (sources, receivers, samples)")
        if (down[0], down[2]) != (up[0], up[2]):
            raise InputError(
                f"{self._paths[0]} has shape {down} and {self._paths[1]} {up}: both need the same sources (first axis) "
                "and samples (last axis)"
            )
        if down[2] < 2:
            raise InputError(f"{self._paths[0]} has {down[2]} sample a record: at least 2 are needed")
        interval, spacing = float(options.interval or 0) / 1e3, float(options.spacing or 0)
        self.acquisition = Acquisition(down[0], down[1], up[1], down[2], interval, spacing)

    def power(self, sources: slice) -> np.ndarray:
        """Return the squared amplitude at each frequency, summed over some of the sources and all receivers."""
        power = np.zeros(len(self.acquisition.frequencies))
        for _, spectra in self._blocks(sources):
            power += (np.abs(spectra) ** 2).sum(axis=(0, 1))
        return power

    def spectra(self, share: slice) -> np.ndarray:
        """Return the orthonormal spectra at some of the frequencies, of shape ``(frequencies, sources, receivers)``."""
        size = share.stop - share.start, self.acquisition.sources, self.acquisition.receivers
        result = np.empty(size, dtype=np.complex128)
        for sources, spectra in self._blocks(slice(0, self.acquisition.sources)):
            result[:, sources] = np.moveaxis(spectra[..., share], -1, 0)
        return result

    def upgoing(self, sources: slice) -> np.ndarray:
        """Return the upgoing field of some sources, with zeros after it: ``(times, sources, virtual sources)``."""
        records = _finite(self._up, self._paths[1], sources)
        result = np.zeros((self.acquisition.total, *records.shape[:2]))
        result[: self.acquisition.samples] = np.moveaxis(records, -1, 0)
        return result

    def _blocks(self, sources: slice) -> Iterator[tuple[slice, np.ndarray]]:
        """Read the downgoing field of some sources in pieces of bounded size, and transform them."""
        step = max(1, _BLOCK_BYTES // (8 * self.acquisition.receivers * self.acquisition.samples))
        for first in range(sources.start, sources.stop, step):
            block = slice(first, min(first + step, sources.stop))
            records = _finite(self._down, self._paths[0], block)
            yield block, np.fft.rfft(records, self.acquisition.total, axis=-1, norm="ortho")


def _finite(array: Any, path: Path, sources: slice) -> np.ndarray:
    records = read_rows(array, path, sources).astype(np.float64)
    if not np.isfinite(records).all():
        source, receiver, sample = (int(n) for n in np.argwhere(~np.isfinite(records))[0])
        raise InputError(
            f"{path} is {records[source, receiver, sample]} at source {sources.start + source + 1}, "
            f"receiver {receiver + 1}, sample {sample + 1}: replace what is not a finite number"
        )
    return records
