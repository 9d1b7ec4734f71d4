"""CGLS: conjugate gradients for least squares, with damping."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np

from collops.array import Finite, Scalars, axpby, dots, go_and_turn
from collops.operators import LinearOperator
from collops.operators.base import new_array
from collops.solvers.driver import solve
from collops.solvers.method import DOUBLE_PRECISION, Row, Test, first_passed, not_finite, over
from collops.solvers.problem import (
    agreed,
    check_problem,
    checked_limits,
    starting_point,
    takes_part,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.run import Run
from collops.solvers.state import transient

__all__ = ["CGLS", "cgls"]

_OF_GRADIENTS = 10.0**2
"""Square of the rounding of gradients in units of that of their products: gradients were seen to come down to less than
1 with ten unknowns, and to 7 with two thousand."""


@dataclass(slots=True)
class CGLSState:
    """Vectors and scalars of CGLS between two iterations."""

    operator: LinearOperator
    x: Any
    residual: Any
    gradient: Any  # A^H residual - damp^2 x, half the negative gradient of the objective
    direction: Any
    image: Any  # A direction
    gradient_agreed: Any  # the gradient in the form whose square all ranks agree on
    residual_agreed: Any
    gradient_square: Any
    late: bool
    damped: bool
    monitored: tuple[Any, ...] = transient()  # see CGLS.monitor
    together: Scalars = field(default_factory=Scalars)  # memory of the inner products that share a message
    rebuilt = frozenset({"image", "gradient_agreed", "residual_agreed"})


@dataclass(frozen=True)
class CGLS:
    """CGLS as a method of the driver.

    Attributes
    ----------
    damp : float
        Damping factor.
    tol : float
        Bound on the squared norm of the gradient.
    precision : float
        Relative size of rounding errors: what no iteration can make better by more than that is a solution. 0 to go on
        all the same.
    rtol, enough : float
        Bounds on the norm of the residual, the former relative to the first.
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
    enough: float = 0.0
    cautious: bool = True
    stops = frozenset({"tol", "precision", "rtol", "enough"})
    name = "CGLS"
    width = 4

    def init(self, operator: LinearOperator, data: Any, x0: Any, prompt: bool) -> CGLSState:
        """Return the state before the first iteration: the residual, and its gradient as first direction."""
        dtype = working_dtype(operator, data, x0)
        x, residual, image = starting_point(operator, data, x0, dtype, operator._forward)
        gradient = operator._adjoint(residual, new_array(operator.domain, data, dtype))
        damped = takes_part(self.damp)
        if damped and x0 is not None:
            gradient = axpby(-(self.damp * self.damp), x, 1.0, gradient, out=gradient)
        gradient_agreed, residual_agreed = agreed(gradient), agreed(residual)
        gradient_square, residual_square = dots((gradient_agreed, gradient_agreed), (residual_agreed, residual_agreed))
        return CGLSState(
            operator,
            x,
            residual,
            gradient,
            gradient.copy(),
            image,
            gradient_agreed,
            residual_agreed,
            gradient_square,
            # Of a replicated model each rank knows the gradient's square by itself, so that all scalars of an iteration
            # fit into one message if those to be looked at may wait for the next.
            not prompt and gradient_agreed is not gradient,
            damped,
            (gradient_square, residual_square, gradient_square, residual_square),
        )

    def step(self, state: CGLSState) -> CGLSState:
        """Minimise along the direction, and find the next one."""
        operator, direction = state.operator, state.direction
        image = state.image = operator._forward(direction, state.image)
        pairs = [(image, image)]
        if state.damped:
            pairs.append((direction, direction))
        monitored = None
        if state.late:
            gradient, residual = state.gradient_agreed, state.residual_agreed
            image_square, *others, gradient_square, residual_square = dots(
                *pairs, (gradient, gradient), (residual, residual), out=state.together
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
            state.x = axpby(length, direction, 1.0, state.x, out=state.x)
            state.gradient = axpby(-(self.damp * self.damp), state.x, 1.0, state.gradient, out=state.gradient)
        if monitored is None:
            gradient_square, _ = monitored = self._squares(state)
        else:
            (gradient_square,) = dots((state.gradient, state.gradient))
        state.monitored = (*monitored, curvature, state.gradient_square)
        ratio = (1.0, gradient_square, state.gradient_square)
        if state.damped:
            state.direction = axpby(1.0, state.gradient, ratio, direction, out=direction)
        else:
            go_and_turn(state.x, length, direction, ratio, state.gradient)
        state.gradient_square = gradient_square
        return state

    def finalize(self, state: CGLSState) -> CGLSState:
        """Return the state with the numbers of the last iteration."""
        if state.late:
            state.monitored = (*self._squares(state), *state.monitored[2:])
        return state

    def late(self, state: CGLSState) -> bool:
        """Return whether the numbers of an iteration come with the next one."""
        return state.late

    def monitor(self, state: CGLSState) -> tuple[Any, ...]:
        """Return the squared norms of gradient and residual, and two that bound the operator's norm from below.

        Those are the curvature and the squared gradient of a step: their quotient is at most the square of the
        operator's norm.
        """
        return state.monitored

    def verdict(self, row: Row, first: Row) -> Status | None:
        """Stop where gradient or residual are as small as was asked for, or where all that is left is rounding."""
        gradient, residual, curvature, before = row
        rounding = self.precision**2
        if (
            self.tol < gradient < math.inf
            and rounding * first[1] < residual < math.inf
            and self.rtol**2 * first[1] <= residual >= self.enough**2
            and _OF_GRADIENTS * rounding * residual * curvature / before < gradient
        ):
            return None
        return first_passed(self.tests(row, first))

    def tests(self, row: Row, first: Row) -> tuple[Test, ...]:
        """Return what :meth:`verdict` looks at.

        Beyond convergence the gradient is rounding, which the ratios of its squares blow up to infinity in the end. A
        gradient of that size is that of the exact solution for an operator that differs by rounding.
        """
        gradient, residual, curvature, before = row
        rounding = self.precision**2
        least = over(_OF_GRADIENTS * rounding * residual * curvature, before)
        return (
            (not_finite(gradient, residual), Status.NOT_FINITE),
            (gradient <= self.tol, Status.CONVERGED),
            ((residual < self.rtol**2 * first[1]) | (residual < self.enough**2), Status.CONVERGED),
            (residual <= rounding * first[1], Status.COMPATIBLE_TO_ROUNDING),
            (gradient <= least, Status.LEAST_SQUARES_TO_ROUNDING),
        )

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the array that was first not finite; of a finite one, the residual is made of the image."""
        residual_square = row[1]
        if residual_square - residual_square == 0:
            return "gradient"
        return "image" if iteration else "residual"

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norms of the residual, damping not included."""
        return np.sqrt(rows[:, 1])

    def details(self, state: CGLSState, rows: np.ndarray) -> dict[str, Any]:
        """Return the norm of the gradient."""
        return {"gradient_norm": float(np.sqrt(rows[-1, 0]))}

    def optimality(self, operator: LinearOperator, data: Any, x: Any) -> Any:
        """Return half the negative gradient of the objective, which is zero at the solution."""
        gradient = operator._adjoint(axpby(1.0, data, -1.0, operator._forward(x, None)), None)
        return axpby(-(self.damp * self.damp), x, 1.0, gradient) if takes_part(self.damp) else gradient

    def normal(self, operator: LinearOperator) -> tuple[LinearOperator, Any]:
        """Return the operator of the equations that the solution solves, and the multiple of the identity beside it."""
        return operator.H @ operator, self.damp * self.damp

    @staticmethod
    def _squares(state: CGLSState) -> tuple[Any, ...]:
        gradient, residual = state.gradient_agreed, state.residual_agreed
        return dots((gradient, gradient), (residual, residual))


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
        Where to start; zero by default.
    niter : int
        Largest number of iterations.
    damp : float
        The damping factor :math:`\epsilon`.
    tol : float
        Stop when the squared norm of :math:`A^H (y - A x) - \epsilon^2 x` is at most this. Whatever it is, the solver
        also stops where further iterations would only amplify rounding, with the status ``LEAST_SQUARES_TO_ROUNDING``
        or, if the residual vanishes, ``COMPATIBLE_TO_ROUNDING``.
    rtol : float
        Stop when the norm of the residual is below this multiple of the first; 0 for never.
    rtol1 : float
        Stop when it is below this multiple of the norm of `y`; 0 for never.
    callback : callable, optional
        Called on every rank after each iteration as ``callback(iteration, view)``, with the number of iterations
        done, and a view of the state with ``x`` (this iteration's, to be copied if it is to be kept) and
        ``residual_norm``. If it returns ``True``, on all ranks alike, the solver stops. Ranks on which it raises
        leave the others waiting for their deadline.
    progress : bool, optional
        Whether to show a progress bar on rank 0; by default where standard error is a terminal.
    graph : bool or "auto"
        On devices, whether to record one iteration as a CUDA graph and replay it: ``"auto"`` does it where the
        operator can be recorded, ``True`` insists, ``False`` launches every iteration.
    lag : int, optional
        On devices, how many iterations the host may launch before it checks the numbers of the oldest. The default
        is 0 if a tolerance can stop the solver, so that `x` is the iterate that passed the test, and otherwise 3.
        With a larger value up to ``lag + 1`` further iterations change `x`. On hosts always 0.
    checkpoint : str or path, optional
        Folder of checkpoints, which all ranks see: the last one, that is, from which the solver can go on. Without it
        nothing is written, and signals do what they did before.
    every : int or str, optional
        When one is written: a number of iterations, or a time such as ``"30s"``, ``"10m"`` or ``"2h"``; by default ten
        minutes. One more is written at the end.
    resume : bool
        Whether to go on from the checkpoint, if there is one. The result is that of a run without interruption: to the
        last bit on as many ranks of the same kind, else to rounding. Options that only decide when to stop may differ.
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
        If `y` or `x0` has not the layout of `A`.
    InputError
        If an option makes no sense.
    CheckpointError
        If there is a checkpoint, but `resume` is false; if it is damaged or that of another problem; or if one cannot
        be written. What is there stays.
    Interrupted
        If SIGTERM or SIGUSR1 has come to any rank and there are checkpoints: all ranks have written one.

    Notes
    -----
    Besides the messages of `A`, an iteration sends two scalar allreduces; on devices, of a replicated model, one. With
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
