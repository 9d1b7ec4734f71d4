"""The relaxation of viscoacoustic media in Numba: all mechanisms in one pass over the grid, in several threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import prange

from collops.extend.engines import cached_njit
from collops.seismic.host_kernels import checked_threads, compilation_lock, limited_threads
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.relaxation import RelaxationSteps


class NumbaRelaxationSteps(RelaxationSteps):
    """The steps of NumPy, with the same bits."""

    def __init__(self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None, *medium: Any) -> None:
        super().__init__(tile, slabs, dtype, threads, *medium)
        self._thread_count = checked_threads(threads)
        _compiled(dtype.name)

    def relax(self, signal: np.ndarray, memory: np.ndarray, begin: Sequence[int], out: np.ndarray) -> None:
        """Fill `out` with a filtered signal on the tile, whose first point is at `begin`; memory variables advance."""
        signal, out = (array.reshape(-1, *array.shape[-3:]) for array in (signal, out))
        variables = memory.reshape(len(memory), -1, *memory.shape[-3:])
        with limited_threads(self._thread_count):
            _relax(signal, variables, tuple(begin), self._decays, self._gains, out)


@cache
def _compiled(dtype: str) -> None:
    """Compile the kernel for a type, or load it from the cache on disk. Later calls do not compile."""
    field, variables = np.empty((0, 0, 0, 0), dtype), np.empty((0, 0, 0, 0, 0), dtype)
    with compilation_lock(_relax, "relaxation"):
        _relax(field, variables, (0, 0, 0), np.empty(0, dtype), field, field)


@cached_njit(parallel=True, nogil=True, error_model="numpy")
def _relax_kernel(signal, memory, begin, decays, gains, out):
    """Filter fields in time; memory variables and gains have the mechanisms as first axis, and begin before them.

    Indices are unsigned, since an index that may count from the end would prevent vector instructions.
    """
    fields, planes, rows, n = signal.shape
    for task in prange(fields * planes):
        field, i = np.int64(task) // planes, np.int64(task) % planes
        for j in range(rows):
            source, total, first = signal[field, i, j], out[field, i, j], np.uint64(begin[2])
            for m in range(np.uint64(n)):
                total[m] = source[m]
            for number in range(len(decays)):
                own = memory[number, field, i + begin[0], j + begin[1]]
                gain, decay = gains[number, i + begin[0], j + begin[1]], decays[number]
                for m in range(np.uint64(n)):
                    total[m] += own[first + m]
                    own[first + m] = decay * own[first + m] + gain[first + m] * source[m]


_relax: Any = _relax_kernel
