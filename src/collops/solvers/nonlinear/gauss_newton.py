"""Gauss-Newton and Levenberg-Marquardt, with inexact linear solutions by CGLS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from collops.array import Array, axpby
from collops.solvers.cgls import cgls
from collops.solvers.driver import solve, solver
from collops.solvers.nonlinear.descent import Descent, LeastSquares, Scales, Trial, check_descent, real_products, wolfe
from collops.solvers.problem import check_count, check_number
from collops.solvers.result import SolverResult
from collops.solvers.state import SCRATCH, Numbers, Scalar

_LOOSEST = 0.5  # maximum of the tolerances of the linear problems [Nocedal and Wright 2006, equation 7.3]


@dataclass(slots=True)
class GaussNewtonState:
    """State of Gauss-Newton between iterations."""

    x: Array
    residual: Array
    gradient: Array
    value: float  # half the squared norm of the residual
    gg: float  # the squared norm of the gradient
    first: float  # the squared norm of the first gradient
    inner: int  # iterations of CGLS so far
    unit: float
    gradient_unit: float
    numbers: Sequence[Scalar] = field(metadata=SCRATCH)


@dataclass(frozen=True)
class GaussNewton(Descent):
    """Inexact Gauss-Newton with the strong Wolfe conditions."""

    inner: int
    damp: float
    name = "Gauss-Newton"

    def init(self, A: None, y: Array, x0: Array | None) -> GaussNewtonState:
        point, scales, (rho, gg) = self.begin(y.copy())
        return GaussNewtonState(*point, rho / 2, gg, gg, 0, *scales, (rho, gg, 1.0, *scales))

    def step(self, A: None, state: GaussNewtonState) -> GaussNewtonState:
        """Solve the linear problem with an accuracy that depends on the gradient, and search along its solution."""
        scales = Scales(state.unit, state.gradient_unit)
        forcing = min(_LOOSEST, (state.gg / state.first) ** 0.25)
        right = axpby(-1.0, state.residual, 0.0, state.residual)
        options = {"rtol": 0.0, "gtol": forcing, "verify": False, "progress": False}
        linear = cgls(self.problem.jacobian(state.x), right, niter=self.inner, damp=self.damp, **options)
        state.inner += linear.iterations
        direction = linear.x
        slope = scales.gradient * real_products((direction, state.gradient))[0]

        def trial(step: float) -> Trial:
            point = self.evaluated(axpby(step * scales.residual, direction, 1.0, state.x), scales)
            r, g = point.residual, point.gradient
            rho, gg, slope = real_products((r, r), (g, g), (g, direction))
            return Trial(rho / 2, scales.gradient * slope, (point, rho, gg))

        step, trial_data = wolfe(trial, state.value, slope)
        if trial_data is None:
            state.numbers = 2 * state.value, state.gg, 0.0, *scales
            return state
        point, rho, state.gg = trial_data
        state.x, state.residual, state.gradient, state.value = *point, rho / 2
        state.numbers = rho, state.gg, step, *scales
        return state

    def details(self, state: GaussNewtonState, history: Numbers) -> dict[str, Any]:
        return {**super().details(state, history), "inner_iterations": state.inner}


@solver
def gauss_newton(
    problem: LeastSquares,
    x0: Array,
    *,
    niter: int = 20,
    inner: int = 20,
    damp: float = 0.0,
    tol: float = 1e-6,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`\frac{1}{2} \|r(x)\|^2` by inexact Gauss-Newton. Collective.

    An iteration solves :math:`\min_p \|J p + r\|^2 + \epsilon^2 \|p\|^2` by CGLS and searches along its solution. With
    damping this is the method of Levenberg and Marquardt; it does not change the solution.

    Parameters
    ----------
    problem : object
        With ``residual(x)`` and ``jacobian(x)``; see :mod:`collops.solvers.nonlinear`.
    x0 : DistributedArray or StackedArray
        The starting point, real or complex. It is not changed.
    niter : int
        Largest number of iterations.
    inner : int
        Largest number of iterations of CGLS in one of them.
    damp : float
        The damping factor :math:`\epsilon`.
    tol : float
        Stop when the norm of the gradient is at most this multiple of the first one.
    **run
        Other options of :class:`collops.solvers.Run`. Since the host determines the step length, iterations are not
        recorded as a CUDA graph or compiled; iterations of CGLS are.

    Returns
    -------
    SolverResult
        With ``gradient_norm`` and ``inner_iterations`` in its details. The status ``NO_DESCENT`` says that no step
        decreases the objective.

    Raises
    ------
    LayoutError, UnsupportedTypeError, InputError
        If the problem, `x0` or an option is invalid.

    Notes
    -----
    CGLS stops when the norm of its gradient is below :math:`\min(1/2, \sqrt{|g| / |g_0|})` times the present gradient
    [Nocedal and Wright 2006, section 7.1], so that convergence is superlinear if the residual vanishes. Besides the
    messages of the problem and of CGLS, an iteration sends one scalar allreduce, and one for each trial step. One small
    message before the first iteration determines the size of the residual, which is scaled as in :func:`lbfgs`. If the
    square of the first gradient underflows or overflows, two more determine the size of the gradient.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> class Squares:  # the data are the squares of x
    ...     def __init__(self, data):
    ...         self.data = data
    ...     def residual(self, x):
    ...         return x * x - self.data
    ...     def jacobian(self, x):
    ...         return collops.Diagonal(2 * x)
    >>> from collops.solvers.nonlinear import gauss_newton
    >>> data = collops.from_global(np.array([1.0, 4.0, 9.0]))
    >>> gauss_newton(Squares(data), collops.ones(3)).x.gather().round(4)
    array([1., 2., 3.])
    """
    check_descent(problem, x0, niter, tol)
    method = GaussNewton(problem, tol, check_count("inner", inner, smallest=1), check_number("damp", damp))
    return solve(method, None, x0, parts=[method], niter=niter, **run)
