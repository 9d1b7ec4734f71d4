"""CG: conjugate gradients for Hermitian positive definite operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

import numpy as np

from collops.array import Finite, axpby, dots, update_solution_and_direction
from collops.errors import LayoutError
from collops.operators import LinearOperator
from collops.solvers.driver import Run, solve
from collops.solvers.method import DOUBLE_PRECISION, Method, Row, Test, not_finite
from collops.solvers.problem import (
    check_problem,
    checked_limits,
    rank_consistently,
    starting_point,
    takes_part,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.state import CONSTANT, SCRATCH

__all__ = ["CG", "cg"]


@dataclass(slots=True)
class CGState:
    """Vectors and scalars of CG between two iterations."""

    operator: LinearOperator = field(metadata=CONSTANT)
    x: Any
    residual: Any
    direction: Any
    image: Any = field(metadata=SCRATCH)  # (A + damp) direction
    residual_square: Any
    consistently: Callable[[Any], Any] = field(metadata=CONSTANT)  # see rank_consistently
    damped: bool = field(metadata=CONSTANT)


@dataclass(frozen=True)
class CG(Method):
    """CG as a method of the driver.

    Attributes
    ----------
    damp : float
        Multiple of the identity that is added to the operator.
    tol : float
        Bound on the squared norm of the residual.
    precision : float
        Relative size of rounding errors: a residual that is smaller, relative to the first, cannot be told from 0. With
        0 the solver does not stop there.
    rtol, atol : float
        Bounds on the norm of the residual, relative to the first and absolute.
    cautious : bool
        Whether a step that is not finite leaves the solution as it is.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> from collops.solvers import CG, solve
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> solve(CG(tol=1e-12), A, collops.ones(3), niter=10).x.gather()
    array([1.  , 0.5 , 0.25])
    """

    damp: float = 0.0
    tol: float = 1e-4
    precision: float = DOUBLE_PRECISION
    rtol: float = 0.0
    atol: float = 0.0
    cautious: bool = True
    stops = frozenset({"tol", "precision", "rtol", "atol"})
    name = "CG"
    width = 1

    def init(self, operator: LinearOperator, data: Any, x0: Any, report_now: bool) -> CGState:
        """Return the state before the first iteration: the residual, also as first direction."""
        dtype, damped = working_dtype(operator, data, x0), takes_part(self.damp)
        x, residual, image = starting_point(operator, data, x0, dtype, partial(self._image, operator, damped))
        consistently = rank_consistently(residual)
        together = consistently(residual)
        (residual_square,) = dots((together, together))
        return CGState(operator, x, residual, residual.copy(), image, residual_square, consistently, damped)

    def step(self, state: CGState) -> CGState:
        """Minimise along the direction, and find the next one."""
        state.image = self._image(state.operator, state.damped, state.direction, state.image)
        (curvature,) = dots((state.direction, state.image))
        # For an operator that is linear over the real numbers only, the real part is the inner product.
        curvature = abs(curvature) if state.operator.clinear else curvature.real
        previous_square = state.residual_square
        minus_length = (-1.0, previous_square, curvature)
        state.residual = axpby(minus_length, state.image, 1.0, state.residual, out=state.residual)
        together = state.consistently(state.residual)
        (state.residual_square,) = dots((together, together))
        length: Any = (1.0, previous_square, curvature)
        length, ratio = Finite(length) if self.cautious else length, (1.0, state.residual_square, previous_square)
        state.x, state.direction = update_solution_and_direction(
            state.x, length, state.direction, ratio, state.residual
        )
        return state

    def monitor(self, state: CGState) -> tuple[Any, ...]:
        """Return the squared norm of the residual."""
        return (state.residual_square,)

    def verdict(self, row: Row, first: Row) -> Status | None:
        """Stop where the residual is below a bound, or rounding."""
        relative = row[0] / first[0] if first[0] else 0.0
        if self.tol < row[0] < math.inf and self.precision**2 < relative >= self.rtol**2 and row[0] >= self.atol**2:
            return None
        return super().verdict(row, first)

    def tests(self, row: Row, first: Row) -> tuple[Test, ...]:
        """Return the tests of :meth:`verdict`."""
        return (
            (not_finite(*row), Status.NOT_FINITE),
            (row[0] <= self.tol, Status.CONVERGED),
            ((row[0] < self.rtol**2 * first[0]) | (row[0] < self.atol**2), Status.CONVERGED),
            (row[0] <= self.precision**2 * first[0], Status.COMPATIBLE_TO_ROUNDING),
        )

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the array that was first not finite: after the start the image, from which the residual is made."""
        return "image" if iteration else "residual"

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norms of the residual."""
        return rows[:, 0] ** 0.5

    def optimality(self, operator: LinearOperator, data: Any, x: Any) -> Any:
        """Return the residual, which is zero at the solution."""
        return axpby(1.0, data, -1.0, self._image(operator, takes_part(self.damp), x, None))

    def normal(self, operator: LinearOperator) -> tuple[LinearOperator, Any]:
        """Return the operator of the equations, and the multiple of the identity that is added to it."""
        return operator, self.damp

    def _image(self, operator: LinearOperator, damped: bool, x: Any, out: Any) -> Any:
        image = operator._forward(x, out)
        return axpby(self.damp, x, 1.0, image, out=image) if damped else image


def cg(
    A: LinearOperator,
    y: Any,
    x0: Any = None,
    *,
    niter: int = 10,
    damp: float = 0.0,
    tol: float = 1e-4,
    rtol: float = 0.0,
    rtol1: float = 0.0,
    **run: Unpack[Run],
) -> SolverResult:
    r"""Solve :math:`(A + \epsilon I) x = y` by conjugate gradients. Collective.

    Parameters
    ----------
    A : LinearOperator
        Hermitian positive definite, with one layout on both sides.
    y : DistributedArray or StackedArray
        The right-hand side. Its precision is that of the computation.
    x0 : DistributedArray or StackedArray, optional
        The starting point; zero by default.
    niter : int
        Largest number of iterations.
    damp : float
        The multiple :math:`\epsilon` of the identity that is added to `A`.
    tol : float
        Stop when the squared norm of the residual is at most this. The solver always stops where the residual is no
        larger than rounding errors of the first one, with the status ``COMPATIBLE_TO_ROUNDING``.
    rtol : float
        Stop when the norm of the residual is below this multiple of the first; 0 for never.
    rtol1 : float
        Stop when it is below this multiple of the norm of `y`; 0 for never.
    **run
        Options of the run, as for :func:`collops.solvers.cgls`.

    Returns
    -------
    SolverResult
        The solution, and the history of the iteration.

    Raises
    ------
    LayoutError
        If `A` has two layouts, or `y` or `x0` does not have that of `A`.
    InputError
        If an option is invalid.

    Notes
    -----
    Besides the messages of `A`, an iteration sends two scalar allreduces; one with a replicated model.

    References
    ----------
    .. [1] Hestenes, M. R., Stiefel, E., "Methods of conjugate gradients for solving linear systems", Journal of
       Research of the National Bureau of Standards 49, 409-436, 1952.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> collops.cg(A, collops.ones(3), niter=10, tol=1e-12).x.gather()
    array([1.  , 0.5 , 0.25])
    """
    check_problem(A, y, x0, niter)
    if A.domain is not A.range:
        raise LayoutError(f"cg needs an operator with one layout on both sides, not {A!r}; cgls takes any")
    method = CG(**checked_limits(A, y, x0, damp, tol, rtol, rtol1))
    return solve(method, A, y, x0, niter=niter, **run)
