"""Moves of many irregular points on the host, by loops that Numba compiles: one pass, 32-bit indices, no temporaries.

Values that only move travel as unsigned integers of their width. Compiled in each process when first needed, which
takes part of a second, so that few points are left to NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from collops.graph.packing.index import Index

__all__ = ["adder", "replacer"]

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
    carrier = _CARRIERS.get(dtype.itemsize)
    return None if carrier is None else _prepared(source, target, carrier, _gather, _place, _carry)


def adder(source: Index, target: Index, dtype: np.dtype) -> Any:
    """Return a move that adds single values one after the other, or ``None`` where this module has none."""
    if dtype.name not in ("float32", "float64", "int32", "int64"):
        return None
    return _prepared(source, target, dtype, None, _add, _carry_add)


def _prepared(source: Index, target: Index, kind: np.dtype, gather: Any, place: Any, carry: Any) -> Any:
    if max(source.points.max(initial=0), target.points.max(initial=0)) > _LARGEST:
        return None
    size = target.size
    first, begin = _run(source), _run(target)
    sources, targets = source.points.astype(np.int32), target.points.astype(np.int32)
    if begin is not None and gather is not None:
        return lambda given, taken: gather(given.view(kind), sources, taken.view(kind)[begin : begin + size])
    if first is not None:
        return lambda given, taken: place(given.view(kind)[first : first + size], taken.view(kind), targets)
    return lambda given, taken: carry(given.view(kind), sources, taken.view(kind), targets)


def _run(index: Index) -> int | None:
    return index.affine.start if index.affine is not None and index.affine.contiguous else None
