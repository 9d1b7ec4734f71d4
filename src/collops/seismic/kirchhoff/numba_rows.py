"""Rows of several columns as SIMD vectors, and the convolution of traces with wavelets by them, in Numba.

A row has a value for each of `len(columns)` columns, a number that is known at compile time.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from collops.extend.engines import cached_njit

PADDING = 16  # elements after a piece or a block, so that its arrays do not map to the same cache sets
TAPS = 8  # of the wavelet, applied at a time; `convolve` is unrolled for it
_PART = 2048  # samples that all taps are applied to at a time, in the L1 cache
GUARD = 2  # samples after a trace: zeros, or the arrivals that are omitted

# Allow contraction of products and sums, and zeros without sign: other options change results or hide NaN.
OPTIONS: dict = {"nogil": True, "fastmath": {"contract", "nsz"}, "error_model": "numpy"}


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
add_rows: Any = intrinsic(_row_addition)
_transpose: Any = intrinsic(_square_transposition)


@cached_njit(**OPTIONS)
def convolve(columns, strips, trace, taps, lead, padded, result):
    """Add to `result` the correlation of `trace`, delayed by `lead` samples, with `taps`.

    The number of taps must be a multiple of `TAPS`.
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
        for first in range(0, taps.size, TAPS):
            a, b, c, d = taps[first], taps[first + 1], taps[first + 2], taps[first + 3]
            e, f, g, h = taps[first + 4], taps[first + 5], taps[first + 6], taps[first + 7]
            for i in range(part, end):
                k = i + first * step
                near = k, k + step, k + 2 * step, k + 3 * step
                far = k + 4 * step, k + 5 * step, k + 6 * step, k + 7 * step
                add_rows(columns, result, (i,), padded, near + far, (a, b, c, d, e, f, g, h))


@cached_njit(**OPTIONS)
def copy_transpose(columns, source, begin, stride, target, to_begin, to_stride, rows, size):
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
