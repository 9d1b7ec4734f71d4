"""The turns of ranks: a collective call that some of them refuse is an error on all, and can spoil no later call.

Collective calls pair up by their order alone. Were one rank to refuse its arguments and go on, its next call would meet
the one that the others have begun. So each rank counts its calls, and one that refuses tells the others which, and why.
Those that wait in that call hear of it and raise the same error. Before its next call a rank waits until all have said
whether they refused that turn, too, or had begun it; where some had, what they left behind is no longer listened to.
As long as no rank refuses anything, all this is one addition a call, and no message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from collops.comm.agreement import shared_error
from collops.comm.notes import Notes, ranks_text
from collops.comm.sites import call_site
from collops.errors import CommunicationError, TransportError

if TYPE_CHECKING:
    from collops.comm.deadline import Watch

__all__ = ["REFUSED", "Turns", "Word"]

REFUSED = "refused"
"""The kind of note that a rank leaves which cannot join a refusal any more."""


class Word(NamedTuple):
    """What a rank says of a turn: that it had begun its call, or why it refused it."""

    begun: bool
    call: str = ""
    kind: str = ""
    text: str = ""

    def __str__(self) -> str:
        return "began what others refused" if self.begun else f"refused {self.call}: {self.kind}: {self.text}"


class Turns:
    """The turns of one communicator's ranks.

    Parameters
    ----------
    notes : Notes
        Carry the words.
    watch : Watch
        Waits for them.
    """

    def __init__(self, notes: Notes, watch: Watch) -> None:
        self._notes = notes
        self._watch = watch
        self._words: dict[int, dict[int, Word]] = {}
        self.number = 0
        """How many collective calls this rank has begun or refused since ranks last gave up together."""
        self._left = -1
        self.attention = False
        """Whether :meth:`attend` must be called before anything else is sent."""
        self.kind = REFUSED
        """Of the notes of ranks that give up because of a refusal."""
        self.renew: Callable[[], None] | None = None
        """Makes the wires of collective calls anew. Collective. ``None`` where that cannot be done."""

    def refuse(self, call: str, error: Exception) -> None:
        """Tell the others that this rank refuses the turn that it has come to."""
        wire_failed = isinstance(error, CommunicationError) and not isinstance(error, TransportError)
        if wire_failed or getattr(error, "on_all_ranks", False) or self._watch.failure:
            return
        self.number += 1
        place = str(call_site())
        self._say(self.number, Word(False, f"{call} at {place}", type(error).__name__, str(error)))

    def leave(self) -> None:
        """Note that this rank leaves the call that it has begun without having done its part."""
        self._left = self.number

    @property
    def done(self) -> int:
        """How many collective calls this rank has done its part in."""
        return self.number - (self._left == self.number)

    def look(self) -> None:
        """Raise if nothing can be sent any more."""
        if self._watch.failure:
            raise CommunicationError(f"this communicator cannot be used any more, since {self._watch.failure}")

    def attend(self) -> None:
        """Return when all ranks are known to have come to the same turn; raise if they have not."""
        self.look()
        rank, everyone = self._notes.rank, range(self._notes.size)
        for turn in sorted(turn for turn, words in self._words.items() if rank in words):
            words = self._words[turn]
            operation = f"the call after this rank {words[rank]}"
            self._watch.until(lambda words=words: self._complete(words), operation, everyone)
            if any(word.begun for word in words.values()):
                assert self.renew is not None
                self.renew()
            del self._words[turn]
        self.hear("a call", inside=False)
        following = self._words.get(self.number + 1)
        if following is not None and _refusals(following):
            self.number += 1
            self._join("this call", inside=True)
        self.attention = bool(self._words)

    def hear(self, operation: object, inside: bool) -> None:
        """Raise if another rank has refused a turn that this one has begun.

        Parameters
        ----------
        operation : object
            What this rank waits in.
        inside : bool
            Whether that is the collective call of this turn, so that all ranks can still raise its error.
        """
        if self._hear():
            self._join(operation, inside)

    def forget(self) -> None:
        """Begin to count anew, after ranks have given up together."""
        self._words.clear()
        self.number = 0
        self._left = -1
        self.attention = bool(self._watch.failure)

    def _say(self, turn: int, word: Word) -> None:
        self._words.setdefault(turn, {})[self._notes.rank] = word
        self.attention = True
        self._notes.say_word(turn, word)

    def _hear(self) -> bool:
        """Take the words that have come; return whether one refuses what this rank has begun."""
        for rank, turn, word in self._notes.hear_words():
            self._words.setdefault(turn, {})[rank] = Word(*word)
            self.attention = True
        return self._disputed() is not None

    def _disputed(self) -> int | None:
        rank = self._notes.rank
        begun = (turn for turn, words in self._words.items() if turn <= self.number and rank not in words)
        return min((turn for turn in begun if _refusals(self._words[turn])), default=None)

    def _complete(self, words: dict[int, Word]) -> bool:
        self.hear("the call after one that was refused", inside=False)
        return len(words) == self._notes.size

    def _join(self, operation: object, inside: bool) -> NoReturn:
        """Raise the error of the ranks that refuse: the same if this call is theirs, else that all must give up."""
        turn = self._disputed()
        assert turn is not None
        refusals = _refusals(self._words[turn])
        first = refusals[min(refusals)]
        who = f"rank {ranks_text(sorted(refusals))}"
        if not inside or turn != self.number or self.renew is None:
            told = {rank: f"after it {word}" for rank, word in refusals.items()}
            self._watch.give_up(self.kind, operation, f"cannot go on, since {who} {first}", told)
        self._say(turn, Word(True))
        raise shared_error(first.kind, f"{who}: {first.text}")


def _refusals(words: dict[int, Word]) -> dict[int, Word]:
    return {rank: word for rank, word in words.items() if not word.begun}
