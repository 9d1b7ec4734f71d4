"""Fused vector operations of iterative solvers: linear combinations in one pass, inner products in one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar

import numpy as np

from collops.array.coefficients import Coefficient, Scalar
from collops.array.dtypes import accumulator, real_of
from collops.array.kernels import kernels_for
from collops.array.operands import GlobalArray, agree_on_numbers, check_alike
from collops.array.redistribute import compare_copies
from collops.backend import Engine, LocalArray, engine_of
from collops.backend import engine as find_engine
from collops.comm import Communicator
from collops.errors import UnsupportedTypeError

__all__ = ["Square", "sums_squares"]

Array = TypeVar("Array", bound=Any)
LocalPairs: TypeAlias = list[tuple[LocalArray, LocalArray]]
"""Pairs of local arrays whose inner products add up to a part of a square; see :class:`Square`."""


def axpby(a: Coefficient, x: Array, b: Coefficient, y: Array, out: Array | None = None) -> Array:
    """Return ``a * x + b * y``, computed in one pass over memory. No messages.

    Parameters
    ----------
    a, b : number, 0-d array, or tuple of a number and one or two 0-d arrays
        Coefficients. The kernel reads a 0-d array on the device, without synchronising with the host. A pair
        ``(-1, alpha)`` is the product, a triple ``(-1, alpha, beta)`` is ``-alpha / beta``: 0 if ``beta`` is 0 and NaN
        if it is infinite. As a :class:`collops.array.Finite`, a pair or triple is 0 if it is not finite. A coefficient
        never raises the precision of the result. As in BLAS, an array with a coefficient of exactly 0 does not
        contribute, not even NaN.
    x, y : DistributedArray or StackedArray
        Arrays of one layout.
    out : DistributedArray or StackedArray, optional
        Memory for the result, which is returned; may be `x` or `y`.

    Raises
    ------
    LayoutError
        If layouts differ.
    UnsupportedTypeError
        If engines differ, a coefficient is not a number, or `out` cannot hold the result's dtype.

    Examples
    --------
    >>> import collops
    >>> x, y = collops.ones(3), collops.full(3, 2.0)
    >>> collops.axpby(10, x, 1, y, out=y).gather()
    array([12., 12., 12.])
    """
    if not hasattr(x, "leaves"):
        raise UnsupportedTypeError(f"axpby combines distributed arrays, not {type(x).__name__}")
    if x.layout is not getattr(y, "layout", None) or x.comm is not y.comm or x.engine is not y.engine:
        check_alike(x, y)
    if out is not None and (
        x.layout is not getattr(out, "layout", None) or x.comm is not out.comm or x.engine is not out.engine
    ):
        check_alike(x, out)
    try:
        x_local = x.local_array
    except AttributeError:
        return _axpby_stacked(a, x, b, y, out)
    if x.comm.calls is not None:
        agree_on_numbers(x, a, b)
    if x.engine.traced:
        a, b = _replicated(a, x), _replicated(b, x)
    value = kernels_for(x.engine).axpby(a, x_local, b, y.local_array, None if out is None else out.local_array)
    if out is None:
        return x._like(value)
    return out if value is out.local_array else out._hold(value)


def shared(value: LocalArray, comm: Communicator) -> LocalArray:
    """Return a replicated plain array for use with local data. No message.

    With the engine `jax`, the cotangent of `value` is the sum of the cotangents of all ranks, so that every rank gets
    the whole derivative. With other engines the result is `value` itself.

    Parameters
    ----------
    value : array
        The same on every rank of `comm`, such as the parameters of an operator.
    comm : Communicator
        The ranks. Computing a derivative is collective: one allreduce.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.array import shared
    >>> shared(np.arange(3.0), collops.world())
    array([0., 1., 2.])
    """
    return engine_of(value).replicated_operand(value, comm)


def _replicated(coefficient: Coefficient, x: GlobalArray) -> Coefficient:
    """Return a replicated coefficient for use with this rank's part of `x`."""
    if isinstance(coefficient, tuple):
        return type(coefficient)(_replicated(part, x) for part in coefficient)
    return x.engine.replicated_operand(coefficient, x._plan.communicator)


def _axpby_stacked(
    a: Coefficient, x: GlobalArray, b: Coefficient, y: GlobalArray, out: GlobalArray | None
) -> GlobalArray:
    # If calls are checked, all ranks process the parts one by one, so that they compare coefficients equally often.
    if out is not None and x.comm.calls is None and (blocks := _wholes(x, y, out)) is not None:
        kernels_for(x.engine).axpby(a, blocks[0], b, *blocks[1:])
        return out
    outs = [None] * len(x.arrays) if out is None else out.arrays
    parts = [
        axpby(a, x_part, b, y_part, out_part) for x_part, y_part, out_part in zip(x.arrays, y.arrays, outs, strict=True)
    ]
    return x._like(parts) if out is None else out


class Square(tuple[Any, Any]):
    """A pair of one array with itself, for :func:`dots`, which need not read it if a kernel has computed the square.

    ``parts`` are ``None``, or pairs of local arrays whose products add up to this rank's part of the square. In some
    pairs the first array has partial sums of a kernel, and the second is ``None``.
    """

    parts: Sequence[tuple[LocalArray, LocalArray]] | None = None

    def __new__(cls, array: GlobalArray, parts: LocalPairs | None = None) -> Square:
        """Keep `parts` only if they avoid reading the array, and this rank's sums include all of it."""
        square = super().__new__(cls, (array, array))
        if parts is not None and any(y is None for _, y in parts) and all(array._plan.counted):
            square.parts = parts
        return square


def sums_squares(array: GlobalArray | None) -> bool:
    """Return whether kernels that write such an array also sum its squares, so that it need not be read again."""
    return array is not None and hasattr(kernels_for(array.engine), "axpby_and_squares") and array.dtype.kind == "f"


def axpby_and_square(a: Coefficient, x: Array, b: Coefficient, y: Array, out: Array) -> tuple[Array, Square]:
    """Combine as :func:`axpby` does, and begin the square of the result. No messages.

    On devices with real arrays this is one pass over memory. Parameters and errors as for :func:`axpby`.

    Returns
    -------
    result : DistributedArray or StackedArray
        `out`.
    square : tuple
        A pair for :func:`dots`, which returns the square of the result. Valid until the result changes.

    Examples
    --------
    >>> import collops
    >>> from collops.array import axpby_and_square
    >>> x, y = collops.ones(3), collops.full(3, 2.0)
    >>> y, square = axpby_and_square(1, x, 1, y, out=y)
    >>> float(collops.dots(square)[0])
    27.0
    """
    in_one_pass = hasattr(x, "leaves") and sums_squares(x) and x.comm.calls is None  # axpby raises errors
    blocks = _wholes(x, y, out) if in_one_pass else None
    squares = None
    if blocks is not None:
        for other in (y, out):
            check_alike(x, other)
        squares = kernels_for(x.engine).axpby_and_squares(a, blocks[0], b, *blocks[1:])
    if squares is None:
        out = axpby(a, x, b, y, out)
        return out, Square(out)
    return out, Square(out, [(squares, None)])


def _wholes(*arrays: GlobalArray) -> list[LocalArray] | None:
    """Return, for each array, the array with all elements of this rank; ``None`` if one of them has no such array."""
    blocks = [array._local_block for array in arrays]
    return None if any(array is None for array in blocks) else blocks


def update_solution_and_direction(
    x: Array, length: Coefficient, direction: Array, ratio: Coefficient, gradient: Array
) -> tuple[Array, Array]:
    """Add ``length * direction`` to `x`, then set `direction` to ``gradient + ratio * direction``. No messages.

    This is the last step of an iteration of most Krylov methods; on devices it is one pass over memory.

    Parameters
    ----------
    x, direction : DistributedArray or StackedArray
        Overwritten and returned; of one layout, and without shared memory.
    length, ratio
        Coefficients, as for :func:`axpby`; the exceptions are the same, too.
    gradient : DistributedArray or StackedArray
        The gradient, in the same layout.

    Examples
    --------
    >>> import collops
    >>> from collops.array import update_solution_and_direction
    >>> x, direction = update_solution_and_direction(
    ...     collops.zeros(2), 0.5, collops.ones(2), 2.0, collops.full(2, 10.0)
    ... )
    >>> x.gather(), direction.gather()
    (array([0.5, 0.5]), array([12., 12.]))
    """
    if not x.engine.mutable:
        x = axpby(length, direction, 1.0, x, out=x)
        return x, axpby(1.0, gradient, ratio, direction, out=direction)
    for other in (direction, gradient):
        if x.layout is not other.layout or x.comm is not other.comm or x.engine is not other.engine:
            check_alike(x, other)
    if x.comm.calls is not None:
        agree_on_numbers(x, length, ratio)
    update = kernels_for(x.engine).update_solution_and_direction
    for part, old, new in zip(x.leaves, direction.leaves, gradient.leaves, strict=True):
        update(part.local_array, length, old.local_array, ratio, new.local_array)
    return x, direction


def dots(*pairs: tuple[Array, Array]) -> tuple[Scalar, ...]:
    """Return the inner product of each pair, the first argument conjugated. Collective: one allreduce for all of them.

    Parameters
    ----------
    *pairs : tuple of two DistributedArray or two StackedArray
        The arrays of a pair have one layout; pairs may differ. Replicated pairs need no message. Masks with different
        groups of ranks need one allreduce each.

    Returns
    -------
    tuple of 0-d array
        The dtype of the arrays; float32 for half precision; real for a complex array with itself. Does not
        synchronise with the device.

    Raises
    ------
    LayoutError
        If the layouts of a pair differ.
    UnsupportedTypeError
        If engines differ.

    Examples
    --------
    >>> import collops
    >>> x, y = collops.ones(3), collops.full(3, 2.0)
    >>> [float(value) for value in collops.dots((x, x), (x, y))]
    [3.0, 6.0]
    """
    return _dots(pairs, True)


def start_dots(*pairs: tuple[Array, Array]) -> Callable[[], tuple[Scalar, ...]]:
    """Begin the message of :func:`dots`, and return the function that waits for it and returns the inner products.

    The arrays may be changed at once. Messages overlap with other work as described under
    :meth:`collops.comm.Communicator.start_allreduce`. Parameters and errors are as for :func:`dots`. Collective.

    Examples
    --------
    >>> import collops
    >>> from collops.array import start_dots
    >>> x = collops.ones(3)
    >>> finish = start_dots((x, x))
    >>> y = x + x  # overlaps with the message
    >>> [float(value) for value in finish()]
    [3.0]
    """
    engine = _checked(pairs)
    if engine is None or engine.traced:
        values = _dots(pairs, True)
        return lambda: values
    return _of_groups(pairs, True, engine, lambda ranks, values: ranks.start_allreduce(values, out=values))


def dot(x: Array, y: Array) -> Scalar:
    """Return the sum of ``x * y``, without conjugation. Collective: one scalar allreduce, none if replicated."""
    if x.comm.calls is not None:
        _compare_copies(x, y)
    return _dots(((x, y),), False)[0]


def vdot(x: Array, y: Array) -> Scalar:
    """Return the sum of ``conj(x) * y``. Collective: one scalar allreduce, none if replicated."""
    if x.comm.calls is not None:
        _compare_copies(x, y)
    return _dots(((x, y),), True)[0]


def _compare_copies(x: GlobalArray, y: GlobalArray) -> None:
    """Compare the copies of arrays of one layout."""
    _checked(((x, y),))
    compare_copies(x)
    compare_copies(y)


def divide(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a / b`` of 0-d arrays or numbers; 0 if `b` is 0, NaN if it is infinite. One kernel on devices.

    Parameters
    ----------
    a, b : 0-d array or number
        Arrays of one engine, or an array and a number.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.array import divide
    >>> float(divide(np.array(6.0), np.array(4.0)))
    1.5
    """
    array = a if hasattr(a, "dtype") and not isinstance(a, np.generic) else b
    engine = engine_of(array) if hasattr(array, "dtype") else find_engine("numpy")
    return kernels_for(engine).divide(a, b)


def square_of_sum(ww: Scalar, wq: Scalar, qq: Scalar, beta: tuple[float, Scalar, Scalar]) -> Scalar:
    """Return the square of ``w + beta q`` from inner products of w and q; one kernel on devices. No messages.

    Parameters
    ----------
    ww, wq, qq : 0-d array
        Real, of one dtype: the square of w, the real part of the inner product, and the square of q.
    beta : Quotient
        See :func:`collops.array.quotient`.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.array import quotient, square_of_sum
    >>> float(square_of_sum(*map(np.float64, (1.0, 2.0, 4.0)), quotient(np.float64(3.0), np.float64(2.0))))
    16.0
    """
    return kernels_for(engine_of(ww)).square_of_sum(ww, wq, qq, beta)


def _checked(pairs: tuple[tuple[GlobalArray, GlobalArray], ...]) -> Engine | None:
    """Return the engine of the first pair; raise an error unless the arrays of each pair have one layout and engine."""
    for x, y in pairs:
        if not hasattr(x, "leaves"):
            raise UnsupportedTypeError(f"inner products take distributed arrays, not {type(x).__name__}")
        if x.layout is not getattr(y, "layout", None) or x.comm is not y.comm or x.engine is not y.engine:
            check_alike(x, y)
    return pairs[0][0].engine if pairs else None


def _dots(pairs: tuple[tuple[GlobalArray, GlobalArray], ...], conjugate: bool) -> tuple[Scalar, ...]:
    engine = _checked(pairs)
    if engine is None:
        return ()
    x, y = pairs[0]
    if engine.traced:
        return _traced_dots(pairs, conjugate)
    if len(pairs) == 1 and hasattr(x, "local_array") and getattr(pairs[0], "parts", None) is None:
        communicator, kernels = x._plan.communicator, kernels_for(engine)
        if communicator is not None and communicator.sums_in_kernels(engine):
            return (kernels.summed_dot(x.local_array, y.local_array, conjugate, communicator),)
        value = kernels.dot(x.local_array, y.local_array, conjugate)
        return ((value if communicator is None else communicator.allreduce(value))[()],)
    results = _like_dots(pairs, conjugate)
    if results is not None:
        return results
    return _of_groups(pairs, conjugate, engine, lambda ranks, values: partial(ranks.allreduce, values, out=values))()


def _of_groups(
    pairs: tuple[tuple[GlobalArray, GlobalArray], ...],
    conjugate: bool,
    engine: Engine,
    reduce: Callable[[Communicator, LocalArray], Callable[[], LocalArray]],
) -> Callable[[], tuple[Scalar, ...]]:
    """Return a function that returns the inner products, with one message for each kind of group.

    ``reduce(communicator, values)`` returns the function that returns the sum over the ranks.
    """
    if any(x.engine is not engine for x, _ in pairs):
        raise UnsupportedTypeError("the pairs of dots must be of one engine")
    dtypes = [_dot_dtype(x, y, conjugate) for x, y in pairs]
    by_ranks: dict[Communicator | None, list[int]] = {}
    for number, (x, _) in enumerate(pairs):
        by_ranks.setdefault(x._plan.communicator, []).append(number)
    sums: list[tuple[list[int], Callable[[], LocalArray]]] = []
    for communicator, numbers in by_ranks.items():
        dtype = _common(tuple(dtypes[number] for number in numbers))
        jobs = [_local_pairs(pairs[number]) for number in numbers]
        part = kernels_for(engine).dots(jobs, dtype, conjugate)
        sums.append((numbers, partial(tuple, part) if communicator is None else reduce(communicator, part)))

    def finish() -> tuple[Scalar, ...]:
        values: list[Scalar] = [None] * len(pairs)
        for numbers, total in sums:
            for number, value in zip(numbers, total(), strict=True):
                values[number] = _as(value, dtypes[number])
        return tuple(values)

    return finish


def _traced_dots(pairs: tuple[tuple[GlobalArray, GlobalArray], ...], conjugate: bool) -> tuple[Scalar, ...]:
    """Implement :func:`_dots` for JAX, with derivatives.

    Each leaf is summed over the ranks that it is split over, with one message for each kind of group. A replicated leaf
    needs none, and every rank has its whole cotangent.
    """
    engine = pairs[0][0].engine
    by_ranks: dict[Communicator | None, list[tuple[int, Scalar]]] = {}
    for number, (x, y) in enumerate(pairs):
        if x.engine is not engine:
            raise UnsupportedTypeError("the pairs of dots must be of one engine")
        for a, b in zip(x.leaves, y.leaves, strict=True):
            value = kernels_for(engine).dot(a.local_array, b.local_array, conjugate)
            by_ranks.setdefault(a._plan.communicator, []).append((number, value))
    totals: list[Scalar] = [0] * len(pairs)
    for communicator, parts in by_ranks.items():
        values: Any = [value for _, value in parts]
        if communicator is not None:
            values = communicator.allreduce(engine.xp.stack(values))
        for (number, part), value in zip(parts, values, strict=True):
            totals[number] = totals[number] + _as(value, part.dtype)
    return tuple(totals)


def _like_dots(pairs: tuple[tuple[GlobalArray, GlobalArray], ...], conjugate: bool) -> tuple[Scalar, ...] | None:
    """Implement :func:`_dots` for whole arrays of one real dtype and communicator; return None for others.

    This is the fast path of most iterations.
    """
    first = pairs[0][0]
    engine, communicator, dtype = first.engine, first._plan.communicator, first.dtype
    if dtype.kind != "f":
        return None
    jobs = []
    for pair in pairs:
        x, y = pair
        parts = getattr(pair, "parts", None)
        if parts is None:
            x_local, y_local = x._local_block, y._local_block
            if x_local is None or y_local is None or x_local.dtype != dtype or y_local.dtype != dtype:
                return None
            parts = [(x_local, y_local)]
        elif any(leaf.dtype != dtype for leaf in x.leaves):
            return None
        if x._plan.communicator is not communicator or x.engine is not engine:
            return None
        jobs.append(parts)
    kernels = kernels_for(engine)
    if communicator is not None and communicator.sums_in_kernels(engine):
        return tuple(kernels.summed_dots(jobs, accumulator(dtype), conjugate, communicator))
    values = kernels.dots(jobs, accumulator(dtype), conjugate)
    return tuple(values if communicator is None else communicator.allreduce(values, out=values))


def _local_pairs(pair: tuple[GlobalArray, GlobalArray]) -> Sequence[tuple[LocalArray, LocalArray]]:
    """Return the pairs of local arrays that contribute to this rank's sum."""
    x, y = pair
    return getattr(pair, "parts", None) or [
        (a.local_array, b.local_array)
        for a, b, counted in zip(x.leaves, y.leaves, x._plan.counted, strict=True)
        if counted
    ]


def _dot_dtype(x: GlobalArray, y: GlobalArray, conjugate: bool) -> np.dtype:
    """Return the dtype of the inner product, the same on ranks without elements."""
    pairs = tuple((a.dtype, b.dtype) for a, b in zip(x.leaves, y.leaves, strict=True))
    return _product_dtype(pairs, conjugate and x is y)


@lru_cache(maxsize=256)
def _product_dtype(pairs: tuple[tuple[np.dtype, np.dtype], ...], real: bool) -> np.dtype:
    dtypes = [real_of(first) if real else np.result_type(first, second) for first, second in pairs]
    return _common(tuple(accumulator(dtype) for dtype in dtypes))


@lru_cache(maxsize=256)
def _common(dtypes: tuple[np.dtype, ...]) -> np.dtype:
    return np.result_type(*dtypes)


def _as(value: Scalar, dtype: np.dtype) -> Scalar:
    if value.dtype == dtype:
        return value
    return (value.real if dtype.kind != "c" else value).astype(dtype)
