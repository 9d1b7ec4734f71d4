"""LSMR: least squares by Golub and Kahan's bidiagonalisation, with a monotonically decreasing gradient norm.

Scalars are always in double precision, as in LSQR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collops.array import Array, Finite, axpby, dots, zeros_like
from collops.backend import LocalArray
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops.solvers.bidiagonalisation import Bidiagonalisation, arithmetic, checked_bounds, next_u, put_numbers
from collops.solvers.cg import CG
from collops.solvers.driver import solve, solver
from collops.solvers.problem import check_problem, consistent, starting_point, takes_part
from collops.solvers.result import SolverResult
from collops.solvers.state import CONSTANT, SCRATCH, Numbers, Scalar, scratch_array


class LSMRNumbers(NamedTuple):
    """The numbers of an iteration of LSMR."""

    r1norm: Scalar  # |y - A x|
    rnorm: Scalar  # |[y - A x; -damp (x - x0)]|
    arnorm: Scalar  # norm of the gradient
    anorm: Scalar  # Frobenius norm of [A; damp], an estimate
    acond: Scalar  # its condition number, an estimate; 0 before the first iteration
    xnorm: Scalar  # |x|


_SCALARS = (
    *LSMRNumbers._fields,
    *("alpha", "beta", "alphabar", "rho", "rhobar", "cbar", "sbar", "zeta", "zetabar", "betadd", "betad", "rhodold"),
    *("tautilde", "thetatilde", "d", "anorm2", "maxrbar", "minrbar", "dxdx"),
)
"""Names of the elements of the array of scalars, as in Fong and Saunders; dxdx is |x - x0|^2. The host reads the first
six."""


@dataclass(slots=True)
class LSMRState:
    """State of LSMR between iterations. As in LSQR, u and v are not normalised."""

    x: Array
    u: Array
    v: Array
    h: Array
    hbar: Array
    image: Array | None = field(metadata=SCRATCH)  # A v
    back: Array | None = field(metadata=SCRATCH)  # A^H u
    scalars: LocalArray
    start: Array | None = field(metadata=CONSTANT)  # x0, if the damping penalises x - x0


@dataclass(frozen=True)
class LSMR(Bidiagonalisation):
    """LSMR [Fong and Saunders 2011], with the options of :func:`lsmr`."""

    name = "LSMR"
    numbers = LSMRNumbers

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> LSMRState:
        x, u, image = starting_point(A, y, x0)
        engine = x.engine
        v = A._adjoint(u, new_array(A.domain, x, x.dtype))
        squares = dots(*consistent((u, u), (v, v), (x, x)))
        scalars = engine.xp.zeros(len(_SCALARS), dtype=engine.dtype(np.float64))
        sqrt, _, over, number, _ = arithmetic(engine, scalars)
        beta, v_norm, xnorm = (sqrt(number(square)) for square in squares)
        alpha = over(v_norm, beta)
        reported = [beta, beta, v_norm, alpha, 0.0, xnorm]
        others = [alpha, beta, alpha, 1.0, 1.0, 1.0, 0.0, 0.0, v_norm, beta, 0.0, 1.0, 0.0, 0.0, 0.0, alpha * alpha]
        scalars = put_numbers(engine, scalars, slice(None), [*reported, *others, 0.0, math.inf, 0.0])
        v = axpby(over(1.0, beta), v, 0.0, v, out=v)
        h = axpby(over(1.0, alpha), v, 0.0, v, out=new_array(A.domain, x, x.dtype))
        back = scratch_array(A.domain, x, x.dtype)
        start = None if x0 is None or not takes_part(self.damp) else x0.astype(x.dtype)
        return LSMRState(x, u, v, h, zeros_like(x), image, back, scalars, start)

    def step(self, A: LinearOperator, state: LSMRState) -> LSMRState:
        """Extend both bases by one vector each, and update the solution."""
        engine, xp, damp = state.x.engine, state.x.engine.xp, self.damp
        sqrt, hypot, over, number, items = arithmetic(engine, state.scalars)
        *_, acond, _, alpha, beta, alphabar, rhoold, rhobarold, cbar, sbar, zetaold, zetabar, betadd, betad = (
            before := items(state.scalars)
        )[:-8]
        rhodold, tautildeold, thetatildeold, d, anorm2, maxrbar, minrbar, dxdx = before[-8:]

        beta = sqrt(number(next_u(A, state.v, state, over(1.0, alpha), -over(alpha, beta))))
        alphahat = hypot(alphabar, damp)
        chat, shat = over(alphabar, alphahat), over(damp, alphahat)
        rho = hypot(alphahat, beta)
        c, s = over(alphahat, rho), over(beta, rho)
        thetabar, rhotemp = sbar * rho, cbar * rho
        state.hbar = axpby(1.0, state.h, -over(thetabar * rho, rhoold * rhobarold), state.hbar, out=state.hbar)

        state.back = A._adjoint(state.u, state.back)
        state.v = axpby(over(1.0, beta), state.back, -over(beta, alpha), state.v, out=state.v)
        v, x, hbar = state.v, state.x, state.hbar
        pairs = [(v, v), (x, x), (x, hbar), (hbar, hbar)]
        if state.start is not None:
            pairs.append((state.start, hbar))
        v_square, xx, xh, hh, *x0h = (number(value.real) for value in dots(*consistent(*pairs)))
        alpha = sqrt(v_square)
        thetanew, alphabar = s * alpha, c * alpha
        rhobar = hypot(rhotemp, thetanew)
        cbar, sbar = over(rhotemp, rhobar), over(thetanew, rhobar)
        zeta, zetabar = cbar * zetabar, -sbar * zetabar
        length = over(zeta, rho * rhobar)
        state.x = axpby(Finite((1.0, length)), state.hbar, 1.0, state.x, out=state.x)
        state.h = axpby(over(1.0, alpha), state.v, -over(thetanew, rho), state.h, out=state.h)
        xnorm = sqrt(abs(xx + length * (2 * xh + length * hh)))

        # The norm of the residual, by two more rotations.
        betaacute, betacheck = chat * betadd, -shat * betadd
        betahat, betadd = c * betaacute, -s * betaacute
        rhotilde = hypot(rhodold, thetabar)
        ctilde, stilde = over(rhodold, rhotilde), over(thetabar, rhotilde)
        thetatilde, rhodold = stilde * rhobar, ctilde * rhobar
        betad = ctilde * betahat - stilde * betad
        tautilde = over(zetaold - thetatildeold * tautildeold, rhotilde)
        taud = over(zeta - thetatilde * tautilde, rhodold)
        d = d + betacheck * betacheck
        rnorm = r1norm = sqrt(d + (betad - taud) * (betad - taud) + betadd * betadd)
        if takes_part(damp):
            # The contribution of the damping is |damp (x - x0)|^2.
            dxdx = xnorm * xnorm if not x0h else dxdx + length * (2 * (xh - x0h[0]) + length * hh)
            r1norm = sqrt(abs(rnorm * rnorm - damp * damp * dxdx))

        # The norm and the condition number of the operator; rhobar is not an element of a matrix before the first step.
        anorm = sqrt(anorm2 + beta * beta)
        anorm2 = anorm2 + beta * beta + alpha * alpha
        maxrbar = xp.where(acond == 0, maxrbar, xp.maximum(maxrbar, rhobarold))
        minrbar = xp.where(acond == 0, minrbar, xp.minimum(minrbar, rhobarold))
        acond = over(xp.maximum(maxrbar, rhotemp), xp.minimum(minrbar, rhotemp))
        reported = [r1norm, rnorm, abs(zetabar), anorm, acond, xnorm]
        others = [alpha, beta, alphabar, rho, rhobar, cbar, sbar, zeta, zetabar, betadd, betad, rhodold, tautilde]
        numbers = [*reported, *others, thetatilde, d, anorm2, maxrbar, minrbar, dxdx]
        state.scalars = put_numbers(engine, state.scalars, slice(None), numbers)
        return state

    def scale(self, now: Numbers, first: Numbers) -> Scalar:
        return now.anorm * now.rnorm

    def suspect(self, now: LSMRNumbers, iteration: int) -> str:
        if now.rnorm - now.rnorm == now.arnorm - now.arnorm == 0:
            return "x"
        if iteration:
            return "image" if now.anorm - now.anorm != 0 else "back"  # anorm does not depend on the last v yet
        return "u" if now.rnorm - now.rnorm != 0 else "v"

    def tangent(self, A: LinearOperator, tol: Scalar) -> tuple[CG, LinearOperator]:
        return CG(self.damp * self.damp, tol), A.H @ A

    def details(self, state: LSMRState, history: LSMRNumbers) -> dict[str, Any]:
        return {name: float(values[-1]) for name, values in history._asdict().items()}


@solver
def lsmr(
    A: LinearOperator,
    y: Array,
    x0: Array | None = None,
    *,
    niter: int = 10,
    damp: float = 0.0,
    atol: float = 1e-6,
    btol: float = 1e-6,
    conlim: float = 1e8,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|^2 + \epsilon^2 \|x - x_0\|^2` by LSMR [Fong and Saunders 2011]. Collective.

    In exact arithmetic the iterates equal the iterates of MINRES for the normal equations: the norm of the gradient
    decreases in every iteration, so that stopping early is safer than with :func:`lsqr`.

    Parameters
    ----------
    A, y, x0, niter, damp
        As for :func:`cgls`; scalars are always in double precision.
    atol, btol : float
        Stop when relative errors of this size in `A` and `y` explain the residual, or when the norm of the gradient is
        at most `atol` times the product of the norms of operator and residual.
    conlim : float
        Stop when the estimated condition number exceeds this; 0 for never.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        In its details: ``rnorm`` (norm of the residual with damping), ``arnorm`` (of the gradient), ``anorm`` and
        ``acond`` (estimates of the Frobenius norm of [A; damp] and of its condition number), and ``xnorm``.

    Raises
    ------
    LayoutError, InputError
        As for :func:`cgls`.

    Notes
    -----
    Besides the messages of `A`, an iteration sends two scalar allreduces. To use a preconditioner M, solve with
    ``A @ M`` and apply M to the solution.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.VStack([np.vander([1.0, 2.0, 3.0, 4.0], 2)])
    >>> data = collops.from_local(np.array([3.0, 5.0, 7.0, 9.0]), A.range)
    >>> collops.lsmr(A, data, niter=10).x.gather().round(6)
    array([2., 1.])
    """
    check_problem(A, y, x0, niter)
    method = LSMR(**checked_bounds(A, y, x0, damp, atol, btol, conlim))
    return solve(method, A, y, x0, niter=niter, **run)
