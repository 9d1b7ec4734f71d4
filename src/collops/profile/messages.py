"""Count the messages that a piece of code sends.

Communicators report every operation here, so that a test can assert that no other messages were sent. Without an open
context a communicator only tests whether the list `active` is empty.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

__all__ = ["active", "record"]


class Message(NamedTuple):
    """One operation in which this rank took part.

    Attributes
    ----------
    operation : str
        A collective (``"allreduce"``), ``"send"``, ``"recv"``, ``"sendrecv"``, ``"exchange"`` (a halo or another sparse
        exchange), ``"metadata"`` (counts, shapes and checks on the control plane), ``"agreement"`` (a solver's start, a
        transport) or ``"split"`` (a new communicator).
    elements, nbytes : int
        Number of array elements that this rank contributed, and their size in bytes.

    Examples
    --------
    >>> from collops import profile
    >>> profile.Message("allreduce", 1, 8).nbytes
    8
    """

    operation: str
    elements: int
    nbytes: int


class MessageCounts:
    """The messages of one `count_messages` context; ``counts[name]`` is the number of one operation.

    Attributes
    ----------
    records : list of Message
        The messages in order; empty if `count_messages` was called with ``records=False``.

    Examples
    --------
    >>> import collops
    >>> from collops import profile
    >>> x = collops.ones(3)
    >>> with profile.count_messages() as messages:
    ...     y = x + x
    >>> messages, messages.total
    (MessageCounts(none), 0)
    """

    def __init__(self, *, records: bool = True) -> None:
        self.records: list[Message] = []
        self._numbers: Counter[str] = Counter()
        self._nbytes = 0
        self._keep_records, self._lock = records, threading.Lock()

    def __getitem__(self, operation: str) -> int:
        return self._numbers[operation]

    @property
    def total(self) -> int:
        """Number of messages of every kind, metadata included."""
        return self._numbers.total()

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributed to all messages."""
        return self._nbytes

    def counts(self) -> dict[str, int]:
        """Return the number of messages by operation, in the order of first appearance."""
        return dict(self._numbers)

    def _add(self, message: Message) -> None:
        """Count a message, from any thread."""
        with self._lock:
            self._numbers[message.operation] += 1
            self._nbytes += message.nbytes
            if self._keep_records:
                self.records.append(message)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={number}" for name, number in self.counts().items())
        return f"MessageCounts({inside or 'none'})"


active: list[MessageCounts] = []
"""The open contexts. Communicators call `record` only if there is one; the list object never changes."""


def record(operation: str, elements: int, nbytes: int) -> None:
    """Add one operation to every open context; see `Message`."""
    message = Message(operation, elements, nbytes)
    for counts in active:
        counts._add(message)


@contextmanager
def count_messages(*, records: bool = True) -> Iterator[MessageCounts]:
    """Count the messages in which this rank takes part inside a ``with`` statement, on all threads.

    Contexts may be nested; each counts all messages inside it.

    Parameters
    ----------
    records : bool
        Whether to keep a :class:`Message` for each; with False, a program may run for days inside the context.

    Yields
    ------
    MessageCounts
        Readable also after the end of the context.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.count_messages() as messages:
    ...     profile.messages.record("allreduce", 1, 8)
    >>> messages["allreduce"], messages["exchange"], messages.total
    (1, 0, 1)
    """
    counts = MessageCounts(records=records)
    active.append(counts)
    try:
        yield counts
    finally:
        # Removed by identity, because the contexts of two threads need not close in order.
        active.remove(counts)
