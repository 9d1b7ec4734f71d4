"""Local operators that work on the host only, as functions that JAX can trace and differentiate.

A compiled program calls back into Python for them, with copies of the arrays; their derivative is the adjoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["applied_on_host"]

Function = Callable[[np.ndarray], np.ndarray]


def applied_on_host(forward: Function, adjoint: Function, shape: tuple[int, ...], dtype: np.dtype, x: Any) -> Any:
    """Return ``forward(x)`` for a variable of JAX that may be traced.

    Parameters
    ----------
    forward, adjoint : callable
        A linear map between vectors on the host, and its adjoint.
    shape : tuple of int
        Lengths of result and argument.
    dtype : numpy.dtype
        Of the map's coefficients.
    x : Variable
        The argument.

    Returns
    -------
    Variable
    """
    import jax

    from collops.jax_engine import Variable
    from collops.jax_engine.variable import canonical

    rows, columns = shape

    def call(function: Function, size: int, v: Any) -> Any:
        kind = canonical(np.result_type(dtype, v.dtype))
        result = jax.ShapeDtypeStruct((size,), kind)
        return jax.pure_callback(
            lambda given: np.asarray(function(np.asarray(given)), kind).reshape(size),
            result,
            v,
            vmap_method="sequential",
        )

    def transposed(_: Any, cotangent: Any) -> Any:
        # JAX transposes without conjugation.
        result = call(adjoint, columns, cotangent.conj()).conj()
        return (result.real if given.kind != "c" else result).astype(given)

    # Not asked for later: what a variable holds is then another trace's affair.
    value, given = x.value.reshape(columns), x.dtype
    return Variable(jax.custom_derivatives.linear_call(lambda _, v: call(forward, rows, v), transposed, (), value))
