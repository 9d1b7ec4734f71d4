"""Operators that need no messages, or one reduction: Diagonal, Identity, Sum, Transpose and Zero."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, DistributedArray, Layout
from collops.array.layout_arguments import normal_axis
from collops.array.plans import as_layout
from collops.array.redistribute import agree_on_values
from collops.backend import LocalArray, engine_of
from collops.comm import Communicator
from collops.comm.arguments import communicator_or_world
from collops.errors import InputError, LayoutError
from collops.operators.base import LinearOperator, is_complex
from collops.operators.dims import Dims, communicator_of, placed
from collops.operators.memory import Coefficients, check_holds, filled


class Diagonal(LinearOperator):
    """The product with a diagonal: :math:`y_i = d_i x_i`. No messages.

    Parameters
    ----------
    diag : array or DistributedArray
        An array of the shape of the model, or a vector as long as one of its axes. A plain array is the global
        diagonal, the same on every rank; each rank copies its part. A distributed array is not copied; it must be
        replicated or have the layout of the model (for a vector, the layout of the axis).
    dims : Layout, int or sequence of int, optional
        The model; by default the layout of a distributed diagonal, or the shape of a plain one, split along axis 0.
    axis : int, optional
        Axis along which a vector is multiplied.
    comm : Communicator, optional
        The ranks; by default the ranks of a distributed diagonal, else the world.
    dtype : dtype, optional
        Type of the operator; by default the dtype of `diag`.

    Raises
    ------
    LayoutError
        If the diagonal does not fit the model, or is distributed differently.
    UnsupportedTypeError
        If `diag` is complex and `dtype` is not.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> collops.Diagonal(np.arange(3.0)).forward(collops.ones(3)).gather()
    array([0., 1., 2.])
    """

    def __init__(
        self,
        diag: DistributedArray | LocalArray,
        dims: Dims | None = None,
        axis: int = -1,
        *,
        comm: Communicator | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        distributed = isinstance(diag, DistributedArray)
        comm = communicator_of(diag, comm)
        if not distributed:
            diag = np.asarray(diag) if isinstance(diag, list | tuple) else diag
            engine_of(diag)  # raises for anything but an array
            agree_on_values(comm, "the diagonal that each rank passes", diag)
        model = as_layout((diag.layout if distributed else diag.shape) if dims is None else dims, comm)
        kind = np.dtype(diag.dtype if dtype is None else dtype)
        check_holds(kind, diag.dtype)
        super().__init__(model, model, kind, comm)
        local = _local_part(diag, model, axis, comm.rank)
        if local.dtype != kind:
            local = local.astype(kind)
        self._set(local)

    def _set(self, local: LocalArray) -> None:
        self._local = local
        self._diagonal = Coefficients(local)
        self._conjugate = Coefficients(local.conj()) if is_complex(local.dtype) else self._diagonal

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        if dtype.name == "bfloat16":
            return super()._astype(dtype)
        other = self._retyped(dtype)
        other._set(self._local.astype(dtype))
        return other

    def _forward(self, x: Array, out: Array | None) -> Array:
        return self._product(self._diagonal, x, out)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        return self._product(self._conjugate, y, out)

    def _product(self, diagonal: Coefficients, x: Array, out: Array | None) -> Array:
        factors = diagonal.on_engine(x.engine)
        if out is None:
            return x._like(x.engine.xp.multiply(factors, x.local_array))
        check_holds(out.dtype, self.dtype, x.dtype)
        if not out.engine.mutable:
            return filled(out, x.engine.xp.multiply(factors, x.local_array))
        x.engine.xp.multiply(factors, x.local_array, out.local_array)
        return out


class Identity(LinearOperator):
    """The identity, from a model to data of the same or another shape. No messages.

    If the data are larger than the model, forward pads them with zeros at the end of every axis; if they are smaller,
    it takes the first elements. Adjoint does the reverse. Every element stays on its rank: the layout of one side
    follows from the other.

    Parameters
    ----------
    N : Layout, int or sequence of int
        The data. A shape is distributed like the model: truncated if the data are smaller, with larger last blocks if
        they are larger. If neither `N` nor `M` is a layout, the larger shape is split along axis 0.
    M : Layout, int or sequence of int, optional
        The model; equal to the data by default. A shape is distributed like the data.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Type of the operator.

    Raises
    ------
    LayoutError
        If the numbers of axes differ, one side is larger along one axis and smaller along another, or the two layouts
        hold an element on different ranks.

    Examples
    --------
    >>> import collops
    >>> collops.Identity(3, 5).forward(collops.ones(5)).gather()
    array([1., 1., 1.])
    """

    _has_coefficients = False

    def __init__(
        self, N: Dims, M: Dims | None = None, *, comm: Communicator | None = None, dtype: DTypeLike = "float64"
    ) -> None:
        comm = communicator_or_world(comm)
        data, model = _both(N, N if M is None else M, comm)
        super().__init__(model, data, dtype, comm)
        blocks = model.local_shape(comm.rank), data.local_shape(comm.rank)
        self._common = tuple(slice(0, min(extents)) for extents in zip(*blocks, strict=True))

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        source, target, engine = x.local_array, out.local_array, x.engine
        if source.shape == target.shape:
            return filled(out, source)
        check_holds(target.dtype, source.dtype)
        return filled(out, engine.embedded(engine.sliced(source, self._common), self._common, target))


class Sum(LinearOperator):
    r"""The sum along one axis: :math:`y_j = \sum_i x_{i, j}`.

    Forward sends one allreduce of the sum among the ranks that the axis is split over, none if it is not split. Adjoint
    spreads the data along the axis and sends no message. If the axis is split, the data are replicated along that axis
    of the process grid.

    Collective.

    Parameters
    ----------
    dims : Layout or sequence of int
        The model, with at least two axes; a shape is split along axis 0.
    axis : int, optional
        Axis that is summed.
    comm, dtype
        As for :class:`Identity`.

    Raises
    ------
    LayoutError
        If `axis` does not exist, or is the only axis.

    Examples
    --------
    >>> import collops
    >>> S = collops.Sum((2, 3), axis=1)
    >>> (S @ collops.ones((2, 3))).gather()
    array([3., 3.])
    """

    _has_coefficients = False

    def __init__(
        self, dims: Dims, axis: int = -1, *, comm: Communicator | None = None, dtype: DTypeLike = "float64"
    ) -> None:
        model, comm = placed(dims, comm)
        if model.ndim < 2:
            raise LayoutError("a sum along an axis needs a model with at least two axes; a dot product sums a vector")
        self.axis = normal_axis(axis, model.ndim)
        self._broadcast = (*(slice(None),) * self.axis, None)
        super().__init__(model, model.drop(self.axis), dtype, comm)
        groups = model.reduction_groups((self.axis,))
        others = None if groups is None else comm.subgroup(groups)
        self._axis_comm = None if others is None or others.size == 1 else others

    def _forward(self, x: Array, out: Array | None) -> Array:
        out = self._new(self.range, x) if out is None else out
        memory, dtype = out.local_array if out.engine.mutable else None, out.local_array.dtype
        check_holds(dtype, x.local_array.dtype)
        total = x.local_array.sum(axis=self.axis, dtype=dtype, out=memory)
        if self._axis_comm is not None:
            total = self._axis_comm.allreduce(total, out=memory)
        return filled(out, total)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        out = self._new(self.domain, y) if out is None else out
        check_holds(out.local_array.dtype, y.local_array.dtype)
        return filled(out, out.engine.put(out.local_array, ..., y.local_array[self._broadcast]))


class Transpose(LinearOperator):
    """Permutation of the axes of an array. No messages: split axes stay split over the same ranks.

    Parameters
    ----------
    dims : Layout or sequence of int
        The model; a shape is split along axis 0.
    axes : sequence of int
        The axis of the model that becomes each axis of the data.
    comm, dtype
        As for :class:`Identity`.

    Raises
    ------
    InputError
        If `axes` does not name every axis once.

    Notes
    -----
    The range is split along the image of the model's split axis. To obtain another layout, redistribute the data,
    which takes one all-to-all-v.

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

    _has_coefficients = False

    def __init__(
        self, dims: Dims, axes: Sequence[int], *, comm: Communicator | None = None, dtype: DTypeLike = "float64"
    ) -> None:
        model, comm = placed(dims, comm)
        if sorted(axis + model.ndim if axis < 0 else axis for axis in axes) != list(range(model.ndim)):
            raise InputError(f"axes must name each of {model.ndim} axes once, not {tuple(axes)}")
        order = [int(axis) % model.ndim for axis in axes]
        self._orders = order, np.argsort(order).tolist()
        super().__init__(model, model._of_axes(order), dtype, comm)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        return filled(out, x.local_array.transpose(self._orders[adjoint]))


class Zero(LinearOperator):
    """Zero data for every model, and a zero model for all data. No messages.

    Parameters
    ----------
    N : Layout, int or sequence of int
        The data; a shape is split along axis 0.
    M : Layout, int or sequence of int, optional
        The model; equal to the data by default.
    comm, dtype
        As for :class:`Identity`.

    Examples
    --------
    >>> import collops
    >>> Z = collops.Zero(3, 2)
    >>> Z.shape, float((Z @ collops.ones(Z.domain)).norm())
    ((3, 2), 0.0)
    """

    _has_coefficients = False

    def __init__(
        self, N: Dims, M: Dims | None = None, *, comm: Communicator | None = None, dtype: DTypeLike = "float64"
    ) -> None:
        comm = communicator_or_world(comm)
        super().__init__(as_layout(N if M is None else M, comm), as_layout(N, comm), dtype, comm)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        return filled(out, out.engine.put(out.local_array, ..., 0))


def _local_part(diag: DistributedArray | LocalArray, model: Layout, axis: int, rank: int) -> LocalArray:
    """Return this rank's part of the diagonal, shaped to multiply its part of the model."""
    axis = normal_axis(axis, model.ndim)
    full = tuple(diag.shape) == model.shape
    if not full and tuple(diag.shape) != (model.shape[axis],):
        raise LayoutError(
            f"a diagonal of shape {tuple(diag.shape)} fits neither the model {model.shape} nor its axis {axis}"
        )
    axes = list(range(model.ndim)) if full else [axis]
    blocks = [tuple(model.slices(other)[a] for a in axes) for other in range(model.ranks)]
    if not isinstance(diag, DistributedArray):
        local = diag[blocks[rank]].copy()  # a copy, which does not keep a large global array alive
    elif diag.layout.is_replicated:
        local = diag.local_array[blocks[rank]]
    elif [diag.layout.slices(other) for other in range(model.ranks)] == blocks:
        local = diag.local_array
    else:
        raise LayoutError(
            f"a diagonal in the layout {diag.layout} is distributed differently from the model {model}; "
            f"redistribute it: diag.redistribute(Layout.replicated({diag.shape}, {model.ranks}))"
        )
    return local if full else local.reshape([-1 if a == axis else 1 for a in range(model.ndim)])


def _both(N: Dims, M: Dims, comm: Communicator) -> tuple[Layout, Layout]:
    """Return the layouts of data and model; a shape is distributed like the other argument."""
    data, model = as_layout(N, comm), as_layout(M, comm)
    if not (isinstance(N, Layout) and isinstance(M, Layout)):
        # If both are shapes, the larger one is split evenly.
        fixed = isinstance(M, Layout) or (not isinstance(N, Layout) and _fits(data.shape, model.shape))
        return (_spread_like(model, data.shape), model) if fixed else (data, _spread_like(data, model.shape))
    _check_nested(model.shape, data.shape)
    smaller, larger = (data, model) if _fits(data.shape, model.shape) else (model, data)
    for rank in range(comm.size):
        small, large = smaller.block(rank), larger.block(rank)
        common = tuple(slice(min(s.start, n), min(s.stop, n)) for s, n in zip(large.slices, smaller.shape, strict=True))
        if 0 not in small.shape and small.slices != common:
            raise LayoutError(
                f"between {model} and {data}, elements would move to other ranks: "
                f"give the shape {data.shape} or {model.shape} instead of one of the layouts, and redistribute arrays "
                "to the range or the domain of the operator"
            )
    return data, model


def _spread_like(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the layout of another shape that places each element on the same rank as `layout`."""
    _check_nested(layout.shape, shape)
    sizes = []
    for extent, blocks in zip(shape, layout.sizes, strict=True):
        ends = [min(end, extent) for end in accumulate(blocks)]
        ends[-1] = extent
        sizes.append([end - begin for begin, end in zip([0, *ends], ends, strict=False)])
    return Layout(shape, layout.ranks, layout.process_grid, layout.axes, sizes, layout.mask)


def _fits(inner: tuple[int, ...], outer: tuple[int, ...]) -> bool:
    return len(inner) == len(outer) and all(i <= o for i, o in zip(inner, outer, strict=True))


def _check_nested(inner: tuple[int, ...], outer: tuple[int, ...]) -> None:
    if not (_fits(inner, outer) or _fits(outer, inner)):
        raise LayoutError(
            f"an identity between the shapes {inner} and {outer} needs one of them to be at least as large along every "
            "axis"
        )
