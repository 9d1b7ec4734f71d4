"""Time steps in Numba: rows in explicit vector instructions, blocks of rows on several threads.

A task is a block of rows along the second axis, and marches along the first, so that the planes that the stencil needs
stay in the cache. All operations on a point are those of the NumPy steps, in the same order and without contraction:
results depend neither on the tiles, nor on the threads, nor on which of the two kernels computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import types
from numba.extending import intrinsic

from collops.seismic.host_kernels import checked_threads, compilation_lock, limited_threads
from collops.seismic.waves.grid import Slab, Tile

_ROW_BLOCK = 16  # rows of a task: with the planes of the stencil, they fit the L2 cache
_VECTOR_BYTES = 64
_COLUMNS = 10  # of the table of slabs
# Stages of a step: memory variables first, then the field.
_FIRST, _FIRST_ADJOINT, _SECOND_ADJOINT, _FORWARD, _ADJOINT = range(5)
_OPTIONS: dict = {"nogil": True, "error_model": "numpy", "cache": True}


def _stencil_of_vector(typing, lanes, out, at, source, index, strides, center, sides, odd):
    """Store a stencil of ``len(lanes)`` consecutive points of the flat array `source` in `out`, from element `at`.

    `strides` are the distances of neighbours along each axis, and `sides` the coefficients of one axis after the other.
    `center` is a tuple of the coefficient of the point, or empty. The stencil is antisymmetric if `odd` is not empty.
    The compiler would not vectorise the equivalent loop, as it had to compare too many arrays for overlaps.
    """
    width = lanes.count

    def generate(context, builder, signature, arguments):
        number = context.get_value_type(source.dtype)
        vector = ir.VectorType(number, width) if width > 1 else number
        align = context.get_abi_sizeof(number)

        def integer(value, kind):
            return context.cast(builder, value, kind, types.intp)

        def pointer(array, offset):
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())

        def coefficient(argument, place):
            value = builder.extract_value(arguments[argument], place)
            if width == 1:
                return value
            lane = builder.insert_element(vector(ir.Undefined), value, ir.IntType(32)(0))
            return builder.shuffle_vector(lane, vector(ir.Undefined), ir.VectorType(ir.IntType(32), width)([0] * width))

        def load(offset):
            return builder.load(pointer(3, offset), align=align)

        begin = integer(arguments[4], signature.args[4])
        terms = [builder.fmul(coefficient(6, 0), load(begin))] if center.count else []
        combine = builder.fsub if odd.count else builder.fadd
        half = sides.count // strides.count
        for axis in range(strides.count):
            stride = integer(builder.extract_value(arguments[5], axis), signature.args[5][axis])
            for k in range(half):
                distance = builder.mul(stride, stride.type(k + 1))
                both = combine(load(builder.add(begin, distance)), load(builder.sub(begin, distance)))
                terms.append(builder.fmul(coefficient(7, axis * half + k), both))
                if len(terms) == 2:
                    terms = [builder.fadd(*terms)]
        target = pointer(1, integer(arguments[2], signature.args[2]))
        builder.store(terms[0], target, align=align)
        return context.get_dummy_value()

    return types.void(lanes, out, at, source, index, strides, center, sides, odd), generate


def _elements_of_array(typing, places, array, begin):
    """Return ``len(places)`` elements of a flat array as a tuple, whose length is known at compile time."""
    result = types.UniTuple(array.dtype, places.count)

    def generate(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[1]).data
        first = builder.gep(data, [context.cast(builder, arguments[2], begin, types.intp)])
        values = [builder.load(builder.gep(first, [ir.IntType(64)(place)])) for place in range(places.count)]
        return context.make_tuple(builder, result, values)

    return result(places, array, begin), generate


# Numba passes the argument `typing`.
_stencil: Any = intrinsic(_stencil_of_vector)
_elements: Any = intrinsic(_elements_of_array)


@njit(**_OPTIONS)
def _row(lanes, out, to, source, begin, n, strides, center, weights, first, places, odd):
    """Fill n elements of `out` with a stencil of `source`, whose coefficients are ``len(places)`` of `weights`."""
    sides = _elements(places, weights, first)
    width, k = len(lanes), 0
    while k + width <= n:
        _stencil(lanes, out, to + k, source, begin + k, strides, center, sides, odd)
        k += width
    if k < n and n >= width:  # the last vector overlaps the one before
        _stencil(lanes, out, to + n - width, source, begin + n - width, strides, center, sides, odd)
        k = n
    while k < n:
        _stencil((0,), out, to + k, source, begin + k, strides, center, sides, odd)
        k += 1


# Rows are elements of flat arrays from an index on. Indices are unsigned: the compiler vectorises these loops only
# where an index cannot count from the end.


@njit(**_OPTIONS)
def _decay(own, to, change, begin, n, a, b, place, crosses, sign):
    """Advance a row of memory variables; the coefficients vary along a row that crosses the layer."""
    to, begin, place, factor = np.uint64(to), np.uint64(begin), np.uint64(place), own.dtype.type(sign)
    if crosses:
        for k in range(np.uint64(n)):
            own[to + k] = b[place + k] * own[to + k] + (factor * a[place + k]) * change[begin + k]
    else:
        factor, decay = factor * a[place], b[place]
        for k in range(np.uint64(n)):
            own[to + k] = decay * own[to + k] + factor * change[begin + k]


@njit(**_OPTIONS)
def _leap(before, u, base, c, flat, w, to, n):
    """Compute a row of the next field."""
    base, flat, to, two = np.uint64(base), np.uint64(flat), np.uint64(to), before.dtype.type(2)
    for k in range(np.uint64(n)):
        before[base + k] = (two * u[base + k] - before[base + k]) + c[flat + k] * w[to + k]


@njit(**_OPTIONS)
def _add(total, to, x, begin, n):
    to, begin = np.uint64(to), np.uint64(begin)
    for k in range(np.uint64(n)):
        total[to + k] += x[begin + k]


@njit(**_OPTIONS)
def _add_difference(total, to, x, y, begin, n):
    to, begin = np.uint64(to), np.uint64(begin)
    for k in range(np.uint64(n)):
        total[to + k] += x[begin + k] - y[begin + k]


@njit(**_OPTIONS)
def _add_product(total, to, x, begin, y, first, n):
    to, begin, first = np.uint64(to), np.uint64(begin), np.uint64(first)
    for k in range(np.uint64(n)):
        total[to + k] += x[begin + k] * y[first + k]


@njit(**_OPTIONS)
def _rows(
    stage,
    task,
    lanes,
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
    one, two, three = np.empty((3, n), u.dtype)
    to = 0
    total = one if stage == _ADJOINT or w.size == 0 else w
    for i in range(planes):
        for j in range(task * block, min(rows, task * block + block)):
            base, flat = origin + i * strides[0] + j * strides[1], (i * rows + j) * n
            if stage >= _FORWARD:
                for k in range(1, mirrored + 1):
                    u[base - k] = -u[base + k]
                to = flat if total.size > n else 0
                _row(lanes, total, to, u, base, n, steps, (centers[-1],), seconds, 0, sides, ())
            for s in range(len(slabs)):
                axis, number = slabs[s, 0], slabs[s, 9]
                coordinate = i if axis == 0 else j
                if axis < 2 and not slabs[s, 3] <= coordinate < slabs[s, 4]:
                    continue
                # The elements of the row in the zone and in the layer.
                begin, end, low, high = (
                    (slabs[s, 3], slabs[s, 4], slabs[s, 1], slabs[s, 2]) if axis == 2 else (0, n, 0, n)
                )
                m, size, within = end - begin, high - low, axis == 2 or slabs[s, 1] <= coordinate < slabs[s, 2]
                at = slabs[s, 5] + i * slabs[s, 6] + j * slabs[s, 7]
                place = slabs[s, 8] + (low if axis == 2 else coordinate)
                across, beside = (strides[axis],), (slabs[s, 6] if axis == 0 else slabs[s, 7] if axis == 1 else 1,)
                center, side = (centers[number],), number * len(half)
                if stage == _FORWARD:
                    _row(lanes, two, begin, first, at + begin, m, beside, (), firsts, side, half, (0,))
                    _add(total, to + begin, two, begin, m)
                if stage == _ADJOINT:
                    _row(lanes, two, begin, second, at + begin, m, beside, center, seconds, side, half, ())
                    _row(lanes, three, begin, first, at + begin, m, beside, (), firsts, side, half, (0,))
                    _add_difference(total, begin, two, three, begin, m)
                if not within:
                    continue
                if stage in (_FIRST, _FIRST_ADJOINT):
                    _row(lanes, two, low, u, base + low, size, across, (), firsts, side, half, (0,))
                    if stage == _FIRST_ADJOINT:
                        _row(lanes, three, low, second, at + low, size, beside, (), firsts, side, half, (0,))
                        _add(two, low, three, low, size)
                    sign = 1 if stage == _FIRST else -1
                    _decay(first, at + low, two, low, size, a, b, place, axis == 2, sign)
                elif stage == _SECOND_ADJOINT:
                    _decay(second, at + low, u, base + low, size, a, b, place, axis == 2, 1)
                elif stage == _FORWARD:
                    _row(lanes, three, low, u, base + low, size, across, center, seconds, side, half, ())
                    _add(three, low, two, low, size)
                    _decay(second, at + low, three, low, size, a, b, place, axis == 2, 1)
                    _add(total, to + low, second, at + low, size)
            if stage >= _FORWARD:
                if stage == _ADJOINT:
                    _add_product(x, flat, u, base, w, flat, n)
                _leap(before, u, base, c, flat, total, to, n)
                if stage == _FORWARD and y.size:
                    _add_product(before, base, x, flat, y, flat, n)


@njit(parallel=True, **_OPTIONS)
def _sweep(
    stage,
    lanes,
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
    `w` is the Laplacian, and `x` the image. The compiler knows the lengths of `lanes`, `half` and `sides`.
    """
    for task in prange((tile[1] + tile[4] - 1) // tile[4]):
        arrays = u, before, memory, c, w, x, y
        _rows(stage, task, lanes, *arrays, tile, slabs, a, b, strides, steps, centers, seconds, firsts, half, sides)


@cache
def _compiled(dtype: str, order: int, ndim: int) -> None:
    """Compile the kernel for a type of grids, or load it from the cache on disk. Later calls do not compile."""
    none, sides = np.empty(0, dtype), np.zeros((ndim, order // 2), dtype)
    stencils = _stencils((1, 1, 1), sides[:, 0], sides, sides)
    constants: Any = (0, 0, 0, 0, 1, 0), np.empty((0, _COLUMNS), np.int64), none, none, *stencils
    sweep: Any = _sweep
    with compilation_lock(sweep, "waves"):
        sweep(_FIRST, _lanes(none.dtype), none, none, np.empty((2, 0), dtype), *[none] * 4, *constants)


def _lanes(dtype: np.dtype) -> tuple[int, ...]:
    return (0,) * (_VECTOR_BYTES // dtype.itemsize)


def _stencils(
    strides: tuple[int, ...], centers: np.ndarray, seconds: np.ndarray, firsts: np.ndarray
) -> tuple[Any, ...]:
    """Return the strides of a field, and the coefficients of the stencils, whose numbers the compiler must know."""
    ndim, half = seconds.shape
    totals = np.append(centers, centers.sum(dtype=centers.dtype))
    numbers = (0,) * half, (0,) * (ndim * half)
    return strides, strides[3 - ndim :], totals, seconds.ravel(), firsts.ravel(), *numbers


class Steps:
    """The steps of :class:`collops.seismic.waves.numpy_steps.Steps`, with the same parameters, compiled."""

    def __init__(self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None) -> None:
        self._threads = threads = checked_threads(threads)
        strides = tuple(math.prod(tile.shape[axis + 1 :]) for axis in range(3))
        origin = sum(width * stride for width, stride in zip(tile.halo, strides, strict=True))
        shares = threads * max(1, round(tile.inner[1] / (_ROW_BLOCK * threads)))  # equally many for each thread
        block = -(-tile.inner[1] // shares)
        mirrored = tile.grid.order // 2 if tile.surface else 0
        table = np.array([_entries(slab, tile, slabs) for slab in slabs], np.int64).reshape(len(slabs), _COLUMNS)
        a, b = (np.concatenate([np.empty(0, dtype), *parts]) for parts in ([s.a for s in slabs], [s.b for s in slabs]))
        stencils = _stencils(strides, *tile.stencils(dtype))
        self._constants: Any = (*tile.inner, origin, block, mirrored), table, a, b, *stencils
        self._lanes = _lanes(dtype)
        self._none = np.empty(0, dtype)
        _compiled(dtype.name, tile.grid.order, len(tile.axes))

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

    def _run(self, stages: Sequence[int], u: np.ndarray, before: np.ndarray, memory: np.ndarray, *others: Any) -> None:
        arrays = u.reshape(-1), before.reshape(-1), memory, *(array.reshape(-1) for array in others)
        sweep: Any = _sweep
        with limited_threads(self._threads):
            for stage in stages if memory.size else stages[-1:]:
                sweep(stage, self._lanes, *arrays, *self._constants)


def _entries(slab: Slab, tile: Tile, slabs: Sequence[Slab]) -> tuple[int, ...]:
    """Return a row of the table of slabs: its axis, layer, zone, and where its memory and its profile begin."""
    strides = math.prod(slab.shape[1:]), slab.shape[2], 1
    profiles = sum(other.a.size for other in slabs if other.offset < slab.offset)
    origin = slab.offset - slab.begin * strides[slab.axis]
    number = slab.axis - tile.axes[0]
    return (slab.axis, *slab.layer, *slab.zone, origin, *strides[:2], profiles - slab.begin, number)
