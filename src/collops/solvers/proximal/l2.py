"""The squared L2 norm of a misfit, whose proximal point is a damped least-squares solution, and such inner solutions.

Inner solvers do a fixed number of iterations, so that none of them waits for a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collops.array import DistributedArray, StackedArray, axpby, dots
from collops.errors import LayoutError, UnsupportedTypeError
from collops.operators import LinearOperator
from collops.operators.base import Buffers
from collops.solvers.cg import CG
from collops.solvers.cgls import CGLS
from collops.solvers.problem import check_count, check_number, rank_consistent, real_dtype
from collops.solvers.proximal.operator import ProxOperator, inner, like

__all__ = ["L2", "least_squares"]

_ROUNDING = 4
"""Gradients below so many units of rounding are treated as 0: beyond that, iterations would only amplify them."""


class L2(ProxOperator):
    r"""The function :math:`\frac{\sigma}{2} \|A x - b\|_2^2 + \alpha\, q^H x`.

    Parameters
    ----------
    Op : LinearOperator, optional
        The operator :math:`A`; the identity by default.
    b : DistributedArray or StackedArray, optional
        The data; 0 by default.
    q : DistributedArray or StackedArray, optional
        The vector of a linear term; of complex arrays the real part of the product counts.
    sigma, alpha : float
        Factors, not negative.
    qgrad : bool
        Whether the gradient has the linear term.
    niter : int or callable
        With an operator: how many iterations of conjugate gradients find the proximal point; or a function that returns
        it from the number of points found before.
    x0 : DistributedArray or StackedArray, optional
        Where the first search starts; zero by default.
    warm : bool
        Whether each search starts at the proximal point found before, rather than at `x0`.

    Raises
    ------
    UnsupportedTypeError
        If `Op` is no distributed operator.
    LayoutError
        If `b`, `q` or `x0` has not the layout that `Op` asks for.
    InputError
        If an option is invalid.

    Notes
    -----
    .. math:: (I + \tau \sigma A^H A)\, \mathrm{prox}_{\tau f}(x) = x + \tau \sigma A^H b - \tau \alpha q

    Without an operator that is one or two passes over memory, and no message. With one, an iteration sends the messages
    of `Op` and its adjoint and two scalar allreduces, after two of its own; there are always `niter` iterations, so
    that the host need not wait for the device. Each is that of conjugate gradients on the normal equations, which
    PyProximal calls ``solver="cg"`` and, by another arithmetic, ``solver="cgls"``.

    Examples
    --------
    >>> import collops
    >>> f = collops.L2(b=collops.ones(3))
    >>> f.prox(collops.full(3, 3.0), 1.0).gather()
    array([2., 2., 2.])
    """

    has_gradient = True

    def __init__(
        self,
        Op: LinearOperator | None = None,
        b: Any = None,
        q: Any = None,
        sigma: float = 1.0,
        alpha: float = 1.0,
        qgrad: bool = True,
        niter: int | Callable[[int], int] = 10,
        x0: Any = None,
        warm: bool = True,
    ) -> None:
        if Op is not None and not isinstance(Op, LinearOperator):
            raise UnsupportedTypeError(f"Op must be a distributed operator, not {type(Op).__qualname__}")
        if Op is not None:
            for name, array, layout in (("b", b, Op.range), ("q", q, Op.domain), ("x0", x0, Op.domain)):
                if array is None:
                    continue
                if not isinstance(array, DistributedArray | StackedArray):
                    raise UnsupportedTypeError(f"{name} must be a distributed array, not {type(array).__qualname__}")
                if array.layout is not layout:
                    raise LayoutError(f"{name} must have the layout {layout}, not {array.layout}")
        self._operator, self._b, self._q, self._x0 = Op, b, q, x0
        self._sigma, self._alpha = check_number("sigma", sigma), check_number("alpha", alpha)
        self._qgrad, self._warm = bool(qgrad), bool(warm)
        self._niter = niter if callable(niter) else check_count("niter", niter)
        self._points = 0
        self._last: Any = None
        self._adjoint_data: Any = None
        self._buffers = Buffers()
        self._normal = None if Op is None else Op.H @ Op
        self.capturable = Op is None or (Op.capturable and not callable(niter))

    def _remembered(self) -> dict[str, Any]:
        return {} if self._operator is None else {"_last": self._operator.domain, "_points": None}

    def _prox(self, x: Any, tau: float, out: Any) -> Any:
        if self._operator is None:
            return self._closed(1.0, x, 0.0, x, tau, out)
        return self._searched(x, tau, like(x, out))

    def _prox_of_sum(self, a: float, x: Any, b: float, y: Any, tau: float, out: Any) -> Any:
        if self._operator is None:
            return self._closed(a, x, b, y, tau, out)
        return super()._prox_of_sum(a, x, b, y, tau, out)

    def _closed(self, a: float, x: Any, b: float, y: Any, tau: float, out: Any) -> Any:
        """Return the point without an operator."""
        scale = 1 / (1 + tau * self._sigma)
        point = axpby(a * scale, x, b * scale, y, out=out)
        if self._b is not None:
            point = axpby(tau * self._sigma * scale, self._b, 1.0, point, out=point)
        if self._q is not None:
            point = axpby(-tau * self._alpha * scale, self._q, 1.0, point, out=point)
        return point

    def _searched(self, x: Any, tau: float, out: Any) -> Any:
        """Return the point with an operator, divided through by ``tau * sigma``."""
        assert self._normal is not None
        damp = tau * self._sigma
        if not damp:
            return self._closed(1.0, x, 0.0, x, tau, out)
        right = self._buffers.get("right", x.layout, x, x.dtype)
        right = axpby(1 / damp, x, 0.0, x, out=right)
        if self._b is not None:
            right = axpby(1.0, self._data_back(x), 1.0, right, out=right)
        if self._q is not None:
            right = axpby(-self._alpha / self._sigma, self._q, 1.0, right, out=right)
        start = self._x0 if self._last is None else self._last
        niter = self._niter(self._points) if callable(self._niter) else self._niter
        point = _positive_definite(self._normal, right, start, 1 / damp, niter)
        self._points += 1
        if self._warm:
            # Always the same memory, so that a replayed search starts where the one before it ended.
            self._last = point if self._last is None else axpby(1.0, point, 0.0, point, out=self._last)
        return axpby(1.0, point, 0.0, point, out=out)

    def _data_back(self, like: Any) -> Any:
        """Return ``A^H b``, computed once."""
        if self._adjoint_data is None:
            self._adjoint_data = self._operator.adjoint(self._b)  # pyright: ignore[reportOptionalMemberAccess]
        return self._adjoint_data

    def _misfit(self, x: Any) -> Any:
        """Return ``A x - b``, in a buffer where there is an operator."""
        image = x
        if self._operator is not None:
            dtype = np.result_type(x.dtype, self._operator.dtype) if self._operator.dtype.kind == "c" else x.dtype
            image = self._buffers.get("image", self._operator.range, x, dtype)
            image = self._operator._forward(x, image)
        if self._b is None:
            return image
        return axpby(1.0, image, -1.0, self._b, out=None if image is x else image)

    def _value(self, x: Any) -> Any:
        misfit = self._misfit(x)
        value = 0.5 * self._sigma * dots((misfit, misfit))[0]
        return value if self._q is None else value + self._alpha * inner(self._q, x)

    def _grad(self, x: Any, out: Any) -> Any:
        misfit = self._misfit(x)
        if self._operator is not None:
            out = like(x, out)
            misfit = self._operator._adjoint(misfit, out)
        gradient = axpby(self._sigma, misfit, 0.0, misfit, out=like(x, out))
        if self._q is not None and self._qgrad:
            gradient = axpby(self._alpha, self._q, 1.0, gradient, out=gradient)
        return gradient


def _positive_definite(operator: LinearOperator, right: Any, start: Any, damp: float, niter: int) -> Any:
    """Return the solution of ``(operator + damp) x = right`` after `niter` iterations of CG. Collective."""
    method = CG(damp, 0.0, cautious=False)
    state = method.init(operator, right, start)
    floor = _floor(right)
    state.gamma = _above(state.gamma, floor)
    for _ in range(niter):
        state = method.step(operator, state)
        state.gamma = _above(state.gamma, floor)
    return state.x


def least_squares(operator: LinearOperator, data: Any, start: Any, niter: int) -> Any:
    """Return the least-squares solution of ``operator x = data`` after `niter` iterations of CGLS. Collective."""
    method = CGLS(0.0, 0.0, cautious=False)
    state = method.init(operator, data, start)
    floor = _floor(operator.adjoint(data))
    state.gamma = _above(state.gamma, floor)
    for _ in range(niter):
        state = method.step(operator, state)
        state.gamma = _above(state.gamma, floor)
    return state.x


def _floor(gradient: Any) -> Any:
    together = rank_consistent(gradient)
    unit = _ROUNDING * float(np.finfo(real_dtype(gradient.dtype)).eps)
    return dots((together, together))[0] * unit**2


def _above(square: Any, floor: Any) -> Any:
    """Return `square`, and 0 where it is below `floor`, so that steps of CG and CGLS have the length 0."""
    return square * (square > floor)
