"""Exchanges of points: a pattern prepared for a dtype, a number of values per point, an engine and a transport.

An :class:`Exchange` owns its buffers and requests, so that using it allocates no memory. Each transport is a subclass
that sends and receives the packed buffers. Callers use a :class:`Mover`: an exchange with an operation and a block
shape, whose ``start(source, target)`` returns an :class:`InFlight`; several may be in flight at once. Functions that
combine values with a target return the target: the same array if its engine is mutable, else a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from collops.backend import LocalArray
from collops.exchange.packing import Index, check_operation, packing_for
from collops.profile import benchmark, messages
from collops.profile.marks import Span, active

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.exchange.pattern import Pattern

__all__ = ["SLOTS", "Exchange", "LocalWork", "Transfer"]

SLOTS = 2
"""Number of buffer pairs of an exchange (double buffering)."""


class InFlight:
    """An exchange between its start and its finish.

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

    __slots__ = ("_complete", "_target", "_tie")

    def __init__(
        self,
        complete: Callable[[LocalArray], LocalArray] | None,
        target: LocalArray,
        tie: Callable[[LocalArray], LocalArray] | None = None,
    ) -> None:
        self._complete = complete
        self._target = target
        self._tie = tie

    def finish(self, target: LocalArray | None = None) -> LocalArray:
        """Wait for the values (on devices: order the current stream after them), and return the target. Collective.

        Exchanges may be finished in any order, which need not be the same on all ranks.

        Parameters
        ----------
        target : array, optional
            The current target, if an engine of immutable arrays has replaced it since the start.
        """
        if target is not None:
            self._target = target
        complete, self._complete = self._complete, None
        if complete is not None:
            self._target = complete(self._target)
        return self.tied(self._target)

    def tied(self, result: LocalArray) -> LocalArray:
        """Return `result`; its derivatives in JAX have the messages of this exchange, even if this rank only sends.

        For results that depend on the source and not on the target: on a rank that only sends, the target may be empty.
        """
        return result if self._tie is None else self._tie(result)


class LocalWork(NamedTuple):
    """The local work of one rank in an exchange: packing, unpacking, and combining values with the target.

    Each method prepares a function that works on arrays of shape ``(points, *block)`` and returns its second argument,
    or a new array if the engine's arrays are immutable.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.extend.communication import alone
    >>> from collops.extend.engines import engine
    >>> from collops.extend.exchanges import Exchange
    >>> pattern = collops.StarForest(alone(), 2, [1, 0], [0, 0], [0, 1]).pattern
    >>> exchange = Exchange(alone(), pattern, np.dtype(float), 1, engine("numpy"), 0)
    >>> stay = exchange.work("replace", deterministic=True).stay()
    >>> stay(np.array([1.0, 2.0]), np.zeros(2))
    array([2., 1.])
    """

    leaving: Index  # points of the source that are packed
    arriving: Index  # points of the target that received values are combined with
    local_sources: Index  # points of the source whose values stay on this rank
    local_targets: Index  # their points of the target
    op: str
    dtype: np.dtype
    width: int
    deterministic: bool
    packing: ModuleType

    def packer(self, start: int, stop: int) -> Callable[[LocalArray, LocalArray], LocalArray]:
        """Prepare to pack some of the leaving points into a buffer."""
        piece = self.leaving.piece(start, stop)
        return self.packing.mover(piece, Index.run(stop - start), "replace", self.dtype, self.width, True)

    def stay(self) -> Callable[[LocalArray, LocalArray], LocalArray] | None:
        """Prepare to combine the values that stay on this rank; ``None`` without any."""
        return self._combine(self.local_sources, self.local_targets)

    def unpacker(self) -> Callable[[LocalArray, LocalArray], LocalArray] | None:
        """Prepare to unpack received values and combine them with the target; ``None`` without any."""
        return self._combine(Index.run(self.arriving.size), self.arriving)

    def _combine(self, source: Index, target: Index) -> Callable[[LocalArray, LocalArray], LocalArray] | None:
        if not target.size:
            return None
        return self.packing.mover(source, target, self.op, self.dtype, self.width, self.deterministic)


class Transfer:
    """One use of an exchange, in one of its slots, from :meth:`Exchange.begin` until the received values are read.

    Attributes
    ----------
    slot : int
        Number of the pair of buffers.
    use : int
        Number of uses of this slot, including this one.
    incoming : array
        The received values, one row for each point, after :meth:`wait`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.extend.communication import alone
    >>> from collops.extend.engines import engine
    >>> from collops.extend.exchanges import Exchange
    >>> pattern = collops.StarForest(alone(), 1, None, [0], [0]).pattern
    >>> exchange = Exchange(alone(), pattern, np.dtype(float), 1, engine("numpy"), 0)
    >>> [(each.slot, each.use) for each in (exchange.begin(), exchange.begin())]  # all ranks use the slots in turn
    [(0, 1), (1, 1)]
    """

    __slots__ = ("_arrived", "_exchange", "displaced", "incoming", "slot", "use")

    def __init__(self, exchange: Exchange, slot: int, use: int) -> None:
        self._exchange = exchange
        self.slot = slot
        self.use = use
        self.displaced = self._arrived = False  # whether the received values have been copied out of the slot
        self.incoming = exchange.incoming[slot]

    def wait(self) -> None:
        """Wait until all values have arrived (on devices: order the current stream after them)."""
        if not self._arrived:
            self._exchange.receive(self.slot, self.use)
            self._arrived = True

    def release(self) -> None:
        """Release the slot after the received values have been read."""
        if not self.displaced:
            self._exchange.busy[self.slot] = None
            self._exchange.consume(self.slot, self.use)

    def displace(self) -> None:
        """Copy the received values out of the slot, so that another transfer can use it."""
        self.wait()
        self.incoming = self.incoming.copy()
        self.release()
        self.displaced = True


class Exchange:
    """A pattern prepared for one kind of values; the base class of transports.

    The base class itself is used for patterns without messages. A transport is a subclass. Its constructor, which is
    collective, takes these arguments, calls this constructor, and allocates the buffers, with :meth:`allocate` or
    itself. It overrides :meth:`send`, :meth:`receive` and, if its buffers need them, :meth:`prepare`, :meth:`consume`
    and :meth:`free`. A transport that packs, sends and receives in one kernel, or within a traced program, also
    overrides :meth:`starter`, :meth:`finisher` and :meth:`mover`.

    A transfer calls ``prepare``, packs its values into ``outgoing[slot]``, calls ``send``, and later ``receive``,
    combines ``incoming[slot]`` with the target, and calls ``consume``. All ranks begin the transfers of an exchange in
    the same order, use its slots in turn, and pass the same `slot` and `use` (the number of uses of the slot, including
    this one). They may finish transfers in any order. A rank that begins more transfers than there are slots first
    copies the values of the oldest one to other memory, so that no rank waits for another rank to finish a transfer.

    Every wait for other ranks needs a deadline: use ``comm.wait_until`` or the methods of `comm`. If one rank raises an
    error in the constructor, all ranks must raise it: use ``comm.check(error)``.

    Parameters
    ----------
    comm : Communicator
    pattern : Pattern
        The points that this rank sends, receives and keeps.
    dtype : numpy.dtype
    width : int
        Number of values of a point.
    engine : Engine
        The engine of source, target and buffers: ``engine.memory`` is ``"host"`` or ``"device"``.
    tag : int
        Identifies the messages of this star forest; the same on all ranks.

    Attributes
    ----------
    on_stream : bool
        Class attribute: whether moves of device arrays are enqueued on the current stream and never block the host, so
        that a CUDA graph can record them. False by default.
    block : tuple of int
        Shape of a point's values in a buffer: ``()`` or ``(width,)``.
    pieces : tuple of (int, int)
        Start and stop of each piece of the outgoing points.
    outgoing : list of list of array
        For each slot a buffer of shape ``(points, *block)`` for each of the pieces.
    incoming : list of array
        For each slot a buffer of shape ``(points, *block)`` for the received values, ordered by rank.

    Examples
    --------
    A transport that moves all values by one all-to-all:

    >>> import numpy as np
    >>> import collops
    >>> from collops.extend.exchanges import Exchange
    >>> class AllToAll(Exchange):
    ...     def __init__(self, *arguments):
    ...         super().__init__(*arguments)
    ...         self.allocate()
    ...         self.counts = [side.counts(self.comm.size) for side in (self.pattern.sends, self.pattern.receives)]
    ...     def send(self, slot, use):
    ...         self.comm.alltoallv(self.outgoing[slot][0], *self.counts, out=self.incoming[slot])
    >>> comm = collops.world()
    >>> ring = collops.StarForest(comm, 1, None, [(comm.rank + 1) % comm.size], [0], transport=AllToAll)
    >>> int(ring.bcast(np.array([comm.rank]))[0]) == (comm.rank + 1) % comm.size
    True
    """

    on_stream: ClassVar[bool] = False

    def __init__(
        self, comm: Communicator, pattern: Pattern, dtype: np.dtype, width: int, engine: Engine, tag: int
    ) -> None:
        self.comm = comm
        self.pattern = pattern
        self.dtype = dtype
        self.width = width
        self.block = () if width == 1 else (width,)
        self.engine = engine
        self.tag = tag
        self.pieces: tuple[tuple[int, int], ...] = ()
        self.outgoing: list[list[LocalArray]] = [[] for _ in range(SLOTS)]
        self.incoming: list[LocalArray] = [None] * SLOTS
        self.busy: list[Transfer | None] = [None] * SLOTS  # the transfer in each slot
        self._begun = 0

    def allocate(self) -> None:
        """Allocate one outgoing buffer, of one piece, and one incoming buffer for each slot."""
        sides = self.pattern.sends.points.size, self.pattern.receives.points.size
        self.pieces = ((0, sides[0]),)
        for slot in range(SLOTS):
            leaving, self.incoming[slot] = (self.engine.xp.empty((points, *self.block), self.dtype) for points in sides)
            self.outgoing[slot] = [leaving]

    def prepare(self, slot: int, use: int) -> None:
        """Wait until the outgoing buffer of a slot may be written."""

    def send(self, slot: int, use: int) -> None:
        """Start to send the packed values of a slot; from now on its incoming buffer may be filled."""

    def receive(self, slot: int, use: int) -> None:
        """Wait until all values of a slot have arrived (on devices: order the current stream after them)."""

    def consume(self, slot: int, use: int) -> None:
        """Allow other ranks to fill a slot again, after its values have been read."""

    def free(self) -> None:
        """Free the memory and the requests. Collective."""

    def work(self, op: str, deterministic: bool) -> LocalWork:
        """Return the local work of this rank for an operation."""
        pattern = self.pattern
        ends = pattern.sends.points, pattern.receives.points, pattern.local_sources, pattern.local_targets
        return LocalWork(*ends, op, self.dtype, self.width, deterministic, packing_for(self.engine))

    def begin(self) -> Transfer:
        """Return a transfer in the next slot. All ranks begin the transfers of one exchange in the same order."""
        slot, use = self.next_slot()
        transfer = self.busy[slot] = Transfer(self, slot, use)
        self.prepare(slot, use)
        return transfer

    def next_slot(self) -> tuple[int, int]:
        """Release the next slot; return it and its number of uses, including this one."""
        use, slot = divmod(self._begun, SLOTS)
        self._begun += 1
        earlier = self.busy[slot]
        if earlier is not None:
            earlier.displace()
        return slot, use + 1

    def starter(self, work: LocalWork) -> Callable[[LocalArray, LocalArray, Transfer], LocalArray]:
        """Prepare a function that packs and sends values, moves local values, and returns the target."""
        packing, stay, send = self._packing(work), work.stay(), self.send

        def start(source: LocalArray, target: LocalArray, transfer: Transfer) -> LocalArray:
            slot = transfer.slot
            for pack, piece in packing[slot]:
                pack(source, piece)
            send(slot, transfer.use)
            return target if stay is None else stay(source, target)

        return start

    def finisher(self, work: LocalWork) -> Callable[[Transfer, LocalArray], LocalArray]:
        """Prepare a function that waits for values, combines them with the target, and returns the target."""
        unpack = work.unpacker()

        def finish(transfer: Transfer, target: LocalArray) -> LocalArray:
            transfer.wait()
            if unpack is not None:
                target = unpack(transfer.incoming, target)
            transfer.release()
            return target

        return finish

    def mover(self, work: LocalWork) -> Callable[[LocalArray, LocalArray], LocalArray]:
        """Prepare a function that starts and finishes a move without a transfer object, and returns the target."""
        packing, stay, unpack, incoming = self._packing(work), work.stay(), work.unpacker(), self.incoming
        next_slot, prepare, send, receive, consume = self.next_slot, self.prepare, self.send, self.receive, self.consume

        def move(source: LocalArray, target: LocalArray) -> LocalArray:
            slot, use = next_slot()
            prepare(slot, use)
            for pack, piece in packing[slot]:
                pack(source, piece)
            send(slot, use)
            if stay is not None:
                target = stay(source, target)
            receive(slot, use)
            if unpack is not None:
                target = unpack(incoming[slot], target)
            consume(slot, use)
            return target

        return move

    def _packing(
        self, work: LocalWork
    ) -> list[list[tuple[Callable[[LocalArray, LocalArray], LocalArray], LocalArray]]]:
        """Return for each slot the pieces of the outgoing buffer, each with the function that packs it."""
        packers = [work.packer(*piece) for piece in self.pieces]
        return [list(zip(packers, outgoing, strict=True)) for outgoing in self.outgoing]

    def mover_in_steps(self, work: LocalWork) -> Callable[[LocalArray, LocalArray], LocalArray]:
        """Prepare a move that consists of a start and a finish."""
        start, finish, begin = self.starter(work), self.finisher(work), self.begin

        def move(source: LocalArray, target: LocalArray) -> LocalArray:
            transfer = begin()
            return finish(transfer, start(source, target, transfer))

        return move


class Mover:
    """An exchange with an operation, for points of one block shape.

    Its ``move(source, target)`` starts and finishes a move of validated arrays, and returns the target. Points have the
    shape `block`. ``COLLOPS_CHECK`` compares the direction, `way`, between ranks.
    """

    __slots__ = ("_begin", "_failures", "_finish", "_record", "_records", "_sends", "_shape", "_start", "move")

    def __init__(self, exchange: Exchange, op: str, block: tuple[int, ...], deterministic: bool, way: str) -> None:
        check_operation(op, exchange.dtype)
        width, pattern = exchange.width, exchange.pattern
        self._shape = exchange.block
        facts = {"way": way, "forest": exchange.tag, "values": width, "dtype": str(exchange.dtype)}
        announces = exchange.comm.calls is not None
        announce = partial(exchange.comm.announce, "star forest", **facts) if announces else None
        self._sends = pattern.most_points > 0 and width > 0
        elements = pattern.sends.points.size * width
        self._record = partial(_record, elements, elements * exchange.dtype.itemsize, announce)
        self._records = announces
        self._failures = exchange.comm.failures
        work = exchange.work(op, deterministic)
        if self._sends:
            self._begin, self._start, self._finish = exchange.begin, exchange.starter(work), exchange.finisher(work)
            move_points = exchange.mover(work)
        else:
            move_points = (work.stay() if width else None) or (lambda source, target: target)
        self.move = self._complete_move(move_points, len(block) == len(self._shape))

    def start(self, source: LocalArray, target: LocalArray) -> InFlight:
        """Start a move between validated arrays; `source` may be changed at once. Collective."""
        if not self._sends:
            return InFlight(None, self.move(source, target))
        if self._failures is not None:
            self._failures.check_open()
        self._record()
        return self._started(source, target)

    @benchmark(label="communication")
    def _started(self, source: LocalArray, target: LocalArray) -> InFlight:
        shape = self._shape
        points = points_of(target, shape)
        transfer = self._begin()
        result = self._start(points_of(source, shape), points, transfer)
        return InFlight(partial(self._complete, transfer), _shaped(result, points, target))

    @benchmark(label="communication: finish")
    def _complete(self, transfer: Transfer, target: LocalArray) -> LocalArray:
        if self._failures is not None:
            self._failures.check_open()
        points = points_of(target, self._shape)
        return _shaped(self._finish(transfer, points), points, target)

    def _complete_move(
        self, move_points: Callable[[LocalArray, LocalArray], LocalArray], flat: bool
    ) -> Callable[[LocalArray, LocalArray], LocalArray]:
        """Return the complete move, with few Python calls, which would delay small messages."""
        # No reference to this object, which would create a reference cycle that keeps the memory of the exchange.
        shape, records, record, failures = self._shape, self._records, self._record, self._failures

        def move(source: LocalArray, target: LocalArray) -> LocalArray:
            if failures is not None and failures.failure:
                failures.check_open()
            if messages.active or records:
                record()
            if not active:  # avoids the cost of a mark
                return move_points(source, target)
            with Span("communication"):
                return move_points(source, target)

        def move_blocks(source: LocalArray, target: LocalArray) -> LocalArray:
            points = points_of(target, shape)
            return _shaped(run(points_of(source, shape), points), points, target)

        run = move if self._sends else move_points
        return run if flat else move_blocks


def _record(elements: int, nbytes: int, announce: Callable[[], None] | None) -> None:
    if messages.active:
        messages.record("exchange", elements, nbytes)
    if announce is not None:
        announce()


def points_of(array: LocalArray, shape: tuple[int, ...]) -> LocalArray:
    """Return an array with one axis of points, and at most one axis for the values of a point."""
    return array if array.ndim == len(shape) + 1 else array.reshape(array.shape[0], *shape)


def _shaped(result: LocalArray, points: LocalArray, target: LocalArray) -> LocalArray:
    """Return a result in the shape of the target: the target itself if the result is `points`, a view of its memory."""
    return target if result is points else result.reshape(target.shape)
