"""What callers pass, made into what primitives take: arrays, the names of reductions, ranks and counts, checked."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from collops.comm import Communicator
from collops.comm.mpi import name_of_operation
from collops.comm.reductions import LOGICAL, check_reduction, nccl_reduction, widened
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.jax.native import TYPES
from collops.jax.wires import Wire

__all__ = [
    "COTANGENTS",
    "array",
    "checked_convention",
    "checked_counts",
    "checked_rank",
    "checked_tag",
    "operation",
    "reducible",
]

COTANGENTS = ("ranks", "replicated")
_TAGS = 1 << 20


def array(x: Any) -> Any:
    """Return `x` as a JAX array of a dtype that can be sent."""
    x = jnp.asarray(x)
    if x.dtype.name not in TYPES:
        raise UnsupportedTypeError(f"arrays of dtype {x.dtype} cannot be sent")
    return x


def operation(op: Any, dtype: Any) -> str:
    """Return the name of a reduction, given by name or as one of mpi4py's operations, where `dtype` has it.

    Raises
    ------
    UnsupportedTypeError
        If there is no such reduction, or it has no meaning for `dtype`.
    """
    name = op if isinstance(op, str) else name_of_operation(op)
    if name is None:
        raise UnsupportedTypeError(f"{op!r} is no reduction of collops.jax; choose one by name, such as 'sum'")
    check_reduction(name, dtype)
    return LOGICAL.get(name, name) if dtype.kind == "b" else name


def reducible(x: Any, op: str, wire: Wire) -> tuple[Any, str, Callable[[Any], Any]]:
    """Return what the wire can reduce in the place of `x`, how, and what makes the result of it.

    NCCL has no 16-bit integers, booleans and logical operations: they are reduced in 32-bit integers.
    """
    if not wire.on_devices or nccl_reduction(op, x.dtype) is not None:
        return x, op, lambda y: y
    dtype = x.dtype
    wide, plain = widened(x, op, jnp.int32)
    return wide, plain, lambda y: (y & 1 if op == "lxor" else y).astype(dtype)


def checked_rank(rank: int, wire: Wire | Communicator, name: str) -> int:
    """Return `rank`, which has to be one."""
    number = _integer(rank, name)
    if not 0 <= number < wire.size:
        raise InputError(f"{name}={number} is no rank of a communicator of {wire.size}")
    return number


def checked_tag(tag: int) -> int:
    """Return `tag`, which has to be one."""
    number = _integer(tag, "tag")
    if not 0 <= number < _TAGS:
        raise InputError(f"a tag must be between 0 and {_TAGS - 1}, not {number}")
    return number


def checked_counts(counts: Sequence[int], wire: Wire, name: str) -> tuple[int, ...]:
    """Return the numbers of rows of all ranks."""
    rows = tuple(_integer(count, name) for count in counts)
    if len(rows) != wire.size or min(rows) < 0:
        raise LayoutError(f"{name} needs one non-negative number for each of {wire.size} ranks, not {list(rows)}")
    return rows


def _integer(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:  # also of a value that JAX is tracing: messages are laid out when a program is compiled
        raise InputError(f"{name} must be an integer that is known when tracing, not {value!r}") from None


def checked_convention(cotangents: str) -> bool:
    """Return whether cotangents are of replicated values."""
    if cotangents not in COTANGENTS:
        raise InputError(f"there is no convention for cotangents {cotangents!r}; choose {' or '.join(COTANGENTS)}")
    return cotangents == "replicated"
