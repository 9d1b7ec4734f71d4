"""The recurrence of LSQR on the device, as in `collops.solvers.lsqr_recurrence`, in kernels of one thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.solvers.kernels.load import kernel

__all__ = ["after_u", "after_v", "begin"]

_ONE = (1,)


def begin(scalars: Any, factors: Any, u_square: Any, v_square: Any) -> None:
    """Set everything, from ``|U|**2`` and ``|A^H U|**2``."""
    _launch("begin", scalars, factors, u_square, v_square)


def after_u(scalars: Any, factors: Any, u_square: Any) -> None:
    """Set what the next V needs."""
    _launch("after_u", scalars, factors, u_square)


def after_v(scalars: Any, factors: Any, v_square: Any, w_square: Any, damp: float) -> None:
    """Rotate, and set what the updates of x and w and the next U need."""
    _launch("after_v", scalars, factors, v_square, w_square, np.float64(damp))


def _launch(name: str, scalars: Any, factors: Any, *values: Any) -> None:
    suffix = "float" if factors.dtype == np.float32 else "double"
    kernel("lsqr.cu", f"{name}_{suffix}")(_ONE, _ONE, (scalars, factors, *values))
