"""Steps of sparse and proximal methods on the host: in place with NumPy and BLAS, in pieces that stay in cache.

Temporaries have the size of a piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.linalg import blas as _scipy_blas

from collops.array.dtypes import real_of
from collops.array.kernels import kernels_for
from collops.array.kernels.numpy_kernels import PIECE
from collops.backend import LocalArray, engine
from collops.solvers.kernels import Rule
from collops.solvers.kernels.steps import factor, group_norms, launch_lsqr, scratch
from collops.solvers.state import Scalar

__all__ = ["Selection", "advance", "group_norms", "group_shrink", "launch_lsqr", "scratch", "shrink"]

_vectors: Any = kernels_for(engine("numpy"))
_blas: Any = _scipy_blas
_ABSOLUTE_SUM: dict[str, Any] = {"f": _blas.sasum, "d": _blas.dasum}


def advance(
    rule, threshold, base, alpha, gradient, current, extrapolated, momentum, sums, indices, scratch, keep
) -> tuple[LocalArray, LocalArray | None, LocalArray]:
    """Return `current` and `extrapolated`, overwritten, and the sums; see :func:`shrinkage.advance`."""
    threshold = _number(threshold)
    ahead = 0.0 if momentum is None else _number(momentum)
    update, absolute, square = indices
    for v_now, v_base, v_gradient, v_ahead in _pieces(current, base, gradient, extrapolated):
        if v_gradient is None:
            value = v_base.copy()
        else:
            value = np.multiply(v_gradient, alpha)
            if v_base is not None:
                value += v_base
        if rule:
            _shrink(rule, value, threshold, threshold)
        finite = value
        size = _absolute_sum(value) if absolute >= 0 else _square(value) if keep else 0.0
        if keep and not math.isfinite(size):
            finite = np.where(np.isfinite(value), value, v_now)
        if update >= 0 or v_ahead is not None:
            np.subtract(value, v_now, out=v_now)
            if update >= 0:
                sums[update] += _square(v_now)
            if v_ahead is not None:
                np.multiply(v_now, ahead, out=v_ahead)
                v_ahead += value
        if absolute >= 0:
            sums[absolute] += size
        if square >= 0:
            sums[square] += _square(value)
        v_now[...] = finite
    return current, extrapolated, sums


def shrink(
    rule: Rule,
    threshold: Scalar,
    upper: Scalar,
    weights: LocalArray,
    a: float,
    x: LocalArray,
    b: float,
    y: LocalArray,
    out: LocalArray,
) -> LocalArray:
    """Return the shrunk ``a * x + b * y`` in `out`, which may be `x` or `y`; see :func:`shrinkage.shrink`."""
    threshold, upper = _number(threshold), _number(upper)
    for v_out, v_x, v_y, v_weights in _pieces(out, x, y, weights):
        if v_y is not None:
            _vectors.axpby(a, v_x, b, v_y, v_out)
        elif a != 1:
            np.multiply(v_x, a, out=v_out)
        elif v_x is not v_out:
            v_out[...] = v_x
        _shrink(rule, v_out, threshold if v_weights is None else threshold * v_weights, upper)
    return out


def _shrink(rule: Rule, u: np.ndarray, t: Scalar, upper: Scalar) -> None:
    """Apply a rule in place."""
    if rule is Rule.CLIP:
        np.clip(u, t, upper, out=u)
    elif rule is Rule.SOFT and u.dtype.kind != "c":
        u -= np.clip(u, -t, t)
    elif rule is Rule.PROJECT and u.dtype.kind != "c":
        np.clip(u, -t, t, out=u)
    else:
        u *= factor(np, rule, np.abs(u), t).astype(real_of(u.dtype), copy=False)


def group_shrink(
    rule: Rule, threshold: float, parts: Sequence[np.ndarray], outs: Sequence[np.ndarray]
) -> Sequence[np.ndarray]:
    """Return `outs`: the parts of the vectors that have one element in each part, with their lengths shrunk."""
    for pieces in _pieces(*parts, *outs):
        values, targets = pieces[: len(parts)], pieces[len(parts) :]
        norms = group_norms(values)
        scale = factor(np, rule, norms, threshold).astype(norms.dtype, copy=False)
        for value, target in zip(values, targets, strict=True):
            np.multiply(value, scale, out=target)
    return outs


class Selection:
    """Histograms for selecting an order statistic of absolute values, digit by digit (radix selection).

    The bit patterns of non-negative floating-point numbers have the order of the numbers. `dtype` is real, of single or
    double precision.
    """

    DIGIT = 11  # bits

    def __init__(self, dtype: np.dtype) -> None:
        self._integer = np.dtype(f"u{dtype.itemsize}")
        self._dtype = dtype
        self.passes = -(-8 * dtype.itemsize // self.DIGIT)
        self.counts = np.zeros(1 << self.DIGIT, np.int64)
        self._prefix = 0
        self._rank = 0
        self._next = np.zeros(1, dtype)

    def start(self, rank: int) -> None:
        """Begin the search for the element with this rank, counted from 0."""
        self._prefix, self._rank = 0, rank

    def clear(self) -> None:
        """Set the counts to 0."""
        self.counts.fill(0)

    def count(self, values: np.ndarray, number: int) -> None:
        """Count the values that agree with the digits found so far, by their digit `number`."""
        shift = (self.passes - 1 - number) * self.DIGIT
        for (piece,) in _pieces(values):
            bits = np.ascontiguousarray(np.abs(piece)).view(self._integer).astype(np.uint64).reshape(-1)
            high = bits >> np.uint64(shift + self.DIGIT) if shift + self.DIGIT < 64 else np.zeros_like(bits)
            digits = (bits[high == self._prefix] >> np.uint64(shift)) & np.uint64((1 << self.DIGIT) - 1)
            self.counts += np.bincount(digits.astype(np.intp), minlength=len(self.counts))

    def choose(self, number: int) -> None:
        """Find the next digit from the counts of all ranks."""
        below = np.cumsum(self.counts)
        digit = int(np.searchsorted(below, self._rank, side="right"))
        self._rank -= int(below[digit] - self.counts[digit])
        self._equal_after = int(self.counts[digit]) - 1 - self._rank
        self._prefix = self._prefix << self.DIGIT | digit

    def find_next(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return this rank's smallest value above the selected one, or infinity; to be combined by min."""
        selected = self.element()
        self._next[0] = np.inf
        for array in values:
            for (piece,) in _pieces(array):
                size = np.abs(piece)
                self._next[0] = np.min(size, where=size > selected, initial=self._next[0])
        return self._next

    def element(self) -> Scalar:
        """Return the element."""
        return np.array(self._prefix, self._integer).view(self._dtype)[()]

    def interpolated(self, fraction: float) -> Scalar:
        """Interpolate between the selected element and the next one by a fraction."""
        selected = self.element()
        if self._equal_after > 0 or not fraction:
            return selected
        return selected + (self._next[0] - selected) * self._dtype.type(fraction)


def _square(v: np.ndarray) -> float:
    return float(_vectors.dot(v, v, True))


def _absolute_sum(v: np.ndarray) -> float:
    function = _ABSOLUTE_SUM.get(v.dtype.char)
    if function is not None and v.size and v.flags.c_contiguous:
        return float(function(v.reshape(-1)))
    return float(np.abs(v).sum(dtype=real_of(v.dtype)))


def _number(value: Scalar) -> float:
    return value.item() if hasattr(value, "item") else value


def _pieces(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Yield matching pieces of arrays of one shape, as views; an array may be None."""
    first = arrays[0]
    if first.size <= PIECE:
        if first.size:
            yield arrays
        return
    if all(array is None or array.flags.c_contiguous for array in arrays):
        arrays = tuple(None if array is None else array.reshape(-1) for array in arrays)
        first = arrays[0]
    rows = max(1, PIECE * first.shape[0] // first.size)
    for start in range(0, first.shape[0], rows):
        yield tuple(None if array is None else array[start : start + rows] for array in arrays)
