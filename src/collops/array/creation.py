"""New distributed arrays: empty, filled, random, like another array, or chosen from two arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from collops.array.base import Array
from collops.array.coefficients import Scalar
from collops.array.distributed import DistributedArray
from collops.array.dtypes import as_dtype
from collops.array.layout import Layout, StackedLayout
from collops.array.layout_arguments import Shape
from collops.array.operands import agree_on_numbers
from collops.array.plans import as_layout
from collops.array.random_numbers import child_seed, fill_random
from collops.array.redistribute import compare_copies
from collops.array.stacked import StackedArray
from collops.backend import Engine, LocalArray, memory_of
from collops.backend import engine as find_engine
from collops.comm import Communicator
from collops.comm.arguments import communicator_or_world
from collops.errors import InputError, UnsupportedTypeError, type_name

__all__ = ["check_memory"]

_LINE = 128
"""Bytes of a line of a cache."""

Place: TypeAlias = Layout | StackedLayout | Shape
AnyEngine: TypeAlias = Engine | str | None
AnyArray = TypeVar("AnyArray", bound=Array)


def zeros(
    layout: Place, *, comm: Communicator | None = None, dtype: DTypeLike = np.float64, engine: AnyEngine = None
) -> Array:
    """Return an array of zeros.

    Like all functions that make arrays, collective at the first use of a process grid or mask on `comm`.

    Parameters
    ----------
    layout : Layout, StackedLayout, int or sequence of int
        The layout; a shape is split along axis 0. A stacked layout makes a stacked array.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Element type; ``"bfloat16"`` needs ml_dtypes.
    engine : str or Engine, optional
        By default the environment's ``COLLOPS_ENGINE``, else NumPy.

    Raises
    ------
    LayoutError
        If `layout` is for another number of ranks, or is not a shape.
    InputError
        If there is no such dtype or engine, or a rank's part is larger than its memory.

    Examples
    --------
    >>> import collops
    >>> collops.zeros((2, 2), dtype="float32").gather()
    array([[0., 0.],
           [0., 0.]], dtype=float32)
    """
    return _filled("zeros", layout, comm, dtype, engine)


def ones(
    layout: Place, *, comm: Communicator | None = None, dtype: DTypeLike = np.float64, engine: AnyEngine = None
) -> Array:
    """Return an array of ones; parameters as for :func:`zeros`.

    Examples
    --------
    >>> import collops
    >>> collops.ones((2, 2)).gather()
    array([[1., 1.],
           [1., 1.]])
    """
    return _filled("ones", layout, comm, dtype, engine)


def empty(
    layout: Place, *, comm: Communicator | None = None, dtype: DTypeLike = np.float64, engine: AnyEngine = None
) -> Array:
    """Return an uninitialised array; parameters as for :func:`zeros`.

    Examples
    --------
    >>> import collops
    >>> collops.empty((4, 2), dtype="float32").shape
    (4, 2)
    """
    kind, chosen = as_dtype(dtype), find_engine(engine)
    if isinstance(layout, StackedLayout) and chosen.mutable:
        return _in_one_block(layout, communicator_or_world(comm), kind, chosen)
    return _filled("empty", layout, comm, kind, chosen)


def full(
    layout: Place,
    value: Scalar,
    *,
    comm: Communicator | None = None,
    dtype: DTypeLike | None = None,
    engine: AnyEngine = None,
) -> Array:
    """Return an array filled with a number, whose dtype is the default; other parameters as for :func:`zeros`.

    Examples
    --------
    >>> import collops
    >>> collops.full(3, 2.5).gather()
    array([2.5, 2.5, 2.5])
    """
    _check_number(value)
    element = np.asarray(value).dtype if dtype is None else dtype
    return _compared(_filled("full", layout, comm, element, engine, value), value)


def random(
    layout: Place,
    *,
    kind: str = "normal",
    seed: int = 0,
    comm: Communicator | None = None,
    dtype: DTypeLike = np.float64,
    engine: AnyEngine = None,
) -> Array:
    """Return random numbers: the same global array for any number of ranks, any layout and any engine.

    Parameters
    ----------
    layout, comm, engine
        As for :func:`zeros`. The parts of a stacked layout get independent numbers.
    kind : str
        ``"normal"`` (mean 0, variance 1; the same for real and imaginary parts) or ``"uniform"`` (in [0, 1)).
    seed : int
        Equal seeds give equal numbers.
    dtype : dtype, optional
        A floating or complex type.

    Raises
    ------
    InputError
        For another `kind`, or a `seed` that is not an integer.
    UnsupportedTypeError
        For integers and booleans.

    Notes
    -----
    Uniform numbers agree bit by bit between engines; normal numbers agree up to rounding in the logarithm and cosine.

    Examples
    --------
    >>> import collops
    >>> x = collops.random(1000, seed=1)
    >>> abs(float(x.mean())) < 0.1
    True
    >>> bool((x == collops.random(1000, seed=1)).all())
    True
    """
    element = as_dtype(dtype)
    stacked = isinstance(layout, StackedLayout)

    def make(chosen: Engine, part: Layout, rank: int, number: int) -> LocalArray:
        return fill_random(chosen, part, rank, element, kind, child_seed(seed, number) if stacked else seed)

    return _compared(_new_array(layout, comm, engine, element, make), seed)


def empty_like(x: AnyArray, dtype: DTypeLike | None = None) -> AnyArray:
    """Return an uninitialised array with the layout, engine and (by default) dtype of `x`. No messages.

    Examples
    --------
    >>> import collops
    >>> x = collops.ones((4, 2), dtype="float32")
    >>> collops.empty_like(x).dtype
    dtype('float32')
    """
    return _filled_like("empty", x, dtype)


def zeros_like(x: AnyArray, dtype: DTypeLike | None = None) -> AnyArray:
    """Return zeros with the layout, engine and (by default) dtype of `x`. No messages.

    Examples
    --------
    >>> import collops
    >>> collops.zeros_like(collops.ones(3)).gather()
    array([0., 0., 0.])
    """
    return _filled_like("zeros", x, dtype)


def ones_like(x: AnyArray, dtype: DTypeLike | None = None) -> AnyArray:
    """Return ones with the layout, engine and (by default) dtype of `x`. No messages.

    Examples
    --------
    >>> import collops
    >>> from collops.array import ones_like
    >>> ones_like(collops.zeros(3)).gather()
    array([1., 1., 1.])
    """
    return _filled_like("ones", x, dtype)


def full_like(x: AnyArray, value: Scalar, dtype: DTypeLike | None = None) -> AnyArray:
    """Return a filled array with the layout, engine and (by default) dtype of `x`. No messages.

    Examples
    --------
    >>> import collops
    >>> from collops.array import full_like
    >>> full_like(collops.zeros(3), 2.5).gather()
    array([2.5, 2.5, 2.5])
    """
    _check_number(value)
    return _compared(_filled_like("full", x, dtype, value), value)


def where(condition: Array, x: Array | Scalar, y: Array | Scalar) -> Array:
    """Return elements of `x` where `condition` is true, and of `y` elsewhere. No messages.

    Parameters
    ----------
    condition : DistributedArray or StackedArray
        Booleans.
    x, y : array like `condition`, or number
        The values.

    Raises
    ------
    LayoutError
        If layouts differ.
    UnsupportedTypeError
        If `condition` is not a distributed array of booleans, or `x` or `y` is a plain array.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.array([-1.0, 2.0, -3.0]))
    >>> collops.where(x > 0, x, 0).gather()
    array([0., 2., 0.])
    """
    if not isinstance(condition, Array):
        raise UnsupportedTypeError(
            "the condition of where must be a distributed array; for plain arrays use numpy.where"
        )
    if condition.dtype.kind != "b":
        raise UnsupportedTypeError(f"the condition of where must be booleans, such as x != 0, not {condition.dtype}")
    chosen = condition._map(condition.engine.xp.where, x, y)
    if chosen is NotImplemented:
        raise UnsupportedTypeError("x and y of where must be distributed arrays or numbers")
    return chosen


def check_memory(layout: Layout, dtype: np.dtype, engine: Engine) -> None:
    """Raise InputError if some rank's part of an array is larger than all memory of this job or of the rank's device.

    Sends no message: on equal machines all ranks raise. Free memory, which differs, is not checked.
    """
    memory = memory_of(engine)
    if layout.size * dtype.itemsize <= memory:
        return
    largest = math.prod(map(max, layout.sizes)) * dtype.itemsize
    if largest > memory:
        raise InputError(
            f"an array of {dtype} with the layout {layout} needs {largest / 2**30:.4g} GiB on one rank, "
            f"which has {memory / 2**30:.4g} GiB of memory: use a smaller shape, or split it over more ranks"
        )


def _check_number(value: Scalar) -> None:
    """Raise for arrays with axes, which fit the parts of some ranks only, and for values that are not numbers."""
    plain = 0 if hasattr(value, "ndim") else np.asarray(value)  # a scalar on a device is not copied to the host
    if np.ndim(plain) or getattr(value, "ndim", 0) or np.asarray(plain).dtype.kind not in "biufc":
        raise UnsupportedTypeError(f"the value of an array's elements must be a number, not {type(value).__qualname__}")


def _compared(x: AnyArray, number: Scalar) -> AnyArray:
    """Return an array filled from a number, which is compared under ``COLLOPS_CHECK``, and so are the copies."""
    agree_on_numbers(x, number)
    compare_copies(x, groups=True)
    return x


def _filled(
    name: str, layout: Place, comm: Communicator | None, dtype: DTypeLike, engine: AnyEngine, *value: Scalar
) -> Array:
    """Return the array made by a function of the engine's namespace, such as ``zeros``."""
    kind = as_dtype(dtype)

    def make(chosen: Engine, part: Layout, rank: int, _: int) -> LocalArray:
        return getattr(chosen.xp, name)(part.local_shape(rank), *value, chosen.dtype(kind))

    return _new_array(layout, comm, engine, kind, make)


def _new_array(
    layout: Place,
    comm: Communicator | None,
    engine: AnyEngine,
    dtype: np.dtype,
    make: Callable[[Engine, Layout, int, int], LocalArray],
    number: int = 0,
) -> Any:
    """Return the array whose local array is ``make(engine, layout, rank, leaf_number)``."""
    comm = communicator_or_world(comm)
    chosen = find_engine(engine)
    if isinstance(layout, StackedLayout):
        parts = []
        for part in layout:
            parts.append(_new_array(part, comm, chosen, dtype, make, number))
            number += 1 if isinstance(part, Layout) else len(part.leaves)
        return StackedArray(parts)
    layout = as_layout(layout, comm)
    check_memory(layout, dtype, chosen)
    return DistributedArray._uncompared(layout, comm, make(chosen, layout, comm.rank, number))


def _in_one_block(layout: StackedLayout, comm: Communicator, dtype: np.dtype, engine: Engine) -> Array:
    """Return an uninitialised array whose parts follow each other in memory, so that kernels take them as one array.

    They are kept apart where a part would not begin at the start of a line of a cache.
    """
    for part in layout.leaves:
        check_memory(as_layout(part, comm), dtype, engine)
    shapes = [part.local_shape(comm.rank) for part in layout.leaves]
    begins = [*accumulate(map(math.prod, shapes), initial=0)]
    if any(begin * dtype.itemsize % _LINE for begin in begins[:-1]):
        return _filled("empty", layout, comm, dtype, engine)
    block = engine.xp.empty(begins[-1], engine.dtype(dtype))
    parts = [block[begin:end].reshape(shape) for (begin, end), shape in zip(pairwise(begins), shapes, strict=True)]
    stack = _new_array(layout, comm, engine, dtype, lambda *choice: parts[choice[-1]])
    stack._block = block, [leaf.local_array for leaf in stack.leaves]
    return stack


def _filled_like(name: str, x: AnyArray, dtype: DTypeLike | None, *value: Scalar) -> AnyArray:
    if isinstance(x, StackedArray):
        return x._like([_filled_like(name, part, dtype, *value) for part in x.arrays])
    if not isinstance(x, DistributedArray):
        raise UnsupportedTypeError(f"expected a distributed array, not {type_name(x)}")
    kind = x.engine.dtype(x.dtype if dtype is None else as_dtype(dtype))
    if not x.engine.mutable:  # arrays of JAX, which may be spread over several devices
        return x._like(getattr(x.engine.xp, f"{name}_like")(x.local_array, *value, dtype=kind))
    return x._like(getattr(x.engine.xp, name)(x.local_array.shape, *value, kind))
