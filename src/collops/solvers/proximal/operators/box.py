"""The box: 0 between two bounds and infinite outside, so that its proximal point is the nearest one inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.errors import InputError, UnsupportedTypeError
from collops.operators.base import new_array
from collops.solvers.proximal.operator import ProxOperator
from collops.solvers.proximal.values import combined
from collops.solvers.shrinkage import shrink
from collops.solvers.thresholds import Rule

__all__ = ["Box"]


class Box(ProxOperator):
    r"""The indicator of :math:`l \le x \le u`: 0 inside, infinite outside. Of real arrays.

    Parameters
    ----------
    lower, upper : float, DistributedArray or StackedArray
        The bounds, for all elements or for each.

    Raises
    ------
    InputError
        If the bounds are numbers and `lower` is above `upper`, or one is NaN.

    Notes
    -----
    One pass over memory and no messages; a value takes one scalar allreduce.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> collops.Box(0, 1).prox(collops.from_global(np.array([-2.0, 0.5, 3.0])), 1.0).gather()
    array([0. , 0.5, 1. ])
    """

    def __init__(self, lower: Any = -np.inf, upper: Any = np.inf) -> None:
        self._arrays = hasattr(lower, "leaves") or hasattr(upper, "leaves")
        if not self._arrays:
            lower, upper = float(lower), float(upper)
            if not lower <= upper:
                raise InputError(f"the box has no element between {lower} and {upper}")
        self._lower, self._upper = lower, upper

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        if not self._arrays:
            return shrink(Rule.CLIP, self._lower, x, upper=self._upper, out=out)
        if x.dtype.kind == "c":
            raise UnsupportedTypeError("complex numbers have no order, so they cannot be clipped")
        if out is None:
            out = new_array(x.layout, x, x.dtype)
        np.maximum(x, self._lower, out=out)
        return np.minimum(out, self._upper, out=out)

    def _prox_of_sum(self, a: float, x: Any, b: float, y: Any, tau: float, out: Any) -> Any:
        if self._arrays:
            return super()._prox_of_sum(a, x, b, y, tau, out)
        return shrink(Rule.CLIP, self._lower, x, a=a, y=y, b=b, upper=self._upper, out=out)

    def _value(self, x: Any) -> Any:
        xp = x.engine.xp
        outside = ((x < self._lower) | (x > self._upper)).leaves
        parts = [xp.where(xp.any(leaf.local_array), np.inf, 0.0) for leaf in outside]
        return combined(x, parts, "max")
