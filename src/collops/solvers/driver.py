"""The driver of all methods: iterations, tests, verification and restarts, scaling, checkpoints, history, progress."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, TypeVar, cast

import numpy as np

from collops.array import Array
from collops.array.redistribute import compare_copies
from collops.backend import Engine, is_traced
from collops.comm import Communicator
from collops.errors import InputError, NotFiniteError, UnsupportedTypeError
from collops.operators import LinearOperator
from collops.profile import mark
from collops.solvers.checkpoint import Checkpoints, Path, open_checkpoints
from collops.solvers.components import numbers_of_option
from collops.solvers.execution import Execution, GraphExecution
from collops.solvers.history import History, on_device, open_history
from collops.solvers.method import MAX_RESTARTS, Method
from collops.solvers.problem import check_count, group_of
from collops.solvers.result import ROUNDING, SolverResult, Status
from collops.solvers.scaling import (
    Problem,
    data_units,
    is_ordinary_norm,
    measured_units,
    out_of_range,
    refuse_false_zero,
    starts_from_norm,
)
from collops.solvers.state import Numbers, State

__all__ = ["ProgressBar", "solve", "solver"]

_SECONDS_BETWEEN_UPDATES = 0.1
_MIN_TO_RECORD = 4  # recording takes a few milliseconds, which fewer iterations do not amortise

Callback = Callable[[int, "View"], object]
Solver = TypeVar("Solver", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Run:
    """The options of a run, which every solver accepts as keywords.

    Parameters
    ----------
    niter : int
        Largest number of iterations.
    callback : callable, optional
        Called on every rank after each iteration as ``callback(iteration, view)``, with the number of iterations
        done and a :class:`View` of the solver. The solver stops if it returns ``True``, which must be the same on all
        ranks: a decision that can differ, by a clock for instance, is made by one rank and sent with ``comm.bcast``.
        If the callback raises on some ranks only, the other ranks wait until their deadline.
    progress : bool or callable, optional
        Whether to show a progress bar on rank 0; by default if standard error is a terminal. Or a function that rank 0
        calls with the name of the method and `niter`, and that returns an object with the attributes of
        :class:`ProgressBar`, such as a progress bar of a graphical program.
    graph : bool or "auto"
        On devices, whether to record one iteration as a CUDA graph and replay it: ``"auto"`` records if the operator
        supports it, ``True`` raises an error if it does not, ``False`` launches every iteration. Long runs replay
        groups of three iterations if `lag` allows it.
    lag : int, optional
        On devices, the number of iterations that the host may launch before it checks the numbers of the oldest. If a
        tolerance can stop the solver, the device keeps the results of this many iterations, so that `x` is the iterate
        that passed the test. The default is then 3 if iterations are replayed as a graph, and 0 for large vectors,
        for which copies would take longer than waiting; with a callback or checkpoints, or without a graph, it is
        always 0. If no tolerance can stop the solver, it is 3. On hosts it is always 0. With 3 or more, long runs with
        short vectors replay groups of three iterations and keep the results of two more, except with a callback or
        checkpoints.
    checkpoint : str or path, optional
        Folder on a file system shared by all ranks, for the latest checkpoint, from which a run can be resumed. By
        default, no checkpoints are written, and signal handlers are not changed.
    every : int or str, optional
        Interval between checkpoints: a number of iterations, or a time such as ``"30s"``, ``"10m"`` or ``"2h"``; by
        default ten minutes. One more is written at the end.
    resume : bool
        Whether to resume from the checkpoint, if there is one. The result equals the result of an uninterrupted run:
        bit for bit on equally many ranks of the same kind, otherwise to rounding. Options that only determine when to
        stop may differ.
    verify : bool
        Whether Krylov methods compute the residual from the solution at the end, which takes one or two products. The
        last of the ``residual_norms`` then is the computed norm. If it fails a test that the recurrence passed, the
        method restarts from this solution, up to five times; then the status is ``STAGNATED``, unless rounding errors
        explain the residual. CG and CGLS, except pipelined CG, skip these products if no test has passed: they update
        a residual vector, which stays close to the true residual. Use False if accuracy does not matter, for example
        for solves inside a preconditioner.
    differentiate : {"implicit", "unroll"}
        For arrays of JAX, whose solvers are compiled: whether to differentiate the solution implicitly, by solving the
        equations once more, or through all iterations.

    Raises
    ------
    InputError
        If an option is invalid.
    CheckpointError
        If there is a checkpoint but `resume` is false; if it is damaged or belongs to another problem; or if writing
        fails. Existing checkpoints are preserved.
    Interrupted
        With checkpoints, if any rank has received SIGTERM, SIGUSR1 or SIGINT (Ctrl-C): all ranks have written a
        checkpoint. A second Ctrl-C raises KeyboardInterrupt at once.

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
    progress: bool | Callable[[str, int], Any] | None = None
    graph: bool | str = "auto"
    lag: int | None = None
    checkpoint: Path | None = None
    every: int | str | None = None
    resume: bool = False
    verify: bool = True
    differentiate: str = "implicit"


class View:
    """The state of a solver between two iterations, passed to its callback.

    Attributes
    ----------
    x : DistributedArray or StackedArray
        The current solution. The next iteration overwrites it: copy it to keep it. In GMRES it is computed on access,
        which is collective.
    iteration : int
        Completed iterations.
    state : dataclass
        The state of the method, such as its second variable; also overwritten. If data or operator are very small or
        large, it is the state for both divided by powers of two.

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

    __slots__ = ("_history", "_problem", "iteration", "state")

    def __init__(self, problem: Problem, history: History, iteration: int, state: State) -> None:
        self._problem = problem
        self._history = history
        self.iteration = iteration
        self.state = state

    @property
    def x(self) -> Array:
        """The current solution, which some methods compute on access."""
        return self._problem.solution(self.state.x)

    @property
    def residual_norm(self) -> float:
        """Norm of the residual after this iteration; synchronises with the device."""
        return float(self._problem.residual_norm(self._history.numbers(self.iteration)))


def solver(function: Solver, passed_to: Sequence[Callable[..., Any]] = (Run,)) -> Solver:
    """Decorate a function that passes on ``**`` options to raise TypeError for unknown options itself.

    The message has the name of the function, the most similar option, and all options.
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
def solve(
    method: Method, A: LinearOperator | None, y: Array, x0: Array | None = None, *, parts: Any = (), **options: Any
) -> SolverResult:
    """Run a method until a test or the callback stops it, or `niter` iterations are done. Collective.

    Parameters
    ----------
    method : Method
        With its options.
    A, y, x0
        The problem, whose layouts have been checked; `A` is ``None`` for a method without an operator.
    parts : sequence of object
        Other objects used by a step, or ``None``; each has an attribute ``capturable``.
    **options
        The options of :class:`Run`; ``niter`` is required.

    Returns
    -------
    SolverResult
        Its `x` is ordered on the caller's current stream.

    Raises
    ------
    NotFiniteError
        On every rank, at the first iteration whose numbers are not finite.
    InputError
        On every rank, if the precision cannot hold the solution, or the square of a gradient that is not zero.

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
    compare_copies(y)
    method = method.variant(y)
    if x0 is not None:
        compare_copies(x0)
    if y.engine.traced and run.callback is None and run.checkpoint is None:
        from collops.solvers.compiled import can_be_compiled, solve_compiled

        if can_be_compiled(method, y):
            if y.comm.calls is not None:
                group_of(y).agree("a solver's start", _same_on_all_ranks(method, A, y, x0, run))
            return solve_compiled(method, A, y, x0, run)  # pyright: ignore[reportReturnType]
    if run.lag is not None:
        check_count("lag", run.lag)
    comm = group_of(y)
    original = Problem(method, A, y, x0)
    # The first numbers of most runs show whether the data need a unit. A checkpoint contains numbers in known units.
    measured_later = starts_from_norm(original) and run.checkpoint is None
    exponents = _agreed_start(original, run, comm, measure=not measured_later)
    problem = original.within(data_units(y, exponents))
    parts = [part for part in (A, *parts) if part is not None]
    obstacle = _obstacle(run, y.engine, parts)
    ahead = obstacle is None and run.callback is None and run.checkpoint is None
    size = (y if A is None else A.domain).size // comm.size
    # One row before the first iteration, one after each.
    history = open_history(y.engine, method, run.niter + 1, run.lag, comm, size=size, ahead=ahead)
    with ExitStack() as stack:
        fingerprinted = problem.method, A, problem.y, problem.x0
        checkpoints = open_checkpoints(run, *fingerprinted, parts, history, stack)
        stack.push(lambda kind, *_: history.abandon() if kind is not None else None)
        stack.enter_context(mark(method.name))
        loop = _Loop(original, problem, exponents, run, history, checkpoints, obstacle, comm)
        loop.begin(stack)
        start = time.perf_counter()
        status = loop.run()
        end = time.perf_counter()
    return SolverResult(
        **loop.result(status),
        seconds=end - begin,
        seconds_per_iteration=(end - start) / max(1, loop.iterations - (loop.resumed_from or 0)),
    )


def _agreed_start(problem: Problem, run: Run, comm: Communicator, *, measure: bool) -> list[int]:
    """Return the exponents of data and starting point over all ranks; none without `measure`.

    Collective: one small message.

    Raises InputError on every rank if options that determine the messages or the solution differ between ranks.
    """
    required = _same_on_all_ranks(problem.method, problem.A, problem.y, problem.x0, run)
    exponents = problem.exponents() if measure and problem.method.degrees is not None else ()
    return comm.agree("a solver's start", required, exponents)


def _same_on_all_ranks(
    method: Method, A: LinearOperator | None, y: Array, x0: Array | None, run: Run
) -> dict[str, Any]:
    """Return the options that must be equal on all ranks: they determine the solver's messages, or the solution."""
    options = {option.name: numbers_of_option(getattr(method, option.name)) for option in dataclasses.fields(method)}
    tolerances = {name: getattr(method, name) for name in sorted(method.tolerances)}
    return {
        "method": method.name,
        "niter": run.niter,
        **{name: value for name, value in vars(method).items() if isinstance(value, int)},
        **{name: value for name, value in tolerances.items() if not is_traced(value)},
        **{name: value for name, value in options.items() if value is not None},
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


def _obstacle(run: Run, engine: Engine, parts: Sequence[Any]) -> str | None:
    """Return the reason for launching steps one by one, or ``None`` if they are recorded as a CUDA graph.

    It is the same on every rank. No messages.
    """
    if run.graph not in (True, False, "auto"):
        raise InputError(f"graph must be True, False or 'auto', not {run.graph!r}")
    if not run.graph:
        return ""
    if not on_device(engine):
        reason = "" if run.graph == "auto" else "CUDA graphs need arrays on a device, not on the host"
    elif (obstacle := next((part for part in parts if not part.capturable), None)) is not None:
        reason = f"{type(obstacle).__name__} cannot be captured"
    elif run.graph == "auto" and run.niter < _MIN_TO_RECORD:
        reason = f"{run.niter} iterations are too few to record one"
    else:
        return None
    if run.graph is True:
        raise UnsupportedTypeError(f"graph=True, but {reason}")
    return reason


@dataclasses.dataclass(eq=False)
class _Loop:
    """The iterations of one run, the check of its solution, and their units."""

    original: Problem  # in the units of the caller
    problem: Problem
    exponents: Sequence[int]
    run_options: Run
    history: History
    checkpoints: Checkpoints | None
    obstacle: str | None
    comm: Communicator
    bar: Any = None  # a ProgressBar, or an object with its attributes
    resumed_from: int | None = None
    iterations: int = 0
    measured: bool = False  # whether the operator was outside the ordinary range
    reference: Numbers | None = None  # reference numbers of the tests; None for the first numbers
    verified: Numbers = None  # the numbers computed from the solution
    x: Any = None  # the solution, if it has been computed
    description: str = ""

    def __post_init__(self) -> None:
        self.watches = self.problem.method.degrees is not None and self.problem.A is not None  # for extreme operators

    def begin(self, stack: ExitStack) -> None:
        """Create the first state, or restore it from a checkpoint, and show the progress bar. Collective."""
        run, checkpoints = self.run_options, self.checkpoints
        if checkpoints is not None:
            units = checkpoints.units
            self.problem = self.problem if units is None else self.original.within(units)
            checkpoints.units = self.problem.units
        self.state = self._initial()
        if checkpoints is not None:
            stack.enter_context(checkpoints.signals)
            self.state, self.resumed_from = checkpoints.restore(self.state)
        self.iterations = self.resumed_from or 0
        self.watches = self.watches and self.resumed_from is None
        self.bar = open_progress(run.progress, self.problem.method.name, run.niter, self.problem.y.comm)
        if self.bar is not None:
            stack.enter_context(self.bar.display)
            if checkpoints is not None:
                checkpoints.announce = self.bar.announce

    def run(self) -> Status:
        """Iterate until the solution passes a test, and return the status. Collective."""
        attempts = 0
        while True:
            status = self._attempt(attempts == 0)
            if status is None:
                self._measure()
                continue
            self.watches = False
            status, again = self._judged(status, attempts)
            if not again:
                break
            self._restart()
            attempts += 1
        if self.measured and status.successful and self.iterations == 0:
            first = self.history.numbers(0)
            refuse_false_zero(self.problem, self.problem.method.magnitudes(first, None, self.state))
        if self.checkpoints is not None:
            self.checkpoints.write(self.iterations, self.state)
        self.x = self.state.x if self.x is None else self.x
        return status

    def result(self, status: Status) -> dict[str, Any]:
        """Return fields of the result, in the units of the caller's problem. Collective.

        Raises NotFiniteError, or InputError for a solution outside the range of its precision.
        """
        problem, method = self.problem, self.problem.method
        rows = self.history.rows()[: self.iterations + 1]
        if self.verified is not None:
            rows[-1] = self.verified
        if status is Status.NOT_FINITE:
            suspect = method.suspect(method.numbers(*rows[-1].tolist()), self.iterations)
            raise NotFiniteError(method.name, self.iterations, suspect, problem.solution(self.x))
        numbers = method.numbers(*rows.T)
        return {
            "x": problem.checked_solution(self.x),
            "status": status,
            "iterations": self.iterations,
            "residual_norms": problem.residual_norm(numbers),
            "execution": self.description,
            "resumed_from": self.resumed_from,
            "details": problem.details(method.details(self.state, numbers)),
        }

    def _initial(self) -> State:
        problem = self.problem
        with self._quiet():
            return problem.method.init(problem.A, problem.y, problem.x0)

    def _quiet(self) -> AbstractContextManager[object]:
        """Return a context without NumPy's warnings about numbers that a change of units may correct."""
        return np.errstate(all="ignore") if self.watches else nullcontext()

    def _execution(self) -> Execution:
        problem, obstacle = self.problem, self.obstacle
        if obstacle is None:
            required = self.run_options.graph is True
            return GraphExecution(problem.method, problem.A, self.history, self.comm, required=required)
        return Execution(problem.method, problem.A, self.history, f"eager: {obstacle}" if obstacle else "eager")

    def _attempt(self, first: bool) -> Status | None:
        """Iterate until a test passes; return the status, or ``None`` if data or operator need other units."""
        with self._execution() as execution:
            if self.history.count == 0:
                self.history.record(self.state)
            if first and self.problem.x0 is not None:
                self.reference = self._reference()
            status = self._iterate(execution)
            if status is not None:
                self.history.return_to(self.iterations, self.state)
        self.description = execution.description
        return status

    def _judged(self, status: Status, attempts: int) -> tuple[Status, bool]:
        """Check the solution; return its status, and whether to restart from it. Collective."""
        method = self.problem.method
        checked = status.successful or method.always_measured
        if not self.run_options.verify or status is Status.NOT_FINITE or not checked:
            return status, False
        status, again = self._verified(status)
        if again and self.iterations == self.run_options.niter:
            return Status.ITERATION_LIMIT, False
        if again and (attempts == MAX_RESTARTS or not method.restarts(self.state)):
            return Status.STAGNATED, False
        return status, again

    def _restart(self) -> None:
        """Restart from the current solution, whose computed numbers replace the last row. Collective."""
        problem = self.problem
        self.state, self.x = problem.method.restarted(problem.A, problem.y, self.x, self.state), None
        self.history.restore(np.vstack([self.history.rows()[: self.iterations], self.verified]))
        self.verified = None

    def _measure(self) -> None:
        """Restart in units near the size of the data, or near the sizes of data and operator. Collective."""
        units = None
        if not self.exponents:
            name = self.original.method.name
            self.exponents = self.comm.agree("the size of the data", name, self.original.exponents())
            units = data_units(self.original.y, self.exponents)
        if units is None or units.trivial:
            units = measured_units(self.original, self.exponents)
            self.watches, self.measured = False, units is not None
        self.problem = self.problem if units is None else self.original.within(units)
        if self.checkpoints is not None:
            self.checkpoints.units = self.problem.units
        self.history.restore(self.history.rows()[:0])
        self.state, self.iterations, self.reference = self._initial(), 0, None

    def _reference(self) -> Numbers | None:
        """Return the reference numbers of the tests if there is a starting point. Collective.

        Krylov methods use the numbers at zero, unless the data are zero.
        """
        problem, first = self.problem, self.history.numbers(0)
        measured = problem.method.recomputed(problem.A, problem.y, None, problem.x0, self.state, first)
        if measured is None:
            return None
        return problem.method.numbers(*(float(number) or begin for number, begin in zip(measured, first, strict=True)))

    def _iterate(self, execution: Execution) -> Status | None:
        """Run iterations until a test passes or the limit is reached, and return the status.

        It is ``None`` if the first numbers show that data or operator are outside the ordinary range.
        """
        run, history, method = self.run_options, self.history, self.problem.method
        begin, first, iteration = self.reference, self.iterations, self.iterations
        checked, stopped = 0, False
        while True:
            # Every rank checks the same rows at the same iteration, so that all of them stop together.
            for number in range(checked, history.count - (0 if iteration == run.niter else history.lag)):
                now = history.numbers(number)
                if number < 2 and self.watches and self._shows_extremes(number, now):
                    return None
                if run.callback is not None and number > first:
                    stopped = _is_true(run.callback(number, View(self.problem, history, number, self.state)))
                begin = begin or (now if number == 0 else history.numbers(0))
                checked = number + 1
                status = method.status(now, begin)
                if status is not None and (not stopped or status is Status.NOT_FINITE):
                    self.iterations = max(number, first)
                    return status
            self.iterations = iteration
            if stopped or iteration == run.niter:
                return Status.STOPPED if stopped else Status.ITERATION_LIMIT
            if self.checkpoints is not None and iteration > first:
                self.checkpoints.after(iteration, self.state)
            if iteration == 0:
                with self._quiet():
                    self.state = execution.advance(self.state, run.niter - iteration)
            else:  # entering a context takes a noticeable part of a short step
                self.state = execution.advance(self.state, run.niter - iteration)
            iteration = history.count - 1
            if self.bar is not None and (self.bar.due or iteration == run.niter):
                known = checked and float(self.problem.residual_norm(history.numbers(checked - 1)))
                self.bar.update(iteration, known if checked else None)

    def _shows_extremes(self, number: int, now: Numbers) -> bool:
        method, before = self.problem.method, None if number == 0 else self.history.numbers(0)
        if not self.exponents and number == 0 and not is_ordinary_norm(self.problem, method.residual_norm(now)):
            return True
        return out_of_range(method.magnitudes(now, before, self.state), self.problem.dtype)

    def _verified(self, status: Status) -> tuple[Status, bool]:
        """Compute the numbers of the solution; return its status, and whether a test fails. Collective."""
        problem, method, state, history = self.problem, self.problem.method, self.state, self.history
        A, y, iteration = problem.A, problem.y, self.iterations
        x = self.x = state.x  # computed on access by some methods
        self.reference = self.reference or history.numbers(0)
        measured = method.recomputed(A, y, x, problem.x0, state, history.numbers(iteration))
        if measured is None:
            self.verified = None
            return status, False
        measured = self.verified = method.numbers(*map(float, measured))
        decided = method.status(measured, self.reference)
        if status is not Status.STOPPED and decided and (decided.successful or decided is Status.NOT_FINITE):
            return decided, False
        if not status.successful:
            return status, False
        rows = method.numbers(*history.rows()[: iteration + 1].T)
        for explained, verdict in zip(method.at_rounding(A, y, x, measured, rows), ROUNDING, strict=True):
            if explained:
                return verdict, False
        return status, True


def _is_true(value: object) -> bool:
    """Return whether the result of a callback is true: a boolean, or an array without axes of any engine."""
    is_boolean = getattr(value, "dtype", None) == np.bool_ and getattr(value, "shape", None) == ()
    return (isinstance(value, bool) or is_boolean) and bool(value)


class ProgressBar:
    """A progress bar of `total` iterations with the norm of the residual, inside its context `display`."""

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
        self._task = self.display.add_task(name, total=total, residual="")
        self._next = 0.0

    def announce(self, text: str) -> None:
        """Show a line above the bar."""
        self.display.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @property
    def due(self) -> bool:
        """Whether an update is due."""
        return time.monotonic() >= self._next

    def update(self, iteration: int, residual_norm: float | None) -> None:
        """Show an iteration."""
        shown = "" if residual_norm is None else f"{residual_norm:.3e}"
        self.display.update(self._task, completed=iteration, residual=shown)
        self._next = time.monotonic() + _SECONDS_BETWEEN_UPDATES


def open_progress(progress: bool | Callable[[str, int], Any] | None, name: str, total: int, comm: Communicator) -> Any:
    """Return a progress bar; ``None`` on ranks other than 0, and by default unless standard error is a terminal."""
    if comm.rank != 0 or progress is False or (progress is None and not (sys.stderr and sys.stderr.isatty())):
        return None
    return progress(name, total) if callable(progress) else ProgressBar(name, total)
