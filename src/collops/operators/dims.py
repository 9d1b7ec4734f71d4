"""The argument ``dims`` of operators: a layout, or a shape that is split along its first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

import numpy as np

from collops.array import DistributedArray, Layout
from collops.array.plans import as_layout
from collops.comm.arguments import communicator_or_world
from collops.errors import InputError, LayoutError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Dims", "check_count", "communicator_of", "placed"]

Dims: TypeAlias = Layout | Sequence[SupportsIndex] | SupportsIndex


def communicator_of(made_of: object, comm: Communicator | None) -> Communicator:
    """Return the communicator of an operator: from its distributed array if any, else `comm` or the world."""
    if not isinstance(made_of, DistributedArray):
        return communicator_or_world(comm)
    if comm is not None and comm is not made_of.comm:
        raise LayoutError("comm must be the communicator of the operator's array; omit it")
    return made_of.comm


def placed(dims: Dims, comm: Communicator | None) -> tuple[Layout, Communicator]:
    """Return the layout specified by `dims`, and the communicator: `comm`, or the world."""
    comm = communicator_or_world(comm)
    return as_layout(dims, comm), comm


def check_count(name: str, value: object, *, smallest: int = 0) -> int:
    """Return an option as an integer; raise InputError unless it is an integer of at least `smallest`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < smallest:
        raise InputError(f"{name} must be an integer of at least {smallest}, not {value!r}")
    return int(value)
