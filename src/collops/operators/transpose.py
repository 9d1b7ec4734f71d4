"""Transpose: the axes of an array in another order, and its process grid's with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.array import Layout
from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.errors import InputError
from collops.operators.base import LinearOperator
from collops.operators.dims import Dims, as_layout
from collops.operators.local import store

__all__ = ["Transpose"]


class Transpose(LinearOperator):
    """The axes of an array in another order. No messages: what was split stays split where it is.

    Parameters
    ----------
    dims : Layout or sequence of int
        The model; a shape is split along axis 0.
    axes : sequence of int
        For each axis of the data, the axis of the model that it is.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Of the operator.

    Raises
    ------
    InputError
        If `axes` does not name every axis once.

    Notes
    -----
    The range is split along the axis that the split axis of the model becomes. ``redistribute`` gives
    the data another layout afterwards, by one all-to-all-v.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> T = collops.Transpose((2, 3), axes=(1, 0))
    >>> (T @ collops.from_global(np.arange(6.0).reshape(2, 3))).gather()
    array([[0., 3.],
           [1., 4.],
           [2., 5.]])
    """

    def __init__(
        self, dims: Dims, axes: Sequence[int], *, comm: Communicator | None = None, dtype: Any = "float64"
    ) -> None:
        comm = communicator_or_world(comm)
        model = as_layout(dims, comm)
        if sorted(axis + model.ndim if axis < 0 else axis for axis in axes) != list(range(model.ndim)):
            raise InputError(f"axes must name each of {model.ndim} axes once, not {tuple(axes)}")
        self._axes = tuple(int(axis) % model.ndim for axis in axes)
        self._back = tuple(int(axis) for axis in np.argsort(self._axes))
        data = Layout(
            [model.shape[axis] for axis in self._axes],
            model.ranks,
            model.process_grid,
            [model.axes[axis] for axis in self._axes],
            [model.sizes[axis] for axis in self._axes],
            model.mask,
        )
        super().__init__(model, data, dtype, comm)

    def _forward(self, x: Any, out: Any) -> Any:
        return _permuted(x, self._axes, self._new(self.range, x) if out is None else out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        return _permuted(y, self._back, self._new(self.domain, y) if out is None else out)


def _permuted(source: Any, axes: tuple[int, ...], target: Any) -> Any:
    store(source.local_array.transpose(axes), target.local_array)
    return target
