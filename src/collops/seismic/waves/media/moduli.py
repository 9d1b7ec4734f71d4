"""The coefficients of elastic media as functions of both velocities, their derivative and its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import engine_of
from collops.seismic.waves.grid import Tile
from collops.seismic.waves.media.variable_density import between
from collops.seismic.waves.steps.elastic import stress_components


class Moduli:
    r"""The coefficients of elastic media on a tile, for any velocities v of P waves and :math:`v_S` of S waves.

    With :math:`\mu = \rho v_S^2` and, for n axes, :math:`g = 2 (n - 1) / n`, the coefficient of a shear stress is the
    harmonic mean of :math:`\mu` at the four grid points around it. Differences of normal stresses have :math:`\mu`, and
    the mean stress, the last field, has the bulk modulus :math:`\rho v^2 - g \mu`.

    At a free surface the last two fields have :math:`2 n` and 4 times the modulus of plane stress,
    :math:`\mu (1 - g v_S^2 / v^2)`. The other coefficients of grid points there are doubled, since L is halved.

    Where :math:`v_S` is 0, the derivatives of all coefficients with respect to it are 0: fluids remain fluid.

    Arrays are of any engine. Velocities of P waves are on the tile, and velocities of S waves also at the next point
    after it along each axis.

    Parameters
    ----------
    tile : Tile
        The tile.
    density : numpy.ndarray
        The density, on the tile and at the next point after it along each axis.
    """

    def __init__(self, tile: Tile, density: np.ndarray) -> None:
        self._tile, self._next_density = tile, density
        self._pairs = list(combinations(tile.axes, 2))
        self._factor = 2 - 2 / len(tile.axes)  # g

    def admits(self, velocity: LocalArray, shear: LocalArray) -> bool:
        """Return whether Poisson's ratio is positive or 0 everywhere."""
        own = self._own(shear)
        return bool((velocity * velocity >= (2 - 1e-9) * own * own).all())

    def coefficients(self, square: LocalArray, shear: LocalArray) -> LocalArray:
        """Return the coefficients C for the squared velocity of P waves, for a time step of 1 s."""
        modulus = self._density(square) * (shear * shear)
        own, ratio = self._own(modulus), self._own(shear * shear) / square
        bulk = self._own(self._density(square)) * square - self._factor * own
        means = [harmonic_mean(modulus, pair) for pair in self._pairs]
        return self._fields(means, own, bulk, own * (1 - self._factor * ratio))

    def change(
        self, velocity: LocalArray, shear: LocalArray, of_velocity: LocalArray, of_shear: LocalArray
    ) -> LocalArray:
        r"""Return the derivative of C along changes of both velocities.

        The harmonic mean changes by its square times the mean of :math:`\delta \mu / \mu^2`.
        """
        density, square = self._density(velocity), shear * shear
        modulus, change = density * square, 2 * density * shear * of_shear
        own, ratio = self._own(change), self._own(square) / (velocity * velocity)
        bulk = 2 * self._own(density) * velocity * of_velocity - self._factor * own
        plane = own * (1 - 2 * self._factor * ratio)
        plane += 2 * self._factor * self._own(modulus) * ratio / velocity * of_velocity
        relative = _quotient(change, modulus * modulus)
        means = []
        for pair in self._pairs:
            mean = harmonic_mean(modulus, pair)
            means.append(mean * mean * between(between(relative, pair[0]), pair[1]))
        return self._fields(means, own, bulk, plane)

    def relative_slope(self, velocity: LocalArray, shear: LocalArray) -> LocalArray:
        """Return the derivative of the coefficients that depend on the velocity of P waves, divided by them."""
        square, smaller = velocity * velocity, self._smaller(shear)
        changing = square.copy()
        if self._tile.surface:
            changing[..., 0] = smaller[..., 0]
        return 2 / velocity * changing / (square - smaller)

    def gradient(
        self, velocity: LocalArray, shear: LocalArray, images: LocalArray, near: Sequence[LocalArray]
    ) -> tuple[LocalArray, LocalArray]:
        r"""Return the gradients with respect to both velocities: the transpose of :meth:`change`.

        Parameters
        ----------
        velocity, shear : array
            The velocities.
        images : array
            Of all fields, on the tile: the adjoint field, multiplied by C, times the stored wavefield, over all times.
        near : sequence of array
            The images of the shear stresses times their harmonic means, also at the points before the tile; 0 where the
            grid ends.
        """
        n, square, smaller = len(self._tile.axes), velocity * velocity, self._smaller(shear)
        mean, differences, factor = images[-1].copy(), images[-n:-1].sum(axis=0), -smaller
        if self._tile.surface:
            mean[..., 0] += images[-2][..., 0]
            differences[..., 0] = images[-n:-2, ..., 0].sum(axis=0)
            factor[..., 0] += square[..., 0] - smaller[..., 0]
        of_velocity = self.relative_slope(velocity, shear) * mean
        total = differences + mean * factor / (square - smaller)
        folded = sum(self._folded(values, pair) for values, pair in zip(near, self._pairs, strict=True))
        own = self._own(shear)
        total += _quotient(folded, self._own(self._density(velocity)) * own * own)
        return of_velocity, 2 * _quotient(total, own)

    def weighted(self, shear: LocalArray, images: LocalArray) -> list[LocalArray]:
        """Return the images of the shear stresses times their harmonic means, on the tile."""
        modulus = self._density(shear) * (shear * shear)
        means = (harmonic_mean(modulus, pair) for pair in self._pairs)
        return [self._own(mean) * image for mean, image in zip(means, images, strict=False)]

    def _fields(
        self, means: Sequence[LocalArray], modulus: LocalArray, bulk: LocalArray, plane: LocalArray
    ) -> LocalArray:
        """Return values for all fields: as in the tile, and with the values of plane stress at a free surface."""
        n, xp = len(self._tile.axes), engine_of(modulus).xp
        fields = [*map(self._own, means), *[modulus] * (n - 1), bulk]
        if self._tile.surface:
            tops = [
                (1 if a != c == 2 else 2) * x
                for x, (a, c) in zip(fields, stress_components(self._tile.axes), strict=True)
            ]
            tops[-2:] = 2 * n * plane, 4 * plane
            fields = [xp.concatenate([t[..., :1], x[..., 1:]], axis=-1) for t, x in zip(tops, fields, strict=True)]
        return xp.stack(fields)

    def _density(self, like: LocalArray) -> LocalArray:
        """Return the density as an array of the engine and the type of another one."""
        return engine_of(like).xp.asarray(self._next_density.astype(like.dtype, copy=False))

    def _smaller(self, shear: LocalArray) -> LocalArray:
        """Return what the bulk modulus lacks, divided by the density."""
        own = self._own(shear)
        return self._factor * (own * own)

    def _own(self, values: LocalArray) -> LocalArray:
        """Return the values on the tile."""
        return values[tuple(slice(n) for n in self._tile.inner)]

    def _folded(self, values: LocalArray, pair: tuple[int, int]) -> LocalArray:
        """Return the transpose of the mean of four neighbours; where the grid ends, edge values continued."""
        xp = engine_of(values).xp
        values = values[tuple(slice(int(axis in self._tile.axes and axis not in pair), None) for axis in range(3))]
        for axis in pair:
            last = not self._tile.beside[axis][1]
            if last:
                values = xp.pad(values, [(0, int(axis == a)) for a in range(3)])
            values = xp.moveaxis(between(values, axis), axis, 0)
            if last:
                values[-2] += values[-1]
                values = values[:-1]
            values = xp.moveaxis(values, 0, axis)
        return values


def harmonic_mean(values: LocalArray, axes: Sequence[int]) -> LocalArray:
    """Return the harmonic means of four neighbours along two axes: 0 if one of them is 0, or below normal numbers."""
    xp = engine_of(values).xp
    positive = values >= np.finfo(values.dtype).tiny  # JAX takes smaller ones for 0, and their reciprocals overflow
    # Two selections, so that JAX differentiates no quotient by 0.
    inverse = xp.where(positive, 1 / xp.where(positive, values, 1), np.inf)
    return 1 / between(between(inverse, axes[0]), axes[1])


def _quotient(x: LocalArray, y: LocalArray) -> LocalArray:
    """Return quotients, 0 where the divisor is 0."""
    xp = engine_of(y).xp
    return xp.where(y > 0, x / xp.where(y > 0, y, 1), 0)
