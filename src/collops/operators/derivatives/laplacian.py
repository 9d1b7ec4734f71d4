"""The Laplacian: a weighted sum of second derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collops.array.layout_arguments import normal_axis
from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.errors import InputError
from collops.operators.derivatives.bands import second_derivative
from collops.operators.derivatives.base import Banded
from collops.operators.dims import Dims, as_layout

__all__ = ["Laplacian"]


class Laplacian(Banded):
    r"""Weighted sum of the second derivatives along several axes.

    One exchange for all axes together, with all neighbours at once; no message where all these axes are whole.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        Layout of the array, any process grid; or its shape, which is then split along axis 0.
    axes : sequence of int
        The axes of the derivatives, each at most once.
    weights : sequence of float
        Of the derivatives: the Laplacian proper has ones.
    sampling : sequence of float
        Distance of two points along each of the axes.
    edge : bool
        Whether a centered derivative uses the neighbouring point's formula at the ends; otherwise it is zero there.
    kind : {"centered", "forward", "backward"}
        With points on both sides, or on one.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Of the operator. Arrays of other real types are converted, complex ones give complex results.

    Raises
    ------
    InputError
        If `axes`, `weights` and `sampling` have different lengths or none, an axis is named twice, or `kind` or a
        sampling is none of those.
    LayoutError
        If there is no such axis, or it has fewer than three points and `edge` is asked for.

    Notes
    -----
    :math:`y = \sum_a w_a D_a x` with the second derivative :math:`D_a` along axis :math:`a`, see
    :class:`SecondDerivative`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.operators import Laplacian
    >>> i, j = np.ogrid[:3, :3]
    >>> Laplacian((3, 3)).forward(collops.from_global(i**2.0 + j**2.0)).gather()
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
        dtype: Any = "float64",
    ) -> None:
        comm = communicator_or_world(comm)
        layout = as_layout(dims, comm)
        numbers = [normal_axis(axis, layout.ndim) for axis in axes]
        if not 0 < len(numbers) == len(weights) == len(sampling) or len(set(numbers)) != len(numbers):
            raise InputError(
                f"a Laplacian along axes={tuple(axes)} needs as many weights and samplings, not {tuple(weights)} and "
                f"{tuple(sampling)}, and every axis once"
            )
        bands = [
            (axis, second_derivative(layout.shape[axis], step, kind, edge).scaled(weight))
            for axis, weight, step in zip(numbers, weights, sampling, strict=True)
        ]
        super().__init__(layout, bands, comm, dtype)
        self.axes = tuple(numbers)
