"""The methods of a communicator for JAX arrays.

Results on all ranks are replicated values, also in derivatives: see ``cotangents="replicated"`` of
:func:`collops.jax.allreduce`. ``out=`` is ignored, because JAX arrays are immutable. A single rank sends no messages
and does not need the native library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from collops.backend import LocalArray
from collops.comm import Communicator
from collops.errors import LayoutError, UnsupportedTypeError
from collops.jax import distribution, gathering, rooted
from collops.jax.allreduce import allreduce
from collops.jax.alltoall import alltoall, alltoallv
from collops.jax.arguments import checked_rank, operation
from collops.jax.exchange import messages, neighbor_exchange, recv, send, sendrecv, with_derivative
from collops.jax.primitive import linear_map

__all__ = ["collective", "exchange", "recv", "send", "sendrecv"]


def collective(
    comm: Communicator, kind: str, x: LocalArray, op: str | None, root: Any, counts: Any, receive_counts: Any
) -> LocalArray:
    """Return the result of a collective method of a communicator, called `kind`, with the same parameters.

    `counts` are also the ``send_counts`` of an alltoallv. Counts that are missing are exchanged when the program is
    traced.
    """
    if op is not None:
        operation(op, x.dtype)  # the primitives support more operations than the other transports of a communicator
    if kind == "scatterv":
        raise UnsupportedTypeError("scatterv is not available for JAX arrays; use alltoallv, or neighbor_exchange")
    if comm.size == 1:
        return _on_one_rank(comm, kind, x, root, counts, receive_counts)
    if kind in ("allgatherv", "gatherv") and counts is None:
        counts = comm.allgather_metadata(x.shape[0] if x.ndim else 0)
    result: LocalArray = None
    match kind:
        case "allreduce":
            return allreduce(x, op, comm=comm, cotangents="replicated")
        case "bcast":
            return rooted.bcast(x, root, comm=comm, cotangents="replicated")
        case "allgather":
            return gathering.allgather(x, comm=comm, cotangents="replicated")
        case "allgatherv":
            return gathering.allgatherv(x, counts, comm=comm, cotangents="replicated")
        case "scatter":
            return distribution.scatter(x, root, comm=comm)
        case "reduce_scatter":
            return gathering.reduce_scatter(x, op, comm=comm)
        case "alltoall":
            return alltoall(x, comm=comm)
        case "alltoallv":
            return alltoallv(x, counts, receive_counts, comm=comm)
        case "reduce":
            result = rooted.reduce(x, op, root, comm=comm)
        case "gather":
            result = distribution.gather(x, root, comm=comm)
        case "gatherv":
            leaving = [x.shape[0] if rank == root else 0 for rank in range(comm.size)]
            arriving = counts if comm.rank == root else [0] * comm.size
            result = alltoallv(x, leaving, arriving, comm=comm)
    return result if comm.rank == root else None


def _on_one_rank(comm: Communicator, kind: str, x: LocalArray, root: Any, *counts: Sequence[int] | None) -> LocalArray:
    """Return the result of a call on a single rank, after the same checks as in the primitives."""
    if root is not None:
        checked_rank(root, comm, "root")
    for rows in [(1,)] if kind in ("scatter", "reduce_scatter", "alltoall") else counts:
        if rows is not None and list(rows) != list(x.shape[:1]):
            raise LayoutError(
                f"on one rank, the counts for an array of shape {x.shape} must be all its rows, not {list(rows)}"
            )
    if kind in ("allgather", "gather"):
        return x[None]
    return x[0] if kind in ("scatter", "reduce_scatter") else x


def exchange(
    comm: Communicator,
    source: LocalArray,
    sends: Sequence[LocalArray],
    destinations: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    sources: Sequence[int],
) -> tuple[list[LocalArray], Callable[[Any], Any] | None]:
    """Send `sends`, parts of `source`; return the received arrays, of its dtype and of these shapes, and a tie.

    Derivatives exchange messages on every rank that takes part. A rank that only receives depends on `source` for this.
    On a rank that only sends, the tie is a function, and results computed from `source` must pass through it:
    otherwise second derivatives leave out the messages of this rank. Elsewhere it is ``None``.
    """
    dtype = source.dtype
    if sends and not sources:
        (receipt,) = messages(sends, [], [(rank, 0) for rank in destinations], [], comm)
        return [], partial(jax.tree.map, lambda result: with_derivative(result, receipt))
    if sends or not sources:
        templates = [jnp.zeros(shape, dtype) for shape in shapes]
    else:
        ends = source.shape, shapes[0]
        first = linear_map(lambda _: jnp.zeros(ends[1], dtype), lambda _: jnp.zeros(ends[0], dtype), source, ends)
        templates = [first, *(jnp.zeros(shape, dtype) for shape in shapes[1:])]
    return neighbor_exchange(sends, templates, destinations, sources, comm=comm), None
