"""The agreement of ranks on the call that they are about to make, which ``COLLOPS_CHECK`` turns on to find mistakes.

Before anything moves, a rank tells every rank that its call needs what it is about to do, and waits to hear the same
from each of them. Two ranks disagree if what they tell differs, or if each waits for something that the other, which
waits as well, has not told. Then all ranks give up together (:mod:`collops.comm.notes`). No data has moved by then, so
that the communicator can go on to be used.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from collops.comm.deadline import MISMATCH, Watch
from collops.comm.sites import call_site
from collops.errors import InputError

__all__ = ["LEVELS", "Calls", "Need", "check_level"]

LEVELS = ("off", "calls", "sites")
"""What may be checked: nothing, calls, or also whether they come from one line."""

ALL, SEND, RECEIVE = "all", "send", "receive"
_COUNTERPART = {ALL: ALL, SEND: RECEIVE, RECEIVE: SEND}
_TAGS = 1 << 15

Facts: TypeAlias = dict[str, Any]
"""What must be equal on both sides, as JSON has it."""


class Need(NamedTuple):
    """What a call needs from one other rank: that this makes the same collective call, sends, or receives."""

    kind: str
    facts: Facts
    pieces: tuple[Any, Any] | None = None
    """In a collective call, what goes to each rank and what comes from it, where every pair must say the same."""
    then: Callable[[], None] | None = None
    """Called when the rank has agreed, though others may still be missing."""


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


class Calls:
    """Agrees on the calls of one communicator's ranks.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    control : mpi4py.MPI.Comm
        Whose ranks; a private duplicate of it is made.
    watch : Watch
        Of the communicator.
    sites : bool
        Whether collective calls must come from the same line of the program.
    """

    def __init__(self, mpi: Any, control: Any, watch: Watch, sites: bool) -> None:
        self._mpi = mpi
        self._comm = control.Dup()
        self._watch = watch
        self._sites = sites
        self.size: int = control.size
        self._told: dict[int, deque[list[Any]]] = {}
        self._incident = watch.notes.incident

    def collective(self, call: str, facts: Facts, gives: Any = None, takes: Any = None) -> None:
        """Return when every rank is about to make this call. Collective.

        Parameters
        ----------
        call : str
            How errors show it.
        facts : dict
            What must be the same on all ranks.
        gives, takes : sequence, optional
            By rank: what goes there and comes from there, where the two ranks must say the same.

        Raises
        ------
        CallMismatch
            On every rank, if some rank is about to do something else.
        CommunicationTimeout
            If a rank makes no call at all.
        """
        site = call_site()
        if self._sites:
            facts = {**facts, "at": site.place}
        # Everybody hears of all pieces: a rank that did not know of two others' quarrel would go on alone.
        pieces = None if gives is None or takes is None else (gives, takes)
        others = [rank for rank in range(self.size) if rank != self._comm.rank]
        heard = self.agree(call, {rank: [Need(ALL, facts, pieces)] for rank in others})
        if pieces is not None:
            given = {**{rank: each[0] for rank, (each,) in heard.items()}, self._comm.rank: pieces[0]}
            taken = {**{rank: each[1] for rank, (each,) in heard.items()}, self._comm.rank: pieces[1]}
            if any(given[a][b] != taken[b][a] for a in given for b in taken):
                self._watch.give_up(MISMATCH, call, "")

    def agree(self, call: str, needs: Mapping[int, Iterable[Need]]) -> dict[int, list[Any]]:
        """Return when every rank in `needs` is about to do its part, with their pieces; raise as :meth:`collective`."""
        watch = self._watch
        watch.look(call)
        if watch.notes.incident != self._incident:  # what was told before belongs to calls that were given up
            self._incident = watch.notes.incident
            self._told.clear()
        tag = self._incident % _TAGS
        missing = {rank: deque(wanted) for rank, wanted in needs.items() if wanted}
        heard: dict[int, list[Any]] = {rank: [] for rank in missing}
        leaving = []
        for rank, wanted in missing.items():
            text = np.frombuffer(json.dumps([need[:3] for need in wanted]).encode(), np.uint8)
            leaving.append(self._comm.Isend(text, dest=rank, tag=tag))
        status = self._mpi.Status()

        def met() -> bool:
            while self._comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=tag, status=status):
                inbox = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
                self._comm.Recv(inbox, source=status.Get_source(), tag=tag)
                self._told.setdefault(status.Get_source(), deque()).extend(json.loads(inbox.tobytes()))
            for rank in list(missing):
                if not self._matched(missing[rank], self._told.get(rank), heard[rank]):
                    watch.give_up(MISMATCH, call, "")
                if not missing[rank]:
                    del missing[rank]
            return not missing

        watch.until(met, call)
        for request in leaving:
            watch.wait(request, call)
        return heard

    def _matched(self, wanted: deque[Need], told: deque[list[Any]] | None, heard: list[Any]) -> bool:
        """Take from both what belongs together; return whether the rest can still be met."""
        for need in list(wanted):
            found = next((each for each in told or () if each[0] == _COUNTERPART[need.kind]), None)
            if told is None or found is None:
                continue
            told.remove(found)
            wanted.remove(need)
            _, facts, pieces = found
            if facts != json.loads(json.dumps(need.facts)):
                return False
            heard.append(pieces)
            if need.then is not None:
                need.then()
        # Both wait, each for what the other has not told.
        return not (wanted and told)
