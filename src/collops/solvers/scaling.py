"""Powers of two by which data far from 1 are divided, so that squares of their elements neither underflow nor overflow.

Krylov methods are homogeneous: data that are divided by a number give a solution that is divided by it. A power of two
is exact, so the iterates have the same bits as without it, unless these would have been lost. Data of ordinary size are
left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from collops.array import axpby
from collops.array.dtypes import real_of
from collops.array.kernels import kernels_for
from collops.solvers.problem import real_dtype

_NONE, _INFINITE = -(1 << 20), 1 << 20


def exponent_of(array: Any) -> int:
    """Return the binary exponent of this rank's largest element.

    It is far out of range for zeros, and for numbers that are not finite. Synchronises with the device.
    """
    if array is None or array.dtype.kind not in "fc":
        return _NONE
    kernels = kernels_for(array.engine)
    # A NaN must not get lost in a maximum.
    sizes = [float(kernels.norm_part(leaf.local_array, np.inf)) for leaf in array.leaves]
    if not all(map(math.isfinite, sizes)):
        return _INFINITE
    size = max(sizes, default=0.0)
    return math.frexp(size)[1] if size else _NONE


def unit_of(data: Any, exponents: Sequence[int]) -> float:
    """Return an even power of two near the largest element of the data; 1 where their squares are far from the limits.

    Where the data are zero the starting point counts. `exponents` belong to both, over all ranks.
    """
    exponent = next((exponent for exponent in exponents if exponent != _NONE), 0)
    if data.dtype.kind not in "fc" or exponent == _INFINITE:
        return 1.0
    limit, largest = _exponents(data.dtype)
    return 1.0 if abs(exponent) <= limit else 2.0 ** (2 * (max(-largest, min(largest, exponent)) // 2))


def traced_unit_of(data: Any, x0: Any = None) -> Any:
    """Return the unit of arrays of JAX that are being traced, which derivatives take for a constant. Collective."""
    import jax.numpy as jnp
    from jax import lax

    if data.dtype.kind not in "fc" or data.size == 0:
        return jnp.ones(())
    limit, largest = _exponents(data.dtype)
    size = lax.stop_gradient(data).norm(np.inf)
    if x0 is not None and x0.size:
        size = jnp.where(size == 0, lax.stop_gradient(x0).norm(np.inf).astype(size.dtype), size)
    exponent = jnp.frexp(size)[1]
    ordinary = (jnp.abs(exponent) <= limit) | (size == 0) | ~jnp.isfinite(size)
    exponent = jnp.where(ordinary, 0, 2 * (jnp.clip(exponent, -largest, largest) // 2))
    return jnp.ldexp(jnp.ones((), size.dtype), exponent)


def divided(array: Any, unit: Any) -> Any:
    """Return an array divided by a power of two; the array itself if that is 1, or there is none."""
    return array if array is None or _is_one(unit) else axpby(1 / unit, array, 0.0, array)


def multiplied(array: Any, unit: Any) -> Any:
    """Return an array times a power of two; the array itself if that is 1."""
    return array if _is_one(unit) else axpby(unit, array, 0.0, array)


def in_units(method: Any, unit: Any) -> Any:
    """Return a method whose options are those for data that are divided by `unit`."""
    if _is_one(unit):
        return method
    changes = {}
    for name, degree in method.degrees.items():
        value = getattr(method, name, None) if name in method.__dataclass_fields__ else None
        if value is not None and not (isinstance(value, float) and value == 0):
            changes[name] = _times(value, 1 / unit, degree)
    return replace(method, **changes)


def details_in_units(method: Any, details: Mapping[str, Any], unit: Any) -> dict[str, Any]:
    """Return the details of a result for the data as they were."""
    if _is_one(unit):
        return dict(details)
    return {name: _times(value, unit, method.degrees.get(name, 0)) for name, value in details.items()}


def _times(value: Any, unit: Any, degree: float) -> Any:
    for _ in range(int(degree)):
        value = value * unit
    return value if degree == int(degree) else value * unit**0.5


def _is_one(unit: Any) -> bool:
    return isinstance(unit, float) and unit == 1.0


def _exponents(dtype: np.dtype) -> tuple[int, int]:
    """Return the largest exponent of ordinary data, and the largest of a unit whose inverse is a normal number, too.

    Residuals fall by the rounding unit, and their squares have to stay normal.
    """
    vectors, squares = np.finfo(real_of(dtype)), np.finfo(real_dtype(dtype))
    limit = min(squares.maxexp // 2 - squares.nmant - 4, vectors.maxexp - vectors.nmant - 2)
    return limit, vectors.maxexp - vectors.maxexp // 8
