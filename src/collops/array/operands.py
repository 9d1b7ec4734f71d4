"""Operands: the attributes that distributed and stacked arrays share, and the checks of what is combined with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops.errors import LayoutError, UnsupportedTypeError

if TYPE_CHECKING:
    from collops.array.plans import ReductionPlan
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = ["Operand", "check_alike", "check_ufunc", "local_operand", "scalar_operand"]

_NUMBERS = (bool, int, float, complex, np.generic)


class Operand:
    """A distributed or a stacked array, as the functions of this room take them; `local_array` is of the former."""

    __slots__ = ()

    layout: Any
    comm: Communicator
    engine: Engine
    _plan: ReductionPlan

    if TYPE_CHECKING:
        leaves: Any
        arrays: Any
        local_array: Any
        dtype: Any
        shape: Any
        size: Any
        ndim: Any
        _hold: Any
        _like: Any
        _stored: Any


def check_alike(x: Any, y: Any) -> None:
    """Raise unless `y` is an array like `x`: same layout, communicator and engine.

    Raises
    ------
    LayoutError
        If layouts or communicators differ.
    UnsupportedTypeError
        If engines differ, or `y` is no distributed array.
    """
    if not hasattr(y, "leaves"):
        raise UnsupportedTypeError(
            f"expected a distributed array with the layout {x.layout}, not {type(y).__name__}; "
            "collops.array.from_global and from_local make one"
        )
    if x.layout is not y.layout:
        raise LayoutError(
            f"the arrays have different layouts:\n  {x.layout}\n  {y.layout}\n"
            "bring one to the other's first: x.redistribute(y.layout)"
        )
    if x.comm is not y.comm:
        raise LayoutError("the arrays are on different communicators; make both with one comm=")
    if x.engine is not y.engine:
        raise UnsupportedTypeError(f"the arrays are of different engines: {x.engine.name} and {y.engine.name}")


def scalar_operand(x: Operand, other: Any) -> Any:
    """Return `other` as a number to combine with `x`, or ``NotImplemented`` if it is no number or array.

    Raises
    ------
    UnsupportedTypeError
        If `other` is a plain array with axes.
    """
    if isinstance(other, _NUMBERS):
        return other
    if not hasattr(other, "dtype") or not hasattr(other, "ndim"):
        return NotImplemented
    if isinstance(other, Operand):
        raise UnsupportedTypeError("a stacked array and a single one cannot be combined element by element")
    if other.ndim > 0:
        raise UnsupportedTypeError(
            f"a plain {type(other).__name__} of shape {tuple(other.shape)} with a distributed array of the layout "
            f"{x.layout} is ambiguous: make it distributed with collops.array.from_global(values, x.layout), "
            "or work with x.local_array"
        )
    # A host scalar is a kernel argument on a device; the reverse would make the host wait.
    return other[()] if isinstance(other, np.ndarray) else other


def local_operand(x: Operand, other: Any) -> Any:
    """Return the local array, or the number, that stands for `other` in an operation with ``x.local_array``."""
    if isinstance(other, Operand) and hasattr(other, "local_array"):
        check_alike(x, other)
        return other.local_array
    return x.engine.replicated_operand(scalar_operand(x, other), x._plan.communicator)


def check_ufunc(ufunc: np.ufunc, method: str, outs: tuple[Any, ...] | None) -> None:
    """Raise for a ufunc that cannot be applied to distributed arrays.

    Raises
    ------
    UnsupportedTypeError
        For methods (``reduce`` and others), generalized ufuncs such as matmul, and plain arrays in `outs`.
    """
    if method != "__call__" or ufunc.signature is not None:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise UnsupportedTypeError(
            f"numpy.{name} mixes elements of different ranks; distributed arrays have sum, min, max, mean, dot, vdot "
            "and norm, or use local_array or gather()"
        )
    if outs is not None and any(not isinstance(out, Operand | None) for out in outs):
        raise UnsupportedTypeError(f"out= of numpy.{ufunc.__name__} must be a distributed array like the inputs")
