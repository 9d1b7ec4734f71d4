"""Exchange plans: who sends which boxes of an array to whom, computed once and used for every array alike.

Halos and redistributions are plans. A plan knows peers, boxes and element counts, so a message carries values and
nothing else. The *description* (the boxes) is this object; the *data* (arrays, buffers, messages under way) is in
the :class:`Exchange` that :meth:`ExchangePlan.start` returns, so that several may be in flight at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from collops.backend import engine_of
from collops.errors import REFUSALS, LayoutError, UnsupportedTypeError
from collops.profile import benchmark, mark, messages

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
    parts : sequence of int, optional
        For each send, the number of the source array that its box is of, when there are several; none may then be to
        this rank itself.

    Raises
    ------
    LayoutError
        If a peer is no rank of `comm`, or what this rank sends to itself does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.comm import alone
    >>> first, last = (slice(0, 2),), (slice(2, 4),)
    >>> plan = collops.ExchangePlan(alone(), sends=[(0, first)], receives=[(0, last)])  # rank 0 is this one
    >>> target = np.zeros(4)
    >>> plan.start(np.array([1.0, 2.0, 0.0, 0.0]), target).finish()
    array([0., 0., 1., 2.])
    """

    def __init__(
        self,
        comm: Communicator,
        sends: Sequence[tuple[int, Box]],
        receives: Sequence[tuple[int, Box]],
        kind: str = "exchange",
        parts: Sequence[int] | None = None,
    ) -> None:
        if not hasattr(comm, "next_plan_tag"):
            raise UnsupportedTypeError(f"an exchange needs a communicator, not {type(comm).__qualname__}")
        for peer, _ in (*sends, *receives):
            if peer not in range(comm.size):
                raise LayoutError(f"an exchange names rank {peer!r}, but there are {comm.size} ranks")
        self.comm = comm
        self.kind = kind
        numbers = [0] * len(sends) if parts is None else parts
        self._several = parts is not None
        self._sends = _remote(sends, numbers, comm.rank)
        self._receives = _remote(receives, [0] * len(receives), comm.rank)
        sources = [box for peer, box in sends if peer == comm.rank]
        targets = [box for peer, box in receives if peer == comm.rank]
        if [_extent(box) for box in sources] != [_extent(box) for box in targets]:
            raise LayoutError("what a rank sends to itself must have the shape of what it receives from itself")
        self._local = list(zip(sources, targets, strict=True))
        self._tag = comm.next_plan_tag()
        self._elements = sum(send.elements for send in self._sends)
        self._places: dict[Any, tuple[list[int | None], list[int | None]]] = {}

    def start(self, source: Any, target: Any, *, on_side_stream: bool = False) -> Exchange:
        """Start moving boxes of `source` into boxes of `target`.

        Collective. `source` may be changed after :meth:`Exchange.finish`, which returns the filled target.

        Parameters
        ----------
        source : array, or sequence of array where the plan has `parts`
            Local arrays of one engine and dtype.
        target : array
            Another of the same engine and dtype; filled where its engine can write to it.
        on_side_stream : bool
            Whether the transport may use a stream of its own, so that messages overlap with work that is launched
            before the exchange is finished. On devices that costs the host a few microseconds.

        Raises
        ------
        UnsupportedTypeError
            If engines or dtypes differ.
        """
        sources = source if self._several else (source,)
        try:
            engine = engine_of(target)
            for given in sources:
                if engine_of(given) is not engine or given.dtype != target.dtype:
                    raise UnsupportedTypeError("the source and the target of an exchange must share engine and dtype")
            if engine.mutable:
                for given, taken in self._local:
                    target[taken] = source[given]
        except REFUSALS as error:
            self.comm.refuse("exchange", error)
            raise
        if messages.active and self.comm.size > 1:
            messages.record(self.kind, self._elements, self._elements * target.dtype.itemsize)
        if engine.traced:
            local = [(taken, source[given]) for given, taken in self._local]
            return _TracedExchange(target, [*local, *self._exchanged(engine, sources)], None)
        if self.comm.size == 1:
            return Exchange(target, [], None)
        transport = self.comm.begin(target)
        xp = engine.xp
        if transport.by_address:
            return self._start_by_address(transport, sources, target, xp, on_side_stream)
        sends = [(peer, xp.ascontiguousarray(sources[part][box])) for peer, part, box, *_ in self._sends]
        landings = []
        for peer, _, box, shape, _ in self._receives:
            view = target[box]
            landing = view if view.flags.c_contiguous else xp.empty(shape, target.dtype)
            landings.append((peer, view, landing))
        with mark("communication"):
            pending = transport.start_exchange(sends, [(peer, landing) for peer, _, landing in landings], self._tag)
        return Exchange(target, [(view, landing) for _, view, landing in landings], pending, sends)

    def _exchanged(self, engine: Any, sources: Any) -> list[tuple[Any, Any]]:
        """Return the boxes of the target and the values received for them, by the program that is being traced."""
        if self.comm.size == 1:
            return []
        arrived = engine.methods.exchange(
            self.comm,
            sources[0],
            [sources[send.part][send.box] for send in self._sends],
            [send.peer for send in self._sends],
            [receive.shape for receive in self._receives],
            [receive.peer for receive in self._receives],
        )
        return [(receive.box, values) for receive, values in zip(self._receives, arrived, strict=True)]

    @benchmark(label="communication")
    def _start_by_address(self, transport: Any, sources: Any, target: Any, xp: Any, on_side_stream: bool) -> Exchange:
        """Start messages from and to where the boxes lie, without a view of each, which costs more than its message."""
        itemsize = target.dtype.itemsize
        sent_from, landed_at = self._places_in(sources, target)
        packed = []
        sends = []
        for (peer, part, box, _, elements), place in zip(self._sends, sent_from, strict=True):
            if place is None:
                array = xp.ascontiguousarray(sources[part][box])
                packed.append(array)
                address = array.data.ptr
            else:
                address = sources[part].data.ptr + place
            sends.append((peer, address, elements * itemsize))
        landings = []
        receives = []
        for (peer, _, box, shape, elements), place in zip(self._receives, landed_at, strict=True):
            if place is None:
                landing = xp.empty(shape, target.dtype)
                landings.append((target[box], landing))
                address = landing.data.ptr
            else:
                address = target.data.ptr + place
            receives.append((peer, address, elements * itemsize))
        pending = transport.start_addresses(sends, receives, on_side_stream)
        return Exchange(target, landings, pending, packed)

    def _places_in(self, sources: Any, target: Any) -> tuple[list[int | None], list[int | None]]:
        """Return how many bytes behind the start of its array each box begins; ``None`` if it is not contiguous."""
        key = (tuple((array.shape, array.strides) for array in sources), target.shape, target.strides)
        places = self._places.get(key)
        if places is None:
            places = self._places[key] = (
                [_place(box, sources[part]) for _, part, box, *_ in self._sends],
                [_place(box, target) for _, _, box, *_ in self._receives],
            )
        return places

    def __call__(self, source: Any, target: Any) -> Any:
        """Start, finish, and return the filled target. Collective."""
        return self.start(source, target).finish()


class Exchange:
    """One use of a plan, under way.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.comm import alone
    >>> first, last = (slice(0, 2),), (slice(2, 4),)
    >>> plan = collops.ExchangePlan(alone(), sends=[(0, first)], receives=[(0, last)])
    >>> exchange = plan.start(np.array([1.0, 2.0, 0.0, 0.0]), np.zeros(4))
    >>> exchange.finish()  # overlap computation before this call
    array([0., 0., 1., 2.])
    """

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

    def finish(self, target: Any = None) -> Any:
        """Wait for the messages (on devices: order the current stream after them) and return the filled target.

        Parameters
        ----------
        target : array, optional
            The target as it is now, if an engine of immutable arrays has replaced it since the start.
        """
        if target is not None:
            self._target = target
        if self._pending is not None:
            with mark("communication: finish"):
                self._pending.wait()
            self._pending = None
            for view, landing in self._landings:
                if landing is not view:
                    view[...] = landing
            self._landings = []
            self._sends = ()
        return self._target


class _TracedExchange(Exchange):
    """Messages of a program that is being traced, whose order is the compiler's."""

    __slots__ = ()

    def finish(self, target: Any = None) -> Any:
        """Return the target with the received values."""
        result = super().finish(target)
        for box, values in self._landings:
            result = engine_of(result).put(result, box, values)
        self._target, self._landings = result, []
        return result


class _Side(NamedTuple):
    """One end of a message: the other rank, the number of the array here, and the box of it."""

    peer: int
    part: int
    box: Box
    shape: tuple[int, ...]
    elements: int


def _remote(boxes: Sequence[tuple[int, Box]], parts: Sequence[int], rank: int) -> list[_Side]:
    return [
        _Side(peer, part, box, _extent(box), prod(_extent(box)))
        for (peer, box), part in zip(boxes, parts, strict=True)
        if peer != rank and prod(_extent(box))
    ]


def _place(box: Box, array: Any) -> int | None:
    """Return how many bytes behind the start of `array` a box begins; ``None`` if it is not contiguous."""
    expected = array.dtype.itemsize
    for axis, extent, stride in reversed(list(zip(box, array.shape, array.strides, strict=True))):
        length = len(range(axis.start, axis.stop, axis.step or 1))
        if (axis.step or 1) != 1 or axis.stop > extent or (length > 1 and stride != expected):
            return None
        expected *= length
    return sum(axis.start * stride for axis, stride in zip(box, array.strides, strict=True))


def _extent(box: Box) -> tuple[int, ...]:
    return tuple(len(range(axis.start, axis.stop, axis.step or 1)) for axis in box)
