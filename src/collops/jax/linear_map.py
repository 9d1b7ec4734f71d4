"""Linear maps with a given adjoint.

A replicated array is one value, also in derivatives. JAX sees only the program of one rank, and would add up the
cotangents of some copies and lose the cotangents of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from collops.jax.order import ORDER
from collops.jax.primitive import like, whole


def linear_map(
    forward: Callable[[Any], Any], adjoint: Callable[[Any], Any], x: Any, shapes: tuple[tuple[int, ...], ...]
) -> Any:
    """Return ``forward(x)``, a linear map with the transpose `adjoint`. Collective if the functions are.

    Both are functions of one array that JAX can trace; they may call collectives. `shapes` are those of `x` and of the
    result, which has the dtype of `x`.
    """
    return linear_map_p.bind(x, forward=forward, adjoint=adjoint, shapes=shapes)


def _run(x: Any, *, forward: Callable[[Any], Any], **_: Any) -> Any:
    return forward(x)


def _transpose(cotangent: Any, _: Any, *, forward: Any, adjoint: Any, shapes: Any) -> Any:
    return [linear_map(adjoint, forward, whole(cotangent), shapes[::-1])]


def _batch(values: Any, places: Any, *, forward: Any, adjoint: Any, shapes: Any) -> Any:
    x = jnp.moveaxis(values[0], places[0], 0)
    several = tuple((x.shape[0], *shape) for shape in shapes)
    return linear_map(jax.vmap(forward), jax.vmap(adjoint), x, several), 0


linear_map_p = Primitive("collops_linear_map")
linear_map_p.def_impl(_run)
linear_map_p.def_effectful_abstract_eval(lambda x, *, shapes, **_: (like(x, shapes[1]), {ORDER}))
mlir.register_lowering(linear_map_p, mlir.lower_fun(_run, multiple_results=False))
ad.deflinear2(linear_map_p, _transpose)
batching.primitive_batchers[linear_map_p] = _batch
