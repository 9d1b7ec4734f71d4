"""What a transport is: the wire under a communicator, for arrays in one kind of memory.

A transport moves C-contiguous arrays that the communicator has checked: dtypes agree, shapes fit, reductions have a
meaning. Counts are in elements. It never allocates a result, never sends metadata, and orders device work on the
caller's current stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

__all__ = ["FIRST_USER_TAG", "Message", "Pending", "Transport"]

FIRST_USER_TAG = 32768
"""Messages of users have tags from here on, those of exchange plans lower ones."""

Message: TypeAlias = tuple[int, Any]
"""The other rank, and the contiguous array that goes there or comes from there."""


class Pending:
    """Messages under way; :meth:`wait` returns when their arrays may be read and written again.

    Examples
    --------
    >>> from collops.comm import Pending
    >>> Pending().wait()  # of a transport whose messages are done when they are started
    """

    def wait(self) -> None:
        """Complete the messages, or order the current stream after them."""


class Transport(ABC):
    """One wire. All methods are collective over the transport's ranks except those of point-to-point messages.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.comm import Transport, alone
    >>> isinstance(alone().transport_of(np.zeros(1)), Transport)
    True
    """

    name: str
    by_address: bool = False
    """Whether exchanges are started by ``start_addresses(sends, receives, on_side_stream)``, which takes the other
    rank, an address and a number of bytes for each message, and may use a stream of the transport's own."""

    @abstractmethod
    def allreduce(self, source: Any, target: Any, op: str) -> None:
        """Reduce `source` over the ranks into every rank's `target` (which may be `source`)."""

    @abstractmethod
    def reduce(self, source: Any, target: Any, op: str, root: int) -> None:
        """Reduce `source` over the ranks into `target` of `root`; elsewhere `target` is ``None``."""

    @abstractmethod
    def bcast(self, source: Any, target: Any, root: int) -> None:
        """Copy `source` of `root` into every rank's `target` (which may be `source`)."""

    @abstractmethod
    def allgather(self, source: Any, target: Any) -> None:
        """Concatenate equally large `source` arrays into every rank's `target`."""

    @abstractmethod
    def allgatherv(self, source: Any, target: Any, counts: Sequence[int]) -> None:
        """Concatenate `source` arrays of ``counts[rank]`` elements into every rank's `target`."""

    @abstractmethod
    def gatherv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        """Concatenate `source` arrays into `target` of `root`; elsewhere `target` is ``None``."""

    @abstractmethod
    def scatterv(self, source: Any, target: Any, counts: Sequence[int], root: int) -> None:
        """Cut `source` of `root` into every rank's `target`; elsewhere `source` is ``None``."""

    @abstractmethod
    def reduce_scatter(self, source: Any, target: Any, op: str) -> None:
        """Reduce equal blocks of `source` over the ranks; rank *r* gets block *r* in `target`."""

    @abstractmethod
    def alltoallv(self, source: Any, target: Any, send_counts: Sequence[int], receive_counts: Sequence[int]) -> None:
        """Send consecutive pieces of `source` to the ranks; collect theirs in `target`."""

    @abstractmethod
    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Start any number of messages to and from other ranks, all at once."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has come here (devices: when the stream gets there)."""

    def group(self) -> AbstractContextManager[Any]:
        """Merge the calls inside into one launch where the wire can."""
        return nullcontext()

    def inspect(self) -> None:
        """Raise what has gone wrong on the wire since the last call, where the wire can tell."""
