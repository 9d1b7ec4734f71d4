"""CG: conjugate gradients for Hermitian positive definite operators."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import numpy as np

from collops.array import Finite, axpby, dots, go_and_turn
from collops.errors import LayoutError
from collops.operators import LinearOperator
from collops.solvers.driver import solve
from collops.solvers.method import DOUBLE_PRECISION, Row, Test, first_passed, not_finite
from collops.solvers.problem import (
    agreed,
    check_problem,
    checked_limits,
    starting_point,
    takes_part,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.run import Run

__all__ = ["CG", "cg"]


@dataclass(slots=True)
class CGState:
    """Vectors and scalars of CG between two iterations."""

    operator: LinearOperator
    x: Any
    residual: Any
    direction: Any
    image: Any  # (A + damp) direction
    residual_agreed: Any  # the residual in the form whose square all ranks agree on
    residual_square: Any
    damped: bool
    rebuilt = frozenset({"image", "residual_agreed"})


@dataclass(frozen=True)
class CG:
    """CG as a method of the driver.

    Attributes
    ----------
    damp : float
        Multiple of the identity that is added to the operator.
    tol : float
        Bound on the squared norm of the residual.
    precision : float
        Relative size of rounding errors: a residual that is smaller, relative to the first, cannot be told from 0. 0 to
        go on all the same.
    rtol, enough : float
        Bounds on the norm of the residual, the former relative to the first.
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
    enough: float = 0.0
    cautious: bool = True
    stops = frozenset({"tol", "precision", "rtol", "enough"})
    name = "CG"
    width = 1

    def init(self, operator: LinearOperator, data: Any, x0: Any, prompt: bool) -> CGState:
        """Return the state before the first iteration: the residual, also as first direction."""
        dtype, damped = working_dtype(operator, data, x0), takes_part(self.damp)
        x, residual, image = starting_point(operator, data, x0, dtype, partial(self._image, operator, damped))
        residual_agreed = agreed(residual)
        (residual_square,) = dots((residual_agreed, residual_agreed))
        return CGState(operator, x, residual, residual.copy(), image, residual_agreed, residual_square, damped)

    def step(self, state: CGState) -> CGState:
        """Minimise along the direction, and find the next one."""
        direction = state.direction
        image = state.image = self._image(state.operator, state.damped, direction, state.image)
        (curvature,) = dots((direction, image))
        # Of what is linear over the real numbers only, the real part is the inner product.
        curvature = abs(curvature) if state.operator.clinear else curvature.real
        previous_square = state.residual_square
        state.residual = axpby((-1.0, previous_square, curvature), image, 1.0, state.residual, out=state.residual)
        (residual_square,) = dots((state.residual_agreed, state.residual_agreed))
        length: Any = (1.0, previous_square, curvature)
        length, ratio = Finite(length) if self.cautious else length, (1.0, residual_square, previous_square)
        go_and_turn(state.x, length, direction, ratio, state.residual)
        state.residual_square = residual_square
        return state

    def finalize(self, state: CGState) -> CGState:
        """Return the state."""
        return state

    def late(self, state: CGState) -> bool:
        """Return False: the numbers of an iteration are there with it."""
        return False

    def monitor(self, state: CGState) -> tuple[Any, ...]:
        """Return the squared norm of the residual."""
        return (state.residual_square,)

    def verdict(self, row: Row, first: Row) -> Status | None:
        """Stop where the residual is as small as was asked for, or rounding."""
        relative = row[0] / first[0] if first[0] else 0.0
        if self.tol < row[0] < math.inf and self.precision**2 < relative >= self.rtol**2 and row[0] >= self.enough**2:
            return None
        return first_passed(self.tests(row, first))

    def tests(self, row: Row, first: Row) -> tuple[Test, ...]:
        """Return what :meth:`verdict` looks at."""
        return (
            (not_finite(*row), Status.NOT_FINITE),
            (row[0] <= self.tol, Status.CONVERGED),
            ((row[0] < self.rtol**2 * first[0]) | (row[0] < self.enough**2), Status.CONVERGED),
            (row[0] <= self.precision**2 * first[0], Status.COMPATIBLE_TO_ROUNDING),
        )

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the array that was first not finite; of a finite one, the residual is made of the image."""
        return "image" if iteration else "residual"

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norms of the residual."""
        return np.sqrt(rows[:, 0])

    def details(self, state: CGState, rows: np.ndarray) -> dict[str, Any]:
        """Return nothing more."""
        return {}

    def optimality(self, operator: LinearOperator, data: Any, x: Any) -> Any:
        """Return the residual, which is zero at the solution."""
        return axpby(1.0, data, -1.0, self._image(operator, takes_part(self.damp), x, None))

    def normal(self, operator: LinearOperator) -> tuple[LinearOperator, Any]:
        """Return the operator of the equations, and the multiple of the identity beside it."""
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
        Where to start; zero by default.
    niter : int
        Largest number of iterations.
    damp : float
        The multiple :math:`\epsilon` of the identity that is added to `A`.
    tol : float
        Stop when the squared norm of the residual is at most this; whatever it is, also where the residual is but
        rounding of the first, with the status ``COMPATIBLE_TO_ROUNDING``.
    rtol : float
        Stop when the norm of the residual is below this multiple of the first; 0 for never.
    rtol1 : float
        Stop when it is below this multiple of the norm of `y`; 0 for never.
    **run
        How it is run, as for :func:`collops.solvers.cgls`.

    Returns
    -------
    SolverResult
        The solution and how it was reached.

    Raises
    ------
    LayoutError
        If `A` has two layouts, or `y` or `x0` has not that of `A`.
    InputError
        If an option makes no sense.

    Notes
    -----
    Besides the messages of `A`, an iteration sends two scalar allreduces, of a replicated model one.

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
