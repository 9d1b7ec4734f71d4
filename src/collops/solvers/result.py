"""The result of a solver, and the status at which it stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from collops.array import Array

__all__ = ["ROUNDING", "SolverResult", "Status"]


class Status(Enum):
    """The reason why a solver stopped; the value of a member is a sentence, with a remedy if there is one.

    Examples
    --------
    >>> import collops
    >>> status = collops.Status.CONVERGED
    >>> status.successful, str(status)
    (True, 'The tolerance was met.')
    """

    CONVERGED = "The tolerance was met."
    ITERATION_LIMIT = "The iteration limit was reached before the tolerance; raise niter, or loosen the tolerance."
    STOPPED = "The callback asked to stop."
    NOT_FINITE = "A number was infinite or NaN; solvers raise collops.errors.NotFiniteError then."
    EXACT_ZERO = (
        "The adjoint of the data is zero, so that the starting model is the solution; if this is unexpected, "
        "check the operator."
    )
    COMPATIBLE = "The equations are satisfied to the accuracy of atol and btol."
    LEAST_SQUARES = "The least-squares solution has the accuracy of atol."
    ILL_CONDITIONED = "The operator's condition number exceeds conlim; damp the problem, or raise conlim."
    COMPATIBLE_TO_ROUNDING = "The equations are satisfied to rounding; a looser tolerance stops earlier."
    LEAST_SQUARES_TO_ROUNDING = "The solution is accurate to rounding; a looser tolerance stops earlier."
    NO_DESCENT = (
        "No step decreases the objective: the solution is accurate to rounding, or the Jacobian is not the derivative "
        "of the residual."
    )
    RESIDUAL_INCREASED = "The residual increased; take a smaller step alpha, or another eps."
    BREAKDOWN = (
        "The recurrence cannot be continued, because a denominator is zero to rounding; restart from the "
        "current solution (x0), or use gmres."
    )
    STAGNATED = (
        "The recurrence met the tolerance, but the residual computed from the solution does not, since rounding errors "
        "keep it above: loosen the tolerance, use a preconditioner, or a higher precision."
    )
    SINGULAR_TO_ROUNDING = "The operator's condition number exceeds what the precision can handle; damp the problem."
    INDEFINITE = (
        "The preconditioner, or for block methods the operator, is not Hermitian positive definite; "
        "take another preconditioner, or minres for an indefinite operator."
    )

    @property
    def successful(self) -> bool:
        """Whether the solution meets the tolerance, or is accurate to rounding."""
        return self in (
            Status.CONVERGED,
            Status.EXACT_ZERO,
            Status.COMPATIBLE,
            Status.LEAST_SQUARES,
            Status.COMPATIBLE_TO_ROUNDING,
            Status.LEAST_SQUARES_TO_ROUNDING,
        )

    def __str__(self) -> str:
        return self.value


ROUNDING = (Status.COMPATIBLE_TO_ROUNDING, Status.LEAST_SQUARES_TO_ROUNDING)
"""Statuses of solutions whose residual, or gradient, consists of rounding errors."""


@dataclass(frozen=True, eq=False)
class SolverResult:
    """The outcome of a solver.

    Attributes
    ----------
    x : DistributedArray or StackedArray
        The solution.
    status : Status
        Why the solver stopped.
    iterations : int
        Number of iterations that led to `x`.
    residual_norms : numpy.ndarray
        Norm of the residual before the first iteration and after each one, by the recurrence of the method. In Krylov
        methods the last norm is computed from the solution for every status; see `verify` of :class:`Run`.
    seconds : float
        Total time of the solution, including set-up; of a resumed solution, since it was resumed.
    seconds_per_iteration : float
        Mean over the iterations of that time.
    execution : str
        Execution of the steps: ``"eager"``, ``"replayed CUDA graph"``, or ``"eager: "`` and the reason for no graph.
    resumed_from : int or None
        The iteration of the checkpoint from which the solver was resumed.
    details : dict
        Further results of the method, by name.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> result = collops.cgls(A, collops.ones(3), niter=10, rtol=1e-9)
    >>> result.status.name, result.iterations, len(result.residual_norms)
    ('CONVERGED', 3, 4)
    >>> result.execution
    'eager'
    """

    x: Array
    status: Status
    iterations: int
    residual_norms: np.ndarray
    seconds: float
    seconds_per_iteration: float
    execution: str
    resumed_from: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        last = f"{self.residual_norms[-1]:.6g}" if len(self.residual_norms) else "unknown"
        return (
            f"<SolverResult {self.status.name.lower()} after {self.iterations} iterations, residual norm {last}, "
            f"{self.seconds:.3g} s, {self.execution}>"
        )
