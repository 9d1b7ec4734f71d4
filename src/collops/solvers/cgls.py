"""CGLS: conjugate gradients for least squares, with damping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from collops.array import axpby, dots, finite, quotient, square_of_sum, update_solution_and_direction
from collops.operators import LinearOperator
from collops.operators.base import new_array
from collops.solvers.cg import CG, ConjugateGradients, condition_number
from collops.solvers.driver import solve, solver
from collops.solvers.method import not_finite, over
from collops.solvers.problem import (
    check_preconditioner,
    check_problem,
    check_reductions,
    checked_limits,
    rank_consistently,
    starting_point,
    takes_part,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import CONSTANT, SCRATCH, scratch_array

__all__ = ["CGLS", "SingleReductionCGLS"]

_OF_GRADIENTS = 10.0**2
"""Square of the rounding of gradients in units of that of their products: the smallest gradients seen were below 1 with
ten unknowns, and 7 with two thousand."""


@dataclass(slots=True)
class CGLSState:
    """Vectors and scalars of CGLS between two iterations, with the letters of the book."""

    x: Any
    r: Any  # residual, y - A x
    g: Any = field(metadata=SCRATCH)  # A^H r - damp^2 x, half the negative gradient; None without a preconditioner
    s: Any = field(metadata=SCRATCH)  # M^H g; without a preconditioner g itself
    t: Any = field(metadata=SCRATCH)  # M s; None without a preconditioner
    p: Any  # direction
    q: Any = field(metadata=SCRATCH)  # A p
    gamma: Any  # |s|^2
    numbers: Any = field(metadata=SCRATCH)
    consistent_s: Callable[[Any], Any] = field(metadata=CONSTANT)  # see rank_consistently
    consistent_r: Callable[[Any], Any] = field(metadata=CONSTANT)
    one_message: bool = field(metadata=CONSTANT)  # see CGLS.step


@dataclass(slots=True)
class SingleReductionCGLSState(CGLSState):
    """The additional state of CGLS with a single reduction."""

    q: Any  # by recurrence
    w: Any = field(metadata=SCRATCH)  # A t
    curvature: Any  # |q|^2 + damp^2 |p|^2


class CGLSNumbers(NamedTuple):
    """The numbers of an iteration of CGLS, all of them squared norms.

    ``curvature / before`` bounds the square of the norm of A M from below.
    """

    gradient: Any  # s
    residual: Any
    curvature: Any  # of the objective along a direction
    before: Any  # the gradient that led to this direction


@dataclass(frozen=True)
class CGLS(ConjugateGradients):
    """Conjugate gradients on the normal equations [Hestenes and Stiefel 1952; Björck 1996, sections 7.4 and 7.5].

    With a preconditioner `M` from the right it minimises over z, where x = M z. `damp` is the damping factor, and `tol`
    bounds the squared norm of the gradient; the other options are those of :class:`CG`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import CGLS, solve
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> solve(CGLS(tol=1e-12), A, collops.ones(3), niter=10).x.gather().round(6)
    array([1.  , 0.5 , 0.25])
    """

    name = "CGLS"
    numbers = CGLSNumbers
    stops = (
        (lambda self, now, first: not_finite(now.gradient, now.residual, now.curvature), Status.NOT_FINITE),
        (lambda self, now, first: now.gradient <= self.tol, Status.CONVERGED),
        *ConjugateGradients.stops,
        # The exact solution for an operator that differs by rounding has a gradient of this size [Stewart 1977].
        # Further iterations would amplify rounding errors, in the end to infinity.
        (
            lambda self, now, first: (
                now.gradient <= _OF_GRADIENTS * self.precision**2 * now.residual * over(now.curvature, now.before)
            ),
            Status.LEAST_SQUARES_TO_ROUNDING,
        ),
    )

    def init(self, A: LinearOperator, y: Any, x0: Any) -> CGLSState:
        dtype = working_dtype(A, y, x0)
        x, r, q = starting_point(A, y, x0, dtype, A._forward)
        s = new_array(A.domain, y, dtype)
        g, t = (None if self.M is None else scratch_array(A.domain, y, dtype) for _ in range(2))
        state = CGLSState(x, r, g, s, t, s, q, None, None, rank_consistently(s), rank_consistently(r), False)
        s = self._gradient(A, state, takes_part(self.damp) and x0 is not None)
        state.p = self._in_model(state).copy()
        of_s, of_r = state.consistent_s(s), state.consistent_r(r)
        gamma, rho = dots((of_s, of_s), (of_r, of_r))
        state.one_message = of_s is not s and not any(takes_part(getattr(self, name)) for name in self.tolerances)
        state.gamma, state.numbers = gamma, (gamma, rho, gamma, gamma)
        return state

    def step(self, A: LinearOperator, state: CGLSState) -> CGLSState:
        """Minimise along the direction, and find the next one."""
        p, damp, damped = state.p, self.damp, takes_part(self.damp)
        q = state.q = A._forward(p, state.q)
        pairs = [(q, q), (p, p)] if damped else [(q, q)]
        if state.one_message:
            pairs += [(q, state.r), (state.r, state.r)]
        qq, *others = dots(*pairs)
        delta = qq + damp * damp * others[0] if damped else qq
        alpha = quotient(state.gamma, delta)
        length = finite(alpha) if self.cautious else alpha
        r = state.r = axpby(-alpha, q, 1.0, state.r, out=state.r)
        if damped:
            state.x = axpby(length, p, 1.0, state.x, out=state.x)
        s = self._gradient(A, state, damped)
        t = self._in_model(state)
        if state.one_message:
            # Every rank has all of s. Without tolerances the ranks need not agree on its square to the last bit.
            (gamma,) = dots((s, s))
            rho = square_of_sum(others[-1], others[-2].real, qq, -alpha)
        else:
            of_s, of_r = state.consistent_s(s), state.consistent_r(r)
            gamma, rho = dots((of_s, of_s), (of_r, of_r))
        beta = quotient(gamma, state.gamma)
        if damped:
            state.p = axpby(1.0, t, beta, p, out=p)
        else:
            state.x, state.p = update_solution_and_direction(state.x, length, p, beta, t)
        state.gamma, state.numbers = gamma, (gamma, rho, delta, state.gamma)
        return state

    def report(self, state: CGLSState) -> tuple[Any, ...]:
        return state.numbers

    def suspect(self, now: CGLSNumbers, iteration: int) -> str:
        if now.residual - now.residual == 0 and now.gradient - now.gradient != 0:
            return "gradient"
        return "image" if iteration else "residual"

    def residual_norm(self, now: CGLSNumbers) -> Any:
        return abs(now.residual) ** 0.5  # a square from inner products may be below 0 by rounding

    def details(self, state: CGLSState, history: CGLSNumbers) -> dict[str, Any]:
        squared = condition_number(history.gradient, history.curvature)
        return {"gradient_norm": float(history.gradient[-1] ** 0.5), "condition": squared**0.5}

    def optimality(self, A: LinearOperator, y: Any, x: Any) -> Any:
        """Return half the negative gradient of the objective, which is zero at the solution."""
        s = A._adjoint(axpby(1.0, y, -1.0, A._forward(x, None)), None)
        return axpby(-self.damp * self.damp, x, 1.0, s) if takes_part(self.damp) else s

    def tangent(self, A: LinearOperator, tol: Any) -> tuple[CG, LinearOperator]:
        return CG(self.damp * self.damp, tol, M=None if self.M is None else self.M @ self.M.H), A.H @ A

    def _gradient(self, A: LinearOperator, state: CGLSState, damped: bool) -> Any:
        """Return s = M^H (A^H r - damp^2 x)."""
        g = A._adjoint(state.r, state.s if self.M is None else state.g)
        if damped:
            g = axpby(-self.damp * self.damp, state.x, 1.0, g, out=g)
        if self.M is None:
            state.s = g
        else:
            state.g, state.s = g, self.M._adjoint(g, state.s)
        return state.s

    def _in_model(self, state: CGLSState) -> Any:
        """Return t = M s, or s itself without a preconditioner."""
        if self.M is None:
            return state.s
        state.t = self.M._forward(state.s, state.t)
        return state.t


class SingleReductionCGLS(CGLS):
    """CGLS with one reduction for each iteration: its inner products share a message.

    The rearrangement is that of :class:`collops.solvers.cg.SingleReductionCG`.
    """

    name = "CGLS with a single reduction"

    def init(self, A: LinearOperator, y: Any, x0: Any) -> Any:
        begin = super().init(A, y, x0)
        q = A._forward(begin.p, begin.q)
        of_q, of_p = begin.consistent_r(q), begin.consistent_s(begin.p)
        curvature, *pp = dots((of_q, of_q), *([] if self.M is None else [(of_p, of_p)]))
        if takes_part(self.damp):
            curvature = curvature + self.damp * self.damp * (pp[0] if pp else begin.gamma)
        begin.q = q.copy()
        shared = {each.name: getattr(begin, each.name) for each in fields(begin)}
        return SingleReductionCGLSState(**shared, w=q, curvature=curvature)

    def step(self, A: LinearOperator, state: Any) -> Any:
        """Minimise along the direction, and find the next one."""
        damp, damped, before = self.damp, takes_part(self.damp), (state.curvature, state.gamma)
        alpha = quotient(state.gamma, state.curvature)
        length = finite(alpha) if self.cautious else alpha
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        if damped:
            state.x = axpby(length, state.p, 1.0, state.x, out=state.x)
        s = self._gradient(A, state, damped)
        in_model = self._in_model(state)
        state.w = A._forward(in_model, state.w)
        r, w, q = map(state.consistent_r, (state.r, state.w, state.q))
        s, p, t = map(state.consistent_s, (s, state.p, in_model))
        pairs = (s, s), (r, r), (w, w), (q, w), (q, q)
        if damped:
            lengths = [(p, t), (p, p)] if self.M is None else [(p, t), (p, p), (t, t)]
            gamma, rho, ww, wq, qq, tp, pp, *tt = dots(*pairs, *lengths)
            ww = ww + damp * damp * (tt[0] if tt else gamma)
            wq, qq = wq.real + damp * damp * tp.real, qq + damp * damp * pp
        else:
            gamma, rho, ww, wq, qq = dots(*pairs)
        beta = quotient(gamma, state.gamma)
        if damped:
            state.p = axpby(1.0, in_model, beta, state.p, out=state.p)
        else:
            state.x, state.p = update_solution_and_direction(state.x, length, state.p, beta, in_model)
        state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        state.gamma, state.curvature = gamma, square_of_sum(ww, wq.real, qq, beta)
        state.numbers = gamma, rho, *before
        return state


@solver
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
    reductions: int = 2,
    M: LinearOperator | None = None,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|^2 + \epsilon^2 \|x\|^2` by CGLS [Björck 1996, section 7.4]. Collective.

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
        Stop when the squared norm of :math:`A^H (y - A x) - \epsilon^2 x` is at most this; with a preconditioner that
        of :math:`M^H` times this vector, the gradient with respect to :math:`z`. The solver always stops
        where further iterations would only amplify rounding, with the status ``LEAST_SQUARES_TO_ROUNDING`` or, if the
        residual vanishes, ``COMPATIBLE_TO_ROUNDING``.
    rtol : float
        Stop when the norm of the residual is below this multiple of the first; 0 for never.
    rtol1 : float
        Stop when it is below this multiple of the norm of `y`; 0 for never.
    reductions : {1, 2}
        Scalar reductions in an iteration. With 1 all inner products share one message. This costs more passes over the
        vectors, memory for two more of them in the layout of `y`, and at the start one more application of `A`. It pays
        off where the latency of a message outweighs that: with many ranks, or short vectors on several devices.
    M : LinearOperator, optional
        The preconditioner, in the layout of the model, with an adjoint. It need not be symmetric. The solver minimises
        over :math:`z`, where :math:`x = M z`, and is fast where :math:`A M` is close to a multiple of a unitary matrix,
        such as for an approximate inverse of `A`, or of the root of :math:`A^H A`. The objective does not change:
        `damp` still weighs :math:`x`.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        In its details: ``gradient_norm``, the norm of the vector of which `tol` bounds the square, and ``condition``,
        an estimate from below of the condition number of :math:`A M`, or with damping of :math:`[A; \epsilon I] M`.

    Raises
    ------
    LayoutError, InputError
        If `y`, `x0` or `M` does not have the layout of `A`, or an option is invalid.

    Notes
    -----
    Besides the messages of `A` and `M`, an iteration sends two scalar allreduces, or one with ``reductions=1``. The
    class without any tolerance, ``CGLS(tol=0, precision=0)``, sends one if the model is replicated, since each rank
    then has the whole gradient.

    With ``reductions=1`` the recurrence is that of Chronopoulos and Gear [1989]. They derive the curvature of the next
    direction from that of the last one and orthogonality, which loses accuracy: with ill-conditioned matrices the error
    was up to 1e9 times larger. Here it is expanded into three inner products. The smallest gradient was then within a
    factor of 10 of that with two reductions, for condition numbers from 1e2 to 1e10, after about as many iterations.

    The iterates are those of ``pylops.optimization.basic.cgls``, except that with both `x0` and `damp` the first
    gradient has the square of `damp`, as all others have.

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
    kind = SingleReductionCGLS if check_reductions(reductions) == 1 else CGLS
    check_preconditioner(M, A.domain)
    method = kind(**checked_limits(A, y, x0, damp, tol, rtol, rtol1), M=M)
    return solve(method, A, y, x0, niter=niter, parts=[M], **run)
