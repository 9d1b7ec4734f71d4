"""The interface of transports, the type of their tables, and the transport of a single rank.

A transport runs the calls of a communicator, on arrays in one kind of memory. The communicator has validated these
:class:`~collops.comm.call.Call` records: arrays are C-contiguous, dtypes agree, shapes fit, reductions have a meaning,
counts are in elements. A transport allocates no result, sends no metadata, and orders device work on the caller's
current stream.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from collops.backend import LocalArray
from collops.comm.call import Call
from collops.errors import CommunicationError, InputError

FIRST_USER_TAG = 32768
"""Smallest tag of users' messages; exchange plans use smaller ones."""

Message: TypeAlias = tuple[int, Any]
"""The other rank, and the contiguous array that is sent to it or received from it."""


class Pending:
    """Messages in flight; :meth:`wait` returns when their arrays may be read and written again.

    Examples
    --------
    >>> from collops.comm import Pending
    >>> Pending().wait()  # its messages are complete when they are started
    """

    def wait(self) -> None:
        """Complete the messages, or order the current stream after them."""


class KnownExchange:
    """State of a transport for a repeated exchange, whose messages have the same ranks and lengths each time.

    Examples
    --------
    >>> from collops.comm.transport import KnownExchange
    >>> KnownExchange().short is None  # until the first exchange
    True
    """

    __slots__ = ("short",)

    def __init__(self) -> None:
        self.short: Any = None  # of Transport.short

    def __deepcopy__(self, memo: dict[int, object]) -> KnownExchange:
        """Return a new object: the state has addresses of the memory of this exchange."""
        return KnownExchange()


class TransportRow(NamedTuple):
    """One transport in a :class:`TransportTable`.

    Attributes
    ----------
    home : str
        ``"module.Class"`` in the package of the table, imported at first use.
    obstacle : callable
        Returns why these ranks cannot use the transport, as a sentence without a full stop, or ``None``. All rows of a
        table receive the same facts, and the result is the same on all ranks.
    path : callable or None
        Takes the same facts, and returns how values are sent, for :attr:`Communicator.reasons`.
    """

    home: str
    obstacle: Callable[..., str | None]
    path: Callable[..., str] | None = None


class TransportTable:
    """The transports of one kind by name, in order of preference: the only list of their names and conditions.

    Parameters
    ----------
    package : str
        Full name of the package with the modules.
    rows : mapping of str to TransportRow
        By the users' name of the transport. ``"auto"`` selects the first transport that the ranks can use.
    """

    def __init__(self, package: str, rows: Mapping[str, TransportRow]) -> None:
        self._package = package
        self.rows = dict(rows)
        self.names = ("auto", *self.rows)

    def check(self, name: object, otherwise: str = "") -> None:
        """Raise an InputError unless `name` is ``"auto"`` or in the table; `otherwise` ends its list of names."""
        if name not in self.names:
            raise InputError(f"there is no transport {name!r}; choose {', '.join(self.names)}{otherwise}")

    def possible(self, *facts: object) -> list[str]:
        """Return the transports that these ranks can use, in order of preference."""
        return [name for name, row in self.rows.items() if row.obstacle(*facts) is None]

    def load(self, name: str) -> Any:
        """Return the class of a transport."""
        module, _, kind = self.rows[name].home.partition(".")
        return getattr(importlib.import_module(f"{self._package}.{module}"), kind)


class Transport(ABC):
    """Carries the calls and messages between the ranks of a communicator.

    Attributes
    ----------
    name : str
        The users' name: ``"serial"``, ``"mpi"``, ``"tcp"``, or one of the table in :mod:`collops.comm.transports`.
    on_stream : bool
        Whether calls are queued on the current stream, so that the host never waits for them.
    by_host : bool
        Whether a transport of device arrays sends all its messages by the transport of host arrays.
    reasons : sequence of str
        Lines that the transport adds to :attr:`Communicator.reasons`.
    by_address : bool
        Whether exchanges are started by ``start_addresses(sends, receives, on_side_stream, known)``, which takes the
        other rank, an address and a number of bytes for each message, and may use a stream of the transport.
        `known` is a :class:`KnownExchange`, or ``None`` on all ranks if no message may use :attr:`short`.
    short : PeerStores or None
        Runs the short calls and exchanges of this transport, and sums at the end of other kernels.
    reductions : dict or None
        An entry for each dtype and operation that the transport has reduced, for the fast path of
        :meth:`Communicator.allreduce`; ``None`` without a fast path.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.comm import Transport, alone
    >>> isinstance(alone().transport_of(np.zeros(1)), Transport)
    True
    """

    name: str
    on_stream: bool = False
    by_host: bool = False
    reasons: Sequence[str] = ()
    by_address: bool = False
    short: Any = None
    reductions: Mapping[tuple[np.dtype, str], object] | None = None

    @abstractmethod
    def run(self, call: Call) -> None:
        """Run a collective call. All ranks of the transport run the same call.

        The target may be read when this returns; on devices, by later work on the current stream.
        """

    def start(self, call: Call) -> Pending:
        """Start a collective call, whose target may be read after the wait. By default it is complete at once."""
        self.run(call)
        return Pending()

    @abstractmethod
    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Start any number of messages to and from other ranks, all at once. Not collective."""

    def sends_short(self, nbytes: int) -> bool:
        """Return whether an exchange of messages of up to `nbytes` bytes takes no longer than the launch of a kernel.

        Overlapping the exchange with computation that needs a second launch is then not faster.
        """
        return False

    def group(self) -> AbstractContextManager[None]:
        """Merge the calls in the block into one launch, if the transport can."""
        return nullcontext()

    def inspect(self) -> None:
        """Raise an error of the transport since the last call, if it can detect errors."""


class SerialTransport(Transport):
    """The transport of a single rank: it moves arrays of any engine from this rank to itself."""

    name = "serial"

    def __init__(self) -> None:
        self._sent: dict[int, deque[LocalArray]] = {}

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

    def __init__(self, receives: list[LocalArray], sent: deque[LocalArray]) -> None:
        self._receives = receives
        self._sent = sent

    def wait(self) -> None:
        for array in self._receives:
            if not self._sent:
                raise CommunicationError("recv: nothing was sent, and in a world of one there is no other sender")
            array[...] = self._sent.popleft().reshape(array.shape)
        self._receives = []
