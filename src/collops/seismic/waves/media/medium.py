"""A medium: what a wave equation needs besides the velocity, and how it changes the scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.seismic.real_numbers import finite_array
from collops.seismic.waves.geometry import Geometry
from collops.seismic.waves.grid import Grid, Slab, Tile
from collops.seismic.waves.shot import Shot
from collops.seismic.waves.stencil import largest_wavenumber


class Medium:
    """A medium with constant density on a tile, and the base of the others, which override what differs.

    All media have the scheme :math:`u^{n+1} = 2 u^n - u^{n-1} + C L u^n` with a linear operator L that does not depend
    on the velocity, and symmetric coefficients C at each point. They are proportional to the square of the velocity,
    unless a medium overrides `slope` and `relative_slope`.

    Parameters
    ----------
    tile : Tile
        The tile.

    Attributes
    ----------
    name : str
        In messages.
    vanishes_at_surface : bool
        Whether all fields are 0 at the points of a free surface.
    requirement : str
        In messages: what velocities must be besides positive and finite; see :meth:`admits`.
    fields : tuple of int
        Number of coupled fields, as the first axis of arrays of them; empty for one field, whose arrays have no such
        axis. Sources and receivers are on the last field.
    wavenumber : float
        A wavenumber k in 1/m on this tile such that no eigenvalue of the operator exceeds :math:`(v k)^2`, for
        velocities up to v.
    """

    name: ClassVar[str] = "constant density"
    vanishes_at_surface: ClassVar[bool] = True
    requirement: ClassVar[str] = ""
    fields: tuple[int, ...] = ()

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.wavenumber = largest_wavenumber(tile.grid.order, tile.grid.spacing)

    @staticmethod
    def reach(grid: Grid) -> int:
        """Return the number of points on each side from which L takes values."""
        return grid.order // 2

    @staticmethod
    def layer_elements(tile: Tile, slabs: Sequence[Slab]) -> int:
        """Return the elements of a memory variable of all layers of a tile."""
        return sum(math.prod(slab.shape) for slab in slabs)

    def memory(self, tile: Tile) -> int:
        """Return the elements of a row of the memory variables of a tile that are not of the layers."""
        return 0

    def admits(self, velocity: LocalArray) -> bool:
        """Return whether this medium can have positive velocities on the tile."""
        return True

    def check_stations(self, geometry: Geometry) -> None:
        """Raise InputError if this medium cannot have sources or receivers of a geometry."""

    def coefficients(self, square: LocalArray) -> LocalArray:
        """Return the coefficients C for the squared velocity on the tile, for a time step of 1 s."""
        return square

    def slope(self, velocity: LocalArray) -> LocalArray:
        """Return the derivative of the coefficients with respect to the velocity, for a time step of 1 s."""
        return self.coefficients(2 * velocity)

    def relative_slope(self, velocity: LocalArray) -> LocalArray:
        """Return the derivative of the coefficients that depend on the velocity, divided by them."""
        return 2 / velocity

    def shot(self, shot: Shot) -> Shot:
        """Return a shot with the source as this medium has it."""
        return shot

    def host_steps(self, compiled: bool, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None) -> Any:
        """Return the steps of hosts, in Numba or in plain NumPy."""
        if compiled:
            from collops.seismic.waves.steps.numba_acoustic import Steps
        else:
            from collops.seismic.waves.steps.acoustic import Steps
        return Steps(self.tile, slabs, dtype, threads)

    def device_steps(self, slabs: Sequence[Slab], dtype: np.dtype, xp: Any) -> Any:
        """Return the steps of a device, of which `xp` is the module of arrays."""
        if self.tile.grid.time_order == 2 and not self.memory(self.tile):
            from collops.seismic.waves.cuda.steps import CudaSteps

            return CudaSteps(self.tile, slabs, dtype)
        from collops.seismic.waves.cuda.media_steps import CudaLaplacianSteps

        return CudaLaplacianSteps(self.tile, slabs, dtype, xp)

    def traced_steps(self, slabs: Sequence[Slab], dtype: np.dtype) -> Any:
        """Return the steps of JAX."""
        from collops.seismic.waves.steps.jax_laplacians import TracedSteps

        return TracedSteps(self.tile, slabs, dtype, None)


def grid_values(name: str, values: ArrayLike, grid: Grid) -> np.ndarray:
    """Return the values of a parameter at all points of a grid in double precision, after checking them.

    One number is the value at all points.
    """
    name = name.replace("_", " ")
    array = finite_array(f"the {name}", values)
    if array.ndim == 0:
        return np.full(grid.shape, array)
    if array.shape != grid.shape:
        raise InputError(f"the {name} must have the shape {grid.shape} of the grid, not {array.shape}")
    return array
