"""Evaluations, tests and line searches shared by the methods of nonlinear least squares."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from collops.array import Array, dots
from collops.errors import LayoutError, UnsupportedTypeError, type_name
from collops.operators import LinearOperator
from collops.solvers.method import DOUBLE_PRECISION, Method, log2, not_finite
from collops.solvers.problem import check_array, check_count, check_number, consistent, group_of
from collops.solvers.result import Status
from collops.solvers.scaling import data_units, divided, exponent_of, out_of_range
from collops.solvers.state import Numbers, Scalar, State

_SUFFICIENT_DECREASE, _CURVATURE = 1e-4, 0.9  # Nocedal and Wright, section 3.1
_MAX_HALVINGS = 30


class DescentNumbers(NamedTuple):
    """The numbers of an iteration of a nonlinear method, for a residual and a gradient divided by their units."""

    residual: Scalar  # its squared norm
    gradient: Scalar  # the squared norm of the gradient, without variables fixed at a bound
    step: Scalar  # step length along the direction; 0 if the search failed
    unit: Scalar
    gradient_unit: Scalar


class LeastSquares(Protocol):
    """A nonlinear problem: its residual, and the derivative of the residual."""

    def residual(self, x: Any, /) -> Array: ...
    def jacobian(self, x: Any, /) -> LinearOperator: ...


class Point(NamedTuple):
    """A problem at a point, with residual and gradient divided by their units."""

    x: Array
    residual: Array
    gradient: Array  # of half the squared norm of the residual


class Scales(NamedTuple):
    """The units of residuals, and of gradients of residuals divided by their unit: powers of two."""

    residual: float
    gradient: float = 1.0


class Trial(NamedTuple):
    """The numbers of a line search: half the squared norm of the residual, and its slope along the direction."""

    value: float
    slope: float
    data: tuple[Any, ...]


@dataclass(frozen=True)
class Descent(Method):
    """The problem of a method of nonlinear least squares, its tests, and its evaluations.

    `tol` bounds the norm of the gradient, relative to the first. The residual, the gradient, steps and changes of the
    gradient are divided by a power of two, the unit of the first residual, so that their squares neither underflow nor
    overflow; `x` and the Jacobian are not. If squares of gradients still underflow or overflow, because the Jacobian is
    far from 1, gradients and their changes are also divided by a second unit.
    """

    problem: LeastSquares
    tol: float
    capturable = False  # the host determines the step length
    traceable = False
    numbers = DescentNumbers
    tolerances = frozenset({"tol"})
    stops = (
        (lambda self, now, first: not_finite(now.residual, now.gradient), Status.NOT_FINITE),
        (lambda self, now, first: now.gradient <= self.tol * self.tol * first.gradient, Status.CONVERGED),
        (lambda self, now, first: now.residual <= DOUBLE_PRECISION**2 * first.residual, Status.COMPATIBLE_TO_ROUNDING),
        (lambda self, now, first: now.step == 0, Status.NO_DESCENT),
    )

    def suspect(self, now: DescentNumbers, iteration: int) -> str:
        return "gradient" if now.residual - now.residual == 0 else "residual"

    def details(self, state: State, history: DescentNumbers) -> dict[str, Any]:
        units = history.gradient_unit[-1] * history.unit[-1]
        return {"gradient_norm": float(units * history.gradient[-1] ** 0.5)}

    def residual_norm(self, now: Numbers) -> Scalar:
        return now.unit * now.residual**0.5

    def begin(
        self, x: Array, free: Callable[[Array, Array], Array] = lambda x, gradient: gradient
    ) -> tuple[Point, Scales, list[float]]:
        """Evaluate the problem at the starting point, and choose the units. Collective.

        The last result has the squared norms of the residual and of the gradient ``free(x, gradient)``.
        """
        residual = self.problem.residual(x)
        check_array("the residual", residual, getattr(residual, "layout", None))
        exponents = group_of(residual).agree("the first residual", str(residual.dtype), [exponent_of(residual)])
        scales = Scales(data_units(residual, exponents).data)
        point = self._point(x, residual, scales)
        g = free(x, point.gradient)
        squares = real_products((point.residual, point.residual), (g, g))
        if squares[0] and out_of_range((log2(squares[1]),), point.gradient.dtype):
            exponents = group_of(residual).agree("the first gradient", self.name, [exponent_of(point.gradient)])
            scales = Scales(scales.residual, data_units(point.gradient, exponents, exact=True).data)
            point = point._replace(gradient=divided(point.gradient, scales.gradient))
            g = free(x, point.gradient)
            squares[1:] = real_products((g, g))
        return point, scales, squares

    def evaluated(self, x: Array, scales: Scales) -> Point:
        """Evaluate the problem. Collective."""
        return self._point(x, self.problem.residual(x), scales)

    def _point(self, x: Array, residual: Array, scales: Scales) -> Point:
        jacobian = self.problem.jacobian(x)
        if not isinstance(jacobian, LinearOperator):
            raise UnsupportedTypeError(f"jacobian must return a distributed operator, not {type_name(jacobian)}")
        if jacobian.domain is not x.layout:
            raise LayoutError(f"the domain of the Jacobian must be {x.layout}, the layout of x, not {jacobian.domain}")
        check_array("the residual", residual, jacobian.range)
        residual = divided(residual, scales.residual)
        return Point(x, residual, divided(jacobian.adjoint(residual), scales.gradient))


def real_products(*pairs: tuple[Array, Array]) -> list[float]:
    """Return the real parts of inner products on the host, the same on all ranks. Collective: one message."""
    return [float(product.real) for product in dots(*consistent(*pairs))]


def wolfe(evaluate: Callable[[float], Trial], value: float, slope: float) -> tuple[float, tuple[Any, ...] | None]:
    """Return a step that satisfies the strong Wolfe conditions, and the data of its trial; 0 and ``None`` on failure.

    `value` and `slope` belong to step 0. The search is SciPy's [Nocedal and Wright 2006, algorithms 3.5 and 3.6].
    """
    from scipy.optimize import line_search

    last: dict[float, Trial] = {}  # the search evaluates the value of a step, and then its slope

    def trial_at(position: np.ndarray) -> Trial:
        step = float(position[0])
        if step not in last:
            last.clear()
            last[step] = evaluate(step)
        return last[step]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy warns if the search fails
        step = line_search(
            lambda position: trial_at(position).value,
            lambda position: np.array([trial_at(position).slope]),
            np.zeros(1),
            np.ones(1),
            np.array([slope]),
            value,
            c1=_SUFFICIENT_DECREASE,
            c2=_CURVATURE,
        )[0]
    return (0.0, None) if step is None else (float(step), trial_at(np.array([step])).data)


def halving(evaluate: Callable[[float], Trial], value: float) -> tuple[float, tuple[Any, ...] | None]:
    """Return the longest step of 1, 1/2, ... with a sufficient decrease, and the data of its trial.

    For a path projected onto bounds; the slope of a trial is the change predicted by the gradient at step 0 [Bertsekas
    1982].
    """
    for halvings in range(_MAX_HALVINGS):
        trial = evaluate(0.5**halvings)
        if trial.value <= value + _SUFFICIENT_DECREASE * trial.slope:
            return 0.5**halvings, trial.data
    return 0.0, None


def check_descent(problem: LeastSquares, x0: Array, niter: int, tol: float) -> None:
    """Check the arguments that the methods have in common. No messages."""
    for name in ("residual", "jacobian"):
        if not callable(getattr(problem, name, None)):
            raise UnsupportedTypeError(f"the problem must have a method {name}(x), unlike {type_name(problem)}")
    check_array("x0", x0, getattr(x0, "layout", None))
    if x0.dtype.kind not in "fc":
        raise UnsupportedTypeError(f"x0 must have a floating-point dtype, not {x0.dtype}")
    check_count("niter", niter)
    check_number("tol", tol)
