"""Moves of irregular points on the host by loops compiled with Numba: one pass, 32-bit indices, no temporaries.

The machine code of each dtype stays on disk.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collops._numba_cache import cached_njit
from collops.backend import LocalArray
from collops.exchange.packing.index import Index


@cached_njit(nogil=True)
def _gather(source: LocalArray, points: np.ndarray, target: LocalArray) -> None:
    for i in range(points.size):
        target[i] = source[points[i]]


@cached_njit(nogil=True)
def _scatter(source: LocalArray, target: LocalArray, points: np.ndarray) -> None:
    for i in range(points.size):
        target[points[i]] = source[i]


@cached_njit(nogil=True)
def _move(source: LocalArray, sources: np.ndarray, target: LocalArray, targets: np.ndarray) -> None:
    for i in range(targets.size):
        target[targets[i]] = source[sources[i]]


@cached_njit(nogil=True)
def _add(source: LocalArray, target: LocalArray, points: np.ndarray) -> None:
    for i in range(points.size):
        target[points[i]] += source[i]


@cached_njit(nogil=True)
def _move_add(source: LocalArray, sources: np.ndarray, target: LocalArray, targets: np.ndarray) -> None:
    for i in range(targets.size):
        target[targets[i]] += source[sources[i]]


def mover(source: Index, target: Index, op: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Prepare a move that replaces or adds single values sequentially."""
    sources, targets = _small(source.points), _small(target.points)
    # Creating a slice costs more than a loop over few points.
    if op == "replace" and target.contiguous:
        begin = int(target.points[0])

        def gather(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
            _gather(source_array, sources, target_array[begin:] if begin else target_array)
            return target_array

        return gather
    if source.contiguous:
        first, loop = int(source.points[0]), _scatter if op == "replace" else _add

        def scatter(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
            loop(source_array[first:] if first else source_array, target_array, targets)
            return target_array

        return scatter
    loop = _move if op == "replace" else _move_add

    def move(source_array: np.ndarray, target_array: np.ndarray) -> np.ndarray:
        loop(source_array, sources, target_array, targets)
        return target_array

    return move


def _small(points: np.ndarray) -> np.ndarray:
    return points.astype(np.int32) if points.max() <= np.iinfo(np.int32).max else points
