"""The interface of transports, and the transport of a single rank.

A transport runs the calls of a communicator, on arrays in one kind of memory. The communicator has validated these
:class:`~collops.comm.call.Call` records: arrays are C-contiguous, dtypes agree, shapes fit, reductions have a meaning,
counts are in elements. A transport allocates no result, sends no metadata, and orders device work on the caller's
current stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from collops.comm.call import Call
from collops.errors import CommunicationError

FIRST_USER_TAG = 32768
"""Messages of users have tags from here on; exchange plans use lower ones."""

Message: TypeAlias = tuple[int, Any]
"""The other rank, and the contiguous array that goes there or comes from there."""


class Pending:
    """Messages under way; :meth:`wait` returns when their arrays may be read and written again.

    Examples
    --------
    >>> from collops.comm import Pending
    >>> Pending().wait()  # its messages are complete when they are started
    """

    def wait(self) -> None:
        """Complete the messages, or order the current stream after them."""


class KnownExchange:
    """What a transport keeps of an exchange whose messages have the same ranks and lengths each time.

    Examples
    --------
    >>> from collops.comm.transport import KnownExchange
    >>> KnownExchange().short is None  # until the first exchange
    True
    """

    __slots__ = ("short",)

    def __init__(self) -> None:
        self.short: Any = None  # of Transport.short

    def __deepcopy__(self, memo: dict[int, Any]) -> KnownExchange:
        """Return a new one: what is kept has addresses of this one's memory."""
        return KnownExchange()


class Transport(ABC):
    """Carries the calls and messages between the ranks of a communicator.

    Attributes
    ----------
    name : str
        As users choose it: ``"serial"``, ``"mpi"``, ``"tcp"``, ``"staged"`` or ``"nccl"``.
    by_address : bool
        Whether exchanges are started by ``start_addresses(sends, receives, on_side_stream, known)``, which takes the
        other rank, an address and a number of bytes for each message, and may use a stream of the transport's own.
        `known` is a :class:`KnownExchange`, or ``None`` on all ranks if no message may go by :attr:`short`.
    short : PeerStores or None
        Runs the short calls and exchanges of this transport, and sums as the last part of other kernels too.
    reductions : dict or None
        Kept for each dtype and operation that the transport has reduced, for the fast path of
        :meth:`Communicator.allreduce`; ``None`` where there is no such path.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.comm import Transport, alone
    >>> isinstance(alone().transport_of(np.zeros(1)), Transport)
    True
    """

    name: str
    by_address: bool = False
    short: Any = None
    reductions: dict[tuple[Any, str], Any] | None = None

    @abstractmethod
    def run(self, call: Call) -> None:
        """Run a collective call. All ranks of the transport run the same one.

        The target may be read when this returns; on devices, by work that follows on the current stream.
        """

    def start(self, call: Call) -> Pending:
        """Start a collective call, whose target may be read after the wait. By default it is complete at once."""
        self.run(call)
        return Pending()

    @abstractmethod
    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Start any number of messages to and from other ranks, all at once. Not collective."""

    def group(self) -> AbstractContextManager[Any]:
        """Merge the calls inside into one launch where the transport can."""
        return nullcontext()

    def inspect(self) -> None:
        """Raise what has gone wrong on the transport since the last call, where it can tell."""


class SerialTransport(Transport):
    """The transport of a single rank: it moves arrays of any engine from this rank to itself."""

    name = "serial"

    def __init__(self) -> None:
        self._sent: dict[int, deque[Any]] = {}

    def run(self, call: Call) -> None:
        """Copy the source of any call to its target."""
        if call.target is not call.source:
            call.target[...] = call.source.reshape(call.target.shape)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Keep copies of what is sent until it is received."""
        sent = self._sent.setdefault(tag, deque())
        sent.extend(array.copy() for _, array in sends)
        return _ToItself([array for _, array in receives], sent)


class _ToItself(Pending):
    __slots__ = ("_receives", "_sent")

    def __init__(self, receives: list[Any], sent: deque[Any]) -> None:
        self._receives = receives
        self._sent = sent

    def wait(self) -> None:
        for array in self._receives:
            if not self._sent:
                raise CommunicationError("recv: nothing was sent, and in a world of one there is no other sender")
            array[...] = self._sent.popleft().reshape(array.shape)
        self._receives = []
