"""Solver states: dataclasses whose fields that hold arrays the driver can find, compare and copy.

A field made by :func:`transient` holds what every step makes anew before it is used, so that nothing of it is
carried from one step to the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from collops.array import DistributedArray, StackedArray

__all__ = ["array_fields", "local_arrays", "other_fields", "transient"]


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
