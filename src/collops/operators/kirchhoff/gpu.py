"""The CUDA kernels of the Kirchhoff operator: compilation, launch shapes and scratch memory."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collops.operators.kirchhoff.fixed_point import FixedTables
from collops.operators.kirchhoff.weights import Bands, Weights

# Measured on an H200 with images of 401 x 300 and 81 x 60 points, at times that differ by 0.2 to 2.5 samples a depth.
_THREADS = 256
_BLOCKS_PER_MULTIPROCESSOR = 8  # blocks to have in total for each multiprocessor, so that the last wave is short
_LONGEST_SEGMENT = 32  # columns that a thread of the forward kernel marches over
_NOWHERE = np.intp(0)  # the address of tables that a kernel does not read


@cache
def _module(device: int, options: tuple[str, ...]) -> Any:
    """Compile kirchhoff.cu for one device, with options that define macros; cached for the life of the process."""
    import cupy

    source = Path(__file__).with_name("kirchhoff.cu").read_text(encoding="utf-8")
    with cupy.cuda.Device(device):
        return cupy.RawModule(code=source, options=("-std=c++17", *options))


def _options(
    tables: FixedTables, receivers_per_block: int, repeatable: bool, rows: int, weights: Weights | None, numbered: bool
) -> tuple[str, ...]:
    """Return the macros for types, unrolling, bands, weights and rows."""
    options = [f"-DRECEIVERS_PER_BLOCK={receivers_per_block}", f"-DBANDS={rows}"]
    options += ["-DCOLLOPS_DOUBLE"] * (tables.scale.dtype.itemsize == 8)
    options += ["-DCOLLOPS_WIDE_TIMES"] * (tables.scale.fixed_type.itemsize == 8)
    options += ["-DREPEATABLE"] * repeatable + ["-DROWS"] * numbered
    options += [f"-DFACTOR={tables.nodes.factor}"] * (tables.straight is not None)
    if weights is not None:
        options += [f"-DFIELDS={weights.fields.shape[1]}", f"-DAXES={weights.axes}"]
        options += ["-DOBLIQUE"] * weights.oblique + ["-DSPREADS"] * weights.spreads
        options += ["-DDIP"] * (weights.weighting.dip is not None)
    return tuple(options)


class CudaKernels:
    """Forward and adjoint on one device for one set of travel-time tables.

    Nothing is allocated after construction and nothing synchronises with the device, so that both directions can be
    captured in a CUDA graph. Tables that are on the device are not copied. Sums are made by atomic additions: results
    agree from call to call to rounding; with `repeatable`, to the bit, which takes longer: sums are then of integers,
    and not divided among blocks. `dims` is the shape of the image. `wavelets` has a row of taps for each band, and
    `center` is the index of their tap at time zero.
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
        # Consecutive rows are read from the first one on, in which case the kernels look up no numbers.
        choices = np.arange(self._receivers) if bands is None else bands.receivers
        of_stations = tables.sources, tables.receivers
        numbered = tables.straight is not None or not all(map(_consecutive, (*of_stations, choices)))
        times, fields = cupy.asarray(tables.times), None if weights is None else cupy.asarray(weights.fields)
        first, rows = [slice(None)] * 2, [cupy.asarray(each, dtype=np.int32) for each in (*of_stations, choices)]
        choice = None if bands is None else cupy.asarray(bands.choice)
        if not numbered:
            first, rows = [slice(int(each[0]), None) for each in of_stations], [_NOWHERE] * 3
            choice = None if choice is None else choice[int(choices[0]) :]
        factors = [_NOWHERE] * 2 if fields is None else [fields[each] for each in first]
        straight = _NOWHERE if tables.straight is None else cupy.asarray(tables.straight)
        dip = map(self._dtype.type, (0, 1) if weights is None else weights.steepest)
        spacing = (0.0,) * (3 - len(tables.spacing)) + tables.spacing
        self._tables = (
            *(times[each] for each in first),
            *rows[:2],
            straight,
            *factors,
            _NOWHERE if choice is None else choice,
            rows[2],
            *dip,
            *_int32(self._receivers, n_samples, columns, depths, dims[-2] if len(dims) > 1 else 1),
            *map(tables.scale.real_type.type, (*spacing, tables.scale.latest)),
            np.int32(tables.scale.fraction_bits),
        )
        # The rows of the traces before the convolution (forward), or after it as pairs (adjoint).
        row = self._bands * n_samples
        self._scratch = cupy.zeros(2 * self._traces * row, dtype=self._dtype)

        self._repeatable = repeatable
        self._largest_weight = np.float64(1.0 if weights is None else weights.bound)
        self._scale = cupy.ones(1)

        device = cupy.cuda.Device()
        multiprocessors = device.attributes["MultiProcessorCount"]
        wanted = _BLOCKS_PER_MULTIPROCESSOR * multiprocessors
        # How many pairs of a point and a trace there are for each thread. Where there are plenty, long segments and two
        # receivers a block save memory traffic. Where there are few, every thread must get something
        # to do: short segments, down to one column, and one receiver a block, with smaller windows to add up.
        share = columns * depths * self._traces // (wanted * _THREADS)
        segment = max(1, min(_LONGEST_SEGMENT, share, columns))
        receivers_per_block = 2 if share >= _LONGEST_SEGMENT and self._receivers > 1 else 1
        module = _module(device.id, _options(tables, receivers_per_block, repeatable, self._bands, weights, numbered))
        self._choose_scale = module.get_function("choose_scale")
        self._forward_kernel = module.get_function("forward")
        self._adjoint_kernel = module.get_function("adjoint")
        self._convolve = module.get_function("convolve")

        # Forward: one block for every (source, group of receivers), part of the image and window of samples.
        bytes_per_sample = (8 if repeatable else self._dtype.itemsize) * receivers_per_block
        groups = self._sources * -(-self._receivers // receivers_per_block)
        window = min(row, device.attributes["MaxSharedMemoryPerBlockOptin"] // bytes_per_sample)
        slots = depths * -(-columns // segment)
        parts = 1 if repeatable else min(-(-wanted // groups), max(1, slots // _THREADS))
        self._forward_grid = (groups, parts, -(-row // window))
        self._forward_shared = bytes_per_sample * window
        self._forward_kernel.max_dynamic_shared_size_bytes = self._forward_shared
        self._forward_sizes = _int32(segment, window)

        # Adjoint: one thread a point; receivers are split until there are enough threads.
        blocks = -(-depths // 32) * -(-columns // (_THREADS // 32))
        parts = 1 if repeatable else min(-(-2 * wanted // blocks), self._receivers)
        receivers = -(-self._receivers // parts)  # of a part
        self._adjoint_grid = (blocks, -(-self._receivers // receivers))
        self._adjoint_sizes = _int32(self._sources, receivers)

    def forward(self, image: Any, traces: Any) -> None:
        """Demigrate a flat image into flat traces, ordered on the current stream."""
        if self._traces == 0:
            return
        if self._repeatable:
            self._choose_scale((1,), (1024,), (image, np.int64(image.size), self._largest_weight, self._scale))
        raw = self._scratch[: self._bands * traces.size]
        if self._forward_grid[1] > 1:
            raw.fill(0)  # the parts of the image add to it
        self._forward_kernel(
            self._forward_grid,
            (_THREADS,),
            (image, *self._tables, self._scale, raw, *self._forward_sizes),
            shared_mem=self._forward_shared,
        )
        self._filter(raw, self._wavelets, traces, self._center, as_pairs=False)

    def adjoint(self, traces: Any, image: Any) -> None:
        """Migrate flat traces into a flat image, ordered on the current stream."""
        if self._traces == 0:
            image.fill(0)
            return
        self._filter(traces, self._reversed_wavelets, self._scratch, self._taps - 1 - self._center, as_pairs=True)
        if self._adjoint_grid[1] > 1:
            image.fill(0)
        self._adjoint_kernel(
            self._adjoint_grid,
            (_THREADS,),
            (self._scratch, *self._tables, image, *self._adjoint_sizes),
        )

    def _filter(self, traces: Any, taps: Any, result: Any, center: int, *, as_pairs: bool) -> None:
        """Convolve the rows of every trace and add them; for the adjoint, a trace into rows of pairs.

        A pair is a value and the difference to the next one.
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
