"""Functions of distributed arrays with proximal points: the base class, and combinations of functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from collops.array import Array, axpby, dots
from collops.array.operands import check_alike
from collops.errors import InputError, UnsupportedTypeError, type_name
from collops.operators.base import AnyLayout
from collops.operators.memory import new_array
from collops.solvers.problem import check_number
from collops.solvers.state import Scalar


class ProxOperator:
    r"""A function :math:`f` of distributed arrays whose proximal points can be computed.

    Subclasses implement ``_prox(x, tau, out)`` or ``_proxdual(x, tau, out)``: by default each follows from the other by
    Moreau's identity. They return the result, for which they may use the memory of `out`: ``None``, an array like `x`,
    or `x` itself. Functions with values and gradients also implement ``_value(x)`` and ``_grad(x, out)``. A class that
    computes the proximal point of ``a * x + b * y`` in one pass implements ``_prox_of_sum``. Constructors raise
    InputError, UnsupportedTypeError or LayoutError if an option has the wrong value, type or layout.

    Attributes
    ----------
    has_gradient : bool
        Whether :math:`f` is differentiable and :meth:`grad` computes its gradient.
    capturable : bool
        Whether a solver may record the work once and replay it as a CUDA graph.

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(x) = \arg\min_y f(y) + \frac{1}{2 \tau} \|y - x\|_2^2

    The convex conjugate is :math:`f^*(y) = \sup_x \langle x, y \rangle - f(x)`. Its proximal points follow from
    Moreau's identity [Parikh and Boyd 2014, 2.5; Beck 2017, 6.6],

    .. math:: \mathrm{prox}_{\tau f^*}(x) = x - \tau\, \mathrm{prox}_{f / \tau}(x / \tau).

    Examples
    --------
    >>> import collops
    >>> f = collops.L1(2.0)
    >>> isinstance(f, collops.ProxOperator), float(f(collops.ones(3))), f.prox(collops.full(3, 5.0), 1.0).gather()
    (True, 6.0, array([3., 3., 3.]))
    """

    has_gradient = False
    capturable = True

    # Implemented by subclasses

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        # `out` may be `x`, so that x / tau needs separate memory.
        dual = self._proxdual(axpby(1 / tau, x, 0.0, x), 1 / tau, None)
        return axpby(-tau, dual, 1.0, x, out=out)

    def _proxdual(self, x: Array, tau: float, out: Array | None) -> Array:
        point = self._prox(axpby(1 / tau, x, 0.0, x), 1 / tau, None)
        return axpby(-tau, point, 1.0, x, out=out)

    def _prox_of_sum(self, a: float, x: Array, b: float, y: Any, tau: float, out: Array | None) -> Array:
        """Return the proximal point of ``a * x + b * y``."""
        moved = axpby(a, x, b, y, out=out)
        return self._prox(moved, tau, moved)

    def _value(self, x: Array) -> Scalar:
        raise UnsupportedTypeError(f"{type(self).__name__} does not implement values")

    def _grad(self, x: Array, out: Array | None) -> Array:
        raise UnsupportedTypeError(f"{type(self).__name__} does not implement a gradient")

    def _remembered(self) -> dict[str, AnyLayout | None]:
        """Return the attributes that calls change, for checkpoints: layouts of arrays, ``None`` for numbers."""
        return {}

    # Application

    def __call__(self, x: Array) -> Scalar:
        """Return the value at `x`, infinite outside the domain. Collective: at most one scalar allreduce.

        The operators in the function send their own messages. The value is a real 0-d array or a scalar of the engine;
        the call does not synchronise with the device.
        """
        _check_array(self, x)
        return self._value(x)

    def prox(self, x: Array, tau: float, out: Array | None = None) -> Array:
        """Return the proximal point for a positive `tau`. Collective where the function is not separable.

        `out` is memory for the result; it may be `x`.

        Raises
        ------
        InputError, UnsupportedTypeError, LayoutError
            If `tau` is not positive, or the function is not defined for the elements or the layout of `x`.
        """
        _check_array(self, x, out)
        return self._prox(x, check_step(tau), out)

    def proxdual(self, x: Array, tau: float, out: Array | None = None) -> Array:
        r"""Return the proximal point of the convex conjugate, :math:`\mathrm{prox}_{\tau f^*}(x)`. See :meth:`prox`."""
        _check_array(self, x, out)
        return self._proxdual(x, check_step(tau), out)

    def grad(self, x: Array, out: Array | None = None) -> Array:
        """Return the gradient at `x`; `out` must not be `x`. Collective: the messages of the operators in the function.

        Raises UnsupportedTypeError if the function has no gradient.
        """
        _check_array(self, x, out)
        return self._grad(x, out)

    # Algebra [Parikh and Boyd 2014, 2.2; Combettes and Pesquet 2011, table 10.1]

    def postcomposition(self, sigma: float) -> ProxOperator:
        r"""Return :math:`\sigma f(x)` for a positive number, also written ``sigma * f``."""
        return PostComposition(self, sigma)

    def precomposition(self, a: float, b: float | Array = 0.0) -> ProxOperator:
        """Return :math:`f(a x + b)` for a number `a` other than 0, and a number or an array `b`."""
        return PreComposition(self, a, b)

    def affine_addition(self, v: Array) -> ProxOperator:
        r"""Return :math:`f(x) + \mathrm{Re}(v^H x)` for an array `v`, also written ``f + v``.

        A value takes two scalar allreduces.
        """
        return AffineAddition(self, v)

    def chain(self, g: ProxOperator) -> ProxOperator:
        r"""Return :math:`f + g`, with the proximal point :math:`\mathrm{prox}_{\tau g}(\mathrm{prox}_{\tau f}(x))`.

        This equals the proximal point of the sum for some pairs only, such as `L1` and `L21`.
        """
        return Chain(self, g)

    def conjugate(self) -> ProxOperator:
        """Return the convex conjugate, with the proximal points of :meth:`proxdual`. It does not implement values."""
        return Conjugate(self)

    def __mul__(self, sigma: float) -> ProxOperator:
        return PostComposition(self, sigma) if isinstance(sigma, Real) else NotImplemented

    __rmul__ = __mul__

    def __add__(self, v: Array) -> ProxOperator:
        return self.affine_addition(v) if hasattr(v, "leaves") else NotImplemented

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class Composition(ProxOperator):
    """A function derived from a function `f`, with a gradient if `f` has one."""

    def __init__(self, f: ProxOperator) -> None:
        self._f = f
        self.has_gradient, self.capturable = f.has_gradient, f.capturable


class PostComposition(Composition):
    r""":math:`h(x) = \sigma f(x)`: :math:`\mathrm{prox}_{\tau h}(x) = \mathrm{prox}_{\sigma \tau f}(x)`."""

    def __init__(self, f: ProxOperator, sigma: float) -> None:
        super().__init__(f)
        self._sigma = check_step(sigma, "sigma")

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        return self._f._prox(x, check_step(self._sigma * tau), out)

    def _prox_of_sum(self, a: float, x: Array, b: float, y: Array, tau: float, out: Array | None) -> Array:
        return self._f._prox_of_sum(a, x, b, y, check_step(self._sigma * tau), out)

    def _value(self, x: Array) -> Scalar:
        return self._sigma * self._f._value(x)

    def _grad(self, x: Array, out: Array | None) -> Array:
        gradient = self._f._grad(x, out)
        return axpby(self._sigma, gradient, 0.0, gradient, out=gradient)


class PreComposition(Composition):
    r""":math:`h(x) = f(a x + b)`: :math:`\mathrm{prox}_{\tau h}(x) = (\mathrm{prox}_{a^2 \tau f}(a x + b) - b) / a`."""

    def __init__(self, f: ProxOperator, a: float, b: float | Array) -> None:
        super().__init__(f)
        a = _plain(a)
        if not isinstance(a, Real) or not 0 < a * a <= sys.float_info.max:
            raise InputError(f"a must be a number with a finite nonzero square, not {a!r}")
        self._a = float(a)
        self._b: Any = b if hasattr(b, "leaves") else check_number("b", b, smallest=-sys.float_info.max)

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        a, b, tau = self._a, self._b, check_step(self._a * self._a * tau)
        if hasattr(b, "leaves"):
            point = self._f._prox_of_sum(a, x, 1.0, b, tau, out)
            return axpby(1 / a, point, -1 / a, b, out=point)
        moved = axpby(a, x, 0.0, x, out=out)
        moved += b
        point = self._f._prox(moved, tau, moved)
        point -= b
        return axpby(1 / a, point, 0.0, point, out=point)

    def _value(self, x: Array) -> Scalar:
        return self._f._value(self._a * x + self._b)

    def _grad(self, x: Array, out: Array | None) -> Array:
        gradient = self._f._grad(self._a * x + self._b, out)
        return axpby(self._a, gradient, 0.0, gradient, out=gradient)


class AffineAddition(Composition):
    r""":math:`h(x) = f(x) + \mathrm{Re}(v^H x)`, with the proximal point of f at :math:`x - \tau v`."""

    def __init__(self, f: ProxOperator, v: Array) -> None:
        super().__init__(f)
        if not hasattr(v, "leaves"):
            raise UnsupportedTypeError(f"v must be a distributed array, not {type(v).__qualname__}")
        self._v = v

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        return self._f._prox_of_sum(1.0, x, -tau, self._v, tau, out)

    def _value(self, x: Array) -> Scalar:
        return self._f._value(x) + inner(self._v, x)

    def _grad(self, x: Array, out: Array | None) -> Array:
        gradient = self._f._grad(x, out)
        return axpby(1.0, self._v, 1.0, gradient, out=gradient)


class Chain(ProxOperator):
    """The sum of two functions; its proximal point applies the proximal operator of the first, then of the second."""

    def __init__(self, f: ProxOperator, g: ProxOperator) -> None:
        check_function("g", g)
        self._f, self._g = f, g
        self.capturable = f.capturable and g.capturable

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        point = self._f._prox(x, tau, out)
        return self._g._prox(point, tau, point)

    def _prox_of_sum(self, a: float, x: Array, b: float, y: Array, tau: float, out: Array | None) -> Array:
        point = self._f._prox_of_sum(a, x, b, y, tau, out)
        return self._g._prox(point, tau, point)

    def _value(self, x: Array) -> Scalar:
        return self._f._value(x) + self._g._value(x)


class Conjugate(ProxOperator):
    """The convex conjugate of a convex function."""

    def __init__(self, f: ProxOperator) -> None:
        self._f = f
        self.capturable = f.capturable

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        return self._f._proxdual(x, tau, out)

    def _proxdual(self, x: Array, tau: float, out: Array | None) -> Array:
        return self._f._prox(x, tau, out)


def check_function(name: str, function: object) -> None:
    """Raise UnsupportedTypeError unless a function is a proximal operator."""
    if not isinstance(function, ProxOperator):
        raise UnsupportedTypeError(
            f"{name} must be a proximal operator, not {type_name(function)}; "
            "collops.solvers.proximal.lift_proximal makes one from an operator on local arrays"
        )


def check_step(tau: Scalar, name: str = "tau") -> float:
    """Return a step size as a float; raise InputError if it is not positive and finite."""
    tau = _plain(tau)
    if isinstance(tau, Real) and 0 < tau <= sys.float_info.max:  # pyright: ignore[reportOperatorIssue]
        return float(tau)
    raise InputError(f"{name} must be a positive number, not {tau!r}")


def _plain(number: Scalar) -> Scalar:
    """Return a NumPy scalar as a Python number: single precision cannot be compared with large numbers."""
    return number.item() if isinstance(number, np.generic) else number


def like(x: Array, out: Array | None) -> Array:
    """Return `out`, or a new array like `x` if it is ``None``."""
    return new_array(x.layout, x, x.dtype) if out is None else out


def inner(v: Array, x: Array) -> Scalar:
    """Return the real part of the inner product. Collective."""
    return dots((v, x))[0].real


def total(x: Array, parts: Sequence[Scalar]) -> Scalar:
    """Return the sum over all ranks of one number for each leaf of `x` on this rank. Collective: one allreduce."""
    xp, plan = x.engine.xp, x._plan
    counted = [xp.asarray(part, dtype="float64") for part, counts in zip(parts, plan.counted, strict=True) if counts]
    value: Scalar = sum(counted, start=xp.zeros((), "float64"))
    if plan.communicator is not None:
        value = plan.communicator.allreduce(xp.asarray(value), "sum")
    return value[()]


def _check_array(operator: ProxOperator, x: Array, out: Array | None = None) -> None:
    if not hasattr(x, "leaves"):
        raise UnsupportedTypeError(f"{type(operator).__name__} needs a distributed array, not {type_name(x)}")
    if out is not None:
        check_alike(x, out)
