"""The methods of a communicator for JAX arrays.

A result that all ranks get is one value, also in derivatives: see ``cotangents="replicated"`` of
:func:`collops.jax.allreduce`. ``out=`` is ignored, because JAX arrays are immutable. On one rank nothing is sent, and
the native library is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp

from collops.comm import Communicator
from collops.errors import LayoutError, UnsupportedTypeError
from collops.jax import distribution, gathering, rooted
from collops.jax import exchange as messages
from collops.jax.allreduce import allreduce as _allreduce
from collops.jax.alltoall import alltoall as _alltoall
from collops.jax.alltoall import alltoallv as _alltoallv
from collops.jax.arguments import checked_rank, operation
from collops.jax.primitive import linear_map


def allreduce(comm: Communicator, x: Any, op: str = "sum", *, out: Any = None) -> Any:
    """See :meth:`Communicator.allreduce`."""
    return x if _alone(comm, x, op=op) else _allreduce(x, op, comm=comm, cotangents="replicated")


def reduce(comm: Communicator, x: Any, op: str = "sum", root: int = 0, *, out: Any = None) -> Any:
    """See :meth:`Communicator.reduce`."""
    result = x if _alone(comm, x, op=op, root=root) else rooted.reduce(x, op, root, comm=comm)
    return result if comm.rank == root else None


def bcast(comm: Communicator, x: Any, root: int = 0, *, out: Any = None) -> Any:
    """See :meth:`Communicator.bcast`."""
    return x if _alone(comm, x, root=root) else rooted.bcast(x, root, comm=comm, cotangents="replicated")


def allgather(comm: Communicator, x: Any, *, out: Any = None) -> Any:
    """See :meth:`Communicator.allgather`."""
    return x[None] if _alone(comm, x) else gathering.allgather(x, comm=comm, cotangents="replicated")


def allgatherv(comm: Communicator, x: Any, counts: Sequence[int] | None = None, *, out: Any = None) -> Any:
    """See :meth:`Communicator.allgatherv`; without `counts` the metadata message is sent when the program is traced."""
    if _alone(comm, x, counts=counts):
        return x
    return gathering.allgatherv(x, _rows(comm, x, counts), comm=comm, cotangents="replicated")


def gather(comm: Communicator, x: Any, root: int = 0, *, out: Any = None) -> Any:
    """See :meth:`Communicator.gather`."""
    result = x[None] if _alone(comm, x, root=root) else distribution.gather(x, root, comm=comm)
    return result if comm.rank == root else None


def gatherv(comm: Communicator, x: Any, counts: Sequence[int] | None = None, root: int = 0, *, out: Any = None) -> Any:
    """See :meth:`Communicator.gatherv`."""
    if _alone(comm, x, root=root, counts=counts):
        return x
    rows = _rows(comm, x, counts)
    leaving = [x.shape[0] if rank == root else 0 for rank in range(comm.size)]
    result = _alltoallv(x, leaving, rows if comm.rank == root else [0] * comm.size, comm=comm)
    return result if comm.rank == root else None


def scatter(comm: Communicator, x: Any, root: int = 0, *, out: Any = None) -> Any:
    """See :meth:`Communicator.scatter`."""
    return x[0] if _alone(comm, x, root=root, counts=(1,)) else distribution.scatter(x, root, comm=comm)


def scatterv(comm: Communicator, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise :class:`UnsupportedTypeError`: there is no such primitive."""
    raise UnsupportedTypeError("scatterv is not available for JAX arrays; use alltoallv, or neighbor_exchange")


def reduce_scatter(comm: Communicator, x: Any, op: str = "sum", *, out: Any = None) -> Any:
    """See :meth:`Communicator.reduce_scatter`."""
    return x[0] if _alone(comm, x, op=op, counts=(1,)) else gathering.reduce_scatter(x, op, comm=comm)


def alltoall(comm: Communicator, x: Any, *, out: Any = None) -> Any:
    """See :meth:`Communicator.alltoall`."""
    return x if _alone(comm, x, counts=(1,)) else _alltoall(x, comm=comm)


def alltoallv(
    comm: Communicator, x: Any, send_counts: Sequence[int], receive_counts: Sequence[int], *, out: Any = None
) -> Any:
    """See :meth:`Communicator.alltoallv`."""
    if _alone(comm, x, counts=send_counts) and _alone(comm, x, counts=receive_counts):
        return x
    return _alltoallv(x, send_counts, receive_counts, comm=comm)


def send(comm: Communicator, x: Any, dest: int, tag: int = 0) -> None:
    """See :meth:`Communicator.send`."""
    messages.send(x, dest, tag, comm=comm)


def recv(comm: Communicator, out: Any, source: int, tag: int = 0) -> Any:
    """See :meth:`Communicator.recv`; `out` is a template."""
    return messages.recv(out, source, tag, comm=comm)


def sendrecv(comm: Communicator, x: Any, dest: int, out: Any, source: int, tag: int = 0) -> Any:
    """See :meth:`Communicator.sendrecv`; `out` is a template."""
    return messages.sendrecv(x, out, source, dest, tag, tag, comm=comm)


def exchange(
    comm: Communicator,
    source: Any,
    sends: Sequence[Any],
    destinations: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    sources: Sequence[int],
) -> list[Any]:
    """Send `sends` and return the received arrays, of the dtype of `source` and of these shapes.

    `sends` are parts of `source`. A rank that only receives depends on `source` too, as derivatives need.
    """
    dtype = source.dtype
    if sends or not sources:
        templates = [jnp.zeros(shape, dtype) for shape in shapes]
    else:
        forward, adjoint = (partial(_zeros, extents) for extents in (shapes[0], source.shape))
        first = linear_map(forward, adjoint, source, (source.shape, shapes[0]))
        templates = [first, *(jnp.zeros(shape, dtype) for shape in shapes[1:])]
    return messages.neighbor_exchange(sends, templates, destinations, sources, comm=comm)


def _alone(
    comm: Communicator, x: Any, *, op: str | None = None, root: int = 0, counts: Sequence[int] | None = None
) -> bool:
    """Return whether there is one rank only. If so, make the checks that the primitives make for several.

    The primitives know more operations than the other transports of a communicator do.
    """
    if op is not None:
        operation(op, x.dtype)
    if comm.size > 1:
        return False
    checked_rank(root, comm, "root")
    if counts is not None and list(counts) != list(x.shape[:1]):
        raise LayoutError(
            f"on one rank, the counts for an array of shape {x.shape} are all its rows, not {list(counts)}"
        )
    return True


def _zeros(shape: tuple[int, ...], like: Any) -> Any:
    return jnp.zeros(shape, like.dtype)


def _rows(comm: Communicator, x: Any, counts: Sequence[int] | None) -> Sequence[int]:
    return comm.allgather_metadata(x.shape[0] if x.ndim else 0) if counts is None else counts
