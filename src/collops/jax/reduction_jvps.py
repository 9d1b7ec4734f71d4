"""The derivatives of reductions other than sums, forwards: of ``allreduce``, ``reduce`` and ``reduce_scatter``.

Each pushes a rank's tangent through the reduction of the values; what remains is a sum over the ranks.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.interpreters import ad

from collops.jax.allreduce import allreduce_p, reduced
from collops.jax.communicators import NativeComm
from collops.jax.gathering import gathered, reduce_scatter_p, scattered
from collops.jax.primitive import whole
from collops.jax.rooted import broadcast, reduce_p

__all__: list[str] = []


def _pushed_forward(x: Any, y: Any, t: Any, op: str, comm: NativeComm) -> Any:
    """Return this rank's summand of the tangent of `y`, the result of `op` on `x`, for the tangent `t` of `x`."""
    if op == "sum":
        return t
    if op == "prod":
        factors = gathered(x[None], (1,) * comm.size, comm)
        return t * jnp.prod(factors.at[comm.rank].set(1), axis=0).astype(x.dtype)
    here = (x == y).astype(x.dtype)
    return t * here / reduced(here, "sum", comm)


def _allreduce_jvp(primals: Any, tangents: Any, *, op: str, comm: NativeComm, replicated: bool) -> Any:
    (x,) = primals
    y = reduced(x, op, comm, replicated)
    t = _pushed_forward(x, y, whole(tangents[0]), op, comm)
    return [y], [reduced(t, "sum", comm, replicated)]


def _reduce_jvp(primals: Any, tangents: Any, *, op: str, root: int, comm: NativeComm) -> Any:
    if op == "sum":
        return _reduce_sum_jvp(primals, tangents, op=op, root=root, comm=comm)
    (x,) = primals
    y = reduce_p.bind(x, op=op, root=root, comm=comm)
    t = _pushed_forward(x, broadcast(y[0], root, comm), whole(tangents[0]), op, comm)
    return y, reduce_p.bind(t, op="sum", root=root, comm=comm)


def _reduce_scatter_jvp(primals: Any, tangents: Any, *, op: str, counts: tuple[int, ...], comm: NativeComm) -> Any:
    if op == "sum":
        return _reduce_scatter_sum_jvp(primals, tangents, op=op, counts=counts, comm=comm)
    (x,) = primals
    y = scattered(x, op, counts, comm)
    t = _pushed_forward(x, gathered(y, counts, comm), whole(tangents[0]), op, comm)
    return [y], [scattered(t, "sum", counts, comm)]


_reduce_sum_jvp = ad.primitive_jvps[reduce_p]
_reduce_scatter_sum_jvp = ad.primitive_jvps[reduce_scatter_p]
ad.primitive_jvps[allreduce_p] = _allreduce_jvp
ad.primitive_jvps[reduce_p] = _reduce_jvp
ad.primitive_jvps[reduce_scatter_p] = _reduce_scatter_jvp
