"""The primal-dual method of Chambolle and Pock, for a non-smooth function of an operator's image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collops.array import Array, axpby, zeros_like
from collops.errors import InputError
from collops.operators import LinearOperator
from collops.operators.memory import new_array
from collops.solvers.driver import solve, solver
from collops.solvers.problem import check_array, check_number, check_operator
from collops.solvers.proximal.operator import ProxOperator, inner
from collops.solvers.proximal.splitting import (
    BEFORE_FIRST,
    NOT_FINITE,
    REDUCED,
    RESIDUAL,
    UPDATE,
    Splitting,
    StepSizes,
    check_arguments,
    check_bounds,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.shrinkage import StepSums, advance
from collops.solvers.state import SCRATCH, Numbers, Scalar, scratch_array


@dataclass(slots=True)
class PrimalDualState:
    """State of the primal-dual method between iterations."""

    x: Array
    y: Array
    ahead: Array  # x, extrapolated
    image: Array | None = field(metadata=SCRATCH)  # A ahead, then the next y
    gradient: Array | None = field(metadata=SCRATCH)  # A^H y + z
    point: Array | None = field(metadata=SCRATCH)  # the next x; allocated by the first step
    sums: StepSums
    iteration: int


@dataclass(frozen=True)
class PrimalDual(Splitting):
    """The primal-dual method [Chambolle and Pock 2011, algorithm 1]."""

    tau: StepSizes
    mu: StepSizes
    theta: float  # extrapolation
    gfirst: bool  # whether y is updated before x
    z: Array | None  # the vector of the linear term, or None
    measured = (("y", UPDATE), ("x", RESIDUAL))
    name = "Primal-dual"
    results = ("x", "y")
    stops = (
        BEFORE_FIRST,
        NOT_FINITE,
        (
            lambda self, now, first: self.tol is not None and max(now.residual, now.update) <= self.tol * self.tol,
            Status.CONVERGED,
        ),
        REDUCED,
    )

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> PrimalDualState:
        x, image = y, new_array(A.range, y, y.dtype)  # x0 is the starting point of the dual variable
        dual = zeros_like(image) if x0 is None else x0.astype(x.dtype)
        gradient = scratch_array(A.domain, x, x.dtype)
        sums = StepSums.over(x, dual, width=3, extra=1)
        return self.started(A, PrimalDualState(x, dual, x.copy(), image, gradient, None, sums, 0))

    def step(self, A: LinearOperator, state: PrimalDualState) -> PrimalDualState:
        """Update the dual and the primal variable, in the chosen order, and extrapolate."""
        self.begin(state.sums)
        if self.gfirst:
            self._update_y(A, state)
        tau = self.tau[state.iteration]
        state.gradient = A._adjoint(state.y, state.gradient)
        if self.z is not None:
            state.gradient = axpby(1.0, self.z, 1.0, state.gradient, out=state.gradient)
        state.point = self.f._prox_of_sum(1.0, state.x, -tau, state.gradient, tau, state.point)
        state.x, state.ahead = advance(
            state.sums, 0, state.x, base=state.point, ahead=state.ahead, momentum=self.theta, update=RESIDUAL, keep=True
        )
        if not self.gfirst:
            self._update_y(A, state)
        if self.tau.varies or self.mu.varies:
            state.iteration += 1
        return self.finished(A, state)

    def _update_y(self, A: LinearOperator, state: PrimalDualState) -> None:
        mu = self.mu[state.iteration]
        state.image = A._forward(state.ahead, state.image)
        moved = axpby(mu, state.image, 1.0, state.y, out=state.image)
        state.image = self.g._proxdual(moved, mu, moved)
        state.y, _ = advance(state.sums, 1, state.y, base=state.image, update=UPDATE)

    def details(self, state: PrimalDualState, history: Numbers) -> dict[str, Any]:
        return {
            **super().details(state, history),
            "y": state.y,
            "y_updates": np.sqrt(np.maximum(history.update[1:], 0)),
        }

    def _objective(self, A: LinearOperator, state: PrimalDualState) -> Scalar:
        value = self.f._value(state.x) + self.g._value(A._forward(state.x, state.image))
        return value if self.z is None else value + inner(self.z, state.x)


@solver
def primal_dual(
    f: ProxOperator,
    g: ProxOperator,
    A: LinearOperator,
    x0: Array,
    tau: float | Sequence[float],
    mu: float | Sequence[float],
    *,
    y0: Array | None = None,
    z: Array | None = None,
    theta: float = 1.0,
    niter: int = 10,
    gfirst: bool = True,
    tol: float | None = None,
    rtol: float | None = None,
    objective: bool = False,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`g(A x) + f(x) + z^H x` by the primal-dual method of Chambolle and Pock [2011]. Collective.

    Parameters
    ----------
    f, g : ProxOperator
        The functions, convex.
    A : LinearOperator
        An operator of any shape.
    x0, y0, z : DistributedArray or StackedArray
        The starting points, in the domain and in the range of `A`, and the vector of a linear term; `y0` and `z` are 0
        by default. For complex arrays, the real part of the product with `z` is used.
    tau, mu : float or sequence of float
        Step sizes of x and y, or one per iteration. It converges if :math:`\tau \mu \lambda_{max}(A^H A) < 1`.
    theta : float
        Extrapolation, 0 to 1; 0 is the method of Arrow and Hurwicz.
    gfirst : bool
        Whether y is updated before x, as in the formulas below.
    tol : float, optional
        Stop when the norms of the updates of x and of y are both at most this.
    niter, rtol, objective, **run
        As for :func:`proximal_gradient`. The objective takes one more application of `A` in each iteration. In a
        callback, the dual variable is ``view.state.y``.

    Returns
    -------
    SolverResult
        The residual is the update of x. In its details: ``y``, ``y_updates`` (norms), ``objective`` if evaluated.

    Raises
    ------
    UnsupportedTypeError, LayoutError, InputError
        As for :func:`admm`.

    Notes
    -----
    .. math::
        y_{k+1} &= \mathrm{prox}_{\mu g^*}(y_k + \mu A \bar{x}_k) \\
        x_{k+1} &= \mathrm{prox}_{\tau f}\big(x_k - \tau (A^H y_{k+1} + z)\big) \\
        \bar{x}_{k+1} &= x_{k+1} + \theta (x_{k+1} - x_k)

    Besides the messages of `f`, `g` and `A`, an iteration sends one allreduce of three numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> D = collops.FirstDerivative(6, kind="forward")
    >>> f = collops.L2(b=collops.from_global(np.array([1.0, 1.1, 0.9, 3.1, 2.9, 3.0])))
    >>> result = collops.primal_dual(f, collops.L1(0.1), D, collops.zeros(6), tau=0.4, mu=0.4, niter=200)
    >>> result.x.gather().round(1)
    array([1., 1., 1., 3., 3., 3.])
    """
    check_operator("A", A)
    x = check_arguments(x0, niter, A, (y0, z), f=f, g=g)
    for name, array, layout in (("y0", y0, A.range), ("z", z, A.domain)):
        check_array(name, array, layout, optional=True)
    if not 0 <= check_number("theta", theta) <= 1:
        raise InputError(f"theta must be 0 to 1, not {theta!r}")
    sizes = StepSizes("tau", tau, niter), StepSizes("mu", mu, niter)
    tol, rtol, _ = check_bounds(tol, rtol, objective)
    method = PrimalDual(f, g, tol, rtol, bool(objective) or rtol is not None, *sizes, float(theta), bool(gfirst), z)
    return solve(method, A, x, y0, parts=(f, g, *sizes), niter=niter, **run)
