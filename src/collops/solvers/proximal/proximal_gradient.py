"""Proximal gradient: a step along the gradient of a smooth function, then the proximal point of another function."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collops.array import Array, axpby, dots
from collops.backend import engine
from collops.errors import InputError, UnsupportedTypeError
from collops.solvers.driver import solve, solver
from collops.solvers.problem import check_count, check_kept, check_number
from collops.solvers.proximal.operator import ProxOperator, check_step
from collops.solvers.proximal.splitting import RESIDUAL, Splitting, StepSizes, check_arguments, check_bounds
from collops.solvers.result import SolverResult
from collops.solvers.schedule import Schedule, momenta
from collops.solvers.shrinkage import StepSums, advance
from collops.solvers.state import SCRATCH, Numbers, Scalar, scratch_array


@dataclass(slots=True)
class ProximalGradientState:
    """State of the proximal gradient method between iterations."""

    x: Array
    ahead: Array | None  # x, extrapolated: the point of the gradient; None without acceleration
    sums: StepSums
    excess: StepSums | None = field(metadata=SCRATCH)  # sums of a trial step
    momenta: Schedule | None
    tau: float
    iteration: int
    gradient: Array | None = field(metadata=SCRATCH)
    point: Array | None = field(default=None, metadata=SCRATCH)  # the next x; allocated by the first step
    difference: Array | None = field(default=None, metadata=SCRATCH)  # of a trial step; allocated likewise


@dataclass(frozen=True)
class Backtracking:
    """A search for the step size, controlled by the host."""

    beta: float  # factor of a step size that is too large
    niterback: int  # largest number of trials
    capturable = False


@dataclass(frozen=True)
class ProximalGradient(Splitting):
    """Proximal gradient [Parikh and Boyd 2014, 4.2 and 4.3; Beck and Teboulle 2009]."""

    tau: float  # step size; the initial one with backtracking
    epsg: StepSizes  # weights of g
    eta: float  # relaxation
    momenta: np.ndarray | None  # the extrapolation of each iteration, or None
    backtracking: Backtracking | None
    name = "Proximal gradient"

    def init(self, A: None, y: Array, x0: Array | None) -> ProximalGradientState:
        x, searching, accelerated = y, self.backtracking is not None, self.momenta is not None
        state = ProximalGradientState(
            x,
            ahead=x.copy() if accelerated else None,
            sums=StepSums.over(x, width=3, extra=1),
            excess=StepSums.over(x, width=1) if searching else None,
            momenta=Schedule.from_numbers(self.momenta, x.engine, np.dtype(np.float64)) if accelerated else None,
            tau=self.tau,
            iteration=0,
            gradient=scratch_array(x.layout, x, x.dtype),
        )
        return self.started(A, state)

    def step(self, A: None, state: ProximalGradientState) -> ProximalGradientState:
        """Take a gradient step, compute the proximal point, relax, and extrapolate."""
        self.begin(state.sums)
        ahead = state.x if state.ahead is None else state.ahead
        state.gradient = self.f._grad(ahead, state.gradient)
        if self.backtracking is None:
            state.point = self._trial(state, ahead)
        else:
            self._search(state, ahead, self.backtracking)
        if self.eta != 1:
            state.point = axpby(1 - self.eta, ahead, self.eta, state.point, out=state.point)
        momentum = None if state.momenta is None else state.momenta.take()
        state.x, state.ahead = advance(
            state.sums, 0, state.x, base=state.point, ahead=state.ahead, momentum=momentum, update=RESIDUAL, keep=True
        )
        self.finished(A, state)
        if self.epsg.varies:
            state.iteration += 1
        return state

    def details(self, state: ProximalGradientState, history: Numbers) -> dict[str, Any]:
        return {**super().details(state, history), "tau": state.tau}

    def _objective(self, A: None, state: ProximalGradientState) -> Scalar:
        return self.f._value(state.x) + self.epsg[state.iteration] * self.g._value(state.x)

    def _trial(self, state: ProximalGradientState, ahead: Array) -> Array:
        weight = self.epsg[state.iteration] * state.tau
        return self.g._prox_of_sum(1.0, ahead, -state.tau, state.gradient, weight, state.point)

    def _search(self, state: ProximalGradientState, ahead: Array, search: Backtracking) -> None:
        """Reduce the step until f is below its quadratic model [Parikh and Boyd 2014, 4.2]."""
        value, excess = self.f._value(ahead), state.excess
        assert excess is not None
        for _ in range(search.niterback):
            state.point = self._trial(state, ahead)
            state.difference = axpby(1.0, state.point, -1.0, ahead, out=state.difference)
            slope, square = dots((state.gradient, state.difference), (state.difference, state.difference))
            excess.clear()
            excess.contribute(0, self.f._value(state.point) - (value + slope.real + square / (2 * state.tau)))
            excess.combine()
            if float(excess.values[0]) <= 0:
                return
            state.tau = max(state.tau * search.beta, sys.float_info.min)  # a step size of 0 has no proximal point


@solver
def proximal_gradient(
    f: ProxOperator,
    g: ProxOperator,
    x0: Array,
    *,
    epsg: float | Sequence[float] = 1.0,
    tau: float | None = None,
    backtracking: bool = False,
    beta: float = 0.5,
    eta: float = 1.0,
    niter: int = 10,
    niterback: int = 100,
    acceleration: str | None = None,
    tol: float | None = None,
    rtol: float | None = None,
    objective: bool = False,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`f(x) + \epsilon g(x)` for a smooth f by proximal gradient steps. Collective.

    Parameters
    ----------
    f, g : ProxOperator
        The functions; f has a gradient.
    x0 : DistributedArray or StackedArray
        The starting point.
    epsg : float or sequence of float
        The weight :math:`\epsilon`, or one for each iteration.
    tau : float, optional
        Step size, at most the inverse of the gradient's Lipschitz constant. By default found by backtracking from 1.
    backtracking, beta, niterback : optional
        Whether to search for the step size from `tau`, by at most `niterback` reductions by the factor `beta`, below 1.
    eta : float
        Relaxation; above 0, at most 1.
    acceleration : str, optional
        ``"vandenberghe"``, with :math:`\omega_k = k / (k + 3)`, or ``"fista"``, with :math:`(t_k - 1) / t_{k+1}` [Beck
        and Teboulle 2009]. By default :math:`\omega_k = 0`.
    tol, rtol, objective : optional
        Stop when the relative change of the objective in an iteration is less than `tol`, or when the objective is
        below `rtol` times its value at `x0`. `objective` records it without a tolerance.
    niter, **run
        As for :func:`cgls`. Backtracking and sequences of step sizes or weights prevent recording a CUDA graph.

    Returns
    -------
    SolverResult
        The residual is the update of :math:`x`. In its details: ``tau``, the last step size, and ``objective``, the
        objective at the start and after each iteration, if evaluated.

    Raises
    ------
    UnsupportedTypeError, InputError
        If an argument has the wrong type or value, or `f` has no gradient.

    Notes
    -----
    .. math::
        x_{k+1} &= y_k + \eta \big(\mathrm{prox}_{\tau \epsilon g}(y_k - \tau \nabla f(y_k)) - y_k\big) \\
        y_{k+1} &= x_{k+1} + \omega_k (x_{k+1} - x_k)

    Besides the messages of `f` and `g`, an iteration sends one allreduce of three numbers, and a trial two small ones.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> f = collops.L2(b=collops.from_global(np.array([3.0, 0.2, -2.0])))
    >>> collops.proximal_gradient(f, collops.L1(), collops.zeros(3), tau=0.9, niter=99).x.gather().round(3)
    array([ 2.,  0., -1.])
    """
    x = check_arguments(x0, niter, f=f, g=g)
    if not f.has_gradient:
        raise UnsupportedTypeError(f"the proximal gradient method needs a function with a gradient, not {f!r}")
    search = _backtracking(backtracking or tau is None, beta, niterback)
    if not 0 < check_number("eta", eta) <= 1:
        raise InputError(f"eta must be above 0 and at most 1, not {eta!r}")
    factors, weights = _momenta(acceleration, niter), StepSizes("epsg", epsg, niter)
    step, limits = check_step(1.0 if tau is None else tau), check_bounds(tol, rtol, objective)
    method = ProximalGradient(f, g, *limits, step, weights, float(eta), factors, search)
    return solve(method, None, x, parts=(f, g, weights, search), niter=niter, **run)


def _backtracking(search: bool, beta: float, niterback: int) -> Backtracking | None:
    """Check the options of the search for the step size, and return the search if there is one."""
    niterback = check_count("niterback", niterback, smallest=1)
    if not search:
        return None
    if not 0 < check_number("beta", beta) < 1:
        raise InputError(f"beta must be between 0 and 1, not {beta!r}")
    return Backtracking(float(beta), niterback)


def _momenta(acceleration: str | None, niter: int) -> np.ndarray | None:
    """Return the extrapolation factor of each iteration, or None without acceleration."""
    if acceleration is None:
        return None
    if acceleration == "fista":
        return momenta(niter)
    if acceleration != "vandenberghe":
        raise InputError(f"acceleration must be None, 'vandenberghe' or 'fista', not {acceleration!r}")
    check_kept("niter", niter, engine("numpy"), 1)
    return np.arange(niter) / (np.arange(niter) + 3)
