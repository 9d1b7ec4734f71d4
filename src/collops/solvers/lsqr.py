"""LSQR: least squares by Golub and Kahan's bidiagonalisation, with damping and estimates of norms and condition.

The scalars follow the rotations of Paige and Saunders, on devices in a kernel of one thread (``kernels/lsqr.cu``), so
that no step synchronises with the device. ``variants`` has the steps with a preconditioner and with variances.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collops.array import Array, Finite, axpby, dots
from collops.backend import Engine, LocalArray
from collops.errors import InputError
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops.solvers.bidiagonalisation import Bidiagonalisation, arithmetic, checked_bounds, next_u, put_numbers
from collops.solvers.cgls import CGLS
from collops.solvers.driver import solve, solver
from collops.solvers.kernels import step_kernels_for
from collops.solvers.problem import check_plain, check_problem, consistent, real_dtype, starting_point, takes_part
from collops.solvers.result import SolverResult
from collops.solvers.state import SCRATCH, Scalar, State, scratch_array

__all__ = ["LSQR", "lsqr"]


class LSQRNumbers(NamedTuple):
    """The numbers of an iteration of LSQR."""

    r1norm: Scalar  # |y - A x|
    rnorm: Scalar  # |[y - A x; -damp x]|
    arnorm: Scalar  # norm of the gradient
    anorm: Scalar  # Frobenius norm of [A; damp], an estimate
    acond: Scalar  # its condition number, an estimate; 0 before the first iteration
    xnorm: Scalar  # |x - x0|, with a preconditioner |z|


_SCALARS = (*LSQRNumbers._fields, "alfa", "beta", "rhobar", "phibar", "ddnorm", "res2", "xxnorm", "z", "cs2", "sn2")
"""Names of the elements of the first array; the host reads the first six."""

_FACTORS = ("per_alfa", "u_carry", "per_beta", "v_carry", "x_step", "w_carry", "per_rho_square")
"""Names of the elements of the second array. The vectors u = U / beta and v = V / alfa are stored as U and V, which
saves divisions of vectors."""

_ALL, _BETA = slice(None), slice(7, 8)
_OF_ALFA, _OF_BETA, _STEPS = slice(0, 2), slice(2, 4), slice(4, 7)
"""Indices of beta among the scalars; of the factors that follow from alfa, from beta, and from the rotations."""

_Pair = tuple[LocalArray, LocalArray]


@dataclass(slots=True)
class LSQRState:
    """State of LSQR between iterations. The u and v of the bidiagonalisation are U / beta and V / alfa."""

    x: Array
    u: Array
    v: Array
    w: Array  # direction
    image: Array | None = field(metadata=SCRATCH)  # A v
    back: Array | None = field(metadata=SCRATCH)  # A^H u
    scalars: LocalArray
    factors: LocalArray
    factor: dict[str, Scalar] = field(init=False)  # each of the factors as a 0-d array

    def __post_init__(self) -> None:
        self.factor = _elements(self.factors)

    def put(self, scalars: LocalArray, factors: LocalArray) -> None:
        """Set the scalars and the factors."""
        self.scalars = scalars
        if factors is not self.factors:
            self.factors, self.factor = factors, _elements(factors)


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
                "lsqr with M does not support damp, which would penalise z: stack damp * Identity below A, or use cgls"
            )

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        check_plain(self, self.M is not None or self.calc_var)
        x, u, image = starting_point(A, y, x0)
        v = A._adjoint(u, new_array(A.domain, x, x.dtype))
        scalars, factors, _, v, w = self._begin(u, v)
        back = scratch_array(A.domain, x, x.dtype)
        return LSQRState(x, u, v, w, image, back, scalars, factors)

    def step(self, A: LinearOperator, state: State) -> State:
        """Extend both bases by one vector each, and update the solution."""
        engine = state.x.engine
        u_square = next_u(A, state.v, state, state.factor["per_alfa"], state.factor["u_carry"])
        state.put(*after_u(engine, state.scalars, state.factors, u_square))
        state.back = A._adjoint(state.u, state.back)
        state.v = axpby(state.factor["per_beta"], state.back, state.factor["v_carry"], state.v, out=state.v)
        v_square, w_square = dots(*consistent((state.v, state.v), (state.w, state.w)))
        state.put(*after_v(engine, state.scalars, state.factors, v_square, w_square, self.damp))
        factor = state.factor
        state.x = axpby(Finite((1.0, factor["x_step"])), state.w, 1.0, state.x, out=state.x)
        state.w = axpby(factor["per_alfa"], state.v, factor["w_carry"], state.w, out=state.w)
        return state

    def _begin(self, u: Array, v: Array) -> tuple[LocalArray, LocalArray, dict[str, Scalar], Array, Array]:
        """Return the scalars and factors at the start, V computed in place from A^H U, and the first direction."""
        engine = u.engine
        scalars = engine.xp.zeros(len(_SCALARS), dtype=engine.dtype(np.float64))
        factors = engine.xp.zeros(len(_FACTORS), dtype=real_dtype(u.dtype))
        scalars, factors = _begin(engine, scalars, factors, *dots(*consistent((u, u), (v, v))))
        factor = _elements(factors)
        v = axpby(factor["per_beta"], v, 0.0, v, out=v)
        return scalars, factors, factor, v, axpby(factor["per_alfa"], v, 0.0, v)

    def suspect(self, now: LSQRNumbers, iteration: int) -> str:
        if now.rnorm - now.rnorm == now.arnorm - now.arnorm == 0:
            return "x"
        if now.rnorm - now.rnorm == 0:  # does not depend on the last v yet
            return "back" if iteration else "v"
        return "image" if iteration else "u"

    def details(self, state: State, history: LSQRNumbers) -> dict[str, Any]:
        last = {name: float(values[-1]) for name, values in history._asdict().items()}
        # The recurrence has the norm of the change from x0.
        return {
            "r2norm": last.pop("rnorm"),
            **last,
            "xnorm": float(state.x.norm()),
            "var": getattr(state, "variance", None),
        }


@solver
def lsqr(
    A: LinearOperator,
    y: Array,
    x0: Array | None = None,
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
        As for :func:`cgls`; scalars are always in double precision.
    atol, btol : float
        Stop when relative errors of this size in `A` and `y` explain the residual, or when the norm of the gradient is
        at most `atol` times the product of the norms of operator and residual.
    conlim : float
        Stop when the estimated condition number exceeds this; 0 for never.
    calc_var : bool
        Whether to estimate the diagonal of :math:`(A^H A + \epsilon^2 I)^{-1}`, which costs a pass over the model per
        iteration.
    M : LinearOperator, optional
        The preconditioner, as for :func:`cgls`. All norms and estimates except the norms of the residual then
        refer to :math:`A M` and :math:`z`; `calc_var` still estimates the variances of `x`. It excludes `damp`.
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
        As for :func:`cgls`; also if both `M` and `damp` are set.

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


def _begin(engine: Engine, scalars: LocalArray, factors: LocalArray, u_square: Scalar, v_square: Scalar) -> _Pair:
    """Return both arrays at the start, from ``|U|**2`` and ``|A^H U|**2`` of U = y - A x0, which are 0-d arrays."""
    if (launch := step_kernels_for(engine).launch_lsqr) is not None:
        return launch("begin", scalars, factors, u_square, v_square)
    sqrt, _, over, number, _ = arithmetic(engine, scalars)
    beta = sqrt(number(u_square))
    alfa = over(sqrt(number(v_square)), beta)
    numbers = [beta, beta, alfa * beta, 0, 0, 0, alfa, beta, alfa, beta, 0, 0, 0, 0, -1, 0]
    steps = [over(1, alfa), -over(alfa, beta), over(1, beta), 0, 0, 0, 0]
    return put_numbers(engine, scalars, _ALL, numbers), put_numbers(engine, factors, _ALL, steps)


def after_u(engine: Engine, scalars: LocalArray, factors: LocalArray, u_square: Scalar) -> _Pair:
    """Return both arrays with the numbers for the next V, from ``|U|**2``."""
    if (launch := step_kernels_for(engine).launch_lsqr) is not None:
        return launch("after_u", scalars, factors, u_square)
    sqrt, _, over, number, items = arithmetic(engine, scalars)
    beta, alfa = sqrt(number(u_square)), items(scalars)[6]
    factors = put_numbers(engine, factors, _OF_BETA, [over(1, beta), -over(beta, alfa)])
    return put_numbers(engine, scalars, _BETA, [beta]), factors


def after_v(
    engine: Engine, scalars: LocalArray, factors: LocalArray, v_square: Scalar, w_square: Scalar, damp: Scalar
) -> _Pair:
    """Return both arrays with the numbers for x, w and the next U, from ``|V|**2`` and ``|w|**2``."""
    if (launch := step_kernels_for(engine).launch_lsqr) is not None:
        return launch("after_v", scalars, factors, v_square, w_square, np.float64(damp))
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


def _elements(factors: LocalArray) -> dict[str, Scalar]:
    """Return each of the factors as a 0-d array: views of `factors` if arrays are mutable."""
    return {name: factors[index : index + 1].reshape(()) for index, name in enumerate(_FACTORS)}
