"""The launches of the kernels in ``media.cu``: parts of a step of any medium, on arrays of a device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from collops.extend.arrays import LocalArray
from collops.seismic.waves.cuda import steps as cuda_steps
from collops.seismic.waves.grid import Tile

# As in media.cu.
_WIDTH, _LINE, _LINES, _LAYERS = 8, 32, 8, 6
MECHANISMS = 5
_PLANES = 32  # over which a block marches
_ROWS = {"LAPLACIAN": 8, "FLUXES": 16}  # of a block of the kernels of an operator

VIEW = np.dtype([("at", np.uint64), *((name, np.int64) for name in ("time", "field", "plane", "row"))], align=True)
"""``View`` of the CUDA sources: a tile in an array."""


class Wavefield:
    """Arrays from which the clock of a device selects one, by its step relative to the first stored step.

    It has the shape of one of them, and is indexed like it along the first axes.

    Parameters
    ----------
    arrays : array
        The first axis is the time.
    clock : array
        Of :class:`Clock`.
    ahead : int
        Steps since the time on the clock.
    """

    def __init__(self, arrays: LocalArray, clock: LocalArray, ahead: int) -> None:
        self.arrays, self.clock, self.ahead = arrays, clock, ahead

    def __len__(self) -> int:
        return self.arrays.shape[1]

    def __getitem__(self, index: int) -> Wavefield:
        if index >= len(self):
            raise IndexError(index)
        return Wavefield(self.arrays[:, index], self.clock, self.ahead)


class Variable(NamedTuple):
    """A memory variable of a layer, in an array of a shape that begins at an offset.

    It differs from zero where first <= index along the axis < last, and the array begins at the index `begin`. Its
    coefficients `a` and `b` begin at the index `profile`.
    """

    offset: int
    shape: Sequence[int]
    begin: int
    first: int
    last: int
    a: np.ndarray
    b: np.ndarray
    profile: int


class MediaKernels:
    """The kernels with the constants of a tile.

    Parameters
    ----------
    tile : Tile
        The tile.
    dtype : numpy.dtype
        float32 or float64.
    xp : module
        Of arrays on the device.
    matrix : tuple of tuple of int
        As of :class:`HostSteps`.
    layers : sequence of tuple
        The axis of each layer, its first and second memory variable, and as third one the fluxes that they change. The
        last of these variables has all points that the layer reaches.
    operator : {"LAPLACIAN", "FLUXES"}, optional
        The operator that kernels apply, if any.
    """

    def __init__(
        self,
        tile: Tile,
        dtype: np.dtype,
        xp: Any,
        matrix: tuple[tuple[int, ...], ...],
        layers: Sequence[tuple[Any, ...]] = (),
        operator: str | None = None,
    ) -> None:
        self._tile, self._rows = tile, _ROWS.get(operator or "", _LINES)
        self._compiled: dict[str, Any] = {}
        numbers = {"NDIM": len(tile.axes), "HALF": tile.grid.order // 2, "FIELDS": len(matrix), "ROWS": self._rows}
        options = [f"-D{name}={value}" for name, value in numbers.items()] + [f"-D{operator}"] * (operator is not None)
        self._options = (*options, *["-DCOLLOPS_DOUBLE"] * (dtype.itemsize == 8))
        self._step = step = np.zeros((), step_type(dtype, len(matrix)))
        step["size"], step["surface"], step["element"] = tile.inner, tile.surface, np.ravel(matrix)
        step["volume"], step["planes"], step["unclear"] = math.prod(tile.inner), _PLANES, np.iinfo(np.int32).max
        self._blocks = [0, 0, 0]
        profiles, begin = ([np.empty(0, dtype)], [np.empty(0, dtype)]), 0
        for row, (axis, *variables) in zip(step["layer"], layers, strict=False):
            row["axis"], row["block"] = axis, self._blocks
            _narrow(step, axis, variables[-1])
            for which, variable in enumerate(variables):
                row["variable"][which] = self._variable(axis, variable, begin)
                extents = [*tile.inner]
                extents[axis] = variable.last - variable.first
                self._blocks[which] += _blocks(math.prod(extents))
                for values, found in zip(profiles, (variable.a, variable.b), strict=True):
                    values.append(found)
                begin += variable.a.size
        step["layers"] = len(layers)
        self._kept = [xp.asarray(np.concatenate(values)) for values in profiles]  # live as long as their addresses
        step["a"], step["b"] = map(cuda_steps.address_of, self._kept)

    def define(self, name: str) -> None:
        """Define a macro of the kernels, before the first launch."""
        self._options += (f"-D{name}",)

    def put(self, **constants: Any) -> None:
        """Set constants of all launches: numbers, or arrays of numbers of the host."""
        for name, value in constants.items():
            self._step[name] = value

    def put_array(self, **arrays: LocalArray) -> None:
        """Set addresses of arrays on the device for all launches."""
        for name, array in arrays.items():
            self._step[name] = cuda_steps.address_of(array)
            self._kept.append(array)

    def put_by_axis(self, axes: Sequence[int], **constants: Iterable[Any]) -> None:
        """Set constants of which there is one for each of some axes: coefficients, or arrays on the device."""
        for name, values in constants.items():
            table = self._step[name].reshape(3, -1)
            for axis, own in zip(axes, values, strict=True):
                if table.dtype == np.uint64:
                    table[axis] = cuda_steps.address_of(own)
                    self._kept.append(own)
                else:
                    table[axis, : np.size(own)] = own

    def points(self, name: str, size: Sequence[int] | None = None, ahead: int = 0, **values: Any) -> None:
        """Launch a kernel on all points of the tile, or on so many along each axis."""
        planes, rows, n = size = self._tile.inner if size is None else size
        self._launch(name, (-(-n // _LINE), -(-rows // _LINES), planes), ahead, values | {"size": size})

    def march(self, name: str, **values: Any) -> None:
        """Launch a kernel of the operator on all points of the tile."""
        planes, rows, n = self._tile.inner
        grid = -(-n // _LINE), -(-rows // self._rows), -(-planes // _PLANES)
        self._launch(name, grid, 0, values, self._rows)

    def several(self, name: str, count: int, ahead: int = 0, **values: Any) -> None:
        """Launch a kernel for so many numbers."""
        if count:
            self._launch(name, (_blocks(count), 1, 1), ahead, values | {"count": count})

    def layers(self, name: str, which: int, **values: Any) -> None:
        """Launch a kernel on the points of the memory variables of all layers with this number."""
        if self._blocks[which]:
            self._launch(name, (self._blocks[which], 1, 1), 0, values)

    def mirror(self, u: LocalArray) -> None:
        """Fill the halo of the last field above a free surface."""
        self.several("mirror", math.prod(self._tile.inner[:2]), u=u)

    def _launch(
        self, name: str, grid: tuple[int, int, int], ahead: int, values: dict[str, Any], rows: int = _LINES
    ) -> None:
        arguments = Arguments(self._step, values)
        if name not in self._compiled:
            compiled = cuda_steps.kernels(cuda_steps.current_device(), "media.cu", self._options)
            self._compiled[name] = compiled.get_function(name)
        cuda_steps.launch(self._compiled[name], grid, (_LINE, rows, 1), arguments, arguments.ahead or ahead)

    def _variable(self, axis: int, variable: Variable, profile: int) -> tuple[int, ...]:
        """Return a row of ``Variable`` in ``media.cu``; its coefficients are at `profile` in the table of all."""
        strides = math.prod(variable.shape[1:]), variable.shape[2], 1
        origin = variable.offset - variable.begin * strides[axis]
        return (origin, *strides[:2], variable.first, variable.last, profile - variable.profile)


class Arguments:
    """The arguments of a launch: a copy of a struct, with the values of this launch.

    Values are arrays, whose addresses or views are set, or numbers; ``None`` leaves 0. The struct is filled as words of
    8 bytes, since NumPy takes longer to copy nested fields than a kernel to run.
    """

    def __init__(self, step: np.ndarray, values: dict[str, Any]) -> None:
        words = np.frombuffer(bytearray(step.tobytes()), np.int64)
        self._words, self._struct = words, words.view(step.dtype)
        self._ahead, self.ahead = np.zeros(1, np.int32), 0
        fields: Any = step.dtype.fields
        for name, value in values.items():
            kind, offset = fields[name]
            if isinstance(value, Wavefield):
                self._words[fields["clock"][1] // 8], self.ahead = cuda_steps.address_of(value.clock), value.ahead
            if kind.names and value is not None:
                self._words[offset // 8 : offset // 8 + 5] = _view(value)
            elif kind == np.uint64 and value is not None:
                self._words[offset // 8] = cuda_steps.address_of(value)
            elif value is not None:
                self._struct[name] = value
        self._addresses = np.array([self._words.ctypes.data, self._ahead.ctypes.data], np.uint64)

    def parameters(self, ahead: int) -> int:
        """Return the address of the addresses of the arguments, as the driver takes them; it copies the arguments."""
        self._ahead[0] = ahead
        return self._addresses.ctypes.data


def _view(array: Any) -> tuple[int, ...]:
    """Return a ``View`` of fields, or of wavefields or mechanisms, which have one axis more."""
    if isinstance(array, Wavefield):
        # The axis of the time is a view's first one, also without an axis of fields.
        time, array = array.arrays.strides[0], array.arrays[0]
        strides = (time, *(0, *array.strides)[-4:])
    else:
        strides = (0, 0, *array.strides)[-5:]
    return (cuda_steps.address_of(array), *(stride // array.itemsize for stride in strides[:-1]))


def _narrow(step: np.ndarray, axis: int, reached: Variable) -> None:
    """Exclude what a layer reaches from the points that are clear of layers."""
    if reached.first == 0:
        step["clear"][axis] = max(step["clear"][axis], reached.last)
    else:
        step["unclear"][axis] = min(step["unclear"][axis], reached.first)


def _blocks(threads: int) -> int:
    return -(-threads // (_LINE * _LINES))


def step_type(dtype: np.dtype, fields: int) -> np.dtype:
    """Return the dtype of ``Step`` in media.cu for so many fields, with the layout of the C struct."""
    places = [(name, np.int64) for name in ("origin", "plane", "row")]
    variable = np.dtype([*places, *((name, np.int32) for name in ("first", "last", "profile"))], align=True)
    layer = [("variable", variable, (3,)), ("axis", np.int32), ("block", np.int32, (3,))]
    return np.dtype(
        [
            *((name, VIEW) for name in ("u", "before", "w", "out", "relaxed", "gains")),
            *((name, np.uint64) for name in ("first", "second", "a", "b", "c", "image", "edge", "change")),
            ("buoyancy", np.uint64, (3,)),
            *((name, np.uint64) for name in ("clock", "rows", "columns", "weights", "points", "signal", "traces")),
            *((name, np.int32) for name in ("count", "samples", "lead", "parts", "part")),
            ("volume", np.int64),
            ("size", np.int32, (3,)),
            *((name, np.int32) for name in ("surface", "layers", "planes", "mechanisms")),
            *((name, np.int32, (3,)) for name in ("clear", "unclear", "low", "high")),
            ("element", np.int32, (fields * fields,)),
            ("factor", dtype),
            ("center", dtype, (fields,)),
            ("centers", dtype, (3,)),
            ("seconds", dtype, (3 * _WIDTH,)),
            ("firsts", dtype, (3 * _WIDTH,)),
            ("decays", dtype, (MECHANISMS,)),
            ("layer", np.dtype(layer, align=True), (_LAYERS,)),
        ],
        align=True,
    )
