"""What a solver's state carries from one iteration to the next, as the flat list that a loop of JAX needs.

Programs in place change variables; programs that return something new set fields. Both are found by walking through the
state, always in the same order, every variable once however many arrays share it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from collops.array import DistributedArray, Scalars, StackedArray
from collops.errors import CollopsError
from collops.jax_engine import Variable

__all__ = ["carried", "put_back"]

_Setter = Callable[[Any], None]


def carried(state: Any) -> list[Any]:
    """Return the arrays of JAX that a state holds now."""
    return [value for value, _ in _places(state)]


def put_back(state: Any, values: Any) -> None:
    """Let a state hold these arrays.

    Raises
    ------
    CollopsError
        If it has another number of places, because a step has changed what the state is made of.
    """
    places = list(_places(state))
    values = list(values)
    if len(places) != len(values):
        raise CollopsError(f"a step makes {len(places)} arrays of {len(values)}, so that it cannot be compiled")
    for (_, put), value in zip(places, values, strict=True):
        put(value)


def _places(state: Any) -> Iterator[tuple[Any, _Setter]]:
    seen: set[int] = set()
    for name in _names(state):
        yield from _walk(getattr(state, name, None), lambda value, name=name: setattr(state, name, value), seen)


def _walk(value: Any, put: _Setter, seen: set[int]) -> Iterator[tuple[Any, _Setter]]:
    if isinstance(value, Variable):
        root = value.root
        if id(root) not in seen:
            seen.add(id(root))
            yield root.value, lambda new: setattr(root, "value", new)
    elif isinstance(value, jax.Array):
        yield value, put
    elif isinstance(value, DistributedArray | StackedArray):
        for leaf in value.leaves:
            yield from _walk(leaf.local_array, _refused, seen)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _walk(part, lambda new, key=key: value.__setitem__(key, new), seen)
    elif isinstance(value, list | tuple):
        parts = list(value)

        def replace(number: int, new: Any) -> None:
            parts[number] = new
            put(type(value)(parts))

        for number, part in enumerate(value):
            yield from _walk(part, lambda new, number=number: replace(number, new), seen)
    elif id(value) not in seen and _is_ours(value):
        seen.add(id(value))
        for name in _names(value):
            yield from _walk(getattr(value, name, None), lambda new, name=name: setattr(value, name, new), seen)


def _is_ours(value: Any) -> bool:
    """Return whether an object is a part of a state that arrays may be in."""
    return isinstance(value, Scalars) or (
        type(value).__module__.startswith("collops.solvers.") and not isinstance(value, type) and not callable(value)
    )


def _names(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", ())]


def _refused(_: Any) -> None:
    raise CollopsError("an array of the engine jax is held by a variable")
