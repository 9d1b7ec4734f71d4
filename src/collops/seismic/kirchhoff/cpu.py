"""Numba kernels of the Kirchhoff operator for host memory: its products of any number of images, and their compilation.

The products are in `numba_forward.py` and `numba_adjoint.py`. Times and weights on coarser nodes are interpolated
first, a piece at a time (`numba_points.py`). Weights and bands are separate loops over a piece. A trace has one run of
samples for each band, with its own wavelet; each arrival is added to the run of its band.

Forward and adjoint apply to batches of images (columns), and compute sample indices and weights once for all of them.
Each point and each sample then has a value for each column. Columns are grouped into SIMD vectors of ``len(columns)``
values, a number that is known at compile time (`numba_rows.py`); up to four such vectors (strips) are processed
together. Several strips, and several traces at a time, hide the latency of loading, updating and storing a vector,
which is often the vector of the previous update.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from collops.seismic.host_kernels import checked_threads, compilation_lock, limited_threads
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.numba_adjoint import adjoint
from collops.seismic.kirchhoff.numba_forward import forward
from collops.seismic.kirchhoff.numba_rows import GUARD, TAPS
from collops.seismic.kirchhoff.weights import Bands, Weights

_ROW_BYTES = 64  # of a strip of columns: a SIMD vector
_STRIPS = 4  # maximum number of strips computed together
_FILTERED = 1 << 23  # bytes of filtered traces of several columns that the adjoint holds at a time
_MIN_COLUMNS = 3  # minimum number of columns for which a row is faster than one column after the other


class NumbaKernels:
    """Forward and adjoint on the cores of this process; by default with `thread_count()` threads.

    `wavelets` has a row of taps for each band, and `center` is the index of their tap at time zero.
    """

    def __init__(
        self,
        tables: FixedTables,
        wavelets: np.ndarray,
        center: int,
        *,
        weights: Weights | None,
        bands: Bands | None,
        threads: int | None,
    ) -> None:
        self._threads = checked_threads(threads)
        scale = tables.scale
        dtype = scale.dtype
        self._size = (len(tables.sources) * len(tables.receivers), scale.samples)
        fraction = np.int64(scale.fraction_bits), dtype.type(2.0**-scale.fraction_bits)
        self._tables = (*_stations(tables), *fraction)
        self._factors = _factors(tables, weights, bands)
        rows, size = wavelets.shape
        taps = np.zeros((rows, -(-size // TAPS) * TAPS), dtype)
        reversed_taps = np.zeros_like(taps)
        taps[:, :size], reversed_taps[:, :size] = wavelets, wavelets[:, ::-1]
        # Convolution with the wavelet is correlation with its reverse.
        self._forward_filter = (reversed_taps, np.int64(size - 1 - center))
        self._adjoint_filter = (taps, np.int64(center))
        self._filtered = rows * (scale.samples + GUARD)  # samples of a trace
        self._points = tables.nodes.points
        self._width = _ROW_BYTES // dtype.itemsize
        self._kind = dtype.name, scale.fixed_type.itemsize == 8, weights is not None or bands is not None
        _compiled(*self._kind, 1)

    def forward(self, images: np.ndarray, traces: np.ndarray) -> None:
        """Demigrate an image, or several one after the other, into traces."""
        if self._size[0] == 0:
            return
        images = images.reshape(-1, self._points)
        traces = traces.reshape(len(images), *self._size)
        for some, columns, strips in self._strips(len(images)):
            with limited_threads(self._threads):
                rows = _as_rows(images[some], strips * len(columns))
                forward(columns, strips, rows, self._tables, *self._factors, *self._forward_filter, traces[some])

    def adjoint(self, traces: np.ndarray, images: np.ndarray) -> None:
        """Migrate traces into an image, or into several one after the other."""
        images = images.reshape(-1, self._points)
        traces = traces.reshape(len(images), *self._size)
        sources, receivers = self._tables[0].size, self._tables[1].size
        for some, columns, strips in self._strips(len(images)):
            width = strips * len(columns)
            rows = images[some.start] if width == 1 else np.empty(self._points * width, images.dtype)
            rows.fill(0)
            size = receivers * self._filtered * width  # of the filtered traces of a source
            step = sources if width == 1 else max(1, _FILTERED // max(1, size * rows.itemsize))
            # Allocated for each call: kept by many operators, one for each shot, it would be a copy of all data.
            filtered = np.empty(receivers * min(step, sources) * self._filtered * width, rows.dtype)
            with limited_threads(self._threads):
                for first in range(0, sources, max(1, step)):
                    inputs = traces[some], (first, min(first + step, sources)), self._tables, *self._factors
                    adjoint(columns, strips, *inputs, *self._adjoint_filter, filtered, rows)
            if width > 1:
                images[some] = rows.reshape(-1, width).T[: some.stop - some.start]

    def _strips(self, count: int) -> Iterator[tuple[slice, tuple[int, ...], int]]:
        """Yield the columns computed together, a tuple as long as a row of the kernels, and the number of strips."""
        begin = 0
        while begin < count:
            width = self._width if count - begin >= _MIN_COLUMNS else 1
            _compiled(*self._kind, width)
            # The last columns, fewer than _MIN_COLUMNS, are computed one by one.
            strips = 1 if width == 1 else max(1, min(_STRIPS, (count - begin + width - _MIN_COLUMNS) // width))
            yield slice(begin, min(begin + strips * width, count)), (0,) * width, strips
            begin += strips * width


def _as_rows(images: np.ndarray, width: int) -> np.ndarray:
    """Return images, (columns, points), as a flat array with a row for each point; missing columns are zero."""
    if width == 1:
        return images[0]
    rows = np.zeros((images.shape[1], width), images.dtype)
    rows[:, : len(images)] = images.T
    return rows.reshape(-1)


def _stations(
    tables: FixedTables,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[np.ndarray | np.floating, ...], tuple[np.ndarray, ...]]:
    """Return row numbers, fine and coarse tables (one is empty) and nodes in the form that the kernels read."""
    scale, nodes = tables.scale, tables.nodes
    kind = scale.real_type.type
    times = np.asarray(tables.times)
    remainders, straight = np.empty((0, 0), kind), np.empty((0, 4), kind)
    shape, counts = ((1,) * (3 - len(sizes)) + sizes for sizes in (nodes.shape, nodes.counts))
    spacing = (0.0,) * (3 - len(tables.spacing)) + tables.spacing
    cells = [np.empty(0, np.int64)] * 2 + [np.empty(0)]
    if tables.straight is not None:
        times, remainders, straight = np.empty((0, 0), scale.fixed_type), times, tables.straight
        cells = [np.concatenate(parts) for parts in zip(*(nodes.cells(n) for n in shape), strict=True)]
    unit = kind(2.0**scale.fraction_bits)
    lattice = np.array(shape, np.int64), np.array(counts, np.int64), *cells[:2], cells[2].astype(kind)
    coarse = remainders, straight, np.array(spacing, kind), kind(scale.latest), unit
    return tables.sources.astype(np.int64), tables.receivers.astype(np.int64), times, coarse, lattice


def _factors(tables: FixedTables, weights: Weights | None, bands: Bands | None) -> tuple[np.ndarray | None, ...]:
    """Return weights and bands in the form that the kernels read: all None, or empty arrays for the missing one.

    Numba omits the code for arguments that are None.
    """
    if weights is None and bands is None:
        return None, None, None, None, None
    dtype, nodes = tables.scale.dtype, tables.nodes
    form, fields = np.zeros(5, dtype), np.empty((0, 0, 0), dtype)
    choice, rows = np.empty((0, 0), np.uint8), np.empty(0, np.int64)
    if weights is not None:
        form = np.array([weights.axes, weights.oblique, weights.spreads, *weights.steepest], dtype)
        fields = np.asarray(weights.fields)
    if bands is not None:
        choice, rows = np.asarray(bands.choice), bands.receivers.astype(np.int64)
    nearest = nodes.nearest() if bands is not None and nodes.factor > 1 else np.empty(0, np.int64)
    return form, fields, choice, rows, nearest


@cache
def _compiled(dtype: str, long_times: bool, with_factors: bool, width: int) -> None:
    """Compile forward and adjoint for one pair of types and `width` columns, or load them from the cache on disk.

    Later calls do not compile.
    """
    taps, image = np.zeros(TAPS, dtype), np.zeros(width, dtype)
    empty = FixedTables.from_seconds(np.zeros((0, 1)), np.zeros((0, 1)), 1.0, 10_000 if long_times else 2, dtype)
    bands = Bands((1,), np.empty((0, 0), np.uint8), np.empty(0, np.int64)) if with_factors else None
    tables, factors = (*_stations(empty), np.int64(1), taps.dtype.type(1)), _factors(empty, None, bands)
    with compilation_lock(forward, "kirchhoff"):
        columns, traces = (0,) * width, np.zeros((1, 0, 2), dtype)
        filter_ = taps[np.newaxis], np.int64(0)
        forward(columns, 1, image, tables, *factors, *filter_, traces)
        adjoint(columns, 1, traces, (0, 0), tables, *factors, *filter_, np.zeros(0, dtype), image)
