"""Proximal gradient: a step along the gradient of a smooth function, then the proximal point of another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np

from collops.array import axpby, dots
from collops.errors import InputError, UnsupportedTypeError
from collops.solvers.driver import Run, solve
from collops.solvers.iterative_thresholding import Schedule, momenta
from collops.solvers.problem import check_count, check_number
from collops.solvers.proximal.operator import ProxOperator, check_step
from collops.solvers.proximal.splitting import FIRST, Splitting, StepSizes, check_arguments, check_bounds
from collops.solvers.result import SolverResult
from collops.solvers.shrinkage import StepSums, advance
from collops.solvers.state import SCRATCH, scratch_array

__all__ = ["Backtracking", "ProximalGradient", "proximal_gradient"]


@dataclass(slots=True)
class ProximalGradientState:
    """Vectors of the proximal gradient method between two iterations."""

    x: Any
    ahead: Any  # x, extrapolated, where the gradient is taken; None without acceleration
    gradient: Any = field(metadata=SCRATCH)
    point: Any = field(metadata=SCRATCH)
    difference: Any = field(metadata=SCRATCH)  # of a trial step
    sums: StepSums
    decision: StepSums | None = field(metadata=SCRATCH)
    momenta: Schedule | None
    tau: float
    iteration: int


@dataclass(frozen=True)
class Backtracking:
    """A search for the step size, which the host decides on.

    Attributes
    ----------
    beta : float
        What a step that is too long is multiplied by.
    niterback : int
        Largest number of trials.
    """

    beta: float
    niterback: int
    capturable = False


@dataclass(frozen=True)
class ProximalGradient(Splitting):
    """Proximal gradient as a method of the driver.

    Attributes
    ----------
    tau : float
        Step size, the first one with backtracking.
    epsg : StepSizes
        Weights of g.
    eta : float
        Relaxation.
    momenta : numpy.ndarray, optional
        How far ahead the gradient is taken, for each iteration.
    backtracking : Backtracking, optional
        Whether the step size is searched for.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> f = collops.L2(b=collops.from_global(np.array([3.0, 0.2, -2.0])))
    >>> collops.proximal_gradient(f, collops.L1(), collops.zeros(3), tau=0.9, niter=50).x.gather().round(3)
    array([ 2.,  0., -1.])
    """

    tau: float
    epsg: StepSizes
    eta: float
    momenta: Any
    backtracking: Backtracking | None
    name = "Proximal gradient"

    def init(self, operator: Any, data: Any, x0: Any, report_now: bool) -> ProximalGradientState:
        """Return the state before the first iteration."""
        x = data
        sums = self.start(x)
        self.before(sums, self._objective(x, 0) if self.objective else None)
        accelerated, searching = self.momenta is not None, self.backtracking is not None
        return ProximalGradientState(
            x,
            x.copy() if accelerated else None,
            scratch_array(x.layout, x, x.dtype),
            scratch_array(x.layout, x, x.dtype),
            scratch_array(x.layout, x, x.dtype) if searching else None,
            sums,
            StepSums.over(x, width=1) if searching else None,
            Schedule.of(self.momenta, x.engine, np.dtype(np.float64)) if accelerated else None,
            self.tau,
            0,
        )

    def step(self, state: ProximalGradientState) -> ProximalGradientState:
        """Follow the gradient, find the proximal point, and look ahead."""
        self.begin(state.sums)
        iteration = state.iteration
        epsg = self.epsg[iteration]
        ahead = state.x if state.ahead is None else state.ahead
        state.gradient = self.f._grad(ahead, state.gradient)
        if self.backtracking is not None:
            self._search(state, ahead, self.backtracking, epsg)
        else:
            state.point = self._trial(state, ahead, epsg)
        if self.eta != 1:
            state.point = axpby(1 - self.eta, ahead, self.eta, state.point, out=state.point)
        momentum = None if state.momenta is None else state.momenta.take()
        state.x, state.ahead = advance(
            state.sums, 0, state.x, base=state.point, ahead=state.ahead, momentum=momentum, update=FIRST, keep=True
        )
        self.finish(state.sums, self._objective(state.x, iteration) if self.objective else None)
        if self.epsg.varies:
            state.iteration += 1
        return state

    def details(self, state: ProximalGradientState, rows: np.ndarray) -> dict[str, Any]:
        """Return the objectives, if they were evaluated, and the last step size."""
        return {**super().details(state, rows), "tau": state.tau}

    def _objective(self, x: Any, iteration: int) -> Any:
        return self.f._value(x) + self.epsg[iteration] * self.g._value(x)

    def _trial(self, state: ProximalGradientState, ahead: Any, epsg: float) -> Any:
        return self.g._prox_of_sum(1.0, ahead, -state.tau, state.gradient, epsg * state.tau, state.point)

    def _search(self, state: ProximalGradientState, ahead: Any, search: Backtracking, epsg: float) -> None:
        """Shorten the step until the smooth function lies below its quadratic model."""
        here = self.f._value(ahead)
        decision = state.decision
        assert decision is not None
        for _ in range(search.niterback):
            state.point = self._trial(state, ahead, epsg)
            state.difference = axpby(1.0, state.point, -1.0, ahead, out=state.difference)
            slope, square = dots((state.gradient, state.difference), (state.difference, state.difference))
            excess = self.f._value(state.point) - (here + slope.real + square / (2 * state.tau))
            decision.clear()
            decision.contribute(0, excess)
            decision.combine()
            if float(decision.values[0]) <= 0:
                return
            state.tau *= search.beta


def proximal_gradient(
    f: ProxOperator,
    g: ProxOperator,
    x0: Any,
    *,
    epsg: Any = 1.0,
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
    **run: Unpack[Run],
) -> SolverResult:
    r"""Minimise :math:`f(x) + \epsilon g(x)` for a smooth f by proximal gradient steps. Collective.

    Parameters
    ----------
    f : ProxOperator
        With a gradient.
    g : ProxOperator
        The other function.
    x0 : DistributedArray or StackedArray
        The starting point.
    epsg : float or sequence of float
        The weight :math:`\epsilon`, or one for each iteration.
    tau : float, optional
        Step size, at most the inverse of the gradient's Lipschitz constant. By default found by backtracking from 1.
    backtracking : bool
        Whether to search for the step size although `tau` is given, which is then the first one.
    beta : float
        What a step that is too long is multiplied by; between 0 and 1.
    eta : float
        Relaxation; between 0 (not included) and 1.
    niter : int
        Largest number of iterations.
    niterback : int
        Largest number of trials of a search.
    acceleration : str, optional
        ``"vandenberghe"`` or ``"fista"``; by default there is none.
    tol : float, optional
        Stop when an iteration changes the objective by less than this, relative to it.
    rtol : float, optional
        Stop when the objective is below this multiple of the one at `x0`.
    objective : bool
        Whether to record the objective although there is no tolerance for it.
    **run
        Options of the run, as for :func:`collops.solvers.cgls`. With backtracking, or a sequence as `epsg`, the host
        decides, so that no iteration can be recorded.

    Returns
    -------
    SolverResult
        The residual is the update of :math:`x`. In its details: ``tau``, the last step size, and ``objective``, an
        array with the objective at the start and after each iteration, if it was evaluated.

    Raises
    ------
    UnsupportedTypeError
        If an argument is no proximal operator or distributed array, or `f` has no gradient.
    InputError
        If an option is invalid.

    Notes
    -----
    .. math::
        x_{k+1} &= y_k + \eta \big(\mathrm{prox}_{\tau \epsilon g}(y_k - \tau \nabla f(y_k)) - y_k\big) \\
        y_{k+1} &= x_{k+1} + \omega_k (x_{k+1} - x_k)

    with :math:`\omega_k = 0`, :math:`k / (k + 3)` ("vandenberghe"), or :math:`(t_k - 1) / t_{k+1}` ("fista").

    Besides the messages of `f` and `g`, an iteration sends one scalar allreduce; a trial of a search sends two, and the
    host waits for it.

    References
    ----------
    .. [1] Beck, A., Teboulle, M., "A fast iterative shrinkage-thresholding algorithm for linear inverse problems", SIAM
       Journal on Imaging Sciences 2, 183-202, 2009.
    .. [2] Parikh, N., Boyd, S., "Proximal algorithms", Foundations and Trends in Optimization 1, 127-239, 2014.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> f = collops.L2(b=collops.from_global(np.array([3.0, 0.2, -2.0])))
    >>> result = collops.proximal_gradient(f, collops.L1(), collops.zeros(3), tau=0.9, niter=50, acceleration="fista")
    >>> result.x.gather().round(3)
    array([ 2.,  0., -1.])
    """
    x = check_arguments(x0, niter, (), f=f, g=g)
    if not f.has_gradient:
        raise UnsupportedTypeError(f"the proximal gradient method needs a gradient, which {f!r} has not")
    search = backtracking or tau is None
    if search and not 0 < check_number("beta", beta) < 1:
        raise InputError(f"beta must be between 0 and 1, not {beta!r}")
    if not 0 < check_number("eta", eta) <= 1:
        raise InputError(f"eta must be above 0 and at most 1, not {eta!r}")
    niterback = check_count("niterback", niterback, smallest=1)
    if acceleration not in _MOMENTA:
        raise InputError(f"acceleration must be None, 'vandenberghe' or 'fista', not {acceleration!r}")
    weights = StepSizes("epsg", epsg, niter)
    method = ProximalGradient(
        f,
        g,
        *check_bounds(tol, rtol, objective),
        check_step(1.0 if tau is None else tau),
        weights,
        float(eta),
        _MOMENTA[acceleration](niter),
        Backtracking(float(beta), niterback) if search else None,
    )
    parts = [f, g, weights, *([method.backtracking] if search else [])]
    return solve(method, None, x, parts=parts, niter=niter, **run)


_MOMENTA: dict[str | None, Callable[[int], Any]] = {
    None: lambda count: None,
    "vandenberghe": lambda count: np.arange(count) / (np.arange(count) + 3),
    "fista": momenta,
}
