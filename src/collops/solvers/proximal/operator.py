"""Proximal operators: functions of distributed arrays whose proximal points can be computed."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from collops.array import axpby, dots
from collops.array.operands import check_alike
from collops.errors import InputError, UnsupportedTypeError
from collops.operators.base import new_array

__all__ = ["ProxOperator", "check_step", "combined", "inner", "like"]


class ProxOperator:
    r"""A function :math:`f` of distributed arrays.

    Subclasses implement ``_prox(x, tau, out)`` or ``_proxdual(x, tau, out)``, or both: each follows from the other.
    They may use the memory of `out`, an array like `x` or `x` itself, and return the result. Subclasses with values and
    gradients implement ``_value(x)`` and ``_grad(x, out)``.

    Attributes
    ----------
    has_gradient : bool
        Whether :math:`f` is differentiable and :meth:`grad` computes its gradient.
    capturable : bool
        Whether a solver may record the work once and replay it (a CUDA graph).

    Notes
    -----
    .. math:: \mathrm{prox}_{\tau f}(x) = \arg\min_y f(y) + \frac{1}{2 \tau} \|y - x\|_2^2

    Examples
    --------
    >>> import collops
    >>> f = collops.L1(2.0)
    >>> isinstance(f, collops.ProxOperator), float(f(collops.ones(3))), f.prox(collops.full(3, 5.0), 1.0).gather()
    (True, 6.0, array([3., 3., 3.]))
    """

    has_gradient = False
    capturable = True

    # What subclasses provide

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        # Moreau's identity; out may be x, so that x / tau needs memory of its own.
        dual = self._proxdual(axpby(1 / tau, x, 0.0, x), 1 / tau, None)
        return axpby(-tau, dual, 1.0, x, out=out)

    def _proxdual(self, x: Any, tau: float, out: Any) -> Any:
        point = self._prox(axpby(1 / tau, x, 0.0, x), 1 / tau, None)
        return axpby(-tau, point, 1.0, x, out=out)

    def _prox_of_sum(self, a: float, x: Any, b: float, y: Any, tau: float, out: Any) -> Any:
        """Return the proximal point of ``a * x + b * y``; in one pass where the operator can."""
        moved = axpby(a, x, b, y, out=out)
        return self._prox(moved, tau, moved)

    def _value(self, x: Any) -> Any:
        raise UnsupportedTypeError(f"{type(self).__name__} has no value")

    def _remembered(self) -> dict[str, Any]:
        """Return the attributes that calls leave to later ones, with the layouts of arrays, ``None`` for others."""
        return {}

    def _grad(self, x: Any, out: Any) -> Any:
        raise UnsupportedTypeError(f"{type(self).__name__} has no gradient")

    # Application

    def __call__(self, x: Any) -> Any:
        """Return the function's value. Collective: at most one scalar allreduce, and the messages of operators in it.

        Parameters
        ----------
        x : DistributedArray or StackedArray
            Where.

        Returns
        -------
        0-d array or scalar
            Of the engine; infinite outside the domain of the function. Does not synchronise with the device.
        """
        _check_array(self, x)
        return self._value(x)

    def prox(self, x: Any, tau: float, out: Any = None) -> Any:
        """Return the proximal point. Collective where the function is not separable.

        Parameters
        ----------
        x : DistributedArray or StackedArray
            Where.
        tau : float
            Positive.
        out : DistributedArray or StackedArray, optional
            Memory for the result; may be `x`.

        Raises
        ------
        InputError
            If `tau` is not positive.
        UnsupportedTypeError
            If `x` is no distributed array, or the function is not defined for its elements.
        LayoutError
            If `x` does not have the layout of the operator's own arrays, or `out` not that of `x`.
        """
        _check_array(self, x, out)
        return self._prox(x, check_step(tau), out)

    def proxdual(self, x: Any, tau: float, out: Any = None) -> Any:
        r"""Return the proximal point of the convex conjugate, :math:`\mathrm{prox}_{\tau f^*}(x)`. See :meth:`prox`."""
        _check_array(self, x, out)
        return self._proxdual(x, check_step(tau), out)

    def grad(self, x: Any, out: Any = None) -> Any:
        """Return the gradient. Collective: what the operator in the function sends.

        Parameters
        ----------
        x : DistributedArray or StackedArray
            Where.
        out : DistributedArray or StackedArray, optional
            Memory for the result; another array than `x`.

        Raises
        ------
        UnsupportedTypeError
            If the function has none.
        """
        _check_array(self, x, out)
        return self._grad(x, out)

    # Algebra

    def postcomposition(self, sigma: float) -> ProxOperator:
        r"""Return :math:`\sigma f(x)`."""
        from collops.solvers.proximal.compositions import PostComposition

        return PostComposition(self, sigma)

    def precomposition(self, a: float, b: Any = 0.0) -> ProxOperator:
        """Return :math:`f(a x + b)`; `b` is a number or an array."""
        from collops.solvers.proximal.compositions import PreComposition

        return PreComposition(self, a, b)

    def affine_addition(self, v: Any) -> ProxOperator:
        """Return :math:`f(x) + v^H x`; of complex arrays the real part of the product."""
        from collops.solvers.proximal.compositions import AffineAddition

        return AffineAddition(self, v)

    def chain(self, g: ProxOperator) -> ProxOperator:
        r"""Return the function with the proximal point :math:`\mathrm{prox}_g(\mathrm{prox}_f(x))`.

        For some pairs, such as `L1` and `L21`, it is the sum.
        """
        from collops.solvers.proximal.compositions import Chain

        return Chain(self, g)

    def conjugate(self) -> ProxOperator:
        """Return the convex conjugate, whose proximal points are those of :meth:`proxdual`. It has no value."""
        from collops.solvers.proximal.compositions import Conjugate

        return Conjugate(self)

    def __mul__(self, sigma: Any) -> ProxOperator:
        return self.postcomposition(float(sigma)) if isinstance(sigma, Real) else NotImplemented

    __rmul__ = __mul__

    def __add__(self, v: Any) -> ProxOperator:
        return self.affine_addition(v) if hasattr(v, "leaves") else NotImplemented

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def check_step(tau: Any, name: str = "tau") -> float:
    """Return a step size as a float.

    Raises
    ------
    InputError
        If it is not positive and finite.
    """
    if isinstance(tau, Real | np.generic) and 0 < float(tau) < float("inf"):  # pyright: ignore[reportArgumentType]
        return float(tau)  # pyright: ignore[reportArgumentType]
    raise InputError(f"{name} must be a positive number, not {tau!r}")


def like(x: Any, out: Any) -> Any:
    """Return `out`, or a new array like `x` if there is none."""
    return new_array(x.layout, x, x.dtype) if out is None else out


def inner(v: Any, x: Any) -> Any:
    """Return the real part of the inner product. Collective."""
    return dots((v, x))[0].real


def combined(x: Any, parts: Any, op: str = "sum") -> Any:
    """Return the sum, or another combination, of one number for each leaf and rank. Collective: one allreduce.

    Parameters
    ----------
    x : DistributedArray or StackedArray
        Whose leaves the numbers are of.
    parts : sequence of 0-d array
        This rank's, one for each leaf.
    op : str
        ``"sum"``, ``"min"`` or ``"max"``.
    """
    xp, plan = x.engine.xp, x._plan
    counted = [part for part, counts in zip(parts, plan.counted, strict=True) if counts or op != "sum"]
    total = xp.zeros((), "float64")
    if counted:
        total = getattr(xp, op)(xp.stack([xp.asarray(part, dtype="float64") for part in counted]))
    if plan.communicator is not None:
        total = plan.communicator.allreduce(xp.asarray(total), op)
    return total[()]


def _check_array(operator: ProxOperator, x: Any, out: Any = None) -> None:
    if not hasattr(x, "leaves"):
        raise UnsupportedTypeError(
            f"{type(operator).__name__} is of distributed arrays, not of {type(x).__module__}.{type(x).__qualname__}"
        )
    if out is not None:
        check_alike(x, out)
