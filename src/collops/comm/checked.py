"""The checks of ``COLLOPS_CHECK``: ranks compare each call before they send data, to detect mismatched calls.

A rank sends its expectations to every rank that its call involves, and waits for theirs. Two ranks disagree if their
expectations differ, or if each waits for a call that the other does not make. Then all ranks abort the call
(:mod:`collops.comm.failure`) and can continue, since no data have been sent.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from collops.backend import LocalArray
from collops.comm.agreement import Json
from collops.comm.call import Call
from collops.comm.failure import Cause, Failures, call_site
from collops.comm.mpi import ControlChannel
from collops.comm.transport import FIRST_USER_TAG, KnownExchange, Message, Pending, Transport
from collops.errors import InputError

__all__ = ["RECEIVE", "SEND", "Expectation", "described_call", "described_message"]

LEVELS = ("off", "calls", "sites")
"""The levels of checking: nothing, calls, or calls and the source lines that make them."""

_ALL, SEND, RECEIVE = "all", "send", "receive"
_COUNTERPART = {_ALL: _ALL, SEND: RECEIVE, RECEIVE: SEND}

Facts: TypeAlias = dict[str, Any]
"""Properties of a call that must be equal on both sides, representable in JSON."""


def check_level() -> str:
    """Return the level in the environment variable ``COLLOPS_CHECK``, one of `LEVELS`; else raise `InputError`."""
    text = os.environ.get("COLLOPS_CHECK", "").strip().lower()
    known = {"": "off", "0": "off", "off": "off", "1": "sites", "on": "sites", "calls": "calls"}
    if text not in known:
        raise InputError(f"COLLOPS_CHECK={text!r}: choose 1, calls (call sites may differ) or 0")
    return known[text]


class Expectation(NamedTuple):
    """The expectation of another rank: the same collective call, or the other end of a message.

    `kind` is this rank's part. `facts` must be equal on both ranks. In a collective call, `pieces` holds the sizes sent
    to each rank and received from it, which must match for each pair of ranks. `then` is called when the other rank has
    agreed, although others may still be missing.
    """

    kind: str
    facts: Facts
    pieces: tuple[Sequence[object], Sequence[object]] | None = None
    then: Callable[[], None] | None = None


class CallAgreement:
    """Compares the calls of a communicator's ranks, with `sites` also the lines of the program that make them.

    `channel` is used for expectations only; `failures` belongs to the communicator.

    Attributes
    ----------
    settle : callable, optional
        Called before a call that is not compiled: it waits for compiled programs, whose calls precede it.
    """

    def __init__(self, channel: ControlChannel, failures: Failures, sites: bool) -> None:
        failures.checked = True
        self._channel = channel
        self._failures = failures
        self._sites = sites
        self.size = channel.size
        self.settle: Callable[[], None] | None = None
        self._received: dict[int, deque[list[Json]]] = {}  # expectations of other ranks that are not met yet
        self._incident = failures.incident

    def collective(
        self,
        call: str,
        facts: Facts,
        sends: Sequence[object] | None = None,
        receives: Sequence[object] | None = None,
        site: str | None = None,
    ) -> None:
        """Wait until every rank is about to make this call, whose `facts` must be the same on all ranks. Collective.

        `sends` and `receives` have the sizes sent to and received from each rank, on which the two ranks must agree;
        `site` is the source line of a compiled call. Error messages show the text `call`. Raises `CallMismatch` on
        every rank if a rank is about to make another call, and `CommunicationTimeout` if a rank makes no call at all.
        """
        if self._sites:
            facts = {**facts, "at": call_site(with_function=False) if site is None else site}
        # Every rank receives all pieces: a rank that misses a difference between two others would continue alone.
        pieces = None if sends is None or receives is None else (sends, receives)
        rank = self._channel.rank
        peers = [peer for peer in range(self.size) if peer != rank]
        expectations = {peer: [Expectation(_ALL, facts, pieces)] for peer in peers}
        exchanged = self.agree(call, expectations, compiled=site is not None)
        if pieces is not None:
            table = {peer: received for peer, (received,) in exchanged.items()} | {rank: pieces}
            if any(table[a][0][b] != table[b][1][a] for a in table for b in table):
                self._failures.abort(Cause.MISMATCH, call, "")

    def agree(
        self, call: str, expectations: Mapping[int, Iterable[Expectation]], compiled: bool = False
    ) -> dict[int, list[Json]]:
        """Return the pieces of every rank in `expectations` once it is about to make its part of the call.

        Raises as :meth:`collective` does.
        """
        if self.settle is not None and not compiled:
            self.settle()
        failures = self._failures
        failures.look(call)
        if failures.incident != self._incident:  # earlier expectations belong to aborted calls
            self._incident = failures.incident
            self._received.clear()
        missing = {rank: deque(expected) for rank, expected in expectations.items() if expected}
        pieces: dict[int, list[Json]] = {rank: [] for rank in missing}
        for rank, expected in missing.items():
            self._channel.send([self._incident, [expectation[:3] for expectation in expected]], [rank])

        def agreed() -> bool:
            for rank, (incident, received) in self._channel.receive():
                if incident == self._incident:
                    self._received.setdefault(rank, deque()).extend(received)
            for rank in list(missing):
                if not self._matched(missing[rank], self._received.get(rank), pieces[rank]):
                    failures.abort(Cause.MISMATCH, call, "")
                if not missing[rank]:
                    del missing[rank]
            return not missing

        failures.until(agreed, call)
        failures.until(self._channel.delivered, call)
        return pieces

    def _matched(self, expected: deque[Expectation], received: deque[list[Json]] | None, pieces: list[Json]) -> bool:
        """Remove matching pairs from both; return whether the remaining expectations can still be met."""
        for expectation in list(expected):
            match = next(
                (candidate for candidate in received or () if candidate[0] == _COUNTERPART[expectation.kind]), None
            )
            if received is None or match is None:
                continue
            received.remove(match)
            expected.remove(expectation)
            _, facts, remote_pieces = match
            if not _agree(facts, json.loads(json.dumps(expectation.facts))):
                return False
            pieces.append(remote_pieces)
            if expectation.then is not None:
                expectation.then()
        # If both remain, each rank waits for a call that the other does not make.
        return not (expected and received)


def _agree(facts: Facts, remote: Facts) -> bool:
    """Return whether facts are equal; the tag ``None``, of a receive with any tag, matches every tag."""
    if None in (facts.get("tag"), remote.get("tag")):
        facts, remote = ({**part, "tag": None} for part in (facts, remote))
    return facts == remote


class CheckedTransport(Transport):
    """The transport `inner` with calls that ranks compare first; `memory` is the memory of its arrays on every rank."""

    def __init__(self, inner: Transport, calls: CallAgreement, memory: str) -> None:
        self.name = inner.name
        self.on_stream = inner.on_stream
        self.by_address = inner.by_address
        self.group = inner.group
        self.inspect = inner.inspect
        self.inner = inner
        self._calls = calls
        self._memory = memory
        self.opened: list[_Checked] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # methods that only some transports have

    def run(self, call: Call) -> None:
        """Run a call once all ranks are about to run the same one."""
        self._agree_on_call(call)
        self.inner.run(call)

    def start(self, call: Call) -> Pending:
        """Start a call once all ranks are about to start the same one."""
        self._agree_on_call(call)
        return self.inner.start(call)

    def _agree_on_call(self, call: Call) -> None:
        pieces = (None, None) if call.receive_counts is None else (list(call.counts), list(call.receive_counts))
        self._calls.collective(*described_call(call, self._memory), *pieces)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message], tag: int) -> Pending:
        """Start messages of a plan once all ranks have agreed; users' messages start at their wait."""
        if tag >= FIRST_USER_TAG:
            return _Checked(self, sends, receives, tag)
        send_sizes, receive_sizes = ([(peer, array.nbytes) for peer, array in part] for part in (sends, receives))
        self._agree_on_exchange(send_sizes, receive_sizes, tag)
        return self.inner.start_exchange(sends, receives, tag)

    def start_addresses(
        self,
        sends: Sequence[tuple[int, int, int]],
        receives: Sequence[tuple[int, int, int]],
        on_side_stream: bool,
        known: KnownExchange | None,
    ) -> Pending:
        """Start messages by address; see :class:`Transport`."""
        self._agree_on_exchange([(peer, n) for peer, _, n in sends], [(peer, n) for peer, _, n in receives], None)
        inner: Any = self.inner
        return inner.start_addresses(sends, receives, on_side_stream, known)

    def settle(self) -> None:
        """Agree on all pending messages of users at once, and start them.

        On hosts each message starts when its peer has agreed, since others may depend on it. On devices all messages
        start as one launch.
        """
        opened, self.opened = self.opened, []
        expectations: dict[int, list[Expectation]] = {}
        for message in opened:
            for peer, expectation in message.expectations(self._memory):
                expectations.setdefault(peer, []).append(expectation)
        self._calls.agree("; ".join(map(str, opened)), expectations)
        if self._memory == "device":
            with self.inner.group():
                for message in opened:
                    message.start()

    def _agree_on_exchange(
        self, sends: list[tuple[int, int]], receives: list[tuple[int, int]], tag: int | None
    ) -> None:
        send_sizes, receive_sizes = (
            [[n for peer, n in part if peer == rank] for rank in range(self._calls.size)] for part in (sends, receives)
        )
        text = (
            f"exchange{'' if tag is None else f' of plan {tag}'}: {_peers(send_sizes)} to, {_peers(receive_sizes)} from"
        )
        self._calls.collective(
            text, {"call": "exchange", "tag": tag, "memory": self._memory}, send_sizes, receive_sizes
        )


class _Checked(Pending):
    """Messages of a user that start at their wait; ranks agree on the messages of a group together."""

    def __init__(
        self, transport: CheckedTransport, sends: Sequence[Message], receives: Sequence[Message], tag: int
    ) -> None:
        self._transport = transport
        self._messages = [(SEND, *message) for message in sends] + [(RECEIVE, *message) for message in receives]
        self._tag = tag
        self._pending: list[Pending] = []
        transport.opened.append(self)

    def __str__(self) -> str:
        tag = self._tag - FIRST_USER_TAG
        parts = [described_message(kind, peer, array) for kind, peer, array in self._messages]
        return " and ".join(parts) + (f", tag {tag}" if tag else "")

    def expectations(self, memory: str) -> Iterator[tuple[int, Expectation]]:
        """Yield what the other ranks must do."""
        for kind, peer, array in self._messages:
            facts = {"dtype": array.dtype.name, "elements": array.size, "tag": self._tag, "memory": memory}
            then = partial(self._start, kind, peer, array) if memory == "host" else None
            yield peer, Expectation(kind, facts, then=then)

    def start(self) -> None:
        """Start all messages, which have been agreed upon."""
        for message in self._messages:
            self._start(*message)

    def wait(self) -> None:
        if self in self._transport.opened:
            self._transport.settle()
        for pending in self._pending:
            pending.wait()
        self._pending = []

    def _start(self, kind: str, peer: int, array: LocalArray) -> None:
        ends = ([(peer, array)], []) if kind == SEND else ([], [(peer, array)])
        self._pending.append(self._transport.inner.start_exchange(*ends, self._tag))


def described_call(call: Call, memory: str) -> tuple[str, Facts]:
    """Return the text of a call for errors of ``COLLOPS_CHECK``, and its properties that must be equal on all ranks."""
    facts: Facts = {"call": call.kind, "memory": memory}
    if call.kind == "barrier":
        return "barrier", facts
    facts["dtype"] = dtype = call.array.dtype.name
    if call.receive_counts is not None:
        to, from_ = _text(call.counts), _text(call.receive_counts)
        return f"{call.kind} of {dtype}: {to} to, {from_} from each rank", facts
    # With counts, ranks have different numbers of elements.
    elements = call.array.size if call.counts is None else [int(count) for count in call.counts]
    facts.update(elements=elements, op=call.op, root=call.root)
    text = f"{call.kind}{'' if call.op is None else f'({call.op})'} of {_text(elements)} {dtype}"
    text += "" if call.root is None else f", root {call.root}"
    return text + (" on the device" if memory == "device" else ""), facts


def described_message(kind: str, peer: int, array: LocalArray) -> str:
    """Return the text of a message to or from another rank."""
    return f"{kind} {array.size} {array.dtype.name} {'to' if kind == SEND else 'from'} rank {peer}"


def _text(numbers: int | Sequence[int]) -> str:
    """Return counts as text: up to eight counts, or the sum of more."""
    if isinstance(numbers, int):
        return str(numbers)
    return "+".join(map(str, numbers)) if len(numbers) <= 8 else f"{sum(numbers)} ({len(numbers)} counts)"


def _peers(nbytes: list[list[int]]) -> str:
    parts = [f"{sum(counts)} B rank {rank}" for rank, counts in enumerate(nbytes) if counts]
    return ", ".join(parts) if parts else "nothing"
