"""ISTA and FISTA: gradient steps that end with a shrinkage, for sparse models.

``variants`` has the steps with a transform, a percentile or variable thresholds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from collops.array import Array
from collops.errors import InputError, LayoutError
from collops.operators import LinearOperator
from collops.solvers.driver import Run, solve, solver
from collops.solvers.kernels import Rule
from collops.solvers.method import Method, log2, not_finite
from collops.solvers.power import power_iteration
from collops.solvers.problem import (
    check_number,
    check_numbers,
    check_operator,
    check_plain,
    check_problem,
    is_traced,
    real_dtype,
    starting_point,
    working_dtype,
)
from collops.solvers.result import SolverResult, Status
from collops.solvers.scaling import operator_unit
from collops.solvers.schedule import Schedule, momenta
from collops.solvers.shrinkage import StepSums, Threshold, advance, find_threshold
from collops.solvers.state import CONSTANT, SCRATCH, Numbers, Scalar, State, Truth, scratch_array

__all__ = ["IterativeThresholding", "ThresholdingState", "prepare"]


class ThresholdingNumbers(NamedTuple):
    """The numbers of an iteration: the first three are sums over all ranks."""

    residual: Scalar  # squared norm
    update: Scalar  # squared norm; infinite before the first iteration
    absolute: Scalar  # sum of absolute values
    before: Scalar  # the squared norm of the residual before the step
    first_cost: Scalar  # infinite before it is known


_XTOL = 1e-10


def _begun(now: ThresholdingNumbers) -> Truth:
    """Return whether an iteration has been completed."""
    return now.update != math.inf


_RESIDUAL, _UPDATE, _ABSOLUTE, _BEFORE, _FIRST_COST = range(5)


@dataclass(slots=True)
class ThresholdingState:
    """State of iterative thresholding between iterations."""

    x: Array
    ahead: Array | None  # x, extrapolated; None without momentum
    residual: Array  # y - A x
    residual_ahead: Array | None  # None without momentum
    data: Array = field(metadata=CONSTANT)
    gradient: Array | None = field(metadata=SCRATCH)  # A^H residual_ahead
    image: Array | None = field(metadata=SCRATCH)  # A x
    sums: StepSums
    momenta: Schedule | None  # None without momentum


@dataclass(frozen=True)
class IterativeThresholding(Method):
    """Iterative shrinkage and thresholding, with or without momentum [Daubechies et al. 2004; Beck and Teboulle 2009].

    Options are as for :func:`ista`, after checks: `transform` is its ``SOp``, `atol` an absolute bound on the cost,
    `shrinkage` the parameter of the threshold, and `size` the number of unknowns.
    """

    alpha: float
    eps: float
    shrinkage: float
    size: int
    threshold: Threshold
    niter: int
    accelerated: bool
    transform: LinearOperator | None = None
    decay: tuple[float, ...] | None = None
    xtol: float = 0.0
    tol: float = 0.0
    rtol: float = 0.0
    atol: float = 0.0
    monitorres: bool = False
    tolerances = frozenset({"niter", "xtol", "tol", "rtol", "atol", "monitorres"})
    numbers = ThresholdingNumbers
    stops = (
        (lambda self, now, first: not_finite(now.residual, now.absolute), Status.NOT_FINITE),
        (
            lambda self, now, first: self.monitorres & _begun(now) & (now.residual > now.before),
            Status.RESIDUAL_INCREASED,
            "monitorres",
        ),
        (lambda self, now, first: now.update <= self.tol * self.tol, Status.CONVERGED),
        (
            lambda self, now, first: now.update * self.size <= self.xtol * self.xtol * (now.absolute * now.absolute),
            Status.CONVERGED,
            "xtol",
        ),
        (
            lambda self, now, first: _begun(now) & (self._cost(now) < self.rtol * now.first_cost),
            Status.CONVERGED,
            "rtol",
        ),
        (lambda self, now, first: _begun(now) & (self._cost(now) < self.atol), Status.CONVERGED, "atol"),
    )

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The method's name."""
        return "FISTA" if self.accelerated else "ISTA"

    @property
    def degrees(self) -> dict[str, tuple[float, float]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The powers of the units; see :class:`Method`. The threshold of values is proportional to them."""
        power = {Rule.SOFT: 1, Rule.HALF: 1.5, Rule.HARD: 2}.get(self.threshold.rule, 0)
        of_cost = dict.fromkeys(("atol", "cost"), (2, 0))
        of_model = dict.fromkeys(("tol", "updates"), (1, -1))
        return {"eps": (1, 1), "shrinkage": (power, -power), "alpha": (0, -2), **of_cost, **of_model}

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        return () if before is not None or is_traced(self.alpha) or self.alpha == 0 else (log2(self.alpha),)

    def init(self, A: LinearOperator, y: Array, x0: Array | None) -> State:
        check_plain(self, self.varies)
        return self._begin(A, y, x0, working_dtype(A, y, x0))

    @property
    def varies(self) -> bool:
        """Whether there is a transform, a percentile, or a variable threshold."""
        return self.transform is not None or self.threshold.percentile is not None or self.decay is not None

    def _begin(self, A: LinearOperator, y: Array, x0: Array | None, dtype: np.dtype) -> ThresholdingState:
        x, residual, image = starting_point(A, y, x0, dtype)
        sums = StepSums.over(x, residual, width=3, extra=2)
        advance(sums, 1, residual, base=residual, square=_RESIDUAL)
        advance(sums, 0, x, base=x, absolute=_ABSOLUTE)
        sums.combine()
        for index in (_UPDATE, _BEFORE, _FIRST_COST):
            sums.put(index, np.inf)
        return ThresholdingState(
            x,
            x.copy() if self.accelerated else None,
            residual,
            residual.copy() if self.accelerated else None,
            y.astype(dtype),
            scratch_array(A.domain, y, dtype),
            image,
            sums,
            Schedule.from_numbers(momenta(self.niter), y.engine, real_dtype(dtype)) if self.accelerated else None,
        )

    def step(self, A: LinearOperator, state: State) -> State:
        """Follow the gradient, shrink, extrapolate, and compute the residuals of both points."""
        sums, x, z, r, r_z = state.sums, state.x, state.ahead, state.residual, state.residual_ahead
        momentum = None if state.momenta is None else state.momenta.take()
        sums.put(_BEFORE, sums.values[_RESIDUAL : _RESIDUAL + 1])
        sums.clear()
        # x = T(z + alpha A^H (y - A z)), then z = x + momentum (x - x_before); ISTA has z = x
        state.gradient = A._adjoint(r if r_z is None else r_z, state.gradient)
        state.x, state.ahead = advance(
            sums, 0, x, **self._shrunk(state), ahead=z, momentum=momentum, update=_UPDATE, absolute=_ABSOLUTE, keep=True
        )
        # r = y - A x, and y - A z from it and the previous residual
        image = state.image = A._forward(state.x, state.image)
        state.residual, state.residual_ahead = advance(
            sums, 1, r, base=state.data, alpha=-1.0, gradient=image, ahead=r_z, momentum=momentum, square=_RESIDUAL
        )
        sums.combine()
        if self.rtol:
            first, cost = sums.values[_FIRST_COST], self._cost(ThresholdingNumbers(*sums.values))
            xp = state.x.engine.xp
            sums.put(_FIRST_COST, xp.where(xp.isinf(first), cost, first))
        return state

    def _shrunk(self, state: State) -> dict[str, Any]:
        """Return the arguments of :func:`advance` for computing the next x from the gradient."""
        start = state.x if state.ahead is None else state.ahead
        return {
            "base": start,
            "alpha": self.alpha,
            "gradient": state.gradient,
            "rule": self.threshold.rule,
            "threshold": self.shrinkage,
        }

    def report(self, state: ThresholdingState) -> Sequence[Scalar]:
        return state.sums.values

    def suspect(self, now: ThresholdingNumbers, iteration: int) -> str:
        if now.residual - now.residual == 0 or now.update != now.update or now.absolute != now.absolute:
            return "gradient" if iteration else "x"
        return super().suspect(now, iteration)

    def details(self, state: State, history: ThresholdingNumbers) -> dict[str, Any]:
        cost = self._cost(history)
        return {"cost": cost[1:], "updates": np.sqrt(history.update[1:]), "alpha": self.alpha}

    def _cost(self, now: ThresholdingNumbers) -> Scalar:
        """Return the cost that PyLops reports: for ISTA with the residual before the step."""
        return 0.5 * (now.residual if self.accelerated else now.before) + self.eps * now.absolute


def prepare(
    A,
    y,
    x0,
    niter,
    SOp,
    *,
    accelerated,
    eps,
    alpha,
    eigsdict,
    xtol,
    tol,
    rtol,
    rtol1,
    threshkind,
    perc,
    decay,
    monitorres,
) -> IterativeThresholding:
    """Check the arguments of :func:`ista`, and return the method. Collective."""
    check_problem(A, y, x0, niter)
    if SOp is not None:
        check_operator("SOp", SOp)
        if SOp.range is not A.domain:
            raise LayoutError(f"the range of SOp must be {A.domain}, not {SOp.range}")
    threshold = find_threshold(threshkind, perc)
    if xtol is None:
        xtol = _XTOL if tol is None else 0.0
    checked = check_numbers(eps=eps, xtol=xtol, tol=0.0 if tol is None else tol, rtol=rtol, rtol1=rtol1)
    if decay is not None:
        decay = tuple(np.asarray(y.engine.to_host(decay)).ravel().tolist())
        if len(decay) < niter or any(isinstance(f, complex) or not 0 <= f < float("inf") for f in decay):
            raise InputError(f"decay must have a factor of at least 0 for each of {niter} iterations")
    if alpha is None:
        options = {"dtype": working_dtype(A, y, x0), "engine": y.engine.name, **(eigsdict or {})}
        unit = operator_unit(A, y, working_dtype(A, y, x0))
        normal = A.H @ A if unit == 1 else (A / unit).H @ (A / unit)
        root = abs(power_iteration(normal, **options).details["eigenvalue"]) ** 0.5 * unit
        if not 0 < root * root < float("inf"):
            raise InputError(f"the operator's largest singular value is estimated as {root}: set alpha")
        alpha = 1 / (root * root)
    factor = checked.pop("rtol1")
    alpha = check_number("alpha", alpha)
    return IterativeThresholding(
        alpha=alpha,
        shrinkage=0.5 * checked["eps"] * alpha,
        size=A.domain.size,
        threshold=threshold,
        niter=niter,
        accelerated=bool(accelerated),
        transform=SOp,
        decay=decay,
        atol=factor * float(y.norm()) if factor else 0.0,
        monitorres=bool(monitorres),
        **checked,
    )


@solver
def ista(
    A: LinearOperator,
    y: Array,
    x0: Array | None = None,
    *,
    niter: int = 10,
    SOp: LinearOperator | None = None,
    eps: float = 0.1,
    alpha: float | None = None,
    eigsdict: dict[str, Any] | None = None,
    xtol: float | None = None,
    tol: float | None = None,
    rtol: float = 0.0,
    rtol1: float = 0.0,
    threshkind: str = "soft",
    perc: float | None = None,
    decay: ArrayLike | None = None,
    monitorres: bool = False,
    accelerated: bool = False,
    **run: Any,
) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|_2^2 + \epsilon \|x\|_1`, or a sparser penalty, by ISTA. Collective.

    Parameters
    ----------
    A, y, x0, niter, **run
        As for :func:`cgls`.
    SOp : LinearOperator, optional
        A transform :math:`S` from coefficients to models, to make :math:`S^H x` sparse.
    eps : float
        The weight :math:`\epsilon` of the penalty :math:`\|x\|_p^p`, with p of `threshkind`; for p = 1 in the units of
        :math:`A^H y`. For p = 1/2 the weight is half of it, as in PyLops.
    alpha, eigsdict : optional
        Step size, at most the inverse of the largest eigenvalue of :math:`A^H A`. By default the inverse of the
        eigenvalue estimated by :func:`power_iteration`, with the arguments `eigsdict`.
    xtol, tol : float, optional
        Stop when the root mean square of the update is at most `xtol` times the mean absolute value of `x` (by default
        1e-10, and 0 if `tol` is set), or when its norm is at most `tol`, in the units of `x`, as in PyLops.
    rtol, rtol1 : float
        Stop when the cost is below `rtol` times the first cost, or `rtol1` times the norm of `y`, as in PyLops.
    threshkind, perc, decay : optional
        ``"soft"`` (p = 1), ``"half"`` (p = 1/2) or ``"hard"`` (p = 0), with a threshold; or ``"soft-percentile"``,
        ``"half-percentile"`` or ``"hard-percentile"``, which keep `perc` percent of the values and ignore `eps`. An
        array `decay` has a factor of the threshold for each iteration.
    monitorres, accelerated : bool
        Whether to stop when the residual increases (``RESIDUAL_INCREASED``), and to extrapolate as :func:`fista` does.

    Returns
    -------
    SolverResult
        In its details: ``cost`` (half the squared norm of the residual before each step plus :math:`\epsilon` times
        the sum of absolute values after it, as in PyLops), ``updates`` (their norms) and ``alpha``.

    Raises
    ------
    UnsupportedTypeError, LayoutError, InputError
        If an argument has the wrong type, layout or value.

    Notes
    -----
    The iterates :math:`x_{k+1} = S\, T\big(S^H (x_k + \alpha A^H (y - A x_k))\big)`, where :math:`T` shrinks each value
    by :math:`\epsilon \alpha / 2` [Daubechies, Defrise and De Mol 2004], agree with
    ``pylops.optimization.sparsity.ista`` for the same `alpha`; PyLops estimates it at random.

    Besides the messages of `A` and `SOp`, an iteration sends one allreduce of three numbers; with a percentile, four
    more in single precision and seven in double precision, of 2048 counts.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, 1.0, 1.0]))
    >>> data = collops.from_global(np.array([3.0, 0.2, -2.0]))
    >>> collops.ista(A, data, niter=20, eps=1.0).x.gather()
    array([ 2.5,  0. , -1.5])
    """
    arguments = locals()
    run = arguments.pop("run")
    return solve(prepare(**arguments), A, y, x0, parts=(SOp,), niter=niter, **run)


@functools.partial(solver, passed_to=(ista, Run))
def fista(A: LinearOperator, y: Array, x0: Array | None = None, **options: Any) -> SolverResult:
    r"""Minimise :math:`\|y - A x\|_2^2 + \epsilon \|x\|_1`, or a sparser penalty, by FISTA. Collective.

    For parameters, options, exceptions, messages and the result see :func:`ista`; but ``cost`` has the residual after
    the step.

    Notes
    -----
    Beck and Teboulle [2009]:

    .. math::
        x_{k+1} &= S\, T\big(S^H (z_k + \alpha A^H (y - A z_k))\big) \\
        z_{k+1} &= x_{k+1} + \frac{t_k - 1}{t_{k+1}} (x_{k+1} - x_k), \quad t_{k+1} = \frac{1 + \sqrt{1 + 4 t_k^2}}{2}

    The residual at :math:`z` is a combination of the residuals at the last two :math:`x`, so that `A` is applied once.

    The iterates agree with ``pylops.optimization.sparsity.fista`` for the same `alpha`.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.Diagonal(np.array([1.0, 1.0, 1.0]))
    >>> data = collops.from_global(np.array([3.0, 0.2, -2.0]))
    >>> collops.fista(A, data, niter=20, eps=1.0).x.gather()
    array([ 2.5,  0. , -1.5])
    """
    return ista(A, y, x0, accelerated=True, **options)
