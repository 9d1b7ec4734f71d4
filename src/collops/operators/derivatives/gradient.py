"""The gradient: the first derivatives along all axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.array import StackedLayout
from collops.comm import Communicator
from collops.comm.given import communicator_or_world
from collops.errors import InputError
from collops.operators.base import LinearOperator
from collops.operators.derivatives.bands import first_derivative
from collops.operators.derivatives.kernels import Several
from collops.operators.derivatives.stencil import Stencil
from collops.operators.dims import Dims, as_layout
from collops.operators.operands import operand

__all__ = ["Gradient"]


class Gradient(LinearOperator):
    r"""First derivatives along all axes, as a stack of so many arrays.

    One exchange for all axes together in either direction, with all neighbours at once.

    Parameters
    ----------
    dims : Layout, int or sequence of int
        Layout of the array, any process grid; or its shape, which is then split along axis 0.
    sampling : float or sequence of float
        Distance of two points along every axis, or along each.
    edge : bool
        Whether a centered derivative goes on with shorter formulas at the ends; otherwise it is zero there.
    kind : {"centered", "forward", "backward"}
        With points on both sides, or on one.
    comm : Communicator, optional
        The ranks; the world by default.
    dtype : dtype, optional
        Of the operator. Arrays of other real types are converted, complex ones give complex results.

    Raises
    ------
    InputError
        If `sampling` has neither one number nor one for each axis, or it or `kind` is none of those.
    LayoutError
        If an axis has one point and `edge` is asked for.

    Notes
    -----
    Forward gives :math:`[D_0 x; D_1 x; …]` with the first derivatives :math:`D_a` of :class:`FirstDerivative`, adjoint
    the sum :math:`\sum_a D_a^T y_a`. The range is a :class:`~collops.array.StackedLayout` of one array for each axis.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.operators import Gradient
    >>> i, j = np.ogrid[:3, :3]
    >>> for part in Gradient((3, 3), kind="forward").forward(collops.from_global(i + 10.0 * j)):
    ...     print(part.gather()[0])
    [1. 1. 1.]
    [10. 10.  0.]
    """

    def __init__(
        self,
        dims: Dims,
        sampling: float | Sequence[float] = 1.0,
        edge: bool = False,
        kind: str = "centered",
        *,
        comm: Communicator | None = None,
        dtype: Any = "float64",
    ) -> None:
        comm = communicator_or_world(comm)
        layout = as_layout(dims, comm)
        steps = np.atleast_1d(sampling).tolist()
        steps = steps * layout.ndim if len(steps) == 1 else steps
        if len(steps) != layout.ndim:
            raise InputError(f"a gradient along {layout.ndim} axes needs as many samplings, not {sampling!r}")
        super().__init__(layout, StackedLayout([layout] * layout.ndim), dtype, comm)
        bands = [
            (axis, first_derivative(extent, step, kind, edge))
            for axis, (extent, step) in enumerate(zip(layout.shape, steps, strict=True))
        ]
        transposed = [(axis, band.transposed) for axis, band in bands]
        self._forward_stencil = Stencil(layout, bands, comm, Several.TARGETS)
        self._adjoint_stencil = Stencil(layout, transposed, comm, Several.SOURCES)

    def _forward(self, x: Any, out: Any) -> Any:
        out = self._new(self.range, x) if out is None else out
        targets = [part.local_array for part in out.arrays]
        self._forward_stencil((operand(x, out.dtype),), targets, out.engine)
        return out

    def _adjoint(self, y: Any, out: Any) -> Any:
        out = self._new(self.domain, y) if out is None else out
        sources = [operand(part, out.dtype) for part in y.arrays]
        self._adjoint_stencil(sources, (out.local_array,), out.engine)
        return out
