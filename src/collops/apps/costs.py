"""What an iteration costs: its messages, and its seconds divided into modelling, communication and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import numpy as np

from collops import profile
from collops.apps.report import TimeSplit
from collops.errors import InputError, NotFiniteError
from collops.operators.base import LinearOperator

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator
    from collops.solvers import Run, SolverResult

__all__ = ["Costs", "MarkedLocal", "MarkedOperator", "Solve", "solve_with_costs"]

# Seconds, and rounds at most, that finding out where the time goes may add to a run.
_PROBE_SECONDS, _MOST_PROBES = 1.0, 10
_MODELLING, _COMMUNICATION = "modelling", "communication"


class Solve(Protocol):
    """Runs a solver on a problem that is fixed; options are those of `collops.solvers.cgls`."""

    def __call__(self, *, niter: int, **run: Unpack[Run]) -> SolverResult:
        """Return what the solver found."""
        ...


@dataclass(frozen=True)
class Costs:
    """What an iteration took.

    Parameters
    ----------
    seconds_per_iteration : float
        Of the slowest rank.
    split : TimeSplit
        The same divided into modelling, communication and the rest.
    messages_per_iteration : int
        Messages that one iteration sends.
    execution : str
        How the iterations ran on the device or the host.
    resumed_from : int or None
        The iteration of the checkpoint that the solver went on from.
    """

    seconds_per_iteration: float
    split: TimeSplit
    messages_per_iteration: int
    execution: str
    resumed_from: int | None


class MarkedLocal:
    """A local operator whose time a recording can tell from all else; while none is open that costs nothing.

    Parameters
    ----------
    operator : LocalOperator
        What is applied.
    """

    def __init__(self, operator: Any) -> None:
        self.shape: tuple[int, int] = operator.shape
        self.dtype: np.dtype = operator.dtype
        self.capturable: bool = operator.capturable
        self._operator = operator

    def forward_local(self, x: Any, out: Any = None) -> Any:
        """Model data."""
        with profile.mark(_MODELLING):
            return self._operator.forward_local(x, out)

    def adjoint_local(self, y: Any, out: Any = None) -> Any:
        """Apply the adjoint to data."""
        with profile.mark(_MODELLING):
            return self._operator.adjoint_local(y, out)


class MarkedOperator(LinearOperator):
    """The same for a distributed operator.

    Parameters
    ----------
    operator : LinearOperator
        What is applied.
    """

    def __init__(self, operator: LinearOperator) -> None:
        super().__init__(operator.domain, operator.range, operator.dtype, operator.comm)
        self.capturable = operator.capturable
        self._operator = operator

    def _forward(self, x: Any, out: Any) -> Any:
        with profile.mark(_MODELLING):
            return self._operator._forward(x, out)

    def _adjoint(self, y: Any, out: Any) -> Any:
        with profile.mark(_MODELLING):
            return self._operator._adjoint(y, out)


def solve_with_costs(
    solve: Solve,
    comm: Communicator,
    compute: Engine,
    *,
    iterations: int,
    rehearse: Callable[[], None],
    sends_inside: bool = False,
    **run: Unpack[Run],
) -> tuple[SolverResult, Costs]:
    """Solve, and find out what an iteration costs. Collective.

    Parameters
    ----------
    solve : callable
        The solver, its problem and options fixed but for those named in `Solve`.
    comm : Communicator
        The ranks.
    compute : Engine
        Where the computation is.
    iterations : int
        How many.
    rehearse : callable
        Does the local modelling of one iteration, and sends nothing.
    sends_inside : bool
        Whether what is marked as modelling sends messages itself, whose time must be taken off.
    **run
        How the solver is run, see `collops.solvers.cgls`.

    Raises
    ------
    InputError
        On every rank, if the numbers grew beyond what their type holds.
    """
    with profile.record() as recording, _advised():
        result = solve(niter=iterations, **run)
    messages, trial = _trial(solve)
    # What is replayed on a device as one graph cannot be looked into: there the trial tells how its time divides.
    modelling = _modelling(recording if result.execution.startswith("eager") else trial)
    seconds = float(comm.allreduce(np.array(result.seconds_per_iteration), "max")[()])
    communication = _communication(rehearse, comm, compute, messages, seconds)
    if sends_inside:
        modelling = max(0.0, modelling - communication)
    modelling = min(modelling, seconds)
    communication = min(communication, seconds - modelling)
    split = TimeSplit.gather(
        comm, {_MODELLING: modelling, _COMMUNICATION: communication, "rest": seconds - modelling - communication}
    )
    return result, Costs(seconds, split, len(messages), result.execution, result.resumed_from)


@contextmanager
def _advised() -> Iterator[None]:
    """Say what a user of an application can do about numbers that are not finite."""
    try:
        yield
    except NotFiniteError as problem:
        error = InputError(
            f"the solution grew without bounds ({problem.array} in iteration {problem.iteration}): scale the data, or "
            "use --dtype float64"
        )
        error.on_all_ranks = True
        raise error from problem


def _trial(solve: Solve) -> tuple[list[profile.Message], profile.Recording]:
    """Run two iterations one by one, and return what the second sends and how their time divides. Collective."""
    records = []
    with profile.record() as recording:
        for iterations in (1, 2):
            with profile.count_messages() as messages:
                solve(niter=iterations, progress=False, graph=False)
            records.append(messages.records)
    second = list(records[1])
    for message in records[0]:
        second.remove(message)
    return second, recording


def _modelling(recording: profile.Recording) -> float:
    """Return the seconds that the marked operators of this rank take in one iteration."""
    rows = recording.report().rows
    iterations = sum(row.calls[0] for row in rows if row.label.endswith("iteration"))
    inside = [row for row in rows if row.label == _MODELLING and row.path[-2].endswith("iteration")]
    return sum(row.total[0] for row in inside) / max(1, iterations)


def _communication(
    rehearse: Callable[[], None], comm: Communicator, compute: Engine, messages: list[profile.Message], seconds: float
) -> float:
    """Return the seconds of messages like those of an iteration, waiting for slower ranks included. Collective."""
    rounds = int(np.clip(_PROBE_SECONDS / max(seconds, 1e-9), 1, _MOST_PROBES))
    sends = [send for message in messages if (send := _like(message, comm, compute)) is not None]
    if not sends:
        return 0.0
    comm.barrier()
    with profile.record() as recording:
        for _ in range(rounds):
            rehearse()
            with profile.mark(_COMMUNICATION):
                for send in sends:
                    send()
    return sum(row.total[0] for row in recording.report().rows if row.label == _COMMUNICATION) / rounds


def _like(message: profile.Message, comm: Communicator, compute: Engine) -> Callable[[], Any] | None:
    """Return what sends a message of the same kind and size. Collective."""
    if message.operation == "allreduce" and message.elements:
        width = min(8, message.nbytes // message.elements)  # a complex number is two real ones
        buffer = compute.xp.zeros(message.nbytes // width, f"f{width}")
        return lambda: comm.allreduce(buffer, out=buffer)
    if message.operation not in ("exchange", "alltoallv", "allgatherv") or comm.size == 1:
        return None
    # Ranks that send less wait for those that send most.
    largest = int(comm.allreduce(np.array(message.nbytes), "max")[()])
    if message.operation == "exchange":
        return _exchange(largest, comm, compute)
    even = [max(1, largest // comm.size)] * comm.size
    if message.operation == "alltoallv":
        source, target = (compute.xp.zeros(sum(even), np.uint8) for _ in range(2))
        return lambda: comm.alltoallv(source, even, even, out=target)
    source, target = compute.xp.zeros(largest, np.uint8), compute.xp.zeros(largest * comm.size, np.uint8)
    return lambda: comm.allgatherv(source, [largest] * comm.size, out=target)


def _exchange(nbytes: int, comm: Communicator, compute: Engine) -> Callable[[], Any]:
    """Return an exchange with both neighbours, of `nbytes` from ranks that have two."""
    from collops.comm import ExchangePlan

    size = max(1, nbytes // min(2, comm.size - 1))
    neighbours = [rank for rank in (comm.rank - 1, comm.rank + 1) if 0 <= rank < comm.size]
    boxes = [(rank, (slice(number * size, (number + 1) * size),)) for number, rank in enumerate(neighbours)]
    plan = ExchangePlan(comm, boxes, boxes)
    source, target = (compute.xp.zeros(size * len(neighbours), np.uint8) for _ in range(2))
    return lambda: plan(source, target)
