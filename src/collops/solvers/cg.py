"""CG: conjugate gradients for Hermitian positive definite operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from collops.array import axpby, dots, finite, quotient, square_of_sum, update_solution_and_direction
from collops.errors import LayoutError
from collops.operators import LinearOperator
from collops.solvers.driver import solve, solver
from collops.solvers.method import DOUBLE_PRECISION, Method, not_finite
from collops.solvers.problem import (
    check_problem,
    check_reductions,
    checked_limits,
    rank_consistently,
    starting_point,
    takes_part,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import CONSTANT, SCRATCH

__all__ = ["CG"]


@dataclass(slots=True)
class CGState:
    """Vectors and scalars of CG between two iterations, with the letters of the book."""

    x: Any
    r: Any  # residual, y - (A + damp) x
    p: Any  # direction
    q: Any = field(metadata=SCRATCH)  # (A + damp) p
    gamma: Any  # |r|^2
    consistent: Callable[[Any], Any] = field(metadata=CONSTANT)  # see rank_consistently


@dataclass(slots=True)
class SingleReductionCGState(CGState):
    """The additional state of CG with a single reduction."""

    q: Any  # by recurrence
    w: Any = field(metadata=SCRATCH)  # (A + damp) r
    curvature: Any  # (p, q)


class CGNumbers(NamedTuple):
    """The number of an iteration of CG: the squared norm of the residual."""

    residual: Any


@dataclass(frozen=True)
class ConjugateGradients(Method):
    """The options of CG and CGLS, and the tests of the residual with which both end."""

    damp: float = 0.0
    tol: float = 1e-4
    precision: float = DOUBLE_PRECISION
    rtol: float = 0.0
    atol: float = 0.0
    cautious: bool = True
    tolerances = frozenset({"tol", "precision", "rtol", "atol"})
    stops = (
        (lambda self, now, first: now.residual < self.rtol * self.rtol * first.residual, Status.CONVERGED, "rtol"),
        (lambda self, now, first: now.residual < self.atol * self.atol, Status.CONVERGED, "atol"),
        (lambda self, now, first: now.residual <= self.precision**2 * first.residual, Status.COMPATIBLE_TO_ROUNDING),
    )


@dataclass(frozen=True)
class CG(ConjugateGradients):
    """Conjugate gradients [Hestenes and Stiefel 1952].

    Attributes
    ----------
    damp : float
        Multiple of the identity that is added to the operator.
    tol : float
        Bound on the squared norm of the residual.
    precision : float
        Relative size of rounding errors: a residual that is smaller, relative to the first, cannot be distinguished
        from 0. With 0 the solver does not stop there.
    rtol, atol : float
        Bounds on the norm of the residual, relative to the first and absolute.
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
        *ConjugateGradients.stops,
    )

    def init(self, A: LinearOperator, y: Any, x0: Any) -> CGState:
        x, r, q = starting_point(A, y, x0, working_dtype(A, y, x0), partial(self._image, A))
        consistent = rank_consistently(r)
        together = consistent(r)
        (gamma,) = dots((together, together))
        return CGState(x, r, r.copy(), q, gamma, consistent)

    def step(self, A: LinearOperator, state: CGState) -> CGState:
        """Minimise along the direction, and find the next one."""
        q = state.q = self._image(A, state.p, state.q)
        (delta,) = dots((state.p, q))
        alpha = quotient(state.gamma, _curvature(A, delta))
        state.r = axpby(-alpha, q, 1.0, state.r, out=state.r)
        together = state.consistent(state.r)
        (gamma,) = dots((together, together))
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, state.r)
        state.gamma = gamma
        return state

    def report(self, state: CGState) -> tuple[Any, ...]:
        return (state.gamma,)

    def suspect(self, now: CGNumbers, iteration: int) -> str:
        return "image" if iteration else "residual"

    def residual_norm(self, now: CGNumbers) -> Any:
        return now.residual**0.5

    def optimality(self, A: LinearOperator, y: Any, x: Any) -> Any:
        """Return the residual, which is zero at the solution."""
        return axpby(1.0, y, -1.0, self._image(A, x, None))

    def tangent(self, A: LinearOperator, tol: Any) -> tuple[CG, LinearOperator]:
        return CG(self.damp, tol), A

    def _image(self, A: LinearOperator, x: Any, out: Any) -> Any:
        image = A._forward(x, out)
        return axpby(self.damp, x, 1.0, image, out=image) if takes_part(self.damp) else image


class SingleReductionCG(CG):
    """CG with one reduction for each iteration: its inner products share a message.

    The rearrangement is that of Chronopoulos and Gear [1989]: q follows p by the same recurrence, so that all inner
    products are known once the operator has been applied to the residual; for the curvature see the notes of
    :func:`collops.solvers.cgls`.
    """

    name = "CG with a single reduction"

    def init(self, A: LinearOperator, y: Any, x0: Any) -> Any:
        x, r, w = starting_point(A, y, x0, working_dtype(A, y, x0), partial(self._image, A))
        consistent = rank_consistently(r)
        w = self._image(A, r, w)
        together = consistent(r)
        gamma, delta = dots((together, together), (together, consistent(w)))
        return SingleReductionCGState(x, r, r.copy(), w.copy(), gamma, consistent, w, _curvature(A, delta))

    def step(self, A: LinearOperator, state: Any) -> Any:
        """Minimise along the direction, and find the next one."""
        alpha = quotient(state.gamma, state.curvature)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        state.w = self._image(A, state.r, state.w)
        r, w, p, q = map(state.consistent, (state.r, state.w, state.p, state.q))
        gamma, rw, rq, pq = dots((r, r), (r, w), (r, q), (p, q))
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, state.r)
        state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        state.gamma = gamma
        state.curvature = _curvature(A, square_of_sum(rw.real, rq.real, pq.real, beta))
        return state


def _curvature(A: LinearOperator, value: Any) -> Any:
    """Return the inner product of a direction with its image, which is real in exact arithmetic.

    For an operator that is linear over the real numbers only, the real part is the inner product.
    """
    return abs(value) if A.clinear else value.real


@solver
def cg(
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
    **run: Any,
) -> SolverResult:
    r"""Solve :math:`(A + \epsilon I) x = y` by conjugate gradients [Hestenes and Stiefel 1952]. Collective.

    Parameters
    ----------
    A : LinearOperator
        Hermitian positive definite, with one layout on both sides.
    y, x0, niter, rtol, rtol1, reductions
        As for :func:`cgls`.
    damp : float
        The multiple :math:`\epsilon` of the identity that is added to `A`.
    tol : float
        Stop when the squared norm of the residual is at most this. The solver always stops where the residual is no
        larger than rounding errors of the first one, with the status ``COMPATIBLE_TO_ROUNDING``.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        The solution, and the history of the iteration.

    Raises
    ------
    LayoutError, InputError
        If `A` has two layouts, `y` or `x0` does not have that of `A`, or an option is invalid.

    Notes
    -----
    Besides the messages of `A`, an iteration sends two scalar allreduces; one with a replicated model or with
    ``reductions=1``.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> collops.cg(A, collops.ones(3), niter=10, tol=1e-12).x.gather()
    array([1.  , 0.5 , 0.25])
    """
    check_problem(A, y, x0, niter)
    if A.domain is not A.range:
        raise LayoutError(f"cg needs an operator with one layout on both sides, not {A!r}; cgls takes any")
    kind = SingleReductionCG if check_reductions(reductions) == 1 else CG
    method = kind(**checked_limits(A, y, x0, damp, tol, rtol, rtol1))
    return solve(method, A, y, x0, niter=niter, **run)
