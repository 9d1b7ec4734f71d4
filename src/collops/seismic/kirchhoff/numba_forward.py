"""The forward product of the Kirchhoff operator, from images to traces, in Numba.

A task is one source and a few receivers. It processes the image in pieces that stay in the L1 cache. For each piece it
first computes the sample indices and weights of a trace, in a loop that the compiler can vectorise, and then scatters
into the trace. The finished trace is convolved while it is still in cache. No two tasks write the same memory.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from collops.extend.engines import cached_njit
from collops.seismic.kirchhoff.numba_points import choose_rows, fields_of, times_of, weigh
from collops.seismic.kirchhoff.numba_rows import GUARD, OPTIONS, PADDING, add_rows, convolve, copy_transpose

_RECEIVERS_PER_TASK = 4
_PIECE = 512  # image points whose sample indices and weights are computed at a time


@cached_njit(**OPTIONS)
def _scatter_rows(columns, strips, values, index, near, far, count, extent, n, sums):
    """Add the arrivals of several columns to the traces of `count` receivers, each of `extent` samples."""
    for i in range(n):
        for r in range(count):
            k, factors = (r * extent + index[r, i]) * strips, (near[r, i], far[r, i])
            for strip in range(strips):
                to = k + strip
                add_rows(columns, sums, (to, to + strips), values, (i * strips + strip,), factors)


@cached_njit(**OPTIONS)
def _finish_trace(columns, strips, before, after, taps, lead, traces, number):
    """Join the contributions to the samples of trace `number`, and convolve each band with its wavelet."""
    samples, step = traces.shape[2], strips * len(columns)
    padded = np.empty((samples + taps.shape[1]) * step, before.dtype)
    trace = np.empty(samples * step, before.dtype)
    if len(columns) == 1:
        trace = traces[0, number]
    trace[:] = 0
    for band in range(len(taps)):
        first = band * (samples + GUARD) * step
        a = before[first : first + samples * step]
        if len(columns) == 1:
            b = after[first : first + samples]
            a[samples - 1] = 0
            for i in range(samples - 1):
                a[i + 1] += b[i]
        convolve(columns, strips, a, taps[band], lead, padded, trace)
    if len(columns) > 1:
        start, pitch = number * samples, traces.shape[1] * samples
        copy_transpose(columns, trace, 0, step, traces.reshape(-1), start, pitch, samples, traces.shape[0])


@cached_njit(parallel=True, **OPTIONS)
def forward(columns, strips, image, tables, form, fields, choices, choice_rows, nearest, taps, lead, traces):
    """Compute the `traces` of all sources and receivers."""
    source_rows, receiver_rows, times, coarse, nodes, bits, scale = tables
    sources, receivers = source_rows.size, receiver_rows.size
    samples, points = traces.shape[2], image.size // (strips * len(columns))
    groups = (receivers + _RECEIVERS_PER_TASK - 1) // _RECEIVERS_PER_TASK
    fixed, real = times.dtype.type, image.dtype.type
    shift, mask = fixed(bits), fixed((1 << bits) - 1)
    last = np.uint32(samples - 1)
    bands, stride = len(taps), samples + GUARD
    is_coarse = coarse[1].shape[0] > 0
    for task in prange(sources * groups):
        width, unity = len(columns), real(1)  # known at compile time here, unlike outside the parallel loop
        # Arrivals beyond the trace are collected after it; with one column, at its last sample, which is unused.
        beyond = last if width == 1 else np.uint32(samples)
        source = task // groups
        first = (task % groups) * _RECEIVERS_PER_TASK
        count = min(_RECEIVERS_PER_TASK, receivers - first)
        # Contributions to samples. With one column, contributions to the sample after an arrival have a separate array,
        # indexed by the sample before it, as neighbours in the image often add to neighbouring samples.
        step = strips * width
        extent = bands * stride * step
        before = np.zeros(_RECEIVERS_PER_TASK * extent, image.dtype)
        after = np.zeros_like(before) if width == 1 else before
        index = np.empty((_RECEIVERS_PER_TASK, _PIECE + PADDING), np.uint32)
        near = np.empty((_RECEIVERS_PER_TASK, _PIECE + PADDING), image.dtype)
        far = np.empty_like(near)
        weight, length = np.empty(_PIECE, image.dtype), np.empty(_PIECE, image.dtype)
        size = _PIECE if is_coarse else 0
        source_times, receiver_times = np.empty(size, times.dtype), np.empty(size, times.dtype)
        scratch, line = np.empty(size, coarse[0].dtype), np.empty(nodes[1][2] if is_coarse else 0, coarse[0].dtype)
        n_fields = 0
        if form is not None:
            n_fields = fields.shape[1]
        source_buffer = np.empty((n_fields, size), image.dtype)
        receiver_buffer = np.empty_like(source_buffer)
        field_line = np.empty(line.size, image.dtype)
        for begin in range(0, points, _PIECE):
            n = min(_PIECE, points - begin)
            values = image[begin * step : (begin + n) * step]
            outward = times_of(times, coarse, nodes, source_rows[source], begin, n, line, scratch, source_times)
            s_fields, s_begin = source_buffer, 0
            if form is not None and fields.size:
                if is_coarse:
                    fields_of(fields, nodes, source_rows[source], begin, n, field_line, source_buffer)
                else:
                    s_fields, s_begin = fields[source_rows[source]], begin
            for r in range(count):
                row, slot = receiver_rows[first + r], 0 if width == 1 else r
                back = times_of(times, coarse, nodes, row, begin, n, line, scratch, receiver_times)
                for i in range(n):
                    time = fixed(outward[i] + back[i])
                    k = np.uint32(time >> shift)
                    index[slot, i] = k if k < last else beyond
                    value = values[i] if width == 1 else unity
                    part = value * (real(fixed(time & mask)) * scale)
                    far[slot, i] = part
                    near[slot, i] = value - part
                if form is not None:
                    if fields.size:
                        r_fields, r_begin = fields[row], begin
                        if is_coarse:
                            fields_of(fields, nodes, row, begin, n, field_line, receiver_buffer)
                            r_fields, r_begin = receiver_buffer, 0
                        weigh(form, s_fields, s_begin, r_fields, r_begin, n, weight, length)
                        for i in range(n):
                            near[slot, i] *= weight[i]
                            far[slot, i] *= weight[i]
                    if bands > 1:
                        choose_rows(index[slot], choices[choice_rows[first + r]], nearest, begin, n, stride)
                if width == 1:
                    for i in range(n):
                        k = r * extent + index[0, i]
                        before[k] += near[0, i]
                        after[k] += far[0, i]
            if width > 1:
                _scatter_rows(columns, strips, values, index, near, far, count, bands * stride, n, before)
        for r in range(count):
            a, b = before[r * extent : (r + 1) * extent], after[r * extent : (r + 1) * extent]
            _finish_trace(columns, strips, a, b, taps, lead, traces, source * receivers + first + r)
