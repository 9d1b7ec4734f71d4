"""Sum: the sum along one axis, and as its adjoint the copies along it."""

from __future__ import annotations

from typing import Any

from collops.array.layout_arguments import normal_axis
from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.errors import LayoutError, UnsupportedTypeError
from collops.operators.base import LinearOperator, is_complex
from collops.operators.dims import Dims, as_layout
from collops.operators.local import store

__all__ = ["Sum"]


class Sum(LinearOperator):
    r"""The sum along one axis: :math:`y_j = \sum_i x_{i, j}`.

    Forward sends one allreduce of the sum among the ranks that the axis is split over, none if it is whole. Adjoint
    spreads the data along the axis and sends nothing. Where the axis was split, the data are replicated along that axis
    of the process grid.

    Collective.

    Parameters
    ----------
    dims : Layout or sequence of int
        The model, with at least two axes; a shape is split along axis 0.
    axis : int, optional
        The axis that is summed.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Of the operator.

    Raises
    ------
    LayoutError
        If there is no such axis, or it is the only one.

    Examples
    --------
    >>> import collops
    >>> S = collops.Sum((2, 3), axis=1)
    >>> (S @ collops.ones((2, 3))).gather()
    array([3., 3.])
    """

    def __init__(self, dims: Dims, axis: int = -1, *, comm: Communicator | None = None, dtype: Any = "float64") -> None:
        comm = communicator_or_world(comm)
        model = as_layout(dims, comm)
        if model.ndim < 2:
            raise LayoutError("a sum along an axis needs a model with at least two axes; the dot product sums a vector")
        self.axis = normal_axis(axis, model.ndim)
        super().__init__(model, model.drop(self.axis), dtype, comm)
        groups = model.reduction_groups((self.axis,))
        others = None if groups is None else comm.subgroup(groups)
        self._others = None if others is None or others.size == 1 else others

    def _forward(self, x: Any, out: Any) -> Any:
        target = self._new(self.range, x) if out is None else out
        if is_complex(x.dtype) and not is_complex(target.dtype):
            raise UnsupportedTypeError(f"a sum of dtype {x.dtype} does not fit into {target.dtype}")
        total = target.local_array
        x.local_array.sum(axis=self.axis, dtype=total.dtype, out=total)
        if self._others is not None:
            self._others.allreduce(total, out=total)
        return target

    def _adjoint(self, y: Any, out: Any) -> Any:
        target = self._new(self.domain, y) if out is None else out
        every = target.local_array
        store(y.engine.xp.broadcast_to(y.engine.xp.expand_dims(y.local_array, self.axis), every.shape), every)
        return target
