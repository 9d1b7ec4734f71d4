"""The operator of variable density, on a staggered grid: the reference of other forms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.staggered import StaggeredSteps


class DensitySteps(StaggeredSteps):
    r"""One step of the leapfrog scheme with variable density on a tile, and its transpose.

    The scheme is :math:`u^{n+1} = 2 u^n - u^{n-1} + c w^n`, where :math:`c = \rho v^2 \Delta t^2` and :math:`w^n` is

    .. math::
        \sum_a D_a^- \left(\beta_a D_a^+ u^n\right)

    with first derivatives from points to half points and back [1]_, and the buoyancy :math:`\beta_a` of the mean
    density of both sides of a half point. In a layer, the memory variable :math:`\psi \gets b \psi + a \beta
    D^+ u` is added to the flux :math:`\beta D^+ u`, and :math:`\zeta \gets b \zeta + a D^- (\beta D^+ u + \psi)` to its
    derivative. The transposed scheme is propagated multiplied by c, as in the class ``Steps`` of NumPy. It has
    :math:`t \gets b t + a \kappa`, the flux :math:`\phi = \beta D^+ (\kappa + t)`, :math:`r \gets b r + a \phi`, and
    :math:`\sum D^- (\phi + r)` for the Laplacian.

    Parameters
    ----------
    tile : Tile
        The tile, with a halo of the order of the grid less 1 where other tiles are.
    slabs : sequence of Slab
        Its layers.
    dtype : numpy.dtype
        float32 or float64.
    threads : int
        Ignored: NumPy computes on one thread.
    buoyancy : dict
        Of :class:`VariableDensity`.

    References
    ----------
    .. [1] Virieux, J., "SH-wave propagation in heterogeneous media: velocity-stress finite-difference method",
       Geophysics 49(11), 1933-1942, 1984.
    """

    def __init__(
        self,
        tile: Tile,
        slabs: Sequence[Slab],
        dtype: np.dtype,
        threads: int | None,
        buoyancy: dict[int, np.ndarray],
    ) -> None:
        super().__init__(tile, slabs, dtype)
        # At the half points whose fluxes differ from zero: beyond the ends of the grid there are none.
        self._outside: dict[int, tuple[int, int]] = {}
        for axis in tile.axes:
            before, after = tile.beside[axis]
            self._outside[axis] = (0 if before else self._half - 1, 0 if after else self._half - 1)
        self._buoyancy = {}
        for axis, (low, high) in self._outside.items():
            part = slice(low, buoyancy[axis].shape[axis] - high)
            own = tuple(part if a == axis else slice(None) for a in range(3))
            self._buoyancy[axis] = np.ascontiguousarray(buoyancy[axis][own], dtype)

    def laplacian(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out`, on the tile, with the operator applied to a field with halo; see :meth:`forward`."""
        self.applied(u, (self._variables(memory[0], 1), self._variables(memory[1], 0)), out)

    def transposed(self, u: np.ndarray, memory: np.ndarray, out: np.ndarray) -> None:
        """Fill `out` with the transpose of the operator, applied to a field with halo."""
        r, t = self._variables(memory[0], 1), self._variables(memory[1], 0)
        u, fluxes = self._mirrored(u), {}
        for axis in self._tile.axes:
            summed = u
            for layer, own in self._across(axis, t):
                summed = u.copy() if summed is u else summed
                start = tuple(map(sum, zip(layer.full.start, self._tile.halo, strict=True)))
                self._decayed(own, layer.full._replace(start=start), u, start, summed)
            fluxes[axis] = self._flux(summed, axis)
            for layer, own in self._across(axis, r):
                self._decayed(own, layer.half, fluxes[axis], layer.half.start, fluxes[axis])
            fluxes[axis] = self._closed(fluxes[axis], axis)
        self._divergence(fluxes, out)

    def applied(
        self, u: LocalArray, memory: tuple[list[LocalArray], list[LocalArray]], out: np.ndarray | None = None
    ) -> tuple[LocalArray, tuple[list[LocalArray], list[LocalArray]]]:
        """Return the result, in `out` if it is passed, and the next memory variables, changed in place if possible."""
        u, fluxes, psi, zeta = self._mirrored(u), {}, *map(list, memory)
        for axis in self._tile.axes:
            flux = self._flux(u, axis)
            for number, layer in enumerate(self._layers):
                if layer.axis == axis:
                    psi[number], flux = self._decayed(psi[number], layer.half, flux, layer.half.start, flux)
            fluxes[axis] = self._closed(flux, axis)
        total = self._divergence(fluxes, out)
        for number, layer in enumerate(self._layers):
            start = tuple(n + self._half * (axis == layer.axis) for axis, n in enumerate(layer.full.start))
            change = self._difference(fluxes[layer.axis], start, zeta[number].shape, layer.axis)
            zeta[number], total = self._decayed(zeta[number], layer.full, change, (0, 0, 0), total)
        return total, (psi, zeta)

    def _mirrored(self, u: LocalArray) -> LocalArray:
        """Return a field with its halo above a free surface."""
        if not self._tile.surface:
            return u
        half, halo = self._half, self._tile.halo[2]
        return self._replaced(u, (..., slice(halo - half, halo)), -u[..., halo + half : halo : -1])

    def _flux(self, u: LocalArray, axis: int) -> LocalArray:
        """Return the derivative times the buoyancy at the half points along an axis, with zeros outside the grid.

        The half points extend half a stencil beyond the tile.
        """
        buoyancy = self._buoyancy[axis]
        flux = buoyancy * self._difference(u, self._start(axis), buoyancy.shape, axis)
        return self._padded(flux, [self._outside[axis] if a == axis else (0, 0) for a in range(3)])

    def _start(self, axis: int) -> list[int]:
        """Return the point of a field after the first half point of the buoyancy along an axis."""
        back = self._half - 1 - self._outside[axis][0]
        return [width - back * (a == axis) for a, width in enumerate(self._tile.halo)]

    def _closed(self, flux: LocalArray, axis: int) -> LocalArray:
        """Return a flux with its mirror image above a free surface."""
        if not self._tile.surface or axis < 2:
            return flux
        half = self._half
        return self._replaced(flux, (..., slice(half)), flux[..., 2 * half - 1 : half - 1 : -1])

    def _divergence(self, fluxes: dict[int, LocalArray], out: LocalArray) -> LocalArray:
        """Return the sum of the derivatives of the fluxes at all points, in `out` unless it is ``None``."""
        total = None
        for axis, flux in fluxes.items():
            start = tuple(self._half if a == axis else 0 for a in range(3))
            change = self._difference(flux, start, self._tile.inner, axis)
            total = change if total is None else total + change
        if out is None:
            return total
        out[...] = total
        return out

    def _across(self, axis: int, *variables: list[np.ndarray]) -> Iterator[tuple[Any, ...]]:
        """Yield the layers across an axis with their memory variables."""
        return (found for found in zip(self._layers, *variables, strict=True) if found[0].axis == axis)

    def _variables(self, memory: np.ndarray, more: int) -> list[np.ndarray]:
        """Return one memory variable of each layer as views: at half points if `more` is 1, else at points."""
        views = []
        for slab in self._slabs:
            shape = self._shape(slab, more)
            views.append(memory[slab.offset : slab.offset + math.prod(shape)].reshape(shape))
        return views

    def _shape(self, slab: Slab, more: int) -> tuple[int, ...]:
        """Return the shape of a memory variable, which is smaller than the memory of the slab."""
        width = self._tile.grid.layers.width
        return tuple(width + more if axis == slab.axis else n for axis, n in enumerate(self._tile.inner))
