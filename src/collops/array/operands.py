"""Operands of array operations: what can be combined with a distributed or a stacked array."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from collops.array.coefficients import Coefficient, Scalar
from collops.array.layout import Layout, StackedLayout
from collops.backend import LocalArray, engine_of, is_traced
from collops.errors import LayoutError, UnsupportedTypeError

__all__ = ["agree_on_numbers", "check_alike", "check_engine", "way_to"]

GlobalArray: TypeAlias = Any
"""A :class:`DistributedArray` or :class:`StackedArray`, in the modules that their classes import."""

_NUMBERS = (bool, int, float, complex, np.generic)


def check_alike(x: GlobalArray, y: GlobalArray) -> None:
    """Raise unless `y` is a distributed array with the layout, the communicator and the engine of `x`."""
    if not hasattr(y, "leaves"):
        raise UnsupportedTypeError(
            f"expected a distributed array with the layout {x.layout}, not {type(y).__name__}; "
            "see collops.array.from_global and from_local"
        )
    if x.layout is not y.layout:
        raise LayoutError(
            f"the arrays have different layouts:\n  {x.layout}\n  {y.layout}\n{way_to(x.layout, y.layout)}"
        )
    check_ranks_and_engine(x, y)


def check_ranks_and_engine(x: GlobalArray, y: GlobalArray) -> None:
    """Raise unless two distributed arrays have one communicator and one engine."""
    if x.comm is not y.comm:
        raise LayoutError("the arrays have different communicators; make both with the same comm=")
    if x.engine is not y.engine:
        name, source = ("one of them", "y") if hasattr(x, "local_array") else ("each part of one of them", "part")
        raise UnsupportedTypeError(
            f"the arrays have different engines: {x.engine.name} and {y.engine.name}; convert {name}: "
            f"collops.from_global({source}.gather(), {source}.layout, comm=x.comm, engine=x.engine)"
        )


def way_to(
    source: Layout | StackedLayout, target: Layout | StackedLayout, array: str = "x", layout: str = "y.layout"
) -> str:
    """Return advice, for the end of an error message, to convert an array from layout `source` to `target`.

    `array` and `layout` are the names of both in the program of the user. Every call in the text succeeds.
    """
    if isinstance(source, StackedLayout) or isinstance(target, StackedLayout):
        return _way_to_stack(source, target, array, layout)
    if source.ranks != target.ranks:
        return f"make the arrays on one communicator: {source.ranks} and {target.ranks} ranks differ"
    if source.mask != target.mask:
        return f"make the arrays with one mask: {source.mask} and {target.mask} differ"
    if source.size != target.size:
        return f"make the arrays of one shape: {source.shape} and {target.shape} have different numbers of elements"
    if source.shape == target.shape:
        return f"redistribute one of them first: {array}.redistribute({layout})"
    try:
        reshaped = source.reshape(target.shape)
    except LayoutError:
        rows, call = source._reshapable(target.shape)
        moved, reshaped = f"{array}.redistribute({call}).reshape({target.shape})", rows.reshape(target.shape)
    else:
        moved = f"{array}.reshape({target.shape})"
    return f"their shapes differ: {moved}" + ("" if reshaped is target else f".redistribute({layout})")


def _way_to_stack(source: Layout | StackedLayout, target: Layout | StackedLayout, array: str, layout: str) -> str:
    """Return the advice of :func:`way_to` where one of the layouts belongs to a stacked array."""
    if not (isinstance(source, StackedLayout) and isinstance(target, StackedLayout)):
        return "a stacked array fits stacked arrays only: combine its parts one by one"
    if len(source) != len(target):
        return f"make stacks of as many parts: {len(source)} and {len(target)} differ"
    pairs = list(zip(source, target, strict=True))
    ways = [
        way_to(source_part, target_part, f"{array}[{n}]", f"{layout}[{n}]")
        for n, (source_part, target_part) in enumerate(pairs)
    ]
    plain = all(f".redistribute({layout}[{n}])" in way and "reshape" not in way for n, way in enumerate(ways))
    number_of_part = next(
        number for number, (source_part, target_part) in enumerate(pairs) if source_part is not target_part
    )
    return (
        f"redistribute one of them first: {array}.redistribute({layout})"
        if plain
        else f"part {number_of_part}: {ways[number_of_part]}"
    )


def scalar_operand(x: GlobalArray, other: Scalar) -> Scalar:
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
    check_engine(x, other)
    return engine_of(other).adopt(other)[()] if isinstance(other, np.ndarray) else other


def check_engine(x: GlobalArray, other: Scalar) -> None:
    """Raise UnsupportedTypeError unless a plain array or scalar of a package can be combined with parts of `x`.

    Arrays of its own engine can, and arrays of NumPy, whose values the host can read at any time.
    """
    engine = engine_of(other)
    if engine is not x.engine and (engine.traced or engine.memory != "host"):
        raise UnsupportedTypeError(
            f"a scalar of {engine.name} cannot be combined with an array of {x.engine.name}; use float(scalar)"
            if not other.ndim
            else f"an array of {engine.name} cannot be combined with an array of {x.engine.name}"
        )


def local_operand(x: GlobalArray, other: GlobalArray | Scalar) -> LocalArray | Scalar:
    """Return the local array of `other`, or the number `other`, for an operation with ``x.local_array``."""
    if hasattr(other, "local_array"):
        check_alike(x, other)
        return other.local_array
    number = scalar_operand(x, other)
    if number is not NotImplemented:
        agree_on_numbers(x, number)
    return x.engine.replicated_operand(number, x._plan.communicator)


def agree_on_numbers(x: GlobalArray, *numbers: Coefficient) -> None:
    """Raise on every rank unless `numbers`, to be combined with `x`, are equal on all, where ``COLLOPS_CHECK`` is on.

    Collective there. Those of the groups of a mask may differ, and scalars of devices and tracers stay where they are.
    """
    if x.comm.calls is None:
        return
    leaf = x.leaves[0]
    if leaf.layout.mask is None and not is_traced(leaf.local_array):
        parts = [part for number in numbers for part in (number if isinstance(number, tuple) else (number,))]
        plain = [part[()] if isinstance(part, np.ndarray) else part for part in parts]
        values = [part if isinstance(part, _NUMBERS) else None for part in plain]
        x.comm.agree("a number that each rank combines with a distributed array", values)


def check_ufunc(ufunc: np.ufunc, method: str, outs: tuple[object, ...]) -> None:
    """Raise for methods (``reduce`` and others), generalized ufuncs such as matmul, and plain arrays in `outs`."""
    if method != "__call__" or ufunc.signature is not None:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise UnsupportedTypeError(
            f"numpy.{name} combines elements of different ranks; use sum, min, max, mean, dot, vdot or norm, "
            "or local_array or gather()"
        )
    if any(out is not None and not hasattr(out, "leaves") for out in outs):
        raise UnsupportedTypeError(f"out= of numpy.{ufunc.__name__} must be a distributed array like the inputs")
