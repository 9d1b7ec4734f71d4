"""The driver: one loop for all iterative methods, with callbacks, tolerances, history, progress and timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from collops.errors import NotFiniteError
from collops.profile import mark
from collops.solvers.checkpoint import Checkpoints, Path, open_checkpoints
from collops.solvers.execution import Execution, open_execution
from collops.solvers.history import History, open_history
from collops.solvers.method import Method
from collops.solvers.problem import group_of
from collops.solvers.progress import ProgressBar, open_progress
from collops.solvers.result import SolverResult, Status

__all__ = ["View", "solve"]

Callback = Callable[[int, "View"], Any]


class View:
    """What a callback sees of a solver between two iterations.

    Attributes
    ----------
    x : DistributedArray or StackedArray
        The solution so far. The next iteration writes into it: copy what is to be kept.
    iteration : int
        Iterations done.
    state : dataclass
        All that the method has, such as its second variable; the same holds for it.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> norms = []
    >>> def watch(iteration, view):
    ...     norms.append(float(view.residual_norm))
    >>> A = collops.Diagonal(np.array([1.0, 2.0, 4.0]))
    >>> result = collops.cgls(A, collops.ones(3), niter=2, callback=watch)
    >>> len(norms), norms[1] < norms[0]
    (2, True)
    """

    __slots__ = ("_history", "_method", "iteration", "state", "x")

    def __init__(self, method: Method, history: History, iteration: int, state: Any) -> None:
        self._method = method
        self._history = history
        self.iteration = iteration
        self.state = state
        self.x = state.x

    @property
    def residual_norm(self) -> float:
        """Norm of the residual after this iteration; asking for it waits for the device."""
        row = np.array([self._history.row(self.iteration)])
        return float(self._method.residual_norms(row)[0])


def solve(
    method: Method,
    operator: Any,
    data: Any,
    x0: Any = None,
    *,
    parts: Sequence[Any] = (),
    niter: int,
    callback: Callback | None = None,
    progress: bool | None = None,
    graph: bool | str = "auto",
    lag: int | None = None,
    checkpoint: Path | None = None,
    every: int | str | None = None,
    resume: bool = False,
    differentiate: str = "implicit",
) -> SolverResult:
    """Run a method until it says stop, the callback does, or `niter` iterations are done. Collective.

    Parameters
    ----------
    method : Method
        With its options.
    operator, data, x0
        The problem, whose layouts have been checked; a method may do without an operator, which then is ``None``.
    parts : sequence of object
        What else takes part in a step; each has an attribute ``capturable``.
    niter, callback, progress, graph, lag, checkpoint, every, resume
        See :func:`collops.solvers.cgls`.

    Returns
    -------
    SolverResult
        Its `x` is ordered on the caller's current stream.

    Raises
    ------
    NotFiniteError
        On every rank, at the first iteration whose numbers are not finite.

    Examples
    --------
    >>> import collops
    >>> from collops.solvers import CGLS, solve
    >>> result = solve(CGLS(tol=0), collops.Identity(3), collops.ones(3), niter=3)
    >>> result.x.gather()
    array([1., 1., 1.])
    """
    begin = time.perf_counter()
    if not data.engine.keeps and callback is None and checkpoint is None:
        from collops.solvers.compiled import can_be_compiled, solve_compiled

        if can_be_compiled(method, data):
            return solve_compiled(method, operator, data, x0, niter, differentiate)  # pyright: ignore[reportReturnType]
    comm = group_of(data)
    if lag is None and _ends_at_a_tolerance(method):
        lag = 0  # iterations beyond the one that passes its test would still change the solution
    comm.agree("a solver's start", _start(method, operator, data, x0, niter, callback is not None, lag))
    # One row before the first iteration, one after each.
    history = open_history(data.engine, method.width, niter + 1, lag, comm)
    prompt = history.lag == 0 or callback is not None
    parts = [part for part in (operator, *parts) if part is not None]
    execution = open_execution(graph, method, history, parts, data.engine, niter, comm)
    checkpoints = open_checkpoints(checkpoint, every, resume, method, operator, data, x0, parts, history, niter)
    with ExitStack() as stack:
        stack.push(lambda kind, *_: history.abandon() if kind is not None else None)
        stack.enter_context(mark(method.name))
        state = method.init(operator, data, x0, prompt)
        resumed_from = None
        if checkpoints is not None:
            stack.enter_context(checkpoints)
            resumed_from = checkpoints.restore(state)
        stack.enter_context(execution)
        if not method.late(state) and resumed_from is None:
            history.store(method.monitor(state))
            history.advance()
        bar = open_progress(progress, method.name, niter, data.comm)
        if bar is not None:
            stack.enter_context(bar)
        start = time.perf_counter()
        first = resumed_from or 0
        state, iterations, status = _iterate(
            method, state, history, execution, checkpoints, first, niter, callback, bar
        )
        if checkpoints is not None:
            with execution.outside():
                checkpoints.write(iterations, state)
        state = method.finalize(state)
        if method.late(state):
            history.store(method.monitor(state))
            history.advance()
        rows = history.rows()
        end = time.perf_counter()
    _check_finite(method, rows, state.x, history.lag)
    if status is None:
        status = method.verdict(rows[-1].tolist(), rows[0].tolist()) or Status.ITERATION_LIMIT
    return SolverResult(
        x=state.x,
        status=status,
        iterations=iterations,
        residual_norms=method.residual_norms(rows),
        seconds=end - begin,
        seconds_per_iteration=(end - start) / max(1, iterations - first),
        execution=execution.description,
        resumed_from=resumed_from,
        details=method.details(state, rows),
    )


def _start(
    method: Method, operator: Any, data: Any, x0: Any, niter: int, callback: bool, lag: int | None
) -> dict[str, Any]:
    """Return what decides on the messages of a solver, and so must be the same on all ranks."""
    return {
        "method": method.name,
        "niter": niter,
        **{name: getattr(method, name) for name in sorted(getattr(method, "stops", ()))},
        "shape": None if operator is None else operator.shape,
        "dtype": str(data.dtype),
        "x0": x0 is not None,
        "callback": callback,
        "lag": lag,
    }


def _ends_at_a_tolerance(method: Method) -> bool:
    """Return whether a test other than that for rounding errors can end the run before `niter` iterations."""
    tolerances = frozenset(getattr(method, "stops", ())) - {"precision", "niter"}
    return any(getattr(method, name) for name in tolerances)


def _check_finite(method: Method, rows: np.ndarray, x: Any, lag: int) -> None:
    """Raise if a number of the last iterations is not finite; those before have been looked at, or the solver stopped.

    Raises
    ------
    NotFiniteError
        For the first of them.
    """
    first = rows[0].tolist()
    for iteration in range(max(0, len(rows) - lag - 2), len(rows)):
        row = rows[iteration].tolist()
        if method.verdict(row, first) is Status.NOT_FINITE:
            raise NotFiniteError(method.name, iteration, method.suspect(row, iteration), x)


def _iterate(
    method: Method,
    state: Any,
    history: History,
    execution: Execution,
    checkpoints: Checkpoints | None,
    first: int,
    niter: int,
    callback: Callback | None,
    bar: ProgressBar | None,
) -> tuple[Any, int, Status | None]:
    """Run the iterations after the `first`; return the last state, their number, and why they ended before `niter`."""
    advance, verdict, lag = execution.advance, method.verdict, history.lag
    iteration, checked = first, 0
    while True:
        # Every rank looks at the same rows at the same iteration, so that all of them stop together.
        for number in range(checked, history.count - lag):
            status = verdict(history.row(number), history.row(0))
            checked = number + 1
            if status is not None:
                return state, iteration, status
        if iteration == niter:
            return state, iteration, None
        if checkpoints is not None and iteration > first:
            with execution.outside():
                checkpoints.after(iteration, state)
        state = advance(state)
        iteration += 1
        if callback is not None:
            with execution.outside():
                stop = callback(iteration, View(method, history, iteration, state))
            if isinstance(stop, bool | np.bool_) and stop:
                return state, iteration, Status.STOPPED
        if bar is not None and (bar.due or iteration == niter):
            known = [history.row(checked - 1)] if checked else []
            bar.update(iteration, float(method.residual_norms(np.array(known))[0]) if known else None)
