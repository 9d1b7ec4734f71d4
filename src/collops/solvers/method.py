"""The interface of iterative methods, used by the driver, CUDA graphs, JAX loops and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from collops.array import Array
from collops.backend import is_traced
from collops.solvers.result import Status
from collops.solvers.state import Numbers, Scalar, State, Truth

__all__ = ["DOUBLE_PRECISION", "Method", "log2", "not_finite", "over"]

Row = Sequence[float]
"""The numbers of one iteration, in the order of ``Method.numbers``."""

Test = Callable[[Any, Numbers, Numbers], Truth]
Stop = tuple[Test, Status | None] | tuple[Test, Status | None, str]
"""A test, the status if it passes, and optionally an option's name; see :class:`Method`."""

Degrees = Mapping[str, tuple[float, float]] | None
"""The powers of the units of data and operator in quantities, by name; see :class:`Method`."""

DOUBLE_PRECISION = float(np.finfo(np.float64).eps)
"""Default relative size of rounding errors."""

MAX_RESTARTS = 5
"""Maximum number of restarts from a solution whose recurrence residual differed from the true residual."""

_ON_HOST = (float, np.floating)


def not_finite(*numbers: Scalar) -> Truth:
    """Return whether a number is infinite or NaN; for Python numbers, and for 0-d arrays in a trace."""
    nothing: Scalar = 0.0
    for number in numbers:
        nothing = nothing + (number - number)
    return nothing != 0


def over(a: Scalar, b: Scalar) -> Scalar:
    """Return ``a / b``; infinity without an error or warning if `b` is a zero of Python or NumPy."""
    return math.inf if isinstance(b, _ON_HOST) and b == 0 else a / b


def log2(number: float) -> float:
    """Return the binary logarithm; NaN for zero, negative and non-finite numbers."""
    return math.log2(number) if 0 < number < math.inf else math.nan


_DEGREES = {"x": (1, -1), "residual": (1, 0)}


class Method:
    """An iterative method: a frozen dataclass of its options, with three functions.

    ``init(A, y, x0)`` returns the state before the first iteration, ``step(A, state)`` the state after one more, and
    ``report(state)`` the numbers of the iteration that led to a state.

    A state is a dataclass with a field or property ``x``. Its fields declare whether they are carried from step to
    step, scratch memory or constant (:mod:`collops.solvers.state`). A step may write into the arrays of its state
    argument, always uses the results that operations return, and assigns them to the fields. It reads no device value
    on the host and stores nothing outside the state, so that it can be recorded as a CUDA graph, or compiled.

    Methods of JAX arrays that have ``optimality`` and ``tangent`` are differentiated implicitly:
    ``optimality(A, y, x)`` returns an array that is zero at the solution, and ``tangent(A, tol)`` the method and the
    operator that solve the linear equations of the derivative; `tol` bounds the squared norm of the residual. If this
    operator is not Hermitian, ``cotangent(A, tol)`` returns the same for its adjoint.

    Attributes
    ----------
    name : str
        For progress bars and profiles.
    numbers : type
        A named tuple: the numbers of one iteration.
    stops : tuple of (callable, Status) or (callable, Status, str)
        Tests ``test(method, now, first)`` of the numbers of an iteration and the numbers before the first one. The
        first test that passes sets the status; with the status ``None``, the solver continues. A test with the name of
        an option is skipped if the option is 0 or false. Tests must work for Python floats and for 0-d arrays in a
        trace of JAX: use ``&``, ``|`` and comparisons, not ``if``, ``and`` and ``or``. Square options by
        multiplication, which may yield infinity: the power of a Python float raises OverflowError instead.
    tolerances : frozenset of str
        Names of the options that only determine when to stop. A checkpoint can be resumed with other values of these.
    results : tuple of str
        Fields of the state that belong to the result. On devices, the host launches iterations before it knows whether
        a test has passed; then the fields' values at that iteration are restored. If it is empty, because results are
        computed from the state, the host waits after every iteration if a tolerance can end the run.
    damps_change : bool
        Whether the damping penalises ``x - x0`` instead of ``x``, so that the solution depends on `x0`: it is ``x0``
        plus the solution for the residual at `x0`.
    degrees : mapping of str to pair of float, optional
        For a method that is independent of the units of data and operator: the powers of both units in options and
        details; missing names have none. By default, the solution ``x`` is proportional to the data and to the inverse
        of the operator, and the norm of the ``residual`` to the data; without a starting point and a preconditioner its
        first value must be the norm of the data. The driver then divides very small or large data and operators by
        powers of two. ``None`` for other methods.
    always_measured : bool
        Whether the driver computes the residual of the last solution even if no test has passed: false if the method
        updates a residual vector, which stays close to the true residual.
    square : bool
        Whether the method applies the operator only, not its adjoint.
    traceable : bool
        Whether JAX can trace steps and tests, so that the loop over all iterations is one compiled program.

    Examples
    --------
    >>> from collops.solvers import CGLS
    >>> method = CGLS(damp=0.1)
    >>> method.name, method.numbers._fields, method.damp
    ('CGLS', ('gradient', 'residual', 'curvature', 'before'), 0.1)
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # of the subclasses
    name: ClassVar[str]
    numbers: ClassVar[type[Any]]
    stops: ClassVar[tuple[Stop, ...]] = ()
    tolerances: ClassVar[frozenset[str]] = frozenset()
    results: ClassVar[tuple[str, ...]] = ("x",)
    damps_change: ClassVar[bool] = False
    degrees: ClassVar[Degrees] = None
    always_measured: ClassVar[bool] = True
    square: ClassVar[bool] = False
    traceable: ClassVar[bool] = True

    def variant(self, y: Array, reductions: int | str = 2) -> Method:
        """Return the method with the steps that suit its options and the data; see :mod:`collops.solvers.variants`.

        :func:`solve` calls it once. The iterates are equal up to rounding.
        """
        from collops.solvers.variants import choose  # whose classes derive from methods

        return choose(self, y, reductions)

    def init(self, A: Any, y: Array, x0: Array | None) -> State:
        """Return the state before the first iteration.

        `A` is the operator, or ``None``; `y` the data in its range; `x0` the starting point, or ``None``. The arrays
        are never written to.
        """
        raise NotImplementedError

    def step(self, A: Any, state: State) -> State:
        """Return the state after one more iteration."""
        raise NotImplementedError

    def report(self, state: State) -> Any:
        """Return the numbers of the last iteration: up to four real 0-d arrays, one float64 1-d array, or floats.

        By default they are the field ``numbers`` of the state.
        """
        return state.numbers

    def recomputed(
        self, A: Any, y: Array, x: Array | None, x0: Array | None, state: State, now: Numbers
    ) -> Numbers | None:
        """Return the numbers `now` of `state`, recomputed from its solution `x`. Collective.

        Recurrence residuals can decrease when true residuals no longer do [Greenbaum 1997]; the driver therefore
        measures the last solution. If `x` is ``None``, these are the numbers of the zero solution, which are the
        reference of relative tests if there is an `x0`. By default ``None``, for a method that computes its numbers
        from the solution.
        """
        return None

    def at_rounding(self, A: Any, y: Array, x: Array, now: Numbers, history: Numbers) -> tuple[Truth, Truth]:
        """Return whether rounding errors explain the measured residual, and whether they explain the gradient.

        Collective. `history` has the numbers of all iterations as arrays, possibly NaN after the last.
        """
        return False, False

    def degree(self, name: str) -> tuple[float, float]:
        """Return the powers of the units of data and operator in an option or a result."""
        return (self.degrees or {}).get(name) or _DEGREES.get(name, (0, 0))

    def magnitudes(self, now: Numbers, before: Numbers | None, state: State) -> Sequence[float]:
        """Return binary logarithms of squares that the method computes, as far as they follow from its first numbers.

        `now` are the numbers before the first iteration, or after it; then `before` are the numbers before it. `state`
        may belong to a later iteration. From these the driver determines whether the operator is of ordinary size. The
        squares include the squared norm of the solution. By default there are none.
        """
        return ()

    def image(self, A: Any, x: Array, out: Array | None) -> Array:
        """Return the image of `x` under the operator of the equations, optionally in the memory `out`."""
        return A._forward(x, out)

    def restarts(self, state: State) -> bool:
        """Return whether the method can restart from a solution."""
        return True

    def restarted(self, A: Any, y: Array, x: Array, state: State) -> State:
        """Return the state for a restart from `x`. Collective."""
        return self.init(A, y, x)

    def status(self, now: Numbers, first: Numbers) -> Status | None:
        """Return the status of the first test that passes, or ``None`` if the solver continues; numbers are floats."""
        for test, status in self.possible_stops:
            if test(self, now, first):
                return status
        return None

    @cached_property
    def possible_stops(self) -> list[tuple[Test, Status | None]]:
        """The tests whose options are not 0 or false; options that are being traced count as nonzero."""

        def counts(option: object) -> bool:
            return is_traced(option) or bool(option)

        return [(test, status) for test, status, *names in self.stops if all(counts(getattr(self, n)) for n in names)]

    def suspect(self, now: Numbers, iteration: int) -> str:
        """Return the field of the state that first became non-finite, from numbers whose status is ``NOT_FINITE``.

        By default the image of an operator, or before the first iteration the residual.
        """
        return "image" if iteration else "residual"

    def residual_norm(self, now: Numbers) -> Scalar:
        """Return the norm of the residual from `numbers` of floats, or of arrays with one element per iteration.

        By default the number ``residual`` is its square, which may be negative by rounding.
        """
        return abs(now.residual) ** 0.5

    def details(self, state: State, history: Numbers) -> dict[str, Any]:
        """Return further results by name; `history` is a `numbers` of arrays, whose first elements precede the run."""
        return {}
