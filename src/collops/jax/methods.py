"""The methods of a communicator for arrays of JAX: the same names and results, by the primitives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collops.comm import Communicator
from collops.errors import UnsupportedTypeError
from collops.jax import distribution, exchange, gathering, rooted
from collops.jax.allreduce import allreduce as _allreduce
from collops.jax.alltoall import alltoall as _alltoall
from collops.jax.alltoall import alltoallv as _alltoallv

__all__ = [
    "allgather",
    "allgatherv",
    "allreduce",
    "alltoall",
    "alltoallv",
    "bcast",
    "gather",
    "gatherv",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "scatterv",
    "send",
    "sendrecv",
]


def _no_out(out: Any) -> None:
    if out is not None:
        raise UnsupportedTypeError("arrays of jax cannot be written, so there is no out= for them")


def allreduce(comm: Communicator, x: Any, op: str = "sum", *, out: Any = None) -> Any:
    """See :meth:`Communicator.allreduce`."""
    _no_out(out)
    return _allreduce(x, op, comm=comm)


def reduce(comm: Communicator, x: Any, op: str = "sum", root: int = 0, *, out: Any = None) -> Any:
    """See :meth:`Communicator.reduce`."""
    _no_out(out)
    result = rooted.reduce(x, op, root, comm=comm)
    return result if comm.rank == root else None


def bcast(comm: Communicator, x: Any, root: int = 0, *, out: Any = None) -> Any:
    """See :meth:`Communicator.bcast`."""
    _no_out(out)
    return rooted.bcast(x, root, comm=comm)


def allgather(comm: Communicator, x: Any, *, out: Any = None) -> Any:
    """See :meth:`Communicator.allgather`."""
    _no_out(out)
    return gathering.allgather(x, comm=comm)


def allgatherv(comm: Communicator, x: Any, counts: Sequence[int] | None = None, *, out: Any = None) -> Any:
    """See :meth:`Communicator.allgatherv`; without `counts` the metadata message is sent when the program is traced."""
    _no_out(out)
    rows = comm.allgather_metadata(x.shape[0] if x.ndim else 0) if counts is None else counts
    return gathering.allgatherv(x, rows, comm=comm)


def gather(comm: Communicator, x: Any, root: int = 0, *, out: Any = None) -> Any:
    """See :meth:`Communicator.gather`."""
    _no_out(out)
    result = distribution.gather(x, root, comm=comm)
    return result if comm.rank == root else None


def gatherv(comm: Communicator, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Refused: there is no such primitive."""
    raise UnsupportedTypeError("gatherv has no form for arrays of jax; use allgatherv, or neighbor_exchange")


def scatter(comm: Communicator, x: Any, root: int = 0, *, out: Any = None) -> Any:
    """See :meth:`Communicator.scatter`."""
    _no_out(out)
    return distribution.scatter(x, root, comm=comm)


def scatterv(comm: Communicator, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Refused: there is no such primitive."""
    raise UnsupportedTypeError("scatterv has no form for arrays of jax; use alltoallv, or neighbor_exchange")


def reduce_scatter(comm: Communicator, x: Any, op: str = "sum", *, out: Any = None) -> Any:
    """See :meth:`Communicator.reduce_scatter`."""
    _no_out(out)
    return gathering.reduce_scatter(x, op, comm=comm)


def alltoall(comm: Communicator, x: Any, *, out: Any = None) -> Any:
    """See :meth:`Communicator.alltoall`."""
    _no_out(out)
    return _alltoall(x, comm=comm)


def alltoallv(
    comm: Communicator, x: Any, send_counts: Sequence[int], receive_counts: Sequence[int], *, out: Any = None
) -> Any:
    """See :meth:`Communicator.alltoallv`."""
    _no_out(out)
    return _alltoallv(x, send_counts, receive_counts, comm=comm)


def send(comm: Communicator, x: Any, dest: int, tag: int = 0) -> None:
    """See :meth:`Communicator.send`."""
    exchange.send(x, dest, tag, comm=comm)


def recv(comm: Communicator, out: Any, source: int, tag: int = 0) -> Any:
    """See :meth:`Communicator.recv`; `out` is a template."""
    return exchange.recv(out, source, tag, comm=comm)


def sendrecv(comm: Communicator, x: Any, dest: int, out: Any, source: int, tag: int = 0) -> Any:
    """See :meth:`Communicator.sendrecv`; `out` is a template."""
    return exchange.sendrecv(x, out, source, dest, tag, tag, comm=comm)
