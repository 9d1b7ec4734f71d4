"""The scalars of LSQR: plane rotations and estimates, in one array that a step updates in place.

They are kept in double precision whatever the vectors are. On devices a kernel of one thread does what the functions
here do, so that no step waits for a number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from collops.backend import Engine

__all__ = ["NAMES", "REPORTED", "after_u", "after_v", "coefficient", "first_scalars"]

NAMES = (
    # reported, in this order
    "r1norm",  # norm of y - A x
    "rnorm",  # the same with damping: the norm of [y - A x; -damp x]
    "arnorm",  # norm of A^H (y - A x) - damp^2 x
    "anorm",  # Frobenius norm of [A; damp]
    "acond",  # its condition number
    "xnorm",
    # carried from step to step
    "alfa",
    "beta",
    "rhobar",
    "phibar",
    "ddnorm",
    "res2",
    "xxnorm",
    "z",
    "cs2",
    "sn2",
    # coefficients of vectors: u = U / beta and v = V / alfa are kept as U and V, which saves the division of whole
    # vectors
    "per_alfa",
    "u_carry",
    "per_beta",
    "v_carry",
    "x_step",
    "w_carry",
    "per_rho_square",
)
"""What the elements of the array are."""

REPORTED = 6
"""How many of them, from the first, the host looks at."""

_PLACE = {name: place for place, name in enumerate(NAMES)}


def first_scalars(engine: Engine, beta_square: Any, alfa_square: Any) -> Any:
    """Return the array before the first step, from the squares of the norms of U = y - A x0 and A^H U.

    Parameters
    ----------
    engine : Engine
        Of the array.
    beta_square, alfa_square : 0-d array
        ``|U|**2`` and ``|A^H U|**2``.
    """
    scalars = engine.xp.zeros(len(NAMES), np.float64)
    _function(engine, "begin")(scalars, beta_square, alfa_square)
    return scalars


def coefficient(scalars: Any, name: str) -> Any:
    """Return one element as a 0-d array of the same memory."""
    place = _PLACE[name]
    return scalars[place : place + 1].reshape(())


def after_u(engine: Engine, scalars: Any, u_square: Any) -> None:
    """Set what the next V needs, from ``|U|**2``."""
    _function(engine, "after_u")(scalars, u_square)


def after_v(engine: Engine, scalars: Any, v_square: Any, w_square: Any, damp: float) -> None:
    """Rotate, and set what the updates of x and w and the next U need, from ``|V|**2`` and ``|w|**2``."""
    _function(engine, "after_v")(scalars, v_square, w_square, damp)


def _function(engine: Engine, name: str) -> Any:
    if engine.name == "cupy":
        from collops.solvers.kernels import lsqr

        return getattr(lsqr, name)
    return _ON_HOST[name]


def _divided(a: float, b: float) -> float:
    """Return ``a / b``, and 0 where `b` is 0: a vector that vanished stays away."""
    return a / b if b != 0 else 0.0


def _begin(scalars: np.ndarray, beta_square: Any, alfa_square: Any) -> None:
    beta = math.sqrt(beta_square)
    alfa = _divided(math.sqrt(alfa_square), beta)
    s = dict.fromkeys(NAMES, 0.0)
    s["r1norm"] = s["rnorm"] = s["beta"] = s["phibar"] = beta
    s["alfa"] = s["rhobar"] = alfa
    s["arnorm"] = alfa * beta
    s["cs2"] = -1.0
    # V = A^H U / beta was not divided yet: it is by the first coefficients.
    s["per_beta"] = _divided(1.0, beta)
    s["per_alfa"] = _divided(1.0, alfa)
    s["u_carry"] = -_divided(alfa, beta)
    scalars[:] = list(s.values())


def _after_u(scalars: np.ndarray, u_square: Any) -> None:
    beta = math.sqrt(u_square)
    alfa = scalars.item(_PLACE["alfa"])
    scalars[_PLACE["beta"]] = beta
    scalars[_PLACE["per_beta"]] = _divided(1.0, beta)
    scalars[_PLACE["v_carry"]] = -_divided(beta, alfa)


def _after_v(scalars: np.ndarray, v_square: Any, w_square: Any, damp: float) -> None:
    s = dict(zip(NAMES, scalars.tolist(), strict=True))
    beta, alfa = s["beta"], math.sqrt(v_square)
    anorm = math.hypot(s["anorm"], s["alfa"], beta, damp)

    # A rotation eliminates the damping, another one the subdiagonal element beta of the bidiagonal matrix.
    rhobar1 = math.hypot(s["rhobar"], damp)
    cs1, sn1 = _divided(s["rhobar"], rhobar1), _divided(damp, rhobar1)
    psi, phibar = sn1 * s["phibar"], cs1 * s["phibar"]
    rho = math.hypot(rhobar1, beta)
    cs, sn = _divided(rhobar1, rho), _divided(beta, rho)
    theta, rhobar = sn * alfa, -cs * alfa
    phi, phibar = cs * phibar, sn * phibar

    # A rotation from the right eliminates the superdiagonal element theta; it gives the norm of x.
    gambar = -s["cs2"] * rho
    rhs = phi - s["sn2"] * rho * s["z"]
    xnorm = math.sqrt(s["xxnorm"] + _divided(rhs, gambar) ** 2)
    gamma = math.hypot(gambar, theta)
    z = _divided(rhs, gamma)
    xxnorm = s["xxnorm"] + z * z

    ddnorm = s["ddnorm"] + _divided(float(w_square), rho * rho)
    res2 = s["res2"] + psi * psi
    rnorm = math.sqrt(phibar * phibar + res2)
    s |= dict(
        r1norm=math.sqrt(abs(rnorm * rnorm - damp * damp * xxnorm)),
        rnorm=rnorm,
        arnorm=alfa * abs(sn * phi),
        anorm=anorm,
        acond=anorm * math.sqrt(ddnorm),
        xnorm=xnorm,
        alfa=alfa,
        rhobar=rhobar,
        phibar=phibar,
        ddnorm=ddnorm,
        res2=res2,
        xxnorm=xxnorm,
        z=z,
        cs2=_divided(gambar, gamma),
        sn2=_divided(theta, gamma),
        per_alfa=_divided(1.0, alfa),
        u_carry=-_divided(alfa, beta),
        x_step=_divided(phi, rho),
        w_carry=-_divided(theta, rho),
        per_rho_square=_divided(1.0, rho * rho),
    )
    scalars[:] = list(s.values())


_ON_HOST = {"begin": _begin, "after_u": _after_u, "after_v": _after_v}
