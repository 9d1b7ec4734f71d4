"""The first derivative along one axis."""

from __future__ import annotations

from typing import Any

from collops.array.layout_arguments import normal_axis
from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.operators.derivatives.bands import first_derivative
from collops.operators.derivatives.base import Banded
from collops.operators.dims import Dims, as_layout

__all__ = ["FirstDerivative"]


class FirstDerivative(Banded):
    r"""First derivative along one axis by finite differences.

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
        Whether a centered derivative goes on with shorter formulas at the ends; otherwise it is zero there.
    order : {3, 5}
        Number of points of the centered formula.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Of the operator. Arrays of other real types are converted, complex ones give complex results.

    Raises
    ------
    InputError
        If `kind`, `order` or `sampling` is none of these.
    LayoutError
        If there is no such axis, or it has one point and `edge` is asked for.

    Notes
    -----
    With the sampling :math:`\Delta`, the formulas are :math:`(x_{i+1} - x_i) / \Delta` (forward),
    :math:`(x_i - x_{i-1}) / \Delta` (backward), :math:`(x_{i+1} - x_{i-1}) / 2\Delta` (centered, order 3), and
    :math:`(x_{i-2} - 8 x_{i-1} + 8 x_{i+1} - x_{i+2}) / 12\Delta` (order 5). Where a formula would need points beyond
    the array, the result is zero, as in PyLops.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.operators import FirstDerivative
    >>> x = collops.from_global(np.arange(5.0) ** 2)
    >>> FirstDerivative(5).forward(x).gather()
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
        dtype: Any = "float64",
    ) -> None:
        comm = communicator_or_world(comm)
        layout = as_layout(dims, comm)
        axis = normal_axis(axis, layout.ndim)
        band = first_derivative(layout.shape[axis], sampling, kind, edge, order)
        super().__init__(layout, [(axis, band)], comm, dtype)
        self.axis = axis
