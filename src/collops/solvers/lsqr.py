"""LSQR: least squares by Golub and Kahan's bidiagonalisation, with damping and estimates of norms and condition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np

from collops.array import DistributedArray, Finite, axpby, dots, zeros
from collops.operators import LinearOperator
from collops.operators.base import new_array
from collops.solvers.cgls import CGLS
from collops.solvers.driver import Run, solve
from collops.solvers.lsqr_recurrence import FACTORS, REPORTED, SCALARS, after_u, after_v, begin, elements
from collops.solvers.method import Method, Row, Test, not_finite
from collops.solvers.problem import (
    check_number,
    check_problem,
    rank_consistently,
    real_dtype,
    starting_point,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import CONSTANT, SCRATCH, scratch_array

__all__ = ["LSQR", "lsqr"]


@dataclass(slots=True)
class LSQRState:
    """Vectors and scalars of LSQR between two iterations. The bidiagonalisation's u and v are U / beta and V / alfa."""

    operator: LinearOperator = field(metadata=CONSTANT)
    x: Any
    u: Any
    v: Any
    w: Any
    image: Any = field(metadata=SCRATCH)  # A v
    back: Any = field(metadata=SCRATCH)  # A^H u
    variance: Any
    scalars: Any
    factors: Any
    u_consistently: Callable[[Any], Any] = field(metadata=CONSTANT)  # see rank_consistently
    v_consistently: Callable[[Any], Any] = field(metadata=CONSTANT)
    factor: dict[str, Any] = field(init=False)  # each of the factors as a 0-d array

    def __post_init__(self) -> None:
        self.factor = elements(self.factors)

    def put(self, scalars: Any, factors: Any) -> None:
        """Set the scalars and the factors."""
        self.scalars = scalars
        if factors is not self.factors:
            self.factors, self.factor = factors, elements(factors)


@dataclass(frozen=True)
class LSQR(Method):
    """LSQR as a method of the driver.

    Attributes
    ----------
    damp : float
        Damping factor.
    atol, btol : float
        Relative errors of operator and data.
    conlim : float
        Bound on the condition number; 0 for none.
    calc_var : bool
        Whether to estimate the diagonal of the inverse.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import LSQR, solve
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> solve(LSQR(), A, collops.ones(3), niter=10).x.gather().round(6)
    array([1.  , 0.5 , 0.25])
    """

    damp: float = 0.0
    atol: float = 1e-8
    btol: float = 1e-8
    conlim: float = 1e8
    calc_var: bool = False
    stops = frozenset({"atol", "btol", "conlim"})
    name = "LSQR"
    width = len(REPORTED)

    def init(self, operator: LinearOperator, data: Any, x0: Any, report_now: bool) -> LSQRState:
        """Return the state before the first iteration: the first vectors of both bases."""
        dtype = working_dtype(operator, data, x0)
        x, u, image = starting_point(operator, data, x0, dtype, operator._forward)
        v = operator._adjoint(u, new_array(operator.domain, data, dtype))
        u_consistently, v_consistently = rank_consistently(u), rank_consistently(v)
        engine, real = data.engine, real_dtype(dtype)
        scalars = engine.xp.zeros(len(SCALARS), dtype=engine.dtype(np.float64))
        factors = engine.xp.zeros(len(FACTORS), dtype=real)
        of_u, of_v = u_consistently(u), v_consistently(v)
        scalars, factors = begin(engine, scalars, factors, *dots((of_u, of_u), (of_v, of_v)))
        factor = elements(factors)
        v = axpby(factor["per_beta"], v, 0.0, v, out=v)
        w = axpby(factor["per_alfa"], v, 0.0, v, out=new_array(operator.domain, data, dtype))
        back = scratch_array(operator.domain, data, dtype)
        variance = None
        if self.calc_var:
            variance = zeros(operator.domain, comm=data.comm, dtype=real, engine=engine)
        return LSQRState(operator, x, u, v, w, image, back, variance, scalars, factors, u_consistently, v_consistently)

    def step(self, state: LSQRState) -> LSQRState:
        """Extend both bases by one vector each, and update the solution."""
        operator, engine = state.operator, state.x.engine
        state.image = operator._forward(state.v, state.image)
        state.u = axpby(state.factor["per_alfa"], state.image, state.factor["u_carry"], state.u, out=state.u)
        u = state.u_consistently(state.u)
        (u_square,) = dots((u, u))
        state.put(*after_u(engine, state.scalars, state.factors, u_square))
        state.back = operator._adjoint(state.u, state.back)
        state.v = axpby(state.factor["per_beta"], state.back, state.factor["v_carry"], state.v, out=state.v)
        v, w = state.v_consistently(state.v), state.v_consistently(state.w)
        v_square, w_square = dots((v, v), (w, w))
        state.put(*after_v(engine, state.scalars, state.factors, v_square, w_square, self.damp))
        factor = state.factor
        if state.variance is not None:
            state.variance = _with_squares(factor["per_rho_square"], state.w, state.variance)
        state.x = axpby(Finite((1.0, factor["x_step"])), state.w, 1.0, state.x, out=state.x)
        state.w = axpby(factor["per_alfa"], state.v, factor["w_carry"], state.w, out=state.w)
        return state

    def monitor(self, state: LSQRState) -> Any:
        """Return the norms that the tests for convergence use."""
        return state.scalars[: len(REPORTED)]

    def tests(self, row: Row, first: Row) -> tuple[Test, ...]:
        """Return the tests of Paige and Saunders, the strongest statement first."""
        r1norm, rnorm, arnorm, anorm, acond, xnorm = row
        data_norm, arnorm0 = first[1], first[2]
        begun, image = acond != 0, anorm * xnorm
        scale = data_norm + image
        return (
            (not_finite(r1norm, arnorm), Status.NOT_FINITE),
            (arnorm0 == 0, Status.EXACT_ZERO),
            (begun & (rnorm <= self.btol * data_norm + self.atol * image), Status.COMPATIBLE),
            (begun & (arnorm <= self.atol * arnorm0), Status.LEAST_SQUARES),
            (begun & (acond >= (self.conlim or math.inf)), Status.ILL_CONDITIONED),
            # A number that does not change the sum is rounding.
            (begun & (scale + rnorm <= scale), Status.COMPATIBLE_TO_ROUNDING),
            (begun & (arnorm0 + arnorm <= arnorm0), Status.LEAST_SQUARES_TO_ROUNDING),
            (begun & (acond + 1 <= acond), Status.SINGULAR_TO_ROUNDING),
        )

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the array that was first not finite."""
        rnorm = row[1]  # does not depend on the last v yet
        if rnorm - rnorm == 0:
            return "back" if iteration else "v"
        return "image" if iteration else "u"

    optimality = CGLS.optimality
    normal = CGLS.normal

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norms of the residual, damping not included."""
        return rows[:, 0]

    def details(self, state: LSQRState, rows: np.ndarray) -> dict[str, Any]:
        """Return the last norms, and the variances if they were asked for."""
        numbers = dict(zip(REPORTED, rows[-1].tolist(), strict=True))
        return {"r2norm": numbers.pop("rnorm"), **numbers, "var": state.variance}


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
    **run: Unpack[Run],
) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|^2 + \epsilon^2 \|x\|^2` by LSQR. Collective.

    Parameters
    ----------
    A : LinearOperator
        Any shape.
    y : DistributedArray or StackedArray
        The data, in the range of `A`. Its precision is that of the vectors; the scalars are in double precision.
    x0 : DistributedArray or StackedArray, optional
        The starting point; zero by default.
    niter : int
        Largest number of iterations.
    damp : float
        The damping factor :math:`\epsilon`.
    atol, btol : float
        Stop when the residual is explained by relative errors of this size in `A` and `y`, or when the gradient has
        fallen to `atol` times what it was.
    conlim : float
        Stop when the estimated condition number exceeds this; 0 for never.
    calc_var : bool
        Whether to estimate the diagonal of :math:`(A^H A + \epsilon^2 I)^{-1}`, which costs a pass over the model per
        iteration.
    **run
        Options of the run, as for :func:`collops.solvers.cgls`.

    Returns
    -------
    SolverResult
        In its details: ``r1norm`` and ``r2norm`` (norms of the residual without and with damping), ``arnorm`` (of the
        gradient), ``anorm`` and ``acond`` (estimates of the Frobenius norm of [A; damp] and of its condition number),
        ``xnorm``, and ``var``, a real array like ``x`` or ``None``.

    Raises
    ------
    LayoutError
        If `y` or `x0` does not have the layout of `A`.
    InputError
        If an option is invalid.

    Notes
    -----
    Besides the messages of `A`, an iteration sends two scalar allreduces.

    References
    ----------
    .. [1] Paige, C. C., Saunders, M. A., "LSQR: an algorithm for sparse linear equations and sparse least squares", ACM
       Transactions on Mathematical Software 8, 43-71, 1982.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.VStack([np.vander([1.0, 2.0, 3.0, 4.0], 2)])
    >>> data = collops.from_local(np.array([3.0, 5.0, 7.0, 9.0]), A.range)
    >>> collops.lsqr(A, data, niter=10).x.gather().round(6)
    array([2., 1.])
    """
    check_problem(A, y, x0, niter)
    options = {"damp": damp, "atol": atol, "btol": btol, "conlim": conlim}
    method = LSQR(**{name: check_number(name, value) for name, value in options.items()}, calc_var=bool(calc_var))
    return solve(method, A, y, x0, niter=niter, **run)


def _with_squares(factor: Any, w: Any, variance: Any) -> Any:
    """Return ``variance + factor * |w|**2``, element by element, in the memory of `variance`."""
    for leaf, target in zip(w.leaves, variance.leaves, strict=True):
        axpby(factor, _square(leaf, target.dtype), 1.0, target, out=target)
    return variance


def _square(w: DistributedArray, dtype: np.dtype) -> DistributedArray:
    size = w.engine.xp.abs(w.local_array).astype(dtype, copy=False)
    size *= size
    return DistributedArray(w.layout, w.comm, size)
