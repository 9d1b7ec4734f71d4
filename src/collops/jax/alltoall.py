"""``alltoall`` and ``alltoallv``: rows from every rank to every rank. The adjoint sends the rows back."""

from __future__ import annotations

from collections.abc import Sequence

from collops.backend import LocalArray
from collops.errors import LayoutError
from collops.jax.arguments import array, blocks, checked_counts, leaf_by_leaf
from collops.jax.communicators import Comm, NativeComm, native_comm
from collops.jax.primitive import collective, like, linear


@leaf_by_leaf
def alltoall(x: LocalArray, *, comm: Comm = None) -> LocalArray:
    """Send block ``x[r]`` to rank *r*; return the stack of the received blocks. Collective.

    Parameters
    ----------
    x : array or pytree of arrays
        Blocks for the ranks, in shape ``(size, *shape)``, which is the same on every rank.
    comm
        As for :func:`allreduce`.

    Returns
    -------
    jax.Array
        Like `x`.

    Raises
    ------
    LayoutError
        If `x` does not have one block for each rank.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> collops.jax.alltoall(jnp.arange(float(comm.size))).shape == (comm.size,)
    True
    """
    comm = native_comm(comm)
    ones = (1,) * comm.size
    return _exchanged(blocks(x, comm, "alltoall"), ones, ones, comm)


def alltoallv(
    x: LocalArray, send_counts: Sequence[int], receive_counts: Sequence[int], *, comm: Comm = None
) -> LocalArray:
    """Send ``send_counts[r]`` rows of `x` to rank *r* and receive ``receive_counts[r]`` rows from it. Collective.

    Parameters
    ----------
    x : array
        Its first axis holds the rows for rank 0, rank 1, and so on.
    send_counts, receive_counts : sequence of int
        Rows to and from each rank.
    comm
        As for :func:`allreduce`.

    Returns
    -------
    jax.Array
        The blocks that arrive, in shape ``(sum(receive_counts), *x.shape[1:])``.

    Raises
    ------
    LayoutError
        If the counts do not fit `x` or the communicator.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> collops.jax.alltoallv(jnp.ones(2 * comm.size), [2] * comm.size, [2] * comm.size).shape == (2 * comm.size,)
    True
    """
    comm = native_comm(comm)
    x = array(x)
    leaving = checked_counts(send_counts, comm, "send_counts")
    arriving = checked_counts(receive_counts, comm, "receive_counts")
    if len({*leaving, *arriving}) > 1:
        comm.require_ranks()
    if x.ndim == 0 or x.shape[0] != sum(leaving):
        raise LayoutError(f"send_counts add up to {sum(leaving)} rows, but x has shape {x.shape}")
    return _exchanged(x, leaving, arriving, comm)


def _exchanged(x: LocalArray, leaving: tuple[int, ...], arriving: tuple[int, ...], comm: NativeComm) -> LocalArray:
    return alltoall_p.bind(x, leaving=leaving, arriving=arriving, comm=comm)[0]


alltoall_p = collective("alltoall", lambda x, arriving, **_: [like(x, (sum(arriving), *x.shape[1:]))])
linear(
    alltoall_p,
    lambda cotangent, leaving, arriving, comm: _exchanged(cotangent, arriving, leaving, comm),
    batch_axes=(1, 1),
)
