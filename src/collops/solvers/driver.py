"""The driver: one loop for all iterative methods, with callbacks, tolerances, history, progress and timing."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar, cast

import numpy as np

from collops.array.redistribute import check_given
from collops.backend import Engine, is_traced
from collops.comm import Communicator
from collops.errors import InputError, NotFiniteError, UnsupportedTypeError
from collops.profile import mark
from collops.solvers.checkpoint import Path, open_checkpoints
from collops.solvers.execution import Execution, GraphExecution
from collops.solvers.history import History, on_device, open_history
from collops.solvers.method import MAX_RESTARTS, Method
from collops.solvers.problem import check_count, group_of
from collops.solvers.result import ROUNDING, SolverResult, Status
from collops.solvers.scaling import details_in_units, divided, exponent_of, in_units, multiplied, unit_of

__all__ = ["solve", "solver"]

_SECONDS_BETWEEN_UPDATES = 0.1
_FEWEST_TO_RECORD = 4  # recording costs a few milliseconds, which fewer iterations do not save

Callback = Callable[[int, "View"], Any]
Solver = TypeVar("Solver", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Run:
    """The options of a run, which every solver takes as keywords.

    Parameters
    ----------
    niter : int
        Largest number of iterations.
    callback : callable, optional
        Called on every rank after each iteration as ``callback(iteration, view)``, with the number of iterations
        done and a :class:`View` of the solver. If it returns ``True``, on all ranks alike, the solver stops. Ranks on
        which it raises leave the others waiting for their deadline.
    progress : bool, optional
        Whether to show a progress bar on rank 0; by default where standard error is a terminal.
    graph : bool or "auto"
        On devices, whether to record one iteration as a CUDA graph and replay it: ``"auto"`` does it where the
        operator can be recorded, ``True`` raises where it cannot, ``False`` launches every iteration. Long runs replay
        groups of three iterations where `lag` allows it.
    lag : int, optional
        On devices, how many iterations the host may launch before it checks the numbers of the oldest. If a tolerance
        can stop the solver, the device keeps the results of so many iterations, so that `x` is the iterate that passed
        the test. The default is then 3 if the iterations are replayed as a graph, and 0 where copies would take longer
        than waiting, with large vectors; with a callback or checkpoints, or without a graph, it is always 0. If no
        tolerance can stop the solver, it is 3. On hosts always 0. With 3 or more, long runs with short vectors replay
        groups of three iterations, and the results of two more are kept; not with a callback or checkpoints.
    checkpoint : str or path, optional
        Folder that all ranks see, for the last checkpoint, from which a run can be resumed. Without it nothing is
        written, and signals are handled as before.
    every : int or str, optional
        How often one is written: a number of iterations, or a time such as ``"30s"``, ``"10m"`` or ``"2h"``; by
        default ten minutes. One more is written at the end.
    resume : bool
        Whether to resume from the checkpoint, if there is one. The result is that of a run without interruption: to
        the last bit on as many ranks of the same kind, else to rounding. Options that only decide when to stop may
        differ.
    verify : bool
        Whether Krylov methods compute the residual from the solution at the end, which takes one or two products. The
        last of the ``residual_norms`` is the one computed, whatever the status. If it does not pass a test that the
        recurrence has passed, they begin anew from this solution, up to five times; then the status is ``STAGNATED``,
        unless rounding errors explain the residual. Only CG and CGLS with all tolerances 0, for a fixed number of
        iterations, save these products, unless they stop early. False is for solutions whose accuracy does not matter,
        such as those of a preconditioner.
    differentiate : {"implicit", "unroll"}
        For arrays of JAX, whose solvers are one compiled program: whether a derivative of the solution is that of the
        equations that it solves, by one more solution, or that of all iterations.

    Raises
    ------
    InputError
        If an option is invalid.
    CheckpointError
        If there is a checkpoint, but `resume` is false; if it is damaged or that of another problem; or if one cannot
        be written. Existing checkpoints stay.
    Interrupted
        If SIGTERM, SIGUSR1 or SIGINT (Ctrl-C) has come to any rank and there are checkpoints: all ranks have written
        one. A second Ctrl-C raises KeyboardInterrupt at once.

    Notes
    -----
    With checkpoints, ranks exchange one more small message about twice a second.

    Examples
    --------
    >>> import collops
    >>> from collops.solvers import Run
    >>> run = Run(niter=2, progress=False)
    >>> run.graph, run.resume
    ('auto', False)
    """

    niter: int
    callback: Callback | None = None
    progress: bool | None = None
    graph: bool | str = "auto"
    lag: int | None = None
    checkpoint: Path | None = None
    every: int | str | None = None
    resume: bool = False
    verify: bool = True
    differentiate: str = "implicit"


class View:
    """A solver between two iterations, passed to its callback.

    Attributes
    ----------
    x : DistributedArray or StackedArray
        The solution so far. The next iteration overwrites it: copy it to keep it. In GMRES it is computed when it is
        read, which is collective.
    iteration : int
        Iterations done.
    state : dataclass
        The state of the method, such as its second variable; overwritten likewise. Where data are very small or large,
        it is that for data divided by a power of two.

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

    __slots__ = ("_history", "_method", "_unit", "iteration", "state")

    def __init__(self, method: Method, history: History, iteration: int, state: Any, unit: float) -> None:
        self._method = method
        self._history = history
        self._unit = unit
        self.iteration = iteration
        self.state = state

    @property
    def x(self) -> Any:
        """The solution so far, which some methods compute when it is asked for."""
        return multiplied(self.state.x, self._unit)

    @property
    def residual_norm(self) -> float:
        """Norm of the residual after this iteration; synchronises with the device."""
        return self._unit * float(self._method.residual_norm(self._history.numbers(self.iteration)))


def solver(function: Solver, passed_to: Sequence[Callable[..., Any]] = (Run,)) -> Solver:
    """Make a function with ``**`` options, which it passes on, raise the TypeError for unknown ones itself.

    Its message has the name of the function, the most similar option, and all that there are.
    """
    parameters = [known for taker in (function, *passed_to) for known in inspect.signature(taker).parameters.values()]
    known = sorted({parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD})
    in_lower_case = {name.lower(): name for name in known}

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in known:
                similar = difflib.get_close_matches(name.lower(), in_lower_case, 1)
                guess = f"; did you mean {in_lower_case[similar[0]]!r}?" if similar else "."
                raise TypeError(f"{function.__name__}() has no option {name!r}{guess} It takes {', '.join(known)}")
        return function(*args, **options)

    return cast("Solver", checked)


@solver
def solve(method: Any, A: Any, y: Any, x0: Any = None, *, parts: Sequence[Any] = (), **options: Any) -> SolverResult:
    """Run a method until a test or the callback stops it, or `niter` iterations are done. Collective.

    Parameters
    ----------
    method : Method
        With its options.
    A, y, x0
        The problem, whose layouts have been checked; a method may do without an operator, which then is ``None``.
    parts : sequence of object
        Other objects that take part in a step, or ``None``; each has an attribute ``capturable``.
    **options
        Those of :class:`Run`, of which ``niter`` is required.

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
    run = Run(**options)
    check_given(y)
    if x0 is not None:
        check_given(x0)
    if y.engine.traced and run.callback is None and run.checkpoint is None:
        from collops.solvers.compiled import can_be_compiled, solve_compiled

        if can_be_compiled(method, y):
            if y.comm.calls is not None:
                group_of(y).agree("a solver's start", _same_on_all_ranks(method, A, y, x0, run))
            return solve_compiled(method, A, y, x0, run)  # pyright: ignore[reportReturnType]
    if run.lag is not None:
        check_count("lag", run.lag)
    comm = group_of(y)
    same_on_all_ranks = _same_on_all_ranks(method, A, y, x0, run)
    if method.degrees is None:
        comm.agree("a solver's start", same_on_all_ranks)
        unit = 1.0
    else:
        unit = unit_of(y, comm.agree("a solver's start", same_on_all_ranks, [exponent_of(y), exponent_of(x0)]))
    method, y, x0 = in_units(method, unit), divided(y, unit), divided(x0, unit)
    parts = [part for part in (A, *parts) if part is not None]
    obstacle = _obstacle(run, y.engine, parts)
    ahead = obstacle is None and run.callback is None and run.checkpoint is None
    size = (y if A is None else A.domain).size // comm.size
    # One row before the first iteration, one after each.
    history = open_history(y.engine, method, run.niter + 1, run.lag, comm, size=size, ahead=ahead)

    def new_execution() -> Execution:
        if obstacle is None:
            return GraphExecution(method, A, history, comm, required=run.graph is True)
        return Execution(method, A, history, f"eager: {obstacle}" if obstacle else "eager")

    with ExitStack() as stack:
        checkpoints = open_checkpoints(run, method, A, y, x0, parts, history, stack)
        stack.push(lambda kind, *_: history.abandon() if kind is not None else None)
        stack.enter_context(mark(method.name))
        state = method.init(A, y, x0)
        resumed_from = None
        if checkpoints is not None:
            stack.enter_context(checkpoints.signals)
            state, resumed_from = checkpoints.restore(state)
        bar = open_progress(run.progress, method.name, run.niter, y.comm)
        if bar is not None:
            stack.enter_context(bar.display)
            if checkpoints is not None:
                checkpoints.announce = bar.announce
        start = time.perf_counter()
        first = iterations = resumed_from or 0
        reference, measured, x = None, None, None
        attempts = 0
        while True:
            with new_execution() as execution:
                if attempts == 0 and resumed_from is None:
                    history.record(state)
                if attempts == 0 and x0 is not None:
                    reference = _reference(method, A, y, x0, state, history)
                settings = (checkpoints, iterations, reference, run, bar, unit)
                state, iterations, status = _iterate(method, state, history, execution, *settings)
                history.return_to(iterations, state)
            if not run.verify or status is Status.NOT_FINITE or not (status.successful or method.always_measured):
                break
            x = state.x  # which some methods compute
            reference = reference or history.numbers(0)
            measured, status, again = _verified(method, A, y, x0, x, state, history, iterations, reference, status)
            if not again:
                break
            if iterations == run.niter:
                status = Status.ITERATION_LIMIT
                break
            if attempts == MAX_RESTARTS or not method.restarts(state):
                status = Status.STAGNATED
                break
            state, x, attempts = method.restarted(A, y, x, state), None, attempts + 1
            history.restore(np.vstack([history.rows()[:iterations], measured]))
            measured = None
        if checkpoints is not None:
            checkpoints.write(iterations, state)
        rows = history.rows()[: iterations + 1]
        if measured is not None:
            rows[-1] = measured
        x = multiplied(state.x if x is None else x, unit)
        end = time.perf_counter()
    if status is Status.NOT_FINITE:
        raise NotFiniteError(method.name, iterations, method.suspect(method.numbers(*rows[-1].tolist()), iterations), x)
    numbers = method.numbers(*rows.T)
    return SolverResult(
        x=x,
        status=status,
        iterations=iterations,
        residual_norms=unit * method.residual_norm(numbers),
        seconds=end - begin,
        seconds_per_iteration=(end - start) / max(1, iterations - first),
        execution=execution.description,
        resumed_from=resumed_from,
        details=details_in_units(method, method.details(state, numbers), unit),
    )


def _same_on_all_ranks(method: Any, A: Any, y: Any, x0: Any, run: Run) -> dict[str, Any]:
    """Return the options on which ranks agree: they determine the solver's messages, or the solution."""
    options = {option.name: getattr(method, option.name) for option in dataclasses.fields(method)}
    tolerances = {name: getattr(method, name) for name in sorted(method.tolerances)}
    return {
        "method": method.name,
        "niter": run.niter,
        **{name: value for name, value in vars(method).items() if isinstance(value, int)},
        **{name: value for name, value in tolerances.items() if not is_traced(value)},
        **{name: value for name, value in options.items() if isinstance(value, int | float | str)},
        "M": getattr(method, "M", None) is not None,
        "shape": None if A is None else A.shape,
        "dtype": str(y.dtype),
        "x0": x0 is not None,
        "callback": run.callback is not None,
        "checkpoint": run.checkpoint is not None,
        "graph": str(run.graph),
        "lag": run.lag,
        "verify": run.verify,
        "differentiate": run.differentiate,
    }


def _reference(method: Any, A: Any, y: Any, x0: Any, state: Any, history: History) -> Any:
    """Return the numbers to which tests refer where there is a starting point, ``None`` for the first ones. Collective.

    For Krylov methods they are those at zero, except where the data are zero.
    """
    first = history.numbers(0)
    measured = method.recomputed(A, y, None, x0, state, first)
    if measured is None:
        return None
    return method.numbers(*(float(number) or begin for number, begin in zip(measured, first, strict=True)))


def _verified(method, A, y, x0, x, state, history, iteration, reference, status) -> tuple[Any, Status, bool]:
    """Return the numbers computed from a solution, its status, and whether to begin anew from it. Collective."""
    measured = method.recomputed(A, y, x, x0, state, history.numbers(iteration))
    if measured is None:
        return None, status, False
    measured = method.numbers(*map(float, measured))
    found = method.status(measured, reference)
    if status is not Status.STOPPED and found is not None and (found.successful or found is Status.NOT_FINITE):
        return measured, found, False
    if not status.successful:
        return measured, status, False
    rows = method.numbers(*history.rows()[: iteration + 1].T)
    for explained, verdict in zip(method.at_rounding(A, y, x, measured, rows), ROUNDING, strict=True):
        if explained:
            return measured, verdict, False
    return measured, status, True


def _obstacle(run: Run, engine: Engine, parts: Sequence[Any]) -> str | None:
    """Return why steps are launched one by one, or ``None`` if they are recorded as a CUDA graph.

    It is the same on every rank, without a message.
    """
    if run.graph not in (True, False, "auto"):
        raise InputError(f"graph must be True, False or 'auto', not {run.graph!r}")
    if not run.graph:
        return ""
    if not on_device(engine):
        reason = "" if run.graph == "auto" else "arrays on the host have no CUDA graphs"
    elif (obstacle := next((part for part in parts if not part.capturable), None)) is not None:
        reason = f"{type(obstacle).__name__} cannot be captured"
    elif run.graph == "auto" and run.niter < _FEWEST_TO_RECORD:
        reason = f"{run.niter} iterations are too few to record one"
    else:
        return None
    if run.graph is True:
        raise UnsupportedTypeError(f"graph=True, but {reason}")
    return reason


def _iterate(method, state, history, execution, checkpoints, first, begin, run, bar, unit) -> tuple[Any, int, Status]:
    """Run the iterations after the `first`; return the last state, the iteration of the result, and its status.

    `begin` are the numbers to which tests refer, by default the first ones.
    """
    advance, callback, numbers = execution.advance, run.callback, history.numbers
    iteration, checked, stopped = first, 0, False
    while True:
        # Every rank checks the same rows at the same iteration, so that all of them stop together.
        over = stopped or iteration == run.niter
        for number in range(checked, history.count - (0 if over else history.lag)):
            now = numbers(number)
            begin = begin or (now if number == 0 else numbers(0))
            checked = number + 1
            status = method.status(now, begin)
            if status is not None and (not stopped or status is Status.NOT_FINITE):
                return state, max(number, first), status
        if over:
            return state, iteration, Status.STOPPED if stopped else Status.ITERATION_LIMIT
        if checkpoints is not None and iteration > first:
            checkpoints.after(iteration, state)
        state = advance(state, run.niter - iteration)
        iteration = history.count - 1
        if callback is not None:
            stop = callback(iteration, View(method, history, iteration, state, unit))
            stopped = isinstance(stop, bool | np.bool_) and bool(stop)
        if bar is not None and (bar.due or iteration == run.niter):
            bar.update(iteration, unit * float(method.residual_norm(numbers(checked - 1))) if checked else None)


class ProgressBar:
    """Shows how many of `total` iterations are done, and the norm of the residual, inside its context `display`."""

    def __init__(self, name: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.display = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("residual {task.fields[residual]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task: Any = self.display.add_task(name, total=total, residual="")
        self._next = 0.0

    def announce(self, text: str) -> None:
        """Show a line above the bar."""
        self.display.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @property
    def due(self) -> bool:
        """Whether it is time for another update."""
        return time.monotonic() >= self._next

    def update(self, iteration: int, residual_norm: float | None) -> None:
        """Show an iteration."""
        shown = "" if residual_norm is None else f"{residual_norm:.3e}"
        self.display.update(self._task, completed=iteration, residual=shown)
        self._next = time.monotonic() + _SECONDS_BETWEEN_UPDATES


def open_progress(progress: bool | None, name: str, total: int, comm: Communicator) -> ProgressBar | None:
    """Return a progress bar, or ``None``: on other ranks than 0, and by default where standard error is no terminal."""
    if comm.rank != 0 or progress is False or (progress is None and not (sys.stderr and sys.stderr.isatty())):
        return None
    return ProgressBar(name, total)
