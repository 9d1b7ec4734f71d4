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
    advance_psi,
    advance_zeta,
    elements,
    recede_r,
    recede_t,
    stencil,
)
from collops.seismic.waves.steps.vti import VTISteps

_ROW_BLOCK = 16  # rows of a task: with the planes of the stencil, they fit the L2 cache
_VECTOR_BYTES = 64
_COLUMNS = 8  # of the table of slabs
# Stages of a step: memory variables first, then the field.
_FIRST, _FIRST_ADJOINT, _SECOND_ADJOINT, _FORWARD, _ADJOINT = range(5)
_OPTIONS: dict = {"nogil": True, "error_model": "numpy"}


@cached_njit(**_OPTIONS)
def _row(lanes, out, to, source, begin, n, strides, center, weights, first, places, odd):
    """Fill n elements of `out` with a stencil of `source`, whose coefficients are ``len(places)`` of `weights`."""
    sides = elements(places, weights, first)
    width, k = len(lanes), 0
    while k + width <= n:
        stencil(lanes, out, to + k, source, begin + k, strides, center, sides, odd)
        k += width
    if k < n and n >= width:  # the last vector overlaps the one before
        stencil(lanes, out, to + n - width, source, begin + n - width, strides, center, sides, odd)
        k = n
    while k < n:
        stencil((0,), out, to + k, source, begin + k, strides, center, sides, odd)
        k += 1


# Arrays are passed one by one: references in a tuple are counted, which takes longer than the work on a vector.


@cached_njit(forceinline=True, **_OPTIONS)
def _layer_row(stage, lanes, fewer, first, second, u, total, a, b, at, base, to, place, part, stencils, crosses):
    """Do a stage at a part of a row in the zone of a layer, from its first point to the point after its last."""
    k, end = part
    while k < end:
        places = at + k, base + k, to + k, place + k if len(crosses) else place
        if k + len(lanes) <= end:
            _layer_vector(stage, lanes, first, second, u, total, a, b, places, stencils, crosses)
            k += len(lanes)
        elif k + len(fewer) <= end:
            _layer_vector(stage, fewer, first, second, u, total, a, b, places, stencils, crosses)
            k += len(fewer)
        else:
            _layer_vector(stage, (0,), first, second, u, total, a, b, places, stencils, crosses)
            k += 1


@cached_njit(forceinline=True, **_OPTIONS)
def _layer_vector(stage, lanes, first, second, u, total, a, b, places, stencils, crosses):
    """Do a stage at ``len(lanes)`` points of a row."""
    at, index, to, place = places
    if stage == _FIRST:
        advance_psi(lanes, first, second, at, u, index, total, to, *stencils, a, b, place, crosses)
    elif stage == _FORWARD:
        advance_zeta(lanes, first, second, at, u, index, total, to, *stencils, a, b, place, crosses)
    elif stage == _SECOND_ADJOINT:
        recede_t(lanes, first, second, at, u, index, total, to, *stencils, a, b, place, crosses)
    elif stage == _FIRST_ADJOINT:
        recede_r(lanes, first, second, at, u, index, total, to, *stencils, a, b, place, crosses)
    else:
        add_adjoint(lanes, first, second, at, u, index, total, to, *stencils, a, b, place, crosses)


# Rows are elements of flat arrays from an index on. Indices are unsigned: the compiler vectorises these loops only
# where an index cannot count from the end.


@cached_njit(**_OPTIONS)
def _leap(before, u, base, c, flat, w, to, n):
    """Compute a row of the next field."""
    base, flat, to, two = np.uint64(base), np.uint64(flat), np.uint64(to), before.dtype.type(2)
    for k in range(np.uint64(n)):
        before[base + k] = (two * u[base + k] - before[base + k]) + c[flat + k] * w[to + k]


@cached_njit(**_OPTIONS)
def _add_product(total, to, x, begin, y, first, n):
    to, begin, first = np.uint64(to), np.uint64(begin), np.uint64(first)
    for k in range(np.uint64(n)):
        total[to + k] += x[begin + k] * y[first + k]


@cached_njit(**_OPTIONS)
def _rows(
    stage,
    task,
    lanes,
    fewer,
    u,
    before,
    memory,
    c,
    w,
    x,
    y,
    tile,
    slabs,
    a,
    b,
    strides,
    steps,
    centers,
    seconds,
    firsts,
    half,
    sides,
):
    """Compute the rows of a task; see `_sweep`."""
    planes, rows, n, origin, block, mirrored = tile
    first, second = memory
    to, scratch, leaps = 0, np.empty(n, u.dtype), before.size > 0
    total = scratch if w.size == 0 or (stage == _ADJOINT and leaps) else w
    for i in range(planes):
        for j in range(task * block, min(rows, task * block + block)):
            base, flat = origin + i * strides[0] + j * strides[1], (i * rows + j) * n
            if stage >= _FORWARD:
                for k in range(1, mirrored + 1):
                    u[base - k] = -u[base + k]
                to = flat if total.size > n else 0
                _row(lanes, total, to, u, base, n, steps, (centers[-1],), seconds, 0, sides, ())
            for s in range(len(slabs)):
                axis, number = slabs[s, 0], slabs[s, 7]
                coordinate = i if axis == 0 else j
                if axis < 2 and not slabs[s, 1] <= coordinate < slabs[s, 2]:
                    continue
                at = slabs[s, 3] + i * slabs[s, 4] + j * slabs[s, 5]
                side, place = number * len(half), slabs[s, 6]
                d2, d1 = elements(half, seconds, side), elements(half, firsts, side)
                if axis == 2:
                    part, stencils = (slabs[s, 1], slabs[s, 2]), ((1,), (1,), (centers[number],), d2, d1)
                    _layer_row(
                        stage, lanes, fewer, first, second, u, total, a, b, at, base, to, place, part, stencils, (0,)
                    )
                else:
                    part, place = (0, n), place + coordinate
                    stencils = (strides[axis],), (slabs[s, 4 + axis],), (centers[number],), d2, d1
                    _layer_row(
                        stage, lanes, fewer, first, second, u, total, a, b, at, base, to, place, part, stencils, ()
                    )
            if stage >= _FORWARD and leaps:
                if stage == _ADJOINT:
                    _add_product(x, flat, u, base, w, flat, n)
                _leap(before, u, base, c, flat, total, to, n)
                if stage == _FORWARD and y.size:
                    _add_product(before, base, x, flat, y, flat, n)


@cached_njit(parallel=True, **_OPTIONS)
def _sweep(
    stage,
    lanes,
    fewer,
    u,
    before,
    memory,
    c,
    w,
    x,
    y,
    tile,
    slabs,
    a,
    b,
    strides,
    steps,
    centers,
    seconds,
    firsts,
    half,
    sides,
):
    """Do one stage of a step on all rows of a tile.

    `memory` has a row of psi and one of zeta, or of r and t; see the NumPy steps. Other arrays are flat, and empty if
    they are omitted. Forward, `w` receives the Laplacian, and `x` times `y` is added to the result. In the adjoint,
    `w` is the Laplacian, and `x` the image; without `before`, `w` receives the transposed Laplacian. The compiler knows
    the lengths of `lanes`, `fewer`, `half` and `sides`.
    """
    for task in prange((tile[1] + tile[4] - 1) // tile[4]):
        arrays = u, before, memory, c, w, x, y
        _rows(
            stage, task, lanes, fewer, *arrays, tile, slabs, a, b, strides, steps, centers, seconds, firsts, half, sides
        )


@cache
def _compiled(dtype: str, order: int, ndim: int) -> None:
    """Compile the kernel for a type of grids, or load it from the cache on disk. Later calls do not compile."""
    none, sides = np.empty(0, dtype), np.zeros((ndim, order // 2), dtype)
    stencils = _stencils((1, 1, 1), (1,) * ndim, sides[:, 0], sides, sides)
    constants: Any = (0, 0, 0, 0, 1, 0), np.empty((0, _COLUMNS), np.int64), none, none, *stencils
    sweep: Any = _sweep
    with compilation_lock(sweep, "waves"):
        sweep(_FIRST, *_lanes(none.dtype), none, none, np.empty((2, 0), dtype), *[none] * 4, *constants)


def _lanes(dtype: np.dtype) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return tuples as long as a vector, and as half of one."""
    width = _VECTOR_BYTES // dtype.itemsize
    return (0,) * width, (0,) * (width // 2)


def _stencils(
    strides: tuple[int, ...], across: tuple[int, ...], centers: np.ndarray, seconds: np.ndarray, firsts: np.ndarray
) -> tuple[Any, ...]:
    """Return the strides of a field and the coefficients of the stencils, whose numbers the compiler must know.

    `across` are the strides of the axes along which to differentiate.
    """
    ndim, half = seconds.shape
    totals = np.append(centers, centers.sum(dtype=centers.dtype))
    numbers = (0,) * half, (0,) * (ndim * half)
    return strides, across, totals, seconds.ravel(), firsts.ravel(), *numbers


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
        origin = sum(width * stride for width, stride in zip(tile.halo, strides, strict=True))
        shares = threads * max(1, round(tile.inner[1] / (_ROW_BLOCK * threads)))  # equally many for each thread
        block = -(-tile.inner[1] // shares)
        mirrored = tile.grid.order // 2 if tile.surface and 2 in axes else 0
        table = np.array([_entries(slab, axes, slabs) for slab in slabs], np.int64).reshape(len(slabs), _COLUMNS)
        a, b = (np.concatenate([np.empty(0, dtype), *parts]) for parts in ([s.a for s in slabs], [s.b for s in slabs]))
        across = tuple(strides[axis] for axis in axes)
        stencils = _stencils(strides, across, *tile.stencils(dtype, axes))
        self._constants: Any = (*tile.inner, origin, block, mirrored), table, a, b, *stencils
        self._lanes = _lanes(dtype)
        self._none = np.empty(0, dtype)
        _compiled(dtype.name, tile.grid.order, len(axes))

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
        self._run((_FIRST, _FORWARD), u, before, memory, c, w, x, y)

    def adjoint(
        self, u: np.ndarray, before: np.ndarray, memory: np.ndarray, c: np.ndarray, w: np.ndarray, image: np.ndarray
    ) -> None:
        """Replace `before` by the adjoint field at the time before `u`, and add the product of `u` and `w` to `image`.

        Both fields are multiplied by c.
        """
        self._run((_SECOND_ADJOINT, _FIRST_ADJOINT, _ADJOINT), u, before, memory, c, w, image, self._none)

    def laplacian(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, on the tile, with the Laplacian of a field with halo."""
        none = self._none
        self._run((_FIRST, _FORWARD), u, none, memory, none, out, none, none)

    def transposed(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the transpose of the Laplacian, applied to a field with halo."""
        none = self._none
        self._run((_SECOND_ADJOINT, _FIRST_ADJOINT, _ADJOINT), u, none, memory, none, out, none, none)

    def _run(self, stages: Sequence[int], u: np.ndarray, before: np.ndarray, memory: np.ndarray, *others: Any) -> None:
        arrays = u.reshape(-1), before.reshape(-1), memory, *(array.reshape(-1) for array in others)
        sweep: Any = _sweep
        with limited_threads(self._thread_count):
            for stage in stages if memory.size else stages[-1:]:
                sweep(stage, *self._lanes, *arrays, *self._constants)


class NumbaVTISteps(NumbaProducts, VTISteps):
    """The steps of :class:`VTISteps` with compiled products; parameters likewise, and the number of threads."""

    def __init__(self, tile: Tile, dtype: np.dtype, threads: int | None, horizontal: Any, vertical: Any) -> None:
        super().__init__(tile, dtype, horizontal, vertical)
        self._thread_count = checked_threads(threads)


def _entries(slab: Slab, axes: Sequence[int], slabs: Sequence[Slab]) -> tuple[int, ...]:
    """Return a row of the table of slabs: its axis and zone, where its memory and its profile begin, its number."""
    strides = math.prod(slab.shape[1:]), slab.shape[2], 1
    profiles = sum(other.a.size for other in slabs if other.offset < slab.offset)
    origin = slab.offset - slab.begin * strides[slab.axis]
    number = axes.index(slab.axis)
    return (slab.axis, *slab.zone, origin, *strides[:2], profiles - slab.begin, number)
