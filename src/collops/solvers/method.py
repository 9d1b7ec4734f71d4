"""What an iterative method is: pure functions over a state, run by one driver."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from collops.operators import LinearOperator
from collops.solvers.result import Status

__all__ = ["DOUBLE_PRECISION", "Method", "Row", "Test", "first_passed", "not_finite", "over"]

Row = Sequence[float]
"""The numbers that a method reports of one iteration."""

Test = tuple[Any, Status]
"""Whether a solver stops, as a truth value of Python or of an engine, and why."""


DOUBLE_PRECISION = float(np.finfo(np.float64).eps)
"""What methods take for the relative size of rounding errors unless they are told another."""


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
    """Return ``a / b``; infinite where Python refuses to divide by 0 and arrays do not."""
    return math.inf if isinstance(b, float) and b == 0 else a / b


class Method(Protocol):
    """An iterative method with its options, which never change.

    A state is a dataclass with a field ``x``. A step may write into the arrays of the state that it is given, and
    sets the fields whose arrays are new. It reads no device value on the host and keeps nothing outside the state,
    so that it can be recorded as a CUDA graph, or compiled. A checkpoint holds all of the state but what its class
    attribute ``rebuilt`` names, see :mod:`collops.solvers.state`, and goes on only with a method whose fields are the
    same, but for those that a class attribute ``stops`` names: they only decide when to stop.

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

    @property
    def name(self) -> str:
        """The method's name."""
        ...

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        ...

    def init(self, operator: LinearOperator, data: Any, x0: Any, prompt: bool) -> Any:
        """Return the state before the first iteration.

        Parameters
        ----------
        operator : LinearOperator
            What is to be inverted.
        data : DistributedArray or StackedArray
            In its range; never written to.
        x0 : DistributedArray, StackedArray or None
            Where to start; never written to.
        prompt : bool
            Whether the numbers of an iteration are needed as soon as it is done. Otherwise they may come with the next
            one, if that saves a message.
        """
        ...

    def step(self, state: Any) -> Any:
        """Return the state after one more iteration."""
        ...

    def finalize(self, state: Any) -> Any:
        """Return the state with what is needed after the last iteration."""
        ...

    def late(self, state: Any) -> bool:
        """Return whether the numbers of an iteration come with the next one (the last ones with :meth:`finalize`)."""
        ...

    def monitor(self, state: Any) -> Any:
        """Return this iteration's numbers: up to four real 0-d arrays, or one float64 1-d array."""
        ...

    def verdict(self, row: Row, first: Row) -> Status | None:
        """Return whether an iteration was the last, and why, from its numbers and those before the first iteration.

        A method that can be compiled also has ``tests(row, first)``, of which the first that is passed is the verdict,
        and which takes 0-d arrays as well. The verdict is asked for in every iteration, so it should find out by plain
        comparisons that the solver goes on.
        """
        ...

    def suspect(self, row: Row, iteration: int) -> str:
        """Return the field of the state that was first not finite, from numbers whose verdict is ``NOT_FINITE``."""
        ...

    def residual_norms(self, rows: np.ndarray) -> np.ndarray:
        """Return the norm of the residual from each row of numbers."""
        ...

    def details(self, state: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return what else the method knows, from its last state and the numbers of all iterations."""
        ...
