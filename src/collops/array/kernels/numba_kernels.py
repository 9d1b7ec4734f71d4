"""Loops over long real vectors on the host that Numba compiles: several vectors in one pass, without temporaries.

Arrays are contiguous, of one dtype, and 1-D except `rows`. Sums are computed in pieces of this length, which stay in
the L2 cache if several are read more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from collops._numba_cache import cached_njit

__all__ = ["PIECE", "axpby", "combine", "compiled", "dots", "products", "update_solution_and_direction"]

PIECE = 1 << 15


def compiled(function: Callable, *, reordered: bool = False, inline: bool = False) -> Callable:
    """Compile a function at its first call, and cache the result on disk if Numba has a writable folder.

    With `inline`, functions that call it contain its statements. With `reordered`, sums may be computed in another
    order. Other results must be bitwise equal in all variants of a loop, which the program chooses by the addresses of
    the arrays.
    """
    fastmath = {"contract", "nsz", "reassoc"} if reordered else False
    inlined = "always" if inline else "never"
    return cached_njit(inline=inlined, nogil=True, error_model="numpy", fastmath=fastmath)(function)


@compiled
def axpby(a, x, b, y, out):
    """Set `out` to ``a * x + b * y``."""
    a, b = out.dtype.type(a), out.dtype.type(b)
    for i in range(out.size):
        out[i] = a * x[i] + b * y[i]


@compiled
def update_solution_and_direction(x, length, direction, ratio, gradient):
    """Add ``length * direction`` to `x`, and set `direction` to ``gradient + ratio * direction``."""
    length, ratio = x.dtype.type(length), x.dtype.type(ratio)
    for i in range(x.size):
        old = direction[i]
        x[i] += length * old
        direction[i] = gradient[i] + ratio * old


@partial(compiled, reordered=True)
def dots(xs, ys, out):
    """Set `out` to the inner products of the pairs of two tuples."""
    out[:] = 0
    for start in range(0, xs[0].size, PIECE):
        for pair in range(len(xs)):
            x, y = xs[pair][start : start + PIECE], ys[pair][start : start + PIECE]
            total = x.dtype.type(0)
            for i in range(x.size):
                total += x[i] * y[i]
            out[pair] += total


@partial(compiled, reordered=True)
def products(rows, u, w, out):
    """Set `out` to the inner products of each row with `u` and with `w`.

    Four rows are read together: memory is read fastest along few long runs.
    """
    out[:] = 0
    for start in range(0, u.size, PIECE):
        end = min(start + PIECE, u.size)
        part, other = u[start:end], w[start:end]
        number = 0
        while number + 4 <= len(rows):
            a, b = rows[number, start:end], rows[number + 1, start:end]
            c, d = rows[number + 2, start:end], rows[number + 3, start:end]
            a0 = a1 = b0 = b1 = c0 = c1 = d0 = d1 = u.dtype.type(0)
            for i in range(part.size):
                x, y = part[i], other[i]
                a0 += a[i] * x
                a1 += a[i] * y
                b0 += b[i] * x
                b1 += b[i] * y
                c0 += c[i] * x
                c1 += c[i] * y
                d0 += d[i] * x
                d1 += d[i] * y
            for index, (first, second) in enumerate(((a0, a1), (b0, b1), (c0, c1), (d0, d1))):
                out[number + index, 0] += first
                out[number + index, 1] += second
            number += 4
        while number < len(rows):
            a = rows[number, start:end]
            a0 = a1 = u.dtype.type(0)
            for i in range(part.size):
                a0 += a[i] * part[i]
                a1 += a[i] * other[i]
            out[number, 0] += a0
            out[number, 1] += a1
            number += 1


@compiled
def combine(rows, matrix):
    """Replace the last two rows by the products of `matrix` with all rows, reading four rows at a time."""
    last = len(rows) - 2
    for start in range(0, rows.shape[1], PIECE):
        end = min(start + PIECE, rows.shape[1])
        u, w = rows[last, start:end], rows[last + 1, start:end]
        a0, a1, b0, b1 = matrix[0, last], matrix[1, last], matrix[0, last + 1], matrix[1, last + 1]
        for i in range(u.size):
            x, y = u[i], w[i]
            u[i] = a0 * x + b0 * y
            w[i] = a1 * x + b1 * y
        k = 0
        while k + 4 <= last:
            a, b, c, d = rows[k, start:end], rows[k + 1, start:end], rows[k + 2, start:end], rows[k + 3, start:end]
            a0, b0, c0, d0 = matrix[0, k], matrix[0, k + 1], matrix[0, k + 2], matrix[0, k + 3]
            a1, b1, c1, d1 = matrix[1, k], matrix[1, k + 1], matrix[1, k + 2], matrix[1, k + 3]
            for i in range(u.size):
                u[i] += a0 * a[i] + b0 * b[i] + c0 * c[i] + d0 * d[i]
                w[i] += a1 * a[i] + b1 * b[i] + c1 * c[i] + d1 * d[i]
            k += 4
        while k < last:
            a, a0, a1 = rows[k, start:end], matrix[0, k], matrix[1, k]
            for i in range(u.size):
                u[i] += a0 * a[i]
                w[i] += a1 * a[i]
            k += 1
