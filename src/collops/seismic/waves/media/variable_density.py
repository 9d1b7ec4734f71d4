"""The medium with variable density: its buoyancies, coefficients and stability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of
from collops.seismic.waves.grid import Grid, Slab, Tile
from collops.seismic.waves.media.medium import Medium, grid_values
from collops.seismic.waves.shot import Shot
from collops.seismic.waves.stencil import staggered_derivative


class VariableDensity(Medium):
    """A medium with a density at each point; see :class:`DensitySteps` for the scheme.

    Parameters
    ----------
    tile : Tile
        The tile.
    density : array
        The density in kg/m³, of the grid's shape.

    Attributes
    ----------
    density : numpy.ndarray
        On the tile, in double precision.
    buoyancy : dict
        For each axis the buoyancy at the half points along it, of the mean density of both sides, from half a stencil
        before the first point of the tile to half a stencil after the last.

    Raises
    ------
    InputError
        If the density cannot be used.
    """

    name = "variable density"

    def __init__(self, tile: Tile, density: ArrayLike) -> None:
        values = grid_values("density", density, tile.grid)
        if not (values > 0).all():
            raise InputError("densities must be positive")
        self.tile, self.density = tile, tile.values(values)
        self.buoyancy = {
            axis: buoyancy_between(tile.values(values, axis, tile.grid.order // 2), axis) for axis in tile.axes
        }
        self.wavenumber = self._largest_wavenumber()

    @staticmethod
    def reach(grid: Grid) -> int:
        """Return the number of points on each side from which two staggered derivatives take values."""
        return grid.order - 1

    def coefficients(self, square: LocalArray) -> LocalArray:
        """Return the coefficients for the squared velocity on the tile."""
        return engine_of(square).xp.asarray(self.density.astype(square.dtype, copy=False)) * square

    def shot(self, shot: Shot) -> Shot:
        """Return a shot whose source is divided by the density at its points."""
        buoyancy = (1 / self.density.reshape(-1)[shot.source_points]).astype(shot.source.dtype)
        return replace(shot, source=shot.source * buoyancy)

    def host_steps(self, compiled: bool, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None) -> Any:
        """Return the steps of hosts, in Numba or in plain NumPy."""
        if compiled:
            from collops.seismic.waves.steps.numba_staggered import NumbaDensitySteps as DensitySteps
        else:
            from collops.seismic.waves.steps.density import DensitySteps
        return DensitySteps(self.tile, slabs, dtype, threads, self.buoyancy)

    def device_steps(self, slabs: Sequence[Slab], dtype: np.dtype, xp: Any) -> Any:
        """Return the steps of a device, of which `xp` is the module of arrays."""
        from collops.seismic.waves.cuda.media_steps import CudaDensitySteps

        return CudaDensitySteps(self.tile, slabs, dtype, xp, self.buoyancy)

    def traced_steps(self, slabs: Sequence[Slab], dtype: np.dtype) -> Any:
        """Return the steps of JAX."""
        from collops.seismic.waves.steps.jax_laplacians import TracedDensitySteps

        return TracedDensitySteps(self.tile, slabs, dtype, None, self.buoyancy)

    def _largest_wavenumber(self) -> float:
        r"""Return a wavenumber that bounds the eigenvalues, by the inequality of Cauchy and Schwarz.

        It is the square root of the largest :math:`\rho_i \sum_a 4 S / h_a^2 \sum_k |f_k| (\beta_{i+k-1/2} +
        \beta_{i-k+1/2}) / 2` with the coefficients :math:`f_k` of the first derivative, and the sum S of their
        magnitudes.
        """
        weights, bound = np.abs(staggered_derivative(self.tile.grid.order)), np.zeros(self.tile.inner)
        half = len(weights)
        for axis, h in zip(self.tile.axes, self.tile.grid.spacing, strict=True):
            buoyancy, n = np.moveaxis(self.buoyancy[axis], axis, 0), self.tile.inner[axis]
            for k, weight in enumerate(weights):
                both = buoyancy[half + k :][:n] + buoyancy[half - 1 - k :][:n]
                bound += np.moveaxis(both, 0, axis) * (2 * weight * weights.sum() / h**2)
        return float(np.sqrt((self.density * bound).max()))


def between(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the means of neighbours along an axis."""
    first, last = (tuple(part if a == axis else slice(None) for a in range(3)) for part in (slice(-1), slice(1, None)))
    return (values[last] + values[first]) / 2


def buoyancy_between(density: np.ndarray, axis: int) -> np.ndarray:
    """Return the buoyancies between neighbours along an axis.

    They are of the mean density: so reflections of a step of the density are of second order in space.
    """
    return 1 / between(density, axis)
