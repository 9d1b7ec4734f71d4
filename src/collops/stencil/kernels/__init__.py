"""The arithmetic of sweeps, by engine; nothing outside this folder asks which one it is."""

from __future__ import annotations

import importlib.util
from typing import Any

from collops.backend import Engine
from collops.errors import UnsupportedTypeError
from collops.stencil.grid import Grid
from collops.stencil.kernels.lanes import Lanes

__all__ = ["lanes_of", "sweeps_of"]


def sweeps_of(engine: Engine, grid: Grid) -> Any:
    """Return what sweeps the block of `grid` on arrays of `engine`.

    Raises
    ------
    UnsupportedTypeError
        If the engine has no kernels.
    """
    if engine.name == "cupy":
        from collops.stencil.kernels.cupy_sweeps import CupySweeps

        return CupySweeps(grid)
    if engine.name != "numpy":
        raise UnsupportedTypeError(f"there are no stencil kernels for {engine.name}: choose numpy or cupy")
    if importlib.util.find_spec("numba") is not None:
        from collops.stencil.kernels.numba_sweeps import NumbaSweeps

        return NumbaSweeps(grid)
    from collops.stencil.kernels.numpy_sweeps import NumpySweeps

    return NumpySweeps(grid)


def lanes_of(engine: Engine) -> Lanes:
    """Return what orders work that is to overlap."""
    if engine.name == "cupy":
        from collops.stencil.kernels.cupy_lanes import CupyLanes

        return CupyLanes()
    return Lanes()
