"""Messages between pairs of ranks: ``send``, ``recv``, ``sendrecv`` and ``neighbor_exchange``, one primitive for all.

The operands are the arrays to send and a template for each array to receive. Templates are not sent; they carry shapes
and derivatives: a received array has a tangent although it depends on no other operand of this rank. The adjoint sends
every message in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import dtypes, lax
from jax.core import ShapedArray, Tracer
from jax.interpreters import ad, batching

from collops.backend import LocalArray
from collops.comm.agreement import MpiHandle
from collops.comm.mpi import mpi4py_module
from collops.errors import InputError
from collops.jax.arguments import array, checked_rank, checked_tag
from collops.jax.communicators import Comm, NativeComm, native_comm
from collops.jax.primitive import collective, whole
from collops.jax.versions import Traced

Messages = tuple[tuple[int, int], ...]
"""The other rank and the tag of each message; negative for any."""


class Status:
    """A status of mpi4py as a parameter of the primitive, which keeps it alive; equal if it is the same object."""

    def __init__(self, status: MpiHandle) -> None:
        mpi = mpi4py_module()
        if not isinstance(status, mpi.Status):
            raise InputError(f"status must be an mpi4py.MPI.Status, not {type(status).__name__}")
        self._status = status
        self.address: int = mpi._addressof(status)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and self._status is other._status

    def __hash__(self) -> int:
        return hash(self.address)


def send(x: LocalArray, dest: int, tag: int = 0, *, comm: Comm = None) -> LocalArray:
    """Send `x` to rank `dest`, which calls :func:`recv`; return a receipt. Parameters as for :func:`sendrecv`.

    Returns
    -------
    jax.Array
        The receipt, the number 0 of the dtype of `x`. In reverse-mode differentiation the receiver sends a cotangent
        back. This rank receives it if the differentiated result depends on the receipt (add it to the result).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> @collops.jax.jit
    ... def ring(x):
    ...     collops.jax.send(x, (comm.rank + 1) % comm.size)
    ...     return collops.jax.recv(x, (comm.rank - 1) % comm.size)
    >>> float(ring(jnp.array(2.0)))
    2.0
    """
    (receipt,) = messages([x], [], [(dest, tag)], [], comm)
    return with_derivative(jnp.zeros_like(receipt), receipt)  # the handler does not write the receipt's memory


def recv(
    x: LocalArray, source: int | None, tag: int | None = 0, *, comm: Comm = None, status: MpiHandle = None
) -> LocalArray:
    """Receive an array like `x` from rank `source`, which calls :func:`send`.

    The values of `x` are arbitrary. For a derivative it must depend on the variable of differentiation, for example as
    ``0 * y``. Other parameters are as for :func:`sendrecv`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    >>> @collops.jax.jit
    ... def ring(x):
    ...     collops.jax.send(x, right)
    ...     return collops.jax.recv(x, left)
    >>> float(ring(jnp.array(2.0)))
    2.0
    """
    return messages([], [x], [], [(source, tag)], comm, status)[0]


def sendrecv(
    sendbuf: LocalArray,
    recvbuf: LocalArray,
    source: int | None,
    dest: int,
    sendtag: int = 0,
    recvtag: int | None = 0,
    *,
    comm: Comm = None,
    status: MpiHandle = None,
) -> LocalArray:
    """Send `sendbuf` to `dest` and receive an array like `recvbuf` from `source`, at once.

    Parameters
    ----------
    sendbuf : array
        The array to send.
    recvbuf : array
        An array with the shape and dtype of the received one, with arbitrary values.
    source, dest : int
        The ranks from which to receive and to which to send. ``None`` receives from any rank: on hosts only, and
        without a derivative.
    sendtag, recvtag : int
        Identify messages between the same two ranks (on hosts; NCCL matches them by their order). ``None`` receives any
        tag. Its cotangent returns with `sendtag`, or 0 for :func:`recv`.
    comm
        As for :func:`allreduce`.
    status : mpi4py.MPI.Status, optional
        Is filled in each time the program runs, on hosts with several ranks. Read it when the result is ready.

    Returns
    -------
    jax.Array
        Like `recvbuf`.

    Raises
    ------
    InputError
        If a rank, a tag or a status is invalid or not available here.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    >>> float(collops.jax.sendrecv(jnp.array(2.0), jnp.array(0.0), source=left, dest=right))
    2.0
    """
    return messages([sendbuf], [recvbuf], [(dest, sendtag)], [(source, recvtag)], comm, status)[0]


def neighbor_exchange(
    sends: Sequence[LocalArray],
    templates: Sequence[LocalArray],
    destinations: Sequence[int],
    sources: Sequence[int],
    tag: int = 0,
    *,
    comm: Comm = None,
) -> list[LocalArray]:
    """Send any number of arrays and receive any number, all at once.

    Parameters
    ----------
    sends : sequence of array
        The arrays for `destinations`.
    templates : sequence of array
        Arrays with the shapes and dtypes of the arrays from `sources`, with arbitrary values.
    destinations, sources : sequence of int
        Ranks. They may include this rank, and repeat. Messages between two ranks arrive in the order of these lists.
    tag, comm
        As for :func:`sendrecv`, the same tag for all messages.

    Returns
    -------
    list of jax.Array
        Like `templates`.

    Raises
    ------
    InputError
        If the numbers of ranks and arrays differ, or a rank is invalid.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    >>> (received,) = collops.jax.neighbor_exchange([jnp.ones(3)], [jnp.zeros(3)], [right], [left])
    >>> received.shape
    (3,)
    """
    if len(sends) != len(destinations) or len(templates) != len(sources):
        raise InputError(
            f"arrays and ranks must match, not {len(sends)} arrays for {len(destinations)} destinations "
            f"and {len(templates)} templates for {len(sources)} sources"
        )
    leaving, arriving = ([(rank, tag) for rank in ranks] for ranks in (destinations, sources))
    return messages(sends, templates, leaving, arriving, comm)[: len(templates)]


def messages(
    sends: Sequence[LocalArray],
    templates: Sequence[LocalArray],
    destinations: Sequence[tuple[int, int]],
    sources: Sequence[tuple[int | None, int | None]],
    comm: Comm,
    status: MpiHandle = None,
) -> list[LocalArray]:
    """Check the arguments and bind the primitive if there are messages; without `sources` return a receipt."""
    comm = native_comm(comm)
    leaving = tuple((checked_rank(rank, comm, "dest"), checked_tag(tag)) for rank, tag in destinations)
    arriving = tuple(_arriving(rank, tag, comm) for rank, tag in sources)
    filled = checked_status(status, comm)
    if not leaving and not arriving:
        return []
    operands = [*map(array, sends), *map(array, templates)]
    return exchange_p.bind(*operands, destinations=leaving, sources=arriving, comm=comm, status=filled)


def checked_status(status: MpiHandle, comm: NativeComm) -> Status | None:
    """Return a checked status as a parameter of the primitive."""
    if status is not None and (comm.size == 1 or comm.on_devices):
        raise InputError("status= is filled by MPI: it needs several ranks with arrays on hosts")
    return None if status is None else Status(status)


def _arriving(rank: int | None, tag: int | None, comm: NativeComm) -> tuple[int, int]:
    """Return checked numbers; for ``None`` the negative numbers for any rank and any tag in MPI."""
    if rank is None and comm.on_devices:
        raise InputError("NCCL receives from a known rank only: name the source")
    any_rank, any_tag = (-1, -1) if comm.size == 1 else (mpi4py_module().ANY_SOURCE, mpi4py_module().ANY_TAG)
    source = any_rank if rank is None else checked_rank(rank, comm, "source")
    return source, any_tag if tag is None else checked_tag(tag)


def with_derivative(x: LocalArray, other: LocalArray) -> LocalArray:
    """Return `x`; its cotangent also reaches `other`, as zeros, so that this rank participates in a derivative."""
    if not isinstance(other, Tracer) or x.dtype != other.dtype or not jnp.issubdtype(x.dtype, np.inexact):
        return x
    return lax.select(np.False_, jnp.broadcast_to(jnp.sum(other), x.shape), x)


def _shapes(*avals: ShapedArray, destinations: Messages, sources: Messages, **_: Any) -> list[ShapedArray]:
    received = [aval.update(weak_type=False) for aval in avals[len(destinations) :]]
    return received or [ShapedArray((), avals[0].dtype)]


def _attributes(_: Sequence[ShapedArray], parameters: dict[str, Any]) -> dict[str, int | tuple[int, ...]]:
    destinations, sources, status = (parameters[name] for name in ("destinations", "sources", "status"))
    return {
        "destinations": tuple(rank for rank, _ in destinations),
        "send_tags": tuple(tag for _, tag in destinations),
        "sources": tuple(rank for rank, _ in sources),
        "receive_tags": tuple(tag for _, tag in sources),
        "status": 0 if status is None else status.address,
    }


exchange_p = collective("exchange", _shapes, _attributes, operands=lambda destinations, **_: len(destinations))


def _jvp(
    primals: Sequence[Traced],
    tangents: Sequence[Traced],
    *,
    destinations: Messages,
    sources: Messages,
    comm: NativeComm,
    status: Status | None,
) -> tuple[list[Traced], list[Traced]]:
    moving = [jnp.issubdtype(primal.dtype, np.inexact) for primal in primals]
    count = len(destinations)
    nonzero = [whole(tangent) for tangent, moves in zip(tangents, moving, strict=True) if moves]
    leaving = tuple(message for message, moves in zip(destinations, moving[:count], strict=True) if moves)
    arriving = tuple(message for message, moves in zip(sources, moving[count:], strict=True) if moves)
    if any(rank < 0 for rank, _ in arriving):
        raise InputError("a message from any rank has no derivative: name the source")
    results = exchange_p.bind(*primals, destinations=destinations, sources=sources, comm=comm, status=status)
    arrived = iter(exchange_p.bind(*nonzero, destinations=leaving, sources=arriving, comm=comm, status=None))
    if not sources:
        return results, list(arrived)
    return results, [
        next(arrived) if moves else np.zeros(result.shape, dtypes.float0)
        for result, moves in zip(results, moving[count:], strict=True)
    ]


def _returning(destinations: Messages, sources: Messages) -> tuple[Messages, Messages]:
    """Return the destinations and the sources of cotangents.

    A receive of any tag does not know the tag that the sender expects. It returns the tag of its own call, which is the
    same on all ranks if they run one program, and itself waits for any tag.
    """
    wild = [tag for _, tag in sources if tag < 0]
    if not wild:
        return sources, destinations
    own_tag = destinations[0][1] if destinations else 0
    back = tuple((rank, own_tag if tag < 0 else tag) for rank, tag in sources)
    return back, tuple((rank, wild[0]) for rank, _ in destinations)


def _transpose(
    cotangents: Sequence[Traced],
    *operands: Traced,
    destinations: Messages,
    sources: Messages,
    comm: NativeComm,
    status: None,
) -> list[Traced]:
    count = len(destinations)
    back = [whole(cotangent) for cotangent in cotangents[: len(sources)]]
    shapes = [operand.aval if ad.is_undefined_primal(operand) else operand for operand in operands[:count]]
    templates = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    if not sources:  # the derivative of what follows reaches this rank by its receipt only
        templates = [with_derivative(template, whole(cotangents[0])) for template in templates]
    to, origins = _returning(destinations, sources)
    returned = exchange_p.bind(*back, *templates, destinations=to, sources=origins, comm=comm, status=status)
    cotangents_of_sends = [
        cotangent if ad.is_undefined_primal(operand) else None
        for cotangent, operand in zip(returned, operands[:count], strict=False)
    ]
    zeros = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands[count:]]
    return [*cotangents_of_sends, *zeros]


def _batch(
    values: Sequence[Traced], axes: Sequence[int | None], **parameters: Any
) -> tuple[list[Traced], list[int | None]]:
    size = next(value.shape[axis] for value, axis in zip(values, axes, strict=True) if axis is not None)
    values = [batching.bdim_at_front(value, axis, size) for value, axis in zip(values, axes, strict=True)]
    results = exchange_p.bind(*values, **parameters)
    if not parameters["sources"]:
        return results, [None]
    return results, [0] * len(results)


ad.primitive_jvps[exchange_p] = _jvp
ad.primitive_transposes[exchange_p] = _transpose
batching.primitive_batchers[exchange_p] = _batch
