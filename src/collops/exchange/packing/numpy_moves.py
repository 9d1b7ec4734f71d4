"""Moves on the host: slices for regular indices, NumPy's take and assignment for irregular ones.

If Numba is installed, compiled loops, which are several times as fast, move irregular points: many points from the
first move on, few points after a thousand moves. Values of repeated points are combined sequentially in the order of
the index, so that sums are deterministic.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from collops.backend import LocalArray
from collops.comm.reductions import OPERATIONS
from collops.exchange.packing.index import Index

__all__ = ["fetcher", "mover"]

Move: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]

_COMPILED = ("float32", "float64", "complex64", "complex128", "int32", "int64")
_COMPILE_NOW_POINTS = 4096  # with fewer points a loop saves less than its compilation costs
_COMPILE_AFTER_MOVES = 1000  # with few points


def mover(source: Index, target: Index, op: str, dtype: np.dtype, width: int, deterministic: bool) -> Move:
    """Prepare ``target_array[target] op= source_array[source]``.

    The move takes the two arrays, writes to the second one and returns it. Their shape is ``(points, width)``, or
    ``(points,)`` if `width` is 1. Both indices have the same size. Sums are always deterministic here.
    """
    if not target.size:
        return lambda source_array, target_array: target_array
    if op == "replace":
        source, target = target.last_writes(source)
        move = _replacing(source, target, dtype, width)
    else:
        move = (_combining if target.unique else _accumulating)(source, target, op, dtype, width)
    regular = source.slice is not None and target.slice is not None
    if regular or width != 1 or op not in ("replace", "sum") or dtype.name not in _COMPILED:
        return move
    return move if importlib.util.find_spec("numba") is None else _compiled_later(move, source, target, op)


def fetcher(
    source: Index, target: Index, op: str, dtype: np.dtype, width: int
) -> Callable[..., tuple[LocalArray, LocalArray]]:
    """Prepare a move as in :func:`mover` that also returns the target's values before each update (fetch-and-op).

    It takes a third array, of the source's shape, which receives the previous values at the points of `source` and may
    be the source's array itself. It returns this array and the target.
    """
    rounds = [(source.points[positions], target.points[positions]) for positions in target.rounds]
    ufunc = None if op == "replace" else getattr(np, OPERATIONS[op].ufunc)

    def fetch(source_array: np.ndarray, target_array: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        for source_points, target_points in rounds:
            old = target_array[target_points]
            target_array[target_points] = (
                source_array[source_points] if ufunc is None else ufunc(old, source_array[source_points])
            )
            before[source_points] = old
        return before, target_array

    return fetch


def _compiled_later(move: Move, source: Index, target: Index, op: str) -> Move:
    """Return a move that is compiled after some calls; its results are bitwise equal before and after."""
    remaining = 1 if target.size >= _COMPILE_NOW_POINTS else _COMPILE_AFTER_MOVES

    def move_or_compile(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
        nonlocal move, remaining
        remaining -= 1
        if not remaining:
            loops = importlib.import_module("collops.exchange.packing.numba_moves")
            move = loops.mover(source, target, op)
        return move(source_array, target_array)

    return move_or_compile


def _replacing(source: Index, target: Index, dtype: np.dtype, width: int) -> Move:
    where, run = target.slice or target.points, source.slice
    if run is not None:

        def copy(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
            target_array[where] = source_array[run]
            return target_array

        return copy
    points, read = source.points, _reader(source, dtype, width)

    def gather(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
        source_array.take(points, 0, target_array[where], "clip")
        return target_array

    def assign(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
        target_array[where] = read(source_array)
        return target_array

    return gather if target.contiguous else assign


def _combining(source: Index, target: Index, op: str, dtype: np.dtype, width: int) -> Move:
    read, read_old = _reader(source, dtype, width), _reader(target, dtype, width)
    ufunc = getattr(np, OPERATIONS[op].ufunc)
    points, regular = target.points, target.slice is not None

    def combine(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
        old = read_old(target_array)
        ufunc(old, read(source_array), out=old)
        if not regular:
            target_array[points] = old
        return target_array

    return combine


def _accumulating(source: Index, target: Index, op: str, dtype: np.dtype, width: int) -> Move:
    read, ufunc = _reader(source, dtype, width), getattr(np, OPERATIONS[op].ufunc)
    # ufunc.at is fast for flat arrays only.
    flat = target.points if width == 1 else (target.points[:, None] * width + np.arange(width)).reshape(-1)

    def accumulate(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
        ufunc.at(target_array.reshape(-1), flat, read(source_array).reshape(-1))
        return target_array

    def accumulate_extremes(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # unlike other calls of these functions, `at` warns of NaN
            return accumulate(source_array, target_array)

    return accumulate_extremes if op in ("min", "max") else accumulate


def _reader(index: Index, dtype: np.dtype, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that returns the values at an index: a view if the index is regular."""
    run, points = index.slice, index.points
    if run is not None:
        return lambda array: array[run]
    # Allocated once, since allocating a large array costs more than filling it. Clipping never happens, but lets NumPy
    # write to the result without a temporary buffer.
    values = np.empty((index.size,) if width == 1 else (index.size, width), dtype)
    return lambda array: array.take(points, 0, values, "clip")
