"""Solver states: dataclasses whose fields that hold arrays the driver can find, compare, copy and keep.

A field made by :func:`transient` holds what every step makes anew before it is used, so that nothing of it is
carried from one step to the next. Those that a class attribute ``rebuilt`` names are scratch memory, or what ``init``
always makes the same: checkpoints leave them out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from collops.array import DistributedArray, StackedArray

__all__ = ["array_fields", "kept_fields", "local_arrays", "other_fields", "transient"]


def transient() -> Any:
    """Return a dataclass field that is not carried from one step to the next."""
    return dataclasses.field(metadata={"transient": True})


def array_fields(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every field that holds a distributed array, a stacked one, or an array of an engine."""
    for name, value in _carried(state):
        if is_array(value):
            yield name, value


def other_fields(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every field that holds something else, which no step may change."""
    for name, value in _carried(state):
        if not is_array(value):
            yield name, value


def kept_fields(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and value of every field that a checkpoint holds, each array once.

    These are arrays, integers and floating-point numbers, and objects whose attribute ``carried`` is an array.
    """
    seen: set[int] = set()
    for field in dataclasses.fields(state):
        if "transient" in field.metadata or field.name in getattr(state, "rebuilt", ()):
            continue
        value = getattr(state, field.name)
        value = getattr(value, "carried", value)
        if isinstance(value, DistributedArray | StackedArray):
            if id(value) in seen:
                continue
            seen.add(id(value))
        elif not is_array(value) and (isinstance(value, bool) or not isinstance(value, int | float)):
            continue
        yield field.name, value


def _carried(state: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(state):
        if "transient" not in field.metadata:
            yield field.name, getattr(state, field.name)


def is_array(value: Any) -> bool:
    """Return whether `value` is an array: of this package, or of an engine (NumPy's scalars included)."""
    return isinstance(value, DistributedArray | StackedArray) or (
        hasattr(value, "dtype") and hasattr(value, "ndim") and hasattr(value, "shape")
    )


def local_arrays(value: Any) -> list[Any]:
    """Return the memory behind an array: this rank's parts, or the array itself."""
    if isinstance(value, DistributedArray | StackedArray):
        return [leaf.local_array for leaf in value.leaves]
    return [value]
