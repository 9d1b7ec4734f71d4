"""Moves of many irregular points on the host, by loops that Numba compiles: one pass, 32-bit indices, no temporaries.

Values of other types than those that can be added move as unsigned integers of their width. Each process compiles the
loops at their first use, which takes a fraction of a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from collops.exchange.packing.index import Index

_ADDED = ("float32", "float64", "int32", "int64")
_CARRIERS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_LARGEST = np.iinfo(np.int32).max


@njit(nogil=True)
def _gather(given: Any, points: Any, taken: Any) -> None:
    for i in range(points.size):
        taken[i] = given[points[i]]


@njit(nogil=True)
def _place(given: Any, taken: Any, points: Any) -> None:
    for i in range(points.size):
        taken[points[i]] = given[i]


@njit(nogil=True)
def _carry(given: Any, sources: Any, taken: Any, targets: Any) -> None:
    for i in range(targets.size):
        taken[targets[i]] = given[sources[i]]


@njit(nogil=True)
def _add(given: Any, taken: Any, points: Any) -> None:
    for i in range(points.size):
        taken[points[i]] += given[i]


@njit(nogil=True)
def _carry_add(given: Any, sources: Any, taken: Any, targets: Any) -> None:
    for i in range(targets.size):
        taken[targets[i]] += given[sources[i]]


def replacer(source: Index, target: Index, dtype: np.dtype) -> Any:
    """Return a move of single values, or ``None`` where this module has none.

    Parameters
    ----------
    source, target : Index
        Of one size, the target without repetitions.
    dtype : dtype
        Of both arrays.
    """
    carrier = dtype if dtype.name in _ADDED else _CARRIERS.get(dtype.itemsize)
    return None if carrier is None else _prepared(source, target, dtype, carrier, (_gather, _place, _carry))


def adder(source: Index, target: Index, dtype: np.dtype) -> Any:
    """Return a move that adds single values one after the other, or ``None`` where this module has none."""
    return _prepared(source, target, dtype, dtype, (None, _add, _carry_add)) if dtype.name in _ADDED else None


def _prepared(source: Index, target: Index, dtype: np.dtype, kind: np.dtype, loops: tuple[Any, Any, Any]) -> Any:
    """Return a call of the loop that fits: to a run of points, from one, or between irregular ones."""
    if max(source.points.max(initial=0), target.points.max(initial=0)) > _LARGEST:
        return None
    to_run, from_run, between = loops
    sources, targets = source.points.astype(np.int32), target.points.astype(np.int32)
    first, begin = _run(source), _run(target)
    # Views and slices are avoided where possible: they cost more than a loop over few points.
    same = dtype == kind
    if begin is not None and to_run is not None:
        if same and begin == 0:
            return lambda given, taken: to_run(given, sources, taken)
        return lambda given, taken: to_run(given.view(kind), sources, taken.view(kind)[begin:])
    if first is not None:
        if same and first == 0:
            return lambda given, taken: from_run(given, taken, targets)
        return lambda given, taken: from_run(given.view(kind)[first:], taken.view(kind), targets)
    if same:
        return lambda given, taken: between(given, sources, taken, targets)
    return lambda given, taken: between(given.view(kind), sources, taken.view(kind), targets)


def _run(index: Index) -> int | None:
    return index.affine.start if index.affine is not None and index.affine.contiguous else None
