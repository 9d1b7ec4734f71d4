"""Numba kernels of the Kirchhoff operator for host memory.

Forward: a task is one source and a few receivers. It processes the image in pieces that stay in the L1 cache. For each
piece it first computes the sample indices and weights of a trace, in a loop that the compiler can vectorise, and then
scatters into the trace. The finished trace is convolved while it is still in cache. Adjoint: a task is one piece of the
image, which gathers from all traces in turn. No two tasks write the same memory.

Times and weights on coarser nodes are interpolated first, a piece at a time. The adjoint interpolates the tables of
some receivers once for all sources, and the tables of sources again for each such batch of receivers. Weights and bands
are separate loops over a piece. A trace has one run of samples for each band, with its own wavelet; each arrival is
added to the run of its band.

Forward and adjoint apply to batches of images (columns), and compute sample indices and weights once for all of them.
Each point and each sample then has a value for each column. Columns are grouped into SIMD vectors of ``len(columns)``
values, a number that is known at compile time; up to four such vectors (strips) are processed together. Several strips,
and several traces at a time, hide the latency of loading, updating and storing a vector, which is often the vector of
the previous update.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import prange
from numba.core import types
from numba.extending import intrinsic

from collops.extend.engines import cached_njit
from collops.seismic.host_kernels import checked_threads, compilation_lock, limited_threads
from collops.seismic.kirchhoff.fixed_point import FixedTables
from collops.seismic.kirchhoff.weights import Bands, Weights

_RECEIVERS_PER_TASK = 4
_TRACES_AT_A_TIME = 4  # that the adjoint adds together to points of several columns; `_gather` is unrolled for it
_RECEIVERS_AT_A_TIME = 32  # of the adjoint with coarse tables
_PIECE = 512  # image points whose sample indices and weights are computed at a time
_BLOCK = 1024  # image points of a task of the adjoint
_PADDING = 16  # elements after a piece or a block, so that its arrays do not map to the same cache sets
_TAPS = 8  # of the wavelet, applied at a time; `_convolve` is unrolled for it
_PART = 2048  # samples that all taps are applied to at a time, in the L1 cache
_GUARD = 2  # samples after a trace: zeros, or the arrivals that are omitted
_ROW_BYTES = 64  # of a strip of columns: a SIMD vector
_STRIPS = 4  # maximum number of strips computed together
_FILTERED = 1 << 23  # bytes of filtered traces of several columns that the adjoint holds at a time
_MIN_COLUMNS = 3  # minimum number of columns for which a row is faster than one column after the other
_NO_DIRECTION = 1e-30  # squared length of the sum of two opposite directions

# Allow contraction of products and sums, and zeros without sign: other options change results or hide NaN.
_OPTIONS: dict = {"nogil": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy"}
_INLINE: dict = {"inline": "always", **_OPTIONS}  # the adjoint's innermost loops are slower as functions


def _row_addition(typing, columns, target, target_rows, source, source_rows, factors):
    """Add the `source_rows` of `source`, times factors, to each of the `target_rows` of `target`.

    The rows and `factors` are tuples; each target row has a factor for each source row. Both arrays are flat. Without
    this function the compiler must assume that they overlap, and does not vectorise.
    """
    width = columns.count

    def generate(context, builder, signature, arguments):
        number = context.get_value_type(factors.dtype)
        vector = ir.VectorType(number, width) if width > 1 else number
        align = context.get_abi_sizeof(number)

        def addresses(array, rows):
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            for number in range(signature.args[rows].count):
                row = builder.extract_value(arguments[rows], number)
                row = context.cast(builder, row, signature.args[rows][number], types.intp)
                yield builder.bitcast(builder.gep(data, [builder.mul(row, row.type(width))]), vector.as_pointer())

        def factor(number):
            value = builder.extract_value(arguments[5], number)
            if width == 1:
                return value
            lane = builder.insert_element(vector(ir.Undefined), value, ir.IntType(32)(0))
            return builder.shuffle_vector(lane, vector(ir.Undefined), ir.VectorType(ir.IntType(32), width)([0] * width))

        rows = [builder.load(address, align=align) for address in addresses(3, 4)]
        for target_number, address in enumerate(addresses(1, 2)):
            total = builder.load(address, align=align)
            for number_of_row, row in enumerate(rows, target_number * len(rows)):
                total = builder.fadd(total, builder.fmul(factor(number_of_row), row))
            builder.store(total, address, align=align)
        return context.get_dummy_value()

    return types.void(columns, target, target_rows, source, source_rows, factors), generate


def _square_transposition(typing, columns, source, begin, stride, target, to_begin, to_stride):
    """Copy the transpose of a square block of one flat array into another; `columns` is as long as its rows.

    The first row begins at element `begin` of `source`, and consecutive rows are `stride` elements apart. In `target`
    the first row begins at element `to_begin`, and the stride is `to_stride`.
    """
    width = columns.count

    def generate(context, builder, signature, arguments):
        vector = ir.VectorType(context.get_value_type(source.dtype), width)
        align = context.get_abi_sizeof(vector.element)

        def addresses(array):
            data, *numbers = arguments[array : array + 3]
            data = context.make_array(signature.args[array])(context, builder, data).data
            kinds = signature.args[array + 1 : array + 3]
            first, step = (context.cast(builder, *pair, types.intp) for pair in zip(numbers, kinds, strict=True))
            for row in range(width):
                element = builder.add(first, builder.mul(step, step.type(row)))
                yield builder.bitcast(builder.gep(data, [element]), vector.as_pointer())

        rows = [builder.load(address, align=align) for address in addresses(1)]
        halves = [[i // 2 + half + i % 2 * width for i in range(width)] for half in (0, width // 2)]
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), width), half) for half in halves]
        for _ in range(width.bit_length() - 1):  # each step merges rows with the rows half a square below
            pairs = zip(rows[: width // 2], rows[width // 2 :], strict=True)
            rows = [builder.shuffle_vector(a, b, mask) for a, b in pairs for mask in masks]
        for row, address in zip(rows, addresses(4), strict=True):
            builder.store(row, address, align=align)
        return context.get_dummy_value()

    return types.void(columns, source, begin, stride, target, to_begin, to_stride), generate


# Numba passes the argument `typing`.
_add_rows: Any = intrinsic(_row_addition)
_transpose: Any = intrinsic(_square_transposition)


@cached_njit(**_OPTIONS)
def _convolve(columns, strips, trace, taps, lead, padded, result):
    """Add to `result` the correlation of `trace`, delayed by `lead` samples, with `taps`.

    The number of taps must be a multiple of `_TAPS`.
    """
    size, step = trace.size, 1 if len(columns) == 1 else strips  # a compile-time constant for one column
    begin = lead * step * len(columns)
    padded[:begin] = 0
    for i in range(size):  # Numba needs seconds to compile the assignment of an array, for the message of its error
        padded[begin + i] = trace[i]
    padded[begin + size :] = 0
    rows, most = size // len(columns), _PART // len(columns)
    for part in range(0, rows, most):
        end = min(part + most, rows)
        for first in range(0, taps.size, _TAPS):
            a, b, c, d = taps[first], taps[first + 1], taps[first + 2], taps[first + 3]
            e, f, g, h = taps[first + 4], taps[first + 5], taps[first + 6], taps[first + 7]
            for i in range(part, end):
                k = i + first * step
                near = k, k + step, k + 2 * step, k + 3 * step
                far = k + 4 * step, k + 5 * step, k + 6 * step, k + 7 * step
                _add_rows(columns, result, (i,), padded, near + far, (a, b, c, d, e, f, g, h))


@cached_njit(**_OPTIONS)
def _copy_transpose(columns, source, begin, stride, target, to_begin, to_stride, rows, size):
    """Copy the transpose of a block of `rows` rows of length `size`; see :func:`_square_transposition`.

    It converts the traces of several columns to the order of the kernels, or back. `source` may be read-only.
    """
    width = len(columns)
    full_size, full_rows = size // width * width, rows // width * width
    for row in range(0, full_rows, width):
        for i in range(0, full_size, width):
            _transpose(
                columns, source, begin + row * stride + i, stride, target, to_begin + i * to_stride + row, to_stride
            )
    for row in range(rows):
        for i in range(full_size if row < full_rows else 0, size):
            target[to_begin + i * to_stride + row] = source[begin + row * stride + i]


@cached_njit(**_OPTIONS)
def _interpolate(values, nodes, begin, n, line, result):
    """Interpolate a row of node values at the points from `begin` on; `line` is overwritten."""
    shape, counts, node, step, weight = nodes
    nx, nz = shape[1], shape[2]
    of_x, of_z = shape[0], shape[0] + shape[1]
    done = 0
    while done < n:
        column, depth = (begin + done) // nz, (begin + done) % nz
        size = min(nz - depth, n - done)
        y, x, first_z, last_z = column // nx, of_x + column % nx, of_z + depth, of_z + depth + size - 1
        across, along = step[y] * counts[1] * counts[2], step[x] * counts[2]
        first = (node[y] * counts[1] + node[x]) * counts[2]
        low, high = node[first_z], node[last_z] + step[last_z] + 1
        for k in range(low, high):
            near = values[first + k]
            near += weight[x] * (values[first + along + k] - near)
            if across:
                far = values[first + across + k]
                far += weight[x] * (values[first + across + along + k] - far)
                near += weight[y] * (far - near)
            line[k] = near
        for i in range(size):
            k = node[first_z + i]
            result[done + i] = line[k] + weight[first_z + i] * (line[k + step[first_z + i]] - line[k])
        done += size


@cached_njit(**_OPTIONS)
def _times_of(times, coarse, nodes, row, begin, n, line, scratch, result):
    """Return the times of a station at the points from `begin` on: from a fine table, or computed in `result`."""
    remainders, straight, spacing, latest, unit = coarse
    if not straight.shape[0]:
        return times[row, begin : begin + n]
    _interpolate(remainders[row], nodes, begin, n, line, scratch)
    slowness = straight[row, 0]
    nx, nz = nodes[0][1], nodes[0][2]
    done = 0
    while done < n:
        column, depth = (begin + done) // nz, (begin + done) % nz
        size = min(nz - depth, n - done)
        y = (column // nx) * spacing[0] - straight[row, 1]
        x = (column % nx) * spacing[1] - straight[row, 2]
        square = y * y + x * x
        for i in range(size):
            z = (depth + i) * spacing[2] - straight[row, 3]
            samples = scratch[done + i] + slowness * np.sqrt(square + z * z)
            result[done + i] = result.dtype.type(np.rint(min(samples, latest) * unit))
        done += size
    return result[:n]


@cached_njit(**_OPTIONS)
def _fields_of(fields, nodes, row, begin, n, line, result):
    """Interpolate the fields of a station at the points from `begin` on."""
    for field in range(fields.shape[1]):
        _interpolate(fields[row, field], nodes, begin, n, line, result[field])


@cached_njit(**_OPTIONS)
def _weigh(form, source, source_begin, receiver, receiver_begin, n, weight, length):
    """Compute the weights of a source and a receiver at `n` points from their fields, of shape (fields, points).

    `form` has the parameters of `Weights`: axes, oblique, spreads, and the two numbers of `steepest`. `length` is
    overwritten.
    """
    axes, oblique, spreads, steepest, width = int(form[0]), form[1] > 0, form[2] > 0, form[3], form[4]
    a, b = (source[0, source_begin : source_begin + n], receiver[0, receiver_begin : receiver_begin + n])
    for i in range(n):
        weight[i] = a[i] * b[i]
    if axes > 0:
        length[:n] = 0
        for axis in range(1, 1 + axes):
            a, b = (source[axis, source_begin : source_begin + n], receiver[axis, receiver_begin : receiver_begin + n])
            for i in range(n):
                total = a[i] + b[i]
                length[i] += total * total
        if oblique:
            for i in range(n):
                weight[i] *= np.sqrt(length[i])
        if steepest >= 0:  # `a` and `b` are the vertical components here
            real = weight.dtype.type
            zero, unity, nothing = real(0), real(1), real(_NO_DIRECTION)
            for i in range(n):
                total = a[i] + b[i]
                part = (total * total - steepest * length[i]) / (width * (length[i] + nothing))
                weight[i] *= min(max(part, zero), unity)
    if spreads:
        a, b = (
            source[1 + axes, source_begin : source_begin + n],
            receiver[1 + axes, receiver_begin : receiver_begin + n],
        )
        for i in range(n):
            weight[i] /= np.sqrt(a[i] + b[i])


@cached_njit(**_OPTIONS)
def _choose_rows(index, choice, nearest, begin, n, stride):
    """Shift sample indices to the run of their band."""
    for i in range(n):
        node = nearest[begin + i] if nearest.size else begin + i
        index[i] += np.uint32(choice[node]) * np.uint32(stride)


@cached_njit(**_OPTIONS)
def _scatter_rows(columns, strips, values, index, near, far, count, extent, n, sums):
    """Add the arrivals of several columns to the traces of `count` receivers, each of `extent` samples."""
    for i in range(n):
        for r in range(count):
            k, factors = (r * extent + index[r, i]) * strips, (near[r, i], far[r, i])
            for strip in range(strips):
                to = k + strip
                _add_rows(columns, sums, (to, to + strips), values, (i * strips + strip,), factors)


@cached_njit(**_OPTIONS)
def _finish_trace(columns, strips, before, after, taps, lead, traces, number):
    """Join the contributions to the samples of trace `number`, and convolve each band with its wavelet."""
    samples, step = traces.shape[2], strips * len(columns)
    padded = np.empty((samples + taps.shape[1]) * step, before.dtype)
    trace = np.empty(samples * step, before.dtype)
    if len(columns) == 1:
        trace = traces[0, number]
    trace[:] = 0
    for band in range(len(taps)):
        first = band * (samples + _GUARD) * step
        a = before[first : first + samples * step]
        if len(columns) == 1:
            b = after[first : first + samples]
            a[samples - 1] = 0
            for i in range(samples - 1):
                a[i + 1] += b[i]
        _convolve(columns, strips, a, taps[band], lead, padded, trace)
    if len(columns) > 1:
        start, pitch = number * samples, traces.shape[1] * samples
        _copy_transpose(columns, trace, 0, step, traces.reshape(-1), start, pitch, samples, traces.shape[0])


@cached_njit(parallel=True, **_OPTIONS)
def _forward(columns, strips, image, tables, form, fields, choices, choice_rows, nearest, taps, lead, traces):
    source_rows, receiver_rows, times, coarse, nodes, bits, scale = tables
    sources, receivers = source_rows.size, receiver_rows.size
    samples, points = traces.shape[2], image.size // (strips * len(columns))
    groups = (receivers + _RECEIVERS_PER_TASK - 1) // _RECEIVERS_PER_TASK
    fixed, real = times.dtype.type, image.dtype.type
    shift, mask = fixed(bits), fixed((1 << bits) - 1)
    last = np.uint32(samples - 1)
    bands, stride = len(taps), samples + _GUARD
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
        index = np.empty((_RECEIVERS_PER_TASK, _PIECE + _PADDING), np.uint32)
        near = np.empty((_RECEIVERS_PER_TASK, _PIECE + _PADDING), image.dtype)
        far = np.empty_like(near)
        weight = np.empty(_PIECE, image.dtype)
        length = np.empty(_PIECE, image.dtype)
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
            outward = _times_of(times, coarse, nodes, source_rows[source], begin, n, line, scratch, source_times)
            s_fields, s_begin = source_buffer, 0
            if form is not None and fields.size:
                if is_coarse:
                    _fields_of(fields, nodes, source_rows[source], begin, n, field_line, source_buffer)
                else:
                    s_fields, s_begin = fields[source_rows[source]], begin
            for r in range(count):
                row, slot = receiver_rows[first + r], 0 if width == 1 else r
                back = _times_of(times, coarse, nodes, row, begin, n, line, scratch, receiver_times)
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
                            _fields_of(fields, nodes, row, begin, n, field_line, receiver_buffer)
                            r_fields, r_begin = receiver_buffer, 0
                        _weigh(form, s_fields, s_begin, r_fields, r_begin, n, weight, length)
                        for i in range(n):
                            near[slot, i] *= weight[i]
                            far[slot, i] *= weight[i]
                    if bands > 1:
                        _choose_rows(index[slot], choices[choice_rows[first + r]], nearest, begin, n, stride)
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


@cached_njit(**_OPTIONS)
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
            _add_rows(columns, total, (i * strips + strip,), filtered, rows + next_rows, near + far)


@cached_njit(**_INLINE)
def _gather_column(columns, total, trace, index, fraction, weight, weighted, n):
    """Add arrivals of one column in a trace to image points."""
    for i in range(n):
        k, amplitude, far = index[i], fraction.dtype.type(1), fraction[i]
        if weighted is not None:
            amplitude = weight[i]
            far *= amplitude
        _add_rows(columns, total, (i,), trace, (k, k + 1), (amplitude - far, far))


@cached_njit(**_OPTIONS)
def _filter_trace(columns, strips, traces, number, taps, lead, filtered):
    """Correlate trace `number` with the wavelet of each band, followed by zeros."""
    samples, step = traces.shape[2], strips * len(columns)
    if len(columns) == 1:
        trace = traces[0, number]
    else:
        trace = np.zeros(samples * step, filtered.dtype)
        start, pitch = number * samples, traces.shape[1] * samples
        _copy_transpose(columns, traces.reshape(-1), start, pitch, trace, 0, step, traces.shape[0], samples)
    padded = np.empty((samples + taps.shape[1]) * step, filtered.dtype)
    filtered[:] = 0
    for band in range(len(taps)):
        begin = band * (samples + _GUARD) * step
        _convolve(columns, strips, trace, taps[band], lead, padded, filtered[begin : begin + samples * step])


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


@cached_njit(parallel=True, **_OPTIONS)
def _adjoint(
    columns, strips, traces, span, tables, form, fields, choices, choice_rows, nearest, taps, lead, filtered, image
):
    source_rows, receiver_rows, times, coarse, nodes, bits, scale = tables
    (begin_source, end_source), receivers = span, receiver_rows.size
    first_trace = begin_source * receivers
    width, samples = len(columns), traces.shape[2]
    row_size = strips * width
    extent = len(taps) * (samples + _GUARD)  # samples of a filtered trace
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
        index = np.empty((batch, _BLOCK + _PADDING), np.uint32)
        fraction = np.zeros((batch, _BLOCK + _PADDING), image.dtype)
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
                    _times_of(times, coarse, nodes, row, begin, n, line, scratch, receiver_times[r])
                    if form is not None:
                        _fields_of(fields, nodes, row, begin, n, field_line, receiver_buffer[r])
            for source in range(begin_source, end_source):
                outward = _times_of(times, coarse, nodes, source_rows[source], begin, n, line, scratch, source_times)
                s_fields, s_begin = source_buffer, 0
                if form is not None and fields.size:
                    if is_coarse:
                        _fields_of(fields, nodes, source_rows[source], begin, n, field_line, source_buffer)
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
                            _choose_rows(index[slot], choice, nearest, begin, n, samples + _GUARD)
                        if fields.size:
                            r_fields, r_begin = fields[row], begin
                            if is_coarse:
                                r_fields, r_begin = receiver_buffer[r], 0
                            _weigh(form, s_fields, s_begin, r_fields, r_begin, n, weight[slot], length)
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
        taps = np.zeros((rows, -(-size // _TAPS) * _TAPS), dtype)
        reversed_taps = np.zeros_like(taps)
        taps[:, :size], reversed_taps[:, :size] = wavelets, wavelets[:, ::-1]
        # Convolution with the wavelet is correlation with its reverse.
        self._forward_filter = (reversed_taps, np.int64(size - 1 - center))
        self._adjoint_filter = (taps, np.int64(center))
        self._filtered = rows * (scale.samples + _GUARD)  # samples of a trace
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
                _forward(columns, strips, rows, self._tables, *self._factors, *self._forward_filter, traces[some])

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
                    _adjoint(columns, strips, *inputs, *self._adjoint_filter, filtered, rows)
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


def _stations(tables: FixedTables) -> tuple[Any, Any, Any, tuple[Any, ...], tuple[Any, ...]]:
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


def _factors(tables: FixedTables, weights: Weights | None, bands: Bands | None) -> tuple[Any, Any, Any, Any, Any]:
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
    taps, image = np.zeros(_TAPS, dtype), np.zeros(width, dtype)
    empty = FixedTables.from_seconds(np.zeros((0, 1)), np.zeros((0, 1)), 1.0, 10_000 if long_times else 2, dtype)
    bands = Bands((1,), np.empty((0, 0), np.uint8), np.empty(0, np.int64)) if with_factors else None
    tables, factors = (*_stations(empty), np.int64(1), taps.dtype.type(1)), _factors(empty, None, bands)
    with compilation_lock(_forward, "kirchhoff"):
        columns, traces = (0,) * width, np.zeros((1, 0, 2), dtype)
        filter_ = taps[np.newaxis], np.int64(0)
        _forward(columns, 1, image, tables, *factors, *filter_, traces)
        _adjoint(columns, 1, traces, (0, 0), tables, *factors, *filter_, np.zeros(0, dtype), image)
