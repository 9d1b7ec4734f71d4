"""Movers of one direction, prepared once for each kind of array, and their state between start and finish."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from collops.errors import LayoutError, UnsupportedTypeError
from collops.graph.packing import Index, check_operation, packing_for
from collops.graph.wires.wire import Motion
from collops.profile import benchmark, mark, messages
from collops.profile.marks import Span, active

if TYPE_CHECKING:
    import numpy as np

    from collops.backend import Engine
    from collops.graph.plan import Plan
    from collops.graph.wires.wire import Channel, Transfer

__all__ = ["Fetching", "Moving", "UnderWay", "flat_points"]


class UnderWay:
    """A mover between start and finish: its source may be changed at once, its target is complete at the end."""

    __slots__ = ("_moving", "_target", "_transfer")

    def __init__(self, moving: Moving, transfer: Transfer | None, target: Any) -> None:
        self._moving = moving
        self._transfer = transfer
        self._target = target

    def finish(self) -> Any:
        """Wait for the values (on devices: order the current stream after them), and return the target. Collective.

        Movers may be finished in any order, which need not be the same on all ranks.
        """
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            self._target = self._moving.complete(transfer, self._target)
        return self._target


class Moving:
    """Values of one dtype and block moved from roots to leaves, or the other way, and combined there.

    Parameters
    ----------
    plan : Plan
        Of the forest.
    down : bool
        From roots to leaves.
    op : str
        How values are combined with those of the target.
    block : tuple of int
        Shape of the values of a point.
    dtype : dtype
        Of the values.
    engine : Engine
        Of the arrays.
    channel : Channel or None
        Carries the values that leave this rank; ``None`` where no rank sends anything.
    deterministic : bool
        Whether sums have one order.

    Attributes
    ----------
    move : callable
        Takes source and target, both checked; moves from start to end, and returns the target.
    """

    __slots__ = ("_begin", "_elements", "_finish", "_nbytes", "_sends", "_shape", "_start", "_stay", "move")

    def __init__(
        self,
        plan: Plan,
        down: bool,
        op: str,
        block: tuple[int, ...],
        dtype: np.dtype,
        engine: Engine,
        channel: Channel | None,
        deterministic: bool,
    ) -> None:
        check_operation(op, dtype)
        width = prod(block)
        self._shape = () if width == 1 else (width,)
        source, target = (plan.roots, plan.leaves) if down else (plan.leaves, plan.roots)
        here, there = (plan.local_roots, plan.local_leaves) if down else (plan.local_leaves, plan.local_roots)
        motion = Motion(source.points, target.points, here, there, op, dtype, width, deterministic, packing_for(engine))
        self._sends = channel is not None and width > 0
        self._elements = source.points.size * width
        self._nbytes = self._elements * dtype.itemsize
        self._stay: Any = None
        if channel is not None and width:
            self._begin = channel.begin
            self._start, self._finish = channel.starter(motion), channel.finisher(motion)
            self.move = self._sending(channel.mover(motion), len(block) == len(self._shape))
        else:
            self._stay = motion.move(here, there) if width else None
            self.move = lambda source, target: self.start(source, target).finish()

    def _sending(self, carry: Callable[[Any, Any], Any], flat: bool) -> Callable[[Any, Any], Any]:
        """Return the mover from start to end; more calls than these would delay small messages."""
        elements, nbytes, shape = self._elements, self._nbytes, self._shape

        def move(source: Any, target: Any) -> Any:
            if messages.active:
                messages.record("exchange", elements, nbytes)
            if not active:  # without the cost of a mark
                return carry(source, target)
            with Span("communication"):
                return carry(source, target)

        def move_blocks(source: Any, target: Any) -> Any:
            points = _points(target, shape)
            return _shaped(move(_points(source, shape), points), points, target)

        return move if flat else move_blocks

    def start(self, source: Any, target: Any) -> UnderWay:
        """Start moving; both arrays have been checked."""
        given, points = _points(source, self._shape), _points(target, self._shape)
        result, transfer = points, None
        if self._sends:
            if messages.active:
                messages.record("exchange", self._elements, self._nbytes)
            with mark("communication"):
                transfer = self._begin()
                result = self._start(given, points, transfer)
        elif self._stay is not None:
            result = self._stay(given, points)
        return UnderWay(self, transfer, _shaped(result, points, target))

    @benchmark(label="communication: finish")
    def complete(self, transfer: Transfer, target: Any) -> Any:
        """Combine the target with the values that arrived, and return it."""
        points = _points(target, self._shape)
        return _shaped(self._finish(transfer, points), points, target)


class Fetching:
    """Values of leaves combined with their roots, one after the other, each leaf getting what its root had before.

    Parameters
    ----------
    plan, op, block, dtype, engine
        See :class:`Moving`.
    up, down : Channel or None
        Carry the leaves' values and the answers.
    """

    def __init__(
        self,
        plan: Plan,
        op: str,
        block: tuple[int, ...],
        dtype: np.dtype,
        engine: Engine,
        up: Channel | None,
        down: Channel | None,
    ) -> None:
        check_operation(op, dtype)
        width = prod(block)
        moves = packing_for(engine)
        self._shape = () if width == 1 else (width,)
        self._up, self._down = (up, down) if width else (None, None)
        self._gather = moves.mover(plan.local_leaves, Index.run(plan.local_leaves.size), "replace", dtype, width, True)
        self._fetch_local = moves.fetcher(Index.run(plan.local_roots.size), plan.local_roots, op, dtype, width)
        self._scatter = moves.mover(Index.run(plan.local_leaves.size), plan.local_leaves, "replace", dtype, width, True)
        self._local = plan.local_leaves.size if width else 0
        self._send: Any = None
        self._answer: Any = None
        if self._up is not None and self._down is not None:
            nothing, arrived = Index.run(0), Index.run(plan.roots.points.size)
            self._send = self._up.starter(
                Motion(plan.leaves.points, arrived, nothing, nothing, "replace", dtype, width, True, moves)
            )
            self._answer = self._down.starter(
                Motion(arrived, plan.leaves.points, nothing, nothing, "replace", dtype, width, True, moves)
            )
        self._fetch = moves.fetcher(Index.run(plan.roots.points.size), plan.roots.points, op, dtype, width)
        self._unpack = moves.mover(
            Index.run(plan.leaves.points.size), plan.leaves.points, "replace", dtype, width, True
        )
        self._new = lambda points: engine.xp.empty((points, *self._shape), dtype)
        self.returns_roots = not engine.mutable
        self._elements = plan.leaves.points.size * width, plan.roots.points.size * width
        self._itemsize = dtype.itemsize

    def start(self, roots: Any, leaves: Any, fetched: Any) -> UnderWayFetch:
        """Send the leaves' values; all arrays have been checked."""
        shape = self._shape
        given = _points(leaves, shape)
        transfer = None
        if self._up is not None:
            transfer = self._up.begin()
            self._send(given, given, transfer)
            self._record(0)
        mine = None
        if self._local:
            mine = self._gather(given, self._new(self._local))
        return UnderWayFetch(self, transfer, mine, roots, fetched)

    def complete(self, transfer: Transfer | None, mine: Any, roots: Any, fetched: Any) -> tuple[Any, Any]:
        """Combine, answer, take the answers, and return the fetched values and the roots."""
        shape = self._shape
        given, points = _points(roots, shape), _points(fetched, shape)
        sums, result = given, points
        if mine is not None:
            before, sums = self._fetch_local(mine, sums, mine)
            result = self._scatter(before, result)
        if transfer is not None and self._down is not None:
            transfer.wait()
            before, sums = self._fetch(transfer.incoming, sums, transfer.incoming)
            answer = self._down.begin()
            self._answer(before, before, answer)
            transfer.release()
            self._record(1)
            answer.wait()
            result = self._unpack(answer.incoming, result)
            answer.release()
        return _shaped(result, points, fetched), _shaped(sums, given, roots)

    def _record(self, way: int) -> None:
        if messages.active:
            messages.record("exchange", self._elements[way], self._elements[way] * self._itemsize)


class UnderWayFetch:
    """A ``fetch_and_op`` between start and finish. All ranks finish those of one forest in the same order."""

    __slots__ = ("_arguments", "_fetching", "_result")

    def __init__(self, fetching: Fetching, *arguments: Any) -> None:
        self._fetching = fetching
        self._arguments: tuple[Any, ...] | None = arguments
        self._result: Any = None

    def finish(self) -> Any:
        """Combine the values, and return what :meth:`Movers.fetch_and_op` returns. Collective."""
        if self._arguments is not None:
            fetched, roots = self._fetching.complete(*self._arguments)
            self._result = (fetched, roots) if self._fetching.returns_roots else fetched
            self._arguments = None
        return self._result


def _points(array: Any, shape: tuple[int, ...]) -> Any:
    """Return an array with one axis of points, and at most one for the values of a point."""
    return array if array.ndim == len(shape) + 1 else array.reshape(array.shape[0], *shape)


def _shaped(result: Any, points: Any, target: Any) -> Any:
    """Return a result in the shape of the target: the target itself where its memory, `points`, was written to."""
    return target if result is points else result.reshape(target.shape)


def flat_points(array: Any, engine: Engine, points: int, exact: bool, name: str, written: bool) -> Any:
    """Check one array of a mover and return it, contiguous.

    Raises
    ------
    LayoutError
        If it has not as many points as needed, or must be written to and is not contiguous.
    """
    if array.ndim == 0 or array.shape[0] < points or (exact and array.shape[0] != points):
        wanted = f"{points}" if exact else f"at least {points}"
        raise LayoutError(f"{name} must have {wanted} points along the first axis, not shape {tuple(array.shape)}")
    if not engine.mutable or array.flags.c_contiguous:
        return array
    if written:
        raise LayoutError(f"{name} must be contiguous, since they are written to")
    return engine.xp.ascontiguousarray(array)


def check_alike(source: Any, target: Any, engine: Engine, engine_of_target: Engine) -> None:
    """Check that two arrays of a mover have one engine, dtype and block.

    Raises
    ------
    UnsupportedTypeError
        If engines or dtypes differ.
    LayoutError
        If the shapes of their points differ.
    """
    if engine_of_target is not engine or source.dtype != target.dtype:
        raise UnsupportedTypeError("roots and leaves must share engine and dtype")
    if source.shape[1:] != target.shape[1:]:
        raise LayoutError(
            f"a point has the shape {tuple(source.shape[1:])} among the source and {tuple(target.shape[1:])} "
            "among the target"
        )
