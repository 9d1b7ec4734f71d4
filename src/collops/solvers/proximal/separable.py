"""Functions of each element by itself: the number of elements that are not 0, sums of absolute values, and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.array import axpby
from collops.errors import InputError, UnsupportedTypeError
from collops.solvers.kernels import Rule
from collops.solvers.problem import check_number
from collops.solvers.proximal.operator import ProxOperator, combined, like
from collops.solvers.shrinkage import shrink

__all__ = ["L0", "L1", "Box"]


class L0(ProxOperator):
    r"""The function :math:`\sigma \|x\|_0`: how many elements are not 0. It is not convex.

    Parameters
    ----------
    sigma : float, DistributedArray or StackedArray
        Not negative; as an array, with a real factor for each element.

    Raises
    ------
    InputError
        If `sigma` is a negative number.

    Notes
    -----
    The proximal point keeps the elements above :math:`\sqrt{2 \tau \sigma}` and drops the others. One pass over memory
    and no messages; a value takes one scalar allreduce.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> collops.L0().prox(collops.from_global(np.array([-2.0, 0.5, 3.0])), 1.0).gather()
    array([-2.,  0.,  3.])
    """

    def __init__(self, sigma: Any = 1.0) -> None:
        self._weights = sigma if hasattr(sigma, "leaves") else None
        self._sigma = 1.0 if self._weights is not None else check_number("sigma", sigma)

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        return shrink(Rule.HARD, tau * self._sigma, x, weights=self._weights, out=out)

    def _prox_of_sum(self, a: float, x: Any, b: float, y: Any, tau: float, out: Any) -> Any:
        return shrink(Rule.HARD, tau * self._sigma, x, a=a, y=y, b=b, weights=self._weights, out=out)

    def _value(self, x: Any) -> Any:
        if self._weights is not None:
            return (self._weights * (x != 0)).sum()
        return self._sigma * x.norm(0)


class L1(ProxOperator):
    r"""The function :math:`\sigma \|x - g\|_1`.

    Parameters
    ----------
    sigma : float, DistributedArray or StackedArray
        Not negative; as an array, with a real factor for each element.
    g : DistributedArray or StackedArray, optional
        What is subtracted.

    Raises
    ------
    InputError
        If `sigma` is a negative number.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(x) = g + T_{\tau \sigma}(x - g), \quad
        \mathrm{prox}_{\tau f^*}(x) = P_{|\cdot| \le \sigma}(x - \tau g)

    with :math:`T` soft thresholding and :math:`P` the projection; of complex numbers along their phase. One pass over
    memory and no messages; a value takes one scalar allreduce.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> collops.L1().prox(collops.from_global(np.array([-2.0, 0.5, 3.0])), 1.0).gather()
    array([-1.,  0.,  2.])
    """

    def __init__(self, sigma: Any = 1.0, g: Any = None) -> None:
        self._weights = sigma if hasattr(sigma, "leaves") else None
        self._sigma = 1.0 if self._weights is not None else check_number("sigma", sigma)
        if g is not None and not hasattr(g, "leaves"):
            raise UnsupportedTypeError(f"g must be a distributed array, not {type(g).__qualname__}")
        self._g = g

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        if self._g is None:
            return shrink(Rule.SOFT, tau * self._sigma, x, weights=self._weights, out=out)
        out = shrink(Rule.SOFT, tau * self._sigma, x, y=self._g, b=-1.0, weights=self._weights, out=out)
        return axpby(1.0, self._g, 1.0, out, out=out)

    def _prox_of_sum(self, a: float, x: Any, b: float, y: Any, tau: float, out: Any) -> Any:
        if self._g is not None:
            return super()._prox_of_sum(a, x, b, y, tau, out)
        return shrink(Rule.SOFT, tau * self._sigma, x, a=a, y=y, b=b, weights=self._weights, out=out)

    def _proxdual(self, x: Any, tau: float, out: Any) -> Any:
        return shrink(
            Rule.PROJECT,
            self._sigma,
            x,
            y=self._g,
            b=0.0 if self._g is None else -tau,
            weights=self._weights,
            out=out,
        )

    def _value(self, x: Any) -> Any:
        if self._g is not None:
            x = x - self._g
        if self._weights is not None:
            x = self._weights * x
        return self._sigma * x.norm(1)


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
        above = np.maximum(x, self._lower, out=like(x, out))
        return np.minimum(above, self._upper, out=above)

    def _prox_of_sum(self, a: float, x: Any, b: float, y: Any, tau: float, out: Any) -> Any:
        if self._arrays:
            return super()._prox_of_sum(a, x, b, y, tau, out)
        return shrink(Rule.CLIP, self._lower, x, a=a, y=y, b=b, upper=self._upper, out=out)

    def _value(self, x: Any) -> Any:
        xp = x.engine.xp
        outside = ((x < self._lower) | (x > self._upper)).leaves
        parts = [xp.where(xp.any(leaf.local_array), np.inf, 0.0) for leaf in outside]
        return combined(x, parts, "max")
