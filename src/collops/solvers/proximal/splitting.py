"""The common part of proximal methods: arguments, the numbers of an iteration, and the tests that stop it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators import LinearOperator
from collops.solvers.method import Method, Row
from collops.solvers.problem import check_count, check_number
from collops.solvers.proximal.operator import check_function, check_step
from collops.solvers.result import Status
from collops.solvers.shrinkage import StepSums, advance

__all__ = ["FIRST", "SECOND", "Splitting", "StepSizes", "check_arguments", "check_bounds", "check_operator"]

FIRST, SECOND, _OBJECTIVE, _BEFORE = range(4)
"""Numbers of an iteration: the square that the residual's norm is made of, another one, the objective, and the one
before."""


@dataclass(frozen=True)
class Splitting(Method):
    """The part of a proximal method that is the same for all of them.

    Attributes
    ----------
    f, g : ProxOperator or None
        The functions.
    tol : float, optional
        Bound on the change of the objective in one iteration, relative to it.
    rtol : float, optional
        Bound on the objective, relative to the one at the start.
    objective : bool
        Whether it is evaluated in every iteration.
    """

    f: Any
    g: Any
    tol: float | None
    rtol: float | None
    objective: bool
    stops = frozenset({"tol", "rtol"})
    width = 4
    measured = (("x", FIRST),)  # arrays in the order of an iteration, and the numbers that show if they are finite

    def start(self, *arrays: Any) -> StepSums:
        """Return the sums of an iteration over arrays."""
        return StepSums.over(*arrays, width=3, kept=1)

    def before(self, sums: StepSums, objective: Any = None) -> None:
        """Set the numbers before the first iteration: the objective, and that there was no step. Collective."""
        self.finish(sums, objective)
        sums.put(slice(SECOND + 1), -1)

    def begin(self, sums: StepSums) -> None:
        """Prepare the sums for an iteration."""
        if self.objective:
            sums.put(_BEFORE, sums.values[_OBJECTIVE : _OBJECTIVE + 1])
        sums.clear()

    def difference(self, sums: StepSums, number: int, a: Any, b: Any, out: Any) -> Any:
        """Return ``a - b`` in the memory of `out`, array `number` of the sums, to which its square is added."""
        return advance(sums, number, out, base=a, alpha=-1.0, gradient=b, square=FIRST)[0]

    def finish(self, sums: StepSums, objective: Any = None) -> None:
        """Combine the sums of an iteration, and set the objective. Collective."""
        if self.objective:
            sums.contribute(_OBJECTIVE, objective)
        sums.combine()

    def monitor(self, state: Any) -> Any:
        """Return the numbers of the iteration."""
        return state.sums.values

    def verdict(self, row: Row, first: Row) -> Status | None:
        """Stop where the objective no longer changes, or is below a bound."""
        square, second, objective, before = row
        if square < 0:
            return None  # before the first iteration
        if square + second - (square + second) != 0 or objective != objective:
            return Status.NOT_FINITE
        if self.tol is not None and abs(objective - before) < self.tol * abs(before):
            return Status.CONVERGED
        if self.rtol is not None and objective < self.rtol * first[_OBJECTIVE]:
            return Status.CONVERGED
        return None

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the array that was first not finite."""
        return next((name for name, place in self.measured if row[place] - row[place] != 0), "objective")

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norms of the residual; NaN before the first iteration."""
        squares = rows[:, FIRST]
        return np.sqrt(np.where(squares < 0, np.nan, squares))

    def details(self, state: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return the objectives, if they were evaluated, and the second variable, if there is one."""
        found = {"objective": rows[:, _OBJECTIVE].copy()} if self.objective else {}
        return {**found, "z": state.z} if hasattr(state, "z") else found


class StepSizes:
    """One step size for each iteration, which the host reads.

    Parameters
    ----------
    name : str
        The argument's.
    sizes : float or sequence of float
        Positive; one, or one for each iteration.
    niter : int
        Number of iterations.

    Attributes
    ----------
    varies : bool
        Whether there are several.

    Raises
    ------
    InputError
        If one is not positive, or there are too few.
    """

    def __init__(self, name: str, sizes: Any, niter: int) -> None:
        self.varies = hasattr(sizes, "__len__")
        given: Sequence[Any] = list(sizes) if self.varies else [sizes]
        self._sizes = [check_step(size, name) for size in given]
        if self.varies and len(self._sizes) < niter:
            raise InputError(f"{name} must be a number, or one for each of {niter} iterations, not {len(given)}")

    @property
    def capturable(self) -> bool:
        """Whether every iteration does the same."""
        return not self.varies

    def __getitem__(self, iteration: int) -> float:
        return self._sizes[iteration] if self.varies else self._sizes[0]


def check_arguments(x0: Any, niter: Any, others: Sequence[Any], **functions: Any) -> Any:
    """Check arguments, and return the starting point: a copy in the dtype of the computation.

    The dtype is complex where `x0` is, or one of the `others`: operators, and arrays or ``None``.

    Raises
    ------
    UnsupportedTypeError
        If a function is no proximal operator, or `x0` no distributed array.
    InputError
        If `niter` is negative or no integer.
    """
    for name, function in functions.items():
        check_function(name, function)
    if not hasattr(x0, "leaves"):
        raise UnsupportedTypeError(f"x0 must be a distributed array, not {type(x0).__module__}.{type(x0).__qualname__}")
    check_count("niter", niter)
    dtype = np.result_type(x0.dtype, np.float64) if x0.dtype.kind in "biu" else x0.dtype
    if any(np.dtype(getattr(other, "dtype", bool)).kind == "c" for other in others):
        dtype = np.result_type(dtype, np.complex64)
    return x0.astype(dtype)


def check_operator(name: str, operator: Any, x0: Any, z0: Any = None) -> None:
    """Check that an operator maps arrays such as `x0` to arrays such as `z0`.

    Raises
    ------
    UnsupportedTypeError
        If it is no operator.
    LayoutError
        If the layouts differ.
    """
    if not isinstance(operator, LinearOperator):
        raise UnsupportedTypeError(f"{name} must be a distributed operator, not {type(operator).__qualname__}")
    if getattr(x0, "layout", None) is not operator.domain:
        raise LayoutError(f"x0 must have the layout {operator.domain} of {name}")
    if z0 is not None and getattr(z0, "layout", None) is not operator.range:
        raise LayoutError(f"the second array must have the layout {operator.range}, to which {name} leads")


def check_bounds(tol: Any, rtol: Any, objective: Any) -> tuple[float | None, float | None, bool]:
    """Return both tolerances, and whether the objective is evaluated: where it is asked for or a tolerance needs it.

    Raises
    ------
    InputError
        If a tolerance is negative or no number.
    """
    tol = None if tol is None else check_number("tol", tol)
    rtol = None if rtol is None else check_number("rtol", rtol)
    return tol, rtol, bool(objective) or tol is not None or rtol is not None
