"""Functions of the array API standard that compute each element by itself: NumPy's ufuncs, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import collops
from collops import DistributedArray
from collops.extend.engines import engine_of

_UNARY = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_invert", "conj", "cos", "cosh", "exp"),
    *("expm1", "isfinite", "isinf", "isnan", "log", "log1p", "log2", "log10", "logical_not", "negative", "positive"),
    *("reciprocal", "sign", "signbit", "sin", "sinh", "square", "sqrt", "tan", "tanh"),
)
_BINARY = (
    *("add", "atan2", "bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor"),
    *("copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal"),
    *("logaddexp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "nextafter"),
    *("not_equal", "pow", "remainder", "subtract"),
)
_ROUNDING = {"ceil": np.ceil, "floor": np.floor, "round": np.rint, "trunc": np.trunc}


def _applied(ufunc: np.ufunc, *operands: Any) -> Any:
    """Apply a ufunc to distributed arrays and numbers, or to arrays without axes and numbers."""
    if any(isinstance(x, DistributedArray) for x in operands):
        return ufunc(*operands)
    array = next(x for x in (*operands, np.empty(())) if hasattr(x, "dtype"))
    return engine_of(array).ufunc(ufunc, False)(*operands)


def _unary(name: str) -> Callable[[Any], Any]:
    ufunc = getattr(np, name)

    def function(x: Any, /) -> Any:
        return _applied(ufunc, x)

    return _named(function, name)


def _binary(name: str) -> Callable[[Any, Any], Any]:
    ufunc = getattr(np, name)

    def function(x1: Any, x2: Any, /) -> Any:
        return _applied(ufunc, x1, x2)

    return _named(function, name)


def _rounding(name: str, ufunc: np.ufunc) -> Callable[[Any], Any]:
    def function(x: Any, /) -> Any:
        return _applied(np.positive if x.dtype.kind in "iu" else ufunc, x)

    return _named(function, name)


def _named(function: Any, name: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Apply ``numpy.{name}`` to each element, with broadcasting. No messages."
    return function


def real(x: Any, /) -> Any:
    """Return the real part. No messages."""
    return x.real


def imag(x: Any, /) -> Any:
    """Return the imaginary part. No messages."""
    return x.imag


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Return the elements limited to an interval, in the dtype of `x`. No messages."""
    result = _applied(np.positive, x) if min is None else _applied(np.maximum, x, min)
    result = result if max is None else _applied(np.minimum, result, max)
    return result.astype(x.dtype)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """Return elements of `x1` where `condition` is true, and of `x2` elsewhere, with broadcasting. No messages."""
    if not any(isinstance(x, DistributedArray) for x in (condition, x1, x2)):
        return engine_of(condition).xp.where(condition, x1, x2)
    return collops.where(condition, x1, x2)


FUNCTIONS = {
    **{name: _unary(name) for name in _UNARY},
    **{name: _binary(name) for name in _BINARY},
    **{name: _rounding(name, ufunc) for name, ufunc in _ROUNDING.items()},
    **{function.__name__: function for function in (clip, imag, real, where)},
}
