"""Solver states: dataclasses whose fields declare their role, and the walk over the values carried between iterations.

A field has one of four roles, specified in its declaration:

- without metadata, it is carried from one iteration to the next: an array, an integer, a floating-point number, or a
  part of the state that is a dataclass of such fields. ``None``, Booleans and other objects are constants.
- ``field(metadata=SCRATCH)``: memory that every step fills before it reads it.
- ``field(metadata=CONSTANT)``: not changed by any step, such as the operator and the data.
- ``field(init=False)``: computed from the other fields by ``__post_init__``.

CUDA graphs, compiled loops and checkpoints read this declaration through :func:`carried` and :func:`with_carried`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from numpy.typing import DTypeLike

from collops.array import Array, DistributedArray, StackedArray
from collops.array.coefficients import Scalar
from collops.backend import LocalArray
from collops.operators.base import AnyLayout
from collops.operators.memory import new_array

__all__ = ["CONSTANT", "SCRATCH", "Numbers", "Scalar", "State", "extended", "scratch_array"]

_Made = TypeVar("_Made")

State: TypeAlias = Any
"""The state of a method: a dataclass of the method's own class, with the solution as its field or property ``x``."""

Truth: TypeAlias = Any
"""A truth value of Python or NumPy, or a 0-d array of an engine, which may be a tracer of JAX."""

Numbers: TypeAlias = Any
"""The numbers of an iteration as the method's own named tuple, ``Method.numbers``.

Each is a :data:`Scalar`, or an array with one element for each iteration."""

CONSTANT: Mapping[str, str] = {"role": "constant"}
SCRATCH: Mapping[str, str] = {"role": "scratch"}


def carried(state: State) -> dict[str, Any]:
    """Return the arrays and numbers that pass from one iteration to the next, by name, always in the same order.

    The value of a part has the name of the field that holds it; if there are several, each is ``field.name``.
    """
    return {name: value for field in _fields(state) for name, value in _values(state, field).items()}


def with_carried(state: State, values: Mapping[str, Any]) -> State:
    """Return a state with other arrays and numbers, by the names that :func:`carried` gives them.

    It shares everything else with `state`, which is not changed.
    """
    changes: dict[str, Any] = {}
    for field in _fields(state):
        names = _values(state, field)
        if not names:
            continue
        part = getattr(state, field.name)
        if _is_part(part):
            inner = zip(carried(part), names, strict=True)
            changes[field.name] = with_carried(part, {key: values[name] for key, name in inner})
        else:
            changes[field.name] = values[field.name]
    return dataclasses.replace(state, **changes)


def fixed(state: State) -> dict[str, Any]:
    """Return the constants of a state by name, also those in unmarked fields, and of its parts."""
    constants: dict[str, Any] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        role = field.metadata.get("role", None if field.init else "rebuilt")
        if role is None and _is_part(value):
            constants |= {f"{field.name}.{name}": part for name, part in fixed(value).items()}
        elif role == "constant" or (role is None and not _is_carried(value)):
            constants[field.name] = value
    return constants


def is_array(value: Any) -> bool:
    """Return whether `value` is an array: of this package, or of an engine (NumPy's scalars included)."""
    return isinstance(value, DistributedArray | StackedArray) or (
        hasattr(value, "dtype") and hasattr(value, "ndim") and hasattr(value, "shape")
    )


def local_arrays(value: Array | LocalArray) -> list[LocalArray]:
    """Return the memory of an array: this rank's parts, or the array itself."""
    return [leaf.local_array for leaf in value.leaves] if hasattr(value, "leaves") else [value]


def scratch_array(layout: AnyLayout, like: Array, dtype: DTypeLike) -> Array | None:
    """Return memory of a layout for every step; ``None`` on an engine of immutable arrays."""
    return new_array(layout, like, dtype) if like.engine.mutable else None


def copied(layout: AnyLayout, data: Array, dtype: DTypeLike) -> Array:
    """Return a copy of `data`; a stack is copied to one block of memory, as by :func:`collops.array.empty`."""
    if hasattr(data, "local_array") or not data.engine.mutable:
        return data.astype(dtype)
    copy = new_array(layout, data, dtype)
    for part, source in zip(copy.leaves, data.leaves, strict=True):
        part._hold(source.local_array)
    return copy


def extended(kind: Callable[..., _Made], state: Any, **others: Any) -> _Made:
    """Return a state, or a method, of another class with the fields of `base` and the `others`."""
    return kind(**{field.name: getattr(state, field.name) for field in dataclasses.fields(state)}, **others)


def _fields(state: State) -> Iterator[dataclasses.Field[Any]]:
    return (field for field in dataclasses.fields(state) if field.init and "role" not in field.metadata)


def _values(state: State, field: dataclasses.Field[Any]) -> dict[str, Any]:
    value = getattr(state, field.name)
    if _is_carried(value):
        return {field.name: value}
    values = carried(value) if _is_part(value) else {}
    return {field.name if len(values) == 1 else f"{field.name}.{name}": part for name, part in values.items()}


def _is_carried(value: Any) -> bool:
    return is_array(value) or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_part(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
