"""Moves on the host: slices where an index is one, NumPy's take and assignment where it is not.

Where Numba is installed, compiled loops move many irregular points, which is several times as fast, and few points
after a thousand moves. Where points repeat, values are combined one after the other in the order of the index, so that
sums are deterministic.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from collops.comm.reductions import OPERATIONS
from collops.exchange.packing.index import Index

__all__ = ["fetcher", "mover"]

Move: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]

_COMPILED = ("float32", "float64", "complex64", "complex128", "int32", "int64")
_MANY = 4096  # points; with fewer a loop saves less than its compilation costs
_OFTEN = 1000  # moves, from when it pays for few points, too


def mover(source: Index, target: Index, op: str, dtype: np.dtype, width: int, deterministic: bool) -> Move:
    """Prepare ``target_array[target] op= source_array[source]``.

    The move takes the two arrays, and returns the second one, which it writes to. They have the shape ``(points,
    width)``, or ``(points,)`` where `width` is 1. Both indices have one size. Sums always have one order here.
    """
    if not target.size:
        return lambda given, taken: taken
    if op == "replace":
        source, target = target.last(source)
        move = _replacing(source, target, dtype, width)
    else:
        move = (_combining if target.unique else _accumulating)(source, target, op, dtype, width)
    regular = source.slice is not None and target.slice is not None
    if regular or width != 1 or op not in ("replace", "sum") or dtype.name not in _COMPILED:
        return move
    return move if importlib.util.find_spec("numba") is None else _compiled_later(move, source, target, op)


def fetcher(source: Index, target: Index, op: str, dtype: np.dtype, width: int) -> Any:
    """Prepare a move as in :func:`mover` that also returns the values from just before each one was combined.

    It takes a third array, of the source's shape, for the earlier values at the points of `source`, which may be the
    source's array, and returns that one and the target.
    """
    turns = [(source.points[turn], target.points[turn]) for turn in target.rounds]
    ufunc = None if op == "replace" else getattr(np, OPERATIONS[op].ufunc)

    def fetch(given: np.ndarray, taken: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        for here, there in turns:
            old = taken[there]
            taken[there] = given[here] if ufunc is None else ufunc(old, given[here])
            before[here] = old
        return before, taken

    return fetch


def _compiled_later(move: Move, source: Index, target: Index, op: str) -> Move:
    """Return a move that is compiled when that pays; it has the same bits before and after."""
    waiting = 1 if target.size >= _MANY else _OFTEN

    def patient(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        nonlocal move, waiting
        waiting -= 1
        if not waiting:
            loops = importlib.import_module("collops.exchange.packing.numba_moves")
            move = loops.mover(source, target, op)
        return move(given, taken)

    return patient


def _replacing(source: Index, target: Index, dtype: np.dtype, width: int) -> Move:
    where, run = target.slice or target.points, source.slice
    if run is not None:

        def copy(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            taken[where] = given[run]
            return taken

        return copy
    points, read = source.points, _reader(source, dtype, width)

    def gather(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        given.take(points, 0, taken[where], "clip")
        return taken

    def assign(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        taken[where] = read(given)
        return taken

    return gather if target.contiguous else assign


def _combining(source: Index, target: Index, op: str, dtype: np.dtype, width: int) -> Move:
    read, read_old = _reader(source, dtype, width), _reader(target, dtype, width)
    ufunc = getattr(np, OPERATIONS[op].ufunc)
    points, regular = target.points, target.slice is not None

    def combine(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        old = read_old(taken)
        ufunc(old, read(given), out=old)
        if not regular:
            taken[points] = old
        return taken

    return combine


def _accumulating(source: Index, target: Index, op: str, dtype: np.dtype, width: int) -> Move:
    read, ufunc = _reader(source, dtype, width), getattr(np, OPERATIONS[op].ufunc)
    # NumPy is fast with repeated points where both arrays are flat.
    flat = target.points if width == 1 else (target.points[:, None] * width + np.arange(width)).reshape(-1)

    def accumulate(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        ufunc.at(taken.reshape(-1), flat, read(given).reshape(-1))
        return taken

    def accumulate_extremes(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # unlike other calls of these functions, `at` warns of NaN
            return accumulate(given, taken)

    return accumulate_extremes if op in ("min", "max") else accumulate


def _reader(index: Index, dtype: np.dtype, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that gives the values at an index: a view where that is possible."""
    run, points = index.slice, index.points
    if run is not None:
        return lambda array: array[run]
    # Kept, because fresh memory for large arrays costs more than the values that go there. Clipping never happens, but
    # lets NumPy write to the result without a buffer in between.
    values = np.empty((index.size,) if width == 1 else (index.size, width), dtype)
    return lambda array: array.take(points, 0, values, "clip")
