"""Vector kernels on local arrays, the only code of `collops.array` that differs between engines.

Each module has ``axpby(a, x, b, y, out)``, ``dot(x, y, conjugate)``, ``divide(a, b)``, ``norm_part(x, order)`` and
``square_of_sum(ww, wq, qq, beta)``, which return their result, in `out` if the engine is mutable. Modules of mutable
engines also have ``dots(slots, dtype, conjugate)`` for several inner products at once, and
``update_solution_and_direction(x, length, direction, ratio, gradient)``, which overwrites `x` and `direction`. Device
modules have ``summed_dot`` and ``summed_dots``, whose results are summed over the ranks of a communicator. The NumPy
module has ``products_with_two(rows, two)`` and ``combine_into_two(rows, matrix)`` for the basis of GMRES.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

from collops.backend import kernel_table

__all__ = ["LONG", "kernels_for", "loops"]

LONG = 1 << 16
"""Minimum number of elements, or of entries of a sparse matrix, for Numba's loops on the host, if it is installed.

The first use takes half a second, which shorter vectors rarely save."""

kernels_for = kernel_table(__name__, "generic", numpy="numpy_kernels", cupy="cupy_kernels")
"""The module of kernels for an engine: ``kernels_for(engine)``."""


@cache
def loops() -> Any:
    """Return the module of loops over long real vectors on the host; ``None`` if Numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module(f"{__name__}.numba_kernels")
