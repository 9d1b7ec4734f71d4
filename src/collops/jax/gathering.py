"""``allgather``, ``allgatherv`` and ``reduce_scatter``: gathering and reducing are adjoints of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.core import ShapedArray

from collops.backend import LocalArray
from collops.comm.agreement import MpiHandle
from collops.errors import LayoutError
from collops.jax.arguments import array, blocks, checked_convention, checked_counts, leaf_by_leaf, reduction
from collops.jax.communicators import Comm, NativeComm, native_comm
from collops.jax.primitive import collective, like, linear


@leaf_by_leaf
def allgather(x: LocalArray, *, comm: Comm = None, cotangents: str = "ranks") -> LocalArray:
    """Stack every rank's `x`: the result has shape ``(size, *x.shape)`` on every rank. Collective.

    Parameters
    ----------
    x : array or pytree of arrays
        The same shape and dtype on every rank.
    comm, cotangents
        As for :func:`allreduce`.

    Returns
    -------
    jax.Array

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> collops.jax.allgather(jnp.arange(2.0)).shape[0] == collops.world().size
    True
    """
    comm = native_comm(comm)
    return gathered(array(x)[None], (1,) * comm.size, comm, checked_convention(cotangents))


def allgatherv(x: LocalArray, counts: Sequence[int], *, comm: Comm = None, cotangents: str = "ranks") -> LocalArray:
    """Concatenate every rank's `x` along its first axis, on every rank. Collective.

    Parameters
    ----------
    x : array
        At least 1-d; shapes may differ along the first axis.
    counts : sequence of int
        Number of rows of each rank.
    comm, cotangents
        As for :func:`allreduce`.

    Returns
    -------
    jax.Array
        The blocks of all ranks, in shape ``(sum(counts), *x.shape[1:])``.

    Raises
    ------
    LayoutError
        If this rank's number of rows differs from its entry in `counts`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> collops.jax.allgatherv(jnp.ones(2), [2] * comm.size).shape == (2 * comm.size,)
    True
    """
    comm = native_comm(comm)
    x = array(x)
    rows = checked_counts(counts, comm, "counts")
    if x.ndim == 0 or x.shape[0] != rows[comm.rank]:
        raise LayoutError(f"x must have {rows[comm.rank]} rows on this rank, as in counts, not shape {x.shape}")
    return gathered(x, rows, comm, checked_convention(cotangents))


@leaf_by_leaf
def reduce_scatter(x: LocalArray, op: str | MpiHandle = "sum", *, comm: Comm = None) -> LocalArray:
    """Reduce the blocks ``x[r]`` over the ranks; rank *r* gets block *r*. Collective.

    Parameters
    ----------
    x : array or pytree of arrays
        Blocks for the ranks, in shape ``(size, *shape)``, which is the same on every rank.
    op, comm
        As for :func:`allreduce`.

    Returns
    -------
    jax.Array
        This rank's block of the result, in shape `shape`.

    Raises
    ------
    LayoutError
        If `x` does not have one block for each rank.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> float(collops.jax.reduce_scatter(jnp.ones((comm.size, 2)))[0]) == comm.size
    True
    """
    comm = native_comm(comm)
    x, op, converted = reduction(blocks(x, comm, "reduce_scatter"), op, comm)
    return converted(scattered(x, op, (1,) * comm.size, comm)[0])


def gathered(x: LocalArray, counts: tuple[int, ...], comm: NativeComm, replicated: bool = False) -> LocalArray:
    """Bind the primitive of :func:`allgatherv`."""
    return allgather_p.bind(x, counts=counts, comm=comm, replicated=replicated)[0]


def scattered(x: LocalArray, op: str, counts: tuple[int, ...], comm: NativeComm) -> LocalArray:
    """Bind the primitive of :func:`reduce_scatter`, with any numbers of rows."""
    return reduce_scatter_p.bind(x, op=op, counts=counts, comm=comm)[0]


def _own_rows(x: LocalArray, counts: tuple[int, ...], comm: NativeComm, **_: Any) -> list[ShapedArray]:
    # The ranks of a clique run one program, which has no rank; its counts are equal.
    rows = counts[0] if len(set(counts)) == 1 else counts[comm.rank]
    return [like(x, (rows, *x.shape[1:]))]


allgather_p = collective("allgather", lambda x, counts, **_: [like(x, (sum(counts), *x.shape[1:]))])
reduce_scatter_p = collective("reduce_scatter", _own_rows)
linear(allgather_p, lambda cotangent, counts, comm: scattered(cotangent, "sum", counts, comm), batch_axes=(1, 1))
linear(reduce_scatter_p, lambda cotangent, op, counts, comm: gathered(cotangent, counts, comm), batch_axes=(1, 1))
