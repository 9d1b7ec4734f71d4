"""CG: conjugate gradients for Hermitian positive definite operators.

This module has the textbook step; ``variants`` has other steps and chooses between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg.lapack import dstebz

from collops.array import Array, axpby, dots, finite, quotient, update_solution_and_direction
from collops.operators import LinearOperator
from collops.solvers.driver import solve, solver
from collops.solvers.method import DOUBLE_PRECISION, Degrees, Method, log2, not_finite
from collops.solvers.problem import (
    check_plain,
    check_problem,
    check_reductions,
    check_square,
    checked_limits,
    consistent,
    starting_point,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import SCRATCH, Numbers, Scalar, State
from collops.solvers.systems import Shifted

__all__ = ["CG", "cg"]


@dataclass(slots=True)
class CGState:
    """State of CG between iterations, in the notation of Saad (2003)."""

    x: Array
    r: Array  # residual, y - (A + damp) x
    p: Array  # direction
    q: Array | None = field(metadata=SCRATCH)  # (A + damp) p
    gamma: Scalar  # (r, r), with a preconditioner (r, M r)
    numbers: Sequence[Scalar] = field(metadata=SCRATCH)


class CGNumbers(NamedTuple):
    """The numbers of an iteration of CG."""

    residual: Scalar  # squared norm of the residual r
    curvature: Scalar  # (p, q) of the direction p of this iteration
    product: Scalar  # (r, M r)


@dataclass(frozen=True)
class ConjugateGradients(Method):
    """The options of CG and CGLS, and the stopping tests of the residual."""

    damp: float = 0.0
    tol: float = 0.0
    precision: float = DOUBLE_PRECISION
    rtol: float = 0.0
    atol: float = 0.0
    cautious: bool = True
    M: LinearOperator | None = None
    always_measured = False  # the residual vector is updated with the solution, and stays close to the true residual
    tolerances = frozenset({"tol", "precision", "rtol", "atol"})
    degrees: ClassVar[Degrees] = {"tol": (2, 0), "atol": (1, 0), "damp": (0, 1), "M": (0, -1)}
    stops = (
        (lambda self, now, first: now.residual <= self.rtol * self.rtol * first.residual, Status.CONVERGED, "rtol"),
        (lambda self, now, first: now.residual <= self.atol * self.atol, Status.CONVERGED, "atol"),
        (lambda self, now, first: now.residual <= self.precision**2 * first.residual, Status.COMPATIBLE_TO_ROUNDING),
    )


@dataclass(frozen=True)
class CG(ConjugateGradients, Shifted):
    """Conjugate gradients [Hestenes and Stiefel 1952; Saad 2003, algorithm 6.18].

    Attributes
    ----------
    damp, tol, rtol, atol, M
        As for :func:`cg`; without tolerances by default.
    precision : float
        Relative size of rounding errors: the solver stops at a residual that is smaller than this multiple of the
        first, since it cannot be distinguished from 0. 0 disables this test.
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

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> CGState:
        check_plain(self, self.M is not None)
        x, r, q = starting_point(A, y, x0, image_of=self.image)
        p = r.copy()
        (gamma,) = dots(*consistent((r, r)))
        return CGState(x, r, p, q, gamma, (gamma, gamma, gamma))

    def step(self, A: LinearOperator, state: CGState) -> CGState:
        """Minimise along the direction, and compute the next one."""
        state.q = self.image(A, state.p, state.q)
        (pq,) = dots((state.p, state.q))
        curvature = curvature_of(A, pq)
        alpha = quotient(state.gamma, curvature)
        state.r = axpby(-alpha, state.q, 1.0, state.r, out=state.r)
        (gamma,) = dots(*consistent((state.r, state.r)))
        beta = quotient(gamma, state.gamma)
        alpha = finite(alpha) if self.cautious else alpha
        state.x, state.p = update_solution_and_direction(state.x, alpha, state.p, beta, state.r)
        state.gamma, state.numbers = gamma, (gamma, curvature, gamma)
        return state

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        if before is None or before.residual == 0:
            return ()
        product, curvature = log2(before.product), log2(now.curvature)
        return product, curvature, 4 * product - 2 * curvature - log2(before.residual)

    def recomputed(
        self, A: LinearOperator, y: Array, x: Array | None, x0: Array | None, state: State, now: Numbers
    ) -> Numbers | None:
        r = starting_point(A, y, x, image_of=self.image)[1]
        return now._replace(residual=dots(*consistent((r, r)))[0])

    def details(self, state: CGState, history: CGNumbers) -> dict[str, Any]:
        return {"condition": condition_number(history.product, history.curvature)}

    def tangent(self, A: LinearOperator, tol: Scalar) -> tuple[CG, LinearOperator]:
        return CG(self.damp, tol, M=self.M), A


def curvature_of(A: LinearOperator, value: Scalar) -> Scalar:
    """Return the inner product of a direction with its image, which is real in exact arithmetic.

    For an operator that is linear over the real numbers only, the real part is the inner product.
    """
    return abs(value) if A.clinear else value.real


def _eigenvalue(diagonal: np.ndarray, offdiagonal: np.ndarray, number: int) -> float:
    """Return an eigenvalue of a symmetric tridiagonal matrix by bisection; the smallest has number 1.

    It calls LAPACK directly: ``scipy.linalg.eigvalsh_tridiagonal`` adds the time of an iteration of a short solve.
    """
    count, values, _, _, failure = dstebz(diagonal, offdiagonal, 2, 0.0, 0.0, number, number, 0.0, "E")
    return float(values[0]) if count and not failure else math.nan


def condition_number(products: np.ndarray, curvatures: np.ndarray) -> float:
    """Estimate the condition number of the preconditioned operator from the iterations; NaN before the first one.

    It approaches the true condition number from below. The coefficients of the iterations define a tridiagonal matrix,
    whose eigenvalues are Ritz values [Saad 2003, section 6.7.3].
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
    if count == 1:
        return 1.0
    ends = [_eigenvalue(diagonal, np.sqrt(beta) / alpha[:-1], number) for number in (1, count)]
    return ends[1] / ends[0] if ends[0] > 0 else math.inf


@solver
def cg(
    A: LinearOperator,
    y: Array,
    x0: Array | None = None,
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
        at most `atol`; with `x0` as well. `rtol` is 1e-5 by default, and 0 if `tol` is set. The solver also stops
        when the residual is as small as rounding errors, with the status ``COMPATIBLE_TO_ROUNDING``.
    tol : float, optional
        Stop when the *squared* norm of the residual is at most this, as in PyLops, in the squared units of `y`.
    M : LinearOperator, optional
        The preconditioner: Hermitian positive definite, in the layout of `A`, and close to the inverse of
        :math:`A + \epsilon I`. Tolerances apply to the unpreconditioned residual. The solver stops with the status
        ``INDEFINITE`` if the inner product of `r` and `M r` is negative.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        The solution, and the history of the iteration. In its details: ``condition``, an estimate from below of the
        condition number of :math:`A + \epsilon I`, or of its product with the preconditioner.

    Raises
    ------
    LayoutError, InputError
        If `A` has two layouts, `y`, `x0` or `M` has another layout, or an option is invalid.

    Notes
    -----
    Besides the messages of `A` and `M`, an iteration sends two scalar allreduces; one with a replicated model, with
    ``reductions=1`` or with ``"pipelined"``. A preconditioner takes memory for one more vector. Pipelined CG takes
    memory for one vector more than ``reductions=1``, or two with a preconditioner; its message overlaps with `A`, not
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
    method = CG(**checked_limits(A, y, x0, damp, tol, rtol, atol), M=M)
    return solve(method.variant(y, check_reductions(reductions, y)), A, y, x0, niter=niter, parts=[M], **run)
