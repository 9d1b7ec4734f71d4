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
_WIDTH, _LINE, _LINES, _SLABS = 8, 32, 8, 6
_LAYER_BLOCK = (_LINE, _LINES, 1)
_LEAD = 8  # elements of a row before its first point, at least a halo
_ALIGNMENT = 32  # of rows, in elements
# By number of axes: bytes that a thread loads at once at most, threads of a block, planes that it marches over where no
# layer reaches and elsewhere, and blocks of a multiprocessor that registers must suffice for.
_SHAPES = {1: (16, (64, 1), (1, 1), 1), 2: (16, (64, 1), (32, 8), 8), 3: (16, (16, 8), (24, 48), 4)}

_POINTERS = ("now", "next", "first", "second", "earlier", "a", "b", "c", "stored", "image", "change", "scattering")
_SHOT_POINTERS = ("clock", "slots", "signal", "reads", "columns", "weights", "traces", "adds", "receiver", "spread")
_NUMBERS = ("stride1", "samples", "receivers", "sources", "added", "surface", "slabs")
_TRIPLES = ("size", "clear", "unclear")


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
    elements : int
        Of a memory variable of all layers, stored at the points of the layers only.
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
        self._form = form = _Form.of(ndim, half, dtype, size)
        self._template, self.elements, self._layers = _template(tile, slabs, dtype, pitch, form.vector)
        self._boxes = _divide(self._template, tile.inner, ndim, form)

    def columns(self, points: np.ndarray) -> np.ndarray:
        """Return the indices in a field of points of the tile with halo, which are indices into the flat array."""
        i, j, k = np.unravel_index(points, self.tile.shape)
        return np.ravel_multi_index((i, j, k + _LEAD - self.tile.halo[2]), self.shape).astype(np.int64)

    def arguments(self, **values: Any) -> Arguments:
        """Return the arguments of all kernels: arrays by the names in ``waves.cu``, and numbers."""
        return Arguments(self._template, values)

    def forward(self, arguments: Arguments, ahead: int, sides: Sequence[Any] = ()) -> None:
        """Sample the receivers and compute the next field, with the sources.

        Receivers are sampled, and points that layers reach are computed, on the streams `sides` where there are any, at
        the same time as the other points.
        """
        self._launch("advance", self._layers, _LAYER_BLOCK, arguments, ahead)
        self._propagate("forward", arguments, ahead, sides, partial(self.record, arguments, ahead))

    def record(self, arguments: Arguments, ahead: int) -> None:
        """Sample the receivers only."""
        if arguments.receivers:
            self._launch("record", _blocks(arguments.receivers), _LAYER_BLOCK, arguments, ahead)

    def inject(self, arguments: Arguments, ahead: int) -> None:
        """Add the residuals of the next sample to the adjoint field."""
        if arguments.added:
            self._launch("inject", _blocks(arguments.added), _LAYER_BLOCK, arguments, ahead)

    def adjoint(self, arguments: Arguments, ahead: int, sides: Sequence[Any] = ()) -> None:
        """Compute the adjoint field before, and add to the image; see :meth:`forward`."""
        self._launch("recede", self._layers, _LAYER_BLOCK, arguments, ahead)
        self._propagate("adjoint", arguments, ahead, sides)

    def tick(self, arguments: Arguments, by: int) -> None:
        """Move the clock on."""
        self._launch("tick", 1, (1, 1, 1), arguments, by)

    def _propagate(
        self, name: str, arguments: Arguments, ahead: int, sides: Sequence[Any], *others: Callable[[], None]
    ) -> None:
        *layers, inner = (
            partial(self._launch, f"{name}_{group}", blocks, self._form.block, arguments, ahead)
            for group, blocks in enumerate(self._boxes)
        )
        works = [*others, *(work for work, blocks in zip(layers, self._boxes, strict=False) if blocks)]
        if sides:
            return side_by_side(inner, works, sides[: len(works)])
        for work in (*works, inner):
            work()

    def _launch(self, name: str, blocks: int, block: Any, arguments: Arguments, ahead: int) -> None:
        if blocks:
            launch(self._form.kernel(name), (blocks, 1, 1), block, arguments, ahead)


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


def launch(kernel: Any, grid: tuple[int, int, int], block: tuple[int, int, int], arguments: Any, ahead: int) -> None:
    """Launch a kernel on the current stream."""
    import cupy

    stream = cupy.cuda.get_current_stream().ptr
    cupy.cuda.driver.launchKernel(kernel.kernel.ptr, *grid, *block, 0, stream, arguments.parameters(ahead), 0)


def address_of(array: LocalArray) -> int:
    """Return the address of an array on a device."""
    return array.data.ptr


@cache
def kernels(device: int, name: str, options: tuple[str, ...]) -> Any:
    """Compile a source for one device."""
    import cupy

    source = Path(__file__).with_name(name).read_text(encoding="utf-8")
    contraction = () if cupy.cuda.runtime.is_hip else ("--fmad=false",)
    with cupy.cuda.Device(device):
        return cuda_module(source, (*options, *contraction))


class _Form:
    """How points are shared out among threads, and the kernels for it."""

    def __init__(
        self, options: tuple[str, ...], ndim: int, vector: int, block: tuple[int, int, int], planes: tuple[int, int]
    ) -> None:
        self._options, self._ndim, self.vector = options, ndim, vector
        self.block, self.planes = block, planes
        self._compiled: dict[str, Any] = {}

    @classmethod
    def of(cls, ndim: int, half: int, dtype: np.dtype, size: int) -> _Form:
        """Return the form for rows of so many points."""
        widest, (across, down), planes, blocks = _SHAPES[ndim]
        most = min(widest // dtype.itemsize, half + 1)  # so that coefficients are known at all points of a vector
        vector = next(v for v in (4, 2, 1) if size % v == 0 and v <= most)
        options = [f"-DNDIM={ndim}", f"-DHALF={half}", f"-DVEC={vector}", f"-DBX={across}", f"-DBY={down}"]
        options += [f"-DBLOCKS={blocks if half <= 4 else 1}", *["-DCOLLOPS_DOUBLE"] * (dtype.itemsize == 8)]
        return cls(tuple(options), ndim, vector, (across, down, 1), planes)

    def kernel(self, name: str) -> Any:
        """Return a kernel for the current device."""
        if name not in self._compiled:
            self._compiled[name] = kernels(current_device(), "waves.cu", self._options).get_function(name)
        return self._compiled[name]


def current_device() -> int:
    """Return the number of the current device."""
    import cupy

    return cupy.cuda.Device().id


def _blocks(threads: int) -> int:
    return -(-threads // (_LINE * _LINES))


def step_type(dtype: np.dtype) -> np.dtype:
    """Return the dtype of ``Step`` in waves.cu, with the layout of the C struct."""
    slab = np.dtype(
        [
            ("origin", np.int64),
            *((name, np.int32) for name in ("axis", "first", "last", "begin", "end")),
            *((name, np.int32) for name in ("profile", "stride0", "stride1", "block")),
        ],
        align=True,
    )
    numbers = [(name, np.int32) for name in ("columns", "rows", "planes", "block")]
    box = np.dtype([("first", np.int32, (3,)), ("last", np.int32, (3,)), *numbers], align=True)
    return np.dtype(
        [
            *((name, np.uint64) for name in (*_POINTERS, *_SHOT_POINTERS, "points")),
            *((name, np.int64) for name in ("origin", "stride0", "storage")),
            *((name, np.int32) for name in _NUMBERS),
            *((name, np.int32, (3,)) for name in _TRIPLES),
            ("slab_of", np.int32, (4,)),
            ("box_of", np.int32, (5,)),
            *((name, np.int32, (3,)) for name in ("source_first", "source_size")),
            ("center", dtype),
            ("centers", dtype, (3,)),
            ("seconds", dtype, (3, _WIDTH)),
            ("firsts", dtype, (3, _WIDTH)),
            ("slab", slab, (_SLABS,)),
            ("box", box, (_SLABS + 1,)),
        ],
        align=True,
    )


def _template(
    tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, pitch: int, vector: int
) -> tuple[np.ndarray, int, int]:
    """Return the arguments of a tile, the elements of a memory variable, and the blocks that advance one."""
    step = np.zeros((), step_type(dtype))
    centers, seconds, firsts = tile.stencils(dtype)
    half, axes = tile.grid.order // 2, list(tile.axes)
    step["center"] = centers.sum(dtype=dtype)
    step["centers"][axes] = centers
    step["seconds"][axes, :half], step["firsts"][axes, :half] = seconds, firsts
    step["stride0"], step["stride1"] = tile.shape[1] * pitch, pitch
    step["origin"] = tile.halo[0] * tile.shape[1] * pitch + tile.halo[1] * pitch + _LEAD
    step["surface"], step["size"], step["unclear"] = tile.surface, tile.inner, tile.inner
    blocks = profiles = elements = 0
    for slab, row in zip(slabs, step["slab"], strict=False):
        axis, (first, last), (begin, end) = slab.axis, slab.zone, _layer(slab, vector)
        shape = [end - begin if a == axis else n for a, n in enumerate(tile.inner)]
        strides = (shape[1] * shape[2], shape[2], 1)
        row["axis"], row["first"], row["last"], row["block"] = axis, first, last, blocks
        row["begin"], row["end"], row["profile"] = begin, end, profiles - slab.begin
        row["stride0"], row["stride1"], row["origin"] = *strides[:2], elements - begin * strides[axis]
        if first == 0:
            step["clear"][axis] = max(last, step["clear"][axis])
        else:
            step["unclear"][axis] = min(first, step["unclear"][axis])
        blocks += _layer_blocks(shape, axis, len(axes), vector)
        profiles += slab.a.size
        elements += math.prod(shape)
    step["slabs"] = len(slabs)
    step["slab_of"] = [sum(slab.axis < axis for slab in slabs) for axis in range(4)]
    return step, elements, blocks


def _layer(slab: Slab, vector: int) -> tuple[int, int]:
    """Return the first index in a layer and the index after the last; of the contiguous axis, of whole vectors."""
    inside = slab.begin + np.flatnonzero(slab.a)
    if not inside.size:
        return slab.zone[0], slab.zone[0]
    begin, end = int(inside[0]), int(inside[-1]) + 1
    return (begin // vector * vector, -(-end // vector) * vector) if slab.axis == 2 else (begin, end)


def _layer_blocks(shape: Sequence[int], axis: int, ndim: int, vector: int) -> int:
    """Return the blocks that advance the memory variables of a layer."""
    if axis == 2:
        return _blocks(math.prod(shape) // vector)
    lines = shape[0] if ndim == 3 and axis == 1 else shape[1]
    return -(-shape[2] // (vector * _LINE)) * -(-lines // _LINES)


def _divide(step: np.ndarray, size: tuple[int, ...], ndim: int, form: _Form) -> list[int]:
    """Divide the tile into groups of boxes, and return the blocks of each group: see ``box_of`` in waves.cu.

    Along rows, boxes consist of complete blocks, so that their rows are aligned.
    """
    wide = form.vector * form.block[0]
    low, high = step["clear"].tolist(), step["unclear"].tolist()
    low[2] = -(-low[2] // wide) * wide
    if high[2] < size[2]:
        high[2] = high[2] // wide * wide
    if any(before >= after for before, after in zip(low, high, strict=True)):
        low[3 - ndim] = high[3 - ndim] = size[3 - ndim]  # all points are in the first group
    groups: list[list[tuple[list[int], list[int]]]] = []
    first, last = [0, 0, 0], list(size)
    for axis in range(3):
        below, above = [*last], [*first]
        below[axis], above[axis] = low[axis], high[axis]
        groups.append([([*first], below), (above, [*last])])
        first[axis], last[axis] = low[axis], high[axis]
    groups.append([(first, last)])
    number, counts = 0, []
    for group, boxes in enumerate(groups):
        step["box_of"][group], blocks = number, 0
        for first, last in boxes:
            extents = [after - before for before, after in zip(first, last, strict=True)]
            if min(extents) > 0:
                box, planes = step["box"][number], form.planes[group < 3]
                rows, marched = (extents[1], extents[0]) if ndim == 3 else (1, extents[1])
                box["first"], box["last"], box["block"], box["planes"] = first, last, blocks, planes
                box["columns"], box["rows"] = -(-extents[2] // wide), -(-rows // form.block[1])
                blocks, number = blocks + int(box["columns"] * box["rows"]) * -(-marched // planes), number + 1
        counts.append(blocks)
    step["box_of"][-1] = number
    return counts
