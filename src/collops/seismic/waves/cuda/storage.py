"""Wavefields and checkpoints of a device: in its memory, and what does not fit there in pinned memory of the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine, free_memory, memory_of
from collops.extend.engines import engine as engine_called
from collops.seismic.waves.compression import CompressedFields, compressed_bytes
from collops.seismic.waves.storage import Storage

_USED = 0.9  # maximum part of the device's free memory for wavefields and checkpoints


class CudaStorage:
    """Memory for the wavefields of a segment of steps. Checkpoints leave the device first: they are copied rarely.

    Compressed wavefields are all on the device, and count as far ones.

    Parameters
    ----------
    storage : Storage
        What is stored.
    shape, dtype
        Of a wavefield.
    state : int
        Bytes of a checkpoint.
    engine : Engine
        Of the arrays on the device.

    Attributes
    ----------
    near : array
        The first wavefields, on the device.
    buffer : array
        One of the others, which are far, while it is computed or used.
    checkpoints_far : bool
        Whether checkpoints are on the host.

    Raises
    ------
    InputError
        If the host has too little memory, or the device for compressed wavefields.
    """

    def __init__(self, storage: Storage, shape: tuple[int, ...], dtype: np.dtype, state: int, engine: Engine) -> None:
        points, xp = math.prod(shape), engine.xp
        free, field = int(_USED * free_memory(engine)), points * dtype.itemsize
        checkpoints = storage.checkpoints * state
        if storage.bits is not None:
            needed = field + storage.wavefields * compressed_bytes(points, dtype, storage.bits)
            if needed > free:
                raise InputError(
                    f"compressed wavefields need {needed / 1e9:.3g} GB of the device's memory, of which "
                    f"{free / 1e9:.3g} GB are free: pass memory= to store fewer of them"
                )
            self.checkpoints_far = needed + checkpoints > free
            _check_host(checkpoints * self.checkpoints_far)
            self._far: Any = CompressedFields(storage.wavefields, shape, dtype, storage.bits, xp)
            self.near, self.buffer = xp.empty((0, *shape), dtype), self._far.space(0)
            return
        self.checkpoints_far = checkpoints + storage.wavefields * field > free
        count = storage.wavefields
        if self.checkpoints_far:
            # One buffer more, if not all fit.
            count = min(count, free // field) if count * field <= free else max(0, free // field - 1)
        left = storage.wavefields - count
        _check_host(left * field + checkpoints * self.checkpoints_far)
        self.near = xp.empty((count, *shape), dtype)
        self.buffer = xp.empty(shape if left else 0, dtype)
        self._far = _FarFields(empty_on_host((left, *shape), dtype), self.buffer)

    def store(self, number: int) -> None:
        """Store the far wavefield that was computed in the buffer."""
        self._far.store(number)

    def load(self, number: int) -> None:
        """Put a far wavefield into the buffer."""
        self._far.load(number)


def _check_host(needed: int) -> None:
    """Raise InputError if wavefields and checkpoints need more memory than the host has."""
    limit = memory_of(engine_called("numpy"))
    if needed > limit:
        raise InputError(
            f"wavefields and checkpoints need {needed / 1e9:.3g} GB of the host's memory besides the device's, but "
            f"the limit is {limit / 1e9:.3g} GB: pass memory= to store fewer of them"
        )


class _FarFields:
    """Wavefields on the host, copied through a buffer on the device."""

    def __init__(self, fields: np.ndarray, buffer: LocalArray) -> None:
        self._fields, self._buffer = fields, buffer

    def store(self, number: int) -> None:
        download(self._buffer, self._fields[number])

    def load(self, number: int) -> None:
        upload(self._buffer, self._fields[number])


def empty_on_host(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return memory of the host that the device copies fast."""
    count = math.prod(shape)
    if not count:
        return np.empty(shape, dtype)
    import cupy

    return np.frombuffer(cupy.cuda.alloc_pinned_memory(count * dtype.itemsize), dtype, count).reshape(shape)


def download(array: LocalArray, out: np.ndarray) -> None:
    """Copy an array to the host."""
    array.get(out=out)


def upload(array: LocalArray, values: np.ndarray) -> None:
    """Copy an array of the host to one on the device."""
    array.set(values)
