"""Least squares for all jobs: how much an operator stretches, CGLS, and what an iteration costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from collops.apps.costs import Costs, solve_with_costs
from collops.apps.stages import raised_together
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.solvers import Run, SolverResult

__all__ = ["Stretch", "least_squares"]


@dataclass(frozen=True)
class Stretch:
    """The adjoint of the data, and how much the operator stretches it.

    Parameters
    ----------
    gradient : DistributedArray
        The adjoint of the data.
    norm : float
        How much longer the operator makes it: an estimate of the operator's norm, from below.
    step : float
        The factor at which the gradient fits the data best, which is where CGLS is after one iteration.
    """

    gradient: Any
    norm: float
    step: float

    @classmethod
    def of(cls, operator: Any, data: Any) -> Stretch:
        """Measure an operator on data. Collective.

        Raises
        ------
        InputError
            On every rank, if the numbers grow beyond what their type holds, or vanish.
        """
        from collops.array import dots

        gradient = operator.adjoint(data)
        squares = dots(*((a, a) for a in (gradient, operator.forward(gradient))))
        gradient_square, stretched_square = (float(square) for square in squares)
        remedy = "scale the data" + ("" if gradient.dtype == np.float64 else ", or use --dtype float64")
        with raised_together():
            if not np.isfinite([gradient_square, stretched_square]).all():
                raise InputError(f"the amplitudes are too large for {gradient.dtype}: {remedy}")
            if not stretched_square and float(data.norm(np.inf)):
                raise InputError(
                    f"no model explains anything of the data, or their amplitudes are too small for {gradient.dtype}: "
                    f"check what belongs to them, or {remedy}"
                )
        norm = float(np.sqrt(stretched_square / gradient_square)) if gradient_square else 0.0
        return cls(gradient, norm, gradient_square / stretched_square if stretched_square else 0.0)


def least_squares(
    operator: Any,
    data: Any,
    comm: Communicator,
    compute: Engine,
    *,
    iterations: int,
    damp: float,
    rehearse: Callable[[], None],
    sends_inside: bool = False,
    **run: Unpack[Run],
) -> tuple[SolverResult, Costs]:
    """Minimise by CGLS, and find out what an iteration costs. Collective.

    Parameters
    ----------
    operator, data
        The problem.
    comm, compute, iterations, rehearse, sends_inside, **run
        See `solve_with_costs`.
    damp : float
        The damping factor.

    Raises
    ------
    InputError
        On every rank, if the numbers grew beyond what their type holds.
    """
    from collops.solvers import cgls

    def solve(*, niter: int, **run: Unpack[Run]) -> SolverResult:
        return cgls(operator, data, niter=niter, damp=damp, tol=0.0, **run)

    return solve_with_costs(
        solve, comm, compute, iterations=iterations, rehearse=rehearse, sends_inside=sends_inside, **run
    )
