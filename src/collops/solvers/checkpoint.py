"""Checkpoints of a solver: its state, its numbers and a fingerprint of the problem, written while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from types import TracebackType
from typing import Any

import numpy as np

from collops.array import DistributedArray, Layout, StackedArray
from collops.backend import Engine
from collops.comm import Communicator
from collops.errors import CheckpointError, InputError, Interrupted
from collops.profile import mark
from collops.solvers.agenda import Agenda, Every, Signals
from collops.solvers.checkpoint_folder import CheckpointFolder
from collops.solvers.fingerprint import difference, fingerprint
from collops.solvers.history import History
from collops.solvers.method import Method
from collops.solvers.result import Status
from collops.solvers.state import carried, is_array, with_carried

__all__ = ["Checkpoints", "Path", "open_checkpoints"]

Path = str | PathLike[str]

_FORMAT = 2
_LABEL = "checkpoint"
_STORED = "stored"


@dataclass(frozen=True)
class _Memory:
    """An attribute that a part of a problem keeps between iterations outside the state, such as a starting point."""

    key: str  # in a checkpoint
    owner: Any
    name: str
    layout: Any  # of an array, which may still be missing; None for a number

    @property
    def value(self) -> Any:
        """The attribute's value."""
        return getattr(self.owner, self.name)

    def put(self, value: Any) -> None:
        """Set the attribute."""
        setattr(self.owner, self.name, value)


@dataclass(eq=False)
class Checkpoints:
    """The checkpoints of one run; a context that records signals which ask to stop."""

    folder: CheckpointFolder
    found: dict[str, Any] | None  # the record of the checkpoint to resume from
    every: Every
    method: Method
    problem: dict[str, Any]  # its fingerprint
    parts: Sequence[Any]  # operators and other objects that take part in a step
    history: History
    niter: int
    comm: Communicator
    engine: Engine

    def __post_init__(self) -> None:
        self._memories = list(_memories_of(self.parts))
        self._signals = Signals()
        self._agenda: Agenda | None = None
        self._written = -1
        self._known_good = 0

    def __enter__(self) -> Checkpoints:
        self._signals.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the handlers of the signals."""
        self._signals.__exit__(kind, error, trace)

    def restore(self, state: Any) -> tuple[Any, int | None]:
        """Bring the history to where the checkpoint is. Collective.

        Parameters
        ----------
        state : dataclass
            Made by ``init``.

        Returns
        -------
        state : dataclass
            With the arrays and numbers of the checkpoint.
        iteration : int or None
            Iterations done; ``None`` where there is no checkpoint to resume from.

        Raises
        ------
        CheckpointError
            If the checkpoint is damaged, or that of another problem.
        """
        record = self.found
        iteration = 0 if record is None else int(record["iteration"])
        self._agenda = Agenda(self.every, self._signals, self.comm, iteration)
        if record is None:
            return state, None
        self.comm.check(self._objection(record, state))
        values = {}
        for name, value in carried(state).items():
            if _is_stored(value):
                values[name] = self.folder.read(iteration, f"state/{name}", value.layout, value.engine)
            else:
                values[name] = _decoded(record["numbers"][name], value, self.engine)
        state = with_carried(state, values)
        for memory in self._memories:
            known = record["memories"].get(memory.key)
            if known == _STORED:
                known = self.folder.read(iteration, f"memories/{memory.key}", memory.layout, self.engine)
            memory.put(known)
        layout = Layout.replicated((iteration + 1, len(self.method.numbers._fields)), self.comm.size)
        self.history.restore(self.folder.read(iteration, "rows", layout, "numpy").local_array)
        self._written = self._known_good = iteration
        return state, iteration

    def after(self, iteration: int, state: Any) -> None:
        """Write a checkpoint if one is due, or a signal has been received. Collective.

        Raises
        ------
        Interrupted
            On every rank, if any has received a signal.
        CheckpointError
            On every rank, if some rank cannot write.
        """
        assert self._agenda is not None
        due, signal = self._agenda.after(iteration)
        if due or signal:
            with mark(_LABEL):
                self.write(iteration, state)
        if signal:
            raise Interrupted(self.folder.path, iteration, signal)

    def write(self, iteration: int, state: Any) -> None:
        """Write a checkpoint of an iteration, unless it exists, or its numbers are not finite. Collective."""
        if iteration == self._written:
            return
        rows = self.history.rows()
        first = self.method.numbers(*rows[0].tolist())
        for row in rows[self._known_good :].tolist():
            if self.method.status(self.method.numbers(*row), first) is Status.NOT_FINITE:
                return
        self._known_good = iteration
        values = carried(state)
        arrays = {name: value for name, value in values.items() if _is_stored(value)}
        numbers = {name: _encoded(value, self.engine) for name, value in values.items() if name not in arrays}
        record = {
            "format": _FORMAT,
            "iteration": iteration,
            "problem": self.problem,
            "numbers": numbers,
            "memories": {
                memory.key: memory.value if memory.layout is None or memory.value is None else _STORED
                for memory in self._memories
            },
            "ranks": self.comm.size,
        }
        layout = Layout.replicated(rows.shape, self.comm.size)
        stored: dict[str, Any] = {"state": arrays, "rows": DistributedArray(layout, self.comm, rows)}
        remembered = {memory.key: memory.value for memory in self._memories if memory.layout is not None}
        remembered = {key: value for key, value in remembered.items() if value is not None}
        if remembered:
            stored["memories"] = remembered
        self.folder.write(iteration, stored, record)
        self._written = iteration

    def _objection(self, record: dict[str, Any], state: Any) -> CheckpointError | None:
        """Return why a checkpoint cannot be resumed from, if so."""
        iteration, reason = record["iteration"], None
        if record["format"] != _FORMAT:
            reason = f"it has the format {record['format']} of another version of collops"
        elif (found := difference(record["problem"], self.problem, iteration)) is not None:
            reason = found
        elif iteration > self.niter:
            reason = f"it is at iteration {iteration}, beyond niter={self.niter}"
        elif set(record["numbers"]) != {name for name, value in carried(state).items() if not _is_stored(value)}:
            reason = "its state has other fields"
        return None if reason is None else CheckpointError(f"{self.folder.path} cannot be resumed from: {reason}")


def open_checkpoints(
    path: Path | None,
    every: Any,
    resume: bool,
    method: Method,
    operator: Any,
    data: Any,
    x0: Any,
    parts: Sequence[Any],
    history: History,
    niter: int,
) -> Checkpoints | None:
    """Return the checkpoints of a run with these arguments, or ``None`` without a path. Collective with one.

    Raises
    ------
    InputError
        If an option is invalid.
    CheckpointError
        If checkpoints cannot be written there.
    """
    if path is None:
        if every is not None or resume:
            raise InputError(f"{'resume' if resume else 'every'} needs checkpoint, the folder of the checkpoints")
        return None
    if not isinstance(path, str | PathLike) or not fspath(path):
        raise InputError(f"checkpoint must be the path of a folder, not {path!r}")
    chosen = Every.of(every)
    leaves = data.layout.leaves if isinstance(data, StackedArray) else (data.layout,)
    if any(leaf.mask is not None for leaf in leaves):
        raise InputError("groups of ranks with problems of their own have no common checkpoint: split the communicator")
    folder = CheckpointFolder(fspath(path), data.comm)
    with mark(_LABEL):
        found = folder.begin(bool(resume))
        problem = fingerprint(method, operator, data, x0)
    return Checkpoints(folder, found, chosen, method, problem, parts, history, niter, data.comm, data.engine)


def _is_stored(value: Any) -> bool:
    return isinstance(value, DistributedArray | StackedArray)


def _encoded(value: Any, engine: Engine) -> Any:
    """Return a number, or a small array that all ranks have, as JSON can hold it to the last bit."""
    if not is_array(value):
        return value
    host = engine.to_host(value)
    return {"dtype": host.dtype.str, "shape": list(host.shape), "bytes": host.tobytes().hex()}


def _decoded(text: Any, like: Any, engine: Engine) -> Any:
    """Return an encoded number in the form of `like`."""
    if not isinstance(text, dict):
        return text
    number = np.frombuffer(bytes.fromhex(text["bytes"]), text["dtype"]).reshape(text["shape"]).copy()
    return number[()] if isinstance(like, np.generic) else engine.from_host(number)


def _memories_of(parts: Sequence[Any]) -> Iterator[_Memory]:
    """Yield the memories of the parts of a problem, and of the functions that they are made of, always in one order.

    A part with a method ``_remembered`` returns by it the names of these attributes, with their layouts.
    """
    for number, part in enumerate(parts):
        if hasattr(part, "_remembered"):
            yield from _memories_within(str(number), part)


def _memories_within(key: str, part: Any) -> Iterator[_Memory]:
    remembered: Mapping[str, Any] = part._remembered()
    for name, layout in remembered.items():
        yield _Memory(f"{key}-{name.strip('_')}", part, name, layout)
    for name, value in vars(part).items():
        if hasattr(value, "_remembered"):
            yield from _memories_within(f"{key}-{name.strip('_')}", value)
