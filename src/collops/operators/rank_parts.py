"""The local operators of all ranks, seen together: what stacks of local operators are made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from collops.array import Layout
from collops.array.layout_arguments import as_shape
from collops.comm import Communicator
from collops.errors import REFUSALS, InputError, LayoutError
from collops.operators.local import LocalOperator, lift_local

__all__ = ["Collect", "RankParts", "Spread", "cut", "flat", "gather_parts", "shape_of_copies"]

Apply = Callable[[Any, Any], Any]


class RankParts(NamedTuple):
    """The local operators of this rank, and what had to be known of the others.

    Attributes
    ----------
    operators : tuple of LocalOperator
        Those of this rank; possibly none.
    rows, columns : tuple of int
        Per rank the sum over its operators.
    widths, heights : frozenset of int
        The different numbers of columns and of rows that the operators of all ranks have.
    dtype : numpy.dtype
        The common type of all of them.
    capturable : bool
        Whether all of them can be recorded as a CUDA graph: those that say ``capturable = False`` cannot.
    clinear : bool
        Whether all of them are linear over the complex numbers: those that say ``clinear = False`` are not.
    """

    operators: tuple[LocalOperator, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    widths: frozenset[int]
    heights: frozenset[int]
    dtype: np.dtype
    capturable: bool
    clinear: bool


def gather_parts(ops: Iterable[Any], comm: Communicator) -> RankParts:
    """Lift this rank's operators and learn the sizes of the others'. Collective: two metadata messages.

    Parameters
    ----------
    ops : operator or iterable of operators
        What `lift_local` takes. Those of this rank; possibly none, but not on every rank.
    comm : Communicator
        The ranks.

    Raises
    ------
    UnsupportedTypeError
        On every rank, if an operator of any rank cannot be lifted.
    InputError
        If there is no operator at all.
    """
    operators: tuple[LocalOperator, ...] = ()
    error: Exception | None = None
    try:
        operators = tuple(lift_local(op) for op in ([ops] if hasattr(ops, "shape") else ops))
    except REFUSALS as refused:
        error = refused
    comm.check(error)
    mine = [
        [
            *(int(op.shape[0]), int(op.shape[1]), np.dtype(op.dtype).name),
            *(bool(getattr(op, "capturable", True)), bool(getattr(op, "clinear", True))),
        ]
        for op in operators
    ]
    ranks = comm.allgather_metadata(mine)
    every = [entry for entries in ranks for entry in entries]
    if not every:
        raise InputError("no rank has a local operator; a stack needs at least one")
    return RankParts(
        operators,
        tuple(sum(entry[0] for entry in entries) for entries in ranks),
        tuple(sum(entry[1] for entry in entries) for entries in ranks),
        frozenset(entry[1] for entry in every),
        frozenset(entry[0] for entry in every),
        np.result_type(*(_dtype_called(entry[2]) for entry in every)),
        all(entry[3] for entry in every),
        all(entry[4] for entry in every),
    )


def shape_of_copies(name: str, what: str, extents: frozenset[int], dims: Sequence[int] | int | None) -> tuple[int, ...]:
    """Return the shape of the vector that all operators share.

    Parameters
    ----------
    name, what : str
        For the error: the stack, and whether its rows or columns are meant.
    extents : frozenset of int
        The different extents that the operators have.
    dims : sequence of int or int, optional
        The shape that is wanted; 1-D by default.

    Raises
    ------
    LayoutError
        If the extents differ, or `dims` has another size.
    """
    if len(extents) != 1:
        shown = ", ".join(str(extent) for extent in sorted(extents))
        raise LayoutError(f"{name} needs operators with one number of {what}, not {shown}")
    (extent,) = extents
    if dims is None:
        return (extent,)
    shape = as_shape(dims)
    if math.prod(shape) != extent:
        raise LayoutError(f"{name}: dims {shape} have {math.prod(shape)} elements, the operators {extent} {what}")
    return shape


def cut(extents: Iterable[int]) -> list[slice]:
    """Return the slices of consecutive pieces."""
    ends = list(accumulate(extents, initial=0))
    return [slice(begin, end) for begin, end in pairwise(ends)]


def flat(array: Any) -> Any:
    """Return a local array as one contiguous axis: the same memory if it is contiguous."""
    if array.ndim == 1 and array.flags.c_contiguous:
        return array
    return array.reshape(-1) if array.flags.c_contiguous else array.ravel()


class Spread:
    """Applies every operator to one vector that all ranks hold, each into its own piece of a split one.

    Parameters
    ----------
    applies : sequence of callable
        One per local operator: ``apply(x, out)``.
    extents : sequence of int
        Length of each piece.
    layout : Layout
        Of the vector.
    comm : Communicator
        The ranks that hold it; only those of one group of the layout's mask. Collective.
    """

    __slots__ = ("_comm", "_parts")

    def __init__(self, applies: Sequence[Apply], extents: Sequence[int], layout: Layout, comm: Communicator) -> None:
        self._parts = list(zip(applies, cut(extents), strict=True))
        self._comm = comm if layout.mask is None else comm.subgroup(layout.mask)

    def __call__(self, copies: Any, split: Any) -> Any:
        """Fill the distributed array `split` from `copies`. No message."""
        source, target = copies.engine.shared(flat(copies.local_array), self._comm), split.local_array
        for apply, piece in self._parts:
            apply(source, target[piece])
        if not self._parts and not copies.engine.keeps:
            target[...] = source[:0]  # a rank without operators takes part in sums of cotangents
        return split


class Collect:
    """Applies every operator to its own piece of a split vector, and adds up the results of all ranks.

    Parameters
    ----------
    applies : sequence of callable
        One per local operator: ``apply(x, out)``.
    extents : sequence of int
        Length of each piece.
    layout : Layout
        Of the sum, which all ranks hold.
    comm : Communicator
        The ranks; only those of one group of the layout's mask are added up. Collective.
    """

    __slots__ = ("_comm", "_parts", "_scratch")

    def __init__(self, applies: Sequence[Apply], extents: Sequence[int], layout: Layout, comm: Communicator) -> None:
        self._parts = list(zip(applies, cut(extents), strict=True))
        self._comm = comm if layout.mask is None else comm.subgroup(layout.mask)
        self._scratch: dict[Any, Any] = {}

    def __call__(self, split: Any, copies: Any) -> Any:
        """Fill the distributed array `copies` from `split`. One allreduce."""
        source, whole = flat(split.local_array), copies.local_array
        target = whole.reshape(-1)  # results are contiguous
        if self._parts:
            apply, piece = self._parts[0]
            apply(source[piece], target)
            for apply, piece in self._parts[1:]:
                target += apply(source[piece], self._scratch_like(copies.engine, target))
        else:
            target[...] = 0
        if self._comm.size > 1:
            self._comm.allreduce(whole, out=whole)
        return copies

    def _scratch_like(self, engine: Any, target: Any) -> Any:
        key = (engine, target.dtype)
        array = self._scratch.get(key)
        if array is None:
            array = engine.xp.empty_like(target)
            if engine.keeps:
                self._scratch[key] = array
        return array


def _dtype_called(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)
