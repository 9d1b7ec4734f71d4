"""Exchanges of boxes of local arrays, sent and received in place by the communicator's transport.

A plan stores peers, boxes and element counts, so that messages consist of values only. Contiguous boxes are neither
packed nor unpacked, and no buffers are kept between calls. Halos, derivatives and redistributions use such plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from collops.backend import Engine, LocalArray, engine_of
from collops.comm.transport import KnownExchange, Pending, Transport
from collops.errors import ARGUMENT_ERRORS, LayoutError, UnsupportedTypeError
from collops.exchange.exchange import InFlight
from collops.profile import messages
from collops.profile.marks import Span, active

if TYPE_CHECKING:
    from collops.comm import Communicator
    from collops.exchange.pattern import Box

    _Combine: TypeAlias = Callable[[LocalArray, Box, LocalArray], LocalArray]


class ExchangePlan:
    """A fixed pattern of messages between boxes of local arrays. Collective: all ranks make it, in the same order.

    Parameters
    ----------
    comm : Communicator
    sends : sequence of (int, Box)
        The rank that receives a box of this rank's source array.
    receives : sequence of (int, Box)
        The rank that sends the values of a box of this rank's target array. The *n*-th receive from a rank matches its
        *n*-th send to this rank. Boxes of a target must not overlap, unless values are added.
    kind : str
        Name of the exchange in :func:`collops.profile.count_messages`.
    parts : sequence of int, optional
        With several source arrays: for each send, the number of the source array of its box. A rank must then not send
        to itself.
    travels : bool
        Whether any rank sends values to another rank; the same on all ranks. Otherwise nothing is sent or counted.

    Raises
    ------
    LayoutError
        If a peer is not a rank of `comm`, or the boxes that this rank sends to itself differ in shape.

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

    _short_messages = True  # whether short messages may use the peer-to-peer kernels

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
            raise LayoutError("boxes that a rank sends to itself must have the shapes of the boxes that it receives")
        self._local = list(zip(sources, targets, strict=True))
        self._tag = comm.next_plan_tag()
        self._elements = sum(send.elements for send in self._sends)
        self._offsets: dict[tuple[object, ...], _Offsets] = {}

    def start(
        self, source: LocalArray, target: LocalArray, *, on_side_stream: bool = False, op: str = "replace"
    ) -> InFlight:
        """Start moving boxes of `source` into boxes of `target`.

        Collective. `source` may be changed after :meth:`InFlight.finish`, which returns the filled target.

        Parameters
        ----------
        source : array, or sequence of array where the plan has `parts`
            Local arrays of one engine and dtype.
        target : array
            A local array of the same engine and dtype; overwritten if its engine is mutable.
        on_side_stream : bool
            Whether the transport may use a side stream, so that messages overlap with work launched before the exchange
            is finished. On devices this costs a few microseconds of host time.
        op : str
            ``"replace"``, or ``"sum"`` to add to the values of the target.

        Raises
        ------
        UnsupportedTypeError
            If engines or dtypes differ, or `op` is unknown.
        LayoutError
            If an array does not contain its boxes.
        """
        sources = source if self._several else (source,)
        try:
            engine, dtype = engine_of(target), target.dtype
            for array in sources:
                if (type(array) is not type(target) and engine_of(array) is not engine) or array.dtype != dtype:
                    raise UnsupportedTypeError("the source and the target of an exchange must share engine and dtype")
            if op != "replace" and op != "sum":
                raise UnsupportedTypeError(f"boxes are combined by 'replace' or 'sum', not {op!r}")
            combine = engine.put if op == "replace" else engine.add
            offsets = self._offsets_in(sources, target) if engine.mutable else None
        except ARGUMENT_ERRORS as error:
            self.comm.reject("exchange", error)
            raise
        complete = None
        if messages.active and self.travels:
            messages.record(self.kind, self._elements, self._elements * dtype.itemsize)
        if offsets is None:
            values, tie = [(target_box, source[source_box]) for source_box, target_box in self._local], None
            if self.travels:
                arrived, tie = self._exchanged(engine, sources)
                values += arrived
            return InFlight(partial(_combined, combine, values), target, tie)
        if self.travels:
            transport = self.comm.begin(target)
            begin = self._start_arrays
            if transport.by_address:
                begin = partial(self._start_by_address, offsets, on_side_stream)
            arguments = transport, sources, target, engine, combine, op == "replace"
            if active:  # without the cost of a mark
                with Span("communication"):
                    complete = begin(*arguments)
            else:
                complete = begin(*arguments)
        # After the messages, for which the neighbours wait.
        for source_box, target_box in self._local:
            combine(target, target_box, source[source_box])
        return InFlight(complete, target)

    def __call__(self, source: LocalArray, target: LocalArray, *, op: str = "replace") -> LocalArray:
        """Start, finish, and return the filled target. Collective."""
        return self.start(source, target, op=op).finish()

    def _exchanged(
        self, engine: Any, sources: Sequence[LocalArray]
    ) -> tuple[list[tuple[Box, LocalArray]], Callable[[LocalArray], LocalArray] | None]:
        """Exchange messages in the traced program; return boxes of the target, each with the values for it, and a tie.

        For the tie see :meth:`InFlight.tied`.
        """
        arrived, tie = engine.methods.exchange(
            self.comm,
            sources[0],
            [sources[send.part][send.box] for send in self._sends],
            [send.peer for send in self._sends],
            [receive.shape for receive in self._receives],
            [receive.peer for receive in self._receives],
        )
        return [(receive.box, values) for receive, values in zip(self._receives, arrived, strict=True)], tie

    def _start_arrays(
        self,
        transport: Transport,
        sources: Sequence[LocalArray],
        target: LocalArray,
        engine: Engine,
        combine: _Combine,
        in_place: bool,
    ) -> Callable[[LocalArray], LocalArray]:
        """Start messages of contiguous arrays: contiguous boxes in place, other boxes as copies.

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
        offsets: _Offsets,
        on_side_stream: bool,
        transport: Any,
        sources: Sequence[LocalArray],
        target: LocalArray,
        engine: Engine,
        combine: _Combine,
        in_place: bool,
    ) -> Callable[[LocalArray], LocalArray]:
        """Start messages by address: creating a view of each box would cost more than its message."""
        itemsize = target.dtype.itemsize
        packed, landings, sends, receives = [], [], [], []
        last_packed: tuple[int, Box] | None = None
        for (peer, part, box, _, elements), offset in zip(self._sends, offsets.sent_from, strict=True):
            array = sources[part]
            if offset is None:
                if (part, box) != last_packed:  # one box may go to several ranks
                    packed.append(engine.contiguous(array[box]))
                    last_packed = part, box
                array, offset = packed[-1], 0
            sends.append((peer, array.data.ptr + offset, elements * itemsize))
        for (peer, _, box, shape, elements), offset in zip(self._receives, offsets.received_at, strict=True):
            array = target
            if offset is None or not in_place:
                array, offset = engine.empty(shape, target.dtype), 0
                landings.append((box, array))
            receives.append((peer, array.data.ptr + offset, elements * itemsize))
        pending = transport.start_addresses(sends, receives, on_side_stream, offsets.known)
        return partial(_complete, pending, combine, landings, packed)

    def _offsets_in(self, sources: Sequence[LocalArray], target: LocalArray) -> _Offsets:
        """Return the offsets of the boxes of messages in arrays of these shapes.

        Raises
        ------
        LayoutError
            If an array does not contain its boxes.
        """
        if self._several:
            key: tuple[object, ...] = (
                target.itemsize,
                target.shape,
                target.strides,
                *((a.shape, a.strides) for a in sources),
            )
        else:
            key = (target.itemsize, target.shape, target.strides, sources[0].shape, sources[0].strides)
        offsets = self._offsets.get(key)
        if offsets is None:
            sent = [(sources[part], box) for _, part, box, *_ in self._sends]
            received = [(target, box) for _, _, box, *_ in self._receives]
            local = [
                pair
                for source_box, target_box in self._local
                for pair in ((sources[0], source_box), (target, target_box))
            ]
            for array, box in (*sent, *received, *local):
                if len(box) != array.ndim or any(a.stop > n for a, n in zip(box, array.shape, strict=True)):
                    raise LayoutError(f"an exchange cannot move the box {box} of an array of shape {array.shape}")
            offsets = self._offsets[key] = _Offsets(
                [_offset(box, array) for array, box in sent],
                [_offset(box, array) for array, box in received],
                KnownExchange() if self._short_messages else None,
            )
        return offsets


class LibraryExchangePlan(ExchangePlan):
    """A plan that sends all messages by the library of the transport, for comparisons of libraries.

    Other plans send short messages by peer-to-peer kernels if all ranks are on one host.
    """

    _short_messages = False


class _Offsets(NamedTuple):
    """Offsets in bytes of the boxes of messages in their arrays; ``None`` for boxes that are not contiguous."""

    sent_from: list[int | None]
    received_at: list[int | None]
    known: KnownExchange | None


class _Message(NamedTuple):
    """One end of a message: the other rank, the number of the local array, and its box."""

    peer: int
    part: int
    box: Box
    shape: tuple[int, ...]
    elements: int


def extent(box: Sequence[slice]) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(len(range(axis.start, axis.stop, axis.step or 1)) for axis in box)


def _complete(
    pending: Pending,
    combine: _Combine,
    landings: list[tuple[Box, LocalArray]],
    sent: Sequence[object],
    target: LocalArray,
) -> LocalArray:
    """Wait for messages and combine values that were not received in place; `sent` keeps the buffers alive."""
    if active:
        with Span("communication: finish"):
            pending.wait()
    else:
        pending.wait()
    return _combined(combine, landings, target) if landings else target


def _combined(combine: _Combine, values: list[tuple[Box, LocalArray]], target: LocalArray) -> LocalArray:
    for box, part in values:
        target = combine(target, box, part)
    return target


def _remote(boxes: Sequence[tuple[int, Box]], parts: Sequence[int], rank: int) -> list[_Message]:
    return [
        _Message(peer, part, box, extent(box), prod(extent(box)))
        for (peer, box), part in zip(boxes, parts, strict=True)
        if peer != rank and prod(extent(box))
    ]


def _offset(box: Box, array: LocalArray) -> int | None:
    """Return the offset in bytes of a box in `array`; ``None`` if it is not contiguous."""
    expected = array.dtype.itemsize
    for axis, count, length, stride in reversed([*zip(box, extent(box), array.shape, array.strides, strict=True)]):
        if (axis.step or 1) != 1 or axis.stop > length or (count > 1 and stride != expected):
            return None
        expected *= count
    return sum(axis.start * stride for axis, stride in zip(box, array.strides, strict=True))
