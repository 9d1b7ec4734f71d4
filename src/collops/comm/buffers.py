"""The arrays that collectives take and fill: contiguous, of one engine, and of the right shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from collops.backend import Engine, engine_of
from collops.comm.transport import Pending
from collops.errors import LayoutError, UnsupportedTypeError

__all__ = ["check_kind", "in_elements", "prepared", "row_size", "target_of"]

_HOST = engine_of(np.empty(0))


def prepared(x: Any, group: list[Pending] | None) -> tuple[Any, Engine]:
    """Make `x` a C-contiguous array, and find its engine; within a `group`, which reads it later, it must be one."""
    if type(x) is np.ndarray and x.dtype.kind in "biufc" and x.flags.c_contiguous and x.dtype.isnative:
        return x, _HOST  # what comes most often, without a detour
    if isinstance(x, (bool, int, float, complex, list, np.generic)):
        x = np.asarray(x)
    engine = engine_of(x)
    x = engine.adopt(x)
    check_kind(x.dtype)
    if not x.flags.c_contiguous:
        if group is not None:
            raise LayoutError("inside a group, arrays must be contiguous")
        x = engine.xp.ascontiguousarray(x)
    return x, engine


def check_kind(dtype: Any) -> None:
    """Refuse what is no number: objects, whose addresses mean nothing on another rank, texts, dates and records.

    Raises
    ------
    UnsupportedTypeError
        For these, and for numbers in the byte order of another machine.
    """
    if dtype.kind not in "biufc" and dtype.name != "bfloat16":
        raise UnsupportedTypeError(f"messages carry booleans, integers, real and complex numbers, not {dtype}")
    if not dtype.isnative:
        raise UnsupportedTypeError(f"arrays of dtype {dtype} have another byte order than this machine: convert them")


def target_of(
    out: Any, source: Any, shape: tuple[int, ...], engine: Engine, group: list[Pending] | None
) -> tuple[Any, Callable[[Any], Any]]:
    """Return a contiguous array for the result, and what hands it to the caller.

    Within a `group` the result is not there before its end, so that `out` must be contiguous itself.
    """
    if out is None:
        return engine.xp.empty(shape, source.dtype), _as_it_is
    if engine_of(out) is not engine or out.dtype != source.dtype:
        raise UnsupportedTypeError(f"out must be a {engine.name} array of dtype {source.dtype}")
    if out.shape != shape:
        raise LayoutError(f"out must have shape {shape}, not {out.shape}")
    flags = out.flags
    if not getattr(flags, "writeable", True):
        raise UnsupportedTypeError("out must be an array that can be written")
    if flags.c_contiguous:
        return out, _as_it_is
    if group is not None:
        raise LayoutError("inside a group, out must be contiguous")

    def copied(result: Any) -> Any:
        out[...] = result
        return out

    return engine.xp.empty(shape, source.dtype), copied


def _as_it_is(result: Any) -> Any:
    return result


def row_size(shape: Sequence[int]) -> int:
    """Return the number of elements of one row."""
    return prod(shape[1:])


def in_elements(rows: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return how many elements these numbers of rows have."""
    width = row_size(shape)
    return [count * width for count in rows]
