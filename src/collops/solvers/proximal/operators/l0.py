"""The number of elements that are not 0: its proximal point is hard thresholding."""

from __future__ import annotations

from typing import Any

from collops.solvers.problem import check_number
from collops.solvers.proximal.operator import ProxOperator
from collops.solvers.shrinkage import shrink
from collops.solvers.thresholds import Rule

__all__ = ["L0"]


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
