"""Exchanges of boxes, which travel from and to where they lie in local arrays, by the communicator's own transport.

A plan knows peers, boxes and element counts, so a message carries values and nothing else. Contiguous boxes are neither
packed nor unpacked, and nothing is kept between calls. Halos, derivatives and redistributions are such plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from collops.backend import engine_of
from collops.comm.transport import KnownExchange
from collops.errors import ARGUMENT_ERRORS, LayoutError, UnsupportedTypeError
from collops.exchange.exchange import InFlight
from collops.profile import messages
from collops.profile.marks import Span, active

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.exchange.pattern import Box


class ExchangePlan:
    """A fixed pattern of messages between boxes of local arrays. Collective: all ranks make it, in the same order.

    Parameters
    ----------
    comm : Communicator
    sends : sequence of (int, Box)
        The rank that receives a box of this rank's source array.
    receives : sequence of (int, Box)
        The rank whose values fill a box of this rank's target array. The *n*-th receive from a rank is its *n*-th
        send to this one. Boxes of one target must not overlap, unless values are added.
    kind : str
        The name under which :func:`collops.profile.count_messages` counts the exchange.
    parts : sequence of int, optional
        For each send, the number of the source array that its box is of, when there are several; none may then be to
        this rank itself.
    travels : bool
        Whether any rank sends anything to another one, the same on all ranks. Otherwise nothing is sent or counted.

    Raises
    ------
    LayoutError
        If a peer is not a rank of `comm`, or what this rank sends to itself does not fit.

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

    _short_messages = True  # whether they may go by stores into the memory of other GPUs of one host

    def __init__(
        self,
        comm: Communicator,
        sends: Sequence[tuple[int, Box]],
        receives: Sequence[tuple[int, Box]],
        kind: str = "exchange",
        parts: Sequence[int] | None = None,
        *,
        travels: bool = True,
    ) -> None:
        if not hasattr(comm, "next_plan_tag"):
            raise UnsupportedTypeError(f"an exchange needs a communicator, not {type(comm).__qualname__}")
        for peer, _ in (*sends, *receives):
            if peer not in range(comm.size):
                raise LayoutError(f"an exchange names rank {peer!r}, but there are {comm.size} ranks")
        self.comm = comm
        self.kind = kind
        self._several = parts is not None
        self.travels = travels and comm.size > 1
        self._sends = _remote(sends, [0] * len(sends) if parts is None else parts, comm.rank)
        self._receives = _remote(receives, [0] * len(receives), comm.rank)
        sources = [box for peer, box in sends if peer == comm.rank]
        targets = [box for peer, box in receives if peer == comm.rank]
        if [extent(box) for box in sources] != [extent(box) for box in targets]:
            raise LayoutError("what a rank sends to itself must have the shape of what it receives from itself")
        self._local = list(zip(sources, targets, strict=True))
        self._tag = comm.next_plan_tag()
        self._elements = sum(send.elements for send in self._sends)
        self._places: dict[Any, _Places] = {}

    def start(self, source: Any, target: Any, *, on_side_stream: bool = False, op: str = "replace") -> InFlight:
        """Start moving boxes of `source` into boxes of `target`.

        Collective. `source` may be changed after :meth:`InFlight.finish`, which returns the filled target.

        Parameters
        ----------
        source : array, or sequence of array where the plan has `parts`
            Local arrays of one engine and dtype.
        target : array
            Another of the same engine and dtype; filled where its engine is mutable.
        on_side_stream : bool
            Whether the transport may use a stream of its own, so that messages overlap with work that is launched
            before the exchange is finished. On devices that costs the host a few microseconds.
        op : str
            ``"replace"``, or ``"sum"`` to add to the values of the target.

        Raises
        ------
        UnsupportedTypeError
            If engines or dtypes differ, or there is no such `op`.
        LayoutError
            If an array does not contain its boxes.
        """
        sources = source if self._several else (source,)
        try:
            engine, dtype = engine_of(target), target.dtype
            for given in sources:
                if (type(given) is not type(target) and engine_of(given) is not engine) or given.dtype != dtype:
                    raise UnsupportedTypeError("the source and the target of an exchange must share engine and dtype")
            if op != "replace" and op != "sum":
                raise UnsupportedTypeError(f"boxes are combined by 'replace' or 'sum', not {op!r}")
            combine = engine.put if op == "replace" else engine.add
            places = self._places_in(sources, target) if engine.mutable else None
        except ARGUMENT_ERRORS as error:
            self.comm.reject("exchange", error)
            raise
        complete = None
        if messages.active and self.travels:
            messages.record(self.kind, self._elements, self._elements * dtype.itemsize)
        if places is None:
            values = [(taken, source[given]) for given, taken in self._local]
            if self.travels:
                values += self._exchanged(engine, sources)
            return InFlight(partial(_combined, combine, values), target)
        if self.travels:
            transport = self.comm.begin(target)
            begin = self._start_arrays
            if transport.by_address:
                begin = partial(self._start_by_address, places, on_side_stream)
            arguments = transport, sources, target, engine, combine, op == "replace"
            if active:  # without the cost of a mark
                with Span("communication"):
                    complete = begin(*arguments)
            else:
                complete = begin(*arguments)
        # After the messages, since the neighbours wait for those.
        for given, taken in self._local:
            combine(target, taken, source[given])
        return InFlight(complete, target)

    def __call__(self, source: Any, target: Any, *, op: str = "replace") -> Any:
        """Start, finish, and return the filled target. Collective."""
        return self.start(source, target, op=op).finish()

    def _exchanged(self, engine: Any, sources: Any) -> list[tuple[Any, Any]]:
        """Return the boxes of the target and the values received for them, by the program that is being traced."""
        arrived = engine.methods.exchange(
            self.comm,
            sources[0],
            [sources[send.part][send.box] for send in self._sends],
            [send.peer for send in self._sends],
            [receive.shape for receive in self._receives],
            [receive.peer for receive in self._receives],
        )
        return [(receive.box, values) for receive, values in zip(self._receives, arrived, strict=True)]

    def _start_arrays(
        self, transport: Any, sources: Any, target: Any, engine: Any, combine: Any, in_place: bool
    ) -> Callable[[Any], Any]:
        """Start messages of contiguous arrays: boxes that are contiguous, and copies of those that are not.

        Returns the function that completes the exchange.
        """
        sends = [(peer, engine.contiguous(sources[part][box])) for peer, part, box, *_ in self._sends]
        receives, landings = [], []
        for peer, _, box, shape, _ in self._receives:
            landing = target[box]
            if not in_place or not landing.flags.c_contiguous:
                landing = engine.xp.empty(shape, target.dtype)
                landings.append((box, landing))
            receives.append((peer, landing))
        pending = transport.start_exchange(sends, receives, self._tag)
        return partial(_complete, pending, combine, landings, sends)

    def _start_by_address(
        self,
        places: _Places,
        on_side_stream: bool,
        transport: Any,
        sources: Any,
        target: Any,
        engine: Any,
        combine: Any,
        in_place: bool,
    ) -> Callable[[Any], Any]:
        """Start messages by address, without a view of each box, which would cost more than its message."""
        itemsize = target.dtype.itemsize
        packed, landings, sends, receives = [], [], [], []
        last: Any = None
        for (peer, part, box, _, elements), place in zip(self._sends, places.sent_from, strict=True):
            array = sources[part]
            if place is None:
                if (part, box) != last:  # one box may go to several ranks
                    packed.append(engine.contiguous(array[box]))
                    last = part, box
                array, place = packed[-1], 0
            sends.append((peer, array.data.ptr + place, elements * itemsize))
        for (peer, _, box, shape, elements), place in zip(self._receives, places.received_at, strict=True):
            array = target
            if place is None or not in_place:
                array, place = engine.empty(shape, target.dtype), 0
                landings.append((box, array))
            receives.append((peer, array.data.ptr + place, elements * itemsize))
        pending = transport.start_addresses(sends, receives, on_side_stream, places.known)
        return partial(_complete, pending, combine, landings, packed)

    def _places_in(self, sources: Any, target: Any) -> _Places:
        """Return where the boxes of messages lie in arrays of these shapes.

        Raises
        ------
        LayoutError
            If an array does not contain its boxes.
        """
        if self._several:
            key: Any = (target.itemsize, target.shape, target.strides, *((a.shape, a.strides) for a in sources))
        else:
            key = (target.itemsize, target.shape, target.strides, sources[0].shape, sources[0].strides)
        places = self._places.get(key)
        if places is None:
            sent = [(sources[part], box) for _, part, box, *_ in self._sends]
            received = [(target, box) for _, _, box, *_ in self._receives]
            kept = [pair for given, taken in self._local for pair in ((sources[0], given), (target, taken))]
            for array, box in (*sent, *received, *kept):
                if len(box) != array.ndim or any(a.stop > n for a, n in zip(box, array.shape, strict=True)):
                    raise LayoutError(f"an exchange cannot move the box {box} of an array of shape {array.shape}")
            places = self._places[key] = _Places(
                [_place(box, array) for array, box in sent],
                [_place(box, array) for array, box in received],
                KnownExchange() if self._short_messages else None,
            )
        return places


class LibraryExchangePlan(ExchangePlan):
    """A plan whose messages all go by the library of the transport, for comparisons of libraries.

    Other plans send short messages by stores into the memory of other GPUs if all ranks are on one host.
    """

    _short_messages = False


class _Places(NamedTuple):
    """Offsets in bytes of the boxes of messages in their arrays; ``None`` for boxes that are not contiguous."""

    sent_from: list[int | None]
    received_at: list[int | None]
    known: KnownExchange | None


class _Message(NamedTuple):
    """One end of a message: the other rank, the number of the array here, and the box of it."""

    peer: int
    part: int
    box: Box
    shape: tuple[int, ...]
    elements: int


def extent(box: Sequence[slice]) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(len(range(axis.start, axis.stop, axis.step or 1)) for axis in box)


def _complete(pending: Any, combine: Any, landings: list[tuple[Box, Any]], sent: Any, target: Any) -> Any:
    """Wait for messages and combine what did not arrive in place; `sent` lives until the messages have left."""
    if active:
        with Span("communication: finish"):
            pending.wait()
    else:
        pending.wait()
    return _combined(combine, landings, target) if landings else target


def _combined(combine: Any, values: list[tuple[Box, Any]], target: Any) -> Any:
    for box, each in values:
        target = combine(target, box, each)
    return target


def _remote(boxes: Sequence[tuple[int, Box]], parts: Sequence[int], rank: int) -> list[_Message]:
    return [
        _Message(peer, part, box, extent(box), prod(extent(box)))
        for (peer, box), part in zip(boxes, parts, strict=True)
        if peer != rank and prod(extent(box))
    ]


def _place(box: Box, array: Any) -> int | None:
    """Return the offset in bytes of a box in `array`; ``None`` if it is not contiguous."""
    expected = array.dtype.itemsize
    for axis, count, length, stride in reversed([*zip(box, extent(box), array.shape, array.strides, strict=True)]):
        if (axis.step or 1) != 1 or axis.stop > length or (count > 1 and stride != expected):
            return None
        expected *= count
    return sum(axis.start * stride for axis, stride in zip(box, array.strides, strict=True))
