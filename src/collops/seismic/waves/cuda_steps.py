"""Time steps on a device: compiles the kernels of ``waves.cu``, and launches them with little host time.

All kernels have one argument, a struct, in which the arrays of a step stay the same while a shot is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import cuda_module
from collops.seismic.graphs import side_by_side
from collops.seismic.waves.grid import Slab, Tile

# As in waves.cu.
_WIDTH, _LINE, _LINES, _DEPTH, _SLABS = 8, 32, 8, 24, 6
_LAYER_BLOCK = (_LINE, _LINES, 1)
_LEAD = 8  # elements of a row before its first point, at least a halo
_ALIGNMENT = 32  # of rows, in elements
# By number of axes: bytes that a thread loads at once at most, threads of a block, planes that it marches over, and
# blocks of a multiprocessor that registers must suffice for.
_SHAPES = {1: (8, (128, 1), 1, 1), 2: (8, (128, 1), 32, 8), 3: (8, (32, 8), 96, 4)}

_POINTERS = ("now", "next", "first", "second", "earlier", "a", "b", "c", "stored", "image", "change", "scattering")
_SHOT_POINTERS = ("clock", "slots", "signal", "reads", "columns", "weights", "traces", "adds", "receiver", "spread")
_NUMBERS = ("stride1", "samples", "receivers", "sources", "added", "surface", "slabs", "blocks", "planes", "boxes")
_TRIPLES = ("size", "low", "high", "clear", "unclear")


class CudaSteps:
    """The kernels for a tile, how arrays are arranged for them, and what does not depend on model and shot.

    Parameters
    ----------
    tile : Tile
        The tile.
    slabs : sequence of Slab
        Its layers.
    dtype : numpy.dtype
        float32 or float64.

    Attributes
    ----------
    shape : tuple of int
        Of a field: with halos, and with rows that begin and end with further elements.
    window : tuple of slice
        The tile with its halo in a field.
    a, b : numpy.ndarray
        Coefficients of the recursions of all slabs.
    """

    def __init__(self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype) -> None:
        self.tile, self.dtype = tile, dtype
        halo, size = tile.halo[2], tile.inner[2]
        pitch = -(-(2 * _LEAD + size) // _ALIGNMENT) * _ALIGNMENT
        self.shape = (*tile.shape[:2], pitch)
        self.window = (slice(None), slice(None), slice(_LEAD - halo, _LEAD + size + halo))
        none = np.empty(0, dtype)
        self.a, self.b = (np.concatenate([none, *parts]) for parts in ([s.a for s in slabs], [s.b for s in slabs]))
        ndim, half = len(tile.axes), tile.grid.order // 2
        self._form = _Form.of(ndim, half, dtype, size)
        self._template = _template(tile, slabs, dtype, pitch, self._form.planes)
        self._border = _divide(self._template, tile.inner, ndim, self._form.vector)
        inner = [int(high - low) for low, high in zip(self._template["low"], self._template["high"], strict=True)]
        self._inner = self._form.grid(inner) if min(inner) > 0 else None
        self._layers = int(self._template["blocks"])

    def columns(self, points: np.ndarray) -> np.ndarray:
        """Return the indices in a field of points of the tile with halo, which are indices into the flat array."""
        i, j, k = np.unravel_index(points, self.tile.shape)
        return np.ravel_multi_index((i, j, k + _LEAD - self.tile.halo[2]), self.shape).astype(np.int64)

    def arguments(self, **values: Any) -> Arguments:
        """Return the arguments of all kernels: arrays by the names in ``waves.cu``, and numbers."""
        return Arguments(self._template, values)

    def forward(self, arguments: Arguments, ahead: int, side: Any = None) -> None:
        """Sample the receivers and compute the next field, with the sources.

        Layers are computed on the stream `side` where there is one, beside the rest.
        """
        blocks = self._layers + _blocks(arguments.receivers)

        def layers() -> None:
            if blocks:
                self._launch("advance", (blocks, 1, 1), _LAYER_BLOCK, arguments, ahead)
            self._launch_border("forward", arguments, ahead)

        self._with_layers(layers, "forward", arguments, ahead, side)

    def record(self, arguments: Arguments, ahead: int) -> None:
        """Sample the receivers only."""
        if arguments.receivers:
            self._launch("record", (_blocks(arguments.receivers), 1, 1), _LAYER_BLOCK, arguments, ahead)

    def inject(self, arguments: Arguments, ahead: int) -> None:
        """Add the residuals of the next sample to the adjoint field."""
        if arguments.added:
            self._launch("inject", (_blocks(arguments.added), 1, 1), _LAYER_BLOCK, arguments, ahead)

    def adjoint(self, arguments: Arguments, ahead: int, side: Any = None) -> None:
        """Compute the adjoint field before, and add to the image; see :meth:`forward`."""

        def layers() -> None:
            if self._layers:
                self._launch("recede", (self._layers, 1, 1), _LAYER_BLOCK, arguments, ahead)
            self._launch_border("adjoint", arguments, ahead)

        self._with_layers(layers, "adjoint", arguments, ahead, side)

    def tick(self, arguments: Arguments, by: int) -> None:
        """Move the clock on."""
        self._launch("tick", (1, 1, 1), (1, 1, 1), arguments, by)

    def _with_layers(self, layers: Callable[[], None], name: str, arguments: Arguments, ahead: int, side: Any) -> None:
        if self._inner is None:
            return layers()
        launch_inner = partial(self._launch, name, self._inner, self._form.block, arguments, ahead)
        if side is not None:
            return side_by_side(launch_inner, layers, side)
        layers()
        launch_inner()

    def _launch_border(self, name: str, arguments: Arguments, ahead: int) -> None:
        if self._border:
            self._launch(f"{name}_border", (self._border, 1, 1), _LAYER_BLOCK, arguments, ahead)

    def _launch(self, name: str, grid: Any, block: Any, arguments: Arguments, ahead: int) -> None:
        launch(self._form.kernel(name), grid, block, arguments, ahead)


class Arguments:
    """The arguments of a launch, and the arrays that they are the addresses of."""

    def __init__(self, template: np.ndarray, values: dict[str, Any]) -> None:
        self._struct, self._ahead = template.copy(), np.zeros(1, np.int32)
        self._arrays = [value for value in values.values() if hasattr(value, "dtype")]
        for name, value in values.items():
            self._struct[name] = address_of(value) if hasattr(value, "dtype") else value
        self.receivers, self.added = int(self._struct["receivers"]), int(self._struct["added"])
        self._addresses = np.array([self._struct.ctypes.data, self._ahead.ctypes.data], np.uint64)

    def parameters(self, ahead: int) -> int:
        """Return the address of the addresses of the arguments, as the driver takes them; it copies the arguments."""
        self._ahead[0] = ahead
        return self._addresses.ctypes.data


def launch(
    kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], arguments: Arguments, ahead: int
) -> None:
    """Launch a kernel on the current stream."""
    import cupy

    stream = cupy.cuda.get_current_stream().ptr
    cupy.cuda.driver.launchKernel(kernel.kernel.ptr, *grid, *block, 0, stream, arguments.parameters(ahead), 0)


def address_of(array: LocalArray) -> int:
    """Return the address of an array on a device."""
    return array.data.ptr


@cache
def kernels(device: int, options: tuple[str, ...]) -> Any:
    """Compile waves.cu for one device."""
    import cupy

    source = Path(__file__).with_name("waves.cu").read_text(encoding="utf-8")
    contraction = () if cupy.cuda.runtime.is_hip else ("--fmad=false",)
    with cupy.cuda.Device(device):
        return cuda_module(source, (*options, *contraction))


class _Form:
    """How points are shared out among threads, and the kernels for it."""

    def __init__(
        self, options: tuple[str, ...], ndim: int, vector: int, block: tuple[int, int, int], planes: int
    ) -> None:
        self._options, self._ndim, self.vector = options, ndim, vector
        self.block, self.planes = block, planes
        self._compiled: dict[str, Any] = {}

    @classmethod
    def of(cls, ndim: int, half: int, dtype: np.dtype, size: int) -> _Form:
        """Return the form for rows of so many points."""
        widest, (across, down), planes, blocks = _SHAPES[ndim]
        vector = next(v for v in (4, 2, 1) if size % v == 0 and v * dtype.itemsize <= widest)
        options = [f"-DNDIM={ndim}", f"-DHALF={half}", f"-DVEC={vector}", f"-DBX={across}", f"-DBY={down}"]
        options += [f"-DBLOCKS={blocks if half <= 4 else 1}", *["-DCOLLOPS_DOUBLE"] * (dtype.itemsize == 8)]
        return cls(tuple(options), ndim, vector, (across, down, 1), planes)

    def grid(self, size: Sequence[int]) -> tuple[int, int, int]:
        """Return the blocks of a launch for all points."""
        rows, marched = (size[1], size[0]) if self._ndim == 3 else (1, size[1])
        return -(-size[2] // (self.vector * self.block[0])), -(-rows // self.block[1]), -(-marched // self.planes)

    def kernel(self, name: str) -> Any:
        """Return a kernel for the current device."""
        if name not in self._compiled:
            self._compiled[name] = kernels(_device(), self._options).get_function(name)
        return self._compiled[name]


def _device() -> int:
    import cupy

    return cupy.cuda.Device().id


def _blocks(threads: int) -> int:
    return -(-threads // (_LINE * _LINES))


def step_type(dtype: np.dtype) -> np.dtype:
    """Return the dtype of ``Step`` in waves.cu, with the layout of the C struct."""
    slab = np.dtype(
        [
            ("origin", np.int64),
            *((name, np.int32) for name in ("axis", "first", "last", "profile", "stride0", "stride1", "block")),
        ],
        align=True,
    )
    box = np.dtype([("first", np.int32, (3,)), ("size", np.int32, (3,)), ("block", np.int32)], align=True)
    return np.dtype(
        [
            *((name, np.uint64) for name in (*_POINTERS, *_SHOT_POINTERS, "points")),
            *((name, np.int64) for name in ("origin", "stride0", "storage")),
            *((name, np.int32) for name in _NUMBERS),
            *((name, np.int32, (3,)) for name in _TRIPLES),
            ("slab_of", np.int32, (4,)),
            *((name, np.int32, (3,)) for name in ("source_first", "source_size")),
            ("center", dtype),
            ("centers", dtype, (3,)),
            ("seconds", dtype, (3, _WIDTH)),
            ("firsts", dtype, (3, _WIDTH)),
            ("slab", slab, (_SLABS,)),
            ("box", box, (_SLABS,)),
        ],
        align=True,
    )


def _template(tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, pitch: int, planes: int) -> np.ndarray:
    """Return the arguments that depend on the tile only."""
    step = np.zeros((), step_type(dtype))
    centers, seconds, firsts = tile.stencils(dtype)
    half, axes = tile.grid.order // 2, list(tile.axes)
    step["center"] = centers.sum(dtype=dtype)
    step["centers"][axes] = centers
    step["seconds"][axes, :half], step["firsts"][axes, :half] = seconds, firsts
    step["stride0"], step["stride1"] = tile.shape[1] * pitch, pitch
    step["origin"] = tile.halo[0] * tile.shape[1] * pitch + tile.halo[1] * pitch + _LEAD
    step["surface"], step["planes"], step["size"], step["high"] = tile.surface, planes, tile.inner, tile.inner
    blocks = profiles = 0
    for slab, row in zip(slabs, step["slab"], strict=False):
        (first, last), strides = slab.zone, (math.prod(slab.shape[1:]), slab.shape[2], 1)
        row["axis"], row["first"], row["last"], row["block"] = slab.axis, first, last, blocks
        row["stride0"], row["stride1"] = strides[:2]
        row["origin"] = slab.offset - slab.begin * strides[slab.axis]
        row["profile"] = profiles - slab.begin
        if first == 0:
            step["low"][slab.axis] = max(last, step["low"][slab.axis])
        else:
            step["high"][slab.axis] = min(first, step["high"][slab.axis])
        extents = [last - first if axis == slab.axis else n for axis, n in enumerate(tile.inner)]
        if len(axes) == 3 and slab.axis < 2:
            extents[slab.axis] = 1  # threads march along it
        lines = 0 if len(axes) == 3 and slab.axis == 1 else 1
        blocks += -(-extents[2] // _LINE) * -(-extents[lines] // _LINES) * extents[1 - lines]
        profiles += slab.a.size
    step["slabs"], step["blocks"] = len(slabs), blocks
    step["clear"], step["unclear"] = step["low"], step["high"]
    step["slab_of"] = [sum(slab.axis < axis for slab in slabs) for axis in range(4)]
    return step


def _divide(step: np.ndarray, size: tuple[int, ...], ndim: int, vector: int) -> int:
    """Divide the tile into points that no layer reaches, in whole vectors, and boxes; return the blocks of these."""
    low, high = step["low"], step["high"]
    low[2], high[2] = -(-low[2] // vector) * vector, high[2] // vector * vector
    if ndim == 1 or (low >= high).any():
        low[:], high[:] = size, size  # threads march nowhere
    blocks, number, first, last = 0, 0, [0, 0, 0], list(size)
    for axis in range(3):
        for begin, end in ((0, int(low[axis])), (int(high[axis]), size[axis])):
            lower, upper = [*first], [*last]
            lower[axis], upper[axis] = begin, end
            extents = [after - before for before, after in zip(lower, upper, strict=True)]
            if min(extents) > 0:
                step["box"][number]["first"], step["box"][number]["size"] = lower, extents
                step["box"][number]["block"] = blocks
                blocks += -(-extents[0] // _DEPTH) * -(-extents[1] // _LINES) * -(-extents[2] // _LINE)
                number += 1
        first[axis], last[axis] = int(low[axis]), int(high[axis])
    step["boxes"] = number
    return blocks
