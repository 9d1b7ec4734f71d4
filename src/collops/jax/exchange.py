"""Messages between pairs of ranks: ``send``, ``recv``, ``sendrecv`` and ``neighbor_exchange``, one primitive for all.

The operands are the arrays to send and a template for each array to receive. Templates are not sent. They carry shapes
and derivatives: a received array has a tangent although it depends on no other operand of this rank. The adjoint sends
every message back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import dtypes, lax
from jax.core import ShapedArray
from jax.interpreters import ad, batching

from collops.errors import InputError
from collops.jax.arguments import array, checked_rank, checked_tag
from collops.jax.communicators import NativeComm, native_comm
from collops.jax.primitive import collective, whole

__all__ = ["neighbor_exchange", "recv", "send", "sendrecv"]

Messages = tuple[tuple[int, int], ...]
"""The other rank and the tag of each message."""


def send(x: Any, dest: int, tag: int = 0, *, comm: Any = None) -> Any:
    """Send `x` to rank `dest`, which calls :func:`recv`; return a receipt. Parameters are those of :func:`sendrecv`.

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
    (receipt,) = _messages([x], [], [(dest, tag)], [], comm)
    return lax.select(np.False_, receipt, jnp.zeros_like(receipt))  # the handler does not write the receipt's memory


def recv(x: Any, source: int, tag: int = 0, *, comm: Any = None) -> Any:
    """Receive an array like `x` from rank `source`, which calls :func:`send`.

    `x` has arbitrary values. For a derivative it must depend on the variable of differentiation, for instance as
    ``0 * y``. Other parameters are those of :func:`sendrecv`.

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
    return _messages([], [x], [], [(source, tag)], comm)[0]


def sendrecv(
    sendbuf: Any, recvbuf: Any, source: int, dest: int, sendtag: int = 0, recvtag: int = 0, *, comm: Any = None
) -> Any:
    """Send `sendbuf` to `dest` and receive an array like `recvbuf` from `source`, at once.

    Parameters
    ----------
    sendbuf : array
        The array to send.
    recvbuf : array
        Of the shape and dtype of the received array, with arbitrary values.
    source, dest : int
        The ranks from which to receive and to which to send.
    sendtag, recvtag : int
        Identify messages between the same two ranks (on hosts; NCCL matches them by their order).
    comm
        As for :func:`allreduce`.

    Returns
    -------
    jax.Array
        Like `recvbuf`.

    Raises
    ------
    InputError
        If a rank or a tag is invalid.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    >>> float(collops.jax.sendrecv(jnp.array(2.0), jnp.array(0.0), source=left, dest=right))
    2.0
    """
    return _messages([sendbuf], [recvbuf], [(dest, sendtag)], [(source, recvtag)], comm)[0]


def neighbor_exchange(
    sends: Sequence[Any],
    templates: Sequence[Any],
    destinations: Sequence[int],
    sources: Sequence[int],
    tag: int = 0,
    *,
    comm: Any = None,
) -> list[Any]:
    """Send any number of arrays and receive any number, all at once.

    Parameters
    ----------
    sends : sequence of array
        The arrays for `destinations`.
    templates : sequence of array
        Of the shapes and dtypes of the arrays from `sources`, with arbitrary values.
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
            f"{len(sends)} arrays were given for {len(destinations)} destinations, "
            f"and {len(templates)} templates for {len(sources)} sources"
        )
    leaving, arriving = ([(rank, tag) for rank in ranks] for ranks in (destinations, sources))
    return _messages(sends, templates, leaving, arriving, comm)[: len(templates)]


def _messages(
    sends: Sequence[Any],
    templates: Sequence[Any],
    destinations: Sequence[tuple[int, int]],
    sources: Sequence[tuple[int, int]],
    comm: Any,
) -> list[Any]:
    """Check the arguments and bind the primitive, unless there are no messages."""
    comm = native_comm(comm)
    leaving = tuple((checked_rank(rank, comm, "dest"), checked_tag(tag)) for rank, tag in destinations)
    arriving = tuple((checked_rank(rank, comm, "source"), checked_tag(tag)) for rank, tag in sources)
    if not leaving and not arriving:
        return []
    return exchange_p.bind(
        *map(array, sends), *map(array, templates), destinations=leaving, sources=arriving, comm=comm
    )


def _shapes(*avals: Any, destinations: Messages, sources: Messages, comm: NativeComm) -> list[ShapedArray]:
    received = [aval.update(weak_type=False) for aval in avals[len(destinations) :]]
    return received or [ShapedArray((), avals[0].dtype)]


def _attributes(_: Any, parameters: dict[str, Messages]) -> dict[str, Any]:
    destinations, sources = parameters["destinations"], parameters["sources"]
    return {
        "destinations": tuple(rank for rank, _ in destinations),
        "send_tags": tuple(tag for _, tag in destinations),
        "sources": tuple(rank for rank, _ in sources),
        "receive_tags": tuple(tag for _, tag in sources),
    }


exchange_p = collective("exchange", _shapes, _attributes, operands=lambda destinations, **_: len(destinations))


def _jvp(primals: Any, tangents: Any, *, destinations: Messages, sources: Messages, comm: NativeComm) -> Any:
    results = exchange_p.bind(*primals, destinations=destinations, sources=sources, comm=comm)
    moving = [jnp.issubdtype(primal.dtype, np.inexact) for primal in primals]
    count = len(destinations)
    kept = [whole(tangent) for tangent, moves in zip(tangents, moving, strict=True) if moves]
    leaving = tuple(message for message, moves in zip(destinations, moving[:count], strict=True) if moves)
    arriving = tuple(message for message, moves in zip(sources, moving[count:], strict=True) if moves)
    arrived = iter(exchange_p.bind(*kept, destinations=leaving, sources=arriving, comm=comm))
    if not sources:
        return results, list(arrived)
    return results, [
        next(arrived) if moves else np.zeros(result.shape, dtypes.float0)
        for result, moves in zip(results, moving[count:], strict=True)
    ]


def _transpose(cotangents: Any, *operands: Any, destinations: Messages, sources: Messages, comm: NativeComm) -> Any:
    count = len(destinations)
    back = [whole(cotangent) for cotangent in cotangents[: len(sources)]]
    shapes = [operand.aval if ad.is_undefined_primal(operand) else operand for operand in operands[:count]]
    templates = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    returned = exchange_p.bind(*back, *templates, destinations=sources, sources=destinations, comm=comm)
    taken = [
        cotangent if ad.is_undefined_primal(operand) else None
        for cotangent, operand in zip(returned, operands[:count], strict=False)
    ]
    rest = [ad.Zero(x.aval) if ad.is_undefined_primal(x) else None for x in operands[count:]]
    return [*taken, *rest]


def _batch(values: Any, places: Any, **parameters: Any) -> Any:
    size = next(value.shape[place] for value, place in zip(values, places, strict=True) if place is not None)
    values = [batching.bdim_at_front(value, place, size) for value, place in zip(values, places, strict=True)]
    results = exchange_p.bind(*values, **parameters)
    if not parameters["sources"]:
        return results, [None]
    return results, [0] * len(results)


ad.primitive_jvps[exchange_p] = _jvp
ad.primitive_transposes[exchange_p] = _transpose
batching.primitive_batchers[exchange_p] = _batch
