"""The adjoint product of the Kirchhoff operator, from traces to images, in Numba.

A task is one piece of the image, which gathers from all traces in turn. It interpolates coarse tables of some receivers
once for all sources, and those of sources again for each such batch of receivers.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from collops.extend.engines import cached_njit
from collops.seismic.kirchhoff.numba_points import choose_rows, fields_of, times_of, weigh
from collops.seismic.kirchhoff.numba_rows import GUARD, OPTIONS, PADDING, add_rows, convolve, copy_transpose

_TRACES_AT_A_TIME = 4  # that the adjoint adds together to points of several columns; `_gather` is unrolled for it
_RECEIVERS_AT_A_TIME = 32  # of the adjoint with coarse tables
_BLOCK = 1024  # image points of a task of the adjoint

_INLINE: dict = {"inline": "always", **OPTIONS}  # the innermost loops are slower as functions


@cached_njit(**OPTIONS)
def _gather(columns, strips, total, filtered, begins, index, fraction, weight, n):
    """Add arrivals in four traces, which begin at these rows of `filtered`, to image points."""
    a, b, c, d = begins[0], begins[1], begins[2], begins[3]
    for i in range(n):
        arrivals = a + index[0, i], b + index[1, i], c + index[2, i], d + index[3, i]
        w = weight[0, i], weight[1, i], weight[2, i], weight[3, i]
        far = (w[0] * fraction[0, i], w[1] * fraction[1, i], w[2] * fraction[2, i], w[3] * fraction[3, i])
        near = w[0] - far[0], w[1] - far[1], w[2] - far[2], w[3] - far[3]
        for strip in range(strips):
            rows = (
                arrivals[0] * strips + strip,
                arrivals[1] * strips + strip,
                arrivals[2] * strips + strip,
                arrivals[3] * strips + strip,
            )
            next_rows = (rows[0] + strips, rows[1] + strips, rows[2] + strips, rows[3] + strips)
            add_rows(columns, total, (i * strips + strip,), filtered, rows + next_rows, near + far)


@cached_njit(**_INLINE)
def _gather_column(columns, total, trace, index, fraction, weight, weighted, n):
    """Add arrivals of one column in a trace to image points."""
    for i in range(n):
        k, amplitude, far = index[i], fraction.dtype.type(1), fraction[i]
        if weighted is not None:
            amplitude = weight[i]
            far *= amplitude
        add_rows(columns, total, (i,), trace, (k, k + 1), (amplitude - far, far))


@cached_njit(**OPTIONS)
def _filter_trace(columns, strips, traces, number, taps, lead, filtered):
    """Correlate trace `number` with the wavelet of each band, followed by zeros."""
    samples, step = traces.shape[2], strips * len(columns)
    if len(columns) == 1:
        trace = traces[0, number]
    else:
        trace = np.zeros(samples * step, filtered.dtype)
        start, pitch = number * samples, traces.shape[1] * samples
        copy_transpose(columns, traces.reshape(-1), start, pitch, trace, 0, step, traces.shape[0], samples)
    padded = np.empty((samples + taps.shape[1]) * step, filtered.dtype)
    filtered[:] = 0
    for band in range(len(taps)):
        begin = band * (samples + GUARD) * step
        convolve(columns, strips, trace, taps[band], lead, padded, filtered[begin : begin + samples * step])


@cached_njit(**_INLINE)
def _arrivals_in_trace(outward, back, bits, scale, samples, index, fraction):
    """Compute the samples of arrivals, and their parts at the next sample.

    Arrivals beyond the trace read the zeros after it. Differences of neighbouring samples are not stored, which halves
    the memory traffic: the traces of a rank exceed its L2 cache, and every block of the image reads all of them.
    """
    fixed, real = outward.dtype.type, fraction.dtype.type
    shift, mask = fixed(bits), fixed((1 << bits) - 1)
    last, beyond = np.uint32(samples - 1), np.uint32(samples)
    for i in range(outward.size):
        time = fixed(outward[i] + back[i])
        k = np.uint32(time >> shift)
        index[i] = k if k < last else beyond
        fraction[i] = real(fixed(time & mask)) * scale


@cached_njit(parallel=True, **OPTIONS)
def adjoint(
    columns, strips, traces, span, tables, form, fields, choices, choice_rows, nearest, taps, lead, filtered, image
):
    """Add to `image` the migrated `traces` of the sources in `span`; `filtered` is overwritten."""
    source_rows, receiver_rows, times, coarse, nodes, bits, scale = tables
    (begin_source, end_source), receivers = span, receiver_rows.size
    first_trace = begin_source * receivers
    width, samples = len(columns), traces.shape[2]
    row_size = strips * width
    extent = len(taps) * (samples + GUARD)  # samples of a filtered trace
    points = image.size // row_size
    is_coarse = coarse[1].shape[0] > 0
    step = min(_RECEIVERS_AT_A_TIME, receivers) if is_coarse else receivers
    for trace in prange((end_source - begin_source) * receivers):
        result = filtered[trace * extent * row_size : (trace + 1) * extent * row_size]
        _filter_trace(columns, strips, traces, first_trace + trace, taps, lead, result)
    for block in prange((points + _BLOCK - 1) // _BLOCK):
        begin = block * _BLOCK
        n = min(_BLOCK, points - begin)
        total = image[begin * row_size : (begin + n) * row_size]
        batch = 1 if width == 1 else _TRACES_AT_A_TIME
        slot, begins = 0, np.zeros(batch, np.int64)
        index = np.empty((batch, _BLOCK + PADDING), np.uint32)
        fraction = np.zeros((batch, _BLOCK + PADDING), image.dtype)
        weight = np.ones_like(fraction)
        length = np.empty(_BLOCK, image.dtype)
        size = _BLOCK if is_coarse else 0
        source_times, receiver_times = np.empty(size, times.dtype), np.empty((step, size), times.dtype)
        scratch, line = np.empty(size, coarse[0].dtype), np.empty(nodes[1][2] if is_coarse else 0, coarse[0].dtype)
        n_fields = 0
        if form is not None:
            n_fields = fields.shape[1]
        source_buffer = np.empty((n_fields, size), image.dtype)
        receiver_buffer = np.empty((step, n_fields, size), image.dtype)
        field_line = np.empty(line.size, image.dtype)
        for first in range(0, receivers, max(step, 1)):
            count = min(step, receivers - first)
            if is_coarse:
                for r in range(count):
                    row = receiver_rows[first + r]
                    times_of(times, coarse, nodes, row, begin, n, line, scratch, receiver_times[r])
                    if form is not None:
                        fields_of(fields, nodes, row, begin, n, field_line, receiver_buffer[r])
            for source in range(begin_source, end_source):
                outward = times_of(times, coarse, nodes, source_rows[source], begin, n, line, scratch, source_times)
                s_fields, s_begin = source_buffer, 0
                if form is not None and fields.size:
                    if is_coarse:
                        fields_of(fields, nodes, source_rows[source], begin, n, field_line, source_buffer)
                    else:
                        s_fields, s_begin = fields[source_rows[source]], begin
                for r in range(count):
                    row = receiver_rows[first + r]
                    back = receiver_times[r, :n] if is_coarse else times[row, begin : begin + n]
                    number = source * receivers + first + r - first_trace
                    _arrivals_in_trace(outward, back, bits, scale, samples, index[slot], fraction[slot])
                    if form is not None:
                        if len(taps) > 1:
                            choice = choices[choice_rows[first + r]]
                            choose_rows(index[slot], choice, nearest, begin, n, samples + GUARD)
                        if fields.size:
                            r_fields, r_begin = fields[row], begin
                            if is_coarse:
                                r_fields, r_begin = receiver_buffer[r], 0
                            weigh(form, s_fields, s_begin, r_fields, r_begin, n, weight[slot], length)
                    if width == 1:
                        values = filtered[number * extent : (number + 1) * extent]
                        _gather_column(columns, total, values, index[0], fraction[0], weight[0], form, n)
                    else:
                        begins[slot] = number * extent
                        slot = (slot + 1) % batch
                        if slot == 0:
                            _gather(columns, strips, total, filtered, begins, index, fraction, weight, n)
        if slot > 0:
            index[slot:] = np.uint32(samples)  # zeros, so that the unused slots have no effect
            _gather(columns, strips, total, filtered, begins, index, fraction, weight, n)
