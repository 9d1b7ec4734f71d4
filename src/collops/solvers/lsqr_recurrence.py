"""The scalars of LSQR: plane rotations and estimates, in two arrays that a step updates in place.

Scalars are kept in double precision whatever the vectors are; the factors by which vectors are multiplied in the
vectors' own. On devices a kernel of one thread does what the functions here do, so that no step waits for a number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from collops.backend import Engine

__all__ = ["FACTORS", "REPORTED", "SCALARS", "after_u", "after_v", "begin"]

REPORTED = ("r1norm", "rnorm", "arnorm", "anorm", "acond", "xnorm")
"""What the host looks at: the first scalars. Norms of y - A x, of [y - A x; -damp x] and of the gradient; the Frobenius
norm of [A; damp], its condition number, and the norm of x."""

SCALARS = (*REPORTED, "alfa", "beta", "rhobar", "phibar", "ddnorm", "res2", "xxnorm", "z", "cs2", "sn2")
"""What the elements of the first array are."""

FACTORS = ("per_alfa", "u_carry", "per_beta", "v_carry", "x_step", "w_carry", "per_rho_square")
"""What those of the second are. The vectors u = U / beta and v = V / alfa are kept as U and V, which saves the division
of whole vectors."""


def begin(engine: Engine, scalars: Any, factors: Any, u_square: Any, v_square: Any) -> None:
    """Set everything, from ``|U|**2`` and ``|A^H U|**2`` of U = y - A x0.

    Parameters
    ----------
    engine : Engine
        Of the arrays.
    scalars, factors : array
        Double precision, one element for each of `SCALARS`; the vectors' real type, one for each of `FACTORS`.
    u_square, v_square : 0-d array
        Squared norms, in the type of the factors.
    """
    _functions(engine).begin(scalars, factors, u_square, v_square)


def after_u(engine: Engine, scalars: Any, factors: Any, u_square: Any) -> None:
    """Set what the next V needs, from ``|U|**2``."""
    _functions(engine).after_u(scalars, factors, u_square)


def after_v(engine: Engine, scalars: Any, factors: Any, v_square: Any, w_square: Any, damp: float) -> None:
    """Rotate, and set what the updates of x and w and the next U need, from ``|V|**2`` and ``|w|**2``."""
    _functions(engine).after_v(scalars, factors, v_square, w_square, damp)


def _functions(engine: Engine) -> Any:
    if engine.name == "cupy":
        from collops.solvers.kernels import lsqr

        return lsqr
    if engine.name == "jax":
        from collops.solvers.kernels import jax_lsqr

        return jax_lsqr
    return _OnHost


def _divided(a: float, b: float) -> float:
    """Return ``a / b``, and 0 where `b` is 0: a vector that vanished stays away."""
    return a / b if b != 0 else 0.0


class _OnHost:
    """The recurrence in Python's floating-point numbers."""

    @staticmethod
    def begin(scalars: np.ndarray, factors: np.ndarray, u_square: Any, v_square: Any) -> None:
        beta = math.sqrt(u_square)
        alfa = _divided(math.sqrt(v_square), beta)
        scalars[:] = (beta, beta, alfa * beta, 0, 0, 0, alfa, beta, alfa, beta, 0, 0, 0, 0, -1, 0)
        factors[:] = (_divided(1, alfa), -_divided(alfa, beta), _divided(1, beta), 0, 0, 0, 0)

    @staticmethod
    def after_u(scalars: np.ndarray, factors: np.ndarray, u_square: Any) -> None:
        beta, alfa = math.sqrt(u_square), scalars.item(_ALFA)
        scalars[_BETA] = beta
        factors[_PER_BETA] = _divided(1, beta)
        factors[_V_CARRY] = -_divided(beta, alfa)

    @staticmethod
    def after_v(scalars: np.ndarray, factors: np.ndarray, v_square: Any, w_square: Any, damp: float) -> None:
        numbers = scalars.tolist()
        anorm, alfa_before, beta, rhobar, phibar = numbers[_ANORM], *numbers[_ALFA : _ALFA + 4]
        ddnorm, res2, xxnorm, z, cs2, sn2 = numbers[_DDNORM:]
        alfa = math.sqrt(v_square)
        anorm = math.hypot(anorm, alfa_before, beta, damp)

        # A rotation eliminates the damping, another one the subdiagonal element beta of the bidiagonal matrix.
        rhobar1 = math.hypot(rhobar, damp)
        psi, phibar = _divided(damp, rhobar1) * phibar, _divided(rhobar, rhobar1) * phibar
        rho = math.hypot(rhobar1, beta)
        cs, sn = _divided(rhobar1, rho), _divided(beta, rho)
        theta, rhobar = sn * alfa, -cs * alfa
        phi, phibar = cs * phibar, sn * phibar

        # A rotation from the right eliminates the superdiagonal element theta; it gives the norm of x.
        gambar = -cs2 * rho
        rhs = phi - sn2 * rho * z
        xnorm = math.sqrt(xxnorm + _divided(rhs, gambar) ** 2)
        gamma = math.hypot(gambar, theta)
        cs2, sn2, z = _divided(gambar, gamma), _divided(theta, gamma), _divided(rhs, gamma)
        xxnorm += z * z

        per_rho_square = _divided(1, rho * rho)
        ddnorm += float(w_square) * per_rho_square
        res2 += psi * psi
        rnorm = math.sqrt(phibar * phibar + res2)
        r1norm = math.sqrt(abs(rnorm * rnorm - damp * damp * xxnorm))
        reported = (r1norm, rnorm, alfa * abs(sn * phi), anorm, anorm * math.sqrt(ddnorm), xnorm)
        scalars[:] = (*reported, alfa, beta, rhobar, phibar, ddnorm, res2, xxnorm, z, cs2, sn2)
        per_beta, v_carry = factors[_PER_BETA], factors[_V_CARRY]
        steps = (_divided(phi, rho), -_divided(theta, rho), per_rho_square)
        factors[:] = (_divided(1, alfa), -_divided(alfa, beta), per_beta, v_carry, *steps)


_ANORM, _ALFA, _BETA, _DDNORM = (SCALARS.index(name) for name in ("anorm", "alfa", "beta", "ddnorm"))
_PER_BETA, _V_CARRY = FACTORS.index("per_beta"), FACTORS.index("v_carry")
