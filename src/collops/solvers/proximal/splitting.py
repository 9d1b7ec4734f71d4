"""Behaviour common to proximal methods: arguments, the numbers of an iteration, and the tests that stop it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from collops.array import Array
from collops.backend import LocalArray
from collops.errors import InputError
from collops.operators import LinearOperator
from collops.solvers.method import Method
from collops.solvers.problem import check_array, check_count, check_number
from collops.solvers.proximal.operator import ProxOperator, check_function, check_step
from collops.solvers.result import Status
from collops.solvers.shrinkage import StepSums
from collops.solvers.state import Scalar, State

RESIDUAL, UPDATE, OBJECTIVE, BEFORE = range(4)
"""Indices of an iteration's numbers."""


class SplittingNumbers(NamedTuple):
    """The numbers of an iteration; squares are -1 before the first iteration."""

    residual: Scalar  # squared norm
    update: Scalar  # squared norm
    objective: Scalar
    before: Scalar  # the objective of the previous iteration


BEFORE_FIRST = (lambda self, now, first: now.residual < 0, None)
NOT_FINITE = (
    lambda self, now, first: not isfinite(now.residual + now.update) or now.objective != now.objective,
    Status.NOT_FINITE,
)
UNCHANGED = (
    lambda self, now, first: self.tol is not None and abs(now.objective - now.before) < self.tol * abs(now.before),
    Status.CONVERGED,
    "objective",
)
REDUCED = (
    lambda self, now, first: self.rtol is not None and now.objective < self.rtol * first.objective,
    Status.CONVERGED,
    "objective",
)


@dataclass(frozen=True)
class Splitting(Method):
    """A method that minimises a sum of two functions.

    A state has the fields `x` and `sums`; each method implements ``_objective(A, state)``.
    """

    f: ProxOperator
    g: ProxOperator
    tol: float | None  # bound on the relative change of the objective in one iteration
    rtol: float | None  # bound on the objective, relative to the first
    objective: bool  # whether it is evaluated in every iteration
    tolerances = frozenset({"tol", "rtol"})
    results = ("x", "z")
    numbers = SplittingNumbers
    traceable = False
    stops = (BEFORE_FIRST, NOT_FINITE, UNCHANGED, REDUCED)
    measured = (("x", RESIDUAL),)  # arrays in the order of an iteration, and indices of the numbers that check them

    def _objective(self, A: Any, state: State) -> Scalar:
        raise NotImplementedError

    def started(self, A: Any, state: State) -> State:
        """Return the state before the first iteration, with its numbers. Collective."""
        self.finished(A, state)
        state.sums.put(slice(UPDATE + 1), -1)
        return state

    def begin(self, sums: StepSums) -> None:
        """Prepare the sums for an iteration."""
        if self.objective:
            sums.put(BEFORE, sums.values[OBJECTIVE : OBJECTIVE + 1])
        sums.clear()

    def finished(self, A: Any, state: State) -> State:
        """Evaluate the objective, combine the sums of all ranks, and return the state. Collective."""
        if self.objective:
            state.sums.contribute(OBJECTIVE, self._objective(A, state))
        state.sums.combine()
        return state

    def report(self, state: State) -> LocalArray:
        return state.sums.values

    def suspect(self, now: SplittingNumbers, iteration: int) -> str:
        return next((name for name, index in self.measured if not isfinite(now[index])), "objective")

    def residual_norm(self, now: SplittingNumbers) -> Scalar:
        return np.sqrt(np.where(now.residual < 0, np.nan, now.residual))

    def details(self, state: State, history: SplittingNumbers) -> dict[str, Any]:
        details = {"objective": history.objective.copy()} if self.objective else {}
        return {**details, "z": state.z} if hasattr(state, "z") else details


class StepSizes:
    """Positive step sizes or weights: one number, or one for each of `niter` iterations, which the host reads."""

    def __init__(self, name: str, sizes: Any, niter: int) -> None:
        self.varies = hasattr(sizes, "__len__")
        self.capturable = not self.varies  # all iterations are identical
        self._sizes = [check_step(size, name) for size in (sizes if self.varies else [sizes])]
        if self.varies and len(self._sizes) < niter:
            raise InputError(f"{name} must be a number, or one for each of {niter} iterations, not {len(self._sizes)}")

    def __getitem__(self, iteration: int) -> float:
        return self._sizes[iteration] if self.varies else self._sizes[0]


def check_arguments(
    x0: Array,
    niter: int,
    A: LinearOperator | None = None,
    others: Sequence[Array | LinearOperator | None] = (),
    z0: Array | None = None,
    **functions: ProxOperator,
) -> Array:
    """Check arguments, and return the starting point: a copy in the dtype of the computation.

    It has the layout of the domain of the operator `A`, if there is one, and `z0` has the layout of the range; without
    an operator both have the same layout. The dtype is complex if `x0`, `A`, `z0` or one of the `others` is complex.
    """
    for name, function in functions.items():
        check_function(name, function)
    check_array("x0", x0, getattr(x0, "layout", None) if A is None else A.domain)
    check_array("z0", z0, x0.layout if A is None else A.range, optional=True)
    check_count("niter", niter)
    dtype = np.result_type(x0.dtype, np.float64) if x0.dtype.kind in "biu" else x0.dtype
    if any(np.dtype(getattr(other, "dtype", bool)).kind == "c" for other in (A, z0, *others)):
        dtype = np.result_type(dtype, np.complex64)
    return x0.astype(dtype)


def check_bounds(tol: float | None, rtol: float | None, objective: bool) -> tuple[float | None, float | None, bool]:
    """Return both tolerances, and whether to evaluate the objective: if requested, or if a tolerance needs it."""
    tol = None if tol is None else check_number("tol", tol)
    rtol = None if rtol is None else check_number("rtol", rtol)
    return tol, rtol, bool(objective) or tol is not None or rtol is not None
