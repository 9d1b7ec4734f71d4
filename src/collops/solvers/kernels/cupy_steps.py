"""Steps of sparse and proximal methods on the GPU: the launches of the kernels of ``steps.cu``.

No function synchronises with the device, and all of them can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np

from collops.array.dtypes import real_of
from collops.backend import LocalArray
from collops.errors import UnsupportedTypeError
from collops.solvers.kernels import Rule, kernel
from collops.solvers.state import Scalar

__all__ = ["Selection", "advance", "group_norms", "group_shrink", "launch_lsqr", "scratch", "shrink"]

_BLOCK = 256  # as in steps.cu
_PER_BLOCK = 4 * _BLOCK
_MAX_BLOCKS = 1 << 20
_BLOCKS_PER_PROCESSOR = 8
_MEASURES = 3
_COMPONENTS = 4  # maximum number of parts of one launch of group_shrink
_ELEMENTS = {"f": "-DELEMENT=2", "d": "-DELEMENT=3", "F": "-DELEMENT=4", "D": "-DELEMENT=5"}
_NULL = np.uint64(0)
_NO, _YES = np.int32(0), np.int32(1)
_NOTHING = (np.float64(0), _NULL, _NO)
_THREADS, _ONE = (_BLOCK,), (1,)


def _kernel(name: str, dtype: np.dtype) -> Callable[..., None]:
    """Return a kernel of ``steps.cu`` for an element type; raise for other types, also on ranks without elements."""
    if dtype.char not in _ELEMENTS:
        raise UnsupportedTypeError(
            f"sparse and proximal methods on devices are of single or double precision, not of {dtype}: astype()"
        )
    return kernel("steps.cu", name, _ELEMENTS[dtype.char])


def scratch() -> tuple[cupy.ndarray, cupy.ndarray, int]:
    """Return memory for the partial sums of :func:`advance`, its ticket, and the maximum number of blocks."""
    blocks = _BLOCKS_PER_PROCESSOR * cupy.cuda.Device().attributes["MultiProcessorCount"]
    return cupy.zeros(_MEASURES * blocks, np.float64), cupy.zeros(1, np.uint32), blocks


def advance(
    rule, threshold, base, alpha, gradient, current, extrapolated, momentum, sums, indices, scratch, keep
) -> tuple[LocalArray, LocalArray | None, LocalArray]:
    """Return `current` and `extrapolated`, overwritten, and the sums; see :func:`shrinkage.advance`."""
    size, dtype = current.size, current.dtype
    launch = _kernel("advance", dtype)
    if not size:
        return current, extrapolated, sums
    partial, ticket, most = scratch
    now, ahead = _contiguous(current), _contiguous(extrapolated)
    launch(
        (min(-(-size // _PER_BLOCK), most),),
        _THREADS,
        (
            np.int32(rule),
            *_number(threshold),
            _operand(base, dtype, extrapolated, ahead),
            np.float64(alpha),
            _operand(gradient, dtype),
            now,
            _NULL if ahead is None else ahead,
            *(_NOTHING if momentum is None else _number(momentum)),
            np.int64(size),
            sums,
            *(np.int32(index) for index in indices),
            partial,
            ticket,
            _YES if keep else _NO,
        ),
    )
    _put_back(now, current)
    _put_back(ahead, extrapolated)
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
    size, dtype = out.size, out.dtype
    launch = _kernel("shrink", dtype)
    if not size:
        return out
    target = _contiguous(out)
    launch(
        (min(-(-size // _BLOCK), _MAX_BLOCKS),),
        _THREADS,
        (
            np.int32(rule),
            *_number(threshold),
            np.float64(upper),
            _operand(weights, real_of(dtype)),
            np.float64(a),
            _operand(x, dtype, out, target),
            np.float64(b),
            _operand(y, dtype, out, target),
            target,
            np.int64(size),
        ),
    )
    _put_back(target, out)
    return out


def launch_lsqr(name: str, scalars: LocalArray, factors: LocalArray, *values: Scalar) -> tuple[LocalArray, LocalArray]:
    """Return both arrays after a part of an iteration of LSQR, which one thread computes in place."""
    suffix = "float" if factors.dtype == np.float32 else "double"
    kernel("lsqr.cu", f"{name}_{suffix}")(_ONE, _ONE, (scalars, factors, *values))
    return scalars, factors


def group_norms(parts: Sequence[LocalArray]) -> LocalArray:
    """Return the Euclidean norms of the vectors that have one element in each part."""
    total = cupy.abs(parts[0]) ** 2
    for part in parts[1:]:
        total += cupy.abs(part) ** 2
    return cupy.sqrt(total, out=total)


def group_shrink(
    rule: Rule, threshold: float, parts: Sequence[LocalArray], outs: Sequence[LocalArray]
) -> Sequence[LocalArray]:
    """Return `outs`: the parts of the vectors that have one element in each part, with their lengths shrunk."""
    size, dtype = outs[0].size, outs[0].dtype
    launch = _kernel("group_shrink", dtype)
    if not size:
        return outs
    if len(parts) > _COMPONENTS:
        norms = group_norms(parts)
        shrunk = cupy.empty_like(norms)
        shrink(rule, threshold, 0.0, None, 1.0, norms, 0.0, None, shrunk)
        scale = shrunk / cupy.where(norms == 0, 1, norms)
        for part, out in zip(parts, outs, strict=True):
            cupy.multiply(part, scale, out=out)
        return outs
    targets = [_contiguous(out) for out in outs]
    values = [_operand(part, dtype, out, target) for part, out, target in zip(parts, outs, targets, strict=True)]
    null = [_NULL] * (_COMPONENTS - len(parts))
    launch(
        (min(-(-size // _BLOCK), _MAX_BLOCKS),),
        _THREADS,
        (
            np.int32(rule),
            np.float64(threshold),
            np.int32(len(parts)),
            *values,
            *null,
            *targets,
            *null,
            np.int64(size),
        ),
    )
    for target, out in zip(targets, outs, strict=True):
        _put_back(target, out)
    return outs


class Selection:
    """Histograms for selecting an order statistic of absolute values; see the class for hosts."""

    DIGIT = 11  # bits

    def __init__(self, dtype: np.dtype) -> None:
        self.passes = -(-8 * dtype.itemsize // self.DIGIT)
        self.counts = cupy.zeros(1 << self.DIGIT, np.int64)
        self._position = cupy.zeros(3, np.int64)
        self._bits = cupy.zeros(1, np.uint64)
        self._next = cupy.zeros(1, dtype)
        self._dtype = dtype

    def start(self, rank: int) -> None:
        """Begin the search for the element with this rank, counted from 0."""
        _kernel("start_selection", self._dtype)(_ONE, _ONE, (self._position, np.int64(rank)))

    def clear(self) -> None:
        """Set the counts to 0."""
        self.counts.fill(0)

    def count(self, values: LocalArray, number: int) -> None:
        """Count the values that agree with the digits found so far, by their digit `number`."""
        if values.size:
            shift = np.int32((self.passes - 1 - number) * self.DIGIT)
            arguments = (_contiguous(values), np.int64(values.size), shift, self._position, self.counts)
            _kernel("count_digits", values.dtype)(_grid(values), _THREADS, arguments)

    def choose(self, number: int) -> None:
        """Find the next digit from the counts of all ranks."""
        _kernel("choose_digit", self._dtype)(_ONE, _ONE, (self._position, self.counts))

    def find_next(self, values: Sequence[LocalArray]) -> LocalArray:
        """Return this rank's smallest value above the selected one, or infinity; to be combined by min."""
        _kernel("start_next", self._dtype)(_ONE, _ONE, (self._bits,))
        for array in values:
            if array.size:
                arguments = (_contiguous(array), np.int64(array.size), self._position, self._bits)
                _kernel("find_next", array.dtype)(_grid(array), _THREADS, arguments)
        _kernel("next_as_number", self._dtype)(_ONE, _ONE, (self._bits, self._next))
        return self._next

    def interpolated(self, fraction: float) -> Scalar:
        """Interpolate between the selected element and the next one by a fraction."""
        out = cupy.empty((), self._next.dtype)
        _kernel("interpolate", self._dtype)(_ONE, _ONE, (self._position, self._next, np.float64(fraction), out))
        return out


def _grid(values: LocalArray) -> tuple[int]:
    # Each block clears and sums its own counts, so that few blocks with many values are faster.
    return (min(-(-values.size // (8 * _BLOCK)), 1024),)


def _number(value: Scalar) -> tuple[np.float64, cupy.ndarray | np.uint64, np.int32]:
    """Return the kernel's arguments for a number, or a real scalar of the device."""
    if isinstance(value, cupy.ndarray):
        if value.dtype.char not in "fd":
            value = value.astype(np.float64)
        return np.float64(0), value, _YES if value.dtype.char == "d" else _NO
    return np.float64(value), _NULL, _NO


def _contiguous(array: LocalArray) -> LocalArray:
    return array if array is None or array.flags.c_contiguous else cupy.ascontiguousarray(array)


def _operand(array: LocalArray, dtype: np.dtype, target: LocalArray = None, prepared: LocalArray = None) -> Any:
    """Return an input as the kernel needs it; for the output array, the array prepared for the output."""
    if array is None:
        return _NULL
    if array is target:
        return prepared
    if array.dtype.kind == "c" and dtype.kind != "c":
        raise UnsupportedTypeError(f"complex values do not fit into an array of {dtype}")
    return cupy.ascontiguousarray(array, dtype)


def _put_back(prepared: LocalArray, target: LocalArray) -> None:
    if prepared is not target:
        target[...] = prepared
