"""Count the messages that a piece of code sends.

Communicators report every operation here, so that a test can assert that only the messages which the
mathematics needs were sent. While nobody counts, a communicator tests the truth of one empty list and nothing
else happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

__all__ = ["Message", "MessageCounts", "active", "count_messages", "record"]


class Message(NamedTuple):
    """One operation that this rank took part in.

    Attributes
    ----------
    operation : str
        Its name: that of a collective (``"allreduce"``), ``"send"``, ``"recv"``, ``"sendrecv"``, ``"exchange"``
        (one halo or other sparse exchange), ``"alltoallv"``, ``"metadata"`` (whatever the control plane sends:
        counts, shapes, checks), ``"agreement"`` (a solver's start) or ``"split"`` (a communicator was created).
    elements : int
        Number of array elements that this rank contributed.
    nbytes : int
        Their size in bytes.

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
    """The messages seen by one `count_messages` context; ``counts[name]`` is the number of one operation.

    Attributes
    ----------
    records : list of Message
        The messages in the order in which they were sent.

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

    def __init__(self) -> None:
        self.records: list[Message] = []

    def __getitem__(self, operation: str) -> int:
        return sum(message.operation == operation for message in self.records)

    @property
    def total(self) -> int:
        """Number of messages of every kind, metadata included."""
        return len(self.records)

    @property
    def nbytes(self) -> int:
        """Bytes that this rank contributed to all of them."""
        return sum(message.nbytes for message in self.records)

    def counts(self) -> dict[str, int]:
        """Return the number of messages by operation, in the order of first appearance."""
        numbers: dict[str, int] = {}
        for message in self.records:
            numbers[message.operation] = numbers.get(message.operation, 0) + 1
        return numbers

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={number}" for name, number in self.counts().items())
        return f"MessageCounts({inside or 'none'})"


active: list[MessageCounts] = []
"""The open contexts. Communicators test its truth before they call `record`; its identity never changes."""


def record(operation: str, elements: int, nbytes: int) -> None:
    """Report one operation to every open context.

    Parameters
    ----------
    operation : str
        See `Message`.
    elements, nbytes : int
        What this rank contributed.
    """
    message = Message(operation, elements, nbytes)
    for counts in active:
        counts.records.append(message)


@contextmanager
def count_messages() -> Iterator[MessageCounts]:
    """Count the messages that this rank takes part in while the context is open.

    Contexts may be nested: each of them counts what is sent inside it. Counts are kept for the process, whichever
    thread sends.

    Yields
    ------
    MessageCounts
        Counts that grow while the context is open and stay readable after it.

    Examples
    --------
    >>> from collops import profile
    >>> with profile.count_messages() as messages:
    ...     profile.messages.record("allreduce", 1, 8)
    >>> messages["allreduce"], messages["exchange"], messages.total
    (1, 0, 1)
    """
    counts = MessageCounts()
    active.append(counts)
    try:
        yield counts
    finally:
        # By identity: counts define no equality, and the contexts of two threads need not close in order.
        active.remove(counts)
