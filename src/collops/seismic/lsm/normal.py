"""Conjugate gradients on the normal equations of a survey, and the choice of the number of iterations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from collops import LinearOperator, SolverResult, dots
from collops.extend.arrays import Array
from collops.extend.solvers import PreconditionedCG, consistent, precision_of, solve, takes_part
from collops.seismic.survey.normal import NormalEquations


class _Numbers(NamedTuple):
    """The scalars of a CG iteration, and the squared norm of the solution."""

    residual: Any
    curvature: Any
    product: Any
    size: Any


class _NormalCG(PreconditionedCG):
    """CG on normal equations that tracks the energy of the data that its iterates explain."""

    name = "CG on the normal equations"
    numbers = _Numbers
    degrees: ClassVar[Mapping[str, tuple[float, float]] | None] = {
        **(PreconditionedCG.degrees or {}),
        "explained": (2, -1),
    }

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> Any:
        state = super().init(A, y, x0)
        state.numbers = (*state.numbers, 0.0 * state.numbers[0])
        return state

    def step(self, A: LinearOperator, state: Any) -> Any:
        """Take a CG step, and compute the squared norm of the solution if it is damped."""
        state = super().step(A, state)
        size = 0.0 * state.numbers[0]
        if takes_part(self.damp):
            (size,) = dots(*consistent((state.x, state.x)))
        state.numbers = (*state.numbers, size)
        return state

    def details(self, state: Any, history: Any) -> dict[str, Any]:
        """Add the decrease of the squared data residual since the first iterate [Hestenes and Stiefel].

        A step of length alpha = product / curvature lowers the objective by alpha times the product before the step.
        """
        before, curvature = history.product[:-1], history.curvature[1:]
        steps = np.divide(before**2, curvature, out=np.zeros_like(before), where=curvature > 0)
        return super().details(state, history) | {"explained": np.cumsum([0.0, *steps]) + self.damp * history.size}


def minimise(A: LinearOperator, y: Array, *, damp: float, M: LinearOperator | None, **run: Any) -> SolverResult:
    """Solve ``(A + damp**2) x = y`` by CG with the preconditioner ``M @ M.H``, from zero. Collective.

    The details have the array ``explained``: the energy of the data minus the squared norm of their residual, before
    the first iteration and after each.
    """
    M = None if M is None else M @ M.H
    return solve(_NormalCG(damp=damp * damp, precision=precision_of(y.dtype), M=M), A, y, parts=[M], **run)


def cross_validated(
    used: NormalEquations, held: NormalEquations, *, method: Callable[..., SolverResult], patience: int, **run: Any
) -> np.ndarray:
    """Do the same as `collops.solvers.cross_validate` with normal equations of two parts of the data. Collective."""
    if not (used.energy and held.energy):
        return np.ones(1)
    shares = [1.0]

    def watch(iteration: int, view: Any) -> bool:
        shares.append(held.misfit(view.x) / held.energy**0.5)
        return iteration - int(np.argmin(shares)) >= patience

    method(used.operator, used.right, callback=watch, **run)
    return np.array(shares)
