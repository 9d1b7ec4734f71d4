"""Iterative thresholding: gradient steps that end with a shrinkage, as a method of the driver; ISTA and FISTA."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import LinearOperator
from collops.operators.base import new_array
from collops.solvers.driver import solve
from collops.solvers.method import Row, Test, first_passed, not_finite
from collops.solvers.percentile import Percentile
from collops.solvers.power import power_iteration
from collops.solvers.problem import check_number, check_problem, real_dtype, starting_point, working_dtype
from collops.solvers.result import SolverResult, Status
from collops.solvers.run import Run
from collops.solvers.schedule import Schedule, momenta
from collops.solvers.shrinkage import advance, shrink
from collops.solvers.step_sums import StepSums
from collops.solvers.thresholds import Rule, Threshold, find_threshold

__all__ = ["IterativeThresholding", "minimise", "prepare"]

_RESIDUAL, _UPDATE, _ABSOLUTE, _BEFORE, _FIRST_COST = range(5)
"""Numbers of an iteration: squared norms of residual and update, sum of absolute values; the squared norm of the
residual before, and the first cost."""


@dataclass(slots=True)
class ThresholdingState:
    """Vectors of iterative thresholding between two iterations."""

    operator: LinearOperator
    x: Any
    ahead: Any  # where the gradient is taken: x itself without momentum
    residual: Any  # y - A x
    residual_ahead: Any
    data: Any
    gradient: Any  # A^H residual_ahead
    image: Any  # A x
    coefficients: Any  # of the transform, or values before the threshold; None where neither is needed
    sums: StepSums
    thresholds: Schedule | None
    momenta: Schedule | None
    percentile: Percentile | None
    rebuilt = frozenset({"data", "gradient", "image", "coefficients"})


@dataclass(frozen=True)
class IterativeThresholding:
    """Iterative thresholding as a method of the driver, with or without momentum.

    Attributes
    ----------
    alpha : float
        Step size.
    eps : float
        Weight of the penalty.
    threshold : Threshold
        What the steps end with.
    niter : int
        Largest number of iterations.
    accelerated : bool
        Whether the gradient is taken ahead of the model: FISTA rather than ISTA.
    transform : LinearOperator, optional
        Whose adjoint gives the coefficients to be shrunk.
    decay : tuple of float, optional
        A factor of the threshold for each iteration.
    tol : float
        Bound on the norm of the update.
    rtol : float
        Bound on the cost, relative to the first.
    enough : float
        Bound on the cost.
    monitorres : bool
        Whether to stop when the residual increases.
    """

    alpha: float
    eps: float
    threshold: Threshold
    niter: int
    accelerated: bool
    transform: LinearOperator | None = None
    decay: tuple[float, ...] | None = None
    tol: float = 1e-10
    rtol: float = 0.0
    enough: float = 0.0
    monitorres: bool = False
    stops = frozenset({"niter", "tol", "rtol", "enough", "monitorres"})
    width = 5

    @property
    def name(self) -> str:
        """The method's name."""
        return "FISTA" if self.accelerated else "ISTA"

    def init(self, operator: LinearOperator, data: Any, x0: Any, prompt: bool) -> ThresholdingState:
        """Return the state before the first iteration: the residual, and room for everything else."""
        dtype = of_coefficients = working_dtype(operator, data, x0)
        if self.transform is not None and self.transform.dtype.kind == "c":
            of_coefficients = np.result_type(dtype, np.complex64)
            # What takes real parts leads back to real models, such as the inverse of a real Fourier transform.
            dtype = of_coefficients if self.transform.clinear else dtype
        x, residual, image = starting_point(operator, data, x0, dtype, operator._forward)
        sums = StepSums(x, residual, width=3, kept=2)
        advance(sums, 1, residual, base=residual, square=_RESIDUAL)
        advance(sums, 0, x, base=x, absolute=_ABSOLUTE)
        sums.combine()
        for kept in (_UPDATE, _BEFORE, _FIRST_COST):
            sums.values[kept : kept + 1].fill(np.inf)
        coefficients, percentile = None, None
        if self.transform is not None:
            coefficients = new_array(self.transform.domain, data, of_coefficients)
        elif self.threshold.percentile is not None:
            coefficients = new_array(operator.domain, data, dtype)
        if self.threshold.percentile is not None:
            percentile = Percentile(coefficients, self.threshold.percentile)
        real, thresholds = real_dtype(dtype), None
        if self.decay is not None and percentile is None:
            thresholds = Schedule(data.engine, np.multiply(self.decay, self._size), real)
        return ThresholdingState(
            operator,
            x,
            x.copy() if self.accelerated else x,
            residual,
            residual.copy() if self.accelerated else residual,
            data.astype(dtype),
            new_array(operator.domain, data, dtype),
            image,
            coefficients,
            sums,
            thresholds,
            Schedule(data.engine, momenta(self.niter), real) if self.accelerated else None,
            percentile,
        )

    def step(self, state: ThresholdingState) -> ThresholdingState:
        """Follow the gradient, shrink, and find the residual there."""
        operator, sums, values = state.operator, state.sums, state.sums.values
        momentum = None if state.momenta is None else state.momenta.take()
        values[_BEFORE : _BEFORE + 1] = values[_RESIDUAL : _RESIDUAL + 1]
        sums.clear()
        state.gradient = operator._adjoint(state.residual_ahead, state.gradient)
        step = self._gradient_step(state)
        ahead, residual_ahead = (state.ahead, state.residual_ahead) if self.accelerated else (None, None)
        advance(sums, 0, state.x, **step, ahead=ahead, momentum=momentum, update=_UPDATE, absolute=_ABSOLUTE, keep=True)
        state.image = operator._forward(state.x, state.image)
        advance(
            sums,
            1,
            state.residual,
            base=state.data,
            alpha=-1.0,
            gradient=state.image,
            ahead=residual_ahead,
            momentum=momentum,
            square=_RESIDUAL,
        )
        sums.combine()
        if self.rtol:
            xp, first = state.data.engine.xp, values[_FIRST_COST:]
            first[...] = xp.where(xp.isinf(first), self._cost(values), first)
        return state

    def finalize(self, state: ThresholdingState) -> ThresholdingState:
        """Return the state."""
        return state

    def late(self, state: ThresholdingState) -> bool:
        """Return False: the numbers of an iteration are there with it."""
        return False

    def monitor(self, state: ThresholdingState) -> Any:
        """Return the numbers of the iteration."""
        return state.sums.values

    def verdict(self, row: Row, first: Row) -> Status | None:
        """Stop where the update is at most ``tol``, or the cost below a bound, or where the residual increases."""
        residual, update, absolute, *_ = row
        more = self.monitorres or self.rtol or self.enough
        if residual < math.inf and absolute < math.inf and self.tol**2 < update and not more:
            return None
        return first_passed(self.tests(row, first))

    def tests(self, row: Row, first: Row) -> list[Test]:
        """Return what :meth:`verdict` looks at."""
        residual, update, absolute, before, first_cost = row
        begun = update != math.inf
        tests = [(not_finite(residual, absolute), Status.NOT_FINITE)]
        if self.monitorres:
            tests.append((begun & (residual > before), Status.RESIDUAL_INCREASED))
        tests.append((begun & (update <= self.tol**2), Status.CONVERGED))
        if self.rtol or self.enough:
            cost, bound = self._cost(row), self.rtol * first_cost
            low = ((cost < bound) & (bound < math.inf)) | (cost < self.enough)
            tests.append((begun & low, Status.CONVERGED))
        return tests

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the array that was first not finite."""
        residual = row[_RESIDUAL]
        if residual - residual == 0 or any(row[n] != row[n] for n in (_UPDATE, _ABSOLUTE)):
            return "gradient" if iteration else "x"
        return "image" if iteration else "residual"

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norms of the residual."""
        return np.sqrt(rows[:, _RESIDUAL])

    def details(self, state: ThresholdingState, rows: np.ndarray) -> dict[str, Any]:
        """Return the costs that PyLops reports, the norms of the updates, and the step size."""
        rows = rows[1:].T
        return {"cost": self._cost(rows), "updates": np.sqrt(rows[_UPDATE]), "alpha": self.alpha}

    def _cost(self, numbers: Any) -> Any:
        """Return the cost that PyLops reports: for ISTA with the residual before the step."""
        at = _RESIDUAL if self.accelerated else _BEFORE
        squares, absolutes = (numbers[number] for number in (at, _ABSOLUTE))
        return 0.5 * squares + self.eps * absolutes

    @property
    def _size(self) -> float:
        return 0.5 * self.eps * self.alpha

    def _gradient_step(self, state: ThresholdingState) -> dict[str, Any]:
        """Return how :func:`advance` gets to the next model from the gradient."""
        threshold: Any = self._size if state.thresholds is None else state.thresholds.take()
        rule, values = self.threshold.rule, state.coefficients
        if values is None:
            return {
                "base": state.ahead,
                "alpha": self.alpha,
                "gradient": state.gradient,
                "rule": rule,
                "threshold": threshold,
            }
        moved = {"a": 1.0, "y": state.gradient, "b": self.alpha}
        if self.transform is None:
            values = shrink(Rule.KEEP, 0.0, state.ahead, **moved, out=values)
        else:
            state.gradient = shrink(Rule.KEEP, 0.0, state.ahead, **moved, out=state.gradient)
            values = state.coefficients = self.transform._adjoint(state.gradient, values)
        if state.percentile is not None:
            threshold = self.threshold.parameter(state.percentile(values))
        if self.transform is None:
            return {"base": values, "rule": rule, "threshold": threshold}
        shrink(rule, threshold, values, out=values)
        state.gradient = self.transform._forward(values, state.gradient)
        return {"base": state.gradient}


def minimise(
    *, accelerated: bool, A: Any, y: Any, x0: Any, niter: Any, SOp: Any, run: Run, **options: Any
) -> SolverResult:
    """Run :func:`ista` or :func:`fista` with all of its arguments by name. Collective."""
    method = prepare(A, y, x0, niter, SOp, accelerated=accelerated, **options)
    parts = () if SOp is None else (SOp,)
    return solve(method, A, y, x0, parts=parts, niter=niter, **run)


def prepare(
    operator: Any,
    data: Any,
    x0: Any,
    niter: Any,
    transform: Any,
    *,
    accelerated: bool,
    eps: Any,
    alpha: Any,
    eigsdict: Any,
    tol: Any,
    rtol: Any,
    rtol1: Any,
    threshkind: Any,
    perc: Any,
    decay: Any,
    monitorres: bool,
) -> IterativeThresholding:
    """Check the arguments, and return the method. Collective.

    Raises
    ------
    LayoutError
        If a layout does not fit.
    InputError
        If an option makes no sense.
    UnsupportedTypeError
        If an operator or array is none of this package.
    """
    check_problem(operator, data, x0, niter)
    if transform is not None:
        if not isinstance(transform, LinearOperator):
            raise UnsupportedTypeError(f"SOp must be a distributed operator, not {type(transform).__qualname__}")
        if transform.range is not operator.domain:
            raise LayoutError(f"SOp must lead to the layout {operator.domain}, not to {transform.range}")
    threshold = find_threshold(threshkind, perc)
    numbers = {"eps": eps, "tol": tol, "rtol": rtol, "rtol1": rtol1}
    checked = {name: check_number(name, value) for name, value in numbers.items()}
    if decay is not None:
        decay = tuple(np.asarray(decay, np.float64).ravel().tolist())
        if len(decay) < niter or any(not 0 <= factor < float("inf") for factor in decay):
            raise InputError(f"decay must have a factor of at least 0 for each of {niter} iterations")
    if alpha is None:
        options = {"dtype": working_dtype(operator, data, x0), "engine": data.engine.name, **(eigsdict or {})}
        largest = abs(power_iteration(operator.H @ operator, **options).details["eigenvalue"])
        if not 0 < largest < float("inf"):
            raise InputError(f"the operator's largest singular value is estimated as {largest**0.5}: give alpha")
        alpha = 1 / largest
    return IterativeThresholding(
        alpha=check_number("alpha", alpha),
        eps=checked["eps"],
        threshold=threshold,
        niter=niter,
        accelerated=accelerated,
        transform=transform,
        decay=decay,
        tol=checked["tol"],
        rtol=checked["rtol"],
        enough=checked["rtol1"] * float(data.norm()) if checked["rtol1"] else 0.0,
        monitorres=bool(monitorres),
    )
