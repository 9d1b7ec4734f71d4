"""What ranks tell each other apart from arrays, by the methods of a communicator."""

from __future__ import annotations

import json
from typing import Any

from collops.comm.agreement import agree, any_failed, described, gather_texts, raise_together
from collops.comm.entry import collective
from collops.comm.ranks import Ranks
from collops.profile import messages

__all__ = ["Control"]


class Control(Ranks):
    """Small values, errors that all ranks raise, and what all must have in common."""

    @collective
    def allgather_metadata(self, value: Any) -> list[Any]:
        """Return every rank's `value`, anything that JSON can carry (tuples come back as lists).

        For set-up only: shapes, checks, names. Counted as ``metadata``.
        """
        text = json.dumps(value)
        if self.size == 1:
            return [json.loads(text)]
        return [json.loads(each) for each in gather_texts(text, self._begin(), self.size)]

    @collective
    def check(self, error: Exception | None) -> None:
        """Raise on every rank if any rank passes an error; return if all pass ``None``.

        The class is kept where it is one of :mod:`collops.errors` or among those that wrong arguments cause in Python
        (``TypeError``, ``ValueError``, ``IndexError``, ``OSError``, ``MemoryError`` and the like), and is
        ``CollopsError`` otherwise; the message names the ranks unless all failed. One metadata message when all is
        well.
        """
        if any_failed(error, self._begin(), self.size):
            raise_together(error, self.allgather_metadata(described(error)))

    @collective
    def agree(self, what: str, value: Any) -> None:
        """Raise on every rank unless all ranks pass the same value. One small message, counted as ``agreement``.

        For what ranks must have in common and nothing else would find out, such as the number of iterations.

        Parameters
        ----------
        what : str
            The name of the value, for the error.
        value : object
            Anything that JSON can carry; what it cannot is taken by its text.

        Raises
        ------
        InputError
            If the values differ; it shows those of all ranks.
        """
        if self.size > 1:
            agree(what, json.dumps(value, sort_keys=True, default=str), self._begin(), self.size)

    @collective
    def announce(self, call: str, **facts: Any) -> None:
        """Agree on a call that no message of this communicator makes, where ``COLLOPS_CHECK`` is on; else do nothing.

        Collective. For the rooms above, whose wires are their own.

        Parameters
        ----------
        call : str
            Its name.
        **facts
            What must be the same on all ranks, anything that JSON can carry.

        Raises
        ------
        CallMismatch
            On every rank, if some rank is about to do something else.
        """
        if self.calls is not None:
            text = ", ".join(f"{name} {value}" for name, value in facts.items())
            self.calls.collective(f"{call} ({text})" if text else call, {"call": call, **facts})

    @collective
    def barrier(self) -> None:
        """Return when every rank has called it."""
        if messages.active:
            messages.record("barrier", 0, 0)
        self._begin().barrier()
