"""The L1 norm: its proximal point is soft thresholding."""

from __future__ import annotations

from typing import Any

from collops.array import axpby
from collops.errors import UnsupportedTypeError
from collops.solvers.problem import check_number
from collops.solvers.proximal.operator import ProxOperator
from collops.solvers.proximal.values import absolute_sum
from collops.solvers.shrinkage import shrink
from collops.solvers.thresholds import Rule

__all__ = ["L1"]


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
        return self._sigma * absolute_sum(x)
