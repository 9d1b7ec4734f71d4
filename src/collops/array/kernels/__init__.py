"""Vector kernels on local arrays, the only code of `collops.array` that differs between engines.

Each module has ``axpby(a, x, b, y, out)``, ``dot(x, y, conjugate)``, ``divide(a, b)``, ``norm_part(x, order)`` and
``square_of_sum(ww, wq, qq, beta)``, which return their result, in `out` if the engine is mutable. Modules of mutable
engines also have ``dots(slots, dtype, conjugate)`` for several inner products at once, and
``update_solution_and_direction(x, length, direction, ratio, gradient)``, which overwrites `x` and `direction`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from collops.backend import Engine

__all__ = ["kernels_for"]


@cache
def kernels_for(engine: Engine) -> Any:
    """Return the module of kernels for `engine`."""
    if engine.name == "numpy":
        from collops.array.kernels import numpy_kernels

        return numpy_kernels
    if engine.name == "cupy":
        from collops.array.kernels import cupy_kernels

        return cupy_kernels
    from collops.array.kernels import generic

    return generic
