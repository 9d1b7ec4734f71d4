"""Movers of JAX's arrays, which cannot be written to: results are new, and every transformation goes through.

A mover is a gather, an all-to-all-v and a scatter, whose transposes JAX and this package know; so the transpose of a
bcast is a reduce. Inside ``jit`` it is part of the compiled program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collops.errors import UnsupportedTypeError
from collops.graph.moving import UnderWay
from collops.graph.packing import OPERATIONS, Index, check_operation

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.graph.plan import Plan, Side

__all__ = ["TracedMoving"]

_UPDATES = {"replace": "set", "sum": "add", "prod": "multiply", "min": "min", "max": "max"}
_IN_BOUNDS = "promise_in_bounds"


class TracedMoving:
    """A mover of one direction and operation, for arrays of any shape and dtype.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    plan : Plan
        Of the forest.
    down : bool
        From roots to leaves.
    op : str
        As for the movers, but for the logical operations.

    Raises
    ------
    UnsupportedTypeError
        If JAX has no such update.
    """

    def __init__(self, comm: Communicator, plan: Plan, down: bool, op: str) -> None:
        if op in OPERATIONS and op not in _UPDATES:
            raise UnsupportedTypeError(f"JAX's arrays have no update {op!r}; choose one of {', '.join(_UPDATES)}")
        self._comm, self._op = comm, op
        self._leaving, self._arriving = (plan.roots, plan.leaves) if down else (plan.leaves, plan.roots)
        local = plan.local_roots, plan.local_leaves
        self._here, self._there = local if down else local[::-1]
        self._sends = plan.most_points > 0

    def move(self, source: Any, target: Any) -> Any:
        """Return the target combined with the values of the source. Collective.

        Between arrays the result is new; a variable of the engine is written to, if the source is one, too.
        """
        if hasattr(target, "value"):
            result = self.move(getattr(source, "value", source), target.value)
            if not hasattr(source, "value"):
                return result
            target[...] = result
            return target
        check_operation(self._op, source.dtype)
        arrived = None
        if self._sends:
            counts = (_counts(side, self._comm.size) for side in (self._leaving, self._arriving))
            arrived = self._comm.alltoallv(_taken(source, self._leaving.points), *counts)
        target = _combined(target, self._there, _taken(source, self._here), self._op)
        return target if arrived is None else _combined(target, self._arriving.points, arrived, self._op)

    def start(self, source: Any, target: Any) -> UnderWay:
        """Move, and return what needs no more finishing: the order of the work is the compiler's."""
        return UnderWay(None, None, self.move(source, target))


def _counts(side: Side, size: int) -> list[int]:
    counts = [0] * size
    for rank, start, stop in side.segments:
        counts[rank] = stop - start
    return counts


def _taken(array: Any, index: Index) -> Any:
    run = _run(index)
    return array[run] if run is not None else array.at[index.points].get(mode=_IN_BOUNDS)


def _combined(array: Any, index: Index, values: Any, op: str) -> Any:
    if not index.size:
        return array
    if op == "replace" and not index.unique:
        positions, index = index.last()
        values = _taken(values, positions)
    run = _run(index)
    place = array.at[index.points if run is None else run]
    return getattr(place, _UPDATES[op])(values, mode=_IN_BOUNDS, unique_indices=index.unique)


def _run(index: Index) -> slice | None:
    pattern = index.affine
    if pattern is None or not pattern.contiguous:
        return None
    return slice(pattern.start, pattern.start + index.size)
