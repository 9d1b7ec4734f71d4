"""Time steps on a device: compiles the kernels of ``waves.cu``, and launches them with little host time.

All kernels have one argument, a struct, in which the arrays of a step stay the same while a shot is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from itertools import product
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
_INTERIOR, _CORNER, _EDGES, _SIDES, _KINDS, _BOXES = 3, 4, 6, 7, 8, 19
# By number of axes: threads of a block, blocks of a multiprocessor that registers must suffice for, planes that a block
# marches over in the interior, in layers across rows, and at edges.
_SHAPES = {1: ((64, 1), 1, (1, 1, 1)), 2: ((64, 1), 8, (8, 1, 2)), 3: ((16, 8), 4, (48, 48, 8))}
_LAYER_BLOCKS = 3  # likewise, in 3-D in layers
_WIDEST_LOAD, _SECTOR = 16, 32  # bytes that a thread loads at once at most, and that memory transfers at least
_WIDEST_ROW = 32  # threads along a row of a layer across rows at most

_POINTERS = ("now", "next", "first", "second", "earlier", "a", "b", "c", "stored", "image", "change", "scattering")
_SHOT_POINTERS = ("clock", "slots", "signal", "reads", "columns", "weights", "traces", "adds", "receiver", "spread")
_NUMBERS = ("stride1", "samples", "receivers", "sources", "added", "surface", "slabs")
_TRIPLES = ("size", "clear", "unclear")
_Range = tuple[int, int]
_Box = tuple[_Range, ...]


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
        clear = _clear(tile.inner, slabs, _SECTOR // dtype.itemsize)
        widest = max(clear[2][0], size - clear[2][1])
        self._form = form = _Form.of(ndim, half, dtype, size, widest)
        everywhere = [(n, n) for n in tile.inner]
        # In 3-D threads march across layers, which must be apart, and a block must have all points of a row of a layer
        # across rows. On grids with fewer axes all points that layers reach are edges: a march would take longer.
        if any(low >= high for low, high in clear) or (ndim == 3 and widest > form.vector * form.threads[2][0]):
            clear = everywhere
        kinds, edges = _boxes_of_kinds(clear, tile.inner, ndim), clear if ndim == 3 else everywhere
        self._template, self.elements, self._layers = _template(tile, slabs, edges, dtype, pitch, form.vector)
        self._boxes = _divide(self._template, kinds, ndim, form)

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
        self._propagate("forward", "advance", arguments, ahead, sides)

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
        self._propagate("adjoint", "recede", arguments, ahead, sides)

    def tick(self, arguments: Arguments, by: int) -> None:
        """Move the clock on."""
        self._launch("tick", 1, (1, 1, 1), arguments, by)

    def _propagate(self, name: str, before: str, arguments: Arguments, ahead: int, sides: Sequence[Any]) -> None:
        boxes, blocks = self._boxes, self._form.blocks

        def launch_kind(kind: int) -> None:
            if kind == _EDGES:
                self._launch(before, self._layers, _LAYER_BLOCK, arguments, ahead)
            self._launch(f"{name}_{kind}", boxes[kind], blocks[kind], arguments, ahead)

        def launch_layers() -> None:
            self._launch(before, self._layers, _LAYER_BLOCK, arguments, ahead)
            count = sum(boxes) - boxes[_INTERIOR] + -(-arguments.receivers // blocks[_INTERIOR][0])
            self._launch(name, count, blocks[_INTERIOR], arguments, ahead)

        if len(self.tile.axes) < 3:  # three launches, since more would take long compared to the work
            works = [launch_layers]
        else:
            layers = [kind for kind in (_EDGES, 0, 1, 2, _CORNER, _CORNER + 1) if boxes[kind]]
            works = [*(partial(launch_kind, kind) for kind in layers), partial(self.record, arguments, ahead)]
        if sides:
            return side_by_side(partial(launch_kind, _INTERIOR), works, sides[: len(works)])
        for work in (*works, partial(launch_kind, _INTERIOR)):
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


def source_of(name: str) -> str:
    """Return a source, after the one that it continues."""
    names = [name] if name == "waves.cu" else ["tile.cu", name]
    return "".join(Path(__file__).with_name(each).read_text(encoding="utf-8") for each in names)


@cache
def kernels(device: int, name: str, options: tuple[str, ...]) -> Any:
    """Compile a source for one device."""
    import cupy

    source = source_of(name)
    contraction = () if cupy.cuda.runtime.is_hip else ("--fmad=false",)
    with cupy.cuda.Device(device):
        return cuda_module(source, (*options, *contraction))


class _Form:
    """How points are shared out among threads, and the kernels for it."""

    def __init__(
        self,
        options: tuple[str, ...],
        vector: int,
        wide: tuple[int, int],
        narrow: tuple[int, int],
        corner: tuple[int, int],
        planes: tuple[int, int, int],
    ) -> None:
        self._options, self.vector = options, vector
        # Of each kind of points: threads along and across rows, and planes that a block marches over, 0 for all.
        self.threads = (wide, wide, narrow, wide, corner, corner, wide, narrow)
        self.planes = (0, 0, planes[1], planes[0], 0, 0, planes[2], planes[2])
        self.blocks = [(math.prod(threads), 1, 1) for threads in self.threads]
        self._compiled: dict[str, Any] = {}

    @classmethod
    def of(cls, ndim: int, half: int, dtype: np.dtype, size: int, widest: int) -> _Form:
        """Return the form for rows of `size` points, of which layers reach at most `widest` at an end."""
        wide, blocks, planes = _SHAPES[ndim]
        most = min(_WIDEST_LOAD // dtype.itemsize, half + 1)  # so that coefficients are known at all points of a vector
        vector = next(v for v in (4, 2, 1) if size % v == 0 and v <= most)
        columns = min(max(4, -(-widest // vector)), _WIDEST_ROW)
        if ndim < 3:  # blocks of all kinds have as many threads
            columns = 1 << (columns - 1).bit_length()
            narrow = corner = (columns, math.prod(wide) // columns)
        else:
            down = (128 if columns <= 16 and half <= 4 else 64) // columns  # as shared memory permits
            narrow, corner = (columns, down), (columns, (down + 1) // 2)
        names = {
            "NDIM": ndim,
            "HALF": half,
            "VEC": vector,
            "BX": wide[0],
            "BY": wide[1],
            "FX": columns,
            "FY": narrow[1],
        }
        names |= {"BLOCKS": blocks if half <= 4 else 1, "LAYER_BLOCKS": _LAYER_BLOCKS if half <= 4 else 1}
        options = [f"-D{name}={value}" for name, value in names.items()]
        options += ["-DCOLLOPS_DOUBLE"] * (dtype.itemsize == 8)
        return cls(tuple(options), vector, wide, narrow, corner, planes)

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
            *((name, np.int32, (_KINDS + 1,)) for name in ("box_of", "block_of")),
            *((name, np.int32, (3,)) for name in ("source_first", "source_size")),
            ("center", dtype),
            ("centers", dtype, (3,)),
            ("seconds", dtype, (3, _WIDTH)),
            ("firsts", dtype, (3, _WIDTH)),
            ("slab", slab, (_SLABS,)),
            ("box", box, (_BOXES,)),
        ],
        align=True,
    )


def _clear(size: Sequence[int], slabs: Sequence[Slab], unit: int) -> list[tuple[int, int]]:
    """Return the points along each axis that no layer reaches; of the last axis, from a multiple of `unit` to another.

    The last point may be smaller than the first one, if layers reach all points.
    """
    pairs = []
    for axis, n in enumerate(size):
        zones = [slab.zone for slab in slabs if slab.axis == axis]
        low = max((last for first, last in zones if first == 0), default=0)
        high = min((first for first, _ in zones if first > 0), default=n)
        if axis == 2:
            low, high = -(-low // unit) * unit, high if high == n else high // unit * unit
        pairs.append((low, high))
    return pairs


def _template(
    tile: Tile, slabs: Sequence[Slab], clear: list[tuple[int, int]], dtype: np.dtype, pitch: int, vector: int
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
    step["surface"], step["size"] = tile.surface, tile.inner
    step["clear"], step["unclear"] = zip(*clear, strict=True)
    edges = [n - (high - low) for n, (low, high) in zip(tile.inner, clear, strict=True)]
    blocks = profiles = elements = 0
    for slab, row in zip(slabs, step["slab"], strict=False):
        axis, (first, last), (begin, end) = slab.axis, slab.zone, _layer(slab, vector)
        shape = [end - begin if a == axis else n for a, n in enumerate(tile.inner)]
        strides = (shape[1] * shape[2], shape[2], 1)
        row["axis"], row["first"], row["last"], row["block"] = axis, first, last, blocks
        row["begin"], row["end"], row["profile"] = begin, end, profiles - slab.begin
        row["stride0"], row["stride1"], row["origin"] = *strides[:2], elements - begin * strides[axis]
        lines = [extent if a == axis or a == 2 else n for a, (extent, n) in enumerate(zip(shape, edges, strict=True))]
        blocks += _layer_blocks(lines, axis, len(axes), vector)
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


def _divide(step: np.ndarray, kinds: list[list[_Box]], ndim: int, form: _Form) -> list[int]:
    """Divide boxes of each kind among blocks, and return the blocks of each kind: see ``box_of`` in waves.cu."""
    number, counts = 0, []
    for kind, boxes in enumerate(kinds):
        step["box_of"][kind], blocks = number, 0
        across, down = form.threads[kind]
        along = 1 if kind % _CORNER == 1 or ndim < 3 else 0
        for pairs in boxes:
            extents = [last - first for first, last in pairs]
            box, planes = step["box"][number], min(form.planes[kind] or extents[along], extents[along])
            box["first"], box["last"] = zip(*pairs, strict=True)
            box["block"], box["planes"] = blocks, planes
            box["columns"] = -(-extents[2] // (form.vector * across))
            box["rows"] = -(-extents[1 - along] // down) if ndim == 3 else 1
            marches = -(-extents[along] // (planes if ndim == 3 else planes * down))
            blocks, number = blocks + int(box["columns"] * box["rows"]) * marches, number + 1
        counts.append(blocks)
    step["box_of"][-1] = number
    order = [_EDGES, _SIDES]  # in the kernel for all points that layers reach
    step["block_of"][1 : len(order) + 1] = np.cumsum([counts[kind] for kind in order])
    return counts


def _boxes_of_kinds(clear: list[_Range], size: tuple[int, ...], ndim: int) -> list[list[_Box]]:
    """Return the first and last indices, per axis, of the boxes of points of each kind."""
    kinds: list[list[_Box]] = [[] for _ in range(_KINDS)]
    ranges = [((0, low), (low, high), (high, n)) for (low, high), n in zip(clear, size, strict=True)]
    for parts in product(range(3), repeat=3):
        across, beside = [axis for axis in (0, 1) if parts[axis] != 1], parts[2] != 1
        box = [pairs[part] for pairs, part in zip(ranges, parts, strict=True)]
        rows = len(across) >= (2 if ndim == 3 else 1)  # of edges, in all their length
        if rows:
            kind, box[2] = _EDGES, (0, size[2])
        elif beside and ndim < 3:
            kind = _SIDES
        else:
            kind = [*across, 2 if beside else _INTERIOR][0] + _CORNER * (beside and len(across) == 1)
        if all(first < last for first, last in box) and not (rows and beside):
            kinds[kind].append(tuple(box))
    return kinds
