"""An operator applied to each of several arrays, which are one block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from collops.array import DistributedArray, Layout, StackedArray, StackedLayout
from collops.array.operands import check_alike
from collops.errors import InputError, LayoutError, UnsupportedTypeError, type_name
from collops.operators.base import AnyLayout, LinearOperator, check_operators, new_array
from collops.operators.memory import store


class Columns(LinearOperator):
    r"""An operator applied to each of several arrays: :math:`Y = A X`, where X and Y are blocks of columns.

    A block of k columns is one array with a first axis of k, which every rank has whole: the block of arrays of shape
    ``(n, m)`` has the shape ``(k, n, m)`` and is split as they are. Of stacked arrays it is the stack of the blocks of
    their parts. A reduction along the first axis, such as the mean of the columns, needs no message.

    Parameters
    ----------
    operator : LinearOperator
        Applied to one column after the other, with its messages for each of them.
    count : int
        Number of columns.

    Raises
    ------
    InputError
        If there is not at least one column.
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
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"a block has at least one column, not {count!r}")
        super().__init__(
            block_layout(operator.domain, count), block_layout(operator.range, count), operator.dtype, operator.comm
        )
        self._inherit([operator])
        self.operator, self.count = operator, count

    @staticmethod
    def join(arrays: Sequence[Any]) -> Any:
        """Return a block with copies of `arrays`, which have one layout. No messages.

        Raises
        ------
        InputError
            If there is no array.
        LayoutError
            If the layouts differ.
        UnsupportedTypeError
            If one of them is no distributed array, or their engines differ.
        """
        arrays = list(arrays)
        for array in arrays:
            if not isinstance(array, DistributedArray | StackedArray):
                raise UnsupportedTypeError(f"the columns of a block are distributed arrays, not {type_name(array)}")
            check_alike(arrays[0], array)
        if not arrays:
            raise InputError("a block has at least one column, not 0")
        return _joined(arrays)

    @staticmethod
    def split(block: Any) -> list[Any]:
        """Return the columns of a block: views if the engine has them. No messages.

        Raises
        ------
        LayoutError
            If `block` has fewer than two axes, or a first axis that is empty or split; if stacked parts differ in it.
        UnsupportedTypeError
            If it is no distributed array.
        """
        if not isinstance(block, DistributedArray | StackedArray):
            raise UnsupportedTypeError(f"a block is a distributed array, not {type_name(block)}")
        return _columns(block, column_layout(block.layout))

    def _forward(self, x: Any, out: Any) -> Any:
        return _applied(self.operator._forward, x, self.operator.domain, out, self.operator.range, self.range)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return _applied(self.operator._adjoint, y, self.operator.range, out, self.operator.domain, self.domain)


def block_layout(layout: AnyLayout, count: int) -> Any:
    """Return the layout of a block of `count` columns of this layout."""
    if isinstance(layout, StackedLayout):
        return StackedLayout([block_layout(part, count) for part in layout])
    axes, sizes = (None, *layout.axes), (None, *layout.sizes)
    return Layout((count, *layout.shape), layout.ranks, layout.process_grid, axes, sizes, layout.mask)


def column_layout(layout: AnyLayout) -> Any:
    """Return the layout of one column of a block; raise LayoutError if it is that of no block."""
    leaves = layout.leaves if isinstance(layout, StackedLayout) else (layout,)
    counts = {leaf.shape[0] for leaf in leaves}
    if len(counts) > 1 or 0 in counts or any(leaf.ndim < 2 or leaf.axes[0] is not None for leaf in leaves):
        raise LayoutError(f"a block has a first axis of its columns, which is not split, and others, not {layout}")
    if isinstance(layout, StackedLayout):
        return StackedLayout([column_layout(part) for part in layout])
    return layout.drop(0)


def _columns(block: Any, layout: Any) -> list[Any]:
    if isinstance(block, StackedArray):
        parts = [_columns(part, one) for part, one in zip(block.arrays, layout, strict=True)]
        return [StackedArray(each) for each in zip(*parts, strict=True)]
    local = block.local_array
    first = DistributedArray(layout, block.comm, local[0])
    return [first, *(first._like(local[number]) for number in range(1, len(local)))]


def _joined(arrays: Sequence[Any]) -> Any:
    first = arrays[0]
    if isinstance(first, StackedArray):
        return StackedArray([_joined(parts) for parts in zip(*(array.arrays for array in arrays), strict=True)])
    locals_ = first.engine.xp.stack([array.local_array for array in arrays])
    return DistributedArray(block_layout(first.layout, len(arrays)), first.comm, locals_)


def _applied(apply: Callable[..., Any], x: Any, given: Any, out: Any, wanted: Any, whole: Any) -> Any:
    """Return the block of the images of the columns of `x`."""
    sources = _columns(x, given)
    if not x.engine.mutable:
        return _joined([apply(source, None) for source in sources])
    if out is None:
        # The first image tells the dtype, which is not always the common one of operator and operand.
        first = apply(sources[0], None)
        out = new_array(whole, x, first.dtype)
        _keep(first, _columns(out, wanted)[0])
        sources, targets = sources[1:], _columns(out, wanted)[1:]
    else:
        targets = _columns(out, wanted)
    for source, target in zip(sources, targets, strict=True):
        _keep(apply(source, target), target)
    return out


def _keep(image: Any, target: Any) -> None:
    """Copy an image into the column that it belongs to, unless it is there."""
    for new, place in zip(image.leaves, target.leaves, strict=True):
        store(new.local_array, place.local_array)
