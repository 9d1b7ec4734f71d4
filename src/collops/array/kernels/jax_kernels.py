"""Vector kernels on JAX arrays: expressions that XLA fuses, of what the variables hold.

A coefficient that is exactly 0 excludes its array where it is a number. One that is an array of JAX does not: what is
differentiated by it would vanish with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np

from collops.array.coefficients import Finite, as_number
from collops.array.dtypes import accumulator, combined, real_of
from collops.errors import UnsupportedTypeError
from collops.jax_engine import Variable, value_of
from collops.jax_engine.variable import canonical

__all__ = ["axpby", "divide", "dot", "dots", "norm_part"]


def axpby(a: Any, x: Variable, b: Any, y: Variable, out: Variable | None) -> Variable:
    """Return ``a * x + b * y``, in `out` if it is given (it may be `x` or `y`). See :func:`collops.array.axpby`."""
    factors = [_coefficient(factor) for factor in (a, b)]
    kind = max((_kind_of(factor) for factor in factors), key=[float, complex].index)
    dtype = combined(x.dtype, y.dtype, kind)
    if out is not None and not np.can_cast(dtype, out.dtype, "same_kind"):
        raise UnsupportedTypeError(f"a result of dtype {dtype} does not fit into out of dtype {out.dtype}")
    wide = accumulator(dtype)
    terms = [
        _scaled(factor, array.value, wide)
        for factor, array in zip(factors, (x, y), strict=True)
        if not (isinstance(factor, int | float | complex) and factor == 0)
    ]
    value = reduce(jnp.add, terms) if terms else jnp.zeros(x.shape, dtype)
    if out is None:
        return Variable(value.astype(dtype))
    out[...] = value
    return out


def dot(x: Variable, y: Variable, conjugate: bool) -> Any:
    """Return the inner product of two local arrays; real for an array with itself and `conjugate`."""
    dtype = accumulator(np.result_type(x.dtype, y.dtype))
    a, b = (array.value.astype(dtype).reshape(-1) for array in (x, y))
    if not conjugate or dtype.kind != "c":
        return jnp.dot(a, b, precision="highest")
    if x is y:
        return jnp.dot(a.real, a.real, precision="highest") + jnp.dot(a.imag, a.imag, precision="highest")
    return jnp.vdot(a, b, precision="highest")


def dots(
    slots: Sequence[Sequence[tuple[Variable, Variable]]], dtype: np.dtype, conjugate: bool, out: Variable | None
) -> Variable:
    """Return for each slot the sum of the inner products of its pairs, as an array of `dtype`."""
    kind = canonical(dtype)
    totals = [sum((dot(x, y, conjugate) for x, y in pairs), jnp.zeros((), kind)).astype(kind) for pairs in slots]
    return Variable(jnp.stack(totals))


def divide(a: Any, b: Any, out: Any) -> Any:
    """Return ``a / b``, 0 where `b` is 0, and NaN where it is infinite."""
    above, below = value_of(a), value_of(b)
    # A division by 0 that is thrown away would still make NaN of derivatives.
    quotient = jnp.where(below == 0, 0, above / jnp.where(below == 0, 1, below))
    quotient = jnp.where(jnp.isinf(below), jnp.nan, quotient)
    if out is None:
        return quotient
    out[...] = quotient
    return out


def norm_part(x: Variable, order: float) -> Any:
    """Return what this rank adds to the norm of an array: a count, a sum of powers, or an extreme of absolute values.

    The dtype is the real one of the norm: float64 for integers, float32 for half types.
    """
    dtype = canonical(np.float64 if x.dtype.kind in "biu" else accumulator(real_of(x.dtype)))
    size = jnp.abs(x.value.astype(dtype) if x.dtype.kind != "c" else x.value)
    if order == np.inf:
        return jnp.max(size, initial=0)
    if order == -np.inf:
        return jnp.min(size, initial=jnp.inf)
    if order == 0:
        return jnp.count_nonzero(size).astype(dtype)
    return jnp.sum(size if order == 1 else size**order)


def _coefficient(a: Any) -> Any:
    """Return a coefficient as a number or a 0-d array; a pair stands for its product, a triple for that divided."""
    if isinstance(a, tuple):
        factor, scalar, *divisors = a
        number = factor * (divide(scalar, divisors[0], None) if divisors else value_of(scalar))
        return jnp.where(jnp.isfinite(number), number, 0) if isinstance(a, Finite) else number
    a = value_of(a)
    return a if isinstance(a, jnp.ndarray) and a.ndim == 0 else as_number(a)


def _kind_of(factor: Any) -> type:
    return complex if isinstance(factor, complex) or getattr(factor, "dtype", np.dtype(float)).kind == "c" else float


def _scaled(factor: Any, array: Any, dtype: np.dtype) -> Any:
    array = array.astype(dtype)
    if isinstance(factor, int | float | complex):
        return array if factor == 1 else factor * array
    return factor.astype(dtype) * array
