"""Vector kernels on local arrays, the only code of `collops.array` that differs between engines.

Each module has ``axpby(a, x, b, y, out)``, ``dot(x, y, conjugate)``, ``divide(a, b)``, ``norm_part(x, order)`` and
``square_of_sum(ww, wq, qq, beta)``, which return their result, in `out` if the engine is mutable. Modules of mutable
engines also have ``dots(slots, dtype, conjugate)`` for several inner products at once, and
``update_solution_and_direction(x, length, direction, ratio, gradient)``, which overwrites `x` and `direction`. Those of
devices have ``summed_dot`` and ``summed_dots``, whose results are summed over the ranks of a communicator. That of
NumPy has ``products_with_two(rows, two)`` and ``combine_into_two(rows, matrix)`` for the basis of GMRES.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np

from collops.backend import KernelTable

__all__ = ["LONG", "begins_with_last", "ended_with_first", "kernels_for", "loops"]

LONG = 1 << 16
"""Elements of vectors and entries of sparse matrices from which on the host uses Numba's loops, where it is installed.

The first use takes half a second, which shorter vectors seldom save."""

_LARGE = 16 << 20  # bytes of an array; the cache of a device can keep a part of it
_WAYS = np.int32(0), np.int32(1)
_ends: set[int] = set()  # addresses where the arrays end of the last pass over large ones, if it ended there

kernels_for = KernelTable(__name__, "generic", numpy="numpy_kernels", cupy="cupy_kernels")
"""The module of kernels for an engine: ``kernels_for(engine)``."""


def begins_with_last(nbytes: int, *arrays: Any) -> np.int32:
    """Return 1 if a kernel is to begin with the last elements of arrays on a device, all of this size, else 0.

    It is if the last pass over large arrays ended with these elements: then they are in the cache.
    """
    if nbytes < _LARGE:
        return _WAYS[0]
    ends = {array.data.ptr + nbytes for array in arrays}
    backwards = not _ends.isdisjoint(ends)
    _ends.clear()
    if not backwards:
        _ends.update(ends)
    return _WAYS[backwards]


def ended_with_first(nbytes: int) -> None:
    """Say that a kernel, which always ends with the first elements, has read an array of this size on a device."""
    if nbytes >= _LARGE:
        _ends.clear()


@cache
def loops() -> Any:
    """Return the module of loops over long real vectors on the host; ``None`` where Numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module(f"{__name__}.numba_kernels")
