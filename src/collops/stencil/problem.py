"""The problem: Laplace's equation on a rectangle, solved by Jacobi's method, as NVIDIA's multi-GPU samples pose it.

A grid of ny rows and nx columns. The left and the right column are fixed at sin(2 pi y / (ny - 1)). The first and the
last row are copies of the rows before the last and after the first: the grid is periodic in y, with ny - 2 rows that
are computed. An iteration replaces every other point by the mean of its four neighbours.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

import numpy as np

from collops.errors import InputError

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """What is to be solved, and when to stop.

    Parameters
    ----------
    nx, ny : int
        Columns and rows of the grid, the boundary included.
    iterations : int
        Most iterations.
    check : int
        The norm of the update is computed in every `check`-th iteration, from the first.
    tolerance : float
        The norm at which to stop.
    dtype : str
        ``"float32"`` or ``"float64"``.

    Raises
    ------
    InputError
        If a number is too small, or the dtype another one.

    Examples
    --------
    >>> from collops.stencil import Problem
    >>> Problem(nx=64, ny=32, dtype="float64").ny
    32
    """

    nx: int = 16384
    ny: int = 16384
    iterations: int = 1000
    check: int = 1
    tolerance: float = 1e-8
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, least in (("nx", 3), ("ny", 3), ("iterations", 1), ("check", 1)):
            if operator.index(getattr(self, name)) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise InputError(f"tolerance must be zero or a positive number, not {self.tolerance}")
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype must be float32 or float64, not {self.dtype!r}")

    @property
    def shape(self) -> tuple[int, int]:
        """The rows that are computed, and all columns."""
        return self.ny - 2, self.nx

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    @property
    def bytes_per_sweep(self) -> int:
        """What a sweep must at least read and write, if the grid does not fit into a cache."""
        return 2 * self.itemsize * (self.ny - 2) * (self.nx - 2)

    def boundary(self, begin: int, end: int) -> np.ndarray:
        """Return what is fixed at both ends of the computed rows from `begin` up to `end`."""
        y = np.arange(begin + 1, end + 1)
        return np.sin(2.0 * math.pi * y / (self.ny - 1)).astype(self.dtype)
