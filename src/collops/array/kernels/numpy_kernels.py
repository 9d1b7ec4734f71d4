"""Vector kernels on the host: BLAS for the types that it supports, else NumPy in pieces that fit the cache.

Long real vectors use the loops of :mod:`collops.array.kernels.numba_kernels` if Numba is installed. No kernel allocates
a temporary of the array's size.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import numpy as np
from scipy.linalg import blas as _scipy_blas

from collops.array import kernels
from collops.array.coefficients import Coefficient, Finite, Scalar, as_number
from collops.array.dtypes import accumulator, combined, is_half, norm_dtype, real_of
from collops.backend import LocalArray
from collops.errors import UnsupportedTypeError

PIECE = 10_000
"""Number of elements computed at a time. A piece and its temporary fit into the L2 cache.

OpenBLAS starts no threads for so few elements. NumPy and SciPy each have a copy of OpenBLAS, and idle threads of one
copy compete with threads of the other: iterations took ten times as long. Sums are also independent of the number of
threads.
"""

blas: ModuleType = _scipy_blas  # its functions are created at import, which type checkers cannot see
_AXPY: dict[str, Callable[..., np.ndarray]] = {"f": blas.saxpy, "d": blas.daxpy, "F": blas.caxpy, "D": blas.zaxpy}
_SCALE: dict[str, Callable[..., np.ndarray]] = {"f": blas.sscal, "d": blas.dscal, "F": blas.cscal, "D": blas.zscal}


def axpby(a: Coefficient, x: np.ndarray, b: Coefficient, y: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Return ``a * x + b * y``, in `out` if it is given (it may be `x` or `y`). See :func:`collops.array.axpby`."""
    if a.__class__ is not float:
        a = _number(a)
    if b.__class__ is not float:
        b = _number(b)
    char = y.dtype.char
    if char in _AXPY and x.dtype.char == char and x.flags.c_contiguous and y.flags.carray:
        real = a.__class__ is not complex and b.__class__ is not complex
        if y.size >= kernels.LONG and a != 0 and b != 0 and real and suits_loops(y if out is None else out, x, y):
            out = np.empty_like(y) if out is None else out
            kernels.loops().axpby(float(a), x.reshape(-1), float(b), y.reshape(-1), out.reshape(-1))
            return out
        # Fast path of most iterations.
        if b != 0 and 0 < y.size <= PIECE and (real or char in "FD"):
            if out is None and a != 0:
                return _updated(char, a, x, 1, y * b)
            if out is y and _disjoint(x, y):
                return _updated(char, a, x, b, y)
    dtype = combined(x.dtype, y.dtype, type(a + b))
    if out is None:
        out = np.empty(x.shape, dtype)
    elif dtype != out.dtype and not np.can_cast(dtype, out.dtype, "same_kind"):
        raise UnsupportedTypeError(f"a result of dtype {dtype} does not fit into out of dtype {out.dtype}")
    else:
        x, y = _readable(x, out), _readable(y, out)
    if x is y:
        a, b = a + b, 0
    if b == 0 or (out is x and a != 0):
        a, x, b, y = b, y, a, x
    # Below, b is 0 only if both are, and x is not out unless a is 0.
    by_blas = dtype.char in _AXPY and dtype == x.dtype == y.dtype == out.dtype
    # BLAS would write to a read-only array, and to a copy of an unaligned one.
    by_blas = by_blas and x.flags.c_contiguous and y.flags.c_contiguous and out.flags.carray
    in_place, compute_dtype = out is y, np.float32 if is_half(out.dtype) else None
    for x_piece, y_piece, out_piece in _pieces(x, y, out):
        if by_blas or a == 0:
            if not (in_place and b == 1):
                _scaled(b, y_piece, out_piece)
            if a != 0:
                _AXPY[dtype.char](x_piece, out_piece, a=a)
        else:
            # Half precision is computed in single precision and rounded once.
            np.copyto(
                out_piece,
                np.multiply(x_piece, a, dtype=compute_dtype) + np.multiply(y_piece, b, dtype=compute_dtype),
                "same_kind",
            )
    return out


def update_solution_and_direction(
    x: np.ndarray, length: Coefficient, direction: np.ndarray, ratio: Coefficient, gradient: LocalArray
) -> None:
    """Add ``length * direction`` to `x`, and set `direction` to ``gradient + ratio * direction``."""
    length, ratio = _number(length), _number(ratio)
    real = length.__class__ is not complex and ratio.__class__ is not complex
    if real and length != 0 and ratio != 0 and suits_loops(direction, x, gradient) and suits_loops(x, gradient):
        update = kernels.loops().update_solution_and_direction
        update(x.reshape(-1), float(length), direction.reshape(-1), float(ratio), gradient.reshape(-1))
        return
    # Piece by piece, so that memory is read once for the direction.
    for x_piece, old, new in _pieces(x, direction, gradient) if x.size > PIECE else [(x, direction, gradient)]:
        axpby(length, old, 1.0, x_piece, x_piece)
        axpby(1.0, new, ratio, old, old)


def suits_loops(out: np.ndarray, *operands: np.ndarray) -> bool:
    """Return whether Numba's loops support arrays: long, real, contiguous, of one dtype, each `out` or disjoint."""
    char = out.dtype.char
    return (
        out.size >= kernels.LONG
        and char in "fd"
        and out.flags.carray
        and all(x is out or (x.dtype.char == char and x.flags.c_contiguous and _disjoint(x, out)) for x in operands)
        and kernels.loops() is not None
    )


def _updated(char: str, a: Scalar, x: np.ndarray, b: Scalar, y: np.ndarray) -> np.ndarray:
    """Add ``a * x`` to ``b * y`` in `y`; both are contiguous and of the dtype `char`."""
    flat = y
    if y.ndim > 1:
        x, flat = x.reshape(-1), y.reshape(-1)
    if b != 1:
        _SCALE[char](b, flat)
    _AXPY[char](x, flat, a=a)
    return y


def _scaled(a: Scalar, x: np.ndarray, out: np.ndarray) -> None:
    if a == 0:
        out[...] = 0
    elif is_half(out.dtype):
        out[...] = np.multiply(x, a, dtype=np.float32)
    else:
        np.multiply(x, a, out=out)


def dot(x: np.ndarray, y: np.ndarray, conjugate: bool) -> Scalar:
    """Return the inner product of two local arrays; real for an array with itself and `conjugate`."""
    char = x.dtype.char
    if char == y.dtype.char and char in _AXPY and x.flags.c_contiguous and y.flags.c_contiguous:
        if x.size >= kernels.LONG and suits_loops(x, y):
            out = np.empty(1, x.dtype)
            kernels.loops().dots((x.reshape(-1),), (y.reshape(-1),), out)
            return out[0]
        if char in "FD" and conjugate and x is y:
            x = y = x.view(real_of(x.dtype))
        elif char in "FD" and not conjugate:
            with np.errstate(over="ignore", invalid="ignore"):  # no warning for an infinite sum, as in vdot
                return sum((np.dot(a.reshape(-1), b.reshape(-1)) for a, b in _pieces(x, y)), x.dtype.type(0))
        return np.vdot(x, y) if x.size <= PIECE else _dot_of_rows(x.reshape(-1), y.reshape(-1))
    return _dot_by_pieces(x, y, conjugate)


def _dot_of_rows(x: np.ndarray, y: np.ndarray) -> Scalar:
    rows, remainder = divmod(x.size, PIECE)
    multiple = x.size - remainder
    with np.errstate(over="ignore", invalid="ignore"):  # as in vdot
        products = np.vecdot(x[:multiple].reshape(rows, PIECE), y[:multiple].reshape(rows, PIECE))
        return np.add.reduce(products) + np.vdot(x[multiple:], y[multiple:])


def _dot_by_pieces(x: np.ndarray, y: np.ndarray, conjugate: bool) -> Scalar:
    dtype = accumulator(np.result_type(x.dtype, y.dtype))
    total = dtype.type(0)
    with np.errstate(over="ignore"):  # integers wrap, as in numpy.dot
        for x_piece, y_piece in _pieces(x, y):
            x_wide = x_piece.astype(dtype, copy=False).ravel()
            y_wide = y_piece.astype(dtype, copy=False).ravel()
            total = total + (np.vdot(x_wide, y_wide) if conjugate else np.dot(x_wide, y_wide))
    return total.real if conjugate and x is y else total


def dots(slots: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]], dtype: np.dtype, conjugate: bool) -> np.ndarray:
    """Return the sum of the inner products of each slot's pairs, as an array of `dtype`."""
    out = np.empty(len(slots), dtype)
    if len(slots) > 1 and all(len(pairs) == 1 for pairs in slots):
        xs, ys = zip(*(pairs[0] for pairs in slots), strict=True)
        if suits_loops(xs[0], *xs, *ys) and dtype == xs[0].dtype and len({x.size for x in xs}) == 1:
            kernels.loops().dots(tuple(x.reshape(-1) for x in xs), tuple(y.reshape(-1) for y in ys), out)
            return out
    for number, pairs in enumerate(slots):
        total = dtype.type(0)
        for x, y in pairs:
            total = total + dot(x, y, conjugate)
        out[number] = total
    return out


def products_with_two(rows: np.ndarray, two: np.ndarray) -> np.ndarray | None:
    """Return the inner products of rows with two other rows by a loop that reads each once, if a loop supports them."""
    if len(two) != 2 or rows.dtype != two.dtype or not rows.flags.c_contiguous or not suits_loops(*two):
        return None
    out = np.empty((len(rows), 2), rows.dtype)
    kernels.loops().products(rows, *two, out)
    return out


def combine_into_two(rows: np.ndarray, matrix: np.ndarray) -> bool:
    """Replace the last two rows by the products of `matrix` with all rows, if a loop supports them; return success."""
    suits = rows.dtype == matrix.dtype and rows.flags.c_contiguous and suits_loops(rows[-1])
    if suits:
        kernels.loops().combine(rows, matrix)
    return suits


def divide(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a / b``; 0 if `b` is 0, NaN if it is infinite."""
    quotient = a / b if b != 0 else _alike(a, 0) / _alike(b, 1)
    return quotient + math.nan if quotient == 0 and cmath.isinf(b) else quotient


def square_of_sum(ww: Scalar, wq: Scalar, qq: Scalar, beta: tuple[float, Scalar, Scalar]) -> Scalar:
    """Return the square of ``w + beta q`` from inner products; see :func:`collops.array.square_of_sum`."""
    ratio = _number(beta)
    # As numbers of Python, whose products overflow without a warning.
    return np.float64(float(ww) + ratio * (2 * float(wq) + ratio * float(qq)))


def norm_part(x: np.ndarray, order: float) -> Scalar:
    """Return this rank's part of a norm: a count, a sum of powers, or an extreme of absolute values."""
    dtype = norm_dtype(x.dtype)
    if abs(order) == np.inf:
        extreme = np.maximum if order > 0 else np.minimum
        result = dtype.type(0 if order > 0 else np.inf)
        for (piece,) in _pieces(x):
            result = extreme(result, extreme.reduce(_magnitude(piece, dtype), axis=None))
        return result
    total = 0.0
    for (piece,) in _pieces(x):
        if order == 0:
            total += np.count_nonzero(piece)
        else:
            size = _magnitude(piece, dtype)
            with np.errstate(divide="ignore"):  # negative orders: 1 / 0 is inf, and the norm is 0
                total += float(np.sum(size if order == 1 else size**order))
    return dtype.type(total)


def _magnitude(piece: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if piece.dtype.kind in "biu" or is_half(piece.dtype):
        piece = piece.astype(dtype)
    return np.abs(piece)


def _pieces(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield views of the same pieces of arrays of one shape: of bounded size if contiguous, else whole rows."""
    if all(array.flags.c_contiguous for array in arrays):
        arrays = tuple(array.reshape(-1) for array in arrays)
    first = arrays[0]
    if first.size == 0:
        return
    rows = max(1, PIECE * first.shape[0] // first.size)
    for start in range(0, first.shape[0], rows):
        yield tuple(array[start : start + rows] for array in arrays)


def _number(a: Coefficient) -> Scalar:
    """Return a coefficient as a number, see :func:`collops.array.axpby`."""
    if isinstance(a, tuple):
        factor, scalar, *divisors = a
        number = factor * _number(divide(scalar, divisors[0]) if divisors else scalar)
        return 0.0 if a.__class__ is Finite and not cmath.isfinite(number) else number
    kind = a.__class__
    if kind is np.float64 or kind is np.float32 or (kind is np.ndarray and a.ndim == 0):
        return a.item()  # fast path
    return as_number(a)


def _alike(a: Scalar, value: int) -> Scalar:
    """Return `value` in the type of `a`."""
    return (a.dtype.type if hasattr(a, "dtype") else type(a))(value)


def _disjoint(x: np.ndarray, out: np.ndarray) -> bool:
    """Return whether two arrays share no memory."""
    return x is not out and ((x.base is None and out.base is None) or not np.may_share_memory(x, out))


def _readable(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Return `x`, or a copy of it if writing to `out` would overwrite it before it is read."""
    if x is out or _disjoint(x, out):
        return x
    identical = x.__array_interface__["data"] == out.__array_interface__["data"] and x.strides == out.strides
    return out if identical and x.dtype == out.dtype else x.copy()
