"""CGLS: conjugate gradients for least squares, with damping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collops.array import (
    axpby,
    axpby_and_square,
    dots,
    finite,
    quotient,
    square_of_sum,
    start_dots,
    update_solution_and_direction,
)
from collops.array.fused import Square
from collops.operators import LinearOperator
from collops.operators.base import new_array
from collops.solvers.cg import CG, PERIOD, ConjugateGradients, condition_number, predicted_square
from collops.solvers.driver import solve, solver
from collops.solvers.method import log2, not_finite, over
from collops.solvers.problem import (
    RTOL,
    check_number,
    check_problem,
    check_reductions,
    checked_limits,
    consistent,
    explained_by_rounding,
    has_copies,
    root_of_largest,
    starting_point,
    takes_part,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import CONSTANT, SCRATCH, extended, scratch_array

__all__ = ["CGLS", "SingleReductionCGLS", "cgls"]

GRADIENT_UNITS = 10.0
"""Rounding of gradients, in units of the rounding of their products: the smallest gradients seen were below 1 with ten
unknowns, and 7 with two thousand."""


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
    one_message: bool = field(metadata=CONSTANT)  # see CGLS.step


@dataclass(slots=True)
class SingleReductionCGLSState(CGLSState):
    """The additional state of CGLS with a single reduction."""

    q: Any  # by recurrence
    w: Any = field(metadata=SCRATCH)  # A t
    curvature: Any  # |q|^2 + damp^2 |p|^2


@dataclass(slots=True)
class PipelinedCGLSState(SingleReductionCGLSState):
    """The additional state of pipelined CGLS; without a preconditioner u is ``None``."""

    s: Any  # by recurrence
    t: Any  # by recurrence
    w: Any  # by recurrence
    v: Any  # M^H (A^H q + damp^2 p)
    u: Any  # M v; None without a preconditioner, where v takes its place
    e: Any  # A u
    sv: Any  # (s, v)
    vv: Any  # |v|^2
    iterations: int = 0


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

    With a preconditioner `M` from the right it minimises over z, where x = M z. `damp` is the damping factor, `tol`
    bounds the squared norm of the gradient, and `gtol` its norm relative to that at zero; the other options are those
    of :class:`CG`.

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
        # The exact solution for an operator that differs by rounding has a gradient of this size [Stewart 1977].
        # Further iterations would amplify rounding errors, in the end to infinity.
        (
            lambda self, now, first: (
                now.gradient <= GRADIENT_UNITS**2 * self.precision**2 * now.residual * over(now.curvature, now.before)
            ),
            Status.LEAST_SQUARES_TO_ROUNDING,
        ),
    )

    @property
    def degrees(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The powers of the units; see :class:`Method`. A preconditioner has the inverse unit of the operator."""
        of_gradient = 1 if self.M is None else 0
        of_gradients = {"tol": (2, 2 * of_gradient), "gradient_norm": (1, of_gradient)}
        return {**of_gradients, "atol": (1, 0), "damp": (0, 1), "M": (0, -1)}

    def magnitudes(self, now: Any, before: Any, state: Any) -> Sequence[float]:
        if before is not None:  # the squares of a damping and of the image of a preconditioner count, too
            return () if math.isfinite(now.curvature) else (math.nan,)
        if now.residual == 0:
            return ()
        gradient, residual = log2(now.gradient), log2(now.residual)
        return gradient, 2 * gradient - residual, 2 * residual - gradient

    def init(self, A: LinearOperator, y: Any, x0: Any) -> CGLSState:
        x, r, q = starting_point(A, y, x0)
        s = new_array(A.domain, x, x.dtype)
        g, t = (None if self.M is None else scratch_array(A.domain, x, x.dtype) for _ in range(2))
        state = CGLSState(x, r, g, s, t, s, q, None, None, False)
        s, square = self._gradient(A, state)
        state.p = self._in_model(state).copy()
        gamma, rho = dots(*consistent(square, (r, r)))
        state.one_message = has_copies(s) and not any(takes_part(getattr(self, name)) for name in self.tolerances)
        state.gamma, state.numbers = gamma, (gamma, rho, gamma * 0, gamma)
        return state

    def step(self, A: LinearOperator, state: CGLSState) -> CGLSState:
        """Minimise along the direction, and find the next one."""
        p, damp, damped = state.p, self.damp, takes_part(self.damp)
        q, square = A._forward_and_square(p, state.q)
        state.q = q
        pairs = [square, (p, p)] if damped else [square]
        if state.one_message:
            pairs += [(q, state.r), (state.r, state.r)]
        qq, *others = dots(*pairs)
        delta = qq + damp * damp * others[0] if damped else qq
        alpha = quotient(state.gamma, delta)
        length = finite(alpha) if self.cautious else alpha
        state.r, square_of_r = axpby_and_square(-alpha, q, 1.0, state.r, out=state.r)
        if damped:
            state.x = axpby(length, p, 1.0, state.x, out=state.x)
        s, square_of_s = self._gradient(A, state)
        t = s if self.M is None else self._in_model(state)
        if state.one_message:
            # Every rank has all of s. Without tolerances the ranks need not agree on its square to the last bit.
            (gamma,) = dots(square_of_s)
            rho = square_of_sum(others[-1], others[-2].real, qq, -alpha)
        else:
            gamma, rho = dots(*consistent(square_of_s, square_of_r))
        beta = quotient(gamma, state.gamma)
        if damped:
            state.p = axpby(1.0, t, beta, p, out=p)
        else:
            state.x, state.p = update_solution_and_direction(state.x, length, p, beta, t)
        state.gamma, state.numbers = gamma, (gamma, rho, delta, state.gamma)
        return state

    def suspect(self, now: CGLSNumbers, iteration: int) -> str:
        if now.residual - now.residual == 0 and now.gradient - now.gradient != 0:
            return "gradient"
        return super().suspect(now, iteration)

    def details(self, state: CGLSState, history: CGLSNumbers) -> dict[str, Any]:
        squared = condition_number(history.gradient, history.curvature)
        return {"gradient_norm": float(history.gradient[-1] ** 0.5), "condition": squared**0.5}

    def recomputed(self, A: LinearOperator, y: Any, x: Any, x0: Any, state: Any, now: Any) -> Any:
        _, r, _ = starting_point(A, y, x)
        g = A._adjoint(r, None)
        if takes_part(self.damp) and x is not None:
            g = axpby(-self.damp * self.damp, x, 1.0, g, out=g)
        s = g if self.M is None else self.M._adjoint(g, None)
        gradient, residual = dots(*consistent((s, s), (r, r)))
        return now._replace(gradient=gradient, residual=residual)

    def at_rounding(self, A: LinearOperator, y: Any, x: Any, now: Any, history: Any) -> tuple[Any, Any]:
        xp, before = x.engine.xp if x.engine.traced else np, history.before
        norm = root_of_largest(history.curvature / xp.where(before > 0, before, 1))
        return explained_by_rounding(norm, y, x, now.residual**0.5, now.gradient**0.5)

    def optimality(self, A: LinearOperator, y: Any, x: Any) -> Any:
        """Return half the negative gradient of the objective, which is zero at the solution."""
        s = A._adjoint(axpby(1.0, y, -1.0, A._forward(x, None)), None)
        return axpby(-self.damp * self.damp, x, 1.0, s) if takes_part(self.damp) else s

    def tangent(self, A: LinearOperator, tol: Any) -> tuple[CG, LinearOperator]:
        return CG(self.damp * self.damp, tol, M=None if self.M is None else self.M @ self.M.H), A.H @ A

    def _gradient(self, A: LinearOperator, state: CGLSState) -> tuple[Any, Square]:
        """Return s = M^H (A^H r - damp^2 x), and its square."""
        state.s, square = self._back(A, state, state.r, -1, state.x, state.s)
        return state.s, square

    def _back(self, A: LinearOperator, state: CGLSState, image: Any, sign: int, x: Any, out: Any) -> tuple[Any, Square]:
        """Return M^H (A^H image + sign damp^2 x), and its square."""
        damped, weight = takes_part(self.damp), sign * self.damp * self.damp
        if self.M is None:
            if not damped:
                return A._adjoint_and_square(image, out)
            g = A._adjoint(image, out)
            return axpby_and_square(weight, x, 1.0, g, out=g)
        state.g = A._adjoint(image, state.g)
        if damped:
            state.g = axpby(weight, x, 1.0, state.g, out=state.g)
        return self.M._adjoint_and_square(state.g, out)

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
        curvature, *pp = dots(*consistent((q, q), *([] if self.M is None else [(begin.p, begin.p)])))
        if takes_part(self.damp):
            curvature = curvature + self.damp * self.damp * (pp[0] if pp else begin.gamma)
        begin.q = q.copy()
        begin.numbers = *begin.numbers[:2], curvature, begin.gamma
        return extended(SingleReductionCGLSState, begin, w=q, curvature=curvature)

    def step(self, A: LinearOperator, state: Any) -> Any:
        damped = takes_part(self.damp)
        alpha = quotient(state.gamma, state.curvature)
        length = finite(alpha) if self.cautious else alpha
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        if damped:
            state.x = axpby(length, state.p, 1.0, state.x, out=state.x)
        _, square = self._gradient(A, state)
        in_model = self._in_model(state)
        state.w = A._forward(in_model, state.w)
        gamma, rho, ww, wq, qq = self._named(dots(*self._pairs(state, in_model, square)))
        beta = quotient(gamma, state.gamma)
        if damped:
            state.p = axpby(1.0, in_model, beta, state.p, out=state.p)
        else:
            state.x, state.p = update_solution_and_direction(state.x, length, state.p, beta, in_model)
        state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        state.gamma, state.curvature = gamma, square_of_sum(ww, wq.real, qq, beta)
        state.numbers = gamma, rho, state.curvature, gamma
        return state

    def _pairs(self, state: Any, t: Any, square: Square) -> Sequence[tuple[Any, Any]]:
        """Return the pairs whose products are the numbers of an iteration; `t` is the gradient in the model."""
        r, w, q, p = state.r, state.w, state.q, state.p
        pairs = [square, (r, r), (w, w), (q, w), (q, q)]
        if takes_part(self.damp):
            pairs += [(p, t), (p, p)] if self.M is None else [(p, t), (p, p), (t, t)]
        return consistent(*pairs)

    def _named(self, products: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the squares of s and r, and the inner products of w and q in the metric of the curvature."""
        gamma, rho, ww, wq, qq, *lengths = products
        if lengths:
            tp, pp, *tt = lengths
            squared = self.damp * self.damp
            ww = ww + squared * (tt[0] if tt else gamma)
            wq, qq = wq.real + squared * tp.real, qq + squared * pp
        return gamma, rho, ww, wq, qq

    def details(self, state: Any, history: CGLSNumbers) -> dict[str, Any]:
        # The curvature along a direction is known one iteration earlier.
        return super().details(state, history._replace(curvature=np.roll(history.curvature, 1)))


class PipelinedCGLS(SingleReductionCGLS):
    """CGLS whose one reduction overlaps with operator and preconditioner; see :class:`collops.solvers.cg.PipelinedCG`.

    In exact arithmetic it is that method for the normal equations, but where it recomputes the image of the gradient,
    it takes the gradient from the residual of the data, as CGLS does.
    """

    name = "pipelined CGLS"
    traceable = False

    def init(self, A: LinearOperator, y: Any, x0: Any) -> Any:
        begin = super().init(A, y, x0)
        model, data = ((layout, y, begin.r.dtype) for layout in (A.domain, A.range))
        v, square = self._back(A, begin, begin.q, 1, begin.p, scratch_array(*model))
        u = None if self.M is None else self.M._forward(v, scratch_array(*model))
        e = A._forward(v if u is None else u, scratch_array(*data))
        sv, vv = dots(*consistent((begin.s, v), square))
        return extended(PipelinedCGLSState, begin, v=v, u=u, e=e, sv=sv.real, vv=vv)

    def step(self, A: LinearOperator, state: Any) -> Any:
        damped = takes_part(self.damp)
        alpha = quotient(state.gamma, state.curvature)
        beta = quotient(predicted_square(state.gamma, state.sv, state.vv, alpha), state.gamma)
        state.x = axpby(finite(alpha) if self.cautious else alpha, state.p, 1.0, state.x, out=state.x)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        state.iterations += 1
        if state.iterations % PERIOD == PERIOD - 1:
            self._gradient(A, state)
            t = self._in_model(state)
            state.w = A._forward(t, state.w)
        else:
            state.s = axpby(-alpha, state.v, 1.0, state.s, out=state.s)
            if self.M is not None:
                state.t = axpby(-alpha, state.u, 1.0, state.t, out=state.t)
            t = state.s if self.M is None else state.t
            state.w = axpby(-alpha, state.e, 1.0, state.w, out=state.w)
        state.p = axpby(1.0, t, beta, state.p, out=state.p)
        if state.iterations % PERIOD == 0:
            state.q = A._forward(state.p, state.q)
        else:
            state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        s, r, p, q = state.s, state.r, state.p, state.q
        v, square = self._back(A, state, q, 1, p, state.v)  # M^H (A^H q + damp^2 p)
        state.v = v
        lengths = [(p, p)] if damped else []
        finish = start_dots(*consistent((s, s), (r, r), (q, q), (s, v), square, *lengths))
        if self.M is not None:
            state.u = v = self.M._forward(v, state.u)
        state.e = A._forward(v, state.e)
        gamma, rho, curvature, sv, state.vv, *pp = finish()
        state.gamma, state.sv = gamma, sv.real
        state.curvature = curvature + self.damp * self.damp * pp[0] if pp else curvature
        state.numbers = gamma, rho, state.curvature, gamma
        return state


@solver
def cgls(
    A: LinearOperator,
    y: Any,
    x0: Any = None,
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
    y : DistributedArray or StackedArray
        The data, in the range of `A`. Its precision is that of the computation.
    x0 : DistributedArray or StackedArray, optional
        The starting point; zero by default.
    niter : int
        Largest number of iterations.
    damp : float
        The damping factor :math:`\epsilon`.
    rtol, atol : float, optional
        Stop when the norm of the residual, :math:`y - A x`, is at most `rtol` times the norm of `y`, or at most `atol`;
        with `x0` as well. `rtol` is 1e-5 by default, and 0 where `tol` is given.
    gtol : float, optional
        Stop when the norm of the gradient, :math:`A^H (y - A x) - \epsilon^2 x`, is at most `gtol` times the norm of
        :math:`A^H y`; with a preconditioner both are multiplied by :math:`M^H`, for the gradient with respect to
        :math:`z`. Data that no model explains stop the solver in this way. The default is that of `rtol`. The solver
        always stops where further iterations would only amplify rounding, with the status
        ``LEAST_SQUARES_TO_ROUNDING`` or, if the residual vanishes, ``COMPATIBLE_TO_ROUNDING``.
    tol : float, optional
        Stop when the *squared* norm of the gradient is at most this, as in PyLops. Its unit is that of `A` times that
        of `y`, squared.
    reductions : {2, 1, "pipelined"}
        Scalar reductions in an iteration. With 1 all inner products share one message. This costs more passes over the
        vectors, memory for two more of them in the layout of `y`, and at the start one more application of `A`. It pays
        off where the latency of a message outweighs that: with many ranks, or short vectors on several devices.
        ``"pipelined"`` sends this one message while `A` is applied (to the model), for arrays on the host; other arrays
        cannot overlap with messages, and are solved as with 1. See the notes.
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
        In its details: ``gradient_norm``, the norm of the gradient that the tolerances bound, and ``condition``,
        an estimate from below of the condition number of :math:`A M`, or with damping of :math:`[A; \epsilon I] M`.

    Raises
    ------
    LayoutError, InputError
        If `y`, `x0` or `M` does not have the layout of `A`, or an option is invalid.

    Notes
    -----
    Besides the messages of `A` and `M`, an iteration sends two scalar allreduces, or one with ``reductions=1`` or
    ``"pipelined"``. The class without any tolerance, ``CGLS(tol=0, precision=0)``, sends one if the model is
    replicated, since each rank then has the whole gradient.

    With ``reductions=1`` the recurrence is that of Chronopoulos and Gear [1989], with ``"pipelined"`` that of Chen and
    Carson [2020], which takes a quarter more applications of `A` and its adjoint, memory for one more vector in the
    layout of `y` and one in that of the model, or two with `M`, and one more application of both at the start. The page
    on solvers compares their iterations and accuracy.

    The iterates are those of ``pylops.optimization.basic.cgls``, except that with both `x0` and `damp` the first
    gradient has the square of `damp`, as all others have.

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
    kind = {2: CGLS, 1: SingleReductionCGLS, "pipelined": PipelinedCGLS}[check_reductions(reductions, y)]
    limits = checked_limits(A, y, x0, damp, tol, rtol, atol)
    if gtol is None:
        gtol = RTOL if tol is None else 0.0
    method = kind(**limits, M=M, gtol=check_number("gtol", gtol))
    return solve(method, A, y, x0, niter=niter, parts=[M], **run)
