"""The CUDA kernels of the Kirchhoff operator: compilation, launch shapes and scratch memory."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collops.errors import InputError
from collops.extend.arrays import LocalArray
from collops.extend.engines import cuda_module
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.weights import Bands, Weights

# Measured on an H100 with blocks of 1 x 1 to 5 x 5 traces, 256 to 1024 threads and 1 to 4 points: (nearly) the fastest.
_FORWARD_THREADS = 512  # as in kirchhoff.cu
_SHAPES = ((2, 4), (1, 4), (2, 2), (1, 2), (1, 1))  # sources and receivers of a block
_MIN_POINTS = 16  # per thread; below it, blocks get fewer traces
_SAMPLE = 8  # bytes of shared memory per sample, for two integers
_PADDING = 34  # samples of shared memory in addition to a window, as in kirchhoff.cu
_SCALE_BLOCKS, _SCALE_THREADS = 64, 256  # as in kirchhoff.cu
# Measured on an H200 with images of 401 x 300 and 81 x 60 points, at times that differ by 0.2 to 2.5 samples a depth.
_ADJOINT_THREADS = 256
_ADJOINT_BLOCKS = 16  # total number per multiprocessor, so that the last wave is short
_NULL = np.intp(0)  # the address of tables that a kernel does not read


@cache
def _module(device: int, options: tuple[str, ...]) -> Any:
    """Compile kirchhoff.cu for one device, with options that define macros; cached for the life of the process."""
    import cupy

    source = Path(__file__).with_name("kirchhoff.cu").read_text(encoding="utf-8")
    with cupy.cuda.Device(device):
        return cuda_module(source, options)


def _options(
    tables: FixedTables, shape: tuple[int, int], window: int, rows: int, weights: Weights | None, numbered: bool
) -> tuple[str, ...]:
    """Return the macros for types, unrolling, sizes, bands, weights and rows."""
    # Kernels read the tables at four points at a time, unless that takes too many registers.
    plain = tables.scale.fixed_type.itemsize == 4 and tables.straight is None and weights is None
    options = [f"-DSOURCES={shape[0]}", f"-DRECEIVERS={shape[1]}", f"-DPOINTS={4 if plain else 1}"]
    options += [f"-DWINDOW={window}", f"-DBANDS={rows}"]
    options += ["-DCOLLOPS_DOUBLE"] * (tables.scale.dtype.itemsize == 8)
    options += ["-DCOLLOPS_WIDE_TIMES"] * (tables.scale.fixed_type.itemsize == 8)
    options += ["-DROWS"] * numbered
    options += [f"-DFACTOR={tables.nodes.factor}"] * (tables.straight is not None)
    if weights is not None:
        options += [f"-DFIELDS={weights.fields.shape[1]}", f"-DAXES={weights.axes}"]
        options += ["-DOBLIQUE"] * weights.oblique + ["-DSPREADS"] * weights.spreads
        options += ["-DDIP"] * (weights.weighting.dip is not None)
    return tuple(options)


def _parts(groups: int, at_a_time: int, most: int) -> int:
    """Return the number of parts of the image: the smallest that nearly fills the last wave of blocks."""

    def used(parts: int) -> float:
        return groups * parts / (-(-groups * parts // at_a_time) * at_a_time)

    choices = range(1, min(most, 4 * -(-at_a_time // groups)) + 1)
    return next((parts for parts in choices if used(parts) > 0.9), max(choices, key=used))


def _arguments(
    tables: FixedTables, dims: tuple[int, ...], weights: Weights | None, bands: Bands | None
) -> tuple[bool, tuple[Any, ...]]:
    """Return whether the kernels look up row numbers, and their arguments for tables, weights and bands."""
    import cupy

    receivers = len(tables.receivers)
    # Consecutive rows are read from the first one on, without a look-up of row numbers.
    choices = np.arange(receivers) if bands is None else bands.receivers
    of_stations = tables.sources, tables.receivers
    numbered = tables.straight is not None or not all(map(_consecutive, (*of_stations, choices)))
    times, fields = cupy.asarray(tables.times), None if weights is None else cupy.asarray(weights.fields)
    slices, rows = [slice(None)] * 2, [cupy.asarray(numbers, dtype=np.int32) for numbers in (*of_stations, choices)]
    choice = None if bands is None else cupy.asarray(bands.choice)
    if not numbered:
        slices, rows = [slice(int(numbers[0]), None) for numbers in of_stations], [_NULL] * 3
        choice = None if choice is None else choice[int(choices[0]) :]
    factors = [_NULL] * 2 if fields is None else [fields[part] for part in slices]
    straight = _NULL if tables.straight is None else cupy.asarray(tables.straight)
    dip = map(tables.scale.dtype.type, (0, 1) if weights is None else weights.steepest)
    spacing = (0.0,) * (3 - len(tables.spacing)) + tables.spacing
    arguments = (
        *(times[part] for part in slices),
        *rows[:2],
        straight,
        *factors,
        _NULL if choice is None else choice,
        rows[2],
        *dip,
        *_int32(receivers, tables.scale.samples, math.prod(dims[:-1]), dims[-1], dims[-2] if len(dims) > 1 else 1),
        *map(tables.scale.real_type.type, (*spacing, tables.scale.latest)),
        np.int32(tables.scale.fraction_bits),
    )
    return numbered, arguments


def kernels(
    tables: FixedTables,
    filters: dict[str, Any],
    dims: tuple[int, ...],
    *,
    name: str | None,
    threads: int | None,
    deterministic: bool,
) -> CudaKernels:
    """Return the kernels of a :class:`LocalKirchhoff`."""
    if name is not None or threads is not None:
        raise InputError("kernels and threads are for the numpy engine only; omit them on a GPU")
    return CudaKernels(tables, **filters, dims=dims, repeatable=deterministic)


class CudaKernels:
    """Forward and adjoint on one device for one set of travel-time tables.

    All memory is allocated at construction, and the host never waits for the device, so that forward and adjoint
    can be captured in a CUDA graph. Tables that are on the device are not copied. Blocks that share a trace or an image
    point add to it in any order, and results of two calls differ by rounding. With `repeatable` they agree bitwise,
    which may be slower: at most two blocks share a trace, and each point belongs to one block. `dims` is the shape of
    the image. `wavelets` has a row of taps for each band, and `center` is the index of their tap at time zero.
    """

    def __init__(
        self,
        tables: FixedTables,
        wavelets: np.ndarray,
        center: int,
        *,
        weights: Weights | None,
        bands: Bands | None,
        dims: tuple[int, ...],
        repeatable: bool,
    ) -> None:
        import cupy

        self._dtype = tables.scale.dtype
        n_samples = tables.scale.samples
        self._sources, self._receivers = len(tables.sources), len(tables.receivers)
        self._samples = n_samples
        self._traces = self._sources * self._receivers
        if self._traces == 0:
            return
        self._bands, self._taps = wavelets.shape
        self._center = center
        self._wavelets = cupy.asarray(wavelets, dtype=self._dtype)
        self._reversed_wavelets = cupy.ascontiguousarray(self._wavelets[:, ::-1])
        columns, depths = math.prod(dims[:-1]), dims[-1]
        numbered, self._tables = _arguments(tables, dims, weights, bands)
        # The rows of the traces before the convolution (forward), or after it as pairs (adjoint).
        row = self._bands * n_samples
        self._scratch = cupy.zeros(2 * self._traces * row, dtype=self._dtype)

        # The upper bound of sums of arrivals, and the typical size of an arrival, for an image of ones.
        bound, typical = (1.0, 1.0) if weights is None else (weights.bound, weights.typical)
        self._sum_bounds = np.float64(columns * depths * bound), np.float64(typical)
        self._scale = cupy.ones(1)
        self._scale_partials, self._ticket = cupy.zeros(3 * _SCALE_BLOCKS), cupy.zeros(1, np.uint32)

        # Forward: one block for every group of traces, part of the image and window of samples.
        device = cupy.cuda.Device()
        multiprocessors, points = device.attributes["MultiProcessorCount"], columns * depths
        most = device.attributes["MaxSharedMemoryPerBlockOptin"] // _SAMPLE
        shape = self._shape(points, most // (row + _PADDING), multiprocessors)
        traces = math.prod(shape)
        window = min(row, most // traces - _PADDING)
        module = _module(device.id, _options(tables, shape, window, self._bands, weights, numbered))
        self._choose_scale = module.get_function("choose_scale")
        self._forward_kernel = module.get_function("forward")
        self._adjoint_kernel = module.get_function("adjoint")
        self._convolve = module.get_function("convolve")
        self._forward_shared = _SAMPLE * traces * (window + _PADDING)
        self._forward_kernel.max_dynamic_shared_size_bytes = self._forward_shared
        registers = -(-self._forward_kernel.num_regs // 8) * 8 * _FORWARD_THREADS
        at_a_time = min(
            device.attributes["MaxRegistersPerMultiprocessor"] // registers,
            device.attributes["MaxSharedMemoryPerMultiprocessor"] // self._forward_shared,
        )
        groups, parts = self._groups(shape), max(1, points // (_MIN_POINTS * _FORWARD_THREADS))
        parts = _parts(groups, multiprocessors * at_a_time, min(parts, 2) if repeatable else parts)
        self._forward_grid = (groups, parts, -(-row // window))
        if self._dtype.itemsize == 8:  # a lower bound, for a finer unit: the largest sample of an image of ones
            most = 1.000001 * float(self._model(cupy.ones(points)).max())
            self._sum_bounds = np.float64(most), np.float64(typical)

        # Adjoint: one thread a point; receivers are split until there are enough threads.
        blocks = -(-depths // 32) * -(-columns // (_ADJOINT_THREADS // 32))
        parts = 1 if repeatable else min(-(-_ADJOINT_BLOCKS * multiprocessors // blocks), self._receivers)
        receivers = -(-self._receivers // parts)  # of a part
        self._adjoint_grid = (blocks, -(-self._receivers // receivers))
        self._adjoint_sizes = _int32(self._sources, receivers)

    def _groups(self, shape: tuple[int, int]) -> int:
        """Return the number of blocks for all traces if each has this number of sources and receivers."""
        return -(-self._sources // shape[0]) * -(-self._receivers // shape[1])

    def _shape(self, points: int, most: int, multiprocessors: int) -> tuple[int, int]:
        """Return the numbers of sources and receivers of a block of the forward kernel, with at most `most` traces.

        More traces in a block reduce reads of the tables. But at least four fifths of them must exist, and all
        multiprocessors must have work.
        """

        def suits(shape: tuple[int, int]) -> bool:
            groups, traces = self._groups(shape), math.prod(shape)
            busy = groups * points >= _MIN_POINTS * _FORWARD_THREADS * multiprocessors
            return busy and 4 * groups * traces <= 5 * self._traces and traces <= most

        return next(filter(suits, _SHAPES), _SHAPES[-1])

    def forward(self, image: LocalArray, traces: LocalArray) -> None:
        """Demigrate a flat image into flat traces, ordered on the current stream."""
        if self._traces == 0:
            return
        self._filter(self._model(image), self._wavelets, traces, self._center, as_pairs=False)

    def _model(self, image: LocalArray) -> LocalArray:
        """Return the traces of a flat image before the convolution, in the scratch memory."""
        self._choose_scale(
            (_SCALE_BLOCKS,),
            (_SCALE_THREADS,),
            (image, np.int64(image.size), *self._sum_bounds, self._scale_partials, self._ticket, self._scale),
        )
        raw = self._scratch[: self._bands * self._traces * self._samples]
        if self._forward_grid[1] > 1:
            raw.fill(0)  # the blocks of all parts of the image add to it
        self._forward_kernel(
            self._forward_grid,
            (_FORWARD_THREADS,),
            (image, *self._tables, np.int32(self._sources), self._scale, raw),
            shared_mem=self._forward_shared,
        )
        return raw

    def adjoint(self, traces: LocalArray, image: LocalArray) -> None:
        """Migrate flat traces into a flat image, ordered on the current stream."""
        if self._traces == 0:
            image.fill(0)
            return
        self._filter(traces, self._reversed_wavelets, self._scratch, self._taps - 1 - self._center, as_pairs=True)
        if self._adjoint_grid[1] > 1:
            image.fill(0)
        self._adjoint_kernel(
            self._adjoint_grid,
            (_ADJOINT_THREADS,),
            (self._scratch, *self._tables, image, *self._adjoint_sizes),
        )

    def _filter(self, traces: LocalArray, taps: LocalArray, result: LocalArray, center: int, *, as_pairs: bool) -> None:
        """Convolve the rows of every trace and add them; for the adjoint, convolve a trace into rows of pairs.

        A pair is a value and the difference from the next value.
        """
        tile = 511 if as_pairs else 512
        self._convolve(
            (self._traces * (self._bands if as_pairs else 1), -(-self._samples // tile)),
            (128,),
            (traces, taps, result, *_int32(self._samples, self._taps, center, as_pairs)),
        )


def _int32(*numbers: int) -> tuple[np.int32, ...]:
    return tuple(map(np.int32, numbers))


def _consecutive(rows: np.ndarray) -> bool:
    return bool((np.diff(rows) == 1).all())
