"""The medium with vertical transverse isotropy (VTI): two coupled fields, and the stability of their scheme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.media.medium import Medium, grid_values
from collops.seismic.waves.stencil import largest_wavenumber


class VTI(Medium):
    r"""A medium with a vertical axis of symmetry, in the acoustic approximation: no shear waves along the axis.

    The horizontal and the vertical stress p and q of a medium with Thomsen's parameters and the vertical velocity v
    solve [1]_

    .. math::
        \frac{1}{v^2} \partial_t^2 \begin{pmatrix} p \\ q \end{pmatrix} =
        \begin{pmatrix} 1 + 2 \epsilon & \sqrt{1 + 2 \delta} \\ \sqrt{1 + 2 \delta} & 1 \end{pmatrix}
        \begin{pmatrix} (\partial_x^2 + \partial_y^2) p \\ \partial_z^2 q + s \end{pmatrix}.

    The matrix is symmetric, and positive semidefinite if :math:`\epsilon \ge \delta`: then the energy is conserved,
    and the scheme is stable [2]_. Receivers record q. With both parameters 0, both fields are the pressure.

    Parameters
    ----------
    tile : Tile
        The tile.
    epsilon, delta : array
        Thomsen's parameters, of the grid's shape.

    Raises
    ------
    InputError
        If a parameter cannot be used, or the grid has one axis only.

    References
    ----------
    .. [1] Duveneck, E., Milcik, P., Bakker, P. M., and Perkins, C., "Acoustic VTI wave equations and their application
       for anisotropic reverse-time migration", SEG Technical Program Expanded Abstracts, 2186-2190, 2008.
    .. [2] Duveneck, E., and Bakker, P. M., "Stable P-wave modeling for reverse-time migration in tilted TI media",
       Geophysics 76(2), S65-S75, 2011.
    """

    name = "VTI anisotropy"
    fields = (2,)

    def __init__(self, tile: Tile, epsilon: ArrayLike, delta: ArrayLike) -> None:
        grid = tile.grid
        if len(grid.shape) < 2:
            raise InputError("waves in VTI media need a grid with two or three axes, not 1")
        one, two = (tile.values(grid_values(n, x, grid)) for n, x in (("epsilon", epsilon), ("delta", delta)))
        if not (two > -0.5).all():
            raise InputError("delta must be greater than -0.5")
        if not (one >= two).all():
            raise InputError("epsilon must be at least delta at each point: otherwise waves in VTI media are unstable")
        self.tile = tile
        self._matrix = np.stack([1 + 2 * one, np.sqrt(1 + 2 * two), np.ones(tile.inner)])
        horizontal, vertical = (
            largest_wavenumber(grid.order, part) ** 2 for part in (grid.spacing[:-1], grid.spacing[-1:])
        )
        # The largest eigenvalue of the matrix times the largest symbols of both derivatives.
        first, product = self._matrix[0] * horizontal, self._matrix[1] ** 2 * horizontal * vertical
        largest = (first + vertical) / 2 + np.sqrt(((first - vertical) / 2) ** 2 + product)
        self.wavenumber = float(np.sqrt(largest.max()))

    def coefficients(self, square: LocalArray) -> LocalArray:
        """Return the elements (0, 0), (0, 1) and (1, 1) of the matrix, multiplied by the squared velocity."""
        return engine_of(square).xp.asarray(self._matrix.astype(square.dtype, copy=False)) * square

    def host_steps(self, compiled: bool, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None) -> Any:
        """Return the steps of hosts, in Numba or in plain NumPy."""
        if compiled:
            from collops.seismic.waves.steps.numba_acoustic import NumbaVTISteps, Steps

            parts = (Steps(self.tile, slabs, dtype, threads, axes) for axes in self._axes)
            return NumbaVTISteps(self.tile, dtype, threads, *parts)
        from collops.seismic.waves.steps.acoustic import Steps
        from collops.seismic.waves.steps.vti import VTISteps

        parts = (Steps(self.tile, slabs, dtype, threads, axes) for axes in self._axes)
        return VTISteps(self.tile, dtype, *parts)

    def device_steps(self, slabs: Sequence[Slab], dtype: np.dtype, xp: Any) -> Any:
        """Return the steps of a device, of which `xp` is the module of arrays."""
        from collops.seismic.waves.cuda.media_steps import CudaVTISteps

        return CudaVTISteps(self.tile, slabs, dtype, xp)

    def traced_steps(self, slabs: Sequence[Slab], dtype: np.dtype) -> Any:
        """Return the steps of JAX."""
        from collops.seismic.waves.steps.jax_laplacians import TracedSteps, TracedVTISteps

        return TracedVTISteps(
            self.tile, dtype, *(TracedSteps(self.tile, slabs, dtype, None, axes) for axes in self._axes)
        )

    @property
    def _axes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The horizontal axes and the vertical axis, of three."""
        return self.tile.axes[:-1], self.tile.axes[-1:]
