"""The agreement of ranks on the call that they are about to make, with which ``COLLOPS_CHECK`` finds mistakes.

Before any data move, a rank sends its expectations to every rank that its call involves, and waits for theirs. Two
ranks disagree if their expectations differ, or if each waits for something that the other, which waits as well, does
not do. Then all ranks give up (:mod:`collops.comm.failure`) and can continue, since no data have moved.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from collops.comm.failure import Cause, Failures, call_site
from collops.comm.mpi import ControlChannel
from collops.errors import InputError

__all__ = ["check_level"]

LEVELS = ("off", "calls", "sites")
"""What may be checked: nothing, calls, or also whether they come from one line."""

ALL, SEND, RECEIVE = "all", "send", "receive"
_COUNTERPART = {ALL: ALL, SEND: RECEIVE, RECEIVE: SEND}

Facts: TypeAlias = dict[str, Any]
"""What must be equal on both sides, as JSON has it."""


class Expectation(NamedTuple):
    """What a call expects of one other rank: the same collective call, or the other end of a message.

    Attributes
    ----------
    kind : str
        ``"all"``, ``"send"`` or ``"receive"``, as this rank's part.
    facts : dict
        What must be equal on both ranks.
    pieces : tuple, optional
        In a collective call: what goes to each rank and what comes from it, where every pair must have the same.
    then : callable, optional
        Called when the rank has agreed, though others may still be missing.
    """

    kind: str
    facts: Facts
    pieces: tuple[Any, Any] | None = None
    then: Callable[[], None] | None = None


def check_level() -> str:
    """Return what the environment's ``COLLOPS_CHECK`` asks for: ``off``, ``calls`` or ``sites``.

    Raises
    ------
    InputError
        If it asks for something else.
    """
    text = os.environ.get("COLLOPS_CHECK", "").strip().lower()
    known = {"": "off", "0": "off", "off": "off", "1": "sites", "on": "sites", "calls": "calls"}
    if text not in known:
        raise InputError(f"COLLOPS_CHECK={text!r}: choose 1, calls (call sites may differ) or 0")
    return known[text]


class CallAgreement:
    """Agrees on the calls of one communicator's ranks.

    Parameters
    ----------
    channel : ControlChannel
        Carries the expectations and nothing else.
    failures : Failures
        Of the communicator.
    sites : bool
        Whether collective calls must come from the same line of the program.
    """

    def __init__(self, channel: ControlChannel, failures: Failures, sites: bool) -> None:
        failures.checked = True
        self._channel = channel
        self._failures = failures
        self._sites = sites
        self.size = channel.size
        self._received: dict[int, deque[list[Any]]] = {}  # expectations of other ranks that are not met yet
        self._incident = failures.incident

    def collective(self, call: str, facts: Facts, sends: Any = None, receives: Any = None) -> None:
        """Return when every rank is about to make this call. Collective.

        Parameters
        ----------
        call : str
            How errors show it.
        facts : dict
            What must be the same on all ranks.
        sends, receives : sequence, optional
            By rank: what goes there and comes from there, where the two ranks must have the same.

        Raises
        ------
        CallMismatch
            On every rank, if some rank is about to do something else.
        CommunicationTimeout
            If a rank makes no call at all.
        """
        if self._sites:
            facts = {**facts, "at": call_site(with_function=False)}
        # Every rank receives all pieces: one that did not see a difference between two others would go on alone.
        pieces = None if sends is None or receives is None else (sends, receives)
        rank = self._channel.rank
        others = [other for other in range(self.size) if other != rank]
        found = self.agree(call, {other: [Expectation(ALL, facts, pieces)] for other in others})
        if pieces is not None:
            table = {other: each for other, (each,) in found.items()} | {rank: pieces}
            if any(table[a][0][b] != table[b][1][a] for a in table for b in table):
                self._failures.give_up(Cause.MISMATCH, call, "")

    def agree(self, call: str, expectations: Mapping[int, Iterable[Expectation]]) -> dict[int, list[Any]]:
        """Return the pieces of every rank in `expectations` once it is about to do its part.

        Raises as :meth:`collective` does.
        """
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
            if facts != json.loads(json.dumps(expectation.facts)):
                return False
            pieces.append(theirs)
            if expectation.then is not None:
                expectation.then()
        # Both wait, each for what the other does not do.
        return not (wanted and received)
