"""Moves on the host: views where an index is a progression, NumPy's take and assignment where it is not.

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

from collops.exchange.packing.index import Affine, Index

__all__ = ["fetcher", "mover"]

Move: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]

_UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
}
_MANY = 4096  # points; with fewer a loop saves less than its compilation costs
_OFTEN = 1000  # moves, from when it pays for few points, too
_LOGICAL = ("land", "lor", "lxor")


def mover(source: Index, target: Index, op: str, dtype: np.dtype, width: int, deterministic: bool) -> Move:
    """Prepare ``target_array[target] op= source_array[source]``.

    Parameters
    ----------
    source, target : Index
        Of one size.
    op : str
        See `OPERATIONS`.
    dtype : dtype
        Of both arrays.
    width : int
        Values of a point; the arrays have the shape ``(points, width)``, or ``(points,)`` where it is 1.
    deterministic : bool
        Ignored: sums always have one order here.

    Returns
    -------
    callable
        Takes the two arrays, and returns the second one, which it writes to.
    """
    if not target.size:
        return _nothing
    if op == "replace":
        if not target.unique:
            positions, target = target.last()
            source = Index(source.points[positions.points])
        return _compiled("replacer", _replacing, source, target, op, dtype, width)
    combining = _combining if target.unique else _accumulating
    if op == "sum":
        return _compiled("adder", combining, source, target, op, dtype, width)
    return combining(source, target, op, dtype, width)


def fetcher(source: Index, target: Index, op: str, dtype: np.dtype, width: int) -> Any:
    """Prepare a move as in :func:`mover` that also returns the values from just before each one was combined.

    Returns
    -------
    callable
        Takes the two arrays, and an array of the source's shape for the earlier values at the points of `source`, which
        may be the source's array. Returns the earlier values and the target.
    """
    turns = [(source.points[turn], target.points[turn]) for turn in target.rounds]
    combine = _combined(op, dtype)

    def fetch(given: np.ndarray, taken: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        for here, there in turns:
            old = taken[there]
            taken[there] = combine(old, given[here])
            before[here] = old
        return before, taken

    return fetch


def _compiled(
    name: str, plain: Callable[..., Move], source: Index, target: Index, op: str, dtype: np.dtype, width: int
) -> Move:
    """Return a compiled loop, at once or later, where there is one that saves time."""
    regular = source.affine is not None and target.affine is not None
    if width != 1 or regular or importlib.util.find_spec("numba") is None:
        return plain(source, target, op, dtype, width)
    if target.size < _MANY:
        return _compiled_later(plain(source, target, op, dtype, width), name, source, target, dtype)
    return _loop(name, source, target, dtype) or plain(source, target, op, dtype, width)


def _loop(name: str, source: Index, target: Index, dtype: np.dtype) -> Move | None:
    loop = getattr(importlib.import_module("collops.exchange.packing.numba_moves"), name)(source, target, dtype)
    if loop is None:
        return None

    def move(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        loop(given, taken)
        return taken

    return move


def _compiled_later(plain: Move, name: str, source: Index, target: Index, dtype: np.dtype) -> Move:
    """Return a move that is compiled when it has been made often enough; it has the same bits before and after."""
    move, made = plain, 0

    def patient(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        nonlocal move, made
        made += 1
        if made == _OFTEN:
            move = _loop(name, source, target, dtype) or plain
        return move(given, taken)

    return patient


def _nothing(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
    return taken


def _replacing(source: Index, target: Index, op: str, dtype: np.dtype, width: int) -> Move:
    read, write = _reader(source, dtype, width), _slices(target)
    points = target.points
    if write is not None and source.affine is None:
        indices = source.points

        def gather(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            given.take(indices, 0, taken[write], "clip")
            return taken

        def gather_strided(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            taken[write] = given.take(indices, 0)
            return taken

        return gather if write.step == 1 else gather_strided
    if write is not None:
        straight = _slices(source)
        if straight is not None:

            def copy(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
                taken[write] = given[straight]
                return taken

            return copy

        def copy_box(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            box = read(given)
            taken[write].reshape(box.shape)[...] = box
            return taken

        return copy_box if write.step == 1 else _assigning(read, write, False)
    if target.affine is not None:
        view = _viewer(target.affine, dtype, width)

        def fill_box(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            box = view(taken)
            box[...] = read(given).reshape(box.shape)
            return taken

        return fill_box
    return _assigning(read, points, source.affine is None or _slices(source) is not None)


def _assigning(read: Callable[[np.ndarray], np.ndarray], where: Any, flat: bool) -> Move:
    """Return an assignment; `flat` says that what is read has one axis of points already."""

    def assign_flat(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        taken[where] = read(given)
        return taken

    def assign(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        values = read(given)
        taken[where] = values.reshape(-1, *taken.shape[1:])
        return taken

    return assign_flat if flat else assign


def _combining(source: Index, target: Index, op: str, dtype: np.dtype, width: int) -> Move:
    read, combine, ufunc = _reader(source, dtype, width), _combined(op, dtype), _UFUNCS[op]
    if target.affine is not None:
        view = _reader(target, dtype, width)

        def combine_run(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            run = view(taken)
            ufunc(run, read(given), out=run)
            return taken

        def combine_view(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            box = view(taken)
            ufunc(box, read(given).reshape(box.shape), out=box)
            return taken

        straight = _slices(target) is not None and (source.affine is None or _slices(source) is not None)
        return combine_run if straight else combine_view
    points, read_old = target.points, _reader(Index(target.points), dtype, width)

    def combine_points(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        old = read_old(taken)
        taken[points] = combine(old, read(given).reshape(old.shape))
        return taken

    return combine_points


def _accumulating(source: Index, target: Index, op: str, dtype: np.dtype, width: int) -> Move:
    read, ufunc = _reader(source, dtype, width), _UFUNCS[op]
    if op in _LOGICAL and dtype.kind != "b":
        different, positions = target.segments.points, np.searchsorted(target.segments.points, target.points)

        def accumulate_truth(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            truth = taken[different] != 0
            ufunc.at(truth, positions, read(given).reshape(-1, *taken.shape[1:]) != 0)
            taken[different] = truth
            return taken

        return accumulate_truth
    # NumPy is fast with repeated points where both arrays are flat.
    flat = target.points if width == 1 else (target.points[:, None] * width + np.arange(width)).reshape(-1)

    def accumulate(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        ufunc.at(taken.reshape(-1), flat, read(given).reshape(-1))
        return taken

    def accumulate_flat(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        ufunc.at(taken, flat, read(given))
        return taken

    return accumulate_flat if width == 1 and (source.affine is None or _slices(source) is not None) else accumulate


def _combined(op: str, dtype: np.dtype) -> Callable[[Any, Any], Any]:
    if op == "replace":
        return _second
    ufunc = _UFUNCS[op]
    if op in _LOGICAL:
        return lambda old, new: ufunc(old, new).astype(dtype)
    return ufunc


def _second(old: Any, new: Any) -> Any:
    return new


def _reader(index: Index, dtype: np.dtype, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return what gives the values at an index: a view where that can be."""
    if index.affine is None:
        points = index.points
        # Kept, because fresh memory for large arrays costs more than the values that go there. Clipping never happens,
        # but lets NumPy write to the result without a buffer in between.
        values = np.empty((index.size,) if width == 1 else (index.size, width), dtype)
        return lambda array: array.take(points, 0, values, "clip")
    straight = _slices(index)
    if straight is not None:
        return lambda array: array[straight]
    return _viewer(index.affine, dtype, width)


def _slices(index: Index) -> slice | None:
    """Return the slice that an index is; ``None`` if it is none."""
    pattern = index.affine
    if pattern is None or len(pattern.extents) != 1 or pattern.strides[0] < 1:
        return None
    stop = pattern.start + (pattern.extents[0] - 1) * pattern.strides[0] + 1 if pattern.extents[0] else pattern.start
    return slice(pattern.start, stop, pattern.strides[0])


def _viewer(pattern: Affine, dtype: np.dtype, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return what gives the points of a pattern as a view of a contiguous array."""
    shape = pattern.extents if width == 1 else (*pattern.extents, width)
    unit = dtype.itemsize * width
    strides = [stride * unit for stride in pattern.strides] + ([] if width == 1 else [dtype.itemsize])
    offset = pattern.start * unit
    if dtype.kind == "V":  # NumPy exports no buffer of a bfloat16 array
        carrier = np.dtype(f"u{dtype.itemsize}")
        return lambda array: np.ndarray(shape, carrier, array.view(carrier), offset, strides).view(dtype)
    return lambda array: np.ndarray(shape, dtype, array, offset, strides)
