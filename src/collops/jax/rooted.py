"""``bcast`` from a root and ``reduce`` to a root: sums to a root are the adjoint of broadcasts from it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad

from collops.jax.allreduce import pushed_forward
from collops.jax.arguments import array, checked_convention, checked_rank, operation, reducible
from collops.jax.native import OPS
from collops.jax.primitive import collective, linear, whole
from collops.jax.replicated import local_adjoint
from collops.jax.wires import Wire, wire_of

__all__ = ["bcast", "reduce"]


def bcast(x: Any, root: int = 0, *, comm: Any = None, cotangents: str = "ranks") -> Any:
    """Give every rank the `x` of `root`. Collective.

    Parameters
    ----------
    x : array
        On `root` the values; elsewhere an array of the same shape and dtype, whose values do not matter.
    root : int
        The rank whose values count.
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.
    cotangents : str
        ``"ranks"`` or ``"replicated"``; see :func:`allreduce`.

    Returns
    -------
    jax.Array
        Like `x`.

    Raises
    ------
    InputError
        If `root` is no rank.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> float(collops.jax.bcast(jnp.array(3.0)))
    3.0
    """
    wire = wire_of(comm)
    root = checked_rank(root, wire, "root")
    return _broadcast(array(x), root, wire, checked_convention(cotangents))


def reduce(x: Any, op: Any = "sum", root: int = 0, *, comm: Any = None) -> Any:
    """Reduce `x` over the ranks; `root` gets the result, the others `x` itself. Collective.

    Parameters
    ----------
    x : array
        The same shape and dtype on every rank.
    op : str or mpi4py.MPI.Op
        See :func:`allreduce`.
    root : int
        The rank that gets the result.
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.

    Returns
    -------
    jax.Array
        Like `x`.

    Raises
    ------
    InputError
        If `root` is no rank.
    UnsupportedTypeError
        If `op` has no meaning for the dtype.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> total = collops.jax.reduce(jnp.array(1.0))
    >>> collops.world().rank > 0 or float(total) == collops.world().size
    True
    """
    wire = wire_of(comm)
    root = checked_rank(root, wire, "root")
    x = array(x)
    op = operation(op, x.dtype)
    given, plain, narrowed = reducible(x, "sum" if op == "avg" else op, wire)
    result = narrowed(_reduced_to(given, plain, root, wire))
    if wire.rank != root:
        return x
    return result / wire.size if op == "avg" else result


def _broadcast(x: Any, root: int, wire: Wire, replicated: bool = False) -> Any:
    return bcast_p.bind(x, root=root, wire=wire, replicated=replicated)[0]


def _reduced_to(x: Any, op: str, root: int, wire: Wire) -> Any:
    """Reduce to `root`; elsewhere the result is 0, so that the sum over ranks of results is the result."""
    result = reduce_p.bind(x, op=op, root=root, wire=wire)[0]
    return result if wire.rank == root else jnp.zeros_like(result)


bcast_p = collective(
    "bcast",
    lambda x, **_: [x.update(weak_type=False)],
    lambda _avals, root, **_: {"root": root},
    in_place=True,
)
reduce_p = collective(
    "reduce",
    lambda x, **_: [x.update(weak_type=False)],
    lambda _avals, op, root, **_: {"op": OPS.index(op), "root": root},
)


def _bcast_transposed(cotangent: Any, _: Any, *, root: int, wire: Wire, replicated: bool) -> Any:
    if replicated:
        return local_adjoint(cotangent, bcast_p, {"root": root, "wire": wire, "replicated": True})
    return _reduced_to(cotangent, "sum", root, wire)


def _reduce_transposed(cotangent: Any, _: Any, *, op: str, root: int, wire: Wire) -> Any:
    return _broadcast(cotangent, root, wire)


def _bcast_batched(x: Any, place: int, **parameters: Any) -> Any:
    return bcast_p.bind(jnp.moveaxis(x, place, 0), **parameters)[0], 0


def _reduce_batched(x: Any, place: int, **parameters: Any) -> Any:
    return reduce_p.bind(jnp.moveaxis(x, place, 0), **parameters)[0], 0


linear(bcast_p, _bcast_transposed, _bcast_batched)
linear(reduce_p, _reduce_transposed, _reduce_batched)
_sum_jvp = ad.primitive_jvps[reduce_p]


def _reduce_jvp(primals: Any, tangents: Any, *, op: str, root: int, wire: Wire) -> Any:
    if op == "sum":
        return _sum_jvp(primals, tangents, op=op, root=root, wire=wire)
    (x,) = primals
    y = reduce_p.bind(x, op=op, root=root, wire=wire)
    tangent = pushed_forward(x, _broadcast(y[0], root, wire), whole(tangents[0]), op, wire)
    return y, reduce_p.bind(tangent, op="sum", root=root, wire=wire)


ad.primitive_jvps[reduce_p] = _reduce_jvp
