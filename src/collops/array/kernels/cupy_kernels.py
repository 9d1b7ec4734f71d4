"""Vector kernels on the GPU: launches of the kernels in ``vector.cu``, with little host time.

Functions are looked up once for each element type, and arguments are arrays and NumPy scalars, which CuPy passes on
without conversion. Results are made by ``cupy.ndarray``, which ``cupy.empty`` calls. No function synchronises with the
device, and all can be captured in a CUDA graph. Inner products can end with a sum over the ranks of a communicator.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import cupy
import numpy as np

from collops._nvrtc import cuda_module
from collops.array.coefficients import Coefficient, Finite, Scalar, as_number
from collops.array.dtypes import accumulator, combined, norm_dtype, real_of
from collops.backend import LocalArray
from collops.comm import Communicator
from collops.comm.device_launch import Launch
from collops.comm.peer_stores import kernel_source
from collops.errors import UnsupportedTypeError

_BLOCK = 256  # as in vector.cu
_IN_FLIGHT = 4
_MAX_BLOCKS = 1 << 20  # of axpby; for larger arrays each thread loops
_BLOCKS_PER_PROCESSOR = 4
_PAIRS = 4  # in one launch of dots
_PLACES = 16

_BY_VALUE, _TIMES_NUMBER, _TIMES_REAL = np.int32(0), np.int32(1), np.int32(2)
_IF_FINITE = np.int32(4)  # added to one of these
_TIMES_FINITE_NUMBER = np.int32(_TIMES_NUMBER | _IF_FINITE)
_NULL = np.uint64(0)
_ONE_BLOCK = (_BLOCK,)
# The sign of the imaginary part, by `conjugate`, as the bits of a double.
_X_SIGN = {conjugate: int(np.float64(sign).view(np.int64)) for conjugate, sign in ((False, 1), (True, -1))}

_Coefficient: TypeAlias = tuple[Any, Any, Any, np.int32]
"""A number, the device scalars that multiply and divide it (or null), and their kind."""
_Factors: TypeAlias = tuple[Any, Any, Any]
"""A number, and the device scalars that multiply and divide it, or ``None``."""


class _Functions:
    """The kernels of ``vector.cu`` for one element type."""

    def __init__(self, element: int, dtype: np.dtype) -> None:
        source = kernel_source() + Path(__file__).with_name("vector.cu").read_text()
        module = cuda_module(source, (f"-DELEMENT={element}",))
        self.axpby = module.get_function("axpby")
        self.axpby_and_squares = module.get_function("axpby_and_squares")
        self.update_solution_and_direction = module.get_function("update_solution_and_direction")
        self.dots = tuple(module.get_function(f"dots{pairs}") for pairs in range(1, _PAIRS + 1))
        self.divide = module.get_function("divide")
        self.square_of_sum = module.get_function("square_of_sum")
        self.number_dtype = accumulator(dtype)
        self.real_dtype = real_of(self.number_dtype)
        self.number: Callable[[complex], np.generic] = self.number_dtype.type
        self.per_block = _BLOCK * _IN_FLIGHT * (16 // dtype.itemsize)

    def grid(self, size: int) -> tuple[int]:
        """Return the grid of a kernel that combines so many elements."""
        return (min(-(-size // self.per_block), _MAX_BLOCKS),)


_NAMES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_functions: dict[np.dtype, _Functions | None] = {}


def _functions_for(dtype: np.dtype) -> _Functions | None:
    """Return the kernels for an element type, ``None`` if there are none."""
    try:
        return _functions[dtype]
    except KeyError:
        functions = _Functions(_NAMES.index(dtype.name), dtype) if dtype.name in _NAMES else None
        return _functions.setdefault(dtype, functions)


# ---- a*x + b*y


def axpby(a: Coefficient, x: LocalArray, b: Coefficient, y: LocalArray, out: LocalArray | None) -> LocalArray:
    """Return ``a * x + b * y``, in `out` if it is given (it may be `x` or `y`). See :func:`collops.array.axpby`."""
    dtype = y.dtype
    functions = _functions.get(dtype)
    if functions is not None and x.dtype == dtype and (out is y or out is x or out is None):
        # Fast path of most iterations.
        first, second = _plain_coefficient(a, functions), _plain_coefficient(b, functions)
        if first and second and x.flags.c_contiguous and y.flags.c_contiguous:
            target = cupy.ndarray(x.shape, dtype) if out is None else out
            if out is None or x is y or _disjoint(x, y):
                return _launch_axpby(functions, x, y, target, first, second)
    a_factors, b_factors = _factors(a), _factors(b)
    result_dtype = _result_dtype(x, y, a_factors, b_factors)
    if out is None:
        target = cupy.empty(x.shape, result_dtype)
    elif result_dtype == out.dtype or np.can_cast(result_dtype, out.dtype, "same_kind"):
        target, result_dtype = out, out.dtype
    else:
        raise UnsupportedTypeError(f"a result of dtype {result_dtype} does not fit into out of dtype {out.dtype}")
    functions = _functions_for(result_dtype)
    if functions is None:
        return _whole_numbers(a, x, b, y, target)
    if not target.flags.c_contiguous:
        target = cupy.empty(x.shape, result_dtype)
    x, y = _operand(x, result_dtype, target), _operand(y, result_dtype, target)
    first, second = (
        _coefficient(factors, functions, isinstance(scalar, Finite))
        for factors, scalar in ((a_factors, a), (b_factors, b))
    )
    _launch_axpby(functions, x, y, target, first, second)
    if out is not None and target is not out:
        out[...] = target
        return out
    return target


def _launch_axpby(
    functions: _Functions, x: LocalArray, y: LocalArray, target: LocalArray, first: _Coefficient, second: _Coefficient
) -> LocalArray:
    size = target.size
    if size:
        arguments = (x, y, target, np.int64(size), *first, *second)
        functions.axpby(functions.grid(size), _ONE_BLOCK, arguments)
    return target


def axpby_and_squares(
    a: Coefficient, x: LocalArray, b: Coefficient, y: LocalArray, out: LocalArray
) -> LocalArray | None:
    """Set `out`, which may be `x` or `y`, to ``a * x + b * y``; return sums of squares, which :func:`dots` adds up.

    Return ``None``, without any change, for arguments that the kernel does not support.
    """
    functions = _functions_for(out.dtype)
    alike = x.dtype == y.dtype == out.dtype and all(array.flags.c_contiguous for array in (x, y, out))
    if (
        functions is None
        or not alike
        or not out.size
        or not all(operand is out or _disjoint(operand, out) for operand in (x, y))
    ):
        return None
    first, second = _plain_coefficient(a, functions), _plain_coefficient(b, functions)
    if first is None or second is None:
        return None
    grid = functions.grid(out.size)
    squares = cupy.ndarray(grid, np.float64)
    arguments = (x, y, out, np.int64(out.size), *first, *second, squares)
    functions.axpby_and_squares(grid, _ONE_BLOCK, arguments)
    return squares


def update_solution_and_direction(
    x: LocalArray, length: Coefficient, direction: LocalArray, ratio: Coefficient, gradient: LocalArray
) -> None:
    """Add ``length * direction`` to `x`, then set `direction` to ``gradient + ratio * direction``, in one pass."""
    functions = _functions_for(x.dtype)
    arrays = gradient, direction, x
    if functions is not None and all(a.dtype == x.dtype and a.flags.c_contiguous for a in arrays):
        first, second = _plain_coefficient(length, functions), _plain_coefficient(ratio, functions)
        if first and second and _disjoint(x, direction) and _disjoint(x, gradient) and _disjoint(direction, gradient):
            if x.size:
                grid = functions.grid(2 * x.size)  # its threads have half as many loads in flight
                scalars = np.int64(x.size), *first, *second
                functions.update_solution_and_direction(grid, _ONE_BLOCK, (*arrays, *scalars))
            return
    axpby(length, direction, 1, x, x)
    axpby(1, gradient, ratio, direction, direction)


def _plain_coefficient(a: Coefficient, functions: _Functions) -> _Coefficient | None:
    """Return the kernel's arguments for a real number and device scalars of its type; ``None`` for others."""
    kind = a.__class__
    if kind is float or kind is int:
        return functions.number(a), _NULL, _NULL, _BY_VALUE
    if kind is cupy.ndarray:
        return (functions.number(1), a, _NULL, _TIMES_NUMBER) if a.dtype == functions.number_dtype else None
    if not isinstance(a, tuple):
        return None
    value, *scalars = a
    if value.__class__ is not float and value.__class__ is not int:
        return None
    for scalar in scalars:
        if scalar.__class__ is not cupy.ndarray or scalar.dtype != functions.number_dtype:
            return None
    what = _TIMES_FINITE_NUMBER if kind is Finite else _TIMES_NUMBER
    return functions.number(value), scalars[0], scalars[1] if len(scalars) > 1 else _NULL, what


def _disjoint(x: LocalArray, y: LocalArray) -> bool:
    """Return whether two contiguous arrays share no memory."""
    start, end = x.data.ptr, y.data.ptr
    return start >= end + y.nbytes or end >= start + x.nbytes


def _factors(a: Coefficient) -> _Factors:
    """Return a coefficient as a number, and the device scalars that multiply and divide it or ``None``."""
    if isinstance(a, cupy.ndarray):
        return 1, a, None
    if not isinstance(a, tuple):
        return as_number(a), None, None
    value, scalar, divisor = (*a, None) if len(a) == 2 else a
    if isinstance(scalar, cupy.ndarray):
        return value, scalar, divisor
    if divisor is None:
        return value * as_number(scalar), None, None
    raise UnsupportedTypeError("both scalars of a quotient must be on the device")


def _result_dtype(x: LocalArray, y: LocalArray, *coefficients: _Factors) -> np.dtype:
    """Return the dtype of the result: coefficients promote kinds, never precisions."""
    total: complex = 0
    for value, *scalars in coefficients:
        total += value * math.prod(_LIKE[scalar.dtype.kind] for scalar in scalars if scalar is not None)
    return combined(x.dtype, y.dtype, type(total))


_LIKE: dict[str, complex] = {"b": 0, "i": 0, "u": 0, "f": 0.0, "V": 0.0, "c": 0j}


def _coefficient(factors: _Factors, functions: _Functions, if_finite: bool) -> _Coefficient:
    """Return the kernel's four arguments for a coefficient, which is 0 unless finite if `if_finite` is set."""
    value, *scalars = factors
    number = functions.number(value)
    if scalars[0] is None:
        return number, _NULL, _NULL, _BY_VALUE
    complex_ones = any(scalar is not None and scalar.dtype.kind == "c" for scalar in scalars)
    dtype = functions.number_dtype if complex_ones else functions.real_dtype
    scalar, divisor = (_NULL if scalar is None else scalar.astype(dtype, copy=False) for scalar in scalars)
    what = _TIMES_NUMBER if dtype == functions.number_dtype else _TIMES_REAL
    return number, scalar, divisor, np.int32(what | _IF_FINITE) if if_finite else what


def _operand(x: LocalArray, dtype: np.dtype, target: LocalArray) -> LocalArray:
    """Return `x` in `dtype`, contiguous, and not overlapping `target` at another offset."""
    if x is target:
        return x
    x = cupy.ascontiguousarray(x, dtype)
    return x if x.data.ptr == target.data.ptr or _disjoint(x, target) else x.copy()


def _whole_numbers(a: Coefficient, x: LocalArray, b: Coefficient, y: LocalArray, target: LocalArray) -> LocalArray:
    """Combine integers or booleans, which need no kernel, since no solver uses them."""
    numbers = []
    for value, scalar, divisor in (_factors(a), _factors(b)):
        factor = scalar if divisor is None else divide(scalar, divisor)
        numbers.append(value if factor is None else value * factor)
    target[...] = x * numbers[0] + y * numbers[1]
    return target


# ---- Inner products


def dot(x: LocalArray, y: LocalArray, conjugate: bool) -> LocalArray:
    """Return the inner product of two local arrays; real for an array with itself and `conjugate`."""
    functions = _functions_for(x.dtype)
    real = conjugate and x is y and x.dtype.kind == "c"
    if functions is not None and not real and x.dtype == y.dtype and x.flags.c_contiguous and y.flags.c_contiguous:
        return _launch_dot(functions, x, y, conjugate)
    dtype = x.dtype if x.dtype == y.dtype else np.result_type(x.dtype, y.dtype)
    if conjugate and x is y:
        dtype = real_of(dtype)
    out = cupy.empty((), accumulator(dtype))
    return _fill([(0, x, y)], out, out.dtype, conjugate, 1)


def summed_dot(x: LocalArray, y: LocalArray, conjugate: bool, comm: Communicator) -> LocalArray:
    """Return the sum of :func:`dot` over the ranks, in one launch if there is a kernel for the dtype."""
    functions = _functions_for(x.dtype)
    real = conjugate and x is y and x.dtype.kind == "c"
    if functions is not None and not real and x.dtype == y.dtype and x.flags.c_contiguous and y.flags.c_contiguous:
        return _launch_dot(functions, x, y, conjugate, comm)
    return comm.allreduce(dot(x, y, conjugate))


def _launch_dot(
    functions: _Functions, x: LocalArray, y: LocalArray, conjugate: bool, comm: Communicator | None = None
) -> LocalArray:
    """Launch the inner product of two contiguous arrays of one dtype, summed over the ranks of `comm`."""
    out = cupy.ndarray((), functions.number_dtype)
    link = 0 if comm is None else comm.join_sum(out)
    return _prepared_dots(functions, (x.size,), _scratch(), 0, 1, conjugate, link)(x, y, out)


@lru_cache(maxsize=1024)
def _prepared_dots(
    functions: _Functions,
    sizes: tuple[int, ...],
    scratch: tuple[int, int, int],
    places: int,
    fresh: int,
    conjugate: bool,
    link: int,
) -> Launch:
    """Return the launch of inner products of arrays of these sizes, which takes the pairs and the array of results.

    The size of squares is negative.
    """
    partial, ticket, most_blocks = scratch
    blocks = min(max(1, -(-max(sizes) // functions.per_block)), most_blocks)
    fixed = *sizes, partial, ticket, places, fresh, _X_SIGN[conjugate], link
    return Launch(functions.dots[len(sizes) - 1], blocks, _BLOCK, 2 * len(sizes) + 1, *fixed)


def dots(slots: Sequence[Sequence[tuple[LocalArray, LocalArray]]], dtype: np.dtype, conjugate: bool) -> LocalArray:
    """Return the sum of the inner products of each slot's pairs, as an array of `dtype`.

    A pair may be sums of squares, as :func:`axpby_and_squares` returns them, and ``None``.
    """
    out = cupy.ndarray(len(slots), dtype)
    jobs = [(number, x, y) for number, pairs in enumerate(slots) for x, y in pairs]
    fresh = (1 << len(slots)) - 1
    if any(not pairs for pairs in slots):
        out.fill(0)
        fresh = 0
    return _fill(jobs, out, dtype, conjugate, fresh)


def summed_dots(
    slots: Sequence[Sequence[tuple[LocalArray, LocalArray]]], dtype: np.dtype, conjugate: bool, comm: Communicator
) -> LocalArray:
    """Return the sums of :func:`dots` over the ranks; every slot has a pair, and all have one real dtype."""
    pairs = [(number, x, y) for number, slot in enumerate(slots) for x, y in slot]
    functions = _functions_for(next((x.dtype for _, x, y in pairs if y is not None), dtype))
    if len(pairs) > _PAIRS or functions is None:
        values = dots(slots, dtype, conjugate)
        return comm.allreduce(values, out=values)
    out = cupy.ndarray(len(slots), dtype)
    jobs = [(number, *_factor_arrays(x, y, conjugate)) for number, x, y in pairs]
    _launch(functions, jobs, out, conjugate, _PLACES_MASK, comm)
    return out


def _fill(
    jobs: list[tuple[int, LocalArray, LocalArray]], out: LocalArray, dtype: np.dtype, conjugate: bool, fresh: int
) -> LocalArray:
    """Add the inner product of each job to its element of `out`, overwriting those whose bit in `fresh` is set."""
    waiting: list[tuple[int, LocalArray, LocalArray]] = []
    functions: _Functions | None = None
    for number, x, y in jobs:
        x, y = _factor_arrays(x, y, conjugate)
        own_functions = _functions_for(dtype if y is None else x.dtype)
        if own_functions is None or own_functions.number_dtype != dtype:
            # A result of a different dtype, or of integers, for which there is no kernel.
            if own_functions is not None:
                value = _launch_dot(own_functions, x, y, conjugate)
            else:
                value = cupy.any(x & y) if x.dtype.kind == "b" else cupy.sum(x * y, dtype=x.dtype)
            target = out.reshape(-1)[number : number + 1]
            target[...] = value if fresh >> number & 1 else target + value
            fresh &= ~(1 << number)
            continue
        full = len(waiting) == _PAIRS or (waiting and number - waiting[0][0] >= _PLACES)
        if waiting and (full or own_functions is not functions):
            fresh = _launch(functions, waiting, out, conjugate, fresh)
            waiting = []
        functions = own_functions
        waiting.append((number, x, y))
    if waiting:
        _launch(functions, waiting, out, conjugate, fresh)
    return out


def _launch(
    functions: Any,
    jobs: list[tuple[int, LocalArray, LocalArray]],
    out: LocalArray,
    conjugate: bool,
    fresh: int,
    comm: Communicator | None = None,
) -> int:
    """Launch one kernel, and return which elements of `out` are still to be overwritten.

    With `comm`, all of `out` is summed over its ranks.
    """
    base = jobs[0][0]
    places = sum((number - base) << (4 * position) for position, (number, _, _) in enumerate(jobs))
    sizes = tuple(-x.size if y is None else x.size for _, x, y in jobs)
    link = 0 if comm is None else comm.join_sum(out)
    launch = _prepared_dots(functions, sizes, _scratch(), places, fresh >> base & _PLACES_MASK, conjugate, link)
    launch(*(array for _, x, y in jobs for array in (x, x if y is None else y)), out[base:] if base else out)
    for number, *_ in jobs:
        fresh &= ~(1 << number)
    return fresh


_PLACES_MASK = (1 << _PLACES) - 1


def _factor_arrays(x: LocalArray, y: LocalArray, conjugate: bool) -> tuple[LocalArray, LocalArray]:
    """Return two contiguous arrays of one dtype; a complex array with itself as its real numbers."""
    if y is None:
        return x, y
    if x is y:
        x = y = _contiguous(x)
        if conjugate and x.dtype.kind == "c":
            x = y = x.view(real_of(x.dtype))
        return x, y
    if x.dtype != y.dtype:
        dtype = np.result_type(x.dtype, y.dtype)
        x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    return _contiguous(x), _contiguous(y)


def _contiguous(x: LocalArray) -> LocalArray:
    return x if x.flags.c_contiguous else cupy.ascontiguousarray(x)


# ---- Scratch memory of dots

_SLOTS = 16
_PER_THREAD_STREAM = 2  # CUDA's handle for the default stream of each host thread
_scratches: dict[tuple[int, ...], tuple[int, int, int]] = {}
_unused: dict[int, list[tuple[int, int, int]]] = {}
_slabs: list[LocalArray] = []
_allocating = threading.Lock()


def _scratch() -> tuple[int, int, int]:
    """Return the addresses of partial sums and ticket, and the number of blocks for which they suffice.

    Kernels on one stream run one after the other and share this memory; two streams never do. A captured graph keeps
    the memory of the stream on which it was captured, so it must not run concurrently with other work of that stream.
    """
    stream = cupy.cuda.get_current_stream().ptr
    key = (cupy.cuda.runtime.getDevice(), stream)
    if stream == _PER_THREAD_STREAM:
        key = (*key, threading.get_ident())
    try:
        return _scratches[key]
    except KeyError:
        with _allocating:
            if not _unused.get(key[0]):
                _unused[key[0]] = _slab(key[0])
            return _scratches.setdefault(key, _unused[key[0]].pop())


def _slab(device: int) -> list[tuple[int, int, int]]:
    """Allocate zeroed scratch memory for several streams, also while a stream is being captured."""
    blocks = _BLOCKS_PER_PROCESSOR * cupy.cuda.Device(device).attributes["MultiProcessorCount"]
    bytes_each = 256 * math.ceil((_PAIRS * blocks * 16 + 16) / 256)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        slab = cupy.zeros(_SLOTS * bytes_each, np.uint8)
        stream.synchronize()
    _slabs.append(slab)
    starts = range(slab.data.ptr, slab.data.ptr + slab.nbytes, bytes_each)
    # The ticket is behind the partial sums.
    return [(start, start + bytes_each - 16, blocks) for start in starts]


# ---- Scalars and norms


def square_of_sum(ww: LocalArray, wq: LocalArray, qq: LocalArray, beta: tuple[float, Scalar, Scalar]) -> LocalArray:
    """Return the square of ``w + beta q`` from inner products; see :func:`collops.array.square_of_sum`."""
    dtype, (factor, *quotient) = ww.dtype, beta
    functions = _functions_for(dtype)
    if functions is None:
        raise UnsupportedTypeError(f"scalars of dtype {dtype} have no square of a sum")
    out = cupy.empty((), dtype)
    a, b = [scalar if scalar.dtype == dtype else scalar.astype(dtype) for scalar in quotient]
    functions.square_of_sum((1,), (1,), (ww, wq, qq, functions.number(factor), a, b, out))
    return out


def divide(a: Scalar, b: Scalar) -> LocalArray:
    """Return ``a / b``; 0 if `b` is 0, NaN if it is infinite."""
    dtype = np.result_type(*(v.dtype if isinstance(v, cupy.ndarray) else as_number(v) for v in (a, b)))
    if dtype.kind not in "fc" and dtype.name != "bfloat16":
        dtype = np.dtype(np.float64)
    dtype = accumulator(dtype)
    functions = _functions_for(dtype)
    if functions is None:
        raise UnsupportedTypeError(f"scalars of dtype {dtype} cannot be divided")
    out = cupy.empty((), dtype)
    functions.divide((1,), (1,), (_scalar(a, dtype), _scalar(b, dtype), out))
    return out


def _scalar(value: Scalar, dtype: np.dtype) -> LocalArray:
    if isinstance(value, cupy.ndarray):
        return value if value.dtype == dtype else value.astype(dtype)
    return cupy.full((), value, dtype)


def norm_part(x: LocalArray, order: float) -> LocalArray:
    """Return this rank's part of a norm: a count, a sum of powers, or an extreme of absolute values."""
    dtype = norm_dtype(x.dtype)
    if order == 0:
        return cupy.count_nonzero(x).astype(dtype)
    if x.dtype.name == "bfloat16":
        x = x.astype(np.float32)
    size = "(double)abs(x)" if x.dtype.kind == "c" else "fabs((double)x)"
    if np.isinf(order):
        return _extreme_kernel(size, order > 0)(x).astype(dtype)
    return _power_kernel(size)(x, order).astype(dtype)


@cupy.memoize()
def _power_kernel(size: str) -> cupy.ReductionKernel:
    powers = f"p == 1 ? {size} : (p == 2 ? {size} * {size} : pow({size}, p))"
    return cupy.ReductionKernel(
        "T x, float64 p", "float64 y", powers, "a + b", "y = a", "0", "collops_power_sum", reduce_type="double"
    )


@cupy.memoize()
def _extreme_kernel(size: str, largest: bool) -> cupy.ReductionKernel:
    # The result is NaN if any element is, as in NumPy.
    chosen = f"(isnan(a) || a {'>' if largest else '<'} b) ? a : b"
    start = "0" if largest else "__longlong_as_double(0x7ff0000000000000LL)"
    return cupy.ReductionKernel(
        "T x", "float64 y", size, chosen, "y = a", start, "collops_extreme", reduce_type="double"
    )
