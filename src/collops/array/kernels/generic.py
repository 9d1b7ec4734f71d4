"""Vector kernels in the array API, for any engine: expressions that a compiler fuses and that have derivatives.

An array whose coefficient is the number 0 does not contribute, not even NaN. A coefficient that is a 0-d array has a
derivative, so its array always contributes.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from collops.array.coefficients import Coefficient, Finite, Scalar, as_number
from collops.array.dtypes import accumulator, combined, norm_dtype
from collops.backend import LocalArray, engine_of
from collops.errors import UnsupportedTypeError


def axpby(a: Coefficient, x: LocalArray, b: Coefficient, y: LocalArray, out: LocalArray | None) -> LocalArray:
    """Return ``a * x + b * y``, in the dtype of `out` if it is given. See :func:`collops.array.axpby`."""
    factors = [_coefficient(factor) for factor in (a, b)]
    complex_one = any(isinstance(f, complex) or (hasattr(f, "dtype") and f.dtype.kind == "c") for f in factors)
    dtype = combined(x.dtype, y.dtype, complex if complex_one else float)
    if out is not None and not np.can_cast(dtype, out.dtype, "same_kind"):
        raise UnsupportedTypeError(f"a result of dtype {dtype} does not fit into out of dtype {out.dtype}")
    compute_dtype = accumulator(dtype)
    terms: list[LocalArray] = [
        _scaled(factor, array.astype(compute_dtype), compute_dtype)
        for factor, array in zip(factors, (x, y), strict=True)
        if hasattr(factor, "dtype") or factor != 0
    ]
    total: LocalArray = sum(terms[1:], terms[0]) if terms else engine_of(x).xp.zeros(x.shape, dtype)
    return total.astype(dtype if out is None else out.dtype)


def dot(x: LocalArray, y: LocalArray, conjugate: bool) -> LocalArray:
    """Return the inner product of two local arrays; real for an array with itself and `conjugate`."""
    engine = engine_of(x)
    dtype = accumulator(np.result_type(x.dtype, y.dtype))
    a, b = x.astype(dtype), y.astype(dtype)
    if engine.traced:
        # Made a vector, an array that is sharded along another axis would be gathered. By default, JAX multiplies in
        # lower precision on accelerators.
        product = partial(engine.xp.tensordot, axes=a.ndim, precision="highest")
    else:
        a, b, product = a.reshape(-1), b.reshape(-1), engine.xp.dot
    if not conjugate or dtype.kind != "c":
        return product(a, b)
    if x is y:
        return product(a.real, a.real) + product(a.imag, a.imag)
    return product(a.conj(), b)


def divide(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a / b``; 0 if `b` is 0, NaN if it is infinite."""
    xp = engine_of(b if hasattr(b, "dtype") else a).xp
    zero = b == 0
    # A division by 0 would make derivatives NaN, even if its result is not used.
    quotient = xp.where(zero, 0, a / xp.where(zero, 1, b))
    return xp.where(xp.isinf(b), xp.nan, quotient)


def square_of_sum(ww: Scalar, wq: Scalar, qq: Scalar, beta: tuple[float, Scalar, Scalar]) -> Scalar:
    """Return the square of ``w + beta q`` from inner products; see :func:`collops.array.square_of_sum`."""
    ratio = _coefficient(beta)
    return ww + ratio * (2 * wq + ratio * qq)


def norm_part(x: LocalArray, order: float, axes: tuple[int, ...] | None = None) -> LocalArray:
    """Return this rank's part of norms along `axes`: counts, sums of powers, or extremes of absolute values."""
    engine = engine_of(x)
    xp, dtype = engine.xp, engine.dtype(norm_dtype(x.dtype))
    size = xp.abs(x.astype(dtype) if x.dtype.kind != "c" else x)
    if order == 0:
        return xp.sum(size != 0, axis=axes, dtype=dtype)
    if not np.isinf(order):
        return xp.sum(size if order == 1 else size**order, axis=axes)
    if 0 in size.shape:  # CuPy's extremes have no initial value
        remaining_extents = (
            [] if axes is None else [extent for axis, extent in enumerate(size.shape) if axis not in axes]
        )
        return xp.full(remaining_extents, 0 if order > 0 else np.inf, dtype)
    return (xp.max if order > 0 else xp.min)(size, axis=axes)


def _coefficient(a: Coefficient) -> Scalar:
    """Return a coefficient as a number or a 0-d array, see :func:`collops.array.axpby`."""
    if isinstance(a, tuple):
        factor, scalar, *divisors = a
        number = factor * (divide(scalar, divisors[0]) if divisors else scalar)
        if not isinstance(a, Finite):
            return number
        xp = engine_of(number).xp
        return xp.where(xp.isfinite(number), number, 0)
    return a if hasattr(a, "dtype") and a.ndim == 0 and engine_of(a).traced else as_number(a)


def _scaled(factor: Scalar, array: LocalArray, dtype: np.dtype) -> LocalArray:
    if hasattr(factor, "dtype"):
        return factor.astype(dtype) * array
    return array if factor == 1 else factor * array
