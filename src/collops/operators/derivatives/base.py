"""What the derivatives of one array have in common: a stencil for each direction, between equal layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collops.array import Layout
from collops.comm import Communicator
from collops.operators.base import LinearOperator
from collops.operators.derivatives.bands import Band
from collops.operators.derivatives.stencil import Stencil
from collops.operators.operands import operand

__all__ = ["Banded"]


class Banded(LinearOperator):
    """A sum of products with bands along axes, from a layout to itself. Collective.

    Parameters
    ----------
    layout : Layout
        Domain and range.
    bands : sequence of (int, Band)
        Axis and matrix of each product.
    comm : Communicator
        The ranks.
    dtype : dtype
        Of the operator.
    """

    def __init__(self, layout: Layout, bands: Sequence[tuple[int, Band]], comm: Communicator, dtype: Any) -> None:
        super().__init__(layout, layout, dtype, comm)
        self._forward_stencil = Stencil(layout, bands, comm)
        self._adjoint_stencil = Stencil(layout, [(axis, band.transposed) for axis, band in bands], comm)

    def _forward(self, x: Any, out: Any) -> Any:
        out = self._new(self.range, x) if out is None else out
        self._forward_stencil((operand(x, out.dtype),), (out.local_array,), out.engine)
        return out

    def _adjoint(self, y: Any, out: Any) -> Any:
        out = self._new(self.domain, y) if out is None else out
        self._adjoint_stencil((operand(y, out.dtype),), (out.local_array,), out.engine)
        return out

    def _add_forward(self, x: Any, out: Any) -> None:
        self._forward_stencil((operand(x, out.dtype),), (out.local_array,), out.engine, add=True)

    def _add_adjoint(self, y: Any, out: Any) -> None:
        self._adjoint_stencil((operand(y, out.dtype),), (out.local_array,), out.engine, add=True)
