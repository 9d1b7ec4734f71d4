"""Checkpoints of a solver: its state, its numbers and a fingerprint of the problem, written while it runs.

A checkpoint is written after a number of iterations or seconds, and when a signal requests a stop. A signal may reach
one rank only, and clocks differ, but all ranks must write after the same iteration. They synchronise by a small
allreduce about twice a second, after an iteration determined by the previous allreduce, or after each iteration if
iterations take longer. The reductions of an iteration could carry this information without a message, but every method
would have to include it, and the host would synchronise with the device in every iteration.

The fingerprint holds the method, its options, and a few numbers of data and operator, which are equal to rounding in
every layout, on every engine and on any number of ranks.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.array import Array, DistributedArray, Layout, StackedArray, dots, random, where, zeros_like
from collops.backend import Engine
from collops.comm import Communicator
from collops.errors import CheckpointError, InputError, Interrupted
from collops.limits import in_words
from collops.operators import LinearOperator
from collops.operators.base import AnyLayout
from collops.profile import mark
from collops.solvers.checkpoint_folder import CheckpointFolder
from collops.solvers.components import components
from collops.solvers.history import History
from collops.solvers.method import Method
from collops.solvers.problem import consistent, mask_of, real_dtype, working_dtype
from collops.solvers.result import Status
from collops.solvers.scaling import Units
from collops.solvers.state import Scalar, State, carried, copied, is_array, with_carried

if TYPE_CHECKING:
    from collops.solvers.driver import Run

__all__ = ["Every"]

Path = str | PathLike[str]

_FORMAT = 3
_LABEL = "checkpoint"
_STORED = "stored"
_ANNOUNCED_BYTES, _ANNOUNCED_SECONDS = 100_000_000, 1.0  # smaller and faster checkpoints are not announced


class _Memory(NamedTuple):
    """An attribute that an object of the problem keeps between iterations outside the state."""

    key: str  # in a checkpoint
    owner: object
    name: str
    layout: AnyLayout | None  # layout of an array, which may not exist yet; None for a number


@dataclass(eq=False)
class Checkpoints:
    """The checkpoints of one run; `signals` is a context that records the signals to stop.

    `units` belong to the state in the checkpoint to resume from, and to the states to write.
    """

    folder: CheckpointFolder
    record: dict[str, Any] | None  # of the checkpoint to resume from
    every: Every
    method: Method
    problem: dict[str, Any]  # its fingerprint
    parts: Sequence[object]  # operators and other objects used by a step
    history: History
    niter: int
    comm: Communicator
    engine: Engine

    def __post_init__(self) -> None:
        parts = enumerate(self.parts)
        self._memories = [memory for number, part in parts for memory in _memories_within(str(number), part)]
        self.signals = Signals()
        units = (self.record or {}).get("units")
        self.units = None if units is None else Units(*(tuple(u) if isinstance(u, list) else u for u in units))
        self.announce: Callable[[str], None] | None = None  # prints a line before a long write
        self._written, self._known_good, self._seconds = -1, 0, 0.0

    def restore(self, state: State) -> tuple[State, int | None]:
        """Restore the state, created by ``init``, and the history from the checkpoint. Collective.

        Returns the state and its number of iterations, ``None`` without a checkpoint to resume from.
        Raises CheckpointError if the checkpoint is damaged or belongs to another problem.
        """
        record = self.record
        iteration = 0 if record is None else int(record["iteration"])
        self._timer = Timer(self.every, self.signals, self.comm, iteration)
        size = sum(value.nbytes for value in carried(state).values() if _is_stored(value))
        self.folder.check_space(size * (2 if record is None else 1))  # the previous checkpoint is removed last
        if record is None:
            return state, None
        self.comm.check(self._objection(record, state))
        values = {}
        for name, value in carried(state).items():
            if _is_stored(value):
                stored = self.folder.read(iteration, f"state/{name}", value.layout, value.engine)
                # Inner products of stacks round differently if the stack is in one block of memory.
                in_block = getattr(value, "_block", None) is not None
                values[name] = copied(value.layout, stored, stored.dtype) if in_block else stored
            else:
                values[name] = _decoded(record["numbers"][name], value, self.engine)
        state = with_carried(state, values)
        for key, owner, name, layout in self._memories:
            known = record["memories"].get(key)
            if known == _STORED:
                known = self.folder.read(iteration, f"memories/{key}", layout, self.engine)
            setattr(owner, name, known)
        layout = Layout.replicated((iteration + 1, len(self.method.numbers._fields)), self.comm.size)
        self.history.restore(self.folder.read(iteration, "rows", layout, "numpy").local_array)
        self._written = self._known_good = iteration
        return state, iteration

    def after(self, iteration: int, state: State) -> None:
        """Write a checkpoint if one is due, or a signal has been received. Collective.

        Raises Interrupted if any rank has received a signal.
        """
        due, signal = self._timer.after(iteration)
        if due or signal:
            with mark(_LABEL):
                self.write(iteration, state, announced=bool(signal))
        if signal:
            raise Interrupted(self.folder.path, iteration, signal)

    def write(self, iteration: int, state: State, announced: bool = False) -> None:
        """Write a checkpoint of an iteration, unless it exists, or its numbers are not finite. Collective.

        It is announced if it may take long, or if `announced` is true.
        """
        if iteration == self._written:
            return
        rows = self.history.rows()
        first = self.method.numbers(*rows[0].tolist())
        for row in rows[self._known_good :].tolist():
            if self.method.status(self.method.numbers(*row), first) is Status.NOT_FINITE:
                return
        self._known_good = iteration
        values = carried(state)
        remembered = {key: (getattr(owner, name), layout) for key, owner, name, layout in self._memories}
        arrays = {key: value for key, (value, layout) in remembered.items() if layout is not None and value is not None}
        stored: dict[str, Any] = {
            "state": {name: value for name, value in values.items() if _is_stored(value)},
            "rows": DistributedArray(Layout.replicated(rows.shape, self.comm.size), self.comm, rows),
            **({"memories": arrays} if arrays else {}),
        }
        record = {
            "format": _FORMAT,
            "iteration": iteration,
            "problem": self.problem,
            "numbers": {name: _encoded(value, self.engine) for name, value in values.items() if not _is_stored(value)},
            "memories": {key: _STORED if key in arrays else value for key, (value, _) in remembered.items()},
            "ranks": self.comm.size,
            "units": None if self.units is None else [self.units.data, self.units.operator, self.units.columns],
        }
        size = _size_of(stored)
        if self.announce and (announced or size > _ANNOUNCED_BYTES or self._seconds > _ANNOUNCED_SECONDS):
            self.announce(f"writing a checkpoint to {self.folder.path} ({in_words(size)})")
        begin = time.monotonic()
        self.folder.write(iteration, stored, record)
        self._written, self._seconds = iteration, time.monotonic() - begin

    def _objection(self, record: dict[str, Any], state: State) -> CheckpointError | None:
        """Return the reason why a checkpoint cannot be resumed, or ``None``."""
        iteration, reason = record["iteration"], None
        if record["format"] != _FORMAT:
            reason = f"it has the format {record['format']} of another version of collops"
        elif (change := difference(record["problem"], self.problem, iteration)) is not None:
            reason = change
        elif iteration > self.niter:
            reason = f"it is at iteration {iteration}, beyond niter={self.niter}"
        elif set(record["numbers"]) != {name for name, value in carried(state).items() if not _is_stored(value)}:
            reason = "its state has other fields"
        return None if reason is None else CheckpointError(f"{self.folder.path} cannot be resumed from: {reason}")


def open_checkpoints(
    run: Run,
    method: Method,
    operator: LinearOperator | None,
    data: Array,
    x0: Array | None,
    parts: Sequence[object],
    history: History,
    stack: ExitStack,
) -> Checkpoints | None:
    """Return the checkpoints of a run, or ``None`` if its options name no folder. Collective with one.

    The folder is locked until the end of `stack`.
    """
    path = run.checkpoint
    if path is None:
        if run.every is not None or run.resume:
            raise InputError(f"{'resume' if run.resume else 'every'} needs checkpoint, the folder of the checkpoints")
        return None
    if not isinstance(path, str | PathLike) or not fspath(path):
        raise InputError(f"checkpoint must be the path of a folder, not {path!r}")
    interval = Every.parse(run.every)
    if mask_of(data) is not None:
        raise InputError("groups of ranks with separate problems cannot share a checkpoint: split the communicator")
    folder = CheckpointFolder(fspath(path), data.comm)
    stack.push(folder.close)
    with mark(_LABEL):
        record = folder.begin(bool(run.resume))
        problem = fingerprint(method, operator, data, x0)
    return Checkpoints(folder, record, interval, method, problem, parts, history, run.niter, data.comm, data.engine)


def _size_of(stored: Mapping[str, Any] | Array) -> int:
    """Return the bytes of arrays in nested dictionaries."""
    if isinstance(stored, Mapping):
        return sum(map(_size_of, stored.values()))
    return stored.nbytes


def _is_stored(value: object) -> bool:
    return isinstance(value, DistributedArray | StackedArray)


def _encoded(value: Scalar, engine: Engine) -> float | dict[str, Any]:
    """Encode a number, or a small replicated array, exactly in JSON."""
    if not is_array(value):
        return value
    host = engine.to_host(value)
    return {"dtype": host.dtype.str, "shape": list(host.shape), "bytes": host.tobytes().hex()}


def _decoded(text: float | dict[str, Any], like: Scalar, engine: Engine) -> Scalar:
    """Return an encoded number in the form of `like`."""
    if not isinstance(text, dict):
        return text
    number = np.frombuffer(bytes.fromhex(text["bytes"]), text["dtype"]).reshape(text["shape"]).copy()
    if isinstance(like, np.ndarray | np.generic):
        return number[()] if isinstance(like, np.generic) else number
    return engine.from_host(number)


def _memories_within(key: str, part: Any) -> Iterator[_Memory]:
    """Yield the memories of an object of the problem and of its component functions, in a fixed order."""
    if not hasattr(part, "_remembered"):
        return
    for name, layout in part._remembered().items():
        yield _Memory(f"{key}-{name.strip('_')}", part, name, layout)
    for name, value in vars(part).items():
        yield from _memories_within(f"{key}-{name.strip('_')}", value)


# ---- When to write


STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""The signals that batch systems send before they end a job, and Ctrl-C."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DEFAULT_SECONDS = 600.0
_SECONDS_BETWEEN_AGREEMENTS = 0.5


class Every(NamedTuple):
    """Interval between checkpoints: a number of iterations, or seconds."""

    iterations: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, value: int | str | None) -> Every:
        """Parse the interval between checkpoints; see ``every`` of :class:`collops.solvers.Run`."""
        if value is None:
            return cls(seconds=_DEFAULT_SECONDS)
        text = str(value).strip() if isinstance(value, str | int | np.integer) and not isinstance(value, bool) else ""
        if re.fullmatch(r"\d+", text) and int(text) > 0:
            return cls(iterations=int(text))
        time_of = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([smh])", text)
        if time_of and float(time_of[1]) > 0:
            return cls(seconds=float(time_of[1]) * _UNITS[time_of[2]])
        raise InputError(
            f"every must be a positive number of iterations, or a time such as '30s', '10m' or '2h', not {value!r}"
        )


class Signals:
    """A context that records the number of the first of these signals, and restores their handlers at its end.

    The previous handler gets every SIGINT except a first signal: a second Ctrl-C does not wait for a checkpoint.
    Python runs handlers in the main thread only: in other threads, and for signals with a handler outside Python, the
    context has no effect.
    """

    def __init__(self) -> None:
        self.received = 0  # no signal
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                ignored = number == signal.SIGINT and signal.getsignal(number) is signal.SIG_IGN  # in the background
                if signal.getsignal(number) is not None and not ignored:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _note(self, number: int, frame: FrameType | None) -> None:
        before = self._before[signal.Signals(number)]
        if self.received and number == signal.SIGINT and callable(before):
            before(number, frame)
        self.received = self.received or number


class Timer:
    """Decides after each iteration whether the ranks of a solver write a checkpoint, and whether they stop.

    The solver begins after `iteration`; `signals` are those that this rank receives.
    """

    def __init__(self, every: Every, signals: Signals, comm: Communicator, iteration: int) -> None:
        self._every = every
        self._signals = signals
        self._comm = comm
        self._first = iteration
        self._next, self._interval = iteration + 1, 1
        self._start = self._written = time.monotonic()

    def after(self, iteration: int) -> tuple[bool, int]:
        """Return whether to write a checkpoint after an iteration, and a signal to stop, or 0. Collective."""
        counted = self._every.iterations
        due = counted is not None and (iteration - self._first) > 0 and iteration % counted == 0
        if iteration < self._next:
            return due, 0
        now = time.monotonic()
        overdue = self._every.seconds is not None and now - self._written >= self._every.seconds
        pace = (iteration - self._first) / max(now - self._start, 1e-9)
        # At most twice the previous interval, since the first iterations may be faster than later ones.
        interval = min(max(1, int(pace * _SECONDS_BETWEEN_AGREEMENTS)), 2 * self._interval)
        largest = self._comm.allreduce(np.array([self._signals.received, overdue, interval], np.int64), "max")
        received, overdue, self._interval = (int(number) for number in largest)
        self._next = iteration + self._interval
        if overdue:
            self._written = now
        return due or bool(overdue), received


# ---- The fingerprint of a problem


_SEED = 5
_NOT_FINITE = "not finite"


def fingerprint(method: Any, operator: LinearOperator | None, data: Array, x0: Array | None) -> dict[str, Any]:
    """Return the fingerprint of a problem, in a form for JSON. Collective.

    The operator, a preconditioner and the operators in options and proximal functions are applied once, to random
    numbers; a nonlinear problem, which is a part of its method, has a residual at the starting point instead.
    """
    applied = preconditioned = residual = None
    if (nonlinear := getattr(method, "problem", None)) is not None:
        residual = _numbers_of(nonlinear.residual(data))
    if operator is not None:
        probe = _probe(operator, data)
        applied = {"domain": _shapes(operator.domain), **_numbers_of(operator.forward(probe))}
        if getattr(method, "M", None) is not None:
            preconditioned = _numbers_of(method.M.forward(probe))
    return {
        "method": method.name,
        "options": json.loads(json.dumps(_options(method), default=partial(_described, data))),
        "data": _numbers_of(data),
        "start": None if x0 is None else _numbers_of(x0),
        "operator": applied,
        "preconditioner": preconditioned,
        "residual": residual,
    }


def difference(saved: Mapping[str, Any], present: Mapping[str, Any], iteration: int) -> str | None:
    """Describe how two fingerprints differ, or return ``None`` if they belong to the same problem.

    Options with one value for each iteration are compared for the completed iterations only.
    """
    if saved["method"] != present["method"]:
        return f"it is a checkpoint of {saved['method']}, not of {present['method']}"
    name = present["data"]["dtype"]
    if saved["data"]["dtype"] != name:
        return f"its precision is {saved['data']['dtype']}, not {name}"
    tolerance = float(np.sqrt(np.finfo(real_dtype(np.dtype(name))).eps)) if name != "bfloat16" else 1e-2
    parts = {"data": "its data differ", "operator": "its operator differs", "start": "its starting point differs"}
    parts |= {"preconditioner": "its preconditioner differs", "residual": "its residual at the starting point differs"}
    for part, words in parts.items():
        if not _alike_numbers(saved.get(part), present.get(part), tolerance):
            return words
    for option, value in present["options"].items():
        before = saved["options"].get(option)
        if not _alike(before, value, tolerance, iteration):
            return f"its option {option} is {before}, not {value}"
    return None


def _probe(operator: LinearOperator, data: Array) -> Array:
    dtype = working_dtype(operator, data, None)
    return random(operator.domain, seed=_SEED, comm=data.comm, dtype=dtype, engine=data.engine)


def _numbers_of(array: Array) -> dict[str, Any]:
    """Return shape, dtype, norm and a random projection of an array. Collective.

    If elements are infinite or NaN, as in bounds, norm and projection are those of the others, and the kinds of these
    elements have norms and projections of their own: otherwise one of them would conceal all others.
    """
    numbers = {"shapes": _shapes(array.layout), "dtype": array.dtype.name, **_measured(array)}
    if np.isfinite(numbers["norm"]):
        return numbers
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    kinds = [_measured(_kinds(part)) for part in parts]
    return {**numbers, **_measured(where(abs(array) < np.inf, array, 0)), _NOT_FINITE: kinds}


def _measured(array: Array) -> dict[str, Any]:
    """Return the norm and a random projection of an array. Collective."""
    dtype = array.dtype if array.dtype.kind in "fcV" else np.dtype(np.float64)
    other = random(array.layout, seed=_SEED + 1, comm=array.comm, dtype=dtype, engine=array.engine)
    square, projection = dots(*consistent((array, array), (other, array)))
    value = complex(array.engine.to_host(projection))
    norm = float(np.sqrt(abs(complex(array.engine.to_host(square)))))
    return {"norm": norm, "projection": [value.real, value.imag]}


def _kinds(array: Array) -> Array:
    """Return 1 for infinity, -1 for minus infinity, 2 for NaN, and 0 for other numbers."""
    zero = zeros_like(array)
    infinite = where(array >= np.inf, zero + 1, where(array <= -np.inf, zero - 1, zero))
    return where(abs(array) <= np.inf, infinite, zero + 2)


def _shapes(layout: Any) -> list[list[int]]:
    return [list(leaf.shape) for leaf in getattr(layout, "leaves", (layout,))]


def _alike_numbers(saved: Mapping[str, Any] | None, present: Mapping[str, Any] | None, tolerance: float) -> bool:
    if saved is None or present is None:
        return saved is present
    if saved["shapes"] != present["shapes"] or saved.get("domain") != present.get("domain"):
        return False
    kinds = saved.get(_NOT_FINITE, []), present.get(_NOT_FINITE, [])
    if len(kinds[0]) != len(kinds[1]):
        return False
    pairs = [(saved, present), *zip(*kinds, strict=True)]
    return all(_same_measures(before, now, tolerance) for before, now in pairs)


def _same_measures(saved: Mapping[str, Any], present: Mapping[str, Any], tolerance: float) -> bool:
    limit = 4 * tolerance * max(saved["norm"], present["norm"])
    numbers = zip([saved["norm"], *saved["projection"]], [present["norm"], *present["projection"]], strict=True)
    return all(_near(before, now, limit) for before, now in numbers)


def _near(before: float, now: float, limit: float) -> bool:
    """Return whether two numbers, which may be infinite, differ by at most a limit."""
    return before == now or abs(before - now) <= limit < np.inf


def _options(method: object) -> dict[str, Any]:
    """Return the options that determine the iterates. The fingerprint has the preconditioner elsewhere."""
    if not dataclasses.is_dataclass(method):
        return {}
    others = {"M", *getattr(method, "tolerances", ())}
    names = [field.name for field in dataclasses.fields(method) if field.name not in others]
    return {name: getattr(method, name) for name in names}


def _described(data: Array, value: Any) -> object:
    """Return a representation in JSON of an option, with numbers of arrays and of the images of operators. Collective.

    Operators are applied to random numbers on the engine of `data`.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, complex):
        return [value.real, value.imag]
    if isinstance(value, LinearOperator):
        image = value.forward(_probe(value, data))
        return {"type": type(value).__name__, "domain": _shapes(value.domain), **_numbers_of(image)}
    if hasattr(value, "leaves"):
        return _numbers_of(value)
    if dataclasses.is_dataclass(value):
        return _options(value)
    return {"type": type(value).__name__, **components(value)}


def _alike(saved: object, present: object, tolerance: float, iteration: int) -> bool:
    if isinstance(present, bool | str | None) or isinstance(saved, bool | str | None):
        return saved == present
    if isinstance(present, int | float) and isinstance(saved, int | float):
        return _near(saved, present, tolerance * max(abs(saved), abs(present)))
    if isinstance(present, Mapping) and isinstance(saved, Mapping):
        if "projection" in present and "projection" in saved:
            return saved.get("type") == present.get("type") and _alike_numbers(saved, present, tolerance)
        return saved.keys() == present.keys() and all(
            _alike(saved[name], present[name], tolerance, iteration) for name in present
        )
    if isinstance(present, list) and isinstance(saved, list):
        shorter = min(len(saved), len(present))
        used = zip(saved[:iteration], present[:iteration], strict=False)
        complete = len(saved) == len(present) or shorter >= iteration
        return complete and all(_alike(before, now, tolerance, iteration) for before, now in used)
    return False
