"""ADMM: proximal points of two functions in turn, and a multiplier that brings them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Unpack

from collops.array import axpby, zeros_like
from collops.errors import LayoutError
from collops.operators.base import new_array
from collops.solvers.driver import Run, solve
from collops.solvers.proximal.operator import ProxOperator, check_step
from collops.solvers.proximal.splitting import FIRST, SECOND, Splitting, check_arguments, check_bounds
from collops.solvers.result import SolverResult
from collops.solvers.shrinkage import StepSums, advance
from collops.solvers.state import SCRATCH

__all__ = ["ADMM", "admm"]


@dataclass(slots=True)
class ADMMState:
    """Vectors of ADMM between two iterations."""

    x: Any
    z: Any
    u: Any  # the scaled multiplier
    point: Any = field(metadata=SCRATCH)  # the next x
    difference: Any = field(metadata=SCRATCH)  # x - z
    sums: StepSums


@dataclass(frozen=True)
class ADMM(Splitting):
    """ADMM as a method of the driver.

    Attributes
    ----------
    tau : float
        Step size.
    gfirst : bool
        Whether g comes first.

    Examples
    --------
    >>> import collops
    >>> from collops.solvers.proximal import L1, L2
    >>> result = collops.admm(L2(b=collops.full(3, 2.0)), L1(0.5), collops.zeros(3), tau=1.0, niter=50)
    >>> result.x.gather().round(3)
    array([1.5, 1.5, 1.5])
    """

    tau: float
    gfirst: bool
    measured = (("x", SECOND), ("difference", FIRST))
    name = "ADMM"

    def init(self, operator: Any, data: Any, x0: Any, report_now: bool) -> ADMMState:
        """Return the state before the first iteration."""
        x, z = data, x0
        sums = self.start(x)
        self.before(sums, self._objective(x) if self.objective else None)
        point, difference = (new_array(x.layout, x, x.dtype) for _ in range(2))
        return ADMMState(x, z, zeros_like(x), point, difference, sums)

    def step(self, state: ADMMState) -> ADMMState:
        """Find both proximal points, and move the multiplier by their difference."""
        self.begin(state.sums)
        if self.gfirst:
            state.z = self.g._prox_of_sum(1.0, state.x, 1.0, state.u, self.tau, state.z)
        state.point = self.f._prox_of_sum(1.0, state.z, -1.0, state.u, self.tau, state.point)
        state.x, _ = advance(state.sums, 0, state.x, base=state.point, update=SECOND, keep=True)
        if not self.gfirst:
            state.z = self.g._prox_of_sum(1.0, state.x, 1.0, state.u, self.tau, state.z)
        state.difference = self.difference(state.sums, 0, state.x, state.z, state.difference)
        state.u = axpby(1.0, state.difference, 1.0, state.u, out=state.u)
        self.finish(state.sums, self._objective(state.x) if self.objective else None)
        return state

    def _objective(self, x: Any) -> Any:
        return self.f._value(x) + self.g._value(x)


def admm(
    f: ProxOperator,
    g: ProxOperator,
    x0: Any,
    tau: float,
    *,
    z0: Any = None,
    niter: int = 10,
    gfirst: bool = False,
    tol: float | None = None,
    rtol: float | None = None,
    objective: bool = False,
    **run: Unpack[Run],
) -> SolverResult:
    r"""Minimise :math:`f(x) + g(z)` with :math:`x = z` by the alternating direction method of multipliers. Collective.

    Parameters
    ----------
    f, g : ProxOperator
        The functions.
    x0 : DistributedArray or StackedArray
        The starting point.
    tau : float
        Step size.
    z0 : DistributedArray or StackedArray, optional
        Where z starts; at `x0` by default.
    niter : int
        Largest number of iterations.
    gfirst : bool
        Whether the proximal point of `g` comes first.
    tol, rtol, objective
        As for :func:`collops.solvers.proximal.proximal_gradient`; the objective is :math:`f(x) + g(x)`.
    **run
        Options of the run, as for :func:`collops.solvers.cgls`; ``view.state.z`` is the second variable.

    Returns
    -------
    SolverResult
        The residual is :math:`x - z`. In its details: ``z``, and ``objective`` if it was evaluated.

    Raises
    ------
    UnsupportedTypeError
        If an argument is no proximal operator or distributed array.
    LayoutError
        If `z0` has not the layout of `x0`.
    InputError
        If an option is invalid.

    Notes
    -----
    .. math::
        x_{k+1} &= \mathrm{prox}_{\tau f}(z_k - u_k) \\
        z_{k+1} &= \mathrm{prox}_{\tau g}(x_{k+1} + u_k) \\
        u_{k+1} &= u_k + x_{k+1} - z_{k+1}

    Besides the messages of `f` and `g`, an iteration sends one scalar allreduce.

    References
    ----------
    .. [1] Boyd, S., Parikh, N., Chu, E., Peleato, B., Eckstein, J., "Distributed optimization and statistical learning
       via the alternating direction method of multipliers", Foundations and Trends in Machine Learning 3, 1-122, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> f = collops.L2(b=collops.from_global(np.array([3.0, 0.2, -2.0])))
    >>> result = collops.admm(f, collops.L1(), collops.zeros(3), tau=1.0, niter=100)
    >>> result.x.gather().round(3)
    array([ 2.,  0., -1.])
    """
    x = check_arguments(x0, niter, (z0,), f=f, g=g)
    if z0 is not None and getattr(z0, "layout", None) is not x.layout:
        raise LayoutError(f"z0 must have the layout {x.layout} of x0")
    method = ADMM(
        f,
        g,
        *check_bounds(tol, rtol, objective),
        check_step(tau),
        bool(gfirst),
    )
    z = (x if z0 is None else z0).astype(x.dtype)
    return solve(method, None, x, z, parts=(f, g), niter=niter, **run)
