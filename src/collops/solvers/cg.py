"""CG: conjugate gradients for Hermitian positive definite operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

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
from collops.operators import LinearOperator
from collops.solvers.driver import solve, solver
from collops.solvers.method import DOUBLE_PRECISION, Method, log2, not_finite
from collops.solvers.problem import (
    check_problem,
    check_reductions,
    check_square,
    checked_limits,
    consistent,
    starting_point,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import SCRATCH, extended, scratch_array
from collops.solvers.systems import Shifted

__all__ = ["CG", "cg"]

PERIOD = 6
"""Iterations after which pipelined methods recompute what follows by recurrences; see :class:`PipelinedCG`."""


@dataclass(slots=True)
class CGState:
    """Vectors and scalars of CG between two iterations, with the letters of the book."""

    x: Any
    r: Any  # residual, y - (A + damp) x
    z: Any = field(metadata=SCRATCH)  # M r; None without a preconditioner, where r takes its place
    p: Any  # direction
    q: Any = field(metadata=SCRATCH)  # (A + damp) p
    gamma: Any  # (r, z)
    numbers: Any = field(metadata=SCRATCH)


@dataclass(slots=True)
class SingleReductionCGState(CGState):
    """The additional state of CG with a single reduction."""

    q: Any  # by recurrence
    w: Any = field(metadata=SCRATCH)  # (A + damp) z
    curvature: Any  # (p, q)


@dataclass(slots=True)
class PipelinedCGState(SingleReductionCGState):
    """The additional state of pipelined CG; without a preconditioner z and s are ``None``."""

    z: Any  # M r, by recurrence
    w: Any  # by recurrence
    s: Any  # M q; None without a preconditioner, where q takes its place
    t: Any  # (A + damp) s
    zq: Any  # (z, q)
    sq: Any  # (s, q)
    iterations: int = 0


class CGNumbers(NamedTuple):
    """The numbers of an iteration of CG."""

    residual: Any  # squared norm of the residual r
    curvature: Any  # (p, q) of the direction p of this iteration
    product: Any  # (r, M r)


@dataclass(frozen=True)
class ConjugateGradients(Method):
    """The options of CG and CGLS, and the tests of the residual with which both end."""

    damp: float = 0.0
    tol: float = 0.0
    precision: float = DOUBLE_PRECISION
    rtol: float = 0.0
    atol: float = 0.0
    cautious: bool = True
    M: LinearOperator | None = None
    always_measured = False  # the residual is a vector that is updated with the solution, and stays close to it
    tolerances = frozenset({"tol", "precision", "rtol", "atol"})
    degrees: ClassVar[Mapping[str, Any] | None] = {"tol": (2, 0), "atol": (1, 0), "damp": (0, 1), "M": (0, -1)}
    stops = (
        (lambda self, now, first: now.residual <= self.rtol * self.rtol * first.residual, Status.CONVERGED, "rtol"),
        (lambda self, now, first: now.residual <= self.atol * self.atol, Status.CONVERGED, "atol"),
        (lambda self, now, first: now.residual <= self.precision**2 * first.residual, Status.COMPATIBLE_TO_ROUNDING),
    )


@dataclass(frozen=True)
class CG(ConjugateGradients, Shifted):
    """Conjugate gradients [Hestenes and Stiefel 1952], with a preconditioner [Saad 2003, section 9.2].

    Attributes
    ----------
    damp, tol, rtol, atol, M
        As for :func:`cg`; without any of the tolerances by default.
    precision : float
        Relative size of rounding errors: a residual that is smaller, relative to the first, cannot be distinguished
        from 0. With 0 the solver does not stop there.
    cautious : bool
        Whether a step that is not finite leaves the solution unchanged.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import CG, solve
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> solve(CG(tol=1e-12), A, collops.ones(3), niter=10).x.gather()
    array([1.  , 0.5 , 0.25])
    """

    name = "CG"
    numbers = CGNumbers
    stops = (
        (lambda self, now, first: not_finite(now.residual), Status.NOT_FINITE),
        (lambda self, now, first: now.residual <= self.tol, Status.CONVERGED),
        (lambda self, now, first: now.product < 0, Status.INDEFINITE, "M"),
        *ConjugateGradients.stops,
    )

    def init(self, A: LinearOperator, y: Any, x0: Any) -> CGState:
        state = self._begin(A, y, x0)
        state.gamma, rho = self._products(state)
        state.numbers = rho, rho, state.gamma
        return state

    def _begin(self, A: LinearOperator, y: Any, x0: Any) -> CGState:
        """Return the state before the first iteration, without its inner products."""
        x, r, q = starting_point(A, y, x0, image_of=self.image)
        memory = None if self.M is None else scratch_array(A.domain, x, x.dtype)
        state = CGState(x, r, memory, r, q, None, None)
        state.p = self._preconditioned(state).copy()
        return state

    def step(self, A: LinearOperator, state: CGState) -> CGState:
        """Minimise along the direction, and find the next one."""
        q = state.q = self.image(A, state.p, state.q)
        (delta,) = dots((state.p, q))
        curvature = _curvature(A, delta)
        alpha = quotient(state.gamma, curvature)
        state.r, square = axpby_and_square(-alpha, q, 1.0, state.r, out=state.r)
        if self.M is None:
            z = state.r
            (gamma,) = dots(*consistent(square))
            rho = gamma
        else:
            z = self._preconditioned(state)
            gamma, rho = self._products(state)
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, z)
        state.gamma, state.numbers = gamma, (rho, curvature, gamma)
        return state

    def magnitudes(self, now: Any, before: Any, state: Any) -> Sequence[float]:
        if before is None or before.residual == 0:
            return ()
        product, curvature = log2(before.product), log2(now.curvature)
        return product, curvature, 4 * product - 2 * curvature - log2(before.residual)

    def recomputed(self, A: LinearOperator, y: Any, x: Any, x0: Any, state: Any, now: Any) -> Any:
        r = starting_point(A, y, x, image_of=self.image)[1]
        return now._replace(residual=dots(*consistent((r, r)))[0])

    def details(self, state: CGState, history: CGNumbers) -> dict[str, Any]:
        return {"condition": condition_number(history.product, history.curvature)}

    def tangent(self, A: LinearOperator, tol: Any) -> tuple[CG, LinearOperator]:
        return CG(self.damp, tol, M=self.M), A

    def _preconditioned(self, state: CGState) -> Any:
        """Return z = M r, or r itself without a preconditioner."""
        if self.M is None:
            return state.r
        state.z = self.M._forward(state.r, state.z)
        return state.z

    def _products(self, state: CGState, *others: tuple[Any, Any]) -> tuple[Any, ...]:
        """Return (r, z), |r|^2 and the products of other pairs, in one message."""
        return self._named(dots(*self._pairs(state, *others)))

    def _pairs(self, state: CGState, *others: tuple[Any, Any]) -> Sequence[tuple[Any, Any]]:
        r = state.r
        return consistent(*([] if self.M is None else [(r, state.z)]), (r, r), *others)

    def _named(self, products: tuple[Any, ...]) -> tuple[Any, ...]:
        gamma, *more = products
        return (gamma, *products) if self.M is None else (gamma.real, *more)


class SingleReductionCG(CG):
    """CG with one reduction for each iteration: its inner products share a message.

    The rearrangement is that of Chronopoulos and Gear [1989]: q follows p by the same recurrence, so that all inner
    products are known once the operator has been applied to the residual. They derive the curvature of the next
    direction from that of the last one and orthogonality, which loses accuracy: with ill-conditioned matrices the error
    was up to 1e9 times larger. Here it is expanded into three inner products.
    """

    name = "CG with a single reduction"

    def init(self, A: LinearOperator, y: Any, x0: Any) -> Any:
        begin = self._begin(A, y, x0)
        w = self.image(A, begin.p, begin.q)
        begin.q = w.copy()
        begin.gamma, rho, delta = self._products(begin, (begin.p, w))
        begin.numbers = rho, rho, begin.gamma
        return extended(SingleReductionCGState, begin, w=w, curvature=_curvature(A, delta))

    def step(self, A: LinearOperator, state: Any) -> Any:
        curvature = state.curvature
        alpha = quotient(state.gamma, curvature)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        direction = self._preconditioned(state)
        state.w = self.image(A, direction, state.w)
        pairs = (direction, state.w), (direction, state.q), (state.p, state.q)
        gamma, rho, zw, zq, pq = self._products(state, *pairs)
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, direction)
        state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        state.gamma, state.numbers = gamma, (rho, curvature, gamma)
        state.curvature = _curvature(A, square_of_sum(zw.real, zq.real, pq.real, beta))
        return state


class PipelinedCG(SingleReductionCG):
    """CG whose one reduction overlaps with the operator: predict and recompute [Chen and Carson 2020].

    The products of an iteration predict the next (r, z), and with it the next directions, whose image is computed while
    their products are under way. The prediction only serves the directions: steps have the measured number. Errors of
    recurrences grow, so that once in six iterations z and w are recomputed, and in the next one q. To recompute w in
    every iteration, as the authors do, doubles the work of the operator and saves few iterations; to replace the
    residual as well delays convergence.
    """

    name = "pipelined CG"
    always_measured = True  # further recurrences make the residual drift
    traceable = False

    def init(self, A: LinearOperator, y: Any, x0: Any) -> Any:
        begin = super().init(A, y, x0)
        s = None if self.M is None else self.M._forward(begin.q, scratch_array(A.domain, y, begin.r.dtype))
        t = self.image(A, begin.q if s is None else s, scratch_array(A.domain, y, begin.r.dtype))
        (sq,) = dots(*consistent((begin.q if s is None else s, begin.q)))
        return extended(PipelinedCGState, begin, s=s, t=t, zq=begin.curvature, sq=sq.real)

    def step(self, A: LinearOperator, state: Any) -> Any:
        curvature = state.curvature
        alpha = quotient(state.gamma, curvature)
        beta = quotient(predicted_square(state.gamma, state.zq, state.sq, alpha), state.gamma)
        state.x = axpby(finite(alpha) if self.cautious else alpha, state.p, 1.0, state.x, out=state.x)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        state.iterations += 1
        if state.iterations % PERIOD == PERIOD - 1:
            direction = self._preconditioned(state)
            state.w = self.image(A, direction, state.w)
        else:
            if self.M is not None:
                state.z = axpby(-alpha, state.s, 1.0, state.z, out=state.z)
            direction = state.r if self.M is None else state.z
            state.w = axpby(-alpha, state.t, 1.0, state.w, out=state.w)
        state.p = axpby(1.0, direction, beta, state.p, out=state.p)
        if state.iterations % PERIOD == 0:
            state.q = self.image(A, state.p, state.q)
        else:
            state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        if self.M is not None:
            state.s = self.M._forward(state.q, state.s)
        image = state.q if self.M is None else state.s
        finish = start_dots(*self._pairs(state, (state.p, state.q), (direction, state.q), (image, state.q)))
        state.t = self.image(A, image, state.t)
        state.gamma, rho, pq, zq, sq = self._named(finish())
        state.curvature, state.zq, state.sq = _curvature(A, pq), zq.real, sq.real
        state.numbers = rho, curvature, state.gamma
        return state


def predicted_square(square: Any, product: Any, change: Any, alpha: Any) -> Any:
    """Return the square of ``z - alpha s`` from inner products of both; 0 where rounding makes it negative."""
    return max(square_of_sum(square, product, change, -alpha), 0.0)


def _curvature(A: LinearOperator, value: Any) -> Any:
    """Return the inner product of a direction with its image, which is real in exact arithmetic.

    For an operator that is linear over the real numbers only, the real part is the inner product.
    """
    return abs(value) if A.clinear else value.real


def condition_number(products: np.ndarray, curvatures: np.ndarray) -> float:
    """Return the condition number of a preconditioned operator that CG has met; NaN before the first iteration.

    It approaches that of the operator from below. The numbers of the iterations are the elements of a tridiagonal
    matrix, whose eigenvalues are Ritz values [Saad 2003, section 6.7.3].
    """
    with np.errstate(all="ignore"):
        alpha, beta = products[:-1] / curvatures[1:], products[1:] / products[:-1]
        usable = np.isfinite(alpha) & np.isfinite(beta) & (alpha > 0)
    count = len(usable) if usable.all() else int(np.argmin(usable))
    if not count:
        return math.nan
    alpha, beta = alpha[:count], np.maximum(beta[: count - 1], 0)
    diagonal = 1 / alpha
    diagonal[1:] += beta / alpha[:-1]
    ends = [
        float(eigvalsh_tridiagonal(diagonal, np.sqrt(beta) / alpha[:-1], select="i", select_range=(place, place))[0])
        for place in (0, count - 1)
    ]
    return ends[1] / ends[0] if ends[0] > 0 else math.inf


@solver
def cg(
    A: LinearOperator,
    y: Any,
    x0: Any = None,
    *,
    niter: int = 10,
    damp: float = 0.0,
    rtol: float | None = None,
    atol: float = 0.0,
    tol: float | None = None,
    reductions: int | str = 2,
    M: LinearOperator | None = None,
    **run: Any,
) -> SolverResult:
    r"""Solve :math:`(A + \epsilon I) x = y` by conjugate gradients [Hestenes and Stiefel 1952]. Collective.

    Parameters
    ----------
    A : LinearOperator
        Hermitian positive definite, with one layout on both sides.
    y, x0, niter, reductions
        As for :func:`cgls`.
    damp : float
        The multiple :math:`\epsilon` of the identity that is added to `A`.
    rtol, atol : float, optional
        Stop when the norm of the residual, :math:`y - (A + \epsilon I) x`, is at most `rtol` times the norm of `y`, or
        at most `atol`; with `x0` as well. `rtol` is 1e-5 by default, and 0 where `tol` is given. The solver also
        stops where the residual is no larger than rounding errors, with the status ``COMPATIBLE_TO_ROUNDING``.
    tol : float, optional
        Stop when the *squared* norm of the residual is at most this, as in PyLops, in the squared units of `y`.
    M : LinearOperator, optional
        The preconditioner: Hermitian positive definite, in the layout of `A`, and close to the inverse of
        :math:`A + \epsilon I`. Tolerances apply to the residual as without it. The solver stops with the status
        ``INDEFINITE`` where the inner product of `r` and `M r` is negative.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        The solution, and the history of the iteration. In its details: ``condition``, an estimate from below of the
        condition number of :math:`A + \epsilon I`, with a preconditioner of the product of both.

    Raises
    ------
    LayoutError, InputError
        If `A` has two layouts, `y`, `x0` or `M` does not have that of `A`, or an option is invalid.

    Notes
    -----
    Besides the messages of `A` and `M`, an iteration sends two scalar allreduces; one with a replicated model, with
    ``reductions=1`` or with ``"pipelined"``. A preconditioner adds its own messages only, and one vector; pipelined CG
    keeps one vector more than with ``reductions=1``, or two with a preconditioner. Its message overlaps with `A`, not
    with `M`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> collops.cg(A, collops.ones(3), niter=10, rtol=1e-6).x.gather()
    array([1.  , 0.5 , 0.25])
    """
    check_problem(A, y, x0, niter, M)
    check_square("cg", A, "; cgls takes any")
    kind = {2: CG, 1: SingleReductionCG, "pipelined": PipelinedCG}[check_reductions(reductions, y)]
    method = kind(**checked_limits(A, y, x0, damp, tol, rtol, atol), M=M)
    return solve(method, A, y, x0, niter=niter, parts=[M], **run)
