"""The isotropic elastic medium: its density and shear velocity on a tile, and the stability of its scheme."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of
from collops.seismic.waves.geometry import Geometry
from collops.seismic.waves.grid import RADIUS, Grid, Slab, Tile
from collops.seismic.waves.media.medium import grid_values
from collops.seismic.waves.media.moduli import Moduli, harmonic_mean
from collops.seismic.waves.media.variable_density import VariableDensity, buoyancy_between
from collops.seismic.waves.stencil import staggered_derivative
from collops.seismic.waves.steps.elastic import layer_elements, stress_components


class Elastic(VariableDensity):
    """A medium with P and S waves, in plane strain if it has two axes; see :class:`ElasticSteps` for the scheme.

    For the coefficients see :class:`Moduli`. Between grid points the harmonic mean of the shear moduli of the four
    neighbours counts, and the mean of two densities, so that there may be fluids in the medium [1]_.

    Parameters
    ----------
    tile : Tile
        The tile.
    shear_velocity : array
        The velocity of S waves in m/s, of the grid's shape; 0 in fluids.
    density : array, optional
        The density in kg/m³; constant by default.

    Attributes
    ----------
    moduli : Moduli
        The coefficients as functions of both velocities.
    margin : int
        Points around the tile at which :meth:`wavenumber_of` needs shear velocities.

    Raises
    ------
    InputError
        If a parameter cannot be used, or the grid has one axis only.

    References
    ----------
    .. [1] Moczo, P., Kristek, J., Vavrycuk, V., Archuleta, R. J., and Halada, L., "3D heterogeneous staggered-grid
       finite-difference modeling of seismic motion with volume harmonic and arithmetic averaging of elastic moduli and
       densities", Bulletin of the Seismological Society of America 92(8), 3042-3066, 2002.
    """

    name = "elastic waves"
    vanishes_at_surface = False
    requirement = ", and at least the square root of 2 times the shear velocity: Poisson's ratio must not be negative"

    def __init__(self, tile: Tile, shear_velocity: ArrayLike, density: ArrayLike | None = None) -> None:
        grid = tile.grid
        if len(grid.shape) < 2:
            raise InputError("elastic waves need a grid with two or three axes, not 1")
        shear = grid_values("shear_velocity", shear_velocity, grid)
        if not (shear >= 0).all():
            raise InputError("shear velocities must not be negative")
        values = np.ones(grid.shape) if density is None else grid_values("density", density, grid)
        super().__init__(tile, values)
        self.fields = (len(stress_components(tile.axes)),)
        self._solid_surface = grid.free_surface and bool((shear[..., 0] > 0).any())
        self.margin = margin = grid.order // 2 + 1
        self._density = tile.values(values, None, margin)
        near = tuple(slice(1, -1) if axis in tile.axes else slice(None) for axis in range(3))
        self.buoyancy = {axis: buoyancy_between(self._density[near], axis) for axis in tile.axes}
        extended = tile.values(shear, None, margin)
        self.moduli, self._shear = Moduli(tile, self.with_next(self._density)), self.with_next(extended)
        self.wavenumber = self.wavenumber_of(extended, float(shear.max()))

    @staticmethod
    def reach(grid: Grid) -> int:
        """Return the number of points on each side from which L takes values, and one more.

        A tile with a layer must have the half point before it to itself, where the layer begins.
        """
        return grid.order

    @staticmethod
    def layer_elements(tile: Tile, slabs: Sequence[Slab]) -> int:
        """Return the elements of a memory variable of all layers."""
        return layer_elements(tile, slabs)

    def admits(self, velocity: LocalArray) -> bool:
        """Return whether Poisson's ratio is positive or 0 everywhere."""
        return self.moduli.admits(velocity, self._shear_like(velocity))

    def check_stations(self, geometry: Geometry) -> None:
        """Raise InputError unless all stations are of pressure, and near a solid's free surface at depths of points."""
        if max(geometry.receiver_axes.max(), geometry.source_axes.max()) >= 0:
            raise InputError(
                "elastic waves have sources and receivers of pressure: omit components and source_components"
            )
        if self._solid_surface:
            self.check_near_surface(geometry)

    def check_near_surface(self, geometry: Geometry) -> None:
        """Raise InputError unless all stations near a solid's free surface are at depths of points."""
        spacing = self.tile.grid.spacing[-1]
        for name in ("sources", "receivers"):
            depths = np.asarray(getattr(geometry, name))[..., -1] / spacing
            between = (depths < RADIUS) & (np.abs(depths - np.rint(depths)) > 1e-6)
            if between.any():
                raise InputError(
                    f"{int(between.sum())} of the {name} are less than {RADIUS} points below the free surface of a "
                    f"solid; there, elastic waves need depths of grid points, every {spacing:g} m"
                )

    def coefficients(self, square: LocalArray) -> LocalArray:
        """Return the coefficients C for the squared velocity on the tile, for a time step of 1 s."""
        return self.moduli.coefficients(square, self._shear_like(square))

    def slope(self, velocity: LocalArray) -> LocalArray:
        """Return the derivative of the coefficients with respect to the velocity."""
        xp, shear = engine_of(velocity).xp, self._shear_like(velocity)
        return self.moduli.change(velocity, shear, xp.ones_like(velocity), xp.zeros_like(shear))

    def relative_slope(self, velocity: LocalArray) -> LocalArray:
        """Return the derivative of the coefficients that depend on the velocity, divided by them."""
        return self.moduli.relative_slope(velocity, self._shear_like(velocity))

    def host_steps(self, compiled: bool, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None) -> Any:
        """Return the steps of hosts, in Numba or in plain NumPy."""
        if compiled:
            from collops.seismic.waves.steps.numba_elastic import NumbaElasticSteps as ElasticSteps
        else:
            from collops.seismic.waves.steps.elastic import ElasticSteps
        return ElasticSteps(self.tile, slabs, dtype, threads, self.buoyancy)

    def device_steps(self, slabs: Sequence[Slab], dtype: np.dtype, xp: Any) -> Any:
        """Return the steps of a device, of which `xp` is the module of arrays."""
        from collops.seismic.waves.cuda.elastic_steps import CudaElasticSteps

        return CudaElasticSteps(self.tile, slabs, dtype, xp, self.buoyancy)

    def traced_steps(self, slabs: Sequence[Slab], dtype: np.dtype) -> Any:
        """Return the steps of JAX."""
        from collops.seismic.waves.steps.jax_laplacians import TracedElasticSteps

        return TracedElasticSteps(self.tile, slabs, dtype, None, self.buoyancy)

    def with_next(self, values: LocalArray) -> LocalArray:
        """Return the part of values on the tile and its margin that :class:`Moduli` needs."""
        return _part(values, self.tile.axes, [(self.margin, n + 1) for n in self.tile.inner])

    def _shear_like(self, like: LocalArray) -> LocalArray:
        """Return the shear velocity as an array of the engine and the type of another one."""
        return engine_of(like).xp.asarray(self._shear.astype(like.dtype, copy=False))

    def wavenumber_of(self, shear: np.ndarray, largest: float) -> float:
        r"""Return a wavenumber that bounds the eigenvalues, by the inequality of Cauchy and Schwarz.

        With the sum S of the magnitudes of the weights of a stencil, :math:`K_a = 2 S / h_a` and :math:`K^2 = \sum_a
        K_a^2`, the component a of the velocity of particles has for a largest velocity v of P waves the bound

        .. math::
            \beta \left(K^2 \langle \rho v^2 - 2 \mu \rangle_a + 2 K_a^2 \langle \mu \rangle_a
            + \sum_{c \ne a} (K_a^2 + K_c^2) \langle \mu_{ac} \rangle_c\right)

        where :math:`\langle \cdot \rangle_a` is the mean over a stencil along a. With equal spacings, constant shear
        moduli cancel. What they add elsewhere is proportional to :math:`v^2` at most, whose least value follows from
        Poisson's ratio and the `largest` shear velocity of all tiles. `shear` are the shear velocities on the tile and
        its margin.
        """
        tile, half, smallest = self.tile, self.tile.grid.order // 2, 2 * largest**2
        extended = self._density * shear**2
        means = {pair: harmonic_mean(extended, pair) for pair in combinations(tile.axes, 2)}
        inside = tuple(slice(1, -1) if axis in tile.axes else slice(None) for axis in range(3))
        density, modulus = self._density[inside], extended[inside]
        weights = np.abs(staggered_derivative(tile.grid.order))
        squares = {a: (2 * weights.sum() / h) ** 2 for a, h in zip(tile.axes, tile.grid.spacing, strict=True)}
        whole, bounds = sum(squares.values()), [0.0]
        weights = np.concatenate([weights[::-1], weights]) / (2 * weights.sum())
        for a, own in squares.items():  # from the half point before the tile to the one after
            near = [(half, n) for n in tile.inner]
            near[a] = 0, tile.inner[a] + 1
            bound, solid = (
                _part(_average(x, a, weights), tile.axes, near) * factor
                for x, factor in ((density, whole), (modulus, 2 * (own - whole)))
            )
            for c in tile.axes:
                if c != a:
                    part = [(half + 1, n) for n in tile.inner]
                    part[a], part[c] = (half, tile.inner[a] + 1), (1, tile.inner[c])
                    average = _average(means[min(a, c), max(a, c)], c, weights)
                    solid += (own + squares[c]) * _part(average, tile.axes, part)
            if smallest:
                bound += np.maximum(solid, 0) / smallest
            near[a] = half - 1, tile.inner[a] + 1
            bounds.append(float((_part(self.buoyancy[a], tile.axes, near) * bound).max()))
        return float(np.sqrt(max(bounds)))


def _average(values: np.ndarray, axis: int, weights: np.ndarray) -> np.ndarray:
    """Return weighted averages of consecutive values along an axis."""
    n, total = values.shape[axis] - len(weights) + 1, 0
    for k, weight in enumerate(weights):
        total = total + weight * values[tuple(slice(k, k + n) if d == axis else slice(None) for d in range(3))]
    return np.asarray(total)


def _part(values: np.ndarray, axes: Sequence[int], ranges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the part of an array that begins at an index and has a number of points along each axis of the grid."""
    return values[tuple(slice(f, f + n) if d in axes else slice(None) for d, (f, n) in enumerate(ranges))]
