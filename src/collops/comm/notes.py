"""Notes from ranks that give up: each tells the others what it was doing, and learns what they were doing.

A note goes to every other rank on the control communicator, which carries nothing else. Whoever finds one gives up too
and answers with its own, so that all of them raise one error, whose table has a line for each rank. In steady state no
note is sent. A rank whose program has ended before the others' says so as well, and so does one that refuses its part
in a call (:mod:`collops.comm.turns`). Once all ranks have answered they can go on: notes are numbered, and late ones of
an earlier incident are not taken for new ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Note", "Notes", "ranks_text", "table"]

Note: TypeAlias = dict[str, str]
"""``kind`` of the incident, ``call`` that the rank was in, ``place`` in the user's program, and ``why`` it gave up,
where that is the same for all ranks."""

_FIRST_TAG = 32000  # every MPI has tags up to 32767; nobody else on a communicator that users have, too, is likely here
_TAGS = 700
_END_TAG = _FIRST_TAG + _TAGS
_WORD_TAG = _END_TAG + 1
_GRACE_SECONDS = 10.0  # for ranks that compute, or that a busy machine holds back


class Notes:
    """The notes of one communicator.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    control : mpi4py.MPI.Comm
        Carries them.
    """

    def __init__(self, mpi: Any, control: Any) -> None:
        self._mpi = mpi
        self._control = control
        self.incident = 0
        """How many incidents there were."""
        self._leaving: list[Any] = []  # what has not been taken yet; MPI reads its memory
        self._early: list[tuple[int, int, int, Sequence[Any]]] = []
        self.ended: dict[int, tuple[int, int]] = {}
        """Ranks that have said that their program has ended, as far as they were heard, and what they had come to: how
        many incidents there had been, and how many collective calls since."""

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._control.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._control.size

    def waiting(self) -> bool:
        """Return whether another rank has given up."""
        return self._control.Iprobe(source=self._mpi.ANY_SOURCE, tag=self._tag)

    def swap(self, mine: Note) -> dict[int, Note]:
        """Tell the others, and return the notes of all who answer within seconds, this rank's among them."""
        control, tag = self._control, self._tag
        known = {control.rank: mine}
        self._send(mine, tag)
        status = self._mpi.Status()
        until = time.monotonic() + _GRACE_SECONDS
        while len(known) < control.size and time.monotonic() < until:
            if control.Iprobe(source=self._mpi.ANY_SOURCE, tag=tag, status=status):
                known[status.Get_source()] = self._receive(status, tag)
            else:
                time.sleep(1e-3)
        self.incident += 1
        return dict(sorted(known.items()))

    def say_end(self, turn: int) -> None:
        """Tell the others that this rank's program has ended, after so many collective calls."""
        self._send([self.incident, turn], _END_TAG)

    def hear_ends(self) -> Mapping[int, tuple[int, int]]:
        """Return :attr:`ended` as it is now."""
        status = self._mpi.Status()
        while self._control.Iprobe(source=self._mpi.ANY_SOURCE, tag=_END_TAG, status=status):
            incident, turn = self._receive(status, _END_TAG)
            self.ended[status.Get_source()] = (incident, turn)
        return self.ended

    def say_word(self, turn: int, word: Sequence[Any]) -> None:
        """Tell the others what this rank does at its turn."""
        self._send([self.incident, turn, word], _WORD_TAG)

    def hear_words(self) -> Iterator[tuple[int, int, Sequence[Any]]]:
        """Give ranks, turns and words that have come, without those that an incident has overtaken."""
        status = self._mpi.Status()
        while self._control.Iprobe(source=self._mpi.ANY_SOURCE, tag=_WORD_TAG, status=status):
            self._early.append((status.Get_source(), *self._receive(status, _WORD_TAG)))
        early, self._early = self._early, []
        for rank, incident, turn, word in early:
            if incident == self.incident:
                yield rank, turn, word
            elif incident > self.incident:
                self._early.append((rank, incident, turn, word))

    @property
    def _tag(self) -> int:
        return _FIRST_TAG + self.incident % _TAGS

    def _send(self, value: Any, tag: int) -> None:
        # Nobody waits for these: what a dead rank never takes stays with MPI.
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        self._leaving = [request for request in self._leaving if not request.Test()]
        others = (rank for rank in range(self.size) if rank != self.rank)
        self._leaving += [self._control.Isend(text, dest=rank, tag=tag) for rank in others]

    def _receive(self, status: Any, tag: int) -> Any:
        inbox = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        self._control.Recv(inbox, source=status.Get_source(), tag=tag)
        return json.loads(inbox.tobytes())


def table(lines: Mapping[int, str], size: int, otherwise: str) -> str:
    """Return a line for each rank, ranks with equal ones together; `otherwise` for those that have none."""
    ranks: dict[str, list[int]] = {}
    for rank in range(size):
        ranks.setdefault(lines.get(rank, otherwise), []).append(rank)
    return "\n".join(f"  rank{'s' if len(same) > 1 else ''} {ranks_text(same)}: {line}" for line, same in ranks.items())


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks in ascending order as ``0, 2-5``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
