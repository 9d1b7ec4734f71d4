"""Stacked arrays: several distributed arrays as one vector, which may be nested and is reduced with one message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from collops.array.base import Array
from collops.array.coefficients import Scalar
from collops.array.distributed import DistributedArray
from collops.array.layout import StackedLayout
from collops.array.operands import check_alike, check_ufunc, scalar_operand
from collops.array.plans import ReductionPlan, reduction_plan
from collops.backend import Engine, LocalArray
from collops.comm import Communicator
from collops.errors import LayoutError, UnsupportedTypeError


class StackedArray(Array):
    """Several arrays as one vector. Arithmetic works part by part; a reduction sends one message for all parts.

    Parameters
    ----------
    arrays : sequence of DistributedArray or StackedArray
        At least one; of one communicator and one engine.

    Attributes
    ----------
    arrays : tuple of (DistributedArray or StackedArray)
        The parts; not copied.
    leaves : tuple of DistributedArray
        All parts in order, without nesting.
    layout : StackedLayout
    comm : Communicator
    engine : Engine

    Raises
    ------
    LayoutError
        If there are no parts, or the parts differ in communicator or mask.
    UnsupportedTypeError
        If the parts are of different engines.

    Examples
    --------
    >>> import collops
    >>> both = collops.StackedArray([collops.ones(3), collops.full(2, 2.0)])
    >>> float(both.dot(both))
    11.0
    """

    __slots__ = ("__weakref__", "_block", "_plan", "arrays", "comm", "engine", "layout", "leaves")

    arrays: tuple[Array, ...]
    leaves: tuple[DistributedArray, ...]
    layout: StackedLayout
    comm: Communicator
    engine: Engine
    _plan: ReductionPlan
    _block: tuple[LocalArray, list[LocalArray]] | None  # memory of this rank, and the local arrays that fill it

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._block = None
        self.arrays = tuple(arrays)
        if any(not isinstance(array, DistributedArray | StackedArray) for array in self.arrays):
            raise UnsupportedTypeError("the parts of a stacked array must be distributed or stacked arrays")
        self.layout = StackedLayout([array.layout for array in self.arrays])
        self.comm = self.arrays[0].comm
        self.engine = self.arrays[0].engine
        if any(array.comm is not self.comm for array in self.arrays):
            raise LayoutError("the parts of a stacked array must be on one communicator")
        if any(array.engine is not self.engine for array in self.arrays):
            names = ", ".join(array.engine.name for array in self.arrays)
            raise UnsupportedTypeError(f"the parts of a stacked array must be of one engine, not {names}")
        self.leaves = tuple(leaf for array in self.arrays for leaf in array.leaves)
        self._plan = reduction_plan(self.layout, self.comm)

    def _like(self, arrays: Sequence[Array]) -> Self:
        """Return a stack of other parts with these layouts: the internal constructor, unchecked."""
        stacked = object.__new__(self.__class__)
        stacked._block = None
        stacked.arrays = tuple(arrays)
        stacked.layout = self.layout
        stacked.comm = self.comm
        stacked.engine = self.engine
        stacked.leaves = tuple(leaf for array in stacked.arrays for leaf in array.leaves)
        stacked._plan = self._plan
        return stacked

    @property
    def _local_block(self) -> LocalArray | None:
        """All elements of this rank as one array of the engine; ``None`` without one, or if sums omit elements."""
        if self._block is None or not all(self._plan.counted):
            return None
        block, parts = self._block
        held = all(  # the parts of a deep copy are no longer views
            leaf.local_array is part and part.base is block for leaf, part in zip(self.leaves, parts, strict=True)
        )
        return block if held else None

    @property
    def dtype(self) -> np.dtype:
        """The dtype that holds the elements of all parts."""
        return np.result_type(*[leaf.local_array.dtype for leaf in self.leaves])

    @property
    def shape(self) -> tuple[int]:
        """The number of elements, as a tuple: a stacked array is a vector."""
        return (self.layout.size,)

    @property
    def ndim(self) -> int:
        """One: a stacked array is a vector."""
        return 1

    def __len__(self) -> int:
        return len(self.arrays)

    def __iter__(self) -> Iterator[Array]:
        return iter(self.arrays)

    def __getitem__(self, index: int) -> Array:
        return self.arrays[index]

    def __repr__(self) -> str:
        parts = "".join("\n  " + repr(array).replace("\n", "\n  ") for array in self.arrays)
        return f"<StackedArray of {len(self.arrays)} parts{parts}>"

    # Element by element: no messages

    def _binary(
        self, function: Callable[[LocalArray, LocalArray], LocalArray], other: Array | Scalar, reflected: bool = False
    ) -> Self:
        others = self._operands(other)
        if others is NotImplemented:
            return NotImplemented
        return self._like([a._binary(function, b, reflected) for a, b in zip(self.arrays, others, strict=True)])

    def _unary(self, function: Callable[[LocalArray], LocalArray]) -> Self:
        return self._like([array._unary(function) for array in self.arrays])

    def _map(self, function: Callable[..., LocalArray], *others: Array | Scalar) -> Self:
        columns = [self._operands(other) for other in others]
        if any(column is NotImplemented for column in columns):
            return NotImplemented
        return self._like([array._map(function, *values) for array, *values in zip(self.arrays, *columns, strict=True)])

    def _in_place(self, function: Callable[[LocalArray, LocalArray], LocalArray], other: Array | Scalar) -> Self:
        others = self._operands(other)
        if others is NotImplemented:
            return NotImplemented
        for array, value in zip(self.arrays, others, strict=True):
            array._in_place(function, value)
        return self

    def _operands(self, other: Array | Scalar) -> Sequence[Array | Scalar]:
        """Return the operand of each part."""
        if isinstance(other, StackedArray):
            check_alike(self, other)
            return other.arrays
        value = scalar_operand(self, other)
        return NotImplemented if value is NotImplemented else [value] * len(self.arrays)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **arguments: Any) -> Any:
        """Apply a NumPy ufunc to each part; see :meth:`DistributedArray.__array_ufunc__`."""
        outs = arguments.pop("out", None) or (None,) * ufunc.nout
        check_ufunc(ufunc, method, outs)
        columns = [self._operands(value) for value in inputs]
        if any(column is NotImplemented for column in columns):
            return NotImplemented
        options = [arguments] * len(self)
        if "where" in arguments:  # not all engines have it
            masks = self._operands(arguments["where"])
            if masks is NotImplemented:
                return NotImplemented
            options = [{**arguments, "where": mask} for mask in masks]
        targets = [[None] * len(self) if out is None else self._operands(out) for out in outs]
        results = [
            ufunc(*values[: len(inputs)], out=tuple(values[len(inputs) : -1]), **values[-1])
            for values in zip(*columns, *targets, options, strict=True)
        ]
        parts = [results] if ufunc.nout == 1 else zip(*results, strict=True)
        stored = tuple(self._like(part) if out is None else out for out, part in zip(outs, parts, strict=True))
        return stored[0] if ufunc.nout == 1 else stored

    def astype(self, dtype: DTypeLike, copy: bool = True) -> Self:
        """Return all parts converted to `dtype`; if `copy` is false, parts of this dtype are not copied."""
        return self._like([array.astype(dtype, copy) for array in self.arrays])

    def redistribute(self, layout: StackedLayout) -> StackedArray:
        """Return a copy with every part in another layout. Collective: one all-to-all-v for each part.

        Raises
        ------
        LayoutError
            If the nesting or a shape differs.
        """
        if not isinstance(layout, StackedLayout) or len(layout) != len(self):
            raise LayoutError(f"a stacked array of {len(self)} parts needs a stacked layout of as many, not {layout}")
        return StackedArray([array.redistribute(part) for array, part in zip(self.arrays, layout, strict=True)])

    def gather(self, root: int | None = None) -> list[LocalArray] | None:
        """Return the parts' global arrays as a nested list; ``None`` on ranks other than `root`. Collective."""
        parts = [array.gather(root) for array in self.arrays]
        return parts if root is None or root == self.comm.rank else None
