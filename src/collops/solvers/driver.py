"""The driver: one loop for all iterative methods, with callbacks, tolerances, history, progress and timing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypedDict

import numpy as np

from collops.comm import Communicator
from collops.errors import NotFiniteError
from collops.profile import mark
from collops.solvers.checkpoint import Checkpoints, Path, open_checkpoints
from collops.solvers.execution import Execution, open_execution
from collops.solvers.history import History, open_history
from collops.solvers.method import Method
from collops.solvers.problem import group_of
from collops.solvers.result import SolverResult, Status

__all__ = ["ProgressBar", "Run", "View", "open_progress", "solve"]

_SECONDS_BETWEEN_UPDATES = 0.1

Callback = Callable[[int, "View"], Any]


class Run(TypedDict, total=False):
    """The options of a run, which every solver takes; :func:`collops.solvers.cgls` describes them.

    Examples
    --------
    >>> import collops
    >>> from collops.solvers import Run
    >>> options: Run = {"progress": False, "graph": "auto"}
    >>> collops.cgls(collops.Identity(3), collops.ones(3), niter=2, **options).iterations
    1
    """

    callback: Callback | None
    progress: bool | None
    graph: bool | str
    lag: int | None
    checkpoint: Path | None
    every: int | str | None
    resume: bool
    differentiate: str


class View:
    """A solver between two iterations, as its callback gets it.

    Attributes
    ----------
    x : DistributedArray or StackedArray
        The solution so far. The next iteration overwrites it: copy it to keep it.
    iteration : int
        Iterations done.
    state : dataclass
        The state of the method, such as its second variable; overwritten likewise.

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
        """Norm of the residual after this iteration; synchronises with the device."""
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
    """Run a method until a test or the callback stops it, or `niter` iterations are done. Collective.

    Parameters
    ----------
    method : Method
        With its options.
    operator, data, x0
        The problem, whose layouts have been checked; a method may do without an operator, which then is ``None``.
    parts : sequence of object
        Other objects that take part in a step; each has an attribute ``capturable``.
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
    if data.engine.traced and callback is None and checkpoint is None:
        from collops.solvers.compiled import can_be_compiled, solve_compiled

        if can_be_compiled(method, data):
            return solve_compiled(method, operator, data, x0, niter, differentiate)  # pyright: ignore[reportReturnType]
    comm = group_of(data)
    if lag is None and _ends_at_a_tolerance(method):
        lag = 0  # iterations beyond the one that passes its test would still change the solution
    comm.agree("a solver's start", _start(method, operator, data, x0, niter, callback is not None, lag))
    # One row before the first iteration, one after each.
    history = open_history(data.engine, method.width, niter + 1, lag, comm)
    report_now = history.lag == 0 or callback is not None
    parts = [part for part in (operator, *parts) if part is not None]
    execution = open_execution(graph, method, history, parts, data.engine, niter, comm)
    checkpoints = open_checkpoints(checkpoint, every, resume, method, operator, data, x0, parts, history, niter)
    with ExitStack() as stack:
        stack.push(lambda kind, *_: history.abandon() if kind is not None else None)
        stack.enter_context(mark(method.name))
        state = method.init(operator, data, x0, report_now)
        resumed_from = None
        if checkpoints is not None:
            stack.enter_context(checkpoints)
            state, resumed_from = checkpoints.restore(state)
        stack.enter_context(execution)
        if not method.lagged(state) and resumed_from is None:
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
            checkpoints.write(iterations, state)
        state = method.finalize(state)
        if method.lagged(state):
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
    """Return the options that determine a solver's messages, and so must be the same on all ranks."""
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
    """Raise if a number of the last iterations is not finite; the driver has checked those before.

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
    """Run the iterations after the `first`; return the last state, their number, and the status if a test passed."""
    advance, verdict, lag = execution.advance, method.verdict, history.lag
    iteration, checked = first, 0
    while True:
        # Every rank checks the same rows at the same iteration, so that all of them stop together.
        for number in range(checked, history.count - lag):
            status = verdict(history.row(number), history.row(0))
            checked = number + 1
            if status is not None:
                return state, iteration, status
        if iteration == niter:
            return state, iteration, None
        if checkpoints is not None and iteration > first:
            checkpoints.after(iteration, state)
        state = advance(state)
        iteration += 1
        if callback is not None:
            stop = callback(iteration, View(method, history, iteration, state))
            if isinstance(stop, bool | np.bool_) and stop:
                return state, iteration, Status.STOPPED
        if bar is not None and (bar.due or iteration == niter):
            known = [history.row(checked - 1)] if checked else []
            bar.update(iteration, float(method.residual_norms(np.array(known))[0]) if known else None)


class ProgressBar:
    """Shows how many of `total` iterations are done, and the norm of the residual."""

    def __init__(self, name: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("residual {task.fields[residual]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task: Any = self._bar.add_task(name, total=total, residual="")
        self._next = 0.0

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    @property
    def due(self) -> bool:
        """Whether the last update is long enough ago."""
        return time.monotonic() >= self._next

    def update(self, iteration: int, residual_norm: float | None) -> None:
        """Show an iteration."""
        shown = "" if residual_norm is None else f"{residual_norm:.3e}"
        self._bar.update(self._task, completed=iteration, residual=shown)
        self._next = time.monotonic() + _SECONDS_BETWEEN_UPDATES


def open_progress(progress: bool | None, name: str, total: int, comm: Communicator) -> ProgressBar | None:
    """Return a progress bar, or ``None``: on other ranks than 0, and by default where standard error is no terminal."""
    if comm.rank != 0 or progress is False or (progress is None and not sys.stderr.isatty()):
        return None
    return ProgressBar(name, total)
