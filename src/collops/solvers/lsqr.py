"""LSQR: least squares by Golub and Kahan's bidiagonalisation, with damping and estimates of norms and condition.

Scalars are kept in double precision whatever the vectors are; the factors by which vectors are multiplied in the
vectors' own. The same code serves Python's numbers and arrays of JAX. On CUDA devices a kernel of one thread does the
same (``kernels/lsqr.cu``), so that no step waits for a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collops.array import Finite, axpby, divide, dots, zeros_like
from collops.backend import Engine
from collops.errors import InputError
from collops.operators import LinearOperator
from collops.operators.base import new_array
from collops.solvers.cgls import CGLS, GRADIENT_UNITS
from collops.solvers.driver import solve, solver
from collops.solvers.kernels import kernel
from collops.solvers.method import DOUBLE_PRECISION, Method, log2, not_finite
from collops.solvers.problem import (
    check_numbers,
    check_problem,
    consistent,
    explained_by_rounding,
    precision_of,
    real_dtype,
    starting_point,
    takes_part,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import SCRATCH, scratch_array


class LSQRNumbers(NamedTuple):
    """The numbers of an iteration of LSQR."""

    r1norm: Any  # |y - A x|
    rnorm: Any  # |[y - A x; -damp x]|
    arnorm: Any  # norm of the gradient
    anorm: Any  # Frobenius norm of [A; damp], an estimate
    acond: Any  # its condition number, an estimate; 0 before the first iteration
    xnorm: Any  # |x - x0|, with a preconditioner that of z


_SCALARS = (*LSQRNumbers._fields, "alfa", "beta", "rhobar", "phibar", "ddnorm", "res2", "xxnorm", "z", "cs2", "sn2")
"""Names of the elements of the first array; the host reads the first six."""

_FACTORS = ("per_alfa", "u_carry", "per_beta", "v_carry", "x_step", "w_carry", "per_rho_square")
"""Names of the elements of the second array. The vectors u = U / beta and v = V / alfa are kept as U and V, which saves
the division of whole vectors."""

_ALL, _BETA = slice(None), slice(7, 8)
_OF_ALFA, _OF_BETA, _STEPS = slice(0, 2), slice(2, 4), slice(4, 7)
"""Places of beta among the scalars; of the factors that follow from alfa, from beta, and from the rotations."""

_Pair = tuple[Any, Any]


class Arithmetic(NamedTuple):
    """How to compute with the scalars: as numbers of Python, or as 0-d arrays that may be traced or on a device."""

    sqrt: Callable[[Any], Any]
    hypot: Callable[..., Any]
    over: Callable[[Any, Any], Any]  # the quotient, 0 where the divisor is: a vector that vanished stays 0
    number: Callable[[Any], Any]
    items: Callable[[Any], list[Any]]


@dataclass(slots=True)
class LSQRState:
    """Vectors and scalars of LSQR between two iterations. The bidiagonalisation's u and v are U / beta and V / alfa.

    With a preconditioner it is that of A M, whose model is z with x = M z; without one t, d and gradient are ``None``.
    """

    x: Any
    u: Any
    v: Any
    w: Any
    t: Any  # M v
    d: Any  # M w
    image: Any = field(metadata=SCRATCH)  # A M v
    gradient: Any = field(metadata=SCRATCH)  # A^H u
    back: Any = field(metadata=SCRATCH)  # M^H A^H u
    variance: Any
    scalars: Any
    factors: Any
    factor: dict[str, Any] = field(init=False)  # each of the factors as a 0-d array

    def __post_init__(self) -> None:
        self.factor = _elements(self.factors)

    def put(self, scalars: Any, factors: Any) -> None:
        """Set the scalars and the factors."""
        self.scalars = scalars
        if factors is not self.factors:
            self.factors, self.factor = factors, _elements(factors)


@dataclass(frozen=True)
class Bidiagonalisation(Method):
    """The options of LSQR and LSMR, and the tests of Paige and Saunders, with which both end.

    The first of its `numbers` is the norm of the residual without damping.
    """

    damp: float = 0.0
    atol: float = 1e-8
    btol: float = 1e-8
    conlim: float = 1e8
    precision: float = DOUBLE_PRECISION  # relative size of the vectors' rounding errors
    tolerances = frozenset({"atol", "btol", "conlim", "precision"})
    # The strongest statement first. What does not change a sum is rounding error.
    stops = (
        (lambda self, now, first: not_finite(now[0], now.arnorm, now.xnorm), Status.NOT_FINITE),
        (lambda self, now, first: (now.acond == 0) & (now.arnorm == 0), Status.EXACT_ZERO),
        (
            lambda self, now, first: begun(now) & (now.rnorm <= self.btol * first.rnorm + self.atol * image_norm(now)),
            Status.COMPATIBLE,
        ),
        (
            lambda self, now, first: begun(now) & (now.arnorm <= self.atol * self.scale(now, first)),
            Status.LEAST_SQUARES,
        ),
        (lambda self, now, first: begun(now) & (now.acond >= (self.conlim or math.inf)), Status.ILL_CONDITIONED),
        (lambda self, now, first: lost(now.rnorm, first.rnorm + image_norm(now)), Status.COMPATIBLE_TO_ROUNDING),
        # As for CGLS. Further iterations would follow rounding errors into the null space of a singular operator.
        (
            lambda self, now, first: now.arnorm <= GRADIENT_UNITS * self.precision * now.anorm * now.rnorm,
            Status.LEAST_SQUARES_TO_ROUNDING,
        ),
        (lambda self, now, first: lost(1, now.acond), Status.SINGULAR_TO_ROUNDING),
    )
    optimality = CGLS.optimality
    damps_change = True

    @property
    def degrees(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The powers of the units; see :class:`Method`. A preconditioner has the inverse unit of the operator."""
        of_norm = 1 if getattr(self, "M", None) is None else 0
        norms = {"arnorm": (1, of_norm), "anorm": (0, of_norm), "xnorm": (1, -1), "var": (0, -2)}
        return {**dict.fromkeys(("r1norm", "rnorm", "r2norm"), (1, 0)), **norms, "damp": (0, 1), "M": (0, -1)}

    def magnitudes(self, now: Any, before: Any, state: Any) -> Sequence[float]:
        if before is not None or now[0] == 0:
            return ()
        gradient, residual = log2(now.arnorm), log2(now[0])
        return 2 * gradient, 2 * (gradient - residual), 2 * (2 * residual - gradient)

    def scale(self, now: Any, first: Any) -> Any:
        """Return the number that the norm of the gradient is compared with."""
        return first.arnorm

    def report(self, state: Any) -> Any:
        return state.scalars[: len(self.numbers._fields)]

    def residual_norm(self, now: Any) -> Any:
        return now[0]

    def recomputed(self, A: LinearOperator, y: Any, x: Any, x0: Any, state: Any, now: Any) -> Any:
        _, r, _ = starting_point(A, y, x)
        g, change = A._adjoint(r, None), None
        if x is not None and takes_part(self.damp):
            change = x if x0 is None else axpby(1.0, x, -1.0, x0, out=new_array(x.layout, x, x.dtype))
            g = axpby(-self.damp * self.damp, change, 1.0, g, out=g)
        M = getattr(self, "M", None)
        g = g if M is None else M._adjoint(g, None)
        pairs = [(r, r), (g, g), *([] if x is None else [(x, x)]), *([] if change is None else [(change, change)])]
        rr, gg, *others = (square.real for square in dots(*consistent(*pairs)))
        found = {"r1norm": rr**0.5, "rnorm": rr**0.5, "arnorm": gg**0.5}
        if x is not None and M is None:
            found["xnorm"] = others[0] ** 0.5
        if change is not None:
            found["rnorm"] = (rr + self.damp * self.damp * others[1]) ** 0.5
        return now._replace(**found)

    def at_rounding(self, A: LinearOperator, y: Any, x: Any, now: Any, history: Any) -> tuple[Any, Any]:
        length = None if getattr(self, "M", None) is None else now.xnorm
        return explained_by_rounding(now.anorm, y, x, now.rnorm, now.arnorm, length)

    def restarts(self, state: Any) -> bool:
        # A damping would act on the change from the new start, and variances would be those of the last iterations.
        return not takes_part(self.damp) and getattr(state, "variance", None) is None


@dataclass(frozen=True)
class LSQR(Bidiagonalisation):
    """LSQR [Paige and Saunders 1982] as a method of the driver, with the options of :func:`lsqr`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import LSQR, solve
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> solve(LSQR(), A, collops.ones(3), niter=10).x.gather().round(6)
    array([1.  , 0.5 , 0.25])
    """

    calc_var: bool = False
    M: LinearOperator | None = None
    results = ("x", "variance")
    name = "LSQR"
    numbers = LSQRNumbers
    tangent = CGLS.tangent

    def __post_init__(self) -> None:
        if self.M is not None and takes_part(self.damp):
            raise InputError(
                "lsqr with M takes no damp, which would weigh z of x = M z: stack damp * Identity below A, or use cgls"
            )

    def init(self, A: LinearOperator, y: Any, x0: Any) -> LSQRState:
        x, u, image = starting_point(A, y, x0)
        engine, dtype, real = x.engine, x.dtype, real_dtype(x.dtype)
        gradient = None if self.M is None else scratch_array(A.domain, x, dtype)
        gradient, v = self._adjoint(A, u, gradient, new_array(A.domain, x, dtype))
        scalars = engine.xp.zeros(len(_SCALARS), dtype=engine.dtype(np.float64))
        factors = engine.xp.zeros(len(_FACTORS), dtype=real)
        scalars, factors = _begin(engine, scalars, factors, *dots(*consistent((u, u), (v, v))))
        factor = _elements(factors)
        v = axpby(factor["per_beta"], v, 0.0, v, out=v)
        w = axpby(factor["per_alfa"], v, 0.0, v)
        t = None if self.M is None else self.M._forward(v, new_array(A.domain, x, dtype))
        d = None if t is None else axpby(factor["per_alfa"], t, 0.0, t)
        back = scratch_array(A.domain, x, dtype)
        variance = zeros_like(x, real) if self.calc_var else None
        return LSQRState(x, u, v, w, t, d, image, gradient, back, variance, scalars, factors)

    def step(self, A: LinearOperator, state: LSQRState) -> LSQRState:
        """Extend both bases by one vector each, and update the solution."""
        engine = state.x.engine
        model = state.v if self.M is None else state.t
        u_square = next_u(A, model, state, state.factor["per_alfa"], state.factor["u_carry"])
        state.put(*_after_u(engine, state.scalars, state.factors, u_square))
        state.gradient, state.back = self._adjoint(A, state.u, state.gradient, state.back)
        state.v = axpby(state.factor["per_beta"], state.back, state.factor["v_carry"], state.v, out=state.v)
        v_square, w_square = dots(*consistent((state.v, state.v), (state.w, state.w)))
        state.put(*_after_v(engine, state.scalars, state.factors, v_square, w_square, self.damp))
        factor = state.factor
        direction = state.w if self.M is None else state.d
        if state.variance is not None:
            state.variance = _with_squares(factor["per_rho_square"], direction, state.variance)
        state.x = axpby(Finite((1.0, factor["x_step"])), direction, 1.0, state.x, out=state.x)
        state.w = axpby(factor["per_alfa"], state.v, factor["w_carry"], state.w, out=state.w)
        if self.M is not None:
            state.t = self.M._forward(state.v, state.t)
            state.d = axpby(factor["per_alfa"], state.t, factor["w_carry"], state.d, out=state.d)
        return state

    def _adjoint(self, A: LinearOperator, u: Any, gradient: Any, back: Any) -> tuple[Any, Any]:
        """Return A^H u, or ``None`` without a preconditioner, and M^H A^H u."""
        if self.M is None:
            return None, A._adjoint(u, back)
        gradient = A._adjoint(u, gradient)
        return gradient, self.M._adjoint(gradient, back)

    def suspect(self, now: LSQRNumbers, iteration: int) -> str:
        if now.rnorm - now.rnorm == now.arnorm - now.arnorm == 0:
            return "x"
        if now.rnorm - now.rnorm == 0:  # does not depend on the last v yet
            return "back" if iteration else "v"
        return "image" if iteration else "u"

    def details(self, state: LSQRState, history: LSQRNumbers) -> dict[str, Any]:
        last = {name: float(values[-1]) for name, values in history._asdict().items()}
        # The recurrence has the norm of the change from x0.
        return {"r2norm": last.pop("rnorm"), **last, "xnorm": float(state.x.norm()), "var": state.variance}


def next_u(A: LinearOperator, model: Any, state: Any, scale: Any, carry: Any) -> Any:
    """Extend the basis of the data by the image of the last vector of the other; return the square of its norm."""
    state.image = A._forward(model, state.image)
    state.u = axpby(scale, state.image, carry, state.u, out=state.u)
    return dots(*consistent((state.u, state.u)))[0]


@solver
def lsqr(
    A: LinearOperator,
    y: Any,
    x0: Any = None,
    *,
    niter: int = 10,
    damp: float = 0.0,
    atol: float = 1e-8,
    btol: float = 1e-8,
    conlim: float = 1e8,
    calc_var: bool = False,
    M: LinearOperator | None = None,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|^2 + \epsilon^2 \|x - x_0\|^2` by LSQR [Paige and Saunders 1982]. Collective.

    Parameters
    ----------
    A, y, x0, niter, damp
        As for :func:`cgls`; the scalars are in double precision whatever the vectors are.
    atol, btol : float
        Stop when the residual is explained by relative errors of this size in `A` and `y`, or when the gradient has
        fallen to `atol` times what it was.
    conlim : float
        Stop when the estimated condition number exceeds this; 0 for never.
    calc_var : bool
        Whether to estimate the diagonal of :math:`(A^H A + \epsilon^2 I)^{-1}`, which costs a pass over the model per
        iteration.
    M : LinearOperator, optional
        The preconditioner, as for :func:`cgls`. All norms and estimates but those of the residual are then of
        :math:`A M` and :math:`z`; `calc_var` still estimates the variances of `x`. It excludes `damp`.
    **run
        Other options of :class:`Run`.

    Returns
    -------
    SolverResult
        In its details: ``r1norm`` and ``r2norm`` (norms of the residual without and with damping), ``arnorm`` (of the
        gradient), ``anorm`` and ``acond`` (estimates of the Frobenius norm of [A; damp] and of its condition number),
        ``xnorm``, and ``var``, a real array like ``x`` or ``None``.

    Raises
    ------
    LayoutError, InputError
        As for :func:`cgls`; also if both `M` and `damp` are given.

    Notes
    -----
    Besides the messages of `A` and `M`, an iteration sends two scalar allreduces.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.VStack([np.vander([1.0, 2.0, 3.0, 4.0], 2)])
    >>> data = collops.from_local(np.array([3.0, 5.0, 7.0, 9.0]), A.range)
    >>> collops.lsqr(A, data, niter=10).x.gather().round(6)
    array([2., 1.])
    """
    check_problem(A, y, x0, niter, M)
    limits = checked_bounds(A, y, x0, damp, atol, btol, conlim)
    method = LSQR(**limits, calc_var=bool(calc_var), M=M)
    return solve(method, A, y, x0, niter=niter, parts=[M], **run)


def checked_bounds(A: Any, y: Any, x0: Any, damp: Any, atol: Any, btol: Any, conlim: Any) -> dict[str, float]:
    """Return the options of a :class:`Bidiagonalisation`. No messages."""
    numbers = check_numbers(damp=damp, atol=atol, btol=btol, conlim=conlim)
    return {**numbers, "precision": precision_of(working_dtype(A, y, x0))}


def begun(now: Any) -> Any:
    """Return whether an iteration has been done."""
    return now.acond != 0


def image_norm(now: Any) -> Any:
    """Return a bound on the norm of the image of x."""
    return now.anorm * now.xnorm


def lost(number: Any, scale: Any) -> Any:
    """Return whether a number does not change a sum with `scale`."""
    return scale + number <= scale


def _begin(engine: Engine, scalars: Any, factors: Any, u_square: Any, v_square: Any) -> _Pair:
    """Return both arrays at the start, from ``|U|**2`` and ``|A^H U|**2`` of U = y - A x0, which are 0-d arrays."""
    if engine.name == "cupy":
        return _launched("begin", scalars, factors, u_square, v_square)
    sqrt, _, over, number, _ = arithmetic(engine, scalars)
    beta = sqrt(number(u_square))
    alfa = over(sqrt(number(v_square)), beta)
    numbers = [beta, beta, alfa * beta, 0, 0, 0, alfa, beta, alfa, beta, 0, 0, 0, 0, -1, 0]
    steps = [over(1, alfa), -over(alfa, beta), over(1, beta), 0, 0, 0, 0]
    return put_numbers(engine, scalars, _ALL, numbers), put_numbers(engine, factors, _ALL, steps)


def _after_u(engine: Engine, scalars: Any, factors: Any, u_square: Any) -> _Pair:
    """Return both arrays with the numbers that the next V needs, from ``|U|**2``."""
    if engine.name == "cupy":
        return _launched("after_u", scalars, factors, u_square)
    sqrt, _, over, number, items = arithmetic(engine, scalars)
    beta, alfa = sqrt(number(u_square)), items(scalars)[6]
    factors = put_numbers(engine, factors, _OF_BETA, [over(1, beta), -over(beta, alfa)])
    return put_numbers(engine, scalars, _BETA, [beta]), factors


def _after_v(engine: Engine, scalars: Any, factors: Any, v_square: Any, w_square: Any, damp: Any) -> _Pair:
    """Return both arrays with the numbers that x, w and the next U need, from ``|V|**2`` and ``|w|**2``."""
    if engine.name == "cupy":
        return _launched("after_v", scalars, factors, v_square, w_square, np.float64(damp))
    sqrt, hypot, over, number, items = arithmetic(engine, scalars)
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
    last = over(rhs, gambar)
    xnorm = sqrt(xxnorm + last * last)
    gamma = hypot(gambar, theta)
    cs2, sn2, z = over(gambar, gamma), over(theta, gamma), over(rhs, gamma)
    xxnorm = xxnorm + z * z

    per_rho_square = over(1, rho * rho)
    ddnorm = ddnorm + number(w_square) * per_rho_square
    res2 = res2 + psi * psi
    rnorm = sqrt(phibar * phibar + res2)
    r1norm = sqrt(abs(rnorm * rnorm - damp * damp * xnorm * xnorm))
    reported = [r1norm, rnorm, alfa * abs(sn * phi), anorm, anorm * sqrt(ddnorm), xnorm]
    numbers = [*reported, alfa, beta, rhobar, phibar, ddnorm, res2, xxnorm, z, cs2, sn2]
    factors = put_numbers(engine, factors, _OF_ALFA, [over(1, alfa), -over(alfa, beta)])
    factors = put_numbers(engine, factors, _STEPS, [over(phi, rho), -over(theta, rho), per_rho_square])
    return put_numbers(engine, scalars, _ALL, numbers), factors


def _elements(factors: Any) -> dict[str, Any]:
    """Return each of the factors as a 0-d array: where arrays are mutable, views of `factors`."""
    return {name: factors[place : place + 1].reshape(()) for place, name in enumerate(_FACTORS)}


_OF_PYTHON = Arithmetic(math.sqrt, math.hypot, lambda a, b: a / b if b != 0 else 0.0, float, np.ndarray.tolist)


def arithmetic(engine: Engine, scalars: Any) -> Arithmetic:
    """Return how to compute with `scalars`, an array of float64."""
    if engine.mutable and engine.memory == "host":
        return _OF_PYTHON
    xp = engine.xp
    return Arithmetic(
        xp.sqrt,
        lambda *numbers: xp.sqrt(sum(number * number for number in numbers)),
        divide,
        lambda value: xp.asarray(value, dtype=scalars.dtype),
        list,
    )


def put_numbers(engine: Engine, array: Any, place: slice, numbers: list[Any]) -> Any:
    """Return `array` with other numbers in `place`."""
    if engine.mutable and engine.memory == "host":
        array[place] = numbers
        return array
    return engine.put(array, place, engine.xp.stack([engine.xp.asarray(x, dtype=array.dtype) for x in numbers]))


def _launched(name: str, scalars: Any, factors: Any, *values: Any) -> _Pair:
    suffix = "float" if factors.dtype == np.float32 else "double"
    kernel("lsqr.cu", f"{name}_{suffix}")((1,), (1,), (scalars, factors, *values))
    return scalars, factors


def _with_squares(factor: Any, w: Any, variance: Any) -> Any:
    """Return ``variance + factor * |w|**2``, element by element, in the memory of `variance`."""
    for leaf, target in zip(w.leaves, variance.leaves, strict=True):
        square = leaf.engine.xp.abs(leaf.local_array).astype(target.dtype, copy=False)
        square *= square
        axpby(factor, leaf._like(square), 1.0, target, out=target)
    return variance
