"""The solver: steepest descent for least squares."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from collops import Status, axpby, dots
from collops.extend.solvers import (
    SCRATCH,
    Method,
    check_number,
    check_problem,
    consistent,
    not_finite,
    solve,
    starting_point,
)


class Numbers(NamedTuple):
    gradient: Any  # squared norm of A^H (y - A x)
    residual: Any  # squared norm of y - A x


@dataclass
class State:
    x: Any
    r: Any  # y - A x
    g: Any  # A^H r
    gradient: Any
    residual: Any
    image: Any = field(metadata=SCRATCH)  # A g


@dataclass(frozen=True)
class SteepestDescent(Method):
    rtol: float = 0.0
    name = "steepest descent"
    numbers = Numbers
    tolerances = frozenset({"rtol"})
    degrees = {}  # noqa: RUF012
    stops = (
        (lambda self, now, first: not_finite(now.gradient), Status.NOT_FINITE),
        (lambda self, now, first: now.gradient == 0, Status.EXACT_ZERO),
        (lambda self, now, first: now.gradient <= self.rtol * self.rtol * first.gradient, Status.CONVERGED, "rtol"),
    )

    def init(self, A, y, x0):
        x, r, image = starting_point(A, y, x0)
        g = A.adjoint(r)
        gradient, residual = dots(*consistent((g, g), (r, r)))
        return State(x, r, g, gradient, residual, image)

    def step(self, A, state):
        state.image = A.forward(state.g, out=state.image)
        (curvature,) = dots(*consistent((state.image, state.image)))
        alpha = state.gradient / curvature
        state.x = axpby(1.0, state.x, alpha, state.g, out=state.x)
        state.r = axpby(1.0, state.r, -alpha, state.image, out=state.r)
        state.g = A.adjoint(state.r, out=state.g)
        state.gradient, state.residual = dots(*consistent((state.g, state.g), (state.r, state.r)))
        return state

    def report(self, state):
        return Numbers(state.gradient, state.residual)


def steepest_descent(A, y, x0=None, *, niter=100, rtol=1e-6, **options):
    """Minimise ``||y - A x||``, until the gradient is `rtol` of the first. Collective."""
    check_problem(A, y, x0, niter)
    return solve(SteepestDescent(check_number("rtol", rtol)), A, y, x0, niter=niter, **options)
