"""The interface of mpi4jax 0.9.1: ``import collops.compat.mpi4jax as mpi4jax`` runs its programs.

Arguments, their order and results agree with mpi4jax. Functions also take the ``token=`` of programs for versions
before 0.8, and then return it after the result, as these versions did. The order of calls never depends on it.
``docs/from-mpi4jax.md`` lists the intended differences.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

import collops.jax as cj
from collops.errors import LayoutError
from collops.extend.arrays import LocalArray
from collops.extend.communication import mpi4py_module
from collops.extend.jax import array, checked_status, exchange_p, has_devices, messages, native_comm, with_derivative

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "gather",
    "has_cuda_support",
    "has_sycl_support",
    "recv",
    "reduce",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]

__version__ = "0.9.1"

_MPI = mpi4py_module()
_NO_TOKEN = object()


def allgather(x: LocalArray, *, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Stack every rank's `x`; see :func:`collops.jax.allgather`."""
    return _with(token, cj.allgather(x, comm=comm))


def allreduce(x: LocalArray, op: Any, *, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Reduce `x` over the ranks; see :func:`collops.jax.allreduce` with ``cotangents="replicated"``."""
    return _with(token, cj.allreduce(x, op, comm=comm, cotangents="replicated"))


def alltoall(x: LocalArray, *, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Send block ``x[r]`` to rank *r*; see :func:`collops.jax.alltoall`."""
    with _words_of_sizes("Alltoall"):
        return _with(token, cj.alltoall(x, comm=comm))


def barrier(*, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Wait for all ranks; see :func:`collops.jax.barrier`."""
    cj.barrier(comm=comm)
    return _alone(token)


def bcast(x: LocalArray, root: int, *, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Broadcast `x` from `root`; see :func:`collops.jax.bcast`."""
    return _with(token, cj.bcast(x, root, comm=comm))


def gather(x: LocalArray, root: int, *, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Stack every rank's `x` on `root`, and return `x` elsewhere; see :func:`collops.jax.gather`."""
    return _with(token, cj.gather(x, root, comm=comm))


def reduce(x: LocalArray, op: Any, root: int, *, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Reduce `x` to `root`, and return `x` elsewhere; see :func:`collops.jax.reduce`."""
    return _with(token, cj.reduce(x, op, root, comm=comm))


def scan(x: LocalArray, op: Any, *, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Reduce `x` over this rank and the ranks before it; see :func:`collops.jax.scan`."""
    return _with(token, cj.scan(x, op, comm=comm))


def scatter(x: LocalArray, root: int, *, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Send block ``x[r]`` of `root` to rank *r*; see :func:`collops.jax.scatter`."""
    with _words_of_sizes("Scatter"):
        return _with(token, cj.scatter(x, root, comm=comm))


def send(x: LocalArray, dest: int, *, tag: int = 0, comm: Any = None, token: object = _NO_TOKEN) -> Any:
    """Send `x` to `dest`, or nowhere if it is ``MPI.PROC_NULL``; see :func:`collops.jax.send`."""
    if dest != _MPI.PROC_NULL:
        cj.send(x, dest, tag, comm=comm)
    return _alone(token)


def recv(
    x: LocalArray,
    source: int = _MPI.ANY_SOURCE,
    *,
    tag: int = _MPI.ANY_TAG,
    comm: Any = None,
    status: Any = None,
    token: object = _NO_TOKEN,
) -> Any:
    """Receive an array like `x`, or return `x` from ``MPI.PROC_NULL``; see :func:`collops.jax.recv`."""
    if source == _MPI.PROC_NULL:
        return _with(token, _nothing(x, comm, status))
    source, tag = _named(source, _MPI.ANY_SOURCE), _named(tag, _MPI.ANY_TAG)
    return _with(token, cj.recv(x, source, tag, comm=comm, status=status))


def sendrecv(
    sendbuf: LocalArray,
    recvbuf: LocalArray,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int = _MPI.ANY_TAG,
    comm: Any = None,
    status: Any = None,
    token: object = _NO_TOKEN,
) -> Any:
    """Send `sendbuf` to `dest` and receive an array like `recvbuf` from `source`; see :func:`collops.jax.sendrecv`.

    A receive from ``MPI.PROC_NULL`` returns `recvbuf`. Each rank takes part in a derivative if `sendbuf` does.
    """
    sendbuf, recvbuf = array(sendbuf), array(recvbuf)
    leaving = [] if dest == _MPI.PROC_NULL else [(dest, sendtag)]
    if source == _MPI.PROC_NULL:
        receipts = messages([sendbuf][: len(leaving)], [], leaving, [], comm)
        result = _nothing(recvbuf, comm, status)
        return _with(token, with_derivative(result, receipts[0]) if receipts else result)
    if not leaving:
        recvbuf = with_derivative(recvbuf, sendbuf)
    arriving = [(_named(source, _MPI.ANY_SOURCE), _named(recvtag, _MPI.ANY_TAG))]
    (result,) = messages([sendbuf][: len(leaving)], [recvbuf], leaving, arriving, comm, status)
    return _with(token, result)


def has_cuda_support() -> bool:
    """Return whether JAX's arrays are on GPUs, so that NCCL sends them.

    Examples
    --------
    >>> import jax
    >>> import collops.compat.mpi4jax as mpi4jax
    >>> mpi4jax.has_cuda_support() == (jax.default_backend() == "gpu")
    True
    """
    return has_devices()


def has_sycl_support() -> bool:
    """Return ``False``: Intel's GPUs are not supported.

    Examples
    --------
    >>> import collops.compat.mpi4jax as mpi4jax
    >>> mpi4jax.has_sycl_support()
    False
    """
    return False


@contextlib.contextmanager
def _words_of_sizes(kind: str) -> Iterator[None]:
    """Begin the error for a wrong first axis with mpi4jax's text, by which programs recognise it."""
    try:
        yield
    except LayoutError as error:
        raise LayoutError(f"{kind} input must have shape (nproc, ...): {error}") from error


def _with(token: object, result: LocalArray) -> Any:
    return result if token is _NO_TOKEN else (result, token)


def _alone(token: object) -> object:
    return None if token is _NO_TOKEN else token


def _named(number: int, wildcard: int) -> Any:
    """Return a rank or a tag; ``None`` instead of MPI's wildcard."""
    return None if number == wildcard else number


def _nothing(x: LocalArray, comm: Any, status: Any) -> LocalArray:
    """Return `x`, unchanged by a message from ``MPI.PROC_NULL``, and set the status of this message."""
    joined = native_comm(comm)
    filled = checked_status(status, joined)
    if filled is not None:
        source = ((_MPI.PROC_NULL, _MPI.ANY_TAG),)
        exchange_p.bind(jnp.zeros(0, jnp.int8), destinations=(), sources=source, comm=joined, status=filled)
    return array(x)
