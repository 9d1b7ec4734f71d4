"""The adjoints of collectives with a replicated result, which need no message.

The cotangent of a replicated result is replicated too. Each rank takes the part that belongs to its operand: all of it
(``allreduce``), its own rows (``allgather``), or all of it on the root and zero elsewhere (``bcast``).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from collops.jax.primitive import like, whole


def local_adjoint(cotangent: Any, forward: Primitive, parameters: dict[str, Any]) -> Any:
    """Return this rank's part of a replicated cotangent; its transpose is `forward`."""
    return local_adjoint_p.bind(cotangent, forward=forward, parameters=tuple(sorted(parameters.items())))


def _own_part(cotangent: Any, *, forward: Primitive, parameters: tuple[tuple[str, Any], ...]) -> Any:
    known = dict(parameters)
    if "counts" in known:
        counts, rank = known["counts"], known["comm"].rank
        start = sum(counts[:rank])
        return lax.slice_in_dim(cotangent, start, start + counts[rank], axis=0)
    if "root" in known and known["comm"].rank != known["root"]:
        return jnp.zeros_like(cotangent)
    return cotangent


def _own_shape(aval: Any, *, forward: Primitive, parameters: tuple[tuple[str, Any], ...]) -> Any:
    known = dict(parameters)
    rows = (known["counts"][known["comm"].rank],) if "counts" in known else aval.shape[:1]
    return like(aval, (*rows, *aval.shape[1:]))


def _batch(values: Any, places: Any, *, forward: Primitive, parameters: tuple[tuple[str, Any], ...]) -> Any:
    known = dict(parameters)
    place = 1 if "counts" in known else 0  # rows stay in front, at one position on all ranks, for the transpose
    return local_adjoint(jnp.moveaxis(values[0], places[0], place), forward, known), place


def _transpose(cotangent: Any, _: Any, *, forward: Primitive, parameters: tuple[tuple[str, Any], ...]) -> Any:
    return forward.bind(whole(cotangent), **dict(parameters))


local_adjoint_p = Primitive("collops_local_adjoint")
local_adjoint_p.def_impl(_own_part)
local_adjoint_p.def_abstract_eval(_own_shape)
mlir.register_lowering(local_adjoint_p, mlir.lower_fun(_own_part, multiple_results=False))
ad.deflinear2(local_adjoint_p, _transpose)
batching.primitive_batchers[local_adjoint_p] = _batch
