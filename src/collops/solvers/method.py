"""The interface of iterative methods: functions over a state, run by one driver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from collops.operators import LinearOperator
from collops.solvers.result import Status

__all__ = ["DOUBLE_PRECISION", "Method", "Row", "Test", "first_passed", "not_finite", "over"]

Row = Sequence[float]
"""The numbers that a method reports for one iteration."""

Test = tuple[Any, Status]
"""Whether a solver stops, as a truth value of Python or of an engine, and the status with which it does."""


DOUBLE_PRECISION = float(np.finfo(np.float64).eps)
"""Default of the relative size of rounding errors."""


def first_passed(tests: Sequence[Test]) -> Status | None:
    """Return the status of the first test that is passed."""
    for passed, status in tests:
        if passed:
            return status
    return None


def not_finite(*numbers: Any) -> Any:
    """Return whether a number is infinite or not a number; for Python's numbers, and for 0-d arrays in a trace."""
    wrong: Any = False
    for number in numbers:
        wrong = wrong | (number - number != 0)
    return wrong


def over(a: Any, b: Any) -> Any:
    """Return ``a / b``; infinite where `b` is a zero of Python, by which it cannot divide."""
    return math.inf if isinstance(b, float) and b == 0 else a / b


class Method(Protocol):
    """An iterative method with its options, which never change.

    A state is a dataclass with a field ``x``; its fields say what they are as :mod:`collops.solvers.state` describes.
    A step may write into the arrays of the state that it is given, always uses what operations return, and assigns it
    to the fields of the state. It reads no device value on the host and keeps nothing outside the state, so that it can
    be recorded as a CUDA graph, or compiled. A checkpoint can be resumed by a method with the same options, except
    those that a class attribute ``stops`` names: they only decide when to stop.

    Attributes
    ----------
    name : str
        For progress bars and profiles.
    width : int
        How many numbers :meth:`monitor` returns.

    Examples
    --------
    >>> from collops.solvers import CGLS
    >>> method = CGLS(damp=0.1)  # one of them
    >>> method.name, method.width, method.damp
    ('CGLS', 4, 0.1)
    """

    name: str
    width: int

    def init(self, operator: LinearOperator, data: Any, x0: Any, report_now: bool) -> Any:
        """Return the state before the first iteration.

        Parameters
        ----------
        operator : LinearOperator
            The operator to be inverted.
        data : DistributedArray or StackedArray
            In its range; never written to.
        x0 : DistributedArray, StackedArray or None
            The starting point; never written to.
        report_now : bool
            Whether the numbers of an iteration are needed as soon as it is done. Otherwise they may come with the next
            one, if that saves a message.
        """
        ...

    def step(self, state: Any) -> Any:
        """Return the state after one more iteration."""
        ...

    def finalize(self, state: Any) -> Any:
        """Return the state with what is needed after the last iteration; by default `state`."""
        return state

    def lagged(self, state: Any) -> bool:
        """Return whether the numbers of an iteration come with the next one (the last ones with :meth:`finalize`)."""
        return False

    def monitor(self, state: Any) -> Any:
        """Return this iteration's numbers: up to four real 0-d arrays, or one float64 1-d array."""
        ...

    def verdict(self, row: Row, first: Row) -> Status | None:
        """Return the status if an iteration was the last, from its numbers and those before the first iteration.

        A method that can be compiled also has ``tests(row, first)``, which takes 0-d arrays as well; the first test
        that passes sets the status. The verdict is evaluated in every iteration, so it should find out by a few
        comparisons that the solver continues.
        """
        return first_passed(self.tests(row, first))  # pyright: ignore[reportAttributeAccessIssue]

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the field of the state that was first not finite, from numbers whose verdict is ``NOT_FINITE``."""
        ...

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norm of the residual from each row of numbers, an array that may be traced."""
        ...

    def details(self, state: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return further results by name, from the last state and the numbers of all iterations; by default none."""
        return {}
