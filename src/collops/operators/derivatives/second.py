"""The second derivative along one axis."""

from __future__ import annotations

from typing import Any

from collops.array.layout_arguments import normal_axis
from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.operators.derivatives.bands import second_derivative
from collops.operators.derivatives.base import Banded
from collops.operators.dims import Dims, as_layout

__all__ = ["SecondDerivative"]


class SecondDerivative(Banded):
    r"""Second derivative along one axis by finite differences with three points.

    One exchange with all neighbours at once where the axis is split, and no message where it is whole.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        Layout of the array, any process grid; or its shape, which is then split along axis 0.
    axis : int
        The axis of the derivative.
    sampling : float
        Distance of two points, in whatever unit the derivative shall be by.
    kind : {"centered", "forward", "backward"}
        With points on both sides, or on one.
    edge : bool
        Whether a centered derivative uses the neighbouring point's formula at the ends; otherwise it is zero there.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Of the operator. Arrays of other real types are converted, complex ones give complex results.

    Raises
    ------
    InputError
        If `kind` or `sampling` is none of these.
    LayoutError
        If there is no such axis, or it has fewer than three points and `edge` is asked for.

    Notes
    -----
    With the sampling :math:`\Delta`, the centered formula is :math:`(x_{i+1} - 2 x_i + x_{i-1}) / \Delta^2`; forward
    and backward take the same three-point difference around :math:`i + 1` and :math:`i - 1`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.operators import SecondDerivative
    >>> x = collops.from_global(np.arange(5.0) ** 2)
    >>> SecondDerivative(5, edge=True).forward(x).gather()
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
        dtype: Any = "float64",
    ) -> None:
        comm = communicator_or_world(comm)
        layout = as_layout(dims, comm)
        axis = normal_axis(axis, layout.ndim)
        band = second_derivative(layout.shape[axis], sampling, kind, edge)
        super().__init__(layout, [(axis, band)], comm, dtype)
        self.axis = axis
