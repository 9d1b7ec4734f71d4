"""The operator of elastic media on a device, by the kernels of ``elastic.cu``: two launches for all derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.cuda import steps as cuda_steps
from collops.seismic.waves.cuda.media_kernels import VIEW, Arguments, MediaKernels
from collops.seismic.waves.cuda.media_steps import CudaMediaSteps
from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.elastic import ElasticSteps, Zone, normal_stresses

# As in elastic.cu.
_WIDTH, _LINE = 8, 16
_SHAPES = {2: (1, 16), 3: (4, 4)}  # planes and rows of a block
_ZONES = 18  # of stress, and as many of velocity
_WIDEST_LOAD = 16  # bytes

_Zones = dict[tuple[int, int], list[Zone]]


class CudaElasticSteps(CudaMediaSteps, ElasticSteps):
    """The steps of elastic media; components of velocity are in memory that the next step overwrites.

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
    buoyancy : dict
        Of :class:`Elastic`.
    """

    def __init__(
        self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, xp: Any, buoyancy: dict[int, np.ndarray]
    ) -> None:
        super().__init__(tile, slabs, dtype, None, buoyancy)
        self._xp = xp
        self.kernels = MediaKernels(tile, dtype, xp, self.matrix)  # what all media have in common
        ndim = len(tile.axes)
        double = ["-DCOLLOPS_DOUBLE"] * (dtype.itemsize == 8)
        # Points that a thread computes: rows of all arrays begin at a multiple of them.
        widest = _WIDEST_LOAD // dtype.itemsize
        self._vector = next(v for v in (4, 2, 1) if v <= widest and tile.inner[2] % v == 0 and self._half % v == 0)
        self._options = (f"-DNDIM={ndim}", f"-DHALF={self._half}", f"-DVEC={self._vector}", *double)
        self._compiled: dict[str, Any] = {}
        self._block = (_LINE, math.prod(_SHAPES[ndim]), 1)
        self._kept: list[LocalArray] = []  # live as long as their addresses
        boxes = self._boxes.values()
        self._begin = [min(begin[d] for begin, _ in boxes) for d in range(3)]
        self._begin[2] -= self._begin[2] % self._vector
        end = [max(begin[d] + shape[d] for begin, shape in boxes) for d in range(3)]
        self._of_tile = self._grid(tile.inner)
        self._of_boxes = self._grid([last - first for first, last in zip(self._begin, end, strict=True)])
        step = self._step()
        self._forward, self._adjoint = (self._with_zones(step, zones) for zones in (self._after, self._before))

    def forward(
        self,
        u: LocalArray,
        before: LocalArray,
        memory: LocalArray,
        c: LocalArray,
        stored: Any = None,
        scatter: tuple[LocalArray, LocalArray] | None = None,
    ) -> None:
        """Replace the fields `before` by the fields after `u`; see :meth:`HostSteps.forward`."""
        values: dict[str, Any] = {"u": u[self._box], "first": memory[0], "second": memory[1]}
        self._launch("velocity", self._forward, self._of_boxes, **values)
        values |= {"before": before[self._box], "c": c}
        if stored is not None:
            values |= {"w": stored, "stores": True}
        if scatter is not None:
            values |= {"change": scatter[0], "scattering": scatter[1], "scatters": True}
        self._launch("advance", self._forward, self._of_tile, **values)

    def adjoint(
        self, u: LocalArray, before: LocalArray, memory: LocalArray, c: LocalArray, w: Any, image: LocalArray
    ) -> None:
        """Replace `before` by the adjoint fields before `u`, and add to the image; see :meth:`HostSteps.adjoint`."""
        values = self._velocity_of_adjoint(u, memory)
        values |= {"before": before[self._box], "c": c, "w": w, "factor": 1, **_image(image)}
        self._launch("retreat", self._adjoint, self._of_tile, **values)

    def laplacian(self, u: LocalArray, memory: LocalArray, out: Any) -> None:
        """Fill `out`, on the tile, with the operator applied to fields with halo; see :meth:`forward`."""
        values = {"u": u[self._box], "first": memory[0], "second": memory[1]}
        self._launch("velocity", self._forward, self._of_boxes, **values)
        self._launch("laplacian", self._forward, self._of_tile, w=out, **values)

    def transposed(self, u: LocalArray, memory: LocalArray, out: Any) -> None:
        """Fill `out` with the transpose of the operator, applied to fields with halo."""
        values = self._velocity_of_adjoint(u, memory)
        self._launch("transposed", self._adjoint, self._of_tile, w=out, **values)

    def correlate(self, u: LocalArray, w: Any, image: LocalArray, factor: float = 1.0) -> None:
        """Add the products of the fields to an image; see :meth:`ElasticSteps.correlate`."""
        self._launch("correlate", self._adjoint, self._of_tile, u=u, w=w, factor=factor, **_image(image))

    def _velocity_of_adjoint(self, u: LocalArray, memory: LocalArray) -> dict[str, Any]:
        """Compute the velocity in the transposed scheme, and return the arguments of the next kernel."""
        values: dict[str, Any] = {"u": u[self._box], "first": memory[0], "second": memory[1]}
        self._recede("recede_stress", self._before[0], **values)
        self._launch("velocity_of_adjoint", self._adjoint, self._of_boxes, **values)
        self._recede("recede_velocity", self._before[1], **values)
        return values

    def _recede(self, name: str, zones: _Zones, **values: Any) -> None:
        """Advance the memory variables of the adjoint in all zones."""
        largest = max((math.prod(zone.shape) for own in zones.values() for zone in own), default=0)
        if largest:
            self._launch(name, self._adjoint, (-(-largest // math.prod(self._block)), _ZONES, 1), **values)

    def _launch(self, name: str, step: np.ndarray, grid: tuple[int, int, int], **values: Any) -> None:
        arguments = Arguments(step, values)
        if name not in self._compiled:
            compiled = cuda_steps.kernels(cuda_steps.current_device(), "elastic.cu", self._options)
            self._compiled[name] = compiled.get_function(name)
        cuda_steps.launch(self._compiled[name], grid, self._block, arguments, arguments.ahead)

    def _grid(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the blocks for so many points."""
        planes, rows = _SHAPES[len(self._tile.axes)]
        return -(-shape[2] // (_LINE * self._vector)), -(-shape[1] // rows), -(-shape[0] // planes)

    def _step(self) -> np.ndarray:
        """Return the arguments of all launches, without zones."""
        tile, step, xp = self._tile, np.zeros((), step_type(self._dtype)), self._xp
        extents = [n + tile.grid.order * (d in tile.axes) for d, n in enumerate(tile.inner)]
        velocity, buoyancy = xp.zeros((2, len(tile.axes), *extents), self._dtype)  # 0 outside the boxes
        self._kept += [velocity, buoyancy]
        step["velocity"], step["buoyancy"] = map(cuda_steps.address_of, (velocity, buoyancy))
        step["plane"], step["row"] = plane, row = extents[1] * extents[2], extents[2]
        step["size"], step["begin"], step["surface"] = tile.inner, self._begin, tile.surface
        step["third"] = normal_stresses(3)[0, 1]
        origin = [self._half * (d in tile.axes) for d in range(3)]
        for own, (a, (begin, shape)) in zip(buoyancy, self._boxes.items(), strict=True):
            own[tuple(slice(o + b, o + b + n) for o, b, n in zip(origin, begin, shape, strict=True))] = xp.asarray(
                self._buoyancy[a]
            )
            number = a - tile.axes[0]
            step["origin"][a] = (number * extents[0] + origin[0]) * plane + origin[1] * row + origin[2]
            step["box_begin"][a], step["box_end"][a] = begin, [b + n for b, n in zip(begin, shape, strict=True)]
            step["weights"][a, : self._half] = self._weights[a]
        return step

    def _with_zones(self, step: np.ndarray, tables: tuple[_Zones, _Zones]) -> np.ndarray:
        """Return arguments with the memory variables of stress and of velocity, and their coefficients."""
        step, begin = step.copy(), 0
        profiles = [np.empty(0, self._dtype)], [np.empty(0, self._dtype)]
        for rows, zones in zip(step["zone"], tables, strict=True):
            offset = 0
            for (a, axis), own in zones.items():
                for row, zone in zip(rows[a, axis], own, strict=False):
                    first, start, shape = zone.start[axis], [*zone.start], [*zone.shape]
                    if axis < 2:  # rows of whole vectors
                        start[2] -= start[2] % self._vector
                        shape[2] = -(-(zone.start[2] + shape[2]) // self._vector) * self._vector - start[2]
                    strides = shape[1] * shape[2], shape[2], 1
                    row["origin"] = offset - sum(n * stride for n, stride in zip(start, strides, strict=True))
                    row["plane"], row["row"] = strides[:2]
                    row["first"], row["last"] = first, first + shape[axis]
                    row["profile"] = begin - first
                    for values, found in zip(profiles, (zone.recursion.a, zone.recursion.b), strict=True):
                        values.append(found.reshape(-1))
                    begin, offset = begin + shape[axis], offset + -(-math.prod(shape) // self._vector) * self._vector
        coefficients = [self._xp.asarray(np.concatenate(values)) for values in profiles]
        step["a"], step["b"] = map(cuda_steps.address_of, coefficients)
        self._kept += coefficients
        return step


def _image(image: LocalArray) -> dict[str, Any]:
    """Return the arguments for an image, which has one axis more if it is of all fields."""
    return {"image": image, "images": image.ndim > 3}


def step_type(dtype: np.dtype) -> np.dtype:
    """Return the dtype of ``Step`` in elastic.cu, with the layout of the C struct."""
    arrays = ("first", "second", "a", "b", "c", "velocity", "image", "clock", "buoyancy")
    numbers = ("plane", "row", "first", "last", "profile")
    zone = np.dtype([("origin", np.int64), *((name, np.int32) for name in numbers)], align=True)
    return np.dtype(
        [
            *((name, VIEW) for name in ("u", "before", "w", "change", "scattering")),
            *((name, np.uint64) for name in arrays),
            ("origin", np.int64, (3,)),
            *((name, np.int32) for name in ("plane", "row")),
            *((name, np.int32, (3,)) for name in ("size", "begin")),
            *((name, np.int32, (3, 3)) for name in ("box_begin", "box_end")),
            *((name, np.int32) for name in ("surface", "stores", "scatters", "images")),
            ("zone", zone, (2, 3, 3, 2)),
            ("factor", dtype),
            ("third", dtype),
            ("weights", dtype, (3, _WIDTH)),
        ],
        align=True,
    )
