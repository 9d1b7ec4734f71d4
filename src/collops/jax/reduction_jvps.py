"""Forward derivatives (JVPs) of reductions other than sums: ``allreduce``, ``reduce`` and ``reduce_scatter``.

Each rank computes its contribution to the tangent from the reduced values; a sum over ranks combines them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad

from collops.backend import LocalArray
from collops.jax.allreduce import allreduce_p, reduced
from collops.jax.communicators import NativeComm
from collops.jax.gathering import gathered, reduce_scatter_p
from collops.jax.primitive import whole
from collops.jax.rooted import broadcast, reduce_p
from collops.jax.versions import Traced

__all__: list[str] = []


def _pushed_forward(x: LocalArray, y: Traced, t: Traced, op: str, comm: NativeComm) -> Traced:
    """Return this rank's summand of the tangent of `y`, the result of `op` on `x`, for the tangent `t` of `x`."""
    if op == "prod":
        factors = gathered(x[None], (1,) * comm.size, comm)
        return t * jnp.prod(factors.at[comm.rank].set(1), axis=0).astype(x.dtype)
    extreme = (x == y).astype(x.dtype)
    return t * extreme / reduced(extreme, "sum", comm)


def _differentiate(primitive: Primitive, on_all: Callable[..., Traced]) -> None:
    """Replace the derivative of a reduction; `on_all` returns the part of the result that this rank contributed to.

    Its arguments are the result on this rank and the parameters.
    """
    of_sum = ad.primitive_jvps[primitive]

    def jvp(
        primals: Sequence[Traced], tangents: Sequence[Traced], *, op: str, comm: NativeComm, **parameters: Any
    ) -> tuple[list[Traced], list[Traced]]:
        if op == "sum":
            return of_sum(primals, tangents, op=op, comm=comm, **parameters)
        (x,) = primals
        y = primitive.bind(x, op=op, comm=comm, **parameters)
        t = _pushed_forward(x, on_all(y[0], comm=comm, **parameters), whole(tangents[0]), op, comm)
        return y, primitive.bind(t, op="sum", comm=comm, **parameters)

    ad.primitive_jvps[primitive] = jvp


_differentiate(allreduce_p, lambda y, **_: y)
_differentiate(reduce_p, broadcast)
_differentiate(reduce_scatter_p, gathered)
