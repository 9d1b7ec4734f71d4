"""Movers of JAX's arrays, which cannot be written to: results are new, and every transformation goes through.

A mover is a gather, an all-to-all-v and a scatter, whose transposes JAX and this package know; so the transpose of a
bcast is a reduce. Inside ``jit`` it is part of the compiled program, whose order is the compiler's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from collops.graph.moving import UnderWay
from collops.graph.packing import Index, check_operation

if TYPE_CHECKING:
    import numpy as np

    from collops.comm import Communicator
    from collops.graph.plan import Plan

__all__ = ["TracedFetching", "TracedMoving", "TracedUnderWay"]


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
        As for the movers.
    """

    def __init__(self, comm: Communicator, plan: Plan, down: bool, op: str) -> None:
        self._comm, self._op = comm, op
        self._leaving, self._arriving = (plan.roots, plan.leaves) if down else (plan.leaves, plan.roots)
        local = plan.local_roots, plan.local_leaves
        self._here, self._there = local if down else local[::-1]
        self._sends = plan.most_points > 0
        self._moves = importlib.import_module("collops.graph.packing.jax_moves")

    def move(self, source: Any, target: Any) -> Any:
        """Return the target combined with the values of the source. Collective.

        Between arrays the result is new; a variable of the engine is written to, if the source is one, too.
        """
        return self.start(source, target).finish()

    def start(self, source: Any, target: Any) -> TracedUnderWay:
        """Send what leaves, and combine what stays; the rest is combined at the end."""
        check_operation(self._op, source.dtype)
        kept = target if hasattr(target, "value") and hasattr(source, "value") else None
        values, result = getattr(source, "value", source), getattr(target, "value", target)
        arrived = None
        if self._sends:
            counts = (side.counts(self._comm.size) for side in (self._leaving, self._arriving))
            arrived = self._comm.alltoallv(self._moves.taken(values, self._leaving.points), *counts)
        under_way = TracedUnderWay(self, kept, result, arrived)
        under_way.combine(self._there, self._moves.taken(values, self._here))
        return under_way

    def combined(self, array: Any, index: Index, values: Any) -> Any:
        """Return an array combined with values."""
        return self._moves.combined(array, index, values, self._op)

    @property
    def arriving(self) -> Index:
        """Points of the target that what arrives is combined with."""
        return self._arriving.points


class TracedUnderWay(UnderWay):
    """A mover of JAX arrays between start and finish.

    Parameters
    ----------
    moving : TracedMoving
    variable : Variable or None
        Gets the result.
    result : jax.Array
        The target so far; of a variable, which may be changed before the end, what it held at the start.
    arrived : jax.Array or None
        What other ranks have sent.
    """

    __slots__ = ("_arrived", "_arriving", "_combined", "_variable")

    def __init__(self, moving: TracedMoving, variable: Any, result: Any, arrived: Any) -> None:
        super().__init__(None, None, result)
        self._combined, self._arriving = moving.combined, moving.arriving
        self._variable, self._arrived = variable, arrived

    def combine(self, index: Index, values: Any) -> None:
        """Combine the target with values."""
        if self._variable is None:
            self._target = self._combined(self._target, index, values)
        elif index.size:
            self._variable[...] = self._combined(self._variable.value, index, values)

    def finish(self) -> Any:
        """Combine the target with what has arrived, and return it. Collective."""
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            self.combine(self._arriving, arrived)
        return self._target if self._variable is None else self._variable


class TracedFetching:
    """Values of leaves combined with their roots, one after the other, for arrays of any shape.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    plan : Plan
        Of the forest.
    op : str
        As for the movers.
    dtype : dtype
        Of the values.
    """

    def __init__(self, comm: Communicator, plan: Plan, op: str, dtype: np.dtype) -> None:
        check_operation(op, dtype)
        self._comm, self._plan, self._op = comm, plan, op
        self._sends = plan.most_points > 0
        self._wanted, self._given = (side.counts(comm.size) for side in (plan.leaves, plan.roots))
        self._moves = importlib.import_module("collops.graph.packing.jax_moves")

    def start(self, roots: Any, leaves: Any, fetched: Any) -> TracedUnderWayFetch:
        """Send the leaves' values."""
        values, plan = getattr(leaves, "value", leaves), self._plan
        arrived = None
        if self._sends:
            leaving = self._moves.taken(values, plan.leaves.points)
            arrived = self._comm.alltoallv(leaving, self._wanted, self._given)
        here = self._moves.taken(values, plan.local_leaves)
        return TracedUnderWayFetch(self, here, arrived, roots, fetched)

    def complete(self, here: Any, arrived: Any, roots: Any, fetched: Any) -> tuple[Any, Any]:
        """Return what the leaves fetched, and the roots after it."""
        moves, plan = self._moves, self._plan
        before, roots = moves.fetched(roots, plan.local_roots, here, self._op)
        fetched = moves.combined(fetched, plan.local_leaves, before, "replace")
        if arrived is not None:
            before, roots = moves.fetched(roots, plan.roots.points, arrived, self._op)
            answers = self._comm.alltoallv(before, self._given, self._wanted)
            fetched = moves.combined(fetched, plan.leaves.points, answers, "replace")
        return fetched, roots


class TracedUnderWayFetch:
    """A ``fetch_and_op`` of JAX arrays between start and finish."""

    __slots__ = ("_arguments", "_fetched", "_roots")

    def __init__(self, fetching: TracedFetching, here: Any, arrived: Any, roots: Any, fetched: Any) -> None:
        self._arguments: Any = (fetching, here, arrived)
        self._roots, self._fetched = roots, fetched

    def finish(self) -> Any:
        """Combine the values; return what the leaves fetched, and beside it roots that are not written to. Collective.

        Variables are written to, so that their roots need not be returned.
        """
        written = hasattr(self._roots, "value") and hasattr(self._fetched, "value")
        if self._arguments is not None:
            (fetching, *values), self._arguments = self._arguments, None
            given = (getattr(array, "value", array) for array in (self._roots, self._fetched))
            fetched, roots = fetching.complete(*values, *given)
            if written:
                self._roots[...], self._fetched[...] = roots, fetched
            else:
                self._roots, self._fetched = roots, fetched
        return self._fetched if written else (self._fetched, self._roots)
