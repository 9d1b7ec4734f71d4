"""Functions made of functions: scaled, shifted, with a linear term, chained, and the convex conjugate."""

from __future__ import annotations

from typing import Any

from collops.array import axpby
from collops.errors import InputError, UnsupportedTypeError
from collops.solvers.problem import check_number
from collops.solvers.proximal.operator import ProxOperator, inner

__all__ = ["AffineAddition", "Chain", "Conjugate", "PostComposition", "PreComposition"]


class PostComposition(ProxOperator):
    r"""The function :math:`\sigma f(x)`.

    Parameters
    ----------
    f : ProxOperator
        The function.
    sigma : float
        Positive.

    Raises
    ------
    InputError
        If `sigma` is not positive.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau g}(x) = \mathrm{prox}_{\sigma \tau f}(x)

    Examples
    --------
    >>> import collops
    >>> f = 2 * collops.L1()
    >>> type(f).__name__, float(f(collops.ones(3)))
    ('PostComposition', 6.0)
    """

    def __init__(self, f: ProxOperator, sigma: float) -> None:
        self._f = _checked(f)
        self._sigma = check_number("sigma", sigma)
        if not self._sigma:
            raise InputError("sigma must be positive: 0 times a function has no use")
        self.has_gradient, self.capturable = f.has_gradient, f.capturable

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        return self._f._prox(x, self._sigma * tau, out)

    def _prox_of_sum(self, a: float, x: Any, b: float, y: Any, tau: float, out: Any) -> Any:
        return self._f._prox_of_sum(a, x, b, y, self._sigma * tau, out)

    def _value(self, x: Any) -> Any:
        return self._sigma * self._f._value(x)

    def _grad(self, x: Any, out: Any) -> Any:
        gradient = self._f._grad(x, out)
        return axpby(self._sigma, gradient, 0.0, gradient, out=gradient)


class PreComposition(ProxOperator):
    r"""The function :math:`f(a x + b)`.

    Parameters
    ----------
    f : ProxOperator
        The function.
    a : float
        Not 0.
    b : float, DistributedArray or StackedArray
        What is added, to all elements or to each.

    Raises
    ------
    InputError
        If `a` is 0 or no number.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau g}(x) = \frac{1}{a} \big(\mathrm{prox}_{a^2 \tau f}(a x + b) - b\big)

    Examples
    --------
    >>> import collops
    >>> from collops.solvers.proximal import PreComposition
    >>> f = PreComposition(collops.L1(), 2.0, b=1.0)  # of 2 x + 1
    >>> float(f(collops.ones(3)))
    9.0
    """

    def __init__(self, f: ProxOperator, a: float, b: Any = 0.0) -> None:
        self._f = _checked(f)
        self._a = float(a)
        if not 0 < abs(self._a) < float("inf"):
            raise InputError(f"a must be a finite number other than 0, not {a!r}")
        self._b: Any = b if hasattr(b, "leaves") else float(b)
        self.has_gradient, self.capturable = f.has_gradient, f.capturable

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        a, tau = self._a, self._a**2 * tau
        b: Any = self._b
        if not hasattr(b, "leaves"):
            moved = axpby(a, x, 0.0, x, out=out)
            moved += b
            point = self._f._prox(moved, tau, moved)
            point -= b
            return axpby(1 / a, point, 0.0, point, out=point)
        point = self._f._prox_of_sum(a, x, 1.0, b, tau, out)
        return axpby(1 / a, point, -1 / a, b, out=point)

    def _value(self, x: Any) -> Any:
        return self._f._value(self._moved(x))

    def _grad(self, x: Any, out: Any) -> Any:
        gradient = self._f._grad(self._moved(x), out)
        return axpby(self._a, gradient, 0.0, gradient, out=gradient)

    def _moved(self, x: Any) -> Any:
        return self._a * x + self._b


class AffineAddition(ProxOperator):
    r"""The function :math:`f(x) + v^H x`; of complex arrays with the real part of the product.

    Parameters
    ----------
    f : ProxOperator
        The function.
    v : DistributedArray or StackedArray
        The vector.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau g}(x) = \mathrm{prox}_{\tau f}(x - \tau v)

    A value takes two scalar allreduces.

    Examples
    --------
    >>> import collops
    >>> from collops.solvers.proximal import AffineAddition
    >>> f = AffineAddition(collops.L1(), collops.ones(2))  # the 1-norm, and the sum of the elements
    >>> float(f(collops.full(2, -3.0)))
    0.0
    """

    def __init__(self, f: ProxOperator, v: Any) -> None:
        self._f = _checked(f)
        if not hasattr(v, "leaves"):
            raise UnsupportedTypeError(f"v must be a distributed array, not {type(v).__qualname__}")
        self._v = v
        self.has_gradient, self.capturable = f.has_gradient, f.capturable

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        return self._f._prox_of_sum(1.0, x, -tau, self._v, tau, out)

    def _value(self, x: Any) -> Any:
        return self._f._value(x) + inner(self._v, x)

    def _grad(self, x: Any, out: Any) -> Any:
        gradient = self._f._grad(x, out)
        return axpby(1.0, self._v, 1.0, gradient, out=gradient)


class Chain(ProxOperator):
    r"""The function whose proximal point is that of `g` at that of `f`.

    Parameters
    ----------
    f, g : ProxOperator
        The functions.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau (f + g)}(x) = \mathrm{prox}_{\tau g}(\mathrm{prox}_{\tau f}(x))

    That is right for some pairs only. A value is the sum of both.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers.proximal import Chain
    >>> f = Chain(collops.Box(lower=0), collops.L1())  # shrink, then clip
    >>> f.prox(collops.from_global(np.array([-2.0, 0.5, 3.0])), 1.0).gather()
    array([0., 0., 2.])
    """

    def __init__(self, f: ProxOperator, g: ProxOperator) -> None:
        self._f, self._g = _checked(f), _checked(g)
        self.capturable = f.capturable and g.capturable

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        point = self._f._prox(x, tau, out)
        return self._g._prox(point, tau, point)

    def _prox_of_sum(self, a: float, x: Any, b: float, y: Any, tau: float, out: Any) -> Any:
        point = self._f._prox_of_sum(a, x, b, y, tau, out)
        return self._g._prox(point, tau, point)

    def _value(self, x: Any) -> Any:
        return self._f._value(x) + self._g._value(x)


class Conjugate(ProxOperator):
    r"""The convex conjugate :math:`f^*(y) = \sup_x \langle x, y \rangle - f(x)`. It has no value.

    Parameters
    ----------
    f : ProxOperator
        A convex function.

    Notes
    -----
    Moreau: :math:`\mathrm{prox}_{\tau f^*}(x) = x - \tau\, \mathrm{prox}_{f / \tau}(x / \tau)`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers.proximal import Conjugate
    >>> Conjugate(collops.L1()).prox(collops.from_global(np.array([-2.0, 0.5, 3.0])), 1.0).gather()
    array([-1. ,  0.5,  1. ])
    """

    def __init__(self, f: ProxOperator) -> None:
        self._f = _checked(f)
        self.capturable = f.capturable

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        return self._f._proxdual(x, tau, out)

    def _proxdual(self, x: Any, tau: float, out: Any) -> Any:
        return self._f._prox(x, tau, out)


def _checked(f: Any) -> ProxOperator:
    if not isinstance(f, ProxOperator):
        raise UnsupportedTypeError(
            f"expected a proximal operator of collops, not {type(f).__module__}.{type(f).__qualname__}; "
            "collops.solvers.proximal.lift_proximal makes one of an operator of local arrays"
        )
    return f
