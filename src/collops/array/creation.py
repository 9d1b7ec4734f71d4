"""Ways to make distributed arrays of a layout: zeros, ones, one number, random numbers, or whatever memory holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np

from collops.array.distributed import DistributedArray
from collops.array.dtypes import as_dtype
from collops.array.layout import Layout
from collops.array.memory import check_memory
from collops.array.random_numbers import child_seed, fill_random
from collops.array.stacked import StackedArray
from collops.array.stacked_layout import StackedLayout
from collops.backend import Engine
from collops.backend import engine as find_engine
from collops.comm.given import communicator_or_world
from collops.errors import LayoutError, UnsupportedTypeError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["check_number", "empty", "full", "ones", "random", "zeros"]

Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]


def zeros(
    layout: Layout | StackedLayout | Shape,
    *,
    comm: Communicator | None = None,
    dtype: Any = np.float64,
    engine: Engine | str | None = None,
) -> Any:
    """Return an array of zeros.

    Collective where the layout's process grid or mask is new to `comm`, as all ways to make arrays are.

    Parameters
    ----------
    layout : Layout, StackedLayout, int or sequence of int
        Who holds what; a shape is split along axis 0.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Element type; ``"bfloat16"`` needs ml_dtypes.
    engine : str or Engine, optional
        By default the environment's ``COLLOPS_ENGINE``, else NumPy.

    Returns
    -------
    DistributedArray or StackedArray
        The latter for a stacked layout.

    Raises
    ------
    LayoutError
        If `layout` is for another number of ranks, or no shape.
    InputError
        If there is no such dtype or engine, or a rank's part is larger than its memory.

    Examples
    --------
    >>> import collops
    >>> collops.zeros((2, 2), dtype="float32").gather()
    array([[0., 0.],
           [0., 0.]], dtype=float32)
    """
    kind = as_dtype(dtype)
    return _made(layout, comm, engine, kind, lambda e, part, rank, _: e.xp.zeros(part.local_shape(rank), e.dtype(kind)))


def ones(
    layout: Layout | StackedLayout | Shape,
    *,
    comm: Communicator | None = None,
    dtype: Any = np.float64,
    engine: Engine | str | None = None,
) -> Any:
    """Return an array of ones; parameters as for :func:`zeros`.

    Examples
    --------
    >>> import collops
    >>> collops.ones((2, 2)).gather()
    array([[1., 1.],
           [1., 1.]])
    """
    kind = as_dtype(dtype)
    return _made(layout, comm, engine, kind, lambda e, part, rank, _: e.xp.ones(part.local_shape(rank), e.dtype(kind)))


def empty(
    layout: Layout | StackedLayout | Shape,
    *,
    comm: Communicator | None = None,
    dtype: Any = np.float64,
    engine: Engine | str | None = None,
) -> Any:
    """Return an array of arbitrary values; parameters as for :func:`zeros`.

    Examples
    --------
    >>> import collops
    >>> collops.empty((4, 2), dtype="float32").shape
    (4, 2)
    """
    kind = as_dtype(dtype)
    return _made(layout, comm, engine, kind, lambda e, part, rank, _: e.xp.empty(part.local_shape(rank), e.dtype(kind)))


def full(
    layout: Layout | StackedLayout | Shape,
    value: Any,
    *,
    comm: Communicator | None = None,
    dtype: Any = None,
    engine: Engine | str | None = None,
) -> Any:
    """Return an array filled with a number.

    Parameters
    ----------
    layout, comm, engine
        As for :func:`zeros`.
    value : number
        The value of every element.
    dtype : dtype, optional
        By default that of `value`.

    Examples
    --------
    >>> import collops
    >>> collops.full(3, 2.5).gather()
    array([2.5, 2.5, 2.5])
    """
    check_number(value)
    kind = as_dtype(np.asarray(value).dtype if dtype is None else dtype)
    return _made(
        layout, comm, engine, kind, lambda e, part, rank, _: e.xp.full(part.local_shape(rank), value, e.dtype(kind))
    )


def random(
    layout: Layout | StackedLayout | Shape,
    *,
    kind: str = "normal",
    seed: int = 0,
    comm: Communicator | None = None,
    dtype: Any = np.float64,
    engine: Engine | str | None = None,
) -> Any:
    """Return random numbers: the same global array on any number of ranks, in any layout, on any engine.

    Parameters
    ----------
    layout, comm, engine
        As for :func:`zeros`. Each part of a stacked layout has numbers of its own.
    kind : str
        ``"normal"`` (mean 0, variance 1; of real and imaginary parts each) or ``"uniform"`` (in [0, 1)).
    seed : int
        Equal seeds give equal numbers.
    dtype : dtype, optional
        A floating or complex type.

    Raises
    ------
    InputError
        For another `kind`.
    UnsupportedTypeError
        For integers and booleans.

    Notes
    -----
    Uniform numbers agree bit by bit between engines, normal ones to the rounding of their logarithm and cosine.

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

    def make(chosen: Engine, part: Layout, rank: int, number: int) -> Any:
        return fill_random(chosen, part, rank, element, kind, child_seed(seed, number) if stacked else seed)

    return _made(layout, comm, engine, element, make)


def check_number(value: Any) -> None:
    """Refuse what is no number to fill an array with.

    Raises
    ------
    UnsupportedTypeError
        For arrays, which would fit some ranks' parts, and for what NumPy would take for true or false.
    """
    plain = 0 if hasattr(value, "ndim") else np.asarray(value)  # a device's number stays where it is
    if np.ndim(plain) or getattr(value, "ndim", 0) or np.asarray(plain).dtype.kind not in "biufc":
        raise UnsupportedTypeError(f"an array is filled with a number, not {type(value).__qualname__}")


def _made(
    layout: Layout | StackedLayout | Shape,
    comm: Communicator | None,
    engine: Engine | str | None,
    dtype: np.dtype,
    make: Callable[[Engine, Layout, int, int], Any],
    number: int = 0,
) -> Any:
    """Make the array of a layout (or a shape, split along axis 0) from ``make(engine, layout, rank, leaf_number)``."""
    comm = communicator_or_world(comm)
    chosen = engine if isinstance(engine, Engine) else find_engine(engine)
    if isinstance(layout, StackedLayout):
        parts = []
        for part in layout:
            parts.append(_made(part, comm, chosen, dtype, make, number))
            number += 1 if isinstance(part, Layout) else len(part.leaves)
        return StackedArray(parts)
    if not isinstance(layout, Layout):
        layout = Layout.split(layout, comm.size)
    elif layout.ranks != comm.size:
        raise LayoutError(f"a layout for {layout.ranks} ranks does not fit a communicator of {comm.size}")
    check_memory(layout, dtype, chosen)
    return DistributedArray(layout, comm, make(chosen, layout, comm.rank, number))
