"""Exchanges of points: a pattern made ready for a dtype, a number of values per point, an engine and a transport.

An :class:`Exchange` owns its buffers and requests, so that using it allocates nothing. Each transport is a subclass,
which says how packed buffers travel. A :class:`Mover` is what a caller uses: an exchange with an operation and a block
shape, whose ``start(source, target)`` returns an :class:`InFlight`; several may be in flight at once. Everything that
combines values with a target returns the target: the same array where its engine is mutable, else a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from collops.exchange.packing import Index, check_operation, packing_for
from collops.profile import benchmark, messages
from collops.profile.marks import Span, active

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.exchange.pattern import Pattern

__all__ = ["PLACES", "Exchange", "LocalWork", "Transfer"]

PLACES = 2
"""Number of buffers of an exchange, which all ranks use in turn."""


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

    __slots__ = ("_complete", "_target")

    def __init__(self, complete: Callable[[Any], Any] | None, target: Any) -> None:
        self._complete = complete
        self._target = target

    def finish(self, target: Any = None) -> Any:
        """Wait for the values (on devices: order the current stream after them), and return the target. Collective.

        Exchanges may be finished in any order, which need not be the same on all ranks.

        Parameters
        ----------
        target : array, optional
            The target as it is now, if an engine of immutable arrays has replaced it since the start.
        """
        if target is not None:
            self._target = target
        complete, self._complete = self._complete, None
        if complete is not None:
            self._target = complete(self._target)
        return self._target


class LocalWork(NamedTuple):
    """The work of one rank on its own arrays when values move, and their combination with the values of the target.

    Each method prepares a function that works on arrays of shape ``(points, *block)`` and returns its second argument,
    or a new array in its place where the engine's arrays are immutable.

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
    here: Index  # points of the source whose values stay on this rank
    there: Index  # and of the target, where they go
    op: str
    dtype: np.dtype
    width: int
    deterministic: bool
    packing: Any

    def packer(self, start: int, stop: int) -> Callable[[Any, Any], Any]:
        """Prepare to copy some of the leaving points into a buffer."""
        piece = self.leaving.piece(start, stop)
        return self.packing.mover(piece, Index.run(stop - start), "replace", self.dtype, self.width, True)

    def stay(self) -> Callable[[Any, Any], Any] | None:
        """Prepare to combine the values that stay on this rank; ``None`` where there are none."""
        return self._combine(self.here, self.there)

    def unpacker(self) -> Callable[[Any, Any], Any] | None:
        """Prepare to combine received values, in a buffer, with the target; ``None`` where there are none."""
        return self._combine(Index.run(self.arriving.size), self.arriving)

    def _combine(self, source: Index, target: Index) -> Callable[[Any, Any], Any] | None:
        if not target.size:
            return None
        return self.packing.mover(source, target, self.op, self.dtype, self.width, self.deterministic)


class Transfer:
    """One use of an exchange, in one of its places, from :meth:`Exchange.begin` until its values have been read.

    Attributes
    ----------
    place : int
        Number of the pair of buffers.
    use : int
        How often this place has been used, this time included.
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
    >>> [(each.place, each.use) for each in (exchange.begin(), exchange.begin())]  # all ranks take the places in turn
    [(0, 1), (1, 1)]
    """

    __slots__ = ("_arrived", "_exchange", "displaced", "incoming", "place", "use")

    def __init__(self, exchange: Exchange, place: int, use: int) -> None:
        self._exchange = exchange
        self.place = place
        self.use = use
        self.displaced = self._arrived = False  # whether the received values have been copied out of the place
        self.incoming = exchange.incoming[place]

    def wait(self) -> None:
        """Return when everything has arrived (on devices: order the current stream after it)."""
        if not self._arrived:
            self._exchange.receive(self.place, self.use)
            self._arrived = True

    def release(self) -> None:
        """Give the place back after the received values have been read."""
        if not self.displaced:
            self._exchange.busy[self.place] = None
            self._exchange.consume(self.place, self.use)

    def displace(self) -> None:
        """Copy the received values out of the place, which another transfer needs."""
        self.wait()
        self.incoming = self.incoming.copy()
        self.release()
        self.displaced = True


class Exchange:
    """A pattern made ready for one kind of values; the base class of transports.

    As it is, it serves patterns by which no rank sends anything. A transport is a subclass. Its constructor, which is
    collective, takes these arguments, calls this one, and makes the buffers, by :meth:`allocate` or itself. It
    overrides :meth:`send`, :meth:`receive` and, where its buffers need them, :meth:`prepare`, :meth:`consume` and
    :meth:`free`. A transport that packs, sends and receives in one kernel, or within a program that is traced, also
    overrides :meth:`starter`, :meth:`finisher` and :meth:`mover`.

    A transfer calls ``prepare``, packs its values into ``outgoing[place]``, calls ``send``, and later ``receive``,
    combines ``incoming[place]`` with the target, and calls ``consume``. All ranks begin the transfers of an exchange in
    the same order, take its places in turn, and pass the same `place` and `use` (how often the place has been used,
    this time included). They may finish transfers in any order. A rank that begins more transfers than there are places
    first copies the oldest one's values to other memory, so that no rank waits for another one to finish.

    Every wait for other ranks needs a deadline, as ``comm.wait_until`` and all methods of `comm` have. An error that
    one rank alone raises in the constructor must be raised by all of them, as by ``comm.check(error)``.

    Parameters
    ----------
    comm : Communicator
    pattern : Pattern
        The points that this rank sends, receives and keeps.
    dtype : numpy.dtype
    width : int
        Number of values of a point.
    engine : Engine
        The engine of source and target, on which the buffers are: ``engine.memory`` is ``"host"`` or ``"device"``.
    tag : int
        Distinguishes the messages of this star forest from all others; the same on all ranks.

    Attributes
    ----------
    on_stream : bool
        Of the class: whether moves of device arrays are queued on the current stream and never block the host, so that
        a CUDA graph can record them. False by default.
    block : tuple of int
        Shape of a point's values in a buffer: ``()`` or ``(width,)``.
    pieces : tuple of (int, int)
        Into which the outgoing points are cut, each the first point and the one after the last.
    outgoing : list of list of array
        For each place a buffer of shape ``(points, *block)`` for each of the pieces.
    incoming : list of array
        For each place a buffer of shape ``(points, *block)`` for the received values, ordered by rank.

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
    ...     def send(self, place, use):
    ...         self.comm.alltoallv(self.outgoing[place][0], *self.counts, out=self.incoming[place])
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
        self.outgoing: list[list[Any]] = [[] for _ in range(PLACES)]
        self.incoming: list[Any] = [None] * PLACES
        self.busy: list[Transfer | None] = [None] * PLACES  # the transfer in each place
        self._begun = 0

    def allocate(self) -> None:
        """Make one outgoing buffer, of one piece, and one incoming buffer for each place."""
        sides = self.pattern.sends.points.size, self.pattern.receives.points.size
        self.pieces = ((0, sides[0]),)
        for place in range(PLACES):
            leaving, self.incoming[place] = (
                self.engine.xp.empty((points, *self.block), self.dtype) for points in sides
            )
            self.outgoing[place] = [leaving]

    def prepare(self, place: int, use: int) -> None:
        """Return when the outgoing buffer of a place may be written."""

    def send(self, place: int, use: int) -> None:
        """Start to send the packed values of a place; the incoming buffer of the place is free from here on."""

    def receive(self, place: int, use: int) -> None:
        """Return when all values of a place have arrived (on devices: order the current stream after them)."""

    def consume(self, place: int, use: int) -> None:
        """Allow other ranks to fill a place again, whose values have been read."""

    def free(self) -> None:
        """Free the memory and the requests. Collective."""

    def work(self, op: str, deterministic: bool) -> LocalWork:
        """Return the local work of this rank for an operation."""
        pattern = self.pattern
        ends = pattern.sends.points, pattern.receives.points, pattern.here, pattern.there
        return LocalWork(*ends, op, self.dtype, self.width, deterministic, packing_for(self.engine))

    def begin(self) -> Transfer:
        """Return a transfer in the next place. All ranks begin the transfers of one exchange in the same order."""
        place, use = self.turn()
        transfer = self.busy[place] = Transfer(self, place, use)
        self.prepare(place, use)
        return transfer

    def turn(self) -> tuple[int, int]:
        """Return the next place, made free, and how often it has been used with this time."""
        use, place = divmod(self._begun, PLACES)
        self._begun += 1
        earlier = self.busy[place]
        if earlier is not None:
            earlier.displace()
        return place, use + 1

    def starter(self, work: LocalWork) -> Callable[[Any, Any, Transfer], Any]:
        """Prepare a function that packs and sends values, moves those that stay here, and returns the target."""
        packing, stay, send = self._packing(work), work.stay(), self.send

        def start(source: Any, target: Any, transfer: Transfer) -> Any:
            place = transfer.place
            for pack, piece in packing[place]:
                pack(source, piece)
            send(place, transfer.use)
            return target if stay is None else stay(source, target)

        return start

    def finisher(self, work: LocalWork) -> Callable[[Transfer, Any], Any]:
        """Prepare a function that waits for values, combines them with the target, and returns the target."""
        unpack = work.unpacker()

        def finish(transfer: Transfer, target: Any) -> Any:
            transfer.wait()
            if unpack is not None:
                target = unpack(transfer.incoming, target)
            transfer.release()
            return target

        return finish

    def mover(self, work: LocalWork) -> Callable[[Any, Any], Any]:
        """Prepare a start and a finish in one function, which returns the target, without a transfer object."""
        packing, stay, unpack, incoming = self._packing(work), work.stay(), work.unpacker(), self.incoming
        turn, prepare, send, receive, consume = self.turn, self.prepare, self.send, self.receive, self.consume

        def move(source: Any, target: Any) -> Any:
            place, use = turn()
            prepare(place, use)
            for pack, piece in packing[place]:
                pack(source, piece)
            send(place, use)
            if stay is not None:
                target = stay(source, target)
            receive(place, use)
            if unpack is not None:
                target = unpack(incoming[place], target)
            consume(place, use)
            return target

        return move

    def _packing(self, work: LocalWork) -> list[list[tuple[Callable[[Any, Any], Any], Any]]]:
        """Return for each place what packs the pieces of the outgoing buffer, and these."""
        packers = [work.packer(*piece) for piece in self.pieces]
        return [list(zip(packers, outgoing, strict=True)) for outgoing in self.outgoing]

    def mover_in_steps(self, work: LocalWork) -> Callable[[Any, Any], Any]:
        """Prepare a move of a start and a finish."""
        start, finish, begin = self.starter(work), self.finisher(work), self.begin

        def move(source: Any, target: Any) -> Any:
            transfer = begin()
            return finish(transfer, start(source, target, transfer))

        return move


class Mover:
    """An exchange with an operation, for points of one block shape.

    Its ``move(source, target)`` is a start and a finish; it returns the target. Both arrays have been checked.

    The points are of the shape `block`. The direction, `way`, distinguishes it from other movers where
    ``COLLOPS_CHECK`` compares the calls of all ranks.
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
            carry = exchange.mover(work)
        else:
            carry = (work.stay() if width else None) or (lambda source, target: target)
        self.move = self._whole(carry, len(block) == len(self._shape))

    def start(self, source: Any, target: Any) -> InFlight:
        """Start a move between arrays that have been checked; `source` may be changed at once. Collective."""
        if not self._sends:
            return InFlight(None, self.move(source, target))
        if self._failures is not None:
            self._failures.check_open()
        self._record()
        return self._started(source, target)

    @benchmark(label="communication")
    def _started(self, source: Any, target: Any) -> InFlight:
        shape = self._shape
        points = points_of(target, shape)
        transfer = self._begin()
        result = self._start(points_of(source, shape), points, transfer)
        return InFlight(partial(self._complete, transfer), _shaped(result, points, target))

    @benchmark(label="communication: finish")
    def _complete(self, transfer: Transfer, target: Any) -> Any:
        if self._failures is not None:
            self._failures.check_open()
        points = points_of(target, self._shape)
        return _shaped(self._finish(transfer, points), points, target)

    def _whole(self, carry: Callable[[Any, Any], Any], flat: bool) -> Callable[[Any, Any], Any]:
        """Return the move from start to end; more calls than these would delay small messages."""
        # Without a reference to this object, which would make it, its exchange and its memory a cycle.
        shape, records, record, failures = self._shape, self._records, self._record, self._failures

        def move(source: Any, target: Any) -> Any:
            if failures is not None and failures.failure:
                failures.check_open()
            if messages.active or records:
                record()
            if not active:  # without the cost of a mark
                return carry(source, target)
            with Span("communication"):
                return carry(source, target)

        def move_blocks(source: Any, target: Any) -> Any:
            points = points_of(target, shape)
            return _shaped(whole(points_of(source, shape), points), points, target)

        whole = move if self._sends else carry
        return whole if flat else move_blocks


def _record(elements: int, nbytes: int, announce: Callable[[], None] | None) -> None:
    if messages.active:
        messages.record("exchange", elements, nbytes)
    if announce is not None:
        announce()


def points_of(array: Any, shape: tuple[int, ...]) -> Any:
    """Return an array with one axis of points, and at most one for the values of a point."""
    return array if array.ndim == len(shape) + 1 else array.reshape(array.shape[0], *shape)


def _shaped(result: Any, points: Any, target: Any) -> Any:
    """Return a result in the shape of the target: the target itself where its memory, `points`, was written to."""
    return target if result is points else result.reshape(target.shape)
