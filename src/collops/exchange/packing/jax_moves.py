"""Moves between points of JAX arrays: a gather and a scatter, which return new arrays.

All moves can be traced; ``replace`` and ``sum`` have transposes.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from collops.backend import LocalArray
from collops.comm.reductions import LOGICAL, OPERATIONS
from collops.exchange.packing.index import Index

_UPDATES = {"replace": "set", "sum": "add", "prod": "multiply", "min": "min", "max": "max"}
_TRUTHS = {"land": "min", "lor": "max", "lxor": "add"}
_IN_BOUNDS = "promise_in_bounds"


def mover(
    source: Index, target: Index, op: str, dtype: np.dtype, width: int, deterministic: bool
) -> Callable[[LocalArray, LocalArray], LocalArray]:
    """Prepare a move; see :func:`collops.exchange.packing.numpy_moves.mover`. Without a target array it is a gather."""
    if op == "replace":
        source, target = target.last_writes(source)

    def move(source_array: LocalArray, target_array: LocalArray) -> LocalArray:
        values = _values(source_array, source)
        return values if target_array is None else _combined(target_array, target, values, op)

    return move


def fetcher(
    source: Index, target: Index, op: str, dtype: np.dtype, width: int
) -> Callable[..., tuple[LocalArray, LocalArray]]:
    """Prepare a fetch from all points of the source array; see :func:`collops.exchange.packing.numpy_moves.fetcher`."""
    combine = None if op == "replace" else getattr(jnp, OPERATIONS[op].ufunc)
    tables = _turns(target)

    def fetch(values: LocalArray, array: LocalArray, _: object) -> tuple[LocalArray, LocalArray]:
        size = array.shape[0]
        # The result must depend on both arrays also on ranks without points: the derivative of a message is collective.
        before = jnp.concatenate([values, array[:0]])

        def turn(array: LocalArray, where: tuple[LocalArray, LocalArray]) -> tuple[LocalArray, LocalArray]:
            points, slots = where
            old = array.at[points].get(mode="fill", fill_value=0)
            new_values = values.at[slots].get(mode="fill", fill_value=0)
            new = new_values if combine is None else combine(old, new_values).astype(array.dtype)
            return array.at[points].set(new, mode="drop", unique_indices=True), old

        for positions in tables:
            # The padding of short rounds has distinct positions beyond the array.
            idle = positions >= target.size
            known = np.where(idle, 0, positions)
            points = np.where(idle, size + positions, target.points[known])
            slots = np.where(idle, positions, source.points[known])
            array, old = lax.scan(turn, array, (jnp.asarray(points), jnp.asarray(slots)))
            flat = old.reshape(slots.size, *values.shape[1:])
            before = before.at[slots.reshape(-1)].set(flat, mode="drop", unique_indices=True)
        return before, array

    return fetch


def _values(array: LocalArray, index: Index) -> LocalArray:
    return array.at[index.points].get(mode=_IN_BOUNDS) if index.slice is None else array[index.slice]


def _combined(array: LocalArray, index: Index, values: LocalArray, op: str) -> LocalArray:
    """Return an array combined with values; values of one point are combined one after the other."""
    if not index.size:
        return array
    if array.dtype == bool:
        op = LOGICAL.get(op, op)
    if op in _TRUTHS:
        return _combined_truths(array, index, values, op)
    where = index.points if index.slice is None else index.slice
    return getattr(array.at[where], _UPDATES[op])(values, mode=_IN_BOUNDS, unique_indices=index.unique)


def _combined_truths(array: LocalArray, index: Index, values: LocalArray, op: str) -> LocalArray:
    """Combine truth values as integers: *and* is their minimum, *exclusive or* the parity of their sum."""
    points = index.segments.points
    update: Callable[..., LocalArray] = getattr((array != 0).astype(jnp.int32).at[index.points], _TRUTHS[op])
    truth = update((values != 0).astype(jnp.int32), mode=_IN_BOUNDS)[points] & 1
    return array.at[points].set(truth.astype(array.dtype), mode=_IN_BOUNDS, unique_indices=True)


def _turns(index: Index) -> list[np.ndarray]:
    """Return the positions of each round, in tables of rounds whose lengths differ by a factor of at most two.

    Each table is one loop of a compiled program, whose size thus grows with the logarithm of the number of points.
    Short rounds are padded with positions beyond the index.
    """
    tables: list[list[np.ndarray]] = []
    for turn in index.rounds:  # which get shorter
        if not tables or 2 * len(turn) <= len(tables[-1][0]):
            tables.append([])
        tables[-1].append(turn)
    padded = []
    for table in tables:
        shape = len(table), len(table[0])
        positions = index.size + np.arange(shape[0] * shape[1]).reshape(shape)
        for row, turn in zip(positions, table, strict=True):
            row[: len(turn)] = turn
        padded.append(positions)
    return padded
