"""BiCGStab: the stabilised method of biconjugate gradients, for square systems that need not be symmetric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from collops.array import Array, Finite, axpby, divide, dots
from collops.operators import LinearOperator
from collops.solvers.driver import solve, solver
from collops.solvers.method import log2
from collops.solvers.problem import consistent, starting_point
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import SCRATCH, Numbers, Scalar, State, scratch_array
from collops.solvers.systems import SquareSystem, checked_system


@dataclass(slots=True)
class BiCGStabState:
    """State of BiCGStab between iterations, in the notation of Van der Vorst (1992)."""

    x: Array
    r: Array  # residual, y - A x
    p: Array  # direction
    v: Array | None = field(metadata=SCRATCH)  # A M p
    t: Array | None = field(metadata=SCRATCH)  # A M s
    Mp: Array | None = field(metadata=SCRATCH)
    Ms: Array | None = field(metadata=SCRATCH)
    rho: Scalar  # (shadow, r)
    numbers: Sequence[Scalar] = field(metadata=SCRATCH)
    shadow: Array  # the first residual
    shadow_norm: Scalar


class BiCGStabNumbers(NamedTuple):
    """The numbers of an iteration of BiCGStab."""

    residual: Scalar  # its norm
    pivot: Scalar  # smallest cosine of the inner products in denominators; 1 before the first iteration
    image: Scalar  # squared norm of the image of the direction; 0 before the first iteration


@dataclass(frozen=True)
class BiCGStab(SquareSystem):
    """BiCGStab [Van der Vorst 1992], preconditioned from the right. Pivots up to `precision` count as zero."""

    name = "BiCGStab"
    numbers = BiCGStabNumbers
    stops = (*SquareSystem.stops, (lambda self, now, first: now.pivot <= self.precision, Status.BREAKDOWN))

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> BiCGStabState:
        x, r, v = starting_point(A, y, x0)
        t, *preconditioned = (scratch_array(r.layout, r, r.dtype) for _ in range(1 if self.M is None else 3))
        Mp, Ms = preconditioned or (None, None)
        (rho,) = dots(*consistent((r, r)))
        norm = y.engine.xp.sqrt(rho)
        rho = rho.astype(np.result_type(r.dtype, rho.dtype))
        return BiCGStabState(x, r, r.copy(), v, t, Mp, Ms, rho, (norm, norm * 0 + 1, norm * 0), r.copy(), norm)

    def step(self, A: LinearOperator, state: BiCGStabState) -> BiCGStabState:
        """Take the BiCG step, then minimise the residual along the residual."""
        xp, shadow, p = state.x.engine.xp, state.shadow, state.p
        Mp = state.Mp = self.preconditioned(p, state.Mp)
        v = state.v = A._forward(Mp, state.v)
        shadow_v, vv = dots(*consistent((shadow, v), (v, v)))
        alpha = divide(state.rho, shadow_v)
        s = axpby(-alpha, v, 1.0, state.r, out=state.r)
        Ms = state.Ms = self.preconditioned(s, state.Ms)
        t = state.t = A._forward(Ms, state.t)
        ss, ts, tt, shadow_s, shadow_t = dots(*consistent((s, s), (t, s), (t, t), (shadow, s), (shadow, t)))
        omega = divide(ts, tt)
        alpha = alpha + (omega - omega)  # if either is not finite, both leave x unchanged
        x = axpby(Finite((1.0, alpha)), Mp, 1.0, state.x, out=state.x)
        state.x = axpby(Finite((1.0, omega)), Ms, 1.0, x, out=x)
        r = state.r = axpby(-omega, t, 1.0, s, out=s)
        rho = shadow_s - omega * shadow_t
        beta = divide(rho, state.rho) * divide(alpha, omega)
        p = axpby(-omega, v, 1.0, p, out=p)
        state.p = axpby(1.0, r, beta, p, out=p)

        # The square of s - omega t by the Pythagorean theorem, with a rounding error relative to the square of s.
        rr = xp.maximum(ss - xp.abs(ts * xp.conj(omega)), np.finfo(ss.dtype).eps * ss)
        residual, norm = xp.sqrt(rr), state.shadow_norm
        angles = (rho, norm * residual), (shadow_v, norm * xp.sqrt(vv)), (ts, xp.sqrt(ss) * xp.sqrt(tt))
        first, second, third = (divide(xp.abs(product), size) for product, size in angles)
        state.rho, state.numbers = rho, (residual, xp.minimum(xp.minimum(first, second), third), vv)
        return state

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        if before is None or before.residual == 0:
            return ()
        image = log2(now.image)
        return image, 4 * log2(before.residual) - image

    def cotangent(self, A: LinearOperator, tol: Scalar) -> tuple[BiCGStab, LinearOperator]:
        method, _ = self.tangent(A, tol)
        return replace(method, M=None if self.M is None else self.M.H), A.H


@solver
def bicgstab(
    A: LinearOperator,
    y: Array,
    x0: Array | None = None,
    *,
    niter: int = 100,
    M: LinearOperator | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    **run: Any,
) -> SolverResult:
    r"""Solve :math:`A x = y` by BiCGStab [Van der Vorst 1992]. Collective.

    Parameters
    ----------
    A, y, x0, rtol, atol
        As for :func:`gmres`.
    niter : int
        Largest number of iterations, each with two applications of `A`.
    M : LinearOperator, optional
        The right preconditioner, which approximates the inverse of `A`; the residual remains :math:`y - A x`.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        Its status is ``BREAKDOWN`` if the recurrence cannot be continued, because an inner product in a denominator
        is zero to rounding.

    Raises
    ------
    LayoutError, InputError
        As for :func:`gmres`.

    Notes
    -----
    Besides the messages of `A` and `M`, an iteration sends two scalar allreduces.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> collops.bicgstab(A, collops.ones(3), rtol=1e-12).x.gather().round(6)
    array([1.  , 0.5 , 0.25])
    """
    method = BiCGStab(**checked_system("bicgstab", A, y, x0, niter, M, rtol, atol))
    return solve(method, A, y, x0, niter=niter, parts=[M], **run)
