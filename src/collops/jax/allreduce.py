"""Reductions that every rank gets: ``allreduce``, its derivatives for every operation, and ``avg``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad, batching

from collops.jax.arguments import array, checked_convention, operation, reducible
from collops.jax.gathering import gathered
from collops.jax.native import OPS
from collops.jax.primitive import collective, whole
from collops.jax.replicated import local_adjoint
from collops.jax.wires import Wire, wire_of

__all__ = ["allreduce", "pushed_forward", "reduced", "replicated_operand"]


def allreduce(x: Any, op: Any = "sum", *, comm: Any = None, cotangents: str = "ranks") -> Any:
    """Reduce `x` over the ranks; every rank gets the result. Collective.

    Parameters
    ----------
    x : array
        The same shape and dtype on every rank.
    op : str or mpi4py.MPI.Op
        ``sum, prod, min, max, avg, land, lor, lxor``, or ``MPI.SUM`` and its like.
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.
    cotangents : str
        ``"ranks"``: each rank's result is a value of its own, so that cotangents are summed over the ranks, as dot
        tests on rank-stacked vectors ask. ``"replicated"``: the result is one value that all ranks hold, and so is its
        cotangent; a sum's cotangent is then that of every summand, without a message.

    Returns
    -------
    jax.Array
        Of the shape and dtype of `x`.

    Raises
    ------
    UnsupportedTypeError
        If `op` has no meaning for the dtype.

    Notes
    -----
    The derivative of ``min`` and ``max`` goes to the ranks that have the extreme value, in equal shares where several
    have it; that of ``prod`` gathers the factors.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> float(collops.jax.allreduce(jnp.array(1.0))) == collops.world().size
    True
    """
    wire = wire_of(comm)
    x = array(x)
    op = operation(op, x.dtype)
    replicated = checked_convention(cotangents)
    if op == "avg":
        return reduced(x, "sum", wire, replicated) / wire.size
    x, op, narrowed = reducible(x, op, wire)
    return narrowed(reduced(x, op, wire, replicated))


def reduced(x: Any, op: str, wire: Wire, replicated: bool = False) -> Any:
    """Bind the primitive: `op` is a name that native code knows."""
    return allreduce_p.bind(x, op=op, wire=wire, replicated=replicated)[0]


def replicated_operand(x: Any, comm: Any) -> Any:
    """Return `x`, a floating or complex array that all ranks hold, for use with data of which each rank has its own.

    No message; in a derivative the cotangents of all ranks are summed. It is the adjoint of a sum whose result counts
    once.
    """
    return local_adjoint(x, allreduce_p, {"op": "sum", "wire": wire_of(comm), "replicated": True})


allreduce_p = collective(
    "allreduce",
    lambda x, **_: [x.update(weak_type=False)],
    lambda _avals, op, **_: {"op": OPS.index(op)},
    in_place=True,
)


def pushed_forward(x: Any, y: Any, t: Any, op: str, wire: Wire) -> Any:
    """Return what is left to sum over the ranks for the tangent of `y`, the result of `op` on `x`."""
    if op == "sum":
        return t
    if op == "prod":
        factors = gathered(x[None], (1,) * wire.size, wire)
        return t * jnp.prod(factors.at[wire.rank].set(1), axis=0).astype(x.dtype)
    here = (x == y).astype(x.dtype)
    return t * here / reduced(here, "sum", wire)


def _jvp(primals: Any, tangents: Any, *, op: str, wire: Wire, replicated: bool) -> Any:
    (x,) = primals
    y = reduced(x, op, wire, replicated)
    t = pushed_forward(x, y, whole(tangents[0]), op, wire)
    return [y], [reduced(t, "sum", wire, replicated)]


def _transpose(cotangents: Any, x: Any, *, op: str, wire: Wire, replicated: bool) -> Any:
    cotangent = whole(cotangents[0])
    if replicated:
        return [local_adjoint(cotangent, allreduce_p, {"op": op, "wire": wire, "replicated": True})]
    return [reduced(cotangent, op, wire)]


def _batch(values: Any, places: Any, **parameters: Any) -> Any:
    return allreduce_p.bind(jnp.moveaxis(values[0], places[0], 0), **parameters), [0]


ad.primitive_jvps[allreduce_p] = _jvp
ad.primitive_transposes[allreduce_p] = _transpose
batching.primitive_batchers[allreduce_p] = _batch
