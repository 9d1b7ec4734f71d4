"""L-BFGS: a quasi-Newton method whose matrix is computed from the last steps and changes of the gradient."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collops.array import Array, StackedArray, axpby, where, zeros_like
from collops.array.operands import check_alike
from collops.errors import InputError
from collops.solvers.driver import solve, solver
from collops.solvers.method import over
from collops.solvers.nonlinear.descent import (
    Descent,
    LeastSquares,
    Scales,
    Trial,
    check_descent,
    halving,
    real_products,
    wolfe,
)
from collops.solvers.problem import check_count, check_kept, check_number
from collops.solvers.result import SolverResult
from collops.solvers.scaling import divided
from collops.solvers.state import SCRATCH, Scalar


@dataclass(slots=True)
class LBFGSState:
    """State of L-BFGS between iterations, in the notation of Byrd, Nocedal and Schnabel (1994).

    Pair number k, a step and a change of the gradient, is at index k modulo `memory`.
    """

    x: Array
    gradient: Array
    value: float  # half the squared norm of the residual
    s: StackedArray  # steps
    y: StackedArray  # changes of the gradient
    sy: np.ndarray  # inner products of step i and change j
    yy: np.ndarray
    sg: np.ndarray  # of steps and the gradient
    yg: np.ndarray
    gg: float
    pairs: int  # so far
    unit: float
    gradient_unit: float
    numbers: Sequence[Scalar] = field(metadata=SCRATCH)


@dataclass(frozen=True)
class LBFGS(Descent):
    """L-BFGS, with the strong Wolfe conditions or, with bounds, projections."""

    memory: int
    lower: float | Array | None
    upper: float | Array | None
    name = "L-BFGS"

    def init(self, A: None, y: Array, x0: Array | None) -> LBFGSState:
        point, scales, (rho, gg) = self.begin(self._projected(y.copy()), self._free)
        like: Any = point.gradient
        s, change = (StackedArray([zeros_like(like) for _ in range(self.memory)]) for _ in range(2))
        table, row = np.zeros((self.memory, self.memory)), np.zeros(self.memory)
        products = table, table, row, row, gg
        return LBFGSState(point.x, point.gradient, rho / 2, s, change, *products, 0, *scales, (rho, gg, 1.0, *scales))

    def step(self, A: None, state: LBFGSState) -> LBFGSState:
        """Search along the direction, and store the step and the change of the gradient."""
        direction, slope = self._direction(state)
        if self._bounded:
            step, trial_data = halving(lambda t: self._trial(state, direction, t), state.value)
        else:
            step, trial_data = wolfe(lambda t: self._trial(state, direction, t), state.value, slope)
        if trial_data is None:
            state.numbers = 2 * state.value, state.gg, 0.0, state.unit, state.gradient_unit
            return state
        point, s, y, (rho, gg, sg, yg, sy, yy, slope), table = trial_data
        state.x, state.gradient, state.value, state.gg = point.x, point.gradient, rho / 2, gg
        state.sg, state.yg = table[0], table[1]
        if sy > sys.float_info.epsilon * abs(slope):  # otherwise the matrix would not stay positive definite
            k = state.pairs % self.memory
            state.s, state.y = _with(state.s, k, s), _with(state.y, k, y)
            state.sy, state.yy = state.sy.copy(), state.yy.copy()
            state.sy[:, k], state.yy[:, k], state.yy[k] = table[2], table[3], table[3]
            state.sy[k, k], state.yy[k, k], state.sg[k], state.yg[k] = sy, yy, sg, yg
            state.pairs += 1
        state.numbers = rho, gg, step, state.unit, state.gradient_unit
        return state

    def _direction(self, state: LBFGSState) -> tuple[Array, float]:
        """Return minus the inverse matrix times the gradient, and its product with the gradient.

        For the matrix see Byrd, Nocedal and Schnabel [1994, equation 3.1]. Variables fixed at a bound are excluded
        before and after applying it [Bertsekas 1982].
        """
        free = self._free(state.x, state.gradient)
        if not state.pairs:  # the minimum of the linearised problem along the gradient, in any units
            # Apply it to a unit vector: the size of the Jacobian enters squared, not to the fourth power.
            image = self.problem.jacobian(state.x).forward(axpby(state.gg**-0.5, free, 0.0, free))
            image = divided(image, state.gradient_unit)  # the size of the Jacobian, if it is far from 1
            length = over(1.0, *real_products((image, image)))
            return axpby(-length / state.gradient_unit, free, 0.0, free), -length * state.gg
        order = [k % self.memory for k in range(max(0, state.pairs - self.memory), state.pairs)]  # the oldest first
        sy, yy, sg, yg = (
            state.sy[np.ix_(order, order)],
            state.yy[np.ix_(order, order)],
            state.sg[order],
            state.yg[order],
        )
        scale, upper = sy[-1, -1] / yy[-1, -1], np.triu(sy)
        w = np.linalg.solve(upper, sg)
        u = np.linalg.solve(upper.T, np.diag(sy) * w + scale * (yy @ w) - scale * yg)
        direction = axpby(-scale, free, 0.0, free)
        for k, of_s, of_y in zip(order, u, scale * w, strict=True):
            direction = axpby(-float(of_s), state.s[k], 1.0, direction, out=direction)
            direction = axpby(float(of_y), state.y[k], 1.0, direction, out=direction)
        slope = -(scale * state.gg + sg @ u - scale * (yg @ w)) * state.gradient_unit
        return self._free(state.x, direction, state.gradient), float(slope)

    def _trial(self, state: LBFGSState, direction: Array, step: float) -> Trial:
        """Evaluate a step. All inner products of an iteration share one message."""
        scales = Scales(state.unit, state.gradient_unit)
        point = self.evaluated(self._projected(axpby(step * state.unit, direction, 1.0, state.x)), scales)
        s, y = divided(axpby(1.0, point.x, -1.0, state.x), state.unit), axpby(1.0, point.gradient, -1.0, state.gradient)
        r, g = point.residual, self._free(point.x, point.gradient)
        pairs = [(r, r), (g, g), (s, g), (y, g), (s, y), (y, y), (s, state.gradient)]
        pairs += [(old, new) for new in (g, y) for stored in (state.s, state.y) for old in stored]
        products = real_products(*pairs)
        now, table = products[:7], np.array(products[7:]).reshape(4, self.memory)
        slope = now[6] if self._bounded else now[2] / step
        return Trial(now[0] / 2, slope * state.gradient_unit, (point, s, y, now, table))

    @property
    def _bounded(self) -> bool:
        return self.lower is not None or self.upper is not None

    def _projected(self, x: Array) -> Array:
        if self.lower is not None:
            x = where(x < self.lower, self.lower, x)
        return x if self.upper is None else where(x > self.upper, self.upper, x)

    def _free(self, x: Array, values: Array, gradient: Array | None = None) -> Array:
        """Return values with zeros for variables at a bound whose negative gradient points outwards."""
        gradient = values if gradient is None else gradient
        if self.lower is not None:
            values = where((x <= self.lower) & (gradient > 0), 0.0, values)
        return values if self.upper is None else where((x >= self.upper) & (gradient < 0), 0.0, values)


def _with(stack: StackedArray, index: int, array: Any) -> StackedArray:
    arrays = list(stack.arrays)
    arrays[index] = array
    return stack._like(arrays)


@solver
def lbfgs(
    problem: LeastSquares,
    x0: Array,
    *,
    niter: int = 100,
    memory: int = 10,
    lower: float | Array | None = None,
    upper: float | Array | None = None,
    tol: float = 1e-6,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`\frac{1}{2} \|r(x)\|^2` by L-BFGS, with optional bounds. Collective.

    Parameters
    ----------
    problem, x0, niter
        As for :func:`gauss_newton`.
    memory : int
        Number of stored steps. Each takes memory for two vectors like `x0`.
    lower, upper : float or array like `x0`, optional
        Bounds on the elements of a real `x0`.
    tol : float
        Stop when the norm of the gradient is at most this multiple of the first one. Variables fixed at a bound are
        excluded.
    **run
        Other options of :class:`collops.solvers.Run`. Since the host determines the step length, iterations are not
        recorded as a CUDA graph or compiled.

    Returns
    -------
    SolverResult
        With ``gradient_norm`` in its details. The status ``NO_DESCENT`` says that no step decreases the objective.

    Raises
    ------
    LayoutError, UnsupportedTypeError, InputError
        As for :func:`gauss_newton`.

    Notes
    -----
    Besides the messages of the problem, a trial step sends one allreduce; usually the first trial is accepted. One
    small message before the first iteration determines the size of the residual: a very small or large residual is
    divided by a power of two, so that its square neither underflows nor overflows. The first iteration also applies the
    Jacobian, and sends one more message: it begins with the step that minimises the linearised residual along the
    gradient, which is independent of the units of `x` and of the residual. Without bounds, steps satisfy the strong
    Wolfe conditions. With bounds, a step is projected and halved until the objective decreases sufficiently, and
    variables fixed at a bound are excluded from the gradient and the direction [Bertsekas 1982].

    Examples
    --------
    >>> import collops
    >>> from collops.solvers.nonlinear import lbfgs
    >>> class RootOfTwo:
    ...     def residual(self, x):
    ...         return x * x - 2.0
    ...     def jacobian(self, x):
    ...         return collops.Diagonal(2 * x)
    >>> lbfgs(RootOfTwo(), collops.ones(2), upper=1.3).x.gather().round(4)
    array([1.3, 1.3])
    """
    check_descent(problem, x0, niter, tol)
    check_count("memory", memory, smallest=1)
    check_kept("memory", memory, x0.engine, memory, layout=x0.layout, dtype=x0.dtype)
    bounds = [_checked_bound(name, bound, x0) for name, bound in (("lower", lower), ("upper", upper))]
    method = LBFGS(problem, tol, memory, *bounds)
    return solve(method, None, x0, parts=[method], niter=niter, **run)


def _checked_bound(name: str, bound: float | Array | None, x0: Array) -> float | Array | None:
    if bound is None:
        return None
    if x0.dtype.kind == "c":
        raise InputError(f"{name} needs a real x0, not {x0.dtype}")
    if hasattr(bound, "layout"):
        check_alike(x0, bound)
        return bound
    return check_number(name, bound, smallest=-math.inf)
