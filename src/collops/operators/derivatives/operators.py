"""The derivatives: first and second ones along an axis, the gradient and the Laplacian."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, Layout, StackedLayout
from collops.array.fused import LocalPairs
from collops.array.layout_arguments import normal_axis
from collops.comm import Communicator
from collops.errors import InputError, UnsupportedTypeError
from collops.operators.base import AnyLayout, Direction, LinearOperator
from collops.operators.derivatives.bands import Band, Several, first_derivative, second_derivative
from collops.operators.derivatives.stencil import Stencil
from collops.operators.dims import Dims, placed
from collops.operators.memory import contiguous, filled


class _Banded(LinearOperator):
    """Products with bands along axes of a layout, given as pairs of axis and matrix. Collective."""

    _has_coefficients = False
    _several: tuple[Several, Several]  # of forward and adjoint

    def __init__(
        self, layout: Layout, range: AnyLayout, bands: Sequence[tuple[int, Band]], comm: Communicator, dtype: DTypeLike
    ) -> None:
        super().__init__(layout, range, dtype, comm)
        transposed = [(axis, band.transposed) for axis, band in bands]
        self._stencils = (
            Stencil(layout, bands, comm, self._several[0]),
            Stencil(layout, transposed, comm, self._several[1]),
        )

    def _direction(self, adjoint: bool) -> Direction:
        return super()._direction(adjoint)._replace(norm2=partial(self._apply, adjoint=adjoint))


class _Summed(_Banded):
    """The sum of products with bands, from a layout to itself. Collective."""

    _several = Several.NONE, Several.NONE

    def __init__(self, layout: Layout, bands: Sequence[tuple[int, Band]], comm: Communicator, dtype: DTypeLike) -> None:
        super().__init__(layout, layout, bands, comm, dtype)

    def _apply(
        self, x: Array, out: Array, adjoint: bool, squares: LocalPairs | None = None, add: bool = False
    ) -> Array:
        source, target, engine = x.local_array, out.local_array, out.engine
        if source.dtype != target.dtype or not (engine.mutable and source.flags.c_contiguous):
            source = contiguous(source, target.dtype)
        return filled(out, self._stencils[adjoint]((source,), (target,), engine, add, squares)[0])

    def _direction(self, adjoint: bool) -> Direction:
        return super()._direction(adjoint)._replace(add=partial(self._apply, adjoint=adjoint, add=True))


class FirstDerivative(_Summed):
    r"""First derivative along one axis by finite differences.

    One exchange with all neighbours at once if the axis is split; no message otherwise.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        Layout of the array, on any process grid; or its shape, which is split along axis 0.
    axis : int
        Axis of the derivative.
    sampling : float
        Distance of neighbouring points.
    kind : {"centered", "forward", "backward"}
        Formula with points on both sides, or on one.
    edge : bool
        Whether a centered derivative has shorter formulas at the ends; otherwise it is zero there.
    order : {3, 5}
        Number of points of the centered formula.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Type of the operator. Arrays of other real types are converted; complex arrays give complex results.

    Raises
    ------
    InputError
        If `kind`, `order` or `sampling` is not allowed.
    LayoutError
        If `axis` does not exist, or has one point and `edge` is true.

    Notes
    -----
    With the sampling :math:`\Delta`, the formulas are :math:`(x_{i+1} - x_i) / \Delta` (forward),
    :math:`(x_i - x_{i-1}) / \Delta` (backward), :math:`(x_{i+1} - x_{i-1}) / 2\Delta` (centered, order 3), and
    :math:`(x_{i-2} - 8 x_{i-1} + 8 x_{i+1} - x_{i+2}) / 12\Delta` (order 5). The result is zero where a formula would
    need points beyond the array, as in PyLops.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.arange(5.0) ** 2)
    >>> collops.FirstDerivative(5).forward(x).gather()
    array([0., 2., 4., 6., 0.])
    """

    def __init__(
        self,
        dims: Dims,
        axis: int = 0,
        sampling: float = 1.0,
        kind: str = "centered",
        edge: bool = False,
        order: int = 3,
        *,
        comm: Communicator | None = None,
        dtype: DTypeLike = "float64",
    ) -> None:
        layout, comm = placed(dims, comm)
        axis = normal_axis(axis, layout.ndim)
        band = first_derivative(layout.shape[axis], sampling, kind, edge, order)
        super().__init__(layout, [(axis, band)], comm, dtype)
        self.axis = axis


class SecondDerivative(_Summed):
    r"""Second derivative along one axis by finite differences with three points.

    One exchange with all neighbours at once if the axis is split; no message otherwise.

    Parameters
    ----------
    dims, axis, sampling, kind, comm, dtype
        As for :class:`FirstDerivative`.
    edge : bool
        Whether a centered derivative uses the formula of the neighbouring point at the ends; otherwise it is zero
        there.

    Raises
    ------
    InputError
        If `kind` or `sampling` is not allowed.
    LayoutError
        If an axis does not exist, or has fewer than three points and `edge` is true.

    Notes
    -----
    With the sampling :math:`\Delta`, the centered formula is :math:`(x_{i+1} - 2 x_i + x_{i-1}) / \Delta^2`; forward
    and backward take the same three-point difference around :math:`i + 1` and :math:`i - 1`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.arange(5.0) ** 2)
    >>> collops.SecondDerivative(5, edge=True).forward(x).gather()
    array([2., 2., 2., 2., 2.])
    """

    def __init__(
        self,
        dims: Dims,
        axis: int = 0,
        sampling: float = 1.0,
        kind: str = "centered",
        edge: bool = False,
        *,
        comm: Communicator | None = None,
        dtype: DTypeLike = "float64",
    ) -> None:
        layout, comm = placed(dims, comm)
        axis = normal_axis(axis, layout.ndim)
        band = second_derivative(layout.shape[axis], sampling, kind, edge)
        super().__init__(layout, [(axis, band)], comm, dtype)
        self.axis = axis


class Gradient(_Banded):
    r"""First derivatives along all axes, as a stack with one array for each.

    One exchange for all axes together in either direction, with all neighbours at once.

    Parameters
    ----------
    sampling : float or sequence of float
        Distance of neighbouring points along every axis, or along each.
    dims, edge, kind, comm, dtype
        As for :class:`FirstDerivative`.

    Raises
    ------
    InputError
        If `sampling` is neither one number nor one for each axis, or it or `kind` is not allowed.
    LayoutError
        If an axis has one point and `edge` is true.

    Notes
    -----
    Forward is :math:`[D_0 x; D_1 x; …]` with the first derivatives :math:`D_a` of :class:`FirstDerivative`, adjoint
    the sum :math:`\sum_a D_a^T y_a`. The range is a :class:`~collops.array.StackedLayout` of one array for each axis.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> i, j = np.ogrid[:3, :3]
    >>> for part in collops.Gradient((3, 3), kind="forward").forward(collops.from_global(i + 10.0 * j)):
    ...     print(part.gather()[0])
    [1. 1. 1.]
    [10. 10.  0.]
    """

    _several = Several.TARGETS, Several.SOURCES

    def __init__(
        self,
        dims: Dims,
        sampling: float | Sequence[float] = 1.0,
        edge: bool = False,
        kind: str = "centered",
        *,
        comm: Communicator | None = None,
        dtype: DTypeLike = "float64",
    ) -> None:
        layout, comm = placed(dims, comm)
        steps = np.atleast_1d(sampling).tolist()
        steps = steps * layout.ndim if len(steps) == 1 else steps
        if len(steps) != layout.ndim:
            raise InputError(f"a gradient along {layout.ndim} axes needs one sampling for each axis, not {sampling!r}")
        bands = [
            (axis, first_derivative(extent, step, kind, edge))
            for axis, (extent, step) in enumerate(zip(layout.shape, steps, strict=True))
        ]
        super().__init__(layout, StackedLayout([layout] * layout.ndim), bands, comm, dtype)

    def _apply(self, x: Array, out: Array, adjoint: bool, squares: LocalPairs | None = None) -> Array:
        sources = [contiguous(leaf.local_array, out.dtype) for leaf in x.leaves]
        targets = [contiguous(leaf.local_array, out.dtype) for leaf in out.leaves]  # kernels write one dtype
        results = self._stencils[adjoint](sources, targets, out.engine, squares=squares)
        for leaf, result in zip(out.leaves, results, strict=True):
            filled(leaf, result)
        return out


class Laplacian(_Summed):
    r"""Weighted sum of the second derivatives along several axes.

    One exchange for all axes together, with all neighbours at once; no message if none of the axes is split.

    Parameters
    ----------
    axes : sequence of int
        Axes of the derivatives, each at most once.
    weights : sequence of float
        Weights of the derivatives: ones for the Laplacian proper.
    sampling : sequence of float
        Distance of neighbouring points along each of the axes.
    dims, edge, kind, comm, dtype
        As for :class:`SecondDerivative`.

    Raises
    ------
    InputError
        If `axes`, `weights` and `sampling` have different lengths or none, an axis is named twice, or `kind` or a
        sampling is not allowed.
    LayoutError
        If an axis does not exist, or has fewer than three points and `edge` is true.
    UnsupportedTypeError
        If a weight is complex, and `dtype` is real.

    Notes
    -----
    :math:`y = \sum_a w_a D_a x` with the second derivative :math:`D_a` along axis :math:`a`, see
    :class:`SecondDerivative`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> i, j = np.ogrid[:3, :3]
    >>> collops.Laplacian((3, 3)).forward(collops.from_global(i**2.0 + j**2.0)).gather()
    array([[0., 2., 0.],
           [2., 4., 2.],
           [0., 2., 0.]])
    """

    def __init__(
        self,
        dims: Dims,
        axes: Sequence[int] = (-2, -1),
        weights: Sequence[float] = (1, 1),
        sampling: Sequence[float] = (1, 1),
        edge: bool = False,
        kind: str = "centered",
        *,
        comm: Communicator | None = None,
        dtype: DTypeLike = "float64",
    ) -> None:
        layout, comm = placed(dims, comm)
        numbers = [normal_axis(axis, layout.ndim) for axis in axes]
        if not 0 < len(numbers) == len(weights) == len(sampling) or len(set(numbers)) != len(numbers):
            raise InputError(
                f"a Laplacian along axes={tuple(axes)} needs a weight and a sampling each, not {tuple(weights)} and "
                f"{tuple(sampling)}, and distinct axes"
            )
        if np.iscomplexobj(weights) and np.dtype(dtype).kind != "c":
            raise UnsupportedTypeError(f"complex weights do not fit into {np.dtype(dtype)}")
        bands = [
            (axis, second_derivative(layout.shape[axis], step, kind, edge).scaled(weight))
            for axis, weight, step in zip(numbers, weights, sampling, strict=True)
        ]
        super().__init__(layout, bands, comm, dtype)
        self.axes = tuple(numbers)
