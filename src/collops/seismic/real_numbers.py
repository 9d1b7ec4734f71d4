"""Users' numbers as arrays of real numbers; NumPy would drop imaginary parts, and only warn."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError

__all__ = ["finite_array"]


def real_array(name: str, values: ArrayLike) -> np.ndarray:
    """Return values as a new float64 array; raise InputError, which names them, if they are not real."""
    try:
        array = np.asarray(values)
        real = None if array.dtype.kind == "c" else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers in host memory: {error}") from error
    if real is None:
        raise InputError(f"{name} must be real, not of {array.dtype}")
    return real


def finite_array(name: str, values: ArrayLike) -> np.ndarray:
    """Return values as a new float64 array; raise InputError, which names them, if they are not real and finite."""
    array = real_array(name, values)
    if not np.isfinite(array).all():
        raise InputError(f"{name} contains NaN or infinite values")
    return array
