"""Checkpoints of a solver: its state, its numbers and the problem they belong to, written as it runs and read again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike, fspath
from types import TracebackType
from typing import Any

import numpy as np

from collops.array import DistributedArray, Layout, StackedArray
from collops.backend import Engine
from collops.errors import CheckpointError, InputError, Interrupted
from collops.profile import mark
from collops.solvers.agenda import Agenda, Every
from collops.solvers.checkpoint_folder import CheckpointFolder
from collops.solvers.fingerprint import difference, fingerprint
from collops.solvers.history import History
from collops.solvers.memories import Memory, memories_of
from collops.solvers.method import Method
from collops.solvers.result import Status
from collops.solvers.signals import Signals
from collops.solvers.state import is_array, kept_fields

__all__ = ["Checkpoints", "Path", "open_checkpoints"]

Path = str | PathLike[str]

_FORMAT = 1
_LABEL = "checkpoint"
_STORED = "stored"


class Checkpoints:
    """The checkpoints of one run; a context, in which signals that ask for the end are noted.

    Parameters
    ----------
    folder : CheckpointFolder
        Where they are.
    found : dict, optional
        What is known of the one to go on from.
    every : Every
        How often one is written.
    method, problem
        What is run, and the fingerprint of what it is run on.
    memories : sequence of Memory
        What its functions keep.
    history : History
        The numbers of the iterations.
    niter : int
        Largest number of iterations.
    like : DistributedArray or StackedArray
        An array of the problem: its ranks and engine.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        found: dict[str, Any] | None,
        every: Every,
        method: Method,
        problem: dict[str, Any],
        memories: Sequence[Memory],
        history: History,
        niter: int,
        like: Any,
    ) -> None:
        self._folder = folder
        self._found = found
        self._every = every
        self._method = method
        self._problem = problem
        self._memories = memories
        self._history = history
        self._niter = niter
        self._comm = like.comm
        self._engine: Engine = like.engine
        self._signals = Signals()
        self._contexts = ExitStack()
        self._agenda: Agenda | None = None
        self._written = -1
        self._known_good = 0

    def __enter__(self) -> Checkpoints:
        self._contexts.enter_context(self._signals)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back to whoever had them."""
        self._contexts.close()

    def restore(self, state: Any) -> int | None:
        """Bring a state that was made by ``init``, and the history, to where the checkpoint is. Collective.

        Returns
        -------
        int or None
            Iterations done; ``None`` where there is no checkpoint to go on from.

        Raises
        ------
        CheckpointError
            If the checkpoint is damaged, or that of another problem.
        """
        record = self._found
        iteration = 0 if record is None else int(record["iteration"])
        self._agenda = Agenda(self._every, self._signals, self._comm, iteration)
        if record is None:
            return None
        self._comm.check(self._objection(record, state))
        for name, value in kept_fields(state):
            if isinstance(value, DistributedArray | StackedArray):
                found = self._folder.read(iteration, f"state/{name}", value.layout, value.engine)
                for leaf, source in zip(value.leaves, found.leaves, strict=True):
                    leaf.local_array[...] = source.local_array
            else:
                _set_number(state, name, value, _decoded(record["numbers"][name]), self._engine)
        for memory in self._memories:
            known = record["memories"].get(memory.key)
            if known == _STORED:
                known = self._folder.read(iteration, f"memories/{memory.key}", memory.layout, self._engine)
            memory.put(known)
        layout = Layout.replicated((iteration + 1, self._method.width), self._comm.size)
        rows = self._folder.read(iteration, "rows", layout, "numpy").local_array
        # Where the numbers of an iteration come with the next one, those of the last are still to come.
        self._history.restore(rows[:iteration] if self._method.late(state) else rows)
        self._written = self._known_good = iteration
        return iteration

    def after(self, iteration: int, state: Any) -> None:
        """Write a checkpoint if it is time for one, or a signal has come. Collective.

        Raises
        ------
        Interrupted
            On every rank, if a signal has come to any.
        CheckpointError
            On every rank, if some rank cannot write.
        """
        assert self._agenda is not None
        due, signal = self._agenda.after(iteration)
        if due or signal:
            with mark(_LABEL):
                self.write(iteration, state)
        if signal:
            raise Interrupted(self._folder.path, iteration, signal)

    def write(self, iteration: int, state: Any) -> None:
        """Write a checkpoint of an iteration, unless it is there, or its numbers are not finite. Collective."""
        if iteration == self._written:
            return
        rows = self._history.rows()
        if self._method.late(state):
            last = self._method.monitor(self._method.finalize(state))
            rows = np.concatenate([rows, [[float(self._engine.to_host(number)) for number in last]]])
        first = rows[0].tolist()
        for row in rows[self._known_good :].tolist():
            if self._method.verdict(row, first) is Status.NOT_FINITE:
                return
        self._known_good = iteration
        kept = list(kept_fields(state))
        arrays = {name: value for name, value in kept if isinstance(value, DistributedArray | StackedArray)}
        numbers = {name: _encoded(value, self._engine) for name, value in kept if name not in arrays}
        record = {
            "format": _FORMAT,
            "iteration": iteration,
            "problem": self._problem,
            "numbers": numbers,
            "memories": {
                memory.key: memory.value if memory.layout is None or memory.value is None else _STORED
                for memory in self._memories
            },
            "ranks": self._comm.size,
        }
        layout = Layout.replicated(rows.shape, self._comm.size)
        stored: dict[str, Any] = {"state": arrays, "rows": DistributedArray(layout, self._comm, rows)}
        remembered = {memory.key: memory.value for memory in self._memories if memory.layout is not None}
        remembered = {key: value for key, value in remembered.items() if value is not None}
        if remembered:
            stored["memories"] = remembered
        self._folder.write(iteration, stored, record)
        self._written = iteration

    def _objection(self, record: dict[str, Any], state: Any) -> CheckpointError | None:
        """Return why a checkpoint cannot be gone on from, if so."""
        iteration, reason = record["iteration"], None
        if record["format"] != _FORMAT:
            reason = f"it has the format {record['format']} of another version of collops"
        elif (found := difference(record["problem"], self._problem, iteration)) is not None:
            reason = found
        elif iteration > self._niter:
            reason = f"it is at iteration {iteration}, beyond niter={self._niter}"
        elif set(record["numbers"]) != {
            name for name, value in kept_fields(state) if not isinstance(value, DistributedArray | StackedArray)
        }:
            reason = "its state has other fields"
        return None if reason is None else CheckpointError(f"{self._folder.path} cannot be gone on from: {reason}")


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
    """Return the checkpoints of a run, or ``None`` if there are to be none. Collective in the former case.

    Parameters
    ----------
    path, every, resume
        See :func:`collops.solvers.cgls`.
    method, operator, data, x0, parts, history, niter
        Of the driver.

    Raises
    ------
    InputError
        If an option makes no sense.
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
    return Checkpoints(folder, found, chosen, method, problem, list(memories_of(parts)), history, niter, data)


def _encoded(value: Any, engine: Engine) -> Any:
    """Return a number, or a small array that all ranks have, as JSON can hold it to the last bit."""
    if not is_array(value):
        return value
    host = engine.to_host(value)
    return {"dtype": host.dtype.str, "shape": list(host.shape), "bytes": host.tobytes().hex()}


def _decoded(text: Any) -> Any:
    if not isinstance(text, dict):
        return text
    return np.frombuffer(bytes.fromhex(text["bytes"]), text["dtype"]).reshape(text["shape"])


def _set_number(state: Any, name: str, value: Any, number: Any, engine: Engine) -> None:
    """Put a number where a state has one: into its memory, where it has some."""
    if isinstance(value, np.generic):
        setattr(state, name, number[()])
    elif is_array(value):
        value[...] = engine.from_host(number)
    else:
        setattr(state, name, number)
