"""The operators of media on a device, by the kernels of ``media.cu``: the steps of hosts, with their parts replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.cuda.media_kernels import MediaKernels, Variable
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.density import DensitySteps
from collops.seismic.waves.steps.host import HostSteps
from collops.seismic.waves.steps.vti import VTISteps


class CudaMediaSteps(HostSteps):
    """Steps whose products with the coefficients are kernels; coefficients have the form of the attribute `matrix`.

    Classes derive from this one and from the steps of hosts, and set `kernels`.
    """

    kernels: MediaKernels

    def _use(self, xp: Any) -> None:
        """Use arrays of a device. What `forward` and `adjoint` need is allocated: recorded steps cannot do it."""
        self._xp = xp
        if self._tile.grid.time_order == 2:
            self._buffer(0)

    def leap(self, u: LocalArray, before: LocalArray, c: LocalArray, w: Any) -> None:
        """Replace `before` by the field after `u`, of which `w` is the Laplacian."""
        self.kernels.points("leap", u=u[self._box], before=before[self._box], c=c, w=w)

    def multiply(self, c: LocalArray, w: Any, out: LocalArray) -> None:
        """Fill `out` with the product of the coefficients with fields."""
        self.kernels.points("multiply", c=c, w=w, out=out)

    def add_product(self, c: LocalArray, w: Any, out: LocalArray) -> None:
        """Add the product of the coefficients with fields to `out`."""
        self.kernels.points("add_product", c=c, w=w, out=out)

    def correlate(self, u: LocalArray, w: Any, image: LocalArray, factor: float = 1.0) -> None:
        """Add the inner products of fields, the first multiplied by a factor, to an image."""
        self.kernels.points("correlate", u=u, w=w, image=image, factor=factor)

    def combine(self, u: Any, factor: float, w: Any) -> None:
        """Replace w by its multiple plus u."""
        self.kernels.points("combine", u=u, w=w, factor=factor)


class CudaLaplacianSteps(CudaMediaSteps):
    """The Laplacian with layers and constant coefficients, as of the class ``Steps`` of NumPy.

    Parameters
    ----------
    tile : Tile
        The tile.
    slabs : sequence of Slab
        Its layers.
    dtype : numpy.dtype
        float32 or float64.
    xp : module
        Of arrays on the device.
    axes : sequence of int, optional
        The axes, of three, along which to differentiate; all by default.
    matrix : tuple of tuple of int, optional
        Of the steps of which this is a part, so that one compilation serves both.
    """

    def __init__(
        self,
        tile: Tile,
        slabs: Sequence[Slab],
        dtype: np.dtype,
        xp: Any,
        axes: Sequence[int] | None = None,
        matrix: tuple[tuple[int, ...], ...] = HostSteps.matrix,
    ) -> None:
        super().__init__(tile, dtype)
        axes = tile.axes if axes is None else axes
        self._mirrors = tile.surface and 2 in axes
        layers = []
        for slab in slabs:
            if slab.axis in axes:
                part = Variable(slab.offset, slab.shape, slab.begin, *slab.zone, slab.a, slab.b, slab.begin)
                layers.append((slab.axis, part, part))
        centers, seconds, firsts = tile.stencils(dtype, axes)
        self.kernels = MediaKernels(tile, dtype, xp, matrix, layers)
        self.kernels.put(axes=np.isin(range(3), axes), center=centers.sum(dtype=dtype))
        self.kernels.put_by_axis(axes, centers=centers, seconds=seconds, firsts=firsts)

    def laplacian(self, u: LocalArray, memory: LocalArray, out: Any) -> None:
        """Fill `out`, on the tile, with the Laplacian of a field with halo; see :meth:`forward`."""
        u, (psi, zeta) = self._own(u), memory
        self.kernels.layers("advance_psi", 0, u=u, first=psi)
        self.kernels.points("laplacian", u=u, first=psi, second=zeta, w=out)

    def transposed(self, u: LocalArray, memory: LocalArray, out: Any) -> None:
        """Fill `out` with the transpose of the Laplacian, applied to a field with halo."""
        u, (r, t) = self._own(u), memory
        self.kernels.layers("recede_t", 1, u=u, second=t)
        self.kernels.layers("recede_r", 0, u=u, first=r, second=t)
        self.kernels.points("transposed", u=u, first=r, second=t, w=out)

    def _own(self, u: LocalArray) -> LocalArray:
        """Return the tile in a field, whose halo above a free surface is filled."""
        u = u[self._box]
        if self._mirrors:
            self.kernels.mirror(u)
        return u


class CudaVTISteps(CudaMediaSteps, VTISteps):
    """The steps of VTI media; parameters as of :class:`VTISteps`, and `xp` for arrays on the device."""

    def __init__(self, tile: Tile, dtype: np.dtype, xp: Any, horizontal: Any, vertical: Any) -> None:
        super().__init__(tile, dtype, horizontal, vertical)
        self._use(xp)
        self.kernels = MediaKernels(tile, dtype, xp, self.matrix)


class CudaDensitySteps(CudaMediaSteps, DensitySteps):
    """The steps with variable density; fluxes are in memory that the next step overwrites.

    Parameters as of :class:`DensitySteps`, and `xp` for arrays on the device.
    """

    def __init__(
        self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, xp: Any, buoyancy: dict[int, np.ndarray]
    ) -> None:
        super().__init__(tile, slabs, dtype, None, buoyancy)
        self._use(xp)
        layers = []
        for slab, layer in zip(slabs, self._layers, strict=True):
            variables = []
            for more, recursion in ((1, layer.half), (0, layer.full)):
                first, shape = recursion.start[slab.axis], self._shape(slab, more)
                values = recursion.a.reshape(-1).astype(dtype), recursion.b.reshape(-1).astype(dtype)
                variables.append(Variable(slab.offset, shape, first, first, first + shape[slab.axis], *values, first))
            layers.append((slab.axis, *variables))
        self.kernels = MediaKernels(tile, dtype, xp, self.matrix, layers)
        self._more = 2 * self._half - 1
        shapes = ([n + self._more * (a == axis) for a, n in enumerate(tile.inner)] for axis in tile.axes)
        fluxes = [xp.zeros(shape, dtype) for shape in shapes]
        buoyancies = [xp.asarray(self._buoyancy[axis]) for axis in tile.axes]
        weights = [self._weights[axis] for axis in tile.axes]
        self.kernels.put(axes=np.isin(range(3), tile.axes))
        self.kernels.put_by_axis(tile.axes, firsts=weights, flux=fluxes, buoyancy=buoyancies)

    def laplacian(self, u: LocalArray, memory: LocalArray, out: Any) -> None:
        """Fill `out`, on the tile, with the operator applied to a field with halo; see :meth:`forward`."""
        u, (psi, zeta) = self._own(u), memory
        self._fluxes("flux", u=u, first=psi)
        self.kernels.points("divergence", second=zeta, w=out)

    def transposed(self, u: LocalArray, memory: LocalArray, out: Any) -> None:
        """Fill `out` with the transpose of the operator, applied to a field with halo."""
        u, (r, t) = self._own(u), memory
        self.kernels.layers("recede_t", 1, u=u, second=t)
        self._fluxes("flux_of_adjoint", u=u, first=r, second=t)
        self.kernels.points("divergence_of_adjoint", w=out)

    def _fluxes(self, name: str, **values: Any) -> None:
        """Compute the fluxes along all axes."""
        for axis in self._tile.axes:
            more = [self._more * (a == axis) for a in range(3)]
            low, high = self._outside[axis]
            high = self._tile.inner[axis] + self._more - high
            self.kernels.points(name, more, axis=axis, low=low, high=high, **values)

    def _own(self, u: LocalArray) -> LocalArray:
        """Return the tile in a field, whose halo above a free surface is filled."""
        u = u[self._box]
        if self._tile.surface:
            self.kernels.mirror(u)
        return u
