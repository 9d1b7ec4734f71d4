"""Moves between points of JAX arrays, which are not written to: a gather and a scatter, of which results are new.

Every one of them can be traced, and those of ``replace`` and ``sum`` have transposes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from collops.graph.packing.index import Index

__all__ = ["combined", "mover", "taken"]

_UPDATES = {"replace": "set", "sum": "add", "prod": "multiply", "min": "min", "max": "max"}
_TRUTHS = {"land": "min", "lor": "max", "lxor": "add"}
_OF_BOOLEANS = {"sum": "lor", "max": "lor", "prod": "land", "min": "land"}
_IN_BOUNDS = "promise_in_bounds"


def mover(source: Index, target: Index, op: str, dtype: np.dtype, width: int, deterministic: bool) -> Any:
    """Prepare a move between variables; see :func:`collops.graph.packing.numpy_moves.mover`."""

    def move(given: Any, target_variable: Any) -> None:
        target_variable[...] = combined(target_variable.value, target, taken(given.value, source), op)

    return move


def taken(array: Any, index: Index) -> Any:
    """Return the values at an index."""
    run = _run(index)
    return array[run] if run is not None else array.at[index.points].get(mode=_IN_BOUNDS)


def combined(array: Any, index: Index, values: Any, op: str) -> Any:
    """Return an array combined with values, those of one point one after the other."""
    if not index.size:
        return array
    if array.dtype == bool:
        op = _OF_BOOLEANS.get(op, op)
    if op in _TRUTHS:
        return _combined_truths(array, index, values, op)
    if op == "replace" and not index.unique:
        positions, index = index.last()
        values = taken(values, positions)
    run = _run(index)
    place = array.at[index.points if run is None else run]
    return getattr(place, _UPDATES[op])(values, mode=_IN_BOUNDS, unique_indices=index.unique)


def _combined_truths(array: Any, index: Index, values: Any, op: str) -> Any:
    """Combine truth values as numbers: conjunction is the least of them, *exclusive or* the parity of their sum."""
    points = index.segments.points
    update: Callable[..., Any] = getattr((array != 0).astype(jnp.int32).at[index.points], _TRUTHS[op])
    truth = update((values != 0).astype(jnp.int32), mode=_IN_BOUNDS)[points] & 1
    return array.at[points].set(truth.astype(array.dtype), mode=_IN_BOUNDS, unique_indices=True)


def _run(index: Index) -> slice | None:
    pattern = index.affine
    if pattern is None or not pattern.contiguous:
        return None
    return slice(pattern.start, pattern.start + index.size)
