"""Numba kernels of the Kirchhoff operator for host memory.

Forward: a task is one source and a few receivers. It walks the image in pieces that stay in the first-level cache; for
each piece the sample numbers and weights of a trace are computed first, in a loop that the compiler can vectorise, and
scattered into the trace then. The finished trace is convolved while it is still in cache. Adjoint: a task is one
piece of the image, which gathers from all traces in turn. No two tasks write the same memory.

Weights and bands are loops of their own over a piece. A trace has one row of samples for each band: arrivals choose
their row, and each row has its own wavelet.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import njit, prange
from numba.core import config as numba_configuration

from collops.comm.cores import share_of_cores
from collops.errors import InputError
from collops.operators.kirchhoff.fixed_point import FixedTables
from collops.operators.kirchhoff.weights import Bands, Weights

_configuration: Any = numba_configuration  # its values are set at import, where type checkers cannot see them

_RECEIVERS_PER_TASK = 4
_PIECE = 512  # image points whose sample numbers and weights are computed at a time
_BLOCK = 1024  # image points of a task of the adjoint
_TAPS = 8  # taps of the wavelet that are applied at a time
_BEHIND = 2  # zeros after a filtered trace
_NO_DIRECTION = 1e-30  # squared length of the sum of two opposite directions

# Products and sums may be contracted; nothing else that would change results or hide a NaN.
_OPTIONS: dict = {"nogil": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy", "cache": True}


@njit(**_OPTIONS)
def _convolve(trace, taps, lead, padded, result):
    """Add a trace, shifted by `lead` samples, correlated with taps whose number is a multiple of _TAPS."""
    n = trace.size
    padded[:lead] = 0
    padded[lead : lead + n] = trace
    padded[lead + n :] = 0
    for first in range(0, taps.size, _TAPS):
        a, b, c, d = taps[first], taps[first + 1], taps[first + 2], taps[first + 3]
        e, f, g, h = taps[first + 4], taps[first + 5], taps[first + 6], taps[first + 7]
        x = padded[first : first + n + _TAPS]
        for i in range(n):
            result[i] += (a * x[i] + b * x[i + 1] + c * x[i + 2] + d * x[i + 3]) + (
                e * x[i + 4] + f * x[i + 5] + g * x[i + 6] + h * x[i + 7]
            )


@njit(**_OPTIONS)
def _weigh(form, sources, source, receivers, receiver, begin, n, weight, length):
    """Compute the weights of a source and a receiver at the points from `begin` on, from (stations, fields, points).

    `form` are the numbers of `Weights`: axes, whether oblique, whether spreading, and the limits of the dip. `length`
    is overwritten.
    """
    axes, oblique, spreads, steepest, width = int(form[0]), form[1] > 0, form[2] > 0, form[3], form[4]
    end = begin + n
    ours, theirs = sources[source, 0, begin:end], receivers[receiver, 0, begin:end]
    for i in range(n):
        weight[i] = ours[i] * theirs[i]
    if axes > 0:
        length[:n] = 0
        for axis in range(1, 1 + axes):
            ours, theirs = sources[source, axis, begin:end], receivers[receiver, axis, begin:end]
            for i in range(n):
                both = ours[i] + theirs[i]
                length[i] += both * both
        if oblique:
            for i in range(n):
                weight[i] *= np.sqrt(length[i])
        if steepest >= 0:  # `ours` and `theirs` are vertical here
            real = weight.dtype.type
            zero, one, nothing = real(0), real(1), real(_NO_DIRECTION)
            for i in range(n):
                both = ours[i] + theirs[i]
                part = (both * both - steepest * length[i]) / (width * (length[i] + nothing))
                weight[i] *= min(max(part, zero), one)
    if spreads:
        ours, theirs = sources[source, 1 + axes, begin:end], receivers[receiver, 1 + axes, begin:end]
        for i in range(n):
            weight[i] /= np.sqrt(ours[i] + theirs[i])


@njit(**_OPTIONS)
def _choose_rows(index, bands, receiver, begin, n, stride):
    """Move sample numbers to the row of their band."""
    for i in range(n):
        index[i] += np.uint32(bands[receiver, begin + i]) * np.uint32(stride)


@njit(parallel=True, **_OPTIONS)
def _forward(image, source_times, receiver_times, bits, scale, form, ours, theirs, bands, taps, lead, traces):
    sources, points = source_times.shape
    receivers, samples = receiver_times.shape[0], traces.shape[1]
    groups = (receivers + _RECEIVERS_PER_TASK - 1) // _RECEIVERS_PER_TASK
    fixed = source_times.dtype.type
    real = image.dtype.type
    shift, mask = fixed(bits), fixed((1 << bits) - 1)
    last = np.uint32(samples - 1)
    rows = len(taps)
    for task in prange(sources * groups):
        source = task // groups
        first = (task % groups) * _RECEIVERS_PER_TASK
        count = min(_RECEIVERS_PER_TASK, receivers - first)
        # Contributions to a sample and to the one after it, by the number of the first; `last` collects those beyond
        # the end.
        left = np.zeros((_RECEIVERS_PER_TASK, rows * samples), image.dtype)
        right = np.zeros((_RECEIVERS_PER_TASK, rows * samples), image.dtype)
        index = np.empty(_PIECE, np.uint32)
        near = np.empty(_PIECE, image.dtype)
        far = np.empty(_PIECE, image.dtype)
        weight = np.empty(_PIECE, image.dtype)
        length = np.empty(_PIECE, image.dtype)
        for begin in range(0, points, _PIECE):
            n = min(_PIECE, points - begin)
            values = image[begin : begin + n]
            outward = source_times[source, begin : begin + n]
            for r in range(count):
                back = receiver_times[first + r, begin : begin + n]
                for i in range(n):
                    time = fixed(outward[i] + back[i])
                    index[i] = min(np.uint32(time >> shift), last)
                    weighted = values[i] * (real(fixed(time & mask)) * scale)
                    far[i] = weighted
                    near[i] = values[i] - weighted
                if form is not None:
                    if ours.size:
                        _weigh(form, ours, source, theirs, first + r, begin, n, weight, length)
                        for i in range(n):
                            near[i] *= weight[i]
                            far[i] *= weight[i]
                    if rows > 1:
                        _choose_rows(index, bands, first + r, begin, n, samples)
                a, b = left[r], right[r]
                for i in range(n):
                    k = index[i]
                    a[k] += near[i]
                    b[k] += far[i]
        padded = np.empty(samples + taps.shape[1], image.dtype)
        for r in range(count):
            trace = traces[source * receivers + first + r]
            trace[:] = 0
            for row in range(rows):
                a = left[r, row * samples : (row + 1) * samples]
                b = right[r, row * samples : (row + 1) * samples]
                a[samples - 1] = 0
                for i in range(samples - 1):
                    a[i + 1] += b[i]
                _convolve(a, taps[row], lead, padded, trace)


@njit(parallel=True, **_OPTIONS)
def _adjoint(traces, source_times, receiver_times, bits, scale, form, ours, theirs, bands, taps, lead, filtered, image):
    sources, points = source_times.shape
    receivers, samples = receiver_times.shape[0], traces.shape[1]
    fixed = source_times.dtype.type
    real = image.dtype.type
    shift, mask = fixed(bits), fixed((1 << bits) - 1)
    # Arrivals beyond the trace read the zeros after it. Half the bytes of values stored with their slopes: the traces
    # of a rank are more than its second-level cache holds, and every block of the image reads all of them.
    last, nothing = np.uint32(samples - 1), np.uint32(samples)
    rows = len(taps)
    for trace in prange(sources * receivers):
        padded = np.empty(samples + taps.shape[1], image.dtype)
        filtered[trace, :] = 0
        for row in range(rows):
            begin = row * (samples + _BEHIND)
            _convolve(traces[trace], taps[row], lead, padded, filtered[trace, begin : begin + samples])
    for block in prange((points + _BLOCK - 1) // _BLOCK):
        begin = block * _BLOCK
        n = min(_BLOCK, points - begin)
        total = np.zeros(_BLOCK, image.dtype)
        index = np.empty(_BLOCK, np.uint32)
        fraction = np.empty(_BLOCK, image.dtype)
        weight = np.empty(_BLOCK, image.dtype)
        length = np.empty(_BLOCK, image.dtype)
        for source in range(sources):
            outward = source_times[source, begin : begin + n]
            for receiver in range(receivers):
                back = receiver_times[receiver, begin : begin + n]
                value = filtered[source * receivers + receiver]
                for i in range(n):
                    time = fixed(outward[i] + back[i])
                    k = np.uint32(time >> shift)
                    index[i] = k if k < last else nothing
                    fraction[i] = real(fixed(time & mask)) * scale
                if form is not None:
                    if rows > 1:
                        _choose_rows(index, bands, receiver, begin, n, samples + _BEHIND)
                    if ours.size:
                        _weigh(form, ours, source, theirs, receiver, begin, n, weight, length)
                    else:
                        weight[:n] = 1
                    for i in range(n):
                        k = index[i]
                        total[i] += weight[i] * (value[k] + (value[k + 1] - value[k]) * fraction[i])
                else:
                    for i in range(n):
                        k = index[i]
                        total[i] += value[k] + (value[k + 1] - value[k]) * fraction[i]
        image[begin : begin + n] = total[:n]


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
        self._threads = thread_count() if threads is None else threads
        if not 1 <= self._threads <= _configuration.NUMBA_NUM_THREADS:
            raise InputError(
                f"threads must be 1 to {_configuration.NUMBA_NUM_THREADS}, not {self._threads}; "
                "set NUMBA_NUM_THREADS before Python starts to allow more"
            )
        scale = tables.scale
        dtype = scale.dtype
        self._size = (len(tables.sources) * len(tables.receivers), scale.samples)
        fraction = np.int64(scale.fraction_bits), dtype.type(2.0**-scale.fraction_bits)
        self._times = (tables.sources, tables.receivers, *fraction, *_factors(weights, bands, dtype))
        rows, size = wavelets.shape
        taps = np.zeros((rows, -(-size // _TAPS) * _TAPS), dtype)
        reversed_taps = np.zeros_like(taps)
        taps[:, :size], reversed_taps[:, :size] = wavelets, wavelets[:, ::-1]
        # Convolution with the wavelet is correlation with its reverse.
        self._forward_filter = (reversed_taps, np.int64(size - 1 - center))
        self._adjoint_filter = (taps, np.int64(center))
        self._filtered = np.empty((self._size[0], rows * (scale.samples + _BEHIND)), dtype)
        _compiled(dtype.name, scale.fixed_type.name, weights is not None or bands is not None)

    def forward(self, image: np.ndarray, traces: np.ndarray) -> None:
        """Demigrate a flat image into flat traces."""
        if self._size[0] == 0:
            return
        with _threads(self._threads):
            _forward(image, *self._times, *self._forward_filter, traces.reshape(self._size))

    def adjoint(self, traces: np.ndarray, image: np.ndarray) -> None:
        """Migrate flat traces into a flat image."""
        with _threads(self._threads):
            _adjoint(traces.reshape(self._size), *self._times, *self._adjoint_filter, self._filtered, image)


def thread_count(others: Iterable[frozenset[int]] = ()) -> int:
    """Return NUMBA_NUM_THREADS if that is set in the environment, else this process' share of the cores, at least 1.

    `others` are the cores of the other ranks on this node, as for :func:`collops.comm.cores.share_of_cores`.
    """
    limit = _configuration.NUMBA_NUM_THREADS
    if "NUMBA_NUM_THREADS" in os.environ:
        return limit
    return max(1, min(limit, int(share_of_cores(others) + 1e-6)))


def _factors(weights: Weights | None, bands: Bands | None, dtype: np.dtype) -> tuple[Any, Any, Any, Any]:
    """Return weights and bands as the kernels take them; of two that are not both None, one without elements is none.

    Numba compiles no code for arguments that are None.
    """
    if weights is None and bands is None:
        return None, None, None, None
    choice = np.empty((0, 0), np.uint8) if bands is None else bands.choice
    if weights is None:
        return np.zeros(5, dtype), np.empty((0, 0, 0), dtype), np.empty((0, 0, 0), dtype), choice
    form = np.array([weights.axes, weights.oblique, weights.spreads, *weights.steepest], dtype)
    return form, weights.sources, weights.receivers, choice


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = numba.get_num_threads()
    numba.set_num_threads(count)
    try:
        yield
    finally:
        numba.set_num_threads(before)


@cache
def _compiled(dtype: str, fixed_type: str, with_factors: bool) -> None:
    """Compile both directions for one pair of types, or load them from the cache on disk, so that no later call does.

    One process at a time: Numba's index of its cache does not support two writers.
    """
    import fcntl

    dispatcher: Any = _forward
    folder = dispatcher.stats.cache_path
    os.makedirs(folder, exist_ok=True)
    table = np.zeros((1, 1), fixed_type)
    taps, one, trace = (np.zeros(n, dtype) for n in (_TAPS, 1, 2))
    factors = _factors(None, Bands((1,), np.empty((0, 0), np.uint8)) if with_factors else None, taps.dtype)
    times = (table, table, np.int64(1), taps.dtype.type(1), *factors)
    with open(os.path.join(folder, "kirchhoff.lock"), "w", encoding="utf-8") as lock, _threads(1):
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed; all processes share the cache on disk
        _forward(one, *times, taps[np.newaxis], np.int64(0), trace.reshape(1, 2))
        _adjoint(trace.reshape(1, 2), *times, taps[np.newaxis], np.int64(0), np.zeros((1, 2 + _BEHIND), dtype), one)
