"""Time steps on staggered grids in Numba: each derivative in one pass over the grid, in several threads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import prange

from collops.extend.arrays import LocalArray
from collops.extend.engines import cached_njit
from collops.seismic.host_kernels import checked_threads, compilation_lock, limited_threads
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.density import DensitySteps
from collops.seismic.waves.steps.numba_products import NumbaProducts
from collops.seismic.waves.steps.staggered import Recursion, StaggeredSteps

_ROWS = 16  # of a task


class NumbaStaggeredSteps(StaggeredSteps):
    """The parts of steps on staggered grids, with the same bits as in NumPy; classes also derive from steps."""

    def __init__(self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None, *medium: Any) -> None:
        arguments: Any = (tile, slabs, dtype, threads, *medium)  # of the steps in NumPy
        super().__init__(*arguments)
        self._thread_count = checked_threads(threads)
        self._changes: dict[tuple[int, ...], np.ndarray] = {}
        _compiled(dtype.name, tile.grid.order)

    def _difference(self, x: np.ndarray, start: Sequence[int], shape: Sequence[int], axis: int) -> np.ndarray:
        key = tuple(shape)
        if key not in self._changes:
            self._changes[key] = np.empty(shape, x.dtype)
        self._add_difference(x, start, axis, self._changes[key], False)
        return self._changes[key]

    def _add_difference(self, x: np.ndarray, start: Sequence[int], axis: int, out: np.ndarray, adds: bool) -> None:
        """Fill `out` with a staggered derivative, or add it."""
        self._run(_add_change, x, start, axis, self._weights[axis], out, adds)

    def _decayed(
        self, own: np.ndarray, recursion: Recursion, drive: np.ndarray, begin: Sequence[int], target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        places = (*_flat(drive, begin), *_flat(target, recursion.start))
        with limited_threads(self._thread_count):
            _decay(own, recursion.axis, recursion.a.reshape(-1), recursion.b.reshape(-1), *places)
        return own, target

    def _run(
        self, kernel: Any, x: np.ndarray, start: Sequence[int], axis: int, weights: np.ndarray, *others: Any
    ) -> None:
        flat, begin, strides = _flat(x, start)
        with limited_threads(self._thread_count):
            kernel(flat, begin, strides, strides[axis], tuple(weights), *others)


class NumbaDensitySteps(NumbaProducts, NumbaStaggeredSteps, DensitySteps):
    """The steps of NumPy, with the same bits. Fluxes are in memory that the next step overwrites."""

    def __init__(self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None, *medium: Any) -> None:
        super().__init__(tile, slabs, dtype, threads, *medium)
        more = 2 * self._half - 1
        self._fluxes = {
            axis: np.zeros([n + more * (a == axis) for a, n in enumerate(tile.inner)], dtype) for axis in tile.axes
        }

    def _flux(self, u: np.ndarray, axis: int) -> np.ndarray:
        flux, start = self._fluxes[axis], [self._outside[axis][0] * (a == axis) for a in range(3)]
        out = _flat(flux, start)
        self._run(_fill_flux, u, self._start(axis), axis, self._weights[axis], self._buoyancy[axis], *out)
        return flux

    def _divergence(self, fluxes: dict[int, np.ndarray], out: LocalArray) -> np.ndarray:
        for number, (axis, flux) in enumerate(fluxes.items()):
            start = [self._half if a == axis else 0 for a in range(3)]
            self._add_difference(flux, start, axis, out, number > 0)
        return out


def _flat(x: np.ndarray, start: Sequence[int]) -> tuple[np.ndarray, int, tuple[int, ...]]:
    """Return a flat array, the index of an element in it, and the strides: kernels then have one type for all parts."""
    strides = x.shape[1] * x.shape[2], x.shape[2], 1
    return x.reshape(-1), sum(first * stride for first, stride in zip(start, strides, strict=True)), strides


@cache
def _compiled(dtype: str, order: int) -> None:
    """Compile the kernels for an order, or load them from the cache on disk. Later calls do not compile."""
    empty, weights = np.empty((0, 0, 0), dtype), tuple(np.zeros(order // 2, dtype))
    stencil = empty.reshape(-1), 0, (1, 1, 1), 1, weights
    with compilation_lock(_fill_flux, "density"):
        _fill_flux(*stencil, empty, *stencil[:3])
        _add_change(*stencil, empty, False)
        part = empty.reshape(-1), 0, (1, 1, 1)
        _decay(empty, 0, part[0], part[0], *part, *part)


# The number of weights is known to the compiler, which unrolls their loop, and then uses vector instructions. Indices
# are unsigned, since an index that may count from the end would prevent them.


@cached_njit(parallel=True, nogil=True, error_model="numpy")
def _flux_kernel(x, begin, strides, across, weights, buoyancy, out, start, jumps):
    """Fill a box of the flat array `out` with staggered derivatives of the flat array `x` times the buoyancy."""
    planes, rows, n = buoyancy.shape
    blocks = (rows + _ROWS - 1) // _ROWS
    for task in prange(planes * blocks):
        number = np.int64(task)  # the index of a parallel loop is unsigned
        i, first = number // blocks, number % blocks * _ROWS
        for j in range(first, min(first + _ROWS, rows)):
            base, step = np.uint64(begin + i * strides[0] + j * strides[1]), np.uint64(across)
            to, factors = np.uint64(start + i * jumps[0] + j * jumps[1]), buoyancy[i, j]
            for m in range(np.uint64(n)):
                total = weights[0] * (x[base + m] - x[base + m - step])
                for k in range(1, len(weights)):
                    total += weights[k] * (x[base + m + np.uint64(k) * step] - x[base + m - np.uint64(k + 1) * step])
                out[to + m] = factors[m] * total


@cached_njit(parallel=True, nogil=True, error_model="numpy")
def _change_kernel(x, begin, strides, across, weights, out, adds):
    """Fill `out` with staggered derivatives of the flat array `x`, or add them."""
    planes, rows, n = out.shape
    blocks = (rows + _ROWS - 1) // _ROWS
    for task in prange(planes * blocks):
        number = np.int64(task)
        i, first = number // blocks, number % blocks * _ROWS
        for j in range(first, min(first + _ROWS, rows)):
            base, step, row = np.uint64(begin + i * strides[0] + j * strides[1]), np.uint64(across), out[i, j]
            for m in range(np.uint64(n)):
                total = weights[0] * (x[base + m] - x[base + m - step])
                for k in range(1, len(weights)):
                    total += weights[k] * (x[base + m + np.uint64(k) * step] - x[base + m - np.uint64(k + 1) * step])
                row[m] = row[m] + total if adds else total


@cached_njit(parallel=True, nogil=True, error_model="numpy")
def _decay_kernel(own, axis, a, b, drive, begin, strides, target, start, jumps):
    """Advance a memory variable, and add it to a box of the target; `a` and `b` vary along the axis."""
    planes, rows, n = own.shape
    blocks = (rows + _ROWS - 1) // _ROWS
    for task in prange(planes * blocks):
        number = np.int64(task)
        i, first = number // blocks, number % blocks * _ROWS
        for j in range(first, min(first + _ROWS, rows)):
            row, base = own[i, j], np.uint64(begin + i * strides[0] + j * strides[1])
            to = np.uint64(start + i * jumps[0] + j * jumps[1])
            if axis == 2:
                for m in range(np.uint64(n)):
                    row[m] = b[m] * row[m] + a[m] * drive[base + m]
                    target[to + m] += row[m]
            else:
                place = i if axis == 0 else j
                fed, kept = a[place], b[place]
                for m in range(np.uint64(n)):
                    row[m] = kept * row[m] + fed * drive[base + m]
                    target[to + m] += row[m]


_decay: Any = _decay_kernel
_fill_flux: Any = _flux_kernel
_add_change: Any = _change_kernel
