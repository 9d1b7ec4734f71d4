"""Checks and conversions of arguments: arrays, reductions, ranks, tags and counts."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, SupportsIndex, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from collops.backend import LocalArray
from collops.comm import Communicator
from collops.comm.agreement import MpiHandle
from collops.comm.call import check_rank, check_tag, rows_of_ranks
from collops.comm.mpi import name_of_operation
from collops.comm.reductions import LOGICAL, as_integers, check_reduction, nccl_reduction
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.jax.communicators import NativeComm
from collops.jax.native import TYPES
from collops.jax.order import Jit

F = TypeVar("F", bound=Callable[..., Any])
_COTANGENTS = ("ranks", "replicated")


def array(x: LocalArray) -> LocalArray:
    """Return `x` as a JAX array, if its dtype can be sent."""
    if not isinstance(x, jax.Array):
        try:
            x = copied(np.asarray(x)) if _is_array(x) else jnp.asarray(x)
        except (TypeError, ValueError, OverflowError) as error:
            raise UnsupportedTypeError(f"expected an array of numbers, not {x!r:.60}: {error}") from error
    check_dtype(x.dtype)
    return x


def copied(x: np.ndarray, dtype: np.dtype | None = None) -> LocalArray:
    """Return a copy of a NumPy array as a JAX array.

    JAX shares the memory of aligned NumPy arrays on CPUs, and reads other large arrays after its call has returned,
    even with ``copy=True``; the caller may have changed them by then. This private copy avoids that.
    """
    return jnp.asarray(np.array(x), dtype)


def check_dtype(dtype: np.dtype) -> None:
    """Check that arrays of a dtype can be sent."""
    if dtype.name in TYPES:
        return
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise UnsupportedTypeError(
            "keys of random numbers cannot be sent: send jax.random.key_data(key), "
            "and convert the result to a key by jax.random.wrap_key_data"
        )
    wider = "float16" if jnp.issubdtype(dtype, jnp.floating) else "int8"
    raise UnsupportedTypeError(f"arrays of dtype {dtype} cannot be sent: convert them first, as by x.astype({wider!r})")


def leaf_by_leaf(function: F) -> F:
    """Decorate a collective function of one array to accept any pytree of arrays.

    The collectives of all leaves are one compiled program, so that nothing is sent if a leaf is invalid.
    """

    @functools.wraps(function)
    def of_leaves(x: LocalArray, *args: Any, **options: Any) -> Any:
        if jax.tree_util.all_leaves((x,), is_leaf=_is_array):
            return function(x, *args, **options)
        leaves, tree = jax.tree.flatten(x, is_leaf=_is_array)
        leaves = [array(leaf) for leaf in leaves]
        # Operations of mpi4py are not hashable.
        values = (x if isinstance(x, Hashable) else name_of_operation(x) for x in (*args, *options.values()))
        return tree.unflatten(_together(function, len(args), tuple(options), *values)(leaves))

    # Errors between ranks show the function called by the user.
    known: Any = of_leaves
    known.__code__ = known.__code__.replace(co_name=function.__name__, co_qualname=function.__qualname__)
    return known


def _is_array(x: object) -> bool:
    return hasattr(x, "__array__")  # also of a distributed array, whose parts must not be taken for messages


@functools.lru_cache(maxsize=256)
def _together(function: Callable[..., LocalArray], positional: int, names: tuple[str, ...], *values: Hashable) -> Jit:
    args, options = values[:positional], dict(zip(names, values[positional:], strict=True))

    def on_leaves(leaves: list[LocalArray]) -> list[LocalArray]:
        return [function(leaf, *args, **options) for leaf in leaves]

    return Jit(on_leaves, {})


def blocks(x: LocalArray, comm: NativeComm, name: str) -> LocalArray:
    """Return `x` as a JAX array of one block for each rank."""
    x = array(x)
    if x.ndim == 0 or x.shape[0] != comm.size:
        raise LayoutError(f"{name} needs a first axis of {comm.size} blocks, one for each rank, not shape {x.shape}")
    return x


def operation(op: str | MpiHandle, dtype: np.dtype) -> str:
    """Return the name of a reduction of `dtype`, specified by name or as an operation of mpi4py."""
    name = op if isinstance(op, str) else name_of_operation(op)
    if name is None:
        raise UnsupportedTypeError(
            f"collops.jax has no reduction {op!r}: choose one by name, such as 'sum'. A compiled program cannot call "
            "an operation that a user has defined: gather the arrays and combine them"
        )
    check_dtype(dtype)
    check_reduction(name, dtype)
    return LOGICAL.get(name, name) if dtype.kind == "b" else name


def reduction(
    x: LocalArray, op: str | MpiHandle, comm: NativeComm
) -> tuple[LocalArray, str, Callable[[LocalArray], LocalArray]]:
    """Return an array and a reduction that the transport supports, and a function that converts the result.

    An average is a sum divided by the number of ranks. NCCL has no 16-bit integers, booleans and logical operations;
    these are reduced as 32-bit integers.
    """
    x = array(x)
    dtype, op = x.dtype, operation(op, x.dtype)
    if op == "avg":
        return x, "sum", lambda y: y / comm.size
    if not comm.on_devices or nccl_reduction(op, dtype) is not None:
        return x, op, lambda y: y
    return as_integers(x, op, jnp)


def checked_rank(rank: int, comm: NativeComm | Communicator, name: str) -> int:
    """Return a checked rank."""
    number = _integer(rank, name)
    check_rank(number, comm.size, name)
    return number


def checked_tag(tag: int) -> int:
    """Return a checked tag."""
    number = _integer(tag, "tag")
    check_tag(number)
    return number


def checked_counts(counts: Sequence[int], comm: NativeComm, name: str) -> tuple[int, ...]:
    """Return the checked numbers of rows of all ranks."""
    return tuple(rows_of_ranks([_integer(count, name) for count in counts], comm.size, name))


def _integer(value: SupportsIndex, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:  # also for traced values, because messages are laid out when a program is compiled
        raise InputError(f"{name} must be an integer that is known when tracing, not {value!r}") from None


def checked_convention(cotangents: str) -> bool:
    """Return whether cotangents belong to replicated values."""
    if cotangents not in _COTANGENTS:
        raise InputError(f"cotangents must be {' or '.join(_COTANGENTS)}, not {cotangents!r}")
    return cotangents == "replicated"
