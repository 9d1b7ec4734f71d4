"""Products of matrices and vectors of the array API standard, if each rank holds matching parts."""

from __future__ import annotations

from typing import Any

from collops import DistributedArray
from collops.bridges.array_api.elementwise import FUNCTIONS as ELEMENTWISE
from collops.bridges.array_api.reductions import sum
from collops.bridges.array_api.shapes import check_array, expand_dims, squeeze
from collops.errors import LayoutError
from collops.extend.arrays import broadcast, broadcast_layout, broadcast_operand


def matmul(x1: DistributedArray, x2: DistributedArray, /) -> Any:
    """Return the product of two matrices, vectors, or stacks of them. Collective: one allreduce if the sum is split.

    The axes that are summed must be whole in both arrays, or split alike. :class:`collops.MatrixMult` multiplies
    matrices that are split otherwise.
    """
    check_array(x1, "matmul")
    check_array(x2, "matmul")
    if x1.ndim == x2.ndim == 1:
        return x1.dot(x2)
    if 1 in (x1.ndim, x2.ndim):
        axis = -2 if x1.ndim == 1 else -1
        x1, x2 = (expand_dims(x, axis=axis) if x.ndim == 1 else x for x in (x1, x2))
        return squeeze(matmul(x1, x2), axis=axis)
    if x1.shape[-1] != x2.shape[-2]:
        raise LayoutError(f"matmul needs as many columns as rows, not the shapes {x1.shape} and {x2.shape}")
    # The terms of the sum have the axes of both: rows, summed, columns.
    left, right = expand_dims(x1, axis=-1), expand_dims(x2, axis=-3)
    try:
        terms = broadcast_layout(left, right)
    except LayoutError:
        if x1.comm is not x2.comm:
            raise
        raise LayoutError(
            "matmul needs parts that can be multiplied where they are: axes that are summed split alike, others of one "
            f"array only split over different ranks, not\n  {x1.layout}\n  {x2.layout}\nreplicate the smaller one by "
            "redistribute, or use collops.MatrixMult"
        ) from None
    engine = x1.engine
    values = engine.matmul(broadcast_operand(left, terms)[..., 0], broadcast_operand(right, terms)[..., 0, :, :])
    groups = terms.reduction_groups([terms.ndim - 2])
    if groups is not None:
        values = x1.comm.subgroup(groups).allreduce(values)
    return DistributedArray(terms.drop(-2), x1.comm, values)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """Return the inner products of vectors along an axis, conjugating `x1`. Collective: at most one allreduce."""
    x1, x2 = broadcast(x1, x2)
    product = ELEMENTWISE["conj"](x1) * x2
    return sum(product, axis=axis, dtype=product.dtype)


FUNCTIONS = {function.__name__: function for function in (matmul, vecdot)}
