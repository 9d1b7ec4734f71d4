"""What methods for square systems share: their options, the tests of the residual, and the checks of the arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collops.array import axpby
from collops.errors import LayoutError
from collops.operators import LinearOperator
from collops.solvers.method import DOUBLE_PRECISION, Method, not_finite
from collops.solvers.problem import check_number, check_preconditioner, check_problem, precision_of, working_dtype
from collops.solvers.result import Status

__all__ = ["SquareSystem"]


@dataclass(frozen=True)
class SquareSystem(Method):
    """A method for ``A x = y`` with one layout on both sides; the first of its `numbers` is the norm of the residual.

    Attributes
    ----------
    rtol, atol : float
        Bounds on the norm of the residual, relative to the first and absolute.
    precision : float
        Relative size of rounding errors, below which a residual cannot be distinguished from 0.
    M : LinearOperator or None
        The preconditioner, which approximates the inverse of the operator.
    """

    rtol: float = 1e-5
    atol: float = 0.0
    precision: float = DOUBLE_PRECISION
    M: LinearOperator | None = None
    tolerances = frozenset({"rtol", "atol", "precision"})
    stops = (
        (lambda self, now, first: not_finite(now.residual), Status.NOT_FINITE),
        (lambda self, now, first: now.residual <= self.rtol * first.residual, Status.CONVERGED, "rtol"),
        (lambda self, now, first: now.residual <= self.atol, Status.CONVERGED, "atol"),
        (lambda self, now, first: now.residual <= self.precision * first.residual, Status.COMPATIBLE_TO_ROUNDING),
    )

    def suspect(self, now: Any, iteration: int) -> str:
        return "image" if iteration else "residual"

    def residual_norm(self, now: Any) -> Any:
        return now.residual

    def optimality(self, A: LinearOperator, y: Any, x: Any) -> Any:
        """Return the residual, which is zero at the solution."""
        return axpby(1.0, y, -1.0, A._forward(x, None))

    def preconditioned(self, r: Any, out: Any) -> Any:
        """Return ``M r``, perhaps in the memory `out`; `r` itself without a preconditioner."""
        return r if self.M is None else self.M._forward(r, out)


def checked_system(name: str, A: Any, y: Any, x0: Any, niter: Any, M: Any, rtol: Any, atol: Any) -> dict[str, Any]:
    """Return the options of a :class:`SquareSystem` after a check of all arguments. No messages.

    Raises LayoutError, with the `name` of the function, if the operator has two layouts.
    """
    check_problem(A, y, x0, niter)
    if A.domain is not A.range:
        raise LayoutError(f"{name} needs an operator with one layout on both sides, not {A!r}; lsqr takes any")
    check_preconditioner(M, A.domain)
    precision = precision_of(working_dtype(A, y, x0))
    return {"rtol": check_number("rtol", rtol), "atol": check_number("atol", atol), "precision": precision, "M": M}
