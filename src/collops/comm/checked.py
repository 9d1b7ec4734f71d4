"""The checks of ``COLLOPS_CHECK``: ranks agree on each call before any data move, so that mistakes are found.

A rank sends its expectations to every rank that its call involves, and waits for theirs. Two ranks disagree if their
expectations differ, or if each waits for something that the other, which waits as well, does not do. Then all ranks
give up (:mod:`collops.comm.failure`) and can continue, since no data have moved.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from collops.comm.call import Call
from collops.comm.failure import Cause, Failures, call_site
from collops.comm.mpi import ControlChannel
from collops.comm.transport import FIRST_USER_TAG, KnownExchange, Message, Pending, Transport
from collops.errors import InputError

__all__ = ["RECEIVE", "SEND", "Expectation", "described_call", "described_message"]

LEVELS = ("off", "calls", "sites")
"""The levels of checking: nothing, calls, or also whether they come from one line."""

_ALL, SEND, RECEIVE = "all", "send", "receive"
_COUNTERPART = {_ALL: _ALL, SEND: RECEIVE, RECEIVE: SEND}

Facts: TypeAlias = dict[str, Any]
"""Facts about a call that must be equal on both sides, as JSON has them."""


def check_level() -> str:
    """Return what ``COLLOPS_CHECK`` in the environment asks for, one of `LEVELS`; else raise `InputError`."""
    text = os.environ.get("COLLOPS_CHECK", "").strip().lower()
    known = {"": "off", "0": "off", "off": "off", "1": "sites", "on": "sites", "calls": "calls"}
    if text not in known:
        raise InputError(f"COLLOPS_CHECK={text!r}: choose 1, calls (call sites may differ) or 0")
    return known[text]


class Expectation(NamedTuple):
    """The expectation of another rank: the same collective call, or the other end of a message.

    `kind` is this rank's part. `facts` must be equal on both ranks. In a collective call, `pieces` is what goes to each
    rank and what comes from it, where every pair of ranks must have the same. `then` is called when the other rank has
    agreed, though others may still be missing.
    """

    kind: str
    facts: Facts
    pieces: tuple[Any, Any] | None = None
    then: Callable[[], None] | None = None


class CallAgreement:
    """Agrees on the calls of one communicator's ranks, with `sites` also on the line of the program that makes them.

    `channel` carries the expectations and nothing else; `failures` belongs to the communicator.

    Attributes
    ----------
    settle : callable, optional
        Called before a call that is not compiled: it waits for compiled programs, whose calls come before.
    """

    def __init__(self, channel: ControlChannel, failures: Failures, sites: bool) -> None:
        failures.checked = True
        self._channel = channel
        self._failures = failures
        self._sites = sites
        self.size = channel.size
        self.settle: Callable[[], None] | None = None
        self._received: dict[int, deque[list[Any]]] = {}  # expectations of other ranks that are not met yet
        self._incident = failures.incident

    def collective(
        self, call: str, facts: Facts, sends: Any = None, receives: Any = None, site: str | None = None
    ) -> None:
        """Return when every rank is about to make this call, whose `facts` must be the same on all. Collective.

        `sends` and `receives` have, for each rank, the pieces that go there and come from there, on which the two ranks
        must agree; `site` is the line of the program, for a compiled call. Errors show the text `call`. Raises
        `CallMismatch` on every rank if some rank is about to do something else, and `CommunicationTimeout` if one makes
        no call at all.
        """
        if self._sites:
            facts = {**facts, "at": call_site(with_function=False) if site is None else site}
        # Every rank receives all pieces: one that did not see a difference between two others would continue alone.
        pieces = None if sends is None or receives is None else (sends, receives)
        rank = self._channel.rank
        others = [other for other in range(self.size) if other != rank]
        expectations = {other: [Expectation(_ALL, facts, pieces)] for other in others}
        found = self.agree(call, expectations, compiled=site is not None)
        if pieces is not None:
            table = {other: each for other, (each,) in found.items()} | {rank: pieces}
            if any(table[a][0][b] != table[b][1][a] for a in table for b in table):
                self._failures.give_up(Cause.MISMATCH, call, "")

    def agree(
        self, call: str, expectations: Mapping[int, Iterable[Expectation]], compiled: bool = False
    ) -> dict[int, list[Any]]:
        """Return the pieces of every rank in `expectations` once it is about to do its part.

        Raises as :meth:`collective` does.
        """
        if self.settle is not None and not compiled:
            self.settle()
        failures = self._failures
        failures.look(call)
        if failures.incident != self._incident:  # what was received before belongs to calls that were given up
            self._incident = failures.incident
            self._received.clear()
        missing = {rank: deque(wanted) for rank, wanted in expectations.items() if wanted}
        pieces: dict[int, list[Any]] = {rank: [] for rank in missing}
        for rank, wanted in missing.items():
            self._channel.send([self._incident, [expectation[:3] for expectation in wanted]], [rank])

        def agreed() -> bool:
            for rank, (incident, received) in self._channel.receive():
                if incident == self._incident:
                    self._received.setdefault(rank, deque()).extend(received)
            for rank in list(missing):
                if not self._matched(missing[rank], self._received.get(rank), pieces[rank]):
                    failures.give_up(Cause.MISMATCH, call, "")
                if not missing[rank]:
                    del missing[rank]
            return not missing

        failures.until(agreed, call)
        failures.until(self._channel.delivered, call)
        return pieces

    def _matched(self, wanted: deque[Expectation], received: deque[list[Any]] | None, pieces: list[Any]) -> bool:
        """Take from both what belongs together; return whether the rest can still be met."""
        for expectation in list(wanted):
            found = next((each for each in received or () if each[0] == _COUNTERPART[expectation.kind]), None)
            if received is None or found is None:
                continue
            received.remove(found)
            wanted.remove(expectation)
            _, facts, theirs = found
            if not _agree(facts, json.loads(json.dumps(expectation.facts))):
                return False
            pieces.append(theirs)
            if expectation.then is not None:
                expectation.then()
        # Both wait, each for what the other does not do.
        return not (wanted and received)


def _agree(facts: Facts, others: Facts) -> bool:
    """Return whether facts are equal; the tag ``None``, of a receive of any tag, agrees with every tag."""
    if None in (facts.get("tag"), others.get("tag")):
        facts, others = ({**each, "tag": None} for each in (facts, others))
    return facts == others


class CheckedTransport(Transport):
    """The transport `inner`, whose calls are agreed upon first; `memory` is the memory of its arrays on every rank."""

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
        """Start messages of a plan, once all ranks have agreed; messages of users start when they are waited for."""
        if tag >= FIRST_USER_TAG:
            return _Checked(self, sends, receives, tag)
        gives, takes = ([(peer, array.nbytes) for peer, array in part] for part in (sends, receives))
        self._agree_on_exchange(gives, takes, tag)
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
        """Agree on the messages of users that are open, all at once, and start them.

        On hosts each starts when its own rank has agreed: others may depend on it. On devices they start as one launch.
        """
        opened, self.opened = self.opened, []
        expectations: dict[int, list[Expectation]] = {}
        for each in opened:
            for peer, expectation in each.expectations(self._memory):
                expectations.setdefault(peer, []).append(expectation)
        self._calls.agree("; ".join(map(str, opened)), expectations)
        if self._memory == "device":
            with self.inner.group():
                for each in opened:
                    each.start()

    def _agree_on_exchange(
        self, sends: list[tuple[int, int]], receives: list[tuple[int, int]], tag: int | None
    ) -> None:
        gives, takes = (
            [[n for other, n in part if other == rank] for rank in range(self._calls.size)]
            for part in (sends, receives)
        )
        text = f"exchange{'' if tag is None else f' of plan {tag}'}: {_peers(gives)} to, {_peers(takes)} from"
        self._calls.collective(text, {"call": "exchange", "tag": tag, "memory": self._memory}, gives, takes)


class _Checked(Pending):
    """Messages of a user that start when they are waited for; ranks agree on the messages of a group together."""

    def __init__(
        self, transport: CheckedTransport, sends: Sequence[Message], receives: Sequence[Message], tag: int
    ) -> None:
        self._transport = transport
        self._messages = [(SEND, *each) for each in sends] + [(RECEIVE, *each) for each in receives]
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

    def _start(self, kind: str, peer: int, array: Any) -> None:
        ends = ([(peer, array)], []) if kind == SEND else ([], [(peer, array)])
        self._pending.append(self._transport.inner.start_exchange(*ends, self._tag))


def described_call(call: Call, memory: str) -> tuple[str, dict[str, Any]]:
    """Return the call as errors of ``COLLOPS_CHECK`` show it, and what must be the same on all ranks."""
    facts: dict[str, Any] = {"call": call.kind, "memory": memory}
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


def described_message(kind: str, peer: int, array: Any) -> str:
    """Return the text of a message to or from another rank."""
    return f"{kind} {array.size} {array.dtype.name} {'to' if kind == SEND else 'from'} rank {peer}"


def _text(numbers: Any) -> str:
    """Return counts in few words: all of up to eight, or what more of them add up to."""
    if isinstance(numbers, int):
        return str(numbers)
    return "+".join(map(str, numbers)) if len(numbers) <= 8 else f"{sum(numbers)} ({len(numbers)} counts)"


def _peers(nbytes: list[list[int]]) -> str:
    found = [f"{sum(of)} B rank {rank}" for rank, of in enumerate(nbytes) if of]
    return ", ".join(found) if found else "nothing"
