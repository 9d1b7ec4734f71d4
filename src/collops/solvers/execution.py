"""Execution of the steps of a method: launched one by one, or recorded once as a CUDA graph and replayed.

With a graph the solver's work runs on a separate stream, which is synchronised with the caller's stream at the start
and at the end. The first step is launched as usual, so that operators can initialise themselves at their first call;
the second is recorded. Memory that a recorded step allocates comes from a pool that no other code uses during the
lifetime of the graph.

Between two graphs the device idles for a few microseconds. In long runs a second graph holds a group of steps, each
reading the results of the previous step; it is replayed while enough iterations remain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from collops.backend import LocalArray
from collops.comm import Communicator
from collops.errors import CollopsError, UnsupportedTypeError
from collops.operators import LinearOperator
from collops.profile import Message, MessageCounts, mark, messages
from collops.solvers.history import DeviceHistory, History
from collops.solvers.method import Method
from collops.solvers.state import State, carried, fixed, is_array, local_arrays, with_carried

_MIN_TO_GROUP = 512  # recording a group takes about the time saved by 300 iterations


class Execution:
    """Launches every step on the caller's stream. A context; steps run inside it.

    Its `description` says how and why steps are launched or recorded; the `history` records their numbers.
    """

    def __init__(self, method: Method, A: LinearOperator, history: History, description: str = "eager") -> None:
        self._method = method
        self._operator = A
        self._history = history
        self._label = f"{method.name} iteration"
        self.description = description

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def advance(self, state: State, remaining: int) -> State:
        """Return the state after one more step, or after some of the `remaining` ones; the history counts them."""
        with mark(self._label):
            state = self._method.step(self._operator, state)
            self._history.record(state)
        return state


class _Lane:
    """A stream and a memory pool for recorded work, for one solver at a time."""

    def __init__(self) -> None:
        import cupy

        # Not a non-blocking stream: operators' work on the legacy default stream is then ordered with this stream, and
        # raises an error during recording instead of silently missing from the graph.
        self.stream = cupy.cuda.Stream(non_blocking=False)
        self.pool = cupy.cuda.MemoryPool()


_idle_lanes: dict[int, list[_Lane]] = {}
_lanes_lock = threading.Lock()
_abandoned: list[tuple[Any, Any, int, _Lane]] = []
"""Resources of failed solvers, in use until an event, for which the host does not wait: it may never complete."""


def _take_lane(device: int) -> _Lane:
    """Return a lane that no running solver uses; solvers may be nested by a callback.

    A lane of a failed solver is idle once the device has finished its work.
    """
    with _lanes_lock:
        for abandoned in list(_abandoned):
            event, _, its_device, lane = abandoned
            if event.done:
                _abandoned.remove(abandoned)
                _idle_lanes.setdefault(its_device, []).append(lane)
        idle = _idle_lanes.setdefault(device, [])
        return idle.pop() if idle else _Lane()


class GraphExecution(Execution):
    """Records the second step and replays it from then on; launches all steps if recording is impossible.

    Long runs are replayed in groups of as many steps as the history allows. Either all ranks record or none; if none
    does and a graph is `required`, all raise an error.
    """

    _history: DeviceHistory

    def __init__(self, method: Method, A: LinearOperator, history: Any, comm: Communicator, required: bool) -> None:
        super().__init__(method, A, history, "eager: no iteration was left to record")
        self._comm = comm
        self._required = required
        self._group = history.group
        self._recorded: dict[int, tuple[Any, list[Message]]] = {}  # by steps: graph, messages of a replay
        # Functions, not bound methods: a reference to itself would keep the operators until a garbage collection.
        self._next: Callable[[GraphExecution, State, int], State] = GraphExecution._warm_up
        self._contexts = ExitStack()

    def __enter__(self) -> GraphExecution:
        import cupy

        self._device = cupy.cuda.Device().id
        self._lane = _take_lane(self._device)
        self._caller = cupy.cuda.get_current_stream()
        self._lane.stream.wait_event(self._caller.record())
        self._contexts.enter_context(self._lane.stream)
        return self

    def __exit__(self, *error: object) -> None:
        """Order the caller's stream after the solver's work."""
        self._next = Execution.advance
        self._contexts.close()
        end = self._lane.stream.record()
        self._caller.wait_event(end)
        with _lanes_lock:
            if error[0] is None:
                # The driver has read the last row, so that no work that could write to the pool's memory is running.
                _idle_lanes[self._device].append(self._lane)
            else:
                _abandoned.append((end, self._recorded, self._device, self._lane))
        self._recorded = {}

    def advance(self, state: State, remaining: int) -> State:
        """Return the state after one more step, or after a group of the `remaining` ones."""
        return self._next(self, state, remaining)

    def _warm_up(self, state: State, remaining: int) -> State:
        import cupy

        self._next = GraphExecution._record_or_launch
        with cupy.cuda.using_allocator(self._lane.pool.malloc):
            return Execution.advance(self, state, remaining)

    def _record_or_launch(self, state: State, remaining: int) -> State:
        """Record the step if every rank can, and run it in any case."""
        reason = self._record(state, 1)
        if reason is None:
            self.description = "replayed CUDA graph"
            self._next = GraphExecution._replay
        elif self._required:
            raise UnsupportedTypeError(f"graph=True, but the step cannot be recorded: {reason}")
        else:
            self.description = f"eager: {reason}"
            self._next = Execution.advance
        return self._next(self, state, remaining)

    def _replay(self, state: State, remaining: int) -> State:
        steps = max(steps for steps in self._recorded if steps <= remaining)
        graph, sent = self._recorded[steps]
        with mark(self._label if steps == 1 else f"{steps} {self._label}s"):
            graph.launch(self._lane.stream)
            self._history.advance(steps)
        if messages.active:
            for message in sent:
                messages.record(*message)
        if self._group not in self._recorded:
            # The device is busy. A run that a test can end is expected to last twice as long as it has so far.
            expected = min(remaining, self._history.count) if self._history.keeps else remaining
            if expected >= _MIN_TO_GROUP and self._record(state, self._group) is not None:
                self._group = 1
        return state

    def _record(self, state: State, steps: int) -> str | None:
        """Record steps if every rank can; return why one cannot, or ``None``. Collective."""
        graph, sent, problem = self._capture(state, steps)
        reasons = [reason for reason in self._comm.allgather_metadata(problem) if reason is not None]
        if reasons:
            return reasons[0]
        self._recorded[steps] = graph, sent
        return None

    def _capture(self, state: State, steps: int) -> tuple[Any, list[Message], str | None]:
        """Return a graph of steps from an unchanged `state`, their messages, and the reason if there is no graph."""
        import cupy

        stream = self._lane.stream
        trial = with_carried(state, carried(state))
        seen = MessageCounts()
        graph: Any = None
        reason: str | None = None
        # Recording sends nothing. Each replay adds these messages to the counters.
        counting, messages.active[:] = messages.active[:], [seen]
        try:
            try:
                stream.begin_capture()
            except RuntimeError as error:  # CuPy for AMD does not support captures
                return None, [], _in_one_line(error)
            try:
                with cupy.cuda.using_allocator(self._lane.pool.malloc):
                    for _ in range(steps):
                        trial = self._method.step(self._operator, trial)
                        self._history.store(trial)  # reads the results before they are moved
                    _carry(trial, state)
            except Exception as error:  # an operator may make calls that are not allowed in a capture
                reason = _in_one_line(error)
            finally:
                try:
                    graph = stream.end_capture()
                    graph.upload(stream)
                except cupy.cuda.runtime.CUDARuntimeError as error:
                    reason = reason or _in_one_line(error)
        finally:
            messages.active[:] = counting
        return graph, seen.records, reason


def _carry(after: State, before: State) -> None:
    """Copy results of steps in new memory to the addresses that the next replay reads.

    Raises CollopsError if a step changed anything other than arrays, which a replay cannot do.
    """
    present, constants = carried(after), fixed(after)
    for name, value in fixed(before).items():
        if constants.get(name, after) is not value:
            raise CollopsError(f"the step changes {name} on the host")
    moves: list[tuple[LocalArray, LocalArray]] = []
    for name, target in carried(before).items():
        if not is_array(target):
            if present.get(name, after) is not target:
                raise CollopsError(f"the step changes {name} on the host")
            continue
        for new, old in zip(local_arrays(present[name]), local_arrays(target), strict=True):
            if new.data.ptr != old.data.ptr:
                moves.append((new, old))
    # Two buffers that are swapped would overwrite each other: an array that is also a target is copied first.
    targets = {old.data.ptr for _, old in moves}
    moves = [(new.copy() if new.data.ptr in targets else new, old) for new, old in moves]
    for new, old in moves:
        old[...] = new


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
