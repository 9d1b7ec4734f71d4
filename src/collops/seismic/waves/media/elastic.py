"""The isotropic elastic medium: its moduli on the staggered grid, and the stability of its scheme."""

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
from collops.seismic.waves.media.variable_density import VariableDensity, between, buoyancy_between
from collops.seismic.waves.stencil import staggered_derivative
from collops.seismic.waves.steps.elastic import layer_elements, stress_components

_Pair = tuple[int, int]


class Elastic(VariableDensity):
    r"""A medium with P and S waves, in plane strain if it has two axes; see :class:`ElasticSteps` for the scheme.

    Of the coefficients only the one of the last field, the mean stress, depends on the velocity v of P waves: it is the
    bulk modulus, for n axes :math:`\rho (v^2 - g v_S^2)` with :math:`g = 2 (n - 1) / n`. The others are shear moduli.
    Between grid points the harmonic mean of the moduli of the four neighbours counts, and the mean of two densities, so
    that there may be fluids in the medium [1]_.

    At a free surface the last two fields have coefficients of plane stress, which also depend on v. All coefficients of
    grid points there are doubled, since L is halved.

    Parameters
    ----------
    tile : Tile
        The tile.
    shear_velocity : array
        The velocity of S waves in m/s, of the grid's shape; 0 in fluids.
    density : array, optional
        The density in kg/m³; constant by default.

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
        self._factor = 2 - 2 / len(tile.axes)  # g
        self._shear_square = tile.values(shear) ** 2
        self._solid_surface = grid.free_surface and bool((shear[..., 0] > 0).any())
        more = grid.order // 2 + 1
        extended = tile.values(values, None, more)
        modulus = tile.values(values * shear**2, None, more)
        means = {pair: _harmonic_mean(modulus, pair) for pair in combinations(tile.axes, 2)}
        near = tuple(slice(1, -1) if axis in tile.axes else slice(None) for axis in range(3))
        self.buoyancy = {axis: buoyancy_between(extended[near], axis) for axis in tile.axes}
        self.wavenumber = self._elastic_wavenumber(extended[near], modulus[near], means, 2 * shear.max() ** 2)
        self._constant, self._of_surface = self._moduli(means)

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
        least = engine_of(velocity).xp.asarray((2 - 1e-9) * self._shear_square)
        return bool((velocity * velocity >= least).all())

    def check_stations(self, geometry: Geometry) -> None:
        """Raise InputError unless all stations are of pressure, and near a solid's free surface at depths of points."""
        if max(geometry.receiver_axes.max(), geometry.source_axes.max()) >= 0:
            raise InputError(
                "elastic waves have sources and receivers of pressure: omit components and source_components"
            )
        if not self._solid_surface:
            return
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
        xp = engine_of(square).xp
        constant, bulk, of_surface = (
            xp.asarray(x.astype(square.dtype, copy=False)) for x in (self._constant, self._bulk, self._of_surface)
        )
        fields = [*constant[:-1], constant[-1] + bulk * square]
        for number, divided in zip((-2, -1), of_surface, strict=False):
            top = fields[number][..., :1] + divided / square[..., :1]
            fields[number] = xp.concatenate([top, fields[number][..., 1:]], axis=-1)
        return xp.stack(fields)

    def slope(self, velocity: LocalArray) -> LocalArray:
        """Return the derivative of the coefficients with respect to the velocity."""
        xp = engine_of(velocity).xp
        slope = xp.zeros((*self.fields, *self.tile.inner))
        slope[-1] = 2 * velocity * xp.asarray(self._bulk)
        top = velocity[..., :1]
        for number, divided in zip((-2, -1), xp.asarray(self._of_surface), strict=False):
            slope[number, ..., :1] = -2 * divided / (top * top * top)
        return slope

    def relative_slope(self, velocity: LocalArray) -> LocalArray:
        """Return the derivative of the coefficients that depend on the velocity, divided by them."""
        smaller, square = engine_of(velocity).xp.asarray(self._factor * self._shear_square), velocity * velocity
        changing = square.copy()
        if self.tile.surface:
            changing[..., 0] = smaller[..., 0]
        return 2 / velocity * changing / (square - smaller)

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

    @property
    def _bulk(self) -> np.ndarray:
        """The factors of the squared velocity in the coefficients of the last field: the density."""
        factors = self.density.copy()
        if self.tile.surface:
            factors[..., 0] = 0
        return factors

    def _moduli(self, means: dict[_Pair, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts of the coefficients that do not depend on the velocity, and that are divided by its square.

        The latter are of the last two fields at a free surface. The `means` of moduli extend half a stencil and one
        point beyond the tile.
        """
        tile, n = self.tile, len(self.tile.axes)
        first, modulus = tile.grid.order // 2 + 1, self.density * self._shear_square
        constant, divided = np.zeros((*self.fields, *tile.inner)), []
        for field, values in zip(constant, means.values(), strict=False):
            field[...] = _part(values, tile.axes, [(first, m) for m in tile.inner])
        constant[-n:-1], constant[-1] = modulus, -self._factor * modulus
        if tile.surface:
            for field, (a, c) in zip(constant, stress_components(tile.axes), strict=True):
                field[..., 0] *= 1 if a != c == 2 else 2
            for number, factor in ((-2, 2 * n), (-1, 4)):
                constant[number, ..., 0] = factor * modulus[..., 0]
                divided.append(-self._factor * (constant[number] * self._shear_square)[..., :1])
        return constant, np.array(divided)

    def _elastic_wavenumber(
        self, density: np.ndarray, modulus: np.ndarray, means: dict[_Pair, np.ndarray], smallest: float
    ) -> float:
        r"""Return a wavenumber that bounds the eigenvalues, by the inequality of Cauchy and Schwarz.

        With the sum S of the magnitudes of the weights of a stencil, :math:`K_a = 2 S / h_a` and :math:`K^2 = \sum_a
        K_a^2`, the component a of the velocity of particles has for a largest velocity v of P waves the bound

        .. math::
            \beta \left(K^2 \langle \rho v^2 - 2 \mu \rangle_a + 2 K_a^2 \langle \mu \rangle_a
            + \sum_{c \ne a} (K_a^2 + K_c^2) \langle \mu_{ac} \rangle_c\right)

        where :math:`\langle \cdot \rangle_a` is the mean over a stencil along a. With equal spacings, constant shear
        moduli cancel. What they add elsewhere is proportional to :math:`v^2` at most, of which
        `smallest` is the least value that Poisson's ratio allows.
        """
        tile, half = self.tile, self.tile.grid.order // 2
        weights = np.abs(staggered_derivative(tile.grid.order))
        squares = {a: (2 * weights.sum() / h) ** 2 for a, h in zip(tile.axes, tile.grid.spacing, strict=True)}
        whole, largest = sum(squares.values()), 0.0
        weights = np.concatenate([weights[::-1], weights]) / (2 * weights.sum())
        for a, own in squares.items():  # from the half point before the tile to the one after
            near = [(half, n) for n in tile.inner]
            near[a] = 0, tile.inner[a] + 1
            bound, shear = (
                _part(_average(x, a, weights), tile.axes, near) * factor
                for x, factor in ((density, whole), (modulus, 2 * (own - whole)))
            )
            for c in tile.axes:
                if c != a:
                    part = [(half + 1, n) for n in tile.inner]
                    part[a], part[c] = (half, tile.inner[a] + 1), (1, tile.inner[c])
                    average = _average(means[min(a, c), max(a, c)], c, weights)
                    shear += (own + squares[c]) * _part(average, tile.axes, part)
            if smallest:
                bound += np.maximum(shear, 0) / smallest
            near[a] = half - 1, tile.inner[a] + 1
            largest = max(largest, float((_part(self.buoyancy[a], tile.axes, near) * bound).max()))
        return float(np.sqrt(largest))


def _harmonic_mean(values: np.ndarray, axes: _Pair) -> np.ndarray:
    """Return the harmonic means of four neighbours along two axes: 0 if one of them is 0."""
    inverse = np.divide(1, values, out=np.full(values.shape, np.inf), where=values > 0)
    return 1 / between(between(inverse, axes[0]), axes[1])


def _average(values: np.ndarray, axis: int, weights: np.ndarray) -> np.ndarray:
    """Return weighted averages of consecutive values along an axis."""
    n, total = values.shape[axis] - len(weights) + 1, 0
    for k, weight in enumerate(weights):
        total = total + weight * values[tuple(slice(k, k + n) if d == axis else slice(None) for d in range(3))]
    return np.asarray(total)


def _part(values: np.ndarray, axes: Sequence[int], ranges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the part of an array that begins at an index and has a number of points along each axis of the grid."""
    return values[tuple(slice(f, f + n) if d in axes else slice(None) for d, (f, n) in enumerate(ranges))]
