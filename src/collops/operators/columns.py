"""An operator applied to a block of several arrays (multiple right-hand sides)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collops.array import Array, DistributedArray, Layout, StackedArray, StackedLayout
from collops.array.operands import check_alike
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.operators.base import (
    Adjoint,
    AnyLayout,
    Combination,
    LinearOperator,
    Product,
    check_operators,
)
from collops.operators.dims import check_count
from collops.operators.memory import new_array, store

_MAX_WIDTH = 64
"""Maximum number of columns applied at once: larger blocks are hardly faster, and need more memory."""

_MIN_WIDTH = 16
"""Number of columns applied at once regardless of their length."""

_MAX_ELEMENTS = 1 << 28
"""Maximum number of elements of a rank's part of a block that has more columns than the minimum."""


class Columns(LinearOperator):
    r"""An operator applied to each of several arrays: :math:`Y = A X`, where X and Y are blocks of columns.

    A block of k columns is one array with a first axis of extent k, which is not split: the block of arrays of shape
    ``(n, m)`` has the shape ``(k, n, m)`` and is split like the arrays. A block of stacked arrays is the stack of the
    blocks of their parts. A reduction along the first axis, such as the mean of the columns, needs no message.

    Parameters
    ----------
    operator : LinearOperator
        Applied to one column after another, with separate messages. Stacks of dense and sparse local matrices of
        NumPy, SciPy and CuPy, ``BlockToeplitz``, on the host also ``CSRMatrix`` and ``Kirchhoff``, and sums and
        products of these apply to batches of up to 64 columns, with one set of messages for each batch.
    count : int
        Number of columns.

    Attributes
    ----------
    width : int
        Number of columns of a batch, from 1 to 64. A batched operator uses fewer than 64, but at least 16, where a
        rank's part of 64 arrays, including intermediate results of a product, has more than 2^28 elements.

    Raises
    ------
    InputError
        If `count` is less than 1.
    UnsupportedTypeError
        If `operator` is not a distributed operator.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.operators import Columns
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> X = Columns.join([collops.ones(3), collops.full(3, 10.0)])
    >>> (Columns(A, 2) @ X).gather()
    array([[ 1.,  2.,  4.],
           [10., 20., 40.]])
    """

    def __init__(self, operator: LinearOperator, count: int) -> None:
        check_operators(operator)
        count = check_count("the number of columns", count, smallest=1)
        super().__init__(
            block_layout(operator.domain, count), block_layout(operator.range, count), operator.dtype, operator.comm
        )
        self._inherit([operator])
        self.operator, self.count = operator, count
        width = min(count, _MAX_WIDTH, max(_MIN_WIDTH, _MAX_ELEMENTS // max(1, _longest(operator))))
        self._batched = {
            engine: {size: _batched(operator, size, engine) for size in {width, count % width} - {0}}
            for engine in (_engines(operator) if width > 1 else ())
        }
        self.width = width if self._batched else 1

    @staticmethod
    def join(arrays: Sequence[Array]) -> Array:
        """Return a block with copies of `arrays`, which have one layout. No messages.

        Raises
        ------
        InputError
            If `arrays` is empty.
        LayoutError
            If the layouts differ.
        UnsupportedTypeError
            If one of them is not a distributed array, or their engines differ.
        """
        arrays = list(arrays)
        for array in arrays:
            if not isinstance(array, DistributedArray | StackedArray):
                raise UnsupportedTypeError(f"the columns of a block must be distributed arrays, not {type_name(array)}")
            check_alike(arrays[0], array)
        if not arrays:
            raise InputError("a block needs at least one column, not 0")
        return _joined(arrays)

    @staticmethod
    def split(block: Array) -> list[Array]:
        """Return the columns of a block: views if the engine has them. No messages.

        Raises
        ------
        LayoutError
            If `block` has fewer than two axes, its first axis is empty or split, or stacked parts differ in its extent.
        UnsupportedTypeError
            If it is not a distributed array.
        """
        if not isinstance(block, DistributedArray | StackedArray):
            raise UnsupportedTypeError(f"a block must be a distributed array, not {type_name(block)}")
        return _columns(block, column_layout(block.layout))

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._apply_to_columns(x, out, False)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._apply_to_columns(y, out, True)

    def _apply_to_columns(self, x: Array, out: Array | None, adjoint: bool) -> Array:
        """Return the block of the images of the columns of `x`."""
        layout, inner = self.domain if adjoint else self.range, self.operator
        if (batched := self._batched.get(x.engine.name)) is not None:
            out = self._new(layout, x) if out is None else out
            for begin in range(0, self.count, self.width):
                size = min(self.width, self.count - begin)
                target = _part(out, begin, size)
                _keep(batched[size]._resolved(adjoint).apply(_part(x, begin, size), target), target)
            return out
        apply, sides = inner._resolved(adjoint).apply, (inner.domain, inner.range)
        sources = _columns(x, sides[adjoint])
        if not x.engine.mutable:
            return _joined([apply(source, None) for source in sources])
        # Without `out`, the first image determines the dtype, which may differ from the common dtype of A and x.
        first = None
        if out is None:
            first = apply(sources[0], None)
            out = new_array(layout, x, first.dtype)
        for number, (source, target) in enumerate(zip(sources, _columns(out, sides[not adjoint]), strict=True)):
            _keep(first if first is not None and number == 0 else apply(source, target), target)
        return out


class _Batched(LinearOperator):
    """An operator applied to blocks of columns by the batched forms of its products."""

    def __init__(self, operator: LinearOperator, count: int) -> None:
        domain, range_ = (block_layout(layout, count) for layout in (operator.domain, operator.range))
        super().__init__(domain, range_, operator.dtype, operator.comm)
        self._inherit([operator])
        self.operator = operator

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        batched = self.operator._resolved(adjoint).batched
        assert batched is not None
        return batched(x, out)


def _batched(operator: LinearOperator, count: int, engine: str) -> LinearOperator:
    """Return `operator` for blocks of an engine. Its parts apply to all columns at once if they support it."""
    if engine not in _engines(operator):
        return Columns(operator, count)
    if isinstance(operator, Adjoint):
        return Adjoint(_batched(operator.operator, count, engine))
    if isinstance(operator, Product):
        return Product([_batched(factor, count, engine) for factor in operator.factors])
    if isinstance(operator, Combination):
        return Combination([(coefficient, _batched(term, count, engine)) for coefficient, term in operator.terms])
    return _Batched(operator, count)


def _engines(operator: LinearOperator) -> set[str]:
    """Return the engines for which `operator`, or a part of it, has a batched product.

    An operator that takes real parts has none: the dtype of its results differs from the common dtype of operator and
    operand.
    """
    if not operator.clinear:
        return set()
    if inner := _inner(operator):
        return set[str]().union(*map(_engines, inner))
    forward, adjoint = operator._directions
    return {forward.batch_engine} if forward.batched is not None and adjoint.batched is not None else set()


def _longest(operator: LinearOperator) -> int:
    """Return the largest number of elements of a rank's part of any operand or result of `operator` and its parts."""
    if inner := _inner(operator):
        return max(map(_longest, inner))
    return max(layout.local_size(rank) for layout in (operator.domain, operator.range) for rank in range(layout.ranks))


def _inner(operator: LinearOperator) -> Sequence[LinearOperator]:
    """Return the operators inside an adjoint, a product or a sum; an empty sequence for other operators."""
    if isinstance(operator, Adjoint):
        return (operator.operator,)
    if isinstance(operator, Product):
        return operator.factors
    return [term for _, term in operator.terms] if isinstance(operator, Combination) else ()


def block_layout(layout: AnyLayout, count: int) -> Any:
    """Return the layout of a block of `count` columns of this layout."""
    if isinstance(layout, StackedLayout):
        return StackedLayout([block_layout(part, count) for part in layout])
    axes, sizes = (None, *layout.axes), (None, *layout.sizes)
    return Layout((count, *layout.shape), layout.ranks, layout.process_grid, axes, sizes, layout.mask)


def column_layout(layout: AnyLayout) -> Any:
    """Return the layout of one column of a block; raise LayoutError unless `layout` can be the layout of a block."""
    leaves = layout.leaves if isinstance(layout, StackedLayout) else (layout,)
    counts = {leaf.shape[0] for leaf in leaves}
    if len(counts) > 1 or 0 in counts or any(leaf.ndim < 2 or leaf.axes[0] is not None for leaf in leaves):
        raise LayoutError(f"a block needs an unsplit first axis of columns and at least one more axis, not {layout}")
    if isinstance(layout, StackedLayout):
        return StackedLayout([column_layout(part) for part in layout])
    return layout.drop(0)


def column(block: Array, layout: Any, number: int) -> Array:
    """Return a column of a block as an array of `layout` (see :func:`column_layout`): a view if the engine has them."""
    if isinstance(block, StackedArray):
        return StackedArray([column(part, new, number) for part, new in zip(block.arrays, layout, strict=True)])
    return DistributedArray._uncompared(layout, block.comm, block.local_array[number])


def _part(block: Array, begin: int, count: int) -> Array:
    """Return `count` columns of a block as a block, in the same memory."""
    if isinstance(block, StackedArray):
        return StackedArray([_part(part, begin, count) for part in block.arrays])
    if count == len(block.local_array):
        return block
    layout = block_layout(block.layout.drop(0), count)
    return DistributedArray._uncompared(layout, block.comm, block.local_array[begin : begin + count])


def _columns(block: Array, layout: Any) -> list[Array]:
    return [column(block, layout, number) for number in range(len(block.leaves[0].local_array))]


def _joined(arrays: Sequence[Array]) -> Array:
    first = arrays[0]
    if isinstance(first, StackedArray):
        return StackedArray([_joined(parts) for parts in zip(*(array.arrays for array in arrays), strict=True)])
    locals_ = first.engine.xp.stack([array.local_array for array in arrays])
    return DistributedArray._uncompared(block_layout(first.layout, len(arrays)), first.comm, locals_)


def _keep(image: Array, target: Array) -> None:
    """Copy an image into its column, unless it is already stored there."""
    for new, column in zip(image.leaves, target.leaves, strict=True):
        store(new.local_array, column.local_array)
