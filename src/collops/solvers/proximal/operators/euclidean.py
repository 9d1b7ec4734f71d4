"""The Euclidean norm: its proximal point is a shorter vector of the same direction."""

from __future__ import annotations

from typing import Any

from collops.array import axpby, divide
from collops.solvers.problem import agreed, check_number
from collops.solvers.proximal.operator import ProxOperator
from collops.solvers.proximal.values import square

__all__ = ["Euclidean"]


class Euclidean(ProxOperator):
    r"""The function :math:`\sigma \|x\|_2`, the norm itself, not its square.

    Parameters
    ----------
    sigma : float
        Not negative.

    Raises
    ------
    InputError
        If `sigma` is negative or no number.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(x) = \Big(1 - \frac{\tau \sigma}{\max(\|x\|_2, \tau \sigma)}\Big) x, \quad
        \mathrm{prox}_{\tau f^*}(x) = \frac{\sigma}{\max(\|x\|_2, \sigma)} x

    A point takes two passes over memory and one scalar allreduce, as a value does.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> x = collops.from_global(np.array([3.0, 4.0]))
    >>> float(collops.Euclidean()(x)), collops.Euclidean().prox(x, 2.5).gather()
    (5.0, array([1.5, 2. ]))
    """

    def __init__(self, sigma: float = 1.0) -> None:
        self._sigma = check_number("sigma", sigma)

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        xp, size = x.engine.xp, tau * self._sigma
        # A vector that vanished stays 0 whatever it is multiplied by.
        return axpby(1 - divide(size, xp.maximum(_norm(x), size)), x, 0.0, x, out=out)

    def _proxdual(self, x: Any, tau: float, out: Any) -> Any:
        return axpby(divide(self._sigma, x.engine.xp.maximum(_norm(x), self._sigma)), x, 0.0, x, out=out)

    def _value(self, x: Any) -> Any:
        return self._sigma * x.norm()


def _norm(x: Any) -> Any:
    """Return the norm, the same to the last bit on ranks that hold copies."""
    return x.engine.xp.sqrt(square(agreed(x)))
