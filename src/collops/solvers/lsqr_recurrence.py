"""The scalars of LSQR: plane rotations and estimates, in two small arrays.

Scalars are kept in double precision whatever the vectors are; the factors by which vectors are multiplied in the
vectors' own. One text serves Python's numbers and arrays of JAX. On CUDA devices a kernel of one thread does the same
(``kernels/lsqr.cu``), so that no step waits for a number. Every function returns both arrays: the same ones,
overwritten, on engines whose arrays can be written to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from collops.array import divide
from collops.backend import Engine
from collops.solvers.kernels import kernel

__all__ = ["FACTORS", "REPORTED", "SCALARS", "after_u", "after_v", "begin", "elements"]

REPORTED = ("r1norm", "rnorm", "arnorm", "anorm", "acond", "xnorm")
"""The scalars that the host reads, which come first. Norms of y - A x, of [y - A x; -damp x] and of the gradient; the
Frobenius norm of [A; damp], its condition number, and the norm of x."""

SCALARS = (*REPORTED, "alfa", "beta", "rhobar", "phibar", "ddnorm", "res2", "xxnorm", "z", "cs2", "sn2")
"""Names of the elements of the first array."""

FACTORS = ("per_alfa", "u_carry", "per_beta", "v_carry", "x_step", "w_carry", "per_rho_square")
"""Names of those of the second. The vectors u = U / beta and v = V / alfa are kept as U and V, which saves the division
of whole vectors."""

_ALL, _BETA = slice(None), slice(7, 8)
_OF_ALFA, _OF_BETA, _STEPS = slice(0, 2), slice(2, 4), slice(4, 7)
"""Places of beta among the scalars; of the factors that follow from alfa, from beta, and from the rotations."""

_Pair = tuple[Any, Any]


class _Arithmetic(NamedTuple):
    """How to compute with the scalars: as numbers of Python, or as 0-d arrays that may be traced."""

    sqrt: Callable[[Any], Any]
    hypot: Callable[..., Any]
    over: Callable[[Any, Any], Any]  # the quotient, 0 where the divisor is: a vector that vanished stays 0
    number: Callable[[Any], Any]
    items: Callable[[Any], list[Any]]


def begin(engine: Engine, scalars: Any, factors: Any, u_square: Any, v_square: Any) -> _Pair:
    """Return both arrays at the start, from ``|U|**2`` and ``|A^H U|**2`` of U = y - A x0.

    Parameters
    ----------
    engine : Engine
        Of the arrays.
    scalars, factors : array
        Double precision, one element for each of `SCALARS`; the vectors' real type, one for each of `FACTORS`.
    u_square, v_square : 0-d array
        Squared norms, in the type of the factors.
    """
    if engine.name == "cupy":
        return _launched("begin", scalars, factors, u_square, v_square)
    sqrt, _, over, number, _ = _arithmetic(engine, scalars)
    beta = sqrt(number(u_square))
    alfa = over(sqrt(number(v_square)), beta)
    numbers = [beta, beta, alfa * beta, 0, 0, 0, alfa, beta, alfa, beta, 0, 0, 0, 0, -1, 0]
    steps = [over(1, alfa), -over(alfa, beta), over(1, beta), 0, 0, 0, 0]
    return _put(engine, scalars, _ALL, numbers), _put(engine, factors, _ALL, steps)


def after_u(engine: Engine, scalars: Any, factors: Any, u_square: Any) -> _Pair:
    """Return both arrays with the numbers that the next V needs, from ``|U|**2``."""
    if engine.name == "cupy":
        return _launched("after_u", scalars, factors, u_square)
    sqrt, _, over, number, items = _arithmetic(engine, scalars)
    beta, alfa = sqrt(number(u_square)), items(scalars)[6]
    factors = _put(engine, factors, _OF_BETA, [over(1, beta), -over(beta, alfa)])
    return _put(engine, scalars, _BETA, [beta]), factors


def after_v(engine: Engine, scalars: Any, factors: Any, v_square: Any, w_square: Any, damp: Any) -> _Pair:
    """Return both arrays with the numbers that x, w and the next U need, from ``|V|**2`` and ``|w|**2``."""
    if engine.name == "cupy":
        return _launched("after_v", scalars, factors, v_square, w_square, np.float64(damp))
    sqrt, hypot, over, number, items = _arithmetic(engine, scalars)
    *_, anorm, _, _, alfa, beta, rhobar, phibar, ddnorm, res2, xxnorm, z, cs2, sn2 = items(scalars)
    anorm = hypot(anorm, alfa, beta, damp)
    alfa = sqrt(number(v_square))

    # A rotation eliminates the damping, another one the subdiagonal element beta of the bidiagonal matrix.
    rhobar1 = hypot(rhobar, damp)
    psi, phibar = over(damp, rhobar1) * phibar, over(rhobar, rhobar1) * phibar
    rho = hypot(rhobar1, beta)
    cs, sn = over(rhobar1, rho), over(beta, rho)
    theta, rhobar = sn * alfa, -cs * alfa
    phi, phibar = cs * phibar, sn * phibar

    # A rotation from the right eliminates the superdiagonal element theta; it gives the norm of x.
    gambar = -cs2 * rho
    rhs = phi - sn2 * rho * z
    xnorm = sqrt(xxnorm + over(rhs, gambar) ** 2)
    gamma = hypot(gambar, theta)
    cs2, sn2, z = over(gambar, gamma), over(theta, gamma), over(rhs, gamma)
    xxnorm = xxnorm + z * z

    per_rho_square = over(1, rho * rho)
    ddnorm = ddnorm + number(w_square) * per_rho_square
    res2 = res2 + psi * psi
    rnorm = sqrt(phibar * phibar + res2)
    r1norm = sqrt(abs(rnorm * rnorm - damp * damp * xxnorm))
    reported = [r1norm, rnorm, alfa * abs(sn * phi), anorm, anorm * sqrt(ddnorm), xnorm]
    numbers = [*reported, alfa, beta, rhobar, phibar, ddnorm, res2, xxnorm, z, cs2, sn2]
    factors = _put(engine, factors, _OF_ALFA, [over(1, alfa), -over(alfa, beta)])
    factors = _put(engine, factors, _STEPS, [over(phi, rho), -over(theta, rho), per_rho_square])
    return _put(engine, scalars, _ALL, numbers), factors


def elements(factors: Any) -> dict[str, Any]:
    """Return each of the factors as a 0-d array: where arrays are mutable, views of `factors`."""
    return {name: factors[place : place + 1].reshape(()) for place, name in enumerate(FACTORS)}


def _divided(a: float, b: float) -> float:
    return a / b if b != 0 else 0.0


_OF_PYTHON = _Arithmetic(math.sqrt, math.hypot, _divided, float, np.ndarray.tolist)


def _arithmetic(engine: Engine, scalars: Any) -> _Arithmetic:
    if engine.mutable:
        return _OF_PYTHON
    xp = engine.xp
    return _Arithmetic(
        xp.sqrt,
        lambda *numbers: xp.sqrt(sum(number * number for number in numbers)),
        divide,
        lambda value: xp.asarray(value, dtype=scalars.dtype),
        list,
    )


def _put(engine: Engine, array: Any, place: slice, numbers: list[Any]) -> Any:
    """Return `array` with other numbers in `place`."""
    if engine.mutable:
        array[place] = numbers
        return array
    return engine.put(array, place, engine.xp.stack([engine.xp.asarray(x, dtype=array.dtype) for x in numbers]))


def _launched(name: str, scalars: Any, factors: Any, *values: Any) -> _Pair:
    suffix = "float" if factors.dtype == np.float32 else "double"
    kernel("lsqr.cu", f"{name}_{suffix}")((1,), (1,), (scalars, factors, *values))
    return scalars, factors
