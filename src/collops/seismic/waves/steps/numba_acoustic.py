"""Time steps in Numba: rows in explicit vector instructions, blocks of rows on several threads.

A task is a block of rows along the second axis, and marches along the first, so that the planes that the stencil needs
stay in the cache. Each point takes the operations of the NumPy steps, in the same order and without contraction:
results depend neither on the tiles, nor on the threads, nor on which of the two kernels computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import prange

from collops.extend.engines import cached_njit
from collops.seismic.host_kernels import checked_threads, compilation_lock, limited_threads
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.numba_products import NumbaProducts
from collops.seismic.waves.steps.numba_vectors import (
    add_adjoint,
    address,
    advance_psi,
    advance_zeta,
    entry,
    laplacian_rows,
    leap_rows,
    mirror_rows,
    product_rows,
    recede_r,
    recede_t,
)
from collops.seismic.waves.steps.vti import VTISteps

_CACHE_BYTES = 5 << 16  # of the planes of the field that a task needs: a third of a common L2 cache
_VECTOR_BYTES = 64
_COLUMNS = 11  # of the table of slabs
# What is done at the rows of a layer: memory variables are advanced, or added to the field.
_PSI, _ZETA, _T, _R, _ADD = range(5)
_FORWARD, _ADJOINT = _ZETA, _ADD
_OPTIONS: dict = {"nogil": True, "error_model": "numpy"}


@cached_njit(**_OPTIONS)
def _layers(work, axes, sizes, i, rows, u, memory, total, to, layers, tile, strides):
    """Do the work of the layers across some axes at a range of rows of plane i.

    `total` has the sums of these rows, from index `to` on.
    """
    lanes, half, _ = sizes
    count, table, a, b, numbers, _ = layers
    n, origin, width = tile[2], tile[3], len(lanes)
    arrays = memory[0], memory[1], u, total, numbers, a, b
    for s in range(count):
        own = s * _COLUMNS
        axis = entry(table, own)
        # The field changes by half a stencil beside the layer.
        limits = own + (1 if work in (_ZETA, _ADD) else 3)
        low, high = entry(table, limits), entry(table, limits + 1)
        if not axes[0] <= axis <= axes[1] or (axis == 0 and not low <= i < high):
            continue
        j, after = (max(rows[0], low), min(rows[1], high)) if axis == 1 else rows
        k, length, along = (low, high - low, 1) if axis == 2 else (0, n, 0)
        at = entry(table, own + 5) + i * entry(table, own + 6) + j * entry(table, own + 7) + k
        base, place = origin + i * strides[0] + j * strides[1] + k, entry(table, own + 9)
        place += k if axis == 2 else (i if axis == 0 else j) * width
        places = at, at, base, to + (j - rows[0]) * n + k, entry(table, own + 10), place, place
        apart = strides[1], entry(table, own + 7), n, width if axis == 1 else 0
        size, distances = (after - j, length), (strides[axis], entry(table, own + 6 + axis), *apart)
        if work == _PSI:
            advance_psi(lanes, half, size, arrays, places, distances, along)
        elif work == _ZETA:
            advance_zeta(lanes, half, size, arrays, places, distances, along)
        elif work == _T:
            recede_t(lanes, half, size, arrays, places, distances, along)
        elif work == _R:
            recede_r(lanes, half, size, arrays, places, distances, along)
        else:
            add_adjoint(lanes, half, size, arrays, places, distances, along)


@cached_njit(**_OPTIONS)
def _rows(work, task, sizes, fields, scratch, layers, tile, strides, steps):
    """Compute the rows of a task, a range; see `_sweep`.

    Memory variables across the first axis are advanced ahead of the field, since their derivatives are needed.
    """
    lanes, half, unit = sizes
    u, before, memory, c, w, x, y = fields
    planes, rows, n, origin, mirrored, ahead, lowest = tile
    count, pitch = task[1] - task[0], strides[1]
    size = count, n
    direct = w != 0 and (work == _FORWARD or before == 0)
    total = w if direct else address(scratch)
    for i in range(-ahead if work == _FORWARD else -2 * ahead, planes):
        base, flat = origin + i * strides[0] + task[0] * pitch, (i * rows + task[0]) * n
        to = flat if direct else 0
        # Memory variables across the first axis, across others, and the field: one call of `_layers` in the program, as
        # the compiler takes longer for each.
        for part in range(5 if i >= 0 else 2):
            axes = (0, 0) if part < 2 else (lowest if part < 4 else 0, 2)
            stage = work if part == 4 else _PSI if work == _FORWARD else _T if part % 2 == 0 else _R
            if part == 2:
                mirror_rows(lanes, (count, mirrored), (u,), (base,), (pitch,))
            elif part == 4:
                arrays, places = (total, u, before, c, layers[4]), (to, base, base, flat, layers[5])
                laplacian_rows(lanes, half, unit, size, arrays, places, steps, (pitch, n))
            elif stage == _PSI and part % 2 == 1:
                continue
            plane = i if part > 1 else i + (2 * ahead if stage == _T else ahead)
            _layers(stage, axes, sizes, plane, task, u, memory, total, to, layers, tile, strides)
        if i >= 0 and before != 0:
            if work == _ADJOINT:
                product_rows(lanes, size, (x, u, w), (flat, base, flat), (n, pitch, n))
            leap_rows(lanes, size, (before, u, c, total), (base, base, flat, to), (pitch, n))
            if work == _FORWARD and x != 0:
                product_rows(lanes, size, (before, x, y), (base, flat, flat), (pitch, n, n))


@cached_njit(parallel=True, **_OPTIONS)
def _sweep(
    work, edges, lanes, half, unit, u, before, memory, c, w, x, y, slabs, a, b, coefficients, tile, strides, steps
):
    """Do a step on all rows of a tile, or a part of it; task k has the rows from ``edges[k]`` to before the next edge.

    `memory` has a row of psi and one of zeta, or of r and t; see the NumPy steps. Other arrays are flat, and empty if
    they are omitted. Forward, `w` receives the Laplacian, and `x` times `y` is added to the result. In the adjoint,
    `w` is the Laplacian, and `x` the image; without `before`, `w` receives the transposed Laplacian. Other work than a
    step is done in the layers across the second axis. The compiler knows the lengths of `lanes`, `half` and `unit`.
    """
    for number in prange(len(edges) - 1):
        task, sizes = (edges[number], edges[number + 1]), (lanes, half, unit)
        both = address(memory[0]), address(memory[1])
        start = coefficients.size - 1 - len(steps) * len(half)
        layers = len(slabs), address(slabs), address(a), address(b), address(coefficients), start
        if work in (_FORWARD, _ADJOINT):
            one, two = address(before) if before.size else 0, address(w) if w.size else 0  # 0 if omitted
            fields = address(u), one, both, address(c), two, address(x) if x.size else 0, address(y)
            scratch = np.empty((task[1] - task[0]) * tile[2], u.dtype)
            _rows(work, task, sizes, fields, scratch, layers, tile, strides, steps)
        else:
            for i in range(tile[0]):
                _layers(work, (1, 1), sizes, i, task, address(u), both, 0, 0, layers, tile, strides)


@cache
def _compiled(dtype: str, order: int, ndim: int, last: int) -> None:
    """Compile the kernel for a type of grids, or load it from the cache on disk. Later calls do not compile.

    `last` is the distance of neighbours along the last axis.
    """
    none, steps = np.empty(0, dtype), (last,) * ndim
    table = np.zeros(1, np.int64), _sizes(none.dtype, order, steps)
    arrays: Any = none, none, np.empty((2, 0), dtype), *[none] * 4, np.empty((0, _COLUMNS), np.int64), none, none, none
    sweep: Any = _sweep
    with compilation_lock(sweep, "waves"):
        sweep(_FORWARD, table[0], *table[1], *arrays, (0,) * 7, (0, 0, 1), steps)


def _sizes(dtype: np.dtype, order: int, steps: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return tuples as long as a vector and as half a stencil, and one that is empty if no axis is contiguous."""
    return (dtype.type(0),) * (_VECTOR_BYTES // dtype.itemsize), (0,) * (order // 2), (0,) * (steps[-1] == 1)


class Steps(NumbaProducts):
    """The steps of :class:`collops.seismic.waves.steps.acoustic.Steps`, with the same parameters, compiled."""

    def __init__(
        self,
        tile: Tile,
        slabs: Sequence[Slab],
        dtype: np.dtype,
        threads: int | None,
        axes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(tile, dtype)
        axes = tile.axes if axes is None else axes
        slabs = [slab for slab in slabs if slab.axis in axes]
        self._thread_count = threads = checked_threads(threads)
        strides = tuple(math.prod(tile.shape[axis + 1 :]) for axis in range(3))
        steps = tuple(strides[axis] for axis in axes)
        origin = sum(width * stride for width, stride in zip(tile.halo, strides, strict=True))
        half = tile.grid.order // 2
        edges = _edges(tile, dtype, threads)
        self._shared = any(slab.axis == 1 and slab.zone[0] < edge < slab.zone[1] for slab in slabs for edge in edges)
        lowest = 2 if self._shared else 1
        mirrored = half if tile.surface and 2 in axes else 0
        ahead = half if any(slab.axis == 0 for slab in slabs) else 0
        self._constants: Any = (
            *_tables(slabs, axes, dtype),
            _coefficients(tile, dtype, axes),
            (*tile.inner, origin, mirrored, ahead, lowest),
            strides,
            steps,
        )
        self._sizes = edges, *_sizes(dtype, tile.grid.order, steps)
        self._none = np.empty(0, dtype)
        _compiled(dtype.name, tile.grid.order, len(axes), min(steps[-1], 2))

    def forward(
        self,
        u: np.ndarray,
        before: np.ndarray,
        memory: np.ndarray,
        c: np.ndarray,
        stored: np.ndarray | None = None,
        scatter: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        """Replace the field `before` by the field after `u`."""
        x, y = (self._none, self._none) if scatter is None else scatter
        w = self._none if stored is None else stored
        self._run((_PSI, _FORWARD), u, before, memory, c, w, x, y)

    def adjoint(
        self, u: np.ndarray, before: np.ndarray, memory: np.ndarray, c: np.ndarray, w: np.ndarray, image: np.ndarray
    ) -> None:
        """Replace `before` by the adjoint field at the time before `u`, and add the product of `u` and `w` to `image`.

        Both fields are multiplied by c.
        """
        self._run((_T, _R, _ADJOINT), u, before, memory, c, w, image, self._none)

    def laplacian(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, on the tile, with the Laplacian of a field with halo."""
        none = self._none
        self._run((_PSI, _FORWARD), u, none, memory, none, out, none, none)

    def transposed(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the transpose of the Laplacian, applied to a field with halo."""
        none = self._none
        self._run((_T, _R, _ADJOINT), u, none, memory, none, out, none, none)

    def _run(self, stages: Sequence[int], u: np.ndarray, before: np.ndarray, memory: np.ndarray, *others: Any) -> None:
        arrays = u.reshape(-1), before.reshape(-1), memory, *(array.reshape(-1) for array in others)
        sweep: Any = _sweep
        with limited_threads(self._thread_count):
            for stage in stages if self._shared else stages[-1:]:
                sweep(stage, *self._sizes, *arrays, *self._constants)


class NumbaVTISteps(NumbaProducts, VTISteps):
    """The steps of :class:`VTISteps` with compiled products; parameters likewise, and the number of threads."""

    def __init__(self, tile: Tile, dtype: np.dtype, threads: int | None, horizontal: Any, vertical: Any) -> None:
        super().__init__(tile, dtype, horizontal, vertical)
        self._thread_count = checked_threads(threads)


def _edges(tile: Tile, dtype: np.dtype, threads: int) -> np.ndarray:
    """Return the first rows of the tasks, and the number of rows: as many tasks for each thread."""
    half, rows = tile.grid.order // 2, tile.inner[1]
    planes = 2 * half + 1 if tile.inner[0] > 1 else 1
    block = max(16, _CACHE_BYTES // (planes * tile.shape[2] * dtype.itemsize) - 2 * half)
    tasks = threads * max(1, round(rows / (block * threads)))
    return np.arange(tasks + 1) * rows // tasks


def _coefficients(tile: Tile, dtype: np.dtype, axes: Sequence[int]) -> np.ndarray:
    """Return the coefficients of the derivatives along each axis, then of the Laplacian, one after the other."""
    centers, seconds, firsts = tile.stencils(dtype, axes)
    parts = np.concatenate([centers[:, np.newaxis], seconds, firsts], axis=1)
    return np.concatenate([parts.ravel(), [centers.sum(dtype=dtype)], seconds.ravel()]).astype(dtype)


def _tables(slabs: Sequence[Slab], axes: Sequence[int], dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """Return a table with a row of integers for each slab, and the profiles of all: `a` and `b`.

    A row has the axis, the zone, the layer, the index of the origin of the tile in the memory, the strides there, the
    index of the origin in the profiles, and the index of the coefficients. Profiles that do not vary along rows have
    each value as often as a vector has elements.
    """
    width, table, profiles, size = _VECTOR_BYTES // dtype.itemsize, [], [np.empty((2, 0), dtype)], 0
    for slab in slabs:
        times = 1 if slab.axis == 2 else width
        strides = math.prod(slab.shape[1:]), slab.shape[2], 1
        inside = np.flatnonzero((slab.a != 0) | (slab.b != 0))
        layer = slab.begin + inside[0], slab.begin + inside[-1] + 1
        origins = slab.offset - slab.begin * strides[slab.axis], *strides, size - slab.begin * times
        start = axes.index(slab.axis) * (1 + 2 * (slab.zone[0] - slab.begin))
        table.append((slab.axis, *slab.zone, *layer, *origins, start))
        profiles.append(np.repeat([slab.a, slab.b], times, axis=1))
        size += profiles[-1].shape[1]
    a, b = np.concatenate(profiles, axis=1)
    return np.array(table, np.int64).reshape(len(slabs), _COLUMNS), a, b
