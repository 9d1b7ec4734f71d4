"""``bcast`` from a root and ``reduce`` to a root: summing to a root is the adjoint of broadcasting from it."""

from __future__ import annotations

import jax.numpy as jnp

from collops.backend import LocalArray
from collops.comm.agreement import MpiHandle
from collops.jax.arguments import array, checked_convention, checked_rank, leaf_by_leaf, reduction
from collops.jax.communicators import Comm, NativeComm, native_comm
from collops.jax.folding import folded, folded_operation
from collops.jax.primitive import collective, linear


@leaf_by_leaf
def bcast(x: LocalArray, root: int = 0, *, comm: Comm = None, cotangents: str = "ranks") -> LocalArray:
    """Broadcast `x` from `root`. Collective.

    Parameters
    ----------
    x : array or pytree of arrays
        The values on `root`; elsewhere an array of the same shape and dtype, with arbitrary values.
    root : int
        The rank whose array is sent.
    comm, cotangents
        As for :func:`allreduce`.

    Returns
    -------
    jax.Array
        Like `x`.

    Raises
    ------
    InputError
        If `root` is invalid.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> float(collops.jax.bcast(jnp.array(3.0)))
    3.0
    """
    comm = native_comm(comm)
    root = checked_rank(root, comm, "root")
    return broadcast(array(x), root, comm, checked_convention(cotangents))


@leaf_by_leaf
def reduce(x: LocalArray, op: str | MpiHandle = "sum", root: int = 0, *, comm: Comm = None) -> LocalArray:
    """Reduce `x` over the ranks to `root`; on other ranks return `x`. Collective.

    Parameters and exceptions are as for :func:`allreduce`; InputError is raised if `root` is invalid.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> total = collops.jax.reduce(jnp.array(1.0))
    >>> collops.world().rank > 0 or float(total) == collops.world().size
    True
    """
    comm = native_comm(comm)
    root = checked_rank(root, comm, "root")
    x = array(x)
    if (name := folded_operation(op, x)) is not None:
        result = folded(x, name, comm)
    else:
        operand, op, converted = reduction(x, op, comm)
        result = converted(_reduced_to(operand, op, root, comm))
    return result if comm.rank == root else x


def broadcast(x: LocalArray, root: int, comm: NativeComm, replicated: bool = False) -> LocalArray:
    """Bind the primitive of :func:`bcast`."""
    return bcast_p.bind(x, root=root, comm=comm, replicated=replicated)[0]


def _reduced_to(x: LocalArray, op: str, root: int, comm: NativeComm) -> LocalArray:
    """Reduce to `root` and return 0 elsewhere, so that the sum of the results over all ranks is the result."""
    result = reduce_p.bind(x, op=op, root=root, comm=comm)[0]
    return result if comm.rank == root else jnp.zeros_like(result)


bcast_p = collective("bcast", in_place=True)
reduce_p = collective("reduce")
linear(bcast_p, lambda cotangent, root, comm: _reduced_to(cotangent, "sum", root, comm), batch_axes=(0, 0))
linear(reduce_p, lambda cotangent, op, root, comm: broadcast(cotangent, root, comm), batch_axes=(0, 0))
