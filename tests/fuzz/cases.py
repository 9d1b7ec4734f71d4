"""Cases: calls written as text with slots, which a seed fills with values that may be wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.fuzz.values import KINDS

__all__ = ["Call", "Case", "cases", "parsed", "simpler"]

_SLOT = re.compile(r"<(\w+)(!?): (.*?)>")


@dataclass(frozen=True)
class Slot:
    """One argument of a call: its kind, whether ranks that disagree about it all get an error, its right value."""

    kind: str
    checked: bool
    right: str


@dataclass(frozen=True)
class Call:
    """A call with slots; ``<kind: value>`` in its text, with ``!`` behind the kind where ranks are compared.

    Attributes
    ----------
    pieces : tuple of str
        The text between the slots.
    slots : tuple of Slot
    also : tuple of type
        Exceptions that it documents besides those of collops, TypeError, ValueError and OSError.
    """

    pieces: tuple[str, ...]
    slots: tuple[Slot, ...]
    also: tuple[type[Exception], ...] = ()

    def text(self, values: Sequence[str]) -> str:
        """Return the call with these values in its slots."""
        return "".join(piece + value for piece, value in zip(self.pieces, (*values, ""), strict=True))


@dataclass(frozen=True)
class Case:
    """A call with its slots filled.

    Attributes
    ----------
    call : Call
    values : tuple of str
        Of every slot.
    wrong : frozenset of int
        Slots that hold what no call may accept.
    only : int or None
        The one rank that has these values, the others having the right ones; ``None`` for all ranks.
    """

    call: Call
    values: tuple[str, ...]
    wrong: frozenset[int] = frozenset()
    only: int | None = None

    def text(self, rank: int) -> str:
        """Return the expression that a rank evaluates."""
        if self.only is not None and rank != self.only:
            return self.call.text([slot.right for slot in self.call.slots])
        return self.call.text(self.values)

    @property
    def is_right(self) -> bool:
        """Whether every slot has its right value."""
        return all(value == slot.right for value, slot in zip(self.values, self.call.slots, strict=True))

    def __str__(self) -> str:
        where = "" if self.only is None else f"   # on rank {self.only} alone; others: {self.text(-1)}"
        return self.call.text(self.values) + where


def parsed(text: str, also: tuple[type[Exception], ...] = ()) -> Call:
    """Return the call that a text describes."""
    found = list(_SLOT.finditer(text))
    ends = [0, *(match.end() for match in found)]
    starts = [*(match.start() for match in found), len(text)]
    pieces = tuple(text[end:start] for end, start in zip(ends, starts, strict=True))
    return Call(pieces, tuple(Slot(m[1], bool(m[2]), m[3]) for m in found), also)


def cases(calls: Sequence[Call], count: int, seed: int, ranks: int) -> Iterator[Case]:
    """Yield `count` cases, the same on every rank: each call as it should be first, then with values of a seed."""
    for number in range(count):
        call = calls[number % len(calls)]
        if number < len(calls):
            yield Case(call, tuple(slot.right for slot in call.slots))
        else:
            yield _drawn(call, random.Random(f"{seed}/{number}"), ranks)


def _drawn(call: Call, draw: random.Random, ranks: int) -> Case:
    values = [slot.right for slot in call.slots]
    wrong: set[int] = set()
    if not values:
        return Case(call, ())
    checked = [place for place, slot in enumerate(call.slots) if slot.checked]
    if checked and ranks > 1 and draw.random() < 0.3:
        place = draw.choice(checked)
        values[place] = draw.choice(KINDS[call.slots[place].kind].wrong)
        return Case(call, tuple(values), frozenset({place}), draw.randrange(ranks))
    for place in draw.sample(range(len(values)), min(len(values), draw.choice((1, 1, 1, 2, 3)))):
        kind = KINDS[call.slots[place].kind]
        if kind.wrong and (not kind.odd or draw.random() < 0.6):
            values[place] = draw.choice([value for value in kind.wrong if value != call.slots[place].right])
            wrong.add(place)
        else:
            values[place] = draw.choice(kind.odd)
    return Case(call, tuple(values), frozenset(wrong))


def simpler(case: Case) -> Iterator[Case]:
    """Yield the cases with one more slot set right."""
    for place, slot in enumerate(case.call.slots):
        if case.values[place] != slot.right:
            values = (*case.values[:place], slot.right, *case.values[place + 1 :])
            yield Case(case.call, values, case.wrong - {place}, case.only)
