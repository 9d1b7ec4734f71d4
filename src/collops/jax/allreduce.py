"""``allreduce``: a reduction with the result on every rank."""

from __future__ import annotations

from collops.backend import LocalArray
from collops.comm import Communicator
from collops.comm.agreement import MpiHandle
from collops.jax.arguments import array, checked_convention, leaf_by_leaf, reduction
from collops.jax.communicators import Comm, NativeComm, native_comm
from collops.jax.folding import folded, folded_operation
from collops.jax.primitive import collective, linear, local_adjoint


@leaf_by_leaf
def allreduce(
    x: LocalArray, op: str | MpiHandle = "sum", *, comm: Comm = None, cotangents: str = "ranks"
) -> LocalArray:
    """Reduce `x` over the ranks; every rank gets the result. Collective.

    Parameters
    ----------
    x : array or pytree of arrays
        The same shape and dtype on every rank.
    op : str or mpi4py.MPI.Op
        ``sum, prod, min, max, avg, land, lor, lxor, band, bor, bxor, maxloc, minloc``, or ``MPI.SUM`` and its like.
        The last two reduce pairs of a value and its index along a last axis of 2.
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.
    cotangents : str
        ``"ranks"``: every rank's result is a separate value, so that cotangents are summed over the ranks, as in a
        dot test on rank-stacked vectors. ``"replicated"``: the result and its cotangent are replicated values. The
        cotangent of a sum is then the cotangent of every summand, without a message.

    Returns
    -------
    jax.Array
        The result, with the shape and dtype of `x`.

    Raises
    ------
    UnsupportedTypeError
        If `op` is not defined for the dtype.

    Notes
    -----
    The derivative of ``min`` and ``max`` is divided equally among the ranks that have the extreme value; the derivative
    of ``prod`` gathers the factors. Bitwise operations, ``maxloc``, ``minloc`` and products of complex numbers send the
    arrays of all ranks to every rank.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> float(collops.jax.allreduce(jnp.array(1.0))) == collops.world().size
    True
    """
    comm = native_comm(comm)
    x = array(x)
    replicated = checked_convention(cotangents)
    if (name := folded_operation(op, x)) is not None:
        return folded(x, name, comm)
    x, op, converted = reduction(x, op, comm)
    return converted(reduced(x, op, comm, replicated))


def reduced(x: LocalArray, op: str, comm: NativeComm, replicated: bool = False) -> LocalArray:
    """Bind the primitive: `op` is a name of a native operation."""
    return allreduce_p.bind(x, op=op, comm=comm, replicated=replicated)[0]


def replicated_operand(x: LocalArray, comm: Communicator) -> LocalArray:
    """Return `x`, a replicated floating or complex array, for use with local data. No message.

    In a derivative, the cotangents of all ranks are summed: this is the adjoint of a sum with a replicated result.
    """
    return local_adjoint(x, allreduce_p, {"op": "sum", "comm": native_comm(comm), "replicated": True})


allreduce_p = collective("allreduce", in_place=True)
linear(allreduce_p, reduced, batch_axes=(0, 0))
