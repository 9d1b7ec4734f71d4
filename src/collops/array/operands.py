"""Operands of array operations: what can be combined with a distributed or a stacked array."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.errors import LayoutError, UnsupportedTypeError

__all__ = ["check_alike"]

_NUMBERS = (bool, int, float, complex, np.generic)


def check_alike(x: Any, y: Any) -> None:
    """Raise unless `y` is a distributed array with the layout, the communicator and the engine of `x`."""
    if not hasattr(y, "leaves"):
        raise UnsupportedTypeError(
            f"expected a distributed array with the layout {x.layout}, not {type(y).__name__}; "
            "see collops.array.from_global and from_local"
        )
    if x.layout is not y.layout:
        raise LayoutError(
            f"the arrays have different layouts:\n  {x.layout}\n  {y.layout}\n"
            "redistribute one of them first: x.redistribute(y.layout)"
        )
    if x.comm is not y.comm:
        raise LayoutError("the arrays have different communicators; make both with the same comm=")
    if x.engine is not y.engine:
        raise UnsupportedTypeError(f"the arrays have different engines: {x.engine.name} and {y.engine.name}")


def scalar_operand(x: Any, other: Any) -> Any:
    """Return `other` as a number to combine with `x`; ``NotImplemented`` if it is neither a number nor an array."""
    if isinstance(other, _NUMBERS):
        return other
    if not hasattr(other, "dtype") or not hasattr(other, "ndim"):
        return NotImplemented
    if hasattr(other, "leaves"):
        raise UnsupportedTypeError("a stacked array and a single one cannot be combined element by element")
    if other.ndim > 0:
        raise UnsupportedTypeError(
            f"combining a plain {type(other).__name__} of shape {tuple(other.shape)} with a distributed array of the "
            f"layout {x.layout} is ambiguous: distribute it with collops.array.from_global(values, x.layout), "
            "or use x.local_array"
        )
    # A scalar on the host becomes a kernel argument; a scalar on a device stays there, so that the host does not wait.
    return other[()] if isinstance(other, np.ndarray) else other


def local_operand(x: Any, other: Any) -> Any:
    """Return the local array of `other`, or the number `other`, for an operation with ``x.local_array``."""
    if hasattr(other, "local_array"):
        check_alike(x, other)
        return other.local_array
    return x.engine.replicated_operand(scalar_operand(x, other), x._plan.communicator)


def check_ufunc(ufunc: np.ufunc, method: str, outs: tuple[Any, ...]) -> None:
    """Raise for methods (``reduce`` and others), generalized ufuncs such as matmul, and plain arrays in `outs`."""
    if method != "__call__" or ufunc.signature is not None:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise UnsupportedTypeError(
            f"numpy.{name} combines elements of different ranks; use sum, min, max, mean, dot, vdot or norm, "
            "or local_array or gather()"
        )
    if any(out is not None and not hasattr(out, "leaves") for out in outs):
        raise UnsupportedTypeError(f"out= of numpy.{ufunc.__name__} must be a distributed array like the inputs")
