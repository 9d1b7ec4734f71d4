"""The recurrence of LSQR on JAX, as in `collops.solvers.lsqr_recurrence`, in arrays that may be traced."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from collops.array.kernels.jax_kernels import divide
from collops.jax_engine import value_of
from collops.solvers.lsqr_recurrence import FACTORS, SCALARS

__all__ = ["after_u", "after_v", "begin"]


def begin(scalars: Any, factors: Any, u_square: Any, v_square: Any) -> None:
    """Set everything, from ``|U|**2`` and ``|A^H U|**2``."""
    u_square, v_square = _wide(scalars, u_square, v_square)
    beta = jnp.sqrt(u_square)
    alfa = _over(jnp.sqrt(v_square), beta)
    scalars[...] = _stacked(scalars, beta, beta, alfa * beta, 0, 0, 0, alfa, beta, alfa, beta, 0, 0, 0, 0, -1, 0)
    factors[...] = _stacked(scalars, _over(1, alfa), -_over(alfa, beta), _over(1, beta), 0, 0, 0, 0)


def after_u(scalars: Any, factors: Any, u_square: Any) -> None:
    """Set what the next V needs."""
    number = dict(zip(SCALARS, scalars.value, strict=True))
    factor = dict(zip(FACTORS, factors.value, strict=True))
    beta = jnp.sqrt(*_wide(scalars, u_square))
    scalars[...] = _stacked(scalars, *{**number, "beta": beta}.values())
    changed = {**factor, "per_beta": _over(1, beta), "v_carry": -_over(beta, number["alfa"])}
    factors[...] = _stacked(scalars, *changed.values())


def after_v(scalars: Any, factors: Any, v_square: Any, w_square: Any, damp: Any) -> None:
    """Rotate, and set what the updates of x and w and the next U need."""
    v_square, w_square, damp = _wide(scalars, v_square, w_square, damp)
    n = dict(zip(SCALARS, scalars.value, strict=True))
    factor = dict(zip(FACTORS, factors.value, strict=True))
    alfa = jnp.sqrt(v_square)
    anorm = _norm(n["anorm"], n["alfa"], n["beta"], damp)
    rhobar1 = _norm(n["rhobar"], damp)
    psi, phibar = _over(damp, rhobar1) * n["phibar"], _over(n["rhobar"], rhobar1) * n["phibar"]
    rho = _norm(rhobar1, n["beta"])
    cs, sn = _over(rhobar1, rho), _over(n["beta"], rho)
    theta, rhobar = sn * alfa, -cs * alfa
    phi, phibar = cs * phibar, sn * phibar
    gambar = -n["cs2"] * rho
    rhs = phi - n["sn2"] * rho * n["z"]
    xnorm = jnp.sqrt(n["xxnorm"] + _over(rhs, gambar) ** 2)
    gamma = _norm(gambar, theta)
    cs2, sn2, z = _over(gambar, gamma), _over(theta, gamma), _over(rhs, gamma)
    xxnorm = n["xxnorm"] + z * z
    per_rho_square = _over(1, rho * rho)
    ddnorm = n["ddnorm"] + w_square * per_rho_square
    res2 = n["res2"] + psi * psi
    rnorm = jnp.sqrt(phibar * phibar + res2)
    r1norm = jnp.sqrt(jnp.abs(rnorm * rnorm - damp * damp * xxnorm))
    reported = (r1norm, rnorm, alfa * jnp.abs(sn * phi), anorm, anorm * jnp.sqrt(ddnorm), xnorm)
    scalars[...] = _stacked(scalars, *reported, alfa, n["beta"], rhobar, phibar, ddnorm, res2, xxnorm, z, cs2, sn2)
    steps = (_over(phi, rho), -_over(theta, rho), per_rho_square)
    kept = (factor["per_beta"], factor["v_carry"])
    factors[...] = _stacked(scalars, _over(1, alfa), -_over(alfa, n["beta"]), *kept, *steps)


def _over(a: Any, b: Any) -> Any:
    return divide(a, b, None)


def _norm(*numbers: Any) -> Any:
    return jnp.sqrt(sum(number * number for number in numbers))


def _wide(scalars: Any, *numbers: Any) -> list[Any]:
    return [jnp.asarray(value_of(number), scalars.dtype) for number in numbers]


def _stacked(scalars: Any, *numbers: Any) -> Any:
    return jnp.stack([jnp.asarray(number, scalars.dtype) for number in numbers])
