"""CG: conjugate gradients for Hermitian positive definite operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from collops.array import axpby, dots, finite, quotient, square_of_sum, update_solution_and_direction
from collops.errors import LayoutError
from collops.operators import LinearOperator
from collops.solvers.driver import solve, solver
from collops.solvers.method import DOUBLE_PRECISION, Method, not_finite
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

__all__ = ["CG"]


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
    consistent: Callable[[Any], Any] = field(metadata=CONSTANT)  # see rank_consistently


@dataclass(slots=True)
class SingleReductionCGState(CGState):
    """The additional state of CG with a single reduction."""

    q: Any  # by recurrence
    w: Any = field(metadata=SCRATCH)  # (A + damp) z
    curvature: Any  # (p, q)


class CGNumbers(NamedTuple):
    """The numbers of an iteration of CG."""

    residual: Any  # squared norm of the residual r
    curvature: Any  # (p, q) of the direction p of this iteration
    product: Any  # (r, M r)


@dataclass(frozen=True)
class ConjugateGradients(Method):
    """The options of CG and CGLS, and the tests of the residual with which both end."""

    damp: float = 0.0
    tol: float = 1e-4
    precision: float = DOUBLE_PRECISION
    rtol: float = 0.0
    atol: float = 0.0
    cautious: bool = True
    M: LinearOperator | None = None
    tolerances = frozenset({"tol", "precision", "rtol", "atol"})
    stops = (
        (lambda self, now, first: now.residual < self.rtol * self.rtol * first.residual, Status.CONVERGED, "rtol"),
        (lambda self, now, first: now.residual < self.atol * self.atol, Status.CONVERGED, "atol"),
        (lambda self, now, first: now.residual <= self.precision**2 * first.residual, Status.COMPATIBLE_TO_ROUNDING),
    )


@dataclass(frozen=True)
class CG(ConjugateGradients):
    """Conjugate gradients [Hestenes and Stiefel 1952], with a preconditioner [Saad 2003, section 9.2].

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
    M : LinearOperator, optional
        The preconditioner, Hermitian positive definite.

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
        dtype = working_dtype(A, y, x0)
        x, r, q = starting_point(A, y, x0, dtype, partial(self._image, A))
        memory = None if self.M is None else scratch_array(A.domain, y, dtype)
        state = CGState(x, r, memory, r, q, None, None, rank_consistently(r))
        state.p = self._preconditioned(state).copy()
        return state

    def step(self, A: LinearOperator, state: CGState) -> CGState:
        """Minimise along the direction, and find the next one."""
        q = state.q = self._image(A, state.p, state.q)
        (delta,) = dots((state.p, q))
        curvature = _curvature(A, delta)
        alpha = quotient(state.gamma, curvature)
        state.r = axpby(-alpha, q, 1.0, state.r, out=state.r)
        if self.M is None:
            z, r = state.r, state.consistent(state.r)
            (gamma,) = dots((r, r))
            rho = gamma
        else:
            z = self._preconditioned(state)
            gamma, rho = self._products(state)
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, z)
        state.gamma, state.numbers = gamma, (rho, curvature, gamma)
        return state

    def report(self, state: CGState) -> tuple[Any, ...]:
        return state.numbers

    def suspect(self, now: CGNumbers, iteration: int) -> str:
        return "image" if iteration else "residual"

    def residual_norm(self, now: CGNumbers) -> Any:
        return now.residual**0.5

    def details(self, state: CGState, history: CGNumbers) -> dict[str, Any]:
        return {"condition": condition_number(history.product, history.curvature)}

    def optimality(self, A: LinearOperator, y: Any, x: Any) -> Any:
        """Return the residual, which is zero at the solution."""
        return axpby(1.0, y, -1.0, self._image(A, x, None))

    def tangent(self, A: LinearOperator, tol: Any) -> tuple[CG, LinearOperator]:
        return CG(self.damp, tol, M=self.M), A

    def _image(self, A: LinearOperator, x: Any, out: Any) -> Any:
        image = A._forward(x, out)
        return axpby(self.damp, x, 1.0, image, out=image) if takes_part(self.damp) else image

    def _preconditioned(self, state: CGState) -> Any:
        """Return z = M r, or r itself without a preconditioner."""
        if self.M is None:
            return state.r
        state.z = self.M._forward(state.r, state.z)
        return state.z

    def _products(self, state: CGState, *others: tuple[Any, Any]) -> tuple[Any, ...]:
        """Return (r, z), |r|^2 and the products of other pairs, in one message."""
        r = state.consistent(state.r)
        if self.M is None:
            products = dots((r, r), *others)
            return products[0], *products
        gamma, *more = dots((r, state.consistent(state.z)), (r, r), *others)
        return gamma.real, *more


class SingleReductionCG(CG):
    """CG with one reduction for each iteration: its inner products share a message.

    The rearrangement is that of Chronopoulos and Gear [1989]: q follows p by the same recurrence, so that all inner
    products are known once the operator has been applied to the residual; for the curvature see the notes of
    :func:`collops.solvers.cgls`.
    """

    name = "CG with a single reduction"

    def init(self, A: LinearOperator, y: Any, x0: Any) -> Any:
        begin = self._begin(A, y, x0)
        w = self._image(A, begin.p, begin.q)
        begin.q = w.copy()
        begin.gamma, rho, delta = self._products(begin, (begin.consistent(begin.p), begin.consistent(w)))
        begin.numbers = rho, rho, begin.gamma
        shared = {each.name: getattr(begin, each.name) for each in fields(begin)}
        return SingleReductionCGState(**shared, w=w, curvature=_curvature(A, delta))

    def step(self, A: LinearOperator, state: Any) -> Any:
        """Minimise along the direction, and find the next one."""
        curvature = state.curvature
        alpha = quotient(state.gamma, curvature)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        direction = self._preconditioned(state)
        state.w = self._image(A, direction, state.w)
        z, w, p, q = map(state.consistent, (direction, state.w, state.p, state.q))
        gamma, rho, zw, zq, pq = self._products(state, (z, w), (z, q), (p, q))
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, direction)
        state.q = axpby(1.0, state.w, beta, state.q, out=state.q)
        state.gamma, state.numbers = gamma, (rho, curvature, gamma)
        state.curvature = _curvature(A, square_of_sum(zw.real, zq.real, pq.real, beta))
        return state


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
    tol: float = 1e-4,
    rtol: float = 0.0,
    rtol1: float = 0.0,
    reductions: int = 2,
    M: LinearOperator | None = None,
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
    Besides the messages of `A` and `M`, an iteration sends two scalar allreduces; one with a replicated model or with
    ``reductions=1``. A preconditioner adds its own only, and one vector.

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
    check_preconditioner(M, A.domain)
    method = kind(**checked_limits(A, y, x0, damp, tol, rtol, rtol1), M=M)
    return solve(method, A, y, x0, niter=niter, parts=[M], **run)
