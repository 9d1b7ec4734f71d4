"""MINRES: the smallest residual of a symmetric system, which may be indefinite or singular.

Scalars are always in double precision. An iteration sends one message, because Lanczos vectors are normalised after the
operator has been applied to them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from collops.array import Array, Finite, axpby, divide, dots, zeros_like
from collops.operators import LinearOperator
from collops.solvers.driver import solve, solver
from collops.solvers.method import log2
from collops.solvers.problem import check_number, consistent, explained_by_rounding, starting_point
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import Numbers, Scalar, State, Truth, scratch_array
from collops.solvers.systems import SquareSystem, checked_system

_MAX_ROUNDING = 10.0
"""Bound on the rounding errors in zeros of the tridiagonal matrix, in units of its norm and of the precision."""


@dataclass(slots=True)
class MINRESState:
    """State of MINRES between iterations, in the notation of Paige and Saunders (1975)."""

    x: Array
    r1: Array  # the last Lanczos vector is M r1 / oldb
    r2: Array  # the next one M r2 / beta
    z: Array  # M r2
    image: Array  # (A - shift) z
    w1: Array  # the previous directions, each times its gamma
    w2: Array
    alfa: Scalar  # diagonal element of the tridiagonal matrix that belongs to r2
    beta: Scalar
    oldb: Scalar
    cs: Scalar  # the last rotation
    sn: Scalar
    dbar: Scalar  # the next column after the rotations
    epsln: Scalar
    gamma1: Scalar  # diagonal elements of the triangular factor, for w1 and w2
    gamma2: Scalar
    phibar: Scalar  # norm of the residual
    tnorm2: Scalar  # square of the Frobenius norm of the tridiagonal matrix
    root: Scalar
    square: Scalar


class MINRESNumbers(NamedTuple):
    """The numbers of an iteration of MINRES, for the preconditioned system if there is a preconditioner."""

    residual: Scalar  # its norm
    gradient: Scalar  # norm of A r relative to the norm of r, for the previous residual
    anorm: Scalar  # norm of A, an estimate
    square: Scalar  # (r2, M r2), negative only if M is not positive definite


@dataclass(frozen=True)
class MINRES(SquareSystem):
    """MINRES [Paige and Saunders 1975]. The norm of a residual r is the root of ``(r, M r)``."""

    shift: float = 0.0  # multiple of the identity that is subtracted from the operator
    name = "MINRES"
    numbers = MINRESNumbers
    stops = (
        *SquareSystem.stops,
        (lambda self, now, first: now.square < 0, Status.INDEFINITE, "M"),
        # The residual lies in the null space of a singular operator.
        (
            lambda self, now, first: now.gradient <= _MAX_ROUNDING * self.precision * now.anorm,
            Status.LEAST_SQUARES_TO_ROUNDING,
        ),
    )

    @property
    def degrees(self) -> dict[str, tuple[float, float]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The powers of the units; see :class:`Method`. A preconditioner has the inverse unit of the operator."""
        norm = (1, 0 if self.M is None else -0.5)
        return {"atol": norm, "residual": norm, "shift": (0, 1), "M": (0, -1)}

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        first = now if before is None else before
        norm = log2(now.anorm)
        if first.residual == 0 or (before is None and isfinite(norm)):  # one element does not determine the norm
            return ()
        return 2 * norm, 3 * norm, 2 * (log2(first.residual) - norm)

    @property
    def added(self) -> Scalar:
        """The multiple of the identity."""
        return -self.shift

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> MINRESState:
        x, r, image = starting_point(A, y, x0, image_of=self.image)
        z = self.preconditioned(r, scratch_array(r.layout, r, r.dtype))
        image = self.image(A, z, image)
        alfa, beta, square = _measured(r, z, image)
        r1, w1, w2 = (zeros_like(r) for _ in range(3))
        zero, root = beta * 0, abs(alfa)
        rotations = zero - 1, zero, zero, zero, zero, zero
        return MINRESState(x, r1, r, z, image, w1, w2, alfa, beta, zero, *rotations, beta, alfa * alfa, root, square)

    def step(self, A: LinearOperator, state: MINRESState) -> MINRESState:
        """Compute the next Lanczos vector, and update the solution along the next direction."""
        xp, alfa, beta = state.x.engine.xp, state.alfa, state.beta
        delta = state.cs * state.dbar + state.sn * alfa
        gbar = state.sn * state.dbar - state.cs * alfa
        w = axpby(-divide(delta, state.gamma2), state.w2, -divide(state.epsln, state.gamma1), state.w1, out=state.w1)
        w = axpby(divide(1.0, beta), state.z, 1.0, w, out=w)

        r = axpby(-divide(alfa, beta), state.r2, -divide(beta, state.oldb), state.r1, out=state.r1)
        r = axpby(divide(1.0, beta), state.image, 1.0, r, out=r)
        z = state.z = self.preconditioned(r, state.z)
        state.image = self.image(A, z, state.image)
        state.alfa, state.beta, state.square = _measured(r, z, state.image)
        state.r1, state.r2, state.oldb = state.r2, r, beta
        state.tnorm2 = state.tnorm2 + 2 * (state.beta * state.beta)

        # A rotation eliminates beta. If both beta and the diagonal are zero, the residual is unchanged.
        state.epsln, state.dbar = state.sn * state.beta, -state.cs * state.beta
        state.root = xp.hypot(gbar, state.dbar)
        gamma = xp.hypot(gbar, state.beta)
        nonzero = gamma > _MAX_ROUNDING * self.precision * xp.sqrt(state.tnorm2)
        gamma = xp.where(nonzero, gamma, 0)
        state.cs, state.sn = divide(gbar, gamma), xp.where(nonzero, divide(state.beta, gamma), 1)
        phi, state.phibar = state.cs * state.phibar, state.sn * state.phibar + (state.alfa - state.alfa)
        state.tnorm2 = state.tnorm2 + state.alfa * state.alfa
        state.x = axpby(Finite((1.0, divide(phi + (state.phibar - state.phibar), gamma))), w, 1.0, state.x, out=state.x)
        state.w1, state.w2, state.gamma1, state.gamma2 = state.w2, w, state.gamma2, gamma
        return state

    def recomputed(
        self, A: LinearOperator, y: Array, x: Array | None, x0: Array | None, state: State, now: Numbers
    ) -> Numbers | None:
        _, r, image = starting_point(A, y, x, image_of=self.image)
        z = self.preconditioned(r, None)
        if x is None:
            (square,) = dots(*consistent((r, z)))
            return now._replace(residual=abs(square.real) ** 0.5)
        w = self.image(A, z, image)
        square, image_square = dots(*consistent((r, z), (w, self.preconditioned(w, None))))
        length = abs(square.real) ** 0.5
        return now._replace(residual=length, gradient=divide(abs(image_square.real) ** 0.5, length))

    def at_rounding(self, A: LinearOperator, y: Array, x: Array, now: Numbers, history: Numbers) -> tuple[Truth, Truth]:
        if self.M is not None:
            return super().at_rounding(A, y, x, now, history)
        return explained_by_rounding(now.anorm, y, x, now.residual, now.gradient * now.residual)

    def report(self, state: MINRESState) -> Sequence[Scalar]:
        return state.phibar, state.root, state.tnorm2**0.5, state.square


def _measured(r: Array, z: Array, image: Array) -> tuple[Scalar, Scalar, Scalar]:
    """Return the elements alfa and beta of the tridiagonal matrix that belong to a vector r, and the square of beta."""
    double = r.engine.dtype(np.float64)
    square, product = (value.real.astype(double) for value in dots(*consistent((r, z), (z, image))))
    return divide(product, square), abs(square) ** 0.5, square


@solver
def minres(
    A: LinearOperator,
    y: Array,
    x0: Array | None = None,
    *,
    niter: int = 100,
    shift: float = 0.0,
    M: LinearOperator | None = None,
    rtol: float = 1e-5,
    atol: float = 0.0,
    **run: Any,
) -> SolverResult:
    r"""Solve :math:`(A - \sigma I) x = y` by MINRES [Paige and Saunders 1975]. Collective.

    Parameters
    ----------
    A : LinearOperator
        Symmetric (Hermitian), definite or not, with one layout on both sides.
    y, x0, rtol, atol
        As for :func:`gmres`; with `M` the norm of a residual r is the root of :math:`r^H M r`, also for `y`.
    niter : int
        Largest number of iterations, each with one application of `A`.
    shift : float
        The multiple :math:`\sigma` of the identity that is subtracted from `A`.
    M : LinearOperator, optional
        The preconditioner, which approximates the inverse of `A`: symmetric and positive definite.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        Its status is ``LEAST_SQUARES_TO_ROUNDING`` if `A` is singular and the system has no solution, and
        ``INDEFINITE`` if `M` is not positive definite.

    Raises
    ------
    LayoutError, InputError
        As for :func:`gmres`.

    Notes
    -----
    Besides the messages of `A` and `M`, an iteration sends one scalar allreduce. Both are applied once more at the
    start.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, -2.0, 4.0]))
    >>> collops.minres(A, collops.ones(3), rtol=1e-12).x.gather().round(6)
    array([ 1.  , -0.5 ,  0.25])
    """
    options = checked_system("minres", A, y, x0, niter, M, rtol, atol)
    method = MINRES(**options, shift=check_number("shift", shift, smallest=-sys.float_info.max))
    return solve(method, A, y, x0, niter=niter, parts=[M], **run)
