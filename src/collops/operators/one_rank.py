"""Operators of this package on a single rank as local operators, PyLops' derivatives among them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from collops.array import DistributedArray, StackedLayout
from collops.comm.world import alone
from collops.errors import LayoutError, UnsupportedTypeError
from collops.operators.base import LinearOperator

__all__ = ["OneRank", "derivative_of_pylops"]


class OneRank:
    """An operator on a communicator of one rank, applied to flat arrays in this rank's memory.

    Parameters
    ----------
    operator : LinearOperator
        Between single arrays, on one rank.

    Raises
    ------
    UnsupportedTypeError
        If it has several ranks.
    LayoutError
        If there is a stack of arrays on one side.
    """

    __slots__ = ("_domain", "_range", "capturable", "clinear", "dtype", "operator", "shape")

    def __init__(self, operator: LinearOperator) -> None:
        if operator.comm.size > 1:
            raise UnsupportedTypeError(
                f"{operator!r} has {operator.comm.size} ranks and is no local operator; distributed operators are "
                "stacked by StackedVStack, StackedHStack and StackedBlockDiag"
            )
        domain, range = operator.domain, operator.range
        if isinstance(domain, StackedLayout) or isinstance(range, StackedLayout):
            raise LayoutError("a local operator takes one array and returns one, not a stack of them")
        self.operator = operator
        self.shape = operator.shape
        self.dtype = operator.dtype
        self.capturable = operator.capturable
        self.clinear = operator.clinear
        self._domain, self._range = domain, range

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the forward."""
        return self._applied(self.operator._forward, x, self._domain, out, self._range)

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the adjoint."""
        return self._applied(self.operator._adjoint, y, self._range, out, self._domain)

    def _applied(self, apply: Any, source: Any, given: Any, out: Any, wanted: Any) -> Any:
        comm = self.operator.comm
        target = None if out is None else DistributedArray(wanted, comm, out.reshape(wanted.shape))
        result = apply(DistributedArray(given, comm, source.reshape(given.shape)), target)
        return result.local_array.reshape(-1) if out is None else out


def derivative_of_pylops(op: Any) -> OneRank | None:
    """Return our own form of a derivative of PyLops, which makes no temporaries; ``None`` for other operators."""
    pylops = sys.modules.get("pylops")
    if pylops is None or type(op) not in (pylops.FirstDerivative, pylops.SecondDerivative, pylops.Laplacian):
        return None
    if np.dtype(op.dtype).kind not in "fc":
        return None
    from collops.operators.derivatives import FirstDerivative, Laplacian, SecondDerivative

    dims, common = tuple(map(int, op.dims)), {"comm": alone(), "dtype": op.dtype}
    if type(op) is pylops.FirstDerivative:
        return OneRank(FirstDerivative(dims, op.axis, op.sampling, op.kind, op.edge, op.order, **common))
    if type(op) is pylops.SecondDerivative:
        return OneRank(SecondDerivative(dims, op.axis, op.sampling, op.kind, op.edge, **common))
    return OneRank(Laplacian(dims, op.axes, op.weights, op.sampling, op.edge, op.kind, **common))
