"""What functions of a problem keep between two iterations outside the state, such as where a search begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Memory", "memories_of"]


@dataclass(frozen=True)
class Memory:
    """One thing that is kept.

    Attributes
    ----------
    key : str
        Its name in a checkpoint.
    owner : object
        The function.
    name : str
        Which attribute of it.
    layout : Layout, StackedLayout or None
        Of an array, which may still be missing; ``None`` for a number.
    """

    key: str
    owner: Any
    name: str
    layout: Any

    @property
    def value(self) -> Any:
        """What is kept now."""
        return getattr(self.owner, self.name)

    def put(self, value: Any) -> None:
        """Keep something else."""
        setattr(self.owner, self.name, value)


def memories_of(parts: Sequence[Any]) -> Iterator[Memory]:
    """Yield what the parts of a problem keep, and the functions that they are made of, in an order that is always one.

    Parameters
    ----------
    parts : sequence of object
        Those with a method ``_remembered`` say by it which of their attributes these are, with their layouts.
    """
    for number, part in enumerate(parts):
        if hasattr(part, "_remembered"):
            yield from _within(str(number), part)


def _within(key: str, part: Any) -> Iterator[Memory]:
    remembered: Mapping[str, Any] = part._remembered()
    for name, layout in remembered.items():
        yield Memory(f"{key}-{name.strip('_')}", part, name, layout)
    for name, value in vars(part).items():
        if hasattr(value, "_remembered"):
            yield from _within(f"{key}-{name.strip('_')}", value)
