"""CGLS: conjugate gradients for least squares, with damping."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np

from collops.array import Finite, Scalars, axpby, dots, update_solution_and_direction
from collops.operators import LinearOperator
from collops.operators.base import new_array
from collops.solvers.driver import Run, solve
from collops.solvers.method import DOUBLE_PRECISION, Method, Row, Test, not_finite, over
from collops.solvers.problem import (
    check_problem,
    checked_limits,
    rank_consistently,
    starting_point,
    takes_part,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import CONSTANT, SCRATCH

__all__ = ["CGLS", "cgls"]

_OF_GRADIENTS = 10.0**2
"""Square of the rounding of gradients in units of that of their products: the smallest gradients seen were below 1 with
ten unknowns, and 7 with two thousand."""


@dataclass(slots=True)
class CGLSState:
    """Vectors and scalars of CGLS between two iterations."""

    operator: LinearOperator = field(metadata=CONSTANT)
    x: Any
    residual: Any
    gradient: Any  # A^H residual - damp^2 x, half the negative gradient of the objective
    direction: Any
    image: Any = field(metadata=SCRATCH)  # A direction
    gradient_square: Any
    gradient_consistently: Callable[[Any], Any] = field(metadata=CONSTANT)  # see rank_consistently
    residual_consistently: Callable[[Any], Any] = field(metadata=CONSTANT)
    lagged: bool = field(metadata=CONSTANT)
    damped: bool = field(metadata=CONSTANT)
    monitored: tuple[Any, ...] = field(metadata=SCRATCH)  # see CGLS.monitor
    together: Scalars = field(metadata=SCRATCH)  # memory of the inner products that share a message


@dataclass(frozen=True)
class CGLS(Method):
    """CGLS as a method of the driver.

    Attributes
    ----------
    damp : float
        Damping factor.
    tol : float
        Bound on the squared norm of the gradient.
    precision : float
        Relative size of rounding errors: an iterate that no iteration can improve by more than that is a solution. With
        0 the solver does not stop there.
    rtol, atol : float
        Bounds on the norm of the residual, relative to the first and absolute.
    cautious : bool
        Whether a step that is not finite leaves the solution as it is.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import CGLS, solve
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> solve(CGLS(tol=1e-12), A, collops.ones(3), niter=10).x.gather().round(6)
    array([1.  , 0.5 , 0.25])
    """

    damp: float = 0.0
    tol: float = 1e-4
    precision: float = DOUBLE_PRECISION
    rtol: float = 0.0
    atol: float = 0.0
    cautious: bool = True
    stops = frozenset({"tol", "precision", "rtol", "atol"})
    name = "CGLS"
    width = 4

    def init(self, operator: LinearOperator, data: Any, x0: Any, report_now: bool) -> CGLSState:
        """Return the state before the first iteration: the residual, and its gradient as first direction."""
        dtype = working_dtype(operator, data, x0)
        x, residual, image = starting_point(operator, data, x0, dtype, operator._forward)
        gradient = operator._adjoint(residual, new_array(operator.domain, data, dtype))
        damped = takes_part(self.damp)
        if damped and x0 is not None:
            gradient = axpby(-(self.damp * self.damp), x, 1.0, gradient, out=gradient)
        of_gradient, of_residual = rank_consistently(gradient), rank_consistently(residual)
        # With a replicated model each rank knows the gradient's square by itself, so that all scalars of an iteration
        # fit into one message if those that are reported may wait for the next.
        lagged = not report_now and of_gradient(gradient) is not gradient
        state = CGLSState(
            operator,
            x,
            residual,
            gradient,
            gradient.copy(),
            image,
            None,
            of_gradient,
            of_residual,
            lagged,
            damped,
            (),
            Scalars(),
        )
        state.gradient_square, residual_square = self._squares(state)
        state.monitored = (state.gradient_square, residual_square) * 2
        return state

    def step(self, state: CGLSState) -> CGLSState:
        """Minimise along the direction, and find the next one."""
        operator = state.operator
        image = state.image = operator._forward(state.direction, state.image)
        pairs = [(image, image)]
        if state.damped:
            pairs.append((state.direction, state.direction))
        monitored = None
        if state.lagged:
            image_square, *others, gradient_square, residual_square = dots(
                *pairs, *self._pairs(state), out=state.together
            )
            monitored = gradient_square, residual_square
        else:
            image_square, *others = dots(*pairs)
        curvature = image_square + self.damp * self.damp * others[0] if others else image_square
        length: Any = (1.0, state.gradient_square, curvature)
        length = Finite(length) if self.cautious else length
        minus_length = (-1.0, state.gradient_square, curvature)
        state.residual = axpby(minus_length, image, 1.0, state.residual, out=state.residual)
        state.gradient = operator._adjoint(state.residual, state.gradient)
        if state.damped:
            state.x = axpby(length, state.direction, 1.0, state.x, out=state.x)
            state.gradient = axpby(-(self.damp * self.damp), state.x, 1.0, state.gradient, out=state.gradient)
        if monitored is None:
            gradient_square, _ = monitored = self._squares(state)
        else:
            (gradient_square,) = dots((state.gradient, state.gradient))
        state.monitored = (*monitored, curvature, state.gradient_square)
        ratio = (1.0, gradient_square, state.gradient_square)
        if state.damped:
            state.direction = axpby(1.0, state.gradient, ratio, state.direction, out=state.direction)
        else:
            state.x, state.direction = update_solution_and_direction(
                state.x, length, state.direction, ratio, state.gradient
            )
        state.gradient_square = gradient_square
        return state

    def finalize(self, state: CGLSState) -> CGLSState:
        """Return the state with the numbers of the last iteration."""
        if state.lagged:
            state.monitored = (*self._squares(state), *state.monitored[2:])
        return state

    def lagged(self, state: CGLSState) -> bool:
        """Return whether the numbers of an iteration come with the next one."""
        return state.lagged

    def monitor(self, state: CGLSState) -> tuple[Any, ...]:
        """Return the squared norms of gradient and residual, and two that bound the operator's norm from below.

        Those are the curvature and the squared gradient of a step: their quotient is at most the square of the
        operator's norm.
        """
        return state.monitored

    def verdict(self, row: Row, first: Row) -> Status | None:
        """Stop where gradient or residual are below a bound, or where only rounding is left."""
        gradient, residual, curvature, before = row
        rounding = self.precision**2
        if (
            self.tol < gradient < math.inf
            and rounding * first[1] < residual < math.inf
            and self.rtol**2 * first[1] <= residual >= self.atol**2
            and _OF_GRADIENTS * rounding * residual * curvature / before < gradient
        ):
            return None
        return super().verdict(row, first)

    def tests(self, row: Row, first: Row) -> tuple[Test, ...]:
        """Return the tests of :meth:`verdict`.

        Beyond convergence the gradient is rounding, which the ratios of its squares amplify to infinity in the end. The
        exact solution for an operator that differs by rounding has a gradient of that size.
        """
        gradient, residual, curvature, before = row
        rounding = self.precision**2
        least = over(_OF_GRADIENTS * rounding * residual * curvature, before)
        return (
            (not_finite(gradient, residual), Status.NOT_FINITE),
            (gradient <= self.tol, Status.CONVERGED),
            ((residual < self.rtol**2 * first[1]) | (residual < self.atol**2), Status.CONVERGED),
            (residual <= rounding * first[1], Status.COMPATIBLE_TO_ROUNDING),
            (gradient <= least, Status.LEAST_SQUARES_TO_ROUNDING),
        )

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the array that was first not finite: after the start the image, from which the residual is made."""
        residual_square = row[1]
        if residual_square - residual_square == 0:
            return "gradient"
        return "image" if iteration else "residual"

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norms of the residual, damping not included."""
        return rows[:, 1] ** 0.5

    def details(self, state: CGLSState, rows: np.ndarray) -> dict[str, Any]:
        """Return the norm of the gradient."""
        return {"gradient_norm": float(np.sqrt(rows[-1, 0]))}

    def optimality(self, operator: LinearOperator, data: Any, x: Any) -> Any:
        """Return half the negative gradient of the objective, which is zero at the solution."""
        gradient = operator._adjoint(axpby(1.0, data, -1.0, operator._forward(x, None)), None)
        return axpby(-(self.damp * self.damp), x, 1.0, gradient) if takes_part(self.damp) else gradient

    def normal(self, operator: LinearOperator) -> tuple[LinearOperator, Any]:
        """Return the operator of the normal equations, and the multiple of the identity that is added to it."""
        return operator.H @ operator, self.damp * self.damp

    @staticmethod
    def _pairs(state: CGLSState) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        gradient = state.gradient_consistently(state.gradient)
        residual = state.residual_consistently(state.residual)
        return (gradient, gradient), (residual, residual)

    def _squares(self, state: CGLSState) -> tuple[Any, ...]:
        return dots(*self._pairs(state))


def cgls(
    A: LinearOperator,
    y: Any,
    x0: Any = None,
    *,
    niter: int = 10,
    damp: float = 0.0,
    tol: float = 1e-4,
    rtol: float = 0.0,
    rtol1: float = 0.0,
    **run: Unpack[Run],
) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|^2 + \epsilon^2 \|x\|^2` by CGLS. Collective.

    Parameters
    ----------
    A : LinearOperator
        Any shape.
    y : DistributedArray or StackedArray
        The data, in the range of `A`. Its precision is that of the computation.
    x0 : DistributedArray or StackedArray, optional
        The starting point; zero by default.
    niter : int
        Largest number of iterations.
    damp : float
        The damping factor :math:`\epsilon`.
    tol : float
        Stop when the squared norm of :math:`A^H (y - A x) - \epsilon^2 x` is at most this. The solver always stops
        where further iterations would only amplify rounding, with the status ``LEAST_SQUARES_TO_ROUNDING`` or, if the
        residual vanishes, ``COMPATIBLE_TO_ROUNDING``.
    rtol : float
        Stop when the norm of the residual is below this multiple of the first; 0 for never.
    rtol1 : float
        Stop when it is below this multiple of the norm of `y`; 0 for never.
    callback : callable, optional
        Called on every rank after each iteration as ``callback(iteration, view)``, with the number of iterations
        done, and a view of the state with ``x`` (overwritten by the next iteration: copy it to keep it) and
        ``residual_norm``. If it returns ``True``, on all ranks alike, the solver stops. Ranks on which it raises
        leave the others waiting for their deadline.
    progress : bool, optional
        Whether to show a progress bar on rank 0; by default where standard error is a terminal.
    graph : bool or "auto"
        On devices, whether to record one iteration as a CUDA graph and replay it: ``"auto"`` does it where the
        operator can be recorded, ``True`` raises where it cannot, ``False`` launches every iteration.
    lag : int, optional
        On devices, how many iterations the host may launch before it checks the numbers of the oldest. The default
        is 0 if a tolerance can stop the solver, so that `x` is the iterate that passed the test, and otherwise 3.
        With a larger value up to ``lag + 1`` further iterations change `x`. On hosts always 0.
    checkpoint : str or path, optional
        Folder that all ranks see, for the last checkpoint, from which a run can be resumed. Without it nothing is
        written, and signals are handled as before.
    every : int or str, optional
        How often one is written: a number of iterations, or a time such as ``"30s"``, ``"10m"`` or ``"2h"``; by
        default ten minutes. One more is written at the end.
    resume : bool
        Whether to resume from the checkpoint, if there is one. The result is that of a run without interruption: to
        the last bit on as many ranks of the same kind, else to rounding. Options that only decide when to stop may
        differ.
    differentiate : {"implicit", "unroll"}
        For arrays of JAX, whose solvers are one compiled program: whether a derivative of the solution is that of the
        equations that it solves, by one more solution, or that of all iterations.

    Returns
    -------
    SolverResult
        With ``gradient_norm`` in its details.

    Raises
    ------
    LayoutError
        If `y` or `x0` does not have the layout of `A`.
    InputError
        If an option is invalid.
    CheckpointError
        If there is a checkpoint, but `resume` is false; if it is damaged or that of another problem; or if one cannot
        be written. Existing checkpoints stay.
    Interrupted
        If SIGTERM or SIGUSR1 has come to any rank and there are checkpoints: all ranks have written one.

    Notes
    -----
    Besides the messages of `A`, an iteration sends two scalar allreduces; one on devices with a replicated model. With
    checkpoints, there is one more about twice a second.

    The iterates are those of ``pylops.optimization.basic.cgls``, except that with both `x0` and `damp` the first
    gradient has the square of `damp`, as all others have.

    References
    ----------
    .. [1] Hestenes, M. R., Stiefel, E., "Methods of conjugate gradients for solving linear systems", Journal of
       Research of the National Bureau of Standards 49, 409-436, 1952.
    .. [2] Björck, Å., "Numerical methods for least squares problems", SIAM, 1996, section 7.4.
    .. [3] Stewart, G. W., "Research, development and LINPACK", in Rice, J. R. (ed.), "Mathematical Software III",
       Academic Press, 1977: how small a gradient is that of a nearby problem's solution.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.VStack([np.vander([1.0, 2.0, 3.0, 4.0], 2)])  # a line through four points
    >>> data = collops.from_local(np.array([3.0, 5.0, 7.0, 9.0]), A.range)
    >>> collops.cgls(A, data, niter=10, tol=1e-12).x.gather().round(6)
    array([2., 1.])
    """
    check_problem(A, y, x0, niter)
    method = CGLS(**checked_limits(A, y, x0, damp, tol, rtol, rtol1))
    return solve(method, A, y, x0, niter=niter, **run)
