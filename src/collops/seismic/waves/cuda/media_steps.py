"""The operators of media on a device, by the kernels of ``media.cu``: the steps of hosts, with their parts replaced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.cuda.media_kernels import MECHANISMS, MediaKernels, Variable
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.density import DensitySteps
from collops.seismic.waves.steps.host import HostSteps
from collops.seismic.waves.steps.relaxation import RelaxationSteps
from collops.seismic.waves.steps.vti import VTISteps


class CudaMediaSteps(HostSteps):
    """Steps whose products with the coefficients are kernels; coefficients have the form of the attribute `matrix`.

    Classes derive from this one and from the steps of hosts, and set `kernels`.
    """

    kernels: MediaKernels

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


class _OneKernelSteps(CudaMediaSteps):
    """Steps that one kernel completes, after those that advance memory variables of the layers."""

    # By kernel, the ones before it, and the number of the variables that they advance.
    _before: ClassVar[dict[str, Sequence[tuple[str, int]]]]

    def forward(
        self,
        u: LocalArray,
        before: LocalArray,
        memory: LocalArray,
        c: LocalArray,
        stored: Any = None,
        scatter: tuple[LocalArray, LocalArray] | None = None,
        **relaxation: Any,
    ) -> None:
        """Replace the field `before` by the field after `u`; see :meth:`HostSteps.forward`.

        `relaxation` has the memory variables and the gains of a filter after the operator, on the tile.
        """
        change, w = scatter or (None, None)
        values = {"before": before[self._box], "c": c, "out": stored, "change": change, "w": w, **relaxation}
        self._step("forward", u, memory, **values)

    def adjoint(
        self, u: LocalArray, before: LocalArray, memory: LocalArray, c: LocalArray, w: Any, image: LocalArray
    ) -> None:
        """Replace `before` by the adjoint field before `u`, and add to the image; see :meth:`HostSteps.adjoint`."""
        self._step("adjoint", u, memory, before=before[self._box], c=c, w=w, image=image)

    def laplacian(self, u: LocalArray, memory: LocalArray, out: Any, **relaxation: Any) -> None:
        """Fill `out`, on the tile, with the operator applied to a field with halo; see :meth:`forward`."""
        self._step("forward", u, memory, out=out, **relaxation)

    def transposed(self, u: LocalArray, memory: LocalArray, out: Any) -> None:
        """Fill `out` with the transpose of the operator, applied to a field with halo."""
        self._step("adjoint", u, memory, out=out)

    def _step(self, name: str, u: LocalArray, memory: LocalArray, **values: Any) -> None:
        fields = {"u": u[self._box], "first": memory[0], "second": memory[1]}
        if self._tile.surface:
            self.kernels.mirror(fields["u"])
        for before, which in self._before[name]:
            self.kernels.layers(before, which, **fields)
        self.kernels.march(name, **fields, **values)


class CudaLaplacianSteps(_OneKernelSteps):
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
    """

    _before: ClassVar = {"forward": [("advance", 0)], "adjoint": [("recede_t", 1), ("recede", 0)]}

    def __init__(self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, xp: Any) -> None:
        super().__init__(tile, dtype)
        layers = []
        for slab in slabs:
            part = Variable(slab.offset, slab.shape, slab.begin, *slab.zone, slab.a, slab.b, slab.begin)
            layers.append((slab.axis, part, part))
        centers, seconds, firsts = tile.stencils(dtype)
        self.kernels = MediaKernels(tile, dtype, xp, self.matrix, layers, "LAPLACIAN")
        self.kernels.put(center=[part.sum(dtype=dtype) for part in self._parts(centers)])
        self.kernels.put_by_axis(tile.axes, centers=centers, seconds=seconds, firsts=firsts)

    def _parts(self, values: np.ndarray) -> list[np.ndarray]:
        """Return values of all axes, divided among the fields."""
        return [values]


class CudaVTISteps(CudaLaplacianSteps):
    """The steps of VTI media, whose last field has the derivatives along the last axis."""

    fields, matrix = VTISteps.fields, VTISteps.matrix

    def column(self, c: LocalArray) -> LocalArray:
        """Return the second columns of the matrices."""
        return c[1:]

    def _parts(self, values: np.ndarray) -> list[np.ndarray]:
        return [values[:-1], values[-1:]]


class CudaDensitySteps(_OneKernelSteps, DensitySteps):
    """The steps with variable density. Fluxes near layers are in memory that the next step overwrites.

    Parameters as of :class:`DensitySteps`, and `xp` for arrays on the device.
    """

    _before: ClassVar = {"forward": [("advance", 2)], "adjoint": [("recede_t", 1), ("recede", 2)]}

    def __init__(
        self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, xp: Any, buoyancy: dict[int, np.ndarray]
    ) -> None:
        super().__init__(tile, slabs, dtype, None, buoyancy)
        layers, size, ends = [], 0, [0, 0, 0]
        for slab, layer in zip(slabs, self._layers, strict=True):
            axis, variables = slab.axis, []
            for more, recursion in ((1, layer.half), (0, layer.full)):
                first, shape = recursion.start[axis], self._shape(slab, more)
                values = recursion.a.reshape(-1).astype(dtype), recursion.b.reshape(-1).astype(dtype)
                variables.append(Variable(slab.offset, shape, first, first, first + shape[axis], *values, first))
            # Fluxes that depend on t of the layer, which include those with r, unless the layer before has them.
            points = variables[1]
            first, last = max(points.first, ends[axis]), points.last + 2 * self._half - 1
            shape = tuple(last - first if a == axis else n for a, n in enumerate(tile.inner))
            none = np.empty(0, dtype)
            layers.append((axis, *variables, Variable(size, shape, first, first, last, none, none, 0)))
            size, ends[axis] = size + math.prod(shape), last
        self.kernels = MediaKernels(tile, dtype, xp, self.matrix, layers, "FLUXES")
        low, high = zip(*(self._outside.get(axis, (0, 0)) for axis in range(3)), strict=True)
        half_points = [n + 2 * self._half - 1 for n in tile.inner]
        self.kernels.put(low=low, high=np.subtract(half_points, high))
        buoyancies = [xp.asarray(self._buoyancy[axis]) for axis in tile.axes]
        weights = [self._weights[axis] for axis in tile.axes]
        self.kernels.put_by_axis(tile.axes, firsts=weights, buoyancy=buoyancies)
        self.kernels.put_array(edge=xp.empty(size, dtype))


class CudaRelaxationSteps(RelaxationSteps):
    """The steps of viscoacoustic media; parameters as of :class:`RelaxationSteps`, and `xp` of the device."""

    def __init__(
        self,
        tile: Tile,
        slabs: Sequence[Slab],
        dtype: np.dtype,
        xp: Any,
        steps: CudaMediaSteps,
        decays: np.ndarray,
        gains: np.ndarray,
    ) -> None:
        super().__init__(tile, slabs, dtype, None, steps, decays, gains)
        self._xp, self.kernels = xp, steps.kernels
        self._gains = xp.asarray(self._gains)
        self.kernels.define("RELAXED")
        self.kernels.put(mechanisms=len(decays), decays=np.pad(self._decays, (0, MECHANISMS - len(decays))))
        self._buffer(0)  # of the adjoint: recorded steps cannot allocate memory
        self._filtered = xp.empty((*self.fields, *tile.shape), dtype)

    def forward(
        self,
        u: LocalArray,
        before: LocalArray,
        memory: LocalArray,
        c: LocalArray,
        stored: Any = None,
        scatter: tuple[LocalArray, LocalArray] | None = None,
    ) -> None:
        """Replace the field `before` by the field after `u`; see :meth:`HostSteps.forward`."""
        layers, relaxed = self._parts(memory)
        self._steps.forward(u, before, layers, c, stored, scatter, **self._filter(relaxed, self._tile.box))

    def laplacian(self, u: LocalArray, memory: LocalArray, out: Any) -> None:
        """Fill `out`, on the tile, with the filtered result of the operator for a field with halo."""
        layers, relaxed = self._parts(memory)
        self._steps.laplacian(u, layers, out, **self._filter(relaxed, self._tile.box))

    def relax(self, signal: LocalArray, memory: LocalArray, begin: Sequence[int], out: Any) -> None:
        """Fill `out` with a filtered signal on the tile, whose first point is at `begin`; memory variables advance."""
        size = signal.shape[-3:]
        box = tuple(slice(first, first + n) for first, n in zip(begin, size, strict=True))
        self.kernels.points("relax", size, u=signal, out=out, **self._filter(memory, box))

    def _filter(self, memory: LocalArray, box: tuple[slice, ...]) -> dict[str, LocalArray]:
        """Return the memory variables and the gains in a box, with axes of mechanisms and of fields."""
        relaxed = memory.reshape(len(memory), -1, *self._tile.shape)[(..., *box)]
        return {"relaxed": relaxed, "gains": self._gains[:, np.newaxis][(..., *box)]}
