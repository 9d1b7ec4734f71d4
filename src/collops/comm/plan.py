"""Exchange plans: who sends which boxes of an array to whom, computed once and used for every array alike.

Halos and redistributions are plans. A plan knows peers, boxes and element counts, so a message carries values and
nothing else. The *description* (the boxes) is this object; the *data* (arrays, buffers, messages under way) is in
the :class:`Exchange` that :meth:`ExchangePlan.start` returns, so that several may be in flight at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from collops.backend import engine_of
from collops.errors import LayoutError, UnsupportedTypeError
from collops.profile import messages

if TYPE_CHECKING:
    from collops.comm.communicator import Communicator
    from collops.comm.transport import Pending

__all__ = ["Box", "Exchange", "ExchangePlan"]

Box: TypeAlias = tuple[slice, ...]
"""One slice per axis, with explicit non-negative start and stop."""


class ExchangePlan:
    """A fixed pattern of messages between boxes of local arrays. Collective: all ranks make it, in the same order.

    Parameters
    ----------
    comm : Communicator
        Whose ranks take part.
    sends : sequence of (int, Box)
        The rank that gets a box of this rank's source array.
    receives : sequence of (int, Box)
        The rank whose values land in a box of this rank's target array. The *n*-th receive from a rank is its *n*-th
        send to this one. Boxes of one target must not overlap.
    kind : str
        The name under which :func:`collops.profile.count_messages` counts the exchange.

    Raises
    ------
    LayoutError
        If a peer is no rank of `comm`, or what this rank sends to itself does not fit.
    """

    def __init__(
        self,
        comm: Communicator,
        sends: Sequence[tuple[int, Box]],
        receives: Sequence[tuple[int, Box]],
        kind: str = "exchange",
    ) -> None:
        for peer, _ in (*sends, *receives):
            if not 0 <= peer < comm.size:
                raise LayoutError(f"an exchange names rank {peer}, but there are {comm.size} ranks")
        self.comm = comm
        self.kind = kind
        self._sends = _remote(sends, comm.rank)
        self._receives = _remote(receives, comm.rank)
        sources = [box for peer, box in sends if peer == comm.rank]
        targets = [box for peer, box in receives if peer == comm.rank]
        if [_extent(box) for box in sources] != [_extent(box) for box in targets]:
            raise LayoutError("what a rank sends to itself must have the shape of what it receives from itself")
        self._local = list(zip(sources, targets, strict=True))
        self._tag = comm.next_plan_tag()
        self._elements = sum(prod(shape) for _, _, shape in self._sends)

    def start(self, source: Any, target: Any) -> Exchange:
        """Start moving boxes of `source` into boxes of `target`.

        Collective. `source` may be changed, and `target` read, after :meth:`Exchange.finish`.

        Parameters
        ----------
        source, target : array
            Local arrays of one engine and dtype.

        Raises
        ------
        UnsupportedTypeError
            If engines or dtypes differ, or the engine cannot be written in place.
        """
        engine = engine_of(target)
        if engine_of(source) is not engine or source.dtype != target.dtype:
            raise UnsupportedTypeError("the source and the target of an exchange must share engine and dtype")
        if not engine.mutable:
            raise UnsupportedTypeError(f"arrays of {engine.name} cannot be the target of an exchange")
        for given, taken in self._local:
            target[taken] = source[given]
        if self.comm.size == 1:
            return Exchange(target, [], None)
        xp = engine.xp
        sends = [(peer, xp.ascontiguousarray(source[box])) for peer, box, _ in self._sends]
        landings = []
        for peer, box, shape in self._receives:
            view = target[box]
            landing = view if view.flags.c_contiguous else xp.empty(shape, target.dtype)
            landings.append((peer, view, landing))
        if messages.active:
            messages.record(self.kind, self._elements, self._elements * source.dtype.itemsize)
        transport = self.comm.transport_of(target)
        pending = transport.start_exchange(sends, [(peer, landing) for peer, _, landing in landings], self._tag)
        return Exchange(target, [(view, landing) for _, view, landing in landings], pending, sends)

    def __call__(self, source: Any, target: Any) -> Any:
        """Start, finish, and return `target`. Collective."""
        return self.start(source, target).finish()


class Exchange:
    """One use of a plan, under way."""

    __slots__ = ("_landings", "_pending", "_sends", "_target")

    def __init__(
        self,
        target: Any,
        landings: list[tuple[Any, Any]],
        pending: Pending | None,
        sends: Sequence[tuple[int, Any]] = (),
    ) -> None:
        self._target = target
        self._landings = landings
        self._pending = pending
        self._sends = sends  # packed boxes must live until the messages have left

    def finish(self) -> Any:
        """Wait for the messages (on devices: order the current stream after them) and return the target."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
            for view, landing in self._landings:
                if landing is not view:
                    view[...] = landing
            self._landings = []
            self._sends = ()
        return self._target


def _remote(boxes: Sequence[tuple[int, Box]], rank: int) -> list[tuple[int, Box, tuple[int, ...]]]:
    return [(peer, box, _extent(box)) for peer, box in boxes if peer != rank and prod(_extent(box))]


def _extent(box: Box) -> tuple[int, ...]:
    return tuple(len(range(axis.start, axis.stop, axis.step or 1)) for axis in box)
