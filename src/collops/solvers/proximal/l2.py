"""The squared L2 norm of a misfit, whose proximal point is a damped least-squares solution."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from collops.array import Array, axpby, dots
from collops.operators import LinearOperator
from collops.operators.base import AnyLayout
from collops.operators.memory import Buffers
from collops.solvers.cg import CG
from collops.solvers.problem import check_array, check_count, check_number, check_operator, consistent, precision_of
from collops.solvers.proximal.operator import ProxOperator, inner, like
from collops.solvers.result import Status
from collops.solvers.state import Scalar

_ROUNDING = 4
"""A gradient with a norm below this many units of rounding is treated as 0."""


class L2(ProxOperator):
    r"""The function :math:`\frac{\sigma}{2} \|A x - b\|_2^2 + \alpha\, \mathrm{Re}(q^H x)`.

    Parameters
    ----------
    Op : LinearOperator, optional
        The operator :math:`A`; by default the identity, for which `niter`, `x0` and `warm` have no effect.
    b : DistributedArray or StackedArray, optional
        The data; 0 by default.
    q : DistributedArray or StackedArray, optional
        The vector of the linear term.
    sigma, alpha : float
        Factors, not negative.
    qgrad : bool
        Whether the gradient includes the linear term.
    niter : int or callable
        With an operator: number of iterations of conjugate gradients for the proximal point; or a function that returns
        it from the number of points computed before.
    x0 : DistributedArray or StackedArray, optional
        Start of the first inner solution; 0 by default.
    warm : bool
        Whether each inner solution starts from the previous proximal point instead of `x0`.

    Notes
    -----
    .. math:: (I + \tau \sigma A^H A)\, \mathrm{prox}_{\tau f}(x) = x + \tau \sigma A^H b - \tau \alpha q

    [Parikh and Boyd 2014, 6.1]. Without an operator the point takes one to three passes over memory and no message.
    With an operator it takes exactly `niter` iterations of conjugate gradients on these equations, so that the host
    does not wait for the device. Each sends the messages of `Op` and its adjoint and two scalar allreduces; two more
    allreduces precede the first. In PyProximal this is ``solver="cg"`` and, with different rounding,
    ``solver="cgls"``.

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
        b: Array | None = None,
        q: Array | None = None,
        sigma: float = 1.0,
        alpha: float = 1.0,
        qgrad: bool = True,
        niter: int | Callable[[int], int] = 10,
        x0: Array | None = None,
        warm: bool = True,
    ) -> None:
        if Op is not None:
            check_operator("Op", Op)
            for name, array, layout in (("b", b, Op.range), ("q", q, Op.domain), ("x0", x0, Op.domain)):
                check_array(name, array, layout, optional=True)
        self._operator, self._q, self._x0 = Op, q, x0
        self._b: Any = b
        self._sigma, self._alpha = check_number("sigma", sigma), check_number("alpha", alpha)
        self._qgrad, self._warm = bool(qgrad), bool(warm)
        self._niter = niter if callable(niter) else check_count("niter", niter)
        self._points = 0
        self._last: Array | None = None
        self._buffers = Buffers()
        self.capturable = Op is None or (Op.capturable and not callable(niter))

    def _remembered(self) -> dict[str, AnyLayout | None]:
        return {} if self._operator is None else {"_last": self._operator.domain, "_points": None}

    def _prox(self, x: Array, tau: float, out: Array | None) -> Array:
        weight = tau * self._sigma
        if self._operator is None or not weight:
            return self._closed(1.0, x, 0.0, x, tau, out)
        return self._solved(x, weight, like(x, out))

    def _prox_of_sum(self, a: float, x: Array, b: float, y: Array, tau: float, out: Array | None) -> Array:
        if self._operator is None:
            return self._closed(a, x, b, y, tau, out)
        return super()._prox_of_sum(a, x, b, y, tau, out)

    def _closed(self, a: float, x: Array, b: float, y: Array, tau: float, out: Array | None) -> Array:
        """Return the point of ``a * x + b * y`` if the operator is the identity, or ``tau * sigma`` is 0."""
        weight = tau * self._sigma
        scale = 1 / (1 + weight)
        point = axpby(a * scale, x, b * scale, y, out=out)
        if self._b is not None and weight:
            point = axpby(weight * scale, self._b, 1.0, point, out=point)
        if self._q is not None:
            point = axpby(-tau * self._alpha * scale, self._q, 1.0, point, out=point)
        return point

    def _solved(self, x: Array, weight: float, out: Array | None) -> Array:
        """Return the point with an operator: the solution of the equations divided by ``weight = tau * sigma``."""
        right = axpby(1 / weight, x, 0.0, x, out=self._buffers.get("right", x.layout, x, x.dtype))
        if self._b is not None:
            right = axpby(1.0, self._adjoint_data, 1.0, right, out=right)
        if self._q is not None:
            right = axpby(-self._alpha / self._sigma, self._q, 1.0, right, out=right)
        start = self._x0 if self._last is None else self._last
        niter = self._niter(self._points) if callable(self._niter) else self._niter
        method = CG(1 / weight, 0.0, precision_of(right.dtype), cautious=False)
        point = solve_inner(method, self._normal, right, start, niter, right)
        self._points += 1
        if self._warm:
            # Always the same memory, so that a replay starts from the point of the previous replay.
            self._last = point if self._last is None else axpby(1.0, point, 0.0, point, out=self._last)
        return axpby(1.0, point, 0.0, point, out=out)

    @cached_property
    def _normal(self) -> LinearOperator:
        """``A^H A``."""
        return self._operator.H @ self._operator  # pyright: ignore[reportOptionalMemberAccess]

    @cached_property
    def _adjoint_data(self) -> Array:
        """``A^H b``."""
        return self._operator.adjoint(self._b)  # pyright: ignore[reportOptionalMemberAccess]

    def _misfit(self, x: Array) -> Array:
        """Return ``A x - b``, in a buffer if there is an operator."""
        image = x
        if self._operator is not None:
            dtype = np.result_type(x.dtype, self._operator.dtype) if self._operator.dtype.kind == "c" else x.dtype
            image = self._operator._forward(x, self._buffers.get("image", self._operator.range, x, dtype))
        if self._b is None:
            return image
        return axpby(1.0, image, -1.0, self._b, out=None if image is x else image)

    def _value(self, x: Array) -> Scalar:
        misfit = self._misfit(x)
        value = 0.5 * self._sigma * dots((misfit, misfit))[0]
        return value if self._q is None else value + self._alpha * inner(self._q, x)

    def _grad(self, x: Array, out: Array | None) -> Array:
        misfit, out = self._misfit(x), like(x, out)
        if self._operator is not None:
            misfit = self._operator._adjoint(misfit, out)
        gradient = axpby(self._sigma, misfit, 0.0, misfit, out=out)
        if self._q is not None and self._qgrad:
            gradient = axpby(self._alpha, self._q, 1.0, gradient, out=gradient)
        return gradient


def solve_inner(
    method: Any, A: LinearOperator | None, y: Array, x0: Array | None, niter: int, first_gradient: Array
) -> Array:
    """Return the solution after exactly `niter` iterations of CG or CGLS, without synchronising. Collective.

    Once the gradient is a rounding error, relative to `first_gradient` or by the method's test of least squares, it is
    treated as 0, so that further steps have the length 0; otherwise they would only amplify rounding errors. If the
    data are almost orthogonal to the operator's image, the gradient is a rounding error from the start.
    """
    floor = dots(*consistent((first_gradient, first_gradient)))[0] * (_ROUNDING * method.precision) ** 2
    tests = [test for test, status, *_ in method.stops if status is Status.LEAST_SQUARES_TO_ROUNDING]
    method = method.variant(y)
    state = method.init(A, y, x0)
    first = method.numbers(*method.report(state))
    continues = state.gamma > floor
    for _ in range(niter):
        state.gamma = state.gamma * continues
        state = method.step(A, state)
        continues = continues & (state.gamma > floor)
        for test in tests:
            continues = continues & ~test(method, method.numbers(*method.report(state)), first)
    return state.x
