"""Rows of every rank on every rank, and sums of rows on the rank they belong to: each is the adjoint of the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad

from collops.comm.call import in_elements
from collops.errors import LayoutError
from collops.jax.arguments import array, checked_convention, checked_counts, operation, reducible
from collops.jax.native import OPS
from collops.jax.primitive import collective, like, linear, whole
from collops.jax.replicated import local_adjoint
from collops.jax.wires import Wire, wire_of

__all__ = ["allgather", "allgatherv", "gathered", "reduce_scatter", "reduce_scatter_p", "scattered"]


def allgather(x: Any, *, comm: Any = None, cotangents: str = "ranks") -> Any:
    """Stack every rank's `x`: the result has shape ``(size, *x.shape)`` on every rank. Collective.

    Parameters
    ----------
    x : array
        The same shape and dtype on every rank.
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.
    cotangents : str
        ``"ranks"`` or ``"replicated"``; see :func:`allreduce`.

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
    wire = wire_of(comm)
    return gathered(array(x)[None], (1,) * wire.size, wire, checked_convention(cotangents))


def allgatherv(x: Any, counts: Sequence[int], *, comm: Any = None, cotangents: str = "ranks") -> Any:
    """Concatenate every rank's `x` along its first axis, on every rank. Collective.

    Parameters
    ----------
    x : array
        At least 1-d; shapes may differ along the first axis.
    counts : sequence of int
        Rows that each rank gives.
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.
    cotangents : str
        ``"ranks"`` or ``"replicated"``; see :func:`allreduce`.

    Returns
    -------
    jax.Array
        Of shape ``(sum(counts), *x.shape[1:])``.

    Raises
    ------
    LayoutError
        If this rank's array has another number of rows than `counts` says.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> collops.jax.allgatherv(jnp.ones(2), [2] * comm.size).shape == (2 * comm.size,)
    True
    """
    wire = wire_of(comm)
    x = array(x)
    rows = checked_counts(counts, wire, "counts")
    if x.ndim == 0 or x.shape[0] != rows[wire.rank]:
        raise LayoutError(f"counts give this rank {rows[wire.rank]} rows, but x has shape {x.shape}")
    return gathered(x, rows, wire, checked_convention(cotangents))


def reduce_scatter(x: Any, op: Any = "sum", *, comm: Any = None) -> Any:
    """Reduce the blocks ``x[r]`` over the ranks; rank *r* gets block *r*. Collective.

    Parameters
    ----------
    x : array
        Of shape ``(size, *shape)``, the same on every rank.
    op : str or mpi4py.MPI.Op
        See :func:`allreduce`.
    comm : Communicator or mpi4py.MPI.Comm, optional
        By default the world.

    Returns
    -------
    jax.Array
        Of shape `shape`.

    Raises
    ------
    LayoutError
        If `x` has not one block for each rank.
    UnsupportedTypeError
        If `op` has no meaning for the dtype.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import collops.jax
    >>> comm = collops.world()
    >>> float(collops.jax.reduce_scatter(jnp.ones((comm.size, 2)))[0]) == comm.size
    True
    """
    wire = wire_of(comm)
    x = array(x)
    if x.ndim == 0 or x.shape[0] != wire.size:
        raise LayoutError(f"reduce_scatter needs a first axis of {wire.size} blocks, not shape {x.shape}")
    op = operation(op, x.dtype)
    counts = (1,) * wire.size
    if op == "avg":
        return scattered(x, "sum", counts, wire)[0] / wire.size
    x, op, narrowed = reducible(x, op, wire)
    return narrowed(scattered(x, op, counts, wire)[0])


def gathered(x: Any, counts: tuple[int, ...], wire: Wire, replicated: bool = False) -> Any:
    """Bind the primitive of :func:`allgatherv`."""
    return allgather_p.bind(x, counts=counts, wire=wire, replicated=replicated)[0]


def scattered(x: Any, op: str, counts: tuple[int, ...], wire: Wire) -> Any:
    """Bind the primitive of :func:`reduce_scatter`, for any numbers of rows."""
    return reduce_scatter_p.bind(x, op=op, counts=counts, wire=wire)[0]


def own_rows(counts: tuple[int, ...], wire: Wire) -> int:
    """Return how many of the rows are this rank's; where all have equally many, no rank is asked for."""
    return counts[0] if len(set(counts)) == 1 else counts[wire.rank]


allgather_p = collective(
    "allgather",
    lambda x, counts, **_: [like(x, (sum(counts), *x.shape[1:]))],
    lambda avals, counts, **_: {"counts": tuple(in_elements(counts, avals[0].shape))},
)
reduce_scatter_p = collective(
    "reduce_scatter",
    lambda x, counts, wire, **_: [like(x, (own_rows(counts, wire), *x.shape[1:]))],
    lambda avals, counts, op, **_: {"counts": tuple(in_elements(counts, avals[0].shape)), "op": OPS.index(op)},
)


def _allgather_transposed(cotangent: Any, _: Any, *, counts: tuple[int, ...], wire: Wire, replicated: bool) -> Any:
    if replicated:
        return local_adjoint(cotangent, allgather_p, {"counts": counts, "wire": wire, "replicated": True})
    return scattered(cotangent, "sum", counts, wire)


def _allgather_batched(x: Any, place: int, **parameters: Any) -> Any:
    return allgather_p.bind(jnp.moveaxis(x, place, 1), **parameters)[0], 1


linear(allgather_p, _allgather_transposed, _allgather_batched)


def _reduce_scatter_transposed(cotangent: Any, _: Any, *, op: str, counts: tuple[int, ...], wire: Wire) -> Any:
    return gathered(cotangent, counts, wire)


def _reduce_scatter_batched(x: Any, place: int, **parameters: Any) -> Any:
    return reduce_scatter_p.bind(jnp.moveaxis(x, place, 1), **parameters)[0], 1


linear(reduce_scatter_p, _reduce_scatter_transposed, _reduce_scatter_batched)
_sum_jvp = ad.primitive_jvps[reduce_scatter_p]


def _reduce_scatter_jvp(primals: Any, tangents: Any, *, op: str, counts: tuple[int, ...], wire: Wire) -> Any:
    if op == "sum":
        return _sum_jvp(primals, tangents, op=op, counts=counts, wire=wire)
    from collops.jax.allreduce import pushed_forward

    y = scattered(primals[0], op, counts, wire)
    tangent = pushed_forward(primals[0], gathered(y, counts, wire), whole(tangents[0]), op, wire)
    return [y], [scattered(tangent, "sum", counts, wire)]


ad.primitive_jvps[reduce_scatter_p] = _reduce_scatter_jvp
