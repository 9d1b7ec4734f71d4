"""The transports of star forests: they carry packed buffers between ranks along fixed routes, again and again.

A *wire* makes *channels*; a channel is for one set of routes, one dtype and one number of values per point, and owns
all memory and all requests, so that using it allocates nothing. Each use is a *transfer*; several may be under way at
once. All that combines values with a target returns the target: the same array where it can be written to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.graph.packing import Index
from collops.graph.plan import Segment, Side

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = [
    "Channel",
    "Motion",
    "PoolChannel",
    "Routes",
    "Transfer",
    "Wire",
    "rank_consistent",
    "unpacker",
    "wait_for",
]

_LOOKS = 20  # before a wait begins that costs more than most small messages take


class Routes(NamedTuple):
    """Who sends which part of one buffer to whom, and fills which part of the other.

    Attributes
    ----------
    sends, receives : tuple of Segment
        Of the outgoing and the incoming buffer, in points.
    leaving, arriving : int
        Lengths of the two buffers in points.
    """

    sends: tuple[Segment, ...]
    receives: tuple[Segment, ...]
    leaving: int
    arriving: int

    @classmethod
    def between(cls, source: Side, target: Side) -> Routes:
        """Return the routes from one side of a plan to the other."""
        return cls(source.segments, target.segments, source.points.size, target.points.size)


class Motion(NamedTuple):
    """The part of a move that one rank does.

    Attributes
    ----------
    leaving, arriving : Index
        Points of the source whose values leave, and of the target that what arrives is combined with.
    here, there : Index
        Points of the source and of the target between which values stay on this rank.
    op : str
        How values are combined with those that are there.
    dtype : dtype
        Of the values.
    width : int
        Values of a point.
    deterministic : bool
        Whether sums have one order.
    moves : module
        Of the engine, see :mod:`collops.graph.packing`.
    """

    leaving: Index
    arriving: Index
    here: Index
    there: Index
    op: str
    dtype: np.dtype
    width: int
    deterministic: bool
    moves: Any

    def move(self, source: Index, target: Index) -> Callable[[Any, Any], Any] | None:
        """Prepare to combine values with those of the target; ``None`` where there are none."""
        if not target.size:
            return None
        return self.moves.mover(source, target, self.op, self.dtype, self.width, self.deterministic)


class Transfer(ABC):
    """One use of a channel: fill the outgoing buffers, :meth:`post`, :meth:`wait`, read, :meth:`release`.

    Attributes
    ----------
    outgoing : list of array
        The leaving values, cut as ``channel.pieces`` says, each of shape ``(points, *block)``.
    incoming : array
        The values that have arrived, of shape ``(points, *block)``.
    """

    __slots__ = ("incoming", "outgoing")

    outgoing: list[Any]
    incoming: Any

    @abstractmethod
    def post(self) -> None:
        """Send what has been packed."""

    @abstractmethod
    def wait(self) -> None:
        """Return when everything has arrived (on devices: order the current stream after it)."""

    @abstractmethod
    def release(self) -> None:
        """Give the buffers back after reading."""


class Channel(ABC):
    """The buffers and the peers of one set of routes.

    Attributes
    ----------
    pieces : tuple of (int, int)
        How the outgoing buffer is cut, in points: once for each place that is packed into.
    """

    pieces: tuple[tuple[int, int], ...]

    @abstractmethod
    def begin(self) -> Transfer:
        """Return a transfer whose outgoing buffers may be written. All ranks begin theirs in the same order."""

    def packers(self, motion: Motion) -> list[Callable[[Any, Any], Any]]:
        """Prepare to fill the outgoing buffers, one call for each of the pieces."""
        kind = "replace", motion.dtype, motion.width, True
        return [
            motion.moves.mover(motion.leaving.piece(start, stop), Index.run(stop - start), *kind)
            for start, stop in self.pieces
        ]

    def starter(self, motion: Motion) -> Callable[[Any, Any, Transfer], Any]:
        """Prepare the start of a mover.

        Returns
        -------
        callable
            Takes source, target and transfer: fills the outgoing buffers, sends them, moves the values that stay on
            this rank, and returns the target.
        """
        packers = self.packers(motion)
        stay = motion.move(motion.here, motion.there)

        def start(source: Any, target: Any, transfer: Transfer) -> Any:
            outgoing = transfer.outgoing
            for number, pack in enumerate(packers):
                outgoing[number] = pack(source, outgoing[number])
            transfer.post()
            return target if stay is None else stay(source, target)

        return start

    def finisher(self, motion: Motion) -> Callable[[Transfer, Any], Any]:
        """Prepare the end of a mover.

        Returns
        -------
        callable
            Takes transfer and target: waits for the values that arrive, combines them with the target, ends the
            transfer, and returns the target.
        """
        unpack = unpacker(motion)

        def finish(transfer: Transfer, target: Any) -> Any:
            transfer.wait()
            if unpack is not None:
                target = unpack(transfer.incoming, target)
            transfer.release()
            return target

        return finish

    def mover(self, motion: Motion) -> Callable[[Any, Any], Any]:
        """Prepare a mover whose start and end follow each other at once.

        Returns
        -------
        callable
            Takes source and target, and returns the target.
        """
        start, finish, begin = self.starter(motion), self.finisher(motion), self.begin

        def move(source: Any, target: Any) -> Any:
            transfer = begin()
            return finish(transfer, start(source, target, transfer))

        return move

    def free(self) -> None:
        """Give back what MPI keeps for the channel. Collective."""


class PoolChannel(Channel):
    """Transfers that are kept and used again; a new one is made when all are under way.

    For wires that pair messages by their order.
    """

    def __init__(self) -> None:
        self.idle: list[Transfer] = []

    def begin(self) -> Transfer:
        """Return a transfer that is not under way."""
        return self.idle.pop() if self.idle else self.make()

    @abstractmethod
    def make(self) -> Transfer:
        """Return a new transfer, with buffers of its own. Not collective."""


def unpacker(motion: Motion) -> Callable[[Any, Any], Any] | None:
    """Prepare to combine the values that arrived with the target; ``None`` where there are none."""
    return motion.move(Index.run(motion.arriving.size), motion.arriving)


def rank_consistent(channel: Channel, comm: Communicator, **facts: Any) -> Channel:
    """Return a channel each of whose transfers begins with a check that all ranks begin it (``COLLOPS_CHECK``).

    Parameters
    ----------
    channel : Channel
        Newly made; returned as it is where checks are off.
    comm : Communicator
        The ranks.
    **facts
        The same on all ranks, and different for different channels.
    """
    if comm.calls is None:
        return channel
    begin, mover = channel.begin, channel.mover

    def begin_together() -> Transfer:
        comm.announce("star forest", **facts)
        return begin()

    def mover_together(motion: Motion) -> Callable[[Any, Any], Any]:
        # One announcement, whether or not this rank's mover is made of a start and an end.
        channel.begin = begin  # pyright: ignore[reportAttributeAccessIssue]
        move = mover(motion)
        channel.begin = begin_together  # pyright: ignore[reportAttributeAccessIssue]

        def move_together(source: Any, target: Any) -> Any:
            comm.announce("star forest", **facts)
            return move(source, target)

        return move_together

    channel.begin = begin_together  # pyright: ignore[reportAttributeAccessIssue]
    channel.mover = mover_together  # pyright: ignore[reportAttributeAccessIssue]
    return channel


class Wire(ABC):
    """A way for packed buffers to travel between the ranks of a communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    @abstractmethod
    def channel(self, routes: Routes, block: tuple[int, ...], dtype: np.dtype, engine: Engine, tag: int) -> Channel:
        """Make a channel. Collective.

        Parameters
        ----------
        routes : Routes
            Of this rank.
        block : tuple of int
            Shape of the values of one point.
        dtype : dtype
            Of the values.
        engine : Engine
            Whose arrays the buffers are.
        tag : int
            Tells the messages of one forest from those of others.
        """


class _Condition:
    """What :meth:`Communicator.wait` waits for."""

    __slots__ = ("_test",)

    def __init__(self, test: Any) -> None:
        self._test = test

    @property
    def done(self) -> bool:
        return self._test()


def wait_for(comm: Communicator, test: Any) -> None:
    """Return when `test` is true, with the deadline of every other wait.

    Raises
    ------
    CommunicationTimeout
        When the deadline passes.
    """
    for _ in range(_LOOKS):
        if test():
            return
    comm.wait(_Condition(test), "star forest")
