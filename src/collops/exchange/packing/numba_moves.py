"""Moves of irregular points on the host, by loops that Numba compiles: one pass, 32-bit indices, no temporaries.

Each process compiles the loops at their first use, which takes a fraction of a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from collops.exchange.packing.index import Index


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


def mover(source: Index, target: Index, op: str) -> Any:
    """Prepare a move that replaces or adds single values, one after the other."""
    sources, targets = _small(source.points), _small(target.points)
    # Slices are avoided where possible: they cost more than a loop over few points.
    if op == "replace" and target.contiguous:
        begin = int(target.points[0])

        def gather(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            _gather(given, sources, taken[begin:] if begin else taken)
            return taken

        return gather
    if source.contiguous:
        first, spread = int(source.points[0]), _place if op == "replace" else _add

        def place(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
            spread(given[first:] if first else given, taken, targets)
            return taken

        return place
    between = _carry if op == "replace" else _carry_add

    def carry(given: np.ndarray, taken: np.ndarray) -> np.ndarray:
        between(given, sources, taken, targets)
        return taken

    return carry


def _small(points: np.ndarray) -> np.ndarray:
    return points.astype(np.int32) if points.max() <= np.iinfo(np.int32).max else points
