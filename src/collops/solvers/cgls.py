"""CGLS: conjugate gradients for least squares.

This module has the textbook step; ``variants`` has other steps and chooses between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collops.array import Array, axpby, dots, finite, quotient, update_solution_and_direction
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops.solvers.cg import CG, ConjugateGradients, condition_number
from collops.solvers.driver import solve, solver
from collops.solvers.method import log2, not_finite, over
from collops.solvers.problem import (
    RTOL,
    check_number,
    check_plain,
    check_problem,
    check_reductions,
    checked_limits,
    consistent,
    explained_by_rounding,
    root_of_largest,
    starting_point,
    takes_part,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import SCRATCH, Numbers, Scalar, State, Truth

__all__ = ["CGLS", "cgls"]

GRADIENT_UNITS = 10.0
"""Rounding errors of gradients, in units of the rounding of their products: measured below 1 with ten unknowns, and 7
with two thousand."""


@dataclass(slots=True)
class CGLSState:
    """State of CGLS between iterations, in the notation of Björck (1996)."""

    x: Array
    r: Array  # residual, y - A x
    s: Array | None = field(metadata=SCRATCH)  # A^H r, half the negative gradient; M^H (A^H r - damp^2 x) in variants
    p: Array  # direction
    q: Array | None = field(metadata=SCRATCH)  # A p
    gamma: Scalar  # |s|^2
    numbers: Sequence[Scalar] = field(metadata=SCRATCH)


class CGLSNumbers(NamedTuple):
    """The numbers of an iteration of CGLS, all of them squared norms.

    ``curvature / before`` bounds the square of the norm of A M from below.
    """

    gradient: Scalar  # s
    residual: Scalar
    curvature: Scalar  # curvature of the objective along a direction
    before: Scalar  # the gradient that led to this direction


@dataclass(frozen=True)
class CGLS(ConjugateGradients):
    """Conjugate gradients on the normal equations [Hestenes and Stiefel 1952; Björck 1996, sections 7.4 and 7.5].

    With a right preconditioner `M` it minimises over z, where x = M z. `damp` is the damping factor, `tol` bounds the
    squared norm of the gradient, and `gtol` its norm relative to the gradient at zero; for other options see
    :class:`CG`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import CGLS, solve
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> solve(CGLS(tol=1e-12), A, collops.ones(3), niter=10).x.gather().round(6)
    array([1.  , 0.5 , 0.25])
    """

    gtol: float = 0.0
    name = "CGLS"
    numbers = CGLSNumbers
    tolerances = ConjugateGradients.tolerances | {"gtol"}
    stops = (
        (lambda self, now, first: not_finite(now.gradient, now.residual, now.curvature), Status.NOT_FINITE),
        (lambda self, now, first: now.gradient <= self.tol, Status.CONVERGED),
        *ConjugateGradients.stops,
        (lambda self, now, first: now.gradient <= self.gtol * self.gtol * first.gradient, Status.CONVERGED, "gtol"),
        # The exact solution for an operator perturbed by rounding has a gradient of this size [Stewart 1977].
        # Further iterations would amplify rounding errors without bound.
        (
            lambda self, now, first: (
                now.gradient <= GRADIENT_UNITS**2 * self.precision**2 * now.residual * over(now.curvature, now.before)
            ),
            Status.LEAST_SQUARES_TO_ROUNDING,
        ),
    )

    @property
    def degrees(self) -> dict[str, tuple[float, float]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The powers of the units; see :class:`Method`. A preconditioner has the inverse unit of the operator."""
        of_gradient = 1 if self.M is None else 0
        of_gradients = {"tol": (2, 2 * of_gradient), "gradient_norm": (1, of_gradient)}
        return {**of_gradients, "atol": (1, 0), "damp": (0, 1), "M": (0, -1)}

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        if before is not None:  # include the squares of the damping and of the image of a preconditioner
            return () if math.isfinite(now.curvature) else (math.nan,)
        if now.residual == 0:
            return ()
        gradient, residual = log2(now.gradient), log2(now.residual)
        return gradient, 2 * gradient - residual, 2 * residual - gradient

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> CGLSState:
        check_plain(self, self.M is not None or takes_part(self.damp))
        x, r, q = starting_point(A, y, x0)
        s = A._adjoint(r, new_array(A.domain, x, x.dtype))
        p = s.copy()
        gamma, rho = dots(*consistent((s, s), (r, r)))
        return CGLSState(x, r, s, p, q, gamma, (gamma, rho, gamma * 0, gamma))

    def step(self, A: LinearOperator, state: CGLSState) -> CGLSState:
        """Minimise along the direction, and compute the next one."""
        state.q = A._forward(state.p, state.q)
        (delta,) = dots((state.q, state.q))
        alpha = quotient(state.gamma, delta)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        state.s = A._adjoint(state.r, state.s)
        gamma, rho = dots(*consistent((state.s, state.s), (state.r, state.r)))
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, state.s)
        state.gamma, state.numbers = gamma, (gamma, rho, delta, state.gamma)
        return state

    def suspect(self, now: CGLSNumbers, iteration: int) -> str:
        if now.residual - now.residual == 0 and now.gradient - now.gradient != 0:
            return "gradient"
        return super().suspect(now, iteration)

    def details(self, state: CGLSState, history: CGLSNumbers) -> dict[str, Any]:
        squared = condition_number(history.gradient, history.curvature)
        return {"gradient_norm": float(history.gradient[-1] ** 0.5), "condition": squared**0.5}

    def recomputed(
        self, A: LinearOperator, y: Array, x: Array | None, x0: Array | None, state: State, now: Numbers
    ) -> Numbers | None:
        _, r, _ = starting_point(A, y, x)
        g = A._adjoint(r, None)
        if takes_part(self.damp) and x is not None:
            g = axpby(-self.damp * self.damp, x, 1.0, g, out=g)
        s = g if self.M is None else self.M._adjoint(g, None)
        gradient, residual = dots(*consistent((s, s), (r, r)))
        return now._replace(gradient=gradient, residual=residual)

    def at_rounding(self, A: LinearOperator, y: Array, x: Array, now: Numbers, history: Numbers) -> tuple[Truth, Truth]:
        xp, before = x.engine.xp if x.engine.traced else np, history.before
        norm = root_of_largest(history.curvature / xp.where(before > 0, before, 1))
        return explained_by_rounding(norm, y, x, now.residual**0.5, now.gradient**0.5)

    def optimality(self, A: LinearOperator, y: Array, x: Array) -> Array:
        """Return half the negative gradient of the objective, which is zero at the solution."""
        s = A._adjoint(axpby(1.0, y, -1.0, A._forward(x, None)), None)
        return axpby(-self.damp * self.damp, x, 1.0, s) if takes_part(self.damp) else s

    def tangent(self, A: LinearOperator, tol: Scalar) -> tuple[CG, LinearOperator]:
        return CG(self.damp * self.damp, tol, M=None if self.M is None else self.M @ self.M.H), A.H @ A


@solver
def cgls(
    A: LinearOperator,
    y: Array,
    x0: Array | None = None,
    *,
    niter: int = 10,
    damp: float = 0.0,
    rtol: float | None = None,
    atol: float = 0.0,
    gtol: float | None = None,
    tol: float | None = None,
    reductions: int | str = 2,
    M: LinearOperator | None = None,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|^2 + \epsilon^2 \|x\|^2` by CGLS [Björck 1996, section 7.4]. Collective.

    Parameters
    ----------
    A : LinearOperator
        Any shape.
    y, x0 : DistributedArray or StackedArray
        The data, in the range of `A`, and the initial guess, zero by default. The precision of `y` determines the
        precision of the computation.
    niter : int
        The maximum number of iterations.
    damp : float
        The damping factor :math:`\epsilon`.
    rtol, atol : float, optional
        Stop when the norm of the residual, :math:`y - A x`, is at most `rtol` times the norm of `y`, or at most `atol`;
        with `x0` as well. `rtol` is 1e-5 by default, and 0 if `tol` is set.
    gtol : float, optional
        Stop when the norm of the gradient, :math:`A^H (y - A x) - \epsilon^2 x`, is at most `gtol` times the norm of
        :math:`A^H y`, for inconsistent data; with a preconditioner both are multiplied by :math:`M^H`. The default is
        as for `rtol`. The solver also stops when only rounding errors remain (``LEAST_SQUARES_TO_ROUNDING``).
    tol : float, optional
        Stop when the *squared* norm of the gradient is at most this, as in PyLops, in the squared units of `A` and `y`.
    reductions : {2, 1, "pipelined"}
        Scalar reductions per iteration. With 1, all inner products share one message, which is faster with many ranks,
        or short vectors on several devices. ``"pipelined"`` overlaps this message with the application of `A`, for
        arrays on the host; for other arrays it is the same as 1. The page on solvers compares them.
    M : LinearOperator, optional
        The right preconditioner, in the layout of the model, with an adjoint; it need not be symmetric. The solver
        minimises over :math:`z`, where :math:`x = M z`, and converges fast if :math:`A M` is nearly a multiple of a
        unitary matrix: for `M` near the inverse of `A` or of the root of :math:`A^H A`. `damp` still penalises `x`.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        In its details: ``gradient_norm``, which the tolerances bound, and ``condition``, a lower estimate of the
        condition number of :math:`A M`, or with damping of :math:`[A; \epsilon I] M`.

    Raises
    ------
    LayoutError, InputError
        If `y`, `x0` or `M` does not have the layout of `A`, or an option is invalid.

    Notes
    -----
    Besides the messages of `A` and `M`, an iteration sends two scalar allreduces, or one with ``reductions=1`` or
    ``"pipelined"``. The iterates agree with ``pylops.optimization.basic.cgls``, except that with both `x0` and `damp`
    the first gradient has the square of `damp`, like all others.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.VStack([np.vander([1.0, 2.0, 3.0, 4.0], 2)])  # a line through four points
    >>> data = collops.from_local(np.array([3.0, 5.0, 7.0, 9.0]), A.range)
    >>> collops.cgls(A, data, niter=10, rtol=1e-10).x.gather().round(6)
    array([2., 1.])
    """
    check_problem(A, y, x0, niter, M)
    limits = checked_limits(A, y, x0, damp, tol, rtol, atol)
    if gtol is None:
        gtol = RTOL if tol is None else 0.0
    method = CGLS(**limits, M=M, gtol=check_number("gtol", gtol))
    return solve(method.variant(y, check_reductions(reductions, y)), A, y, x0, niter=niter, parts=[M], **run)
