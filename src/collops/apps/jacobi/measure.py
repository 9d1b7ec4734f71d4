"""Run a variant, compare it point by point with one rank, and time it.

Norms stay where they are made: the norms of a stretch of iterations are summed over the ranks in one message, and the
host reads them while the next stretch runs, so that neither the host nor the device waits for the other. In return, a
run continues for up to two stretches after the norm has reached the tolerance. Every variant stops at the same
iteration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from collops.apps.jacobi.messages import Single
from collops.apps.jacobi.problem import Grid, Problem
from collops.apps.jacobi.variant import Variant
from collops.backend import Engine
from collops.comm import Communicator
from collops.exchange import ExchangePlan

__all__ = ["STRETCH", "Difference", "Reference", "Run", "Span", "Timeline", "first_rank", "memory_limit", "run"]

STRETCH = 100
"""Iterations whose norms are summed and read together."""

_PULSE_SECONDS = 30.0
_ROUNDS, _COPIES = 5, 10  # of the measurement of the memory


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Parameters
    ----------
    iterations : int
        Number of iterations made.
    seconds : float
        Time of all of them, until the last rank had finished.
    norms : dict of int to float
        Norm of the update by iteration, counted from 0, of those that were checked.
    reached : int or None
        The first iteration whose norm was within the tolerance.
    """

    iterations: int
    seconds: float
    norms: dict[int, float]
    reached: int | None

    @property
    def seconds_per_iteration(self) -> float:
        """The mean."""
        return self.seconds / self.iterations


def run(
    variant: Variant, report: Callable[[int, float], None] | None = None, pulse: Callable[[], None] | None = None
) -> Run:
    """Iterate until the norm is within the tolerance or the iterations are used up. Collective.

    Parameters
    ----------
    variant : Variant
        Newly made.
    report : callable, optional
        Called with each checked iteration and its norm, as soon as the host knows it.
    pulse : callable, optional
        Called after every stretch of iterations.

    Returns
    -------
    Run
        Equal on all ranks.
    """
    from collops.solvers.history import open_history

    problem, comm, engine = variant.problem, variant.comm, variant.engine
    stretches = -(-problem.iterations // STRETCH)
    norms = engine.xp.zeros(STRETCH)
    history = open_history(engine, STRETCH, stretches, 1, comm)
    known: dict[int, float] = {}
    reached: int | None = None

    def length(number: int) -> int:
        return min(STRETCH, problem.iterations - number * STRETCH)

    def look(number: int) -> None:
        nonlocal reached
        for slot, square in enumerate(history.row(number)[: length(number)]):
            iteration = number * STRETCH + slot
            if iteration % problem.check == 0:
                known[iteration] = math.sqrt(square)
                if report is not None:
                    report(iteration, known[iteration])
                if reached is None and known[iteration] <= problem.tolerance:
                    reached = iteration

    comm.allreduce(norms, out=norms)  # the first message of a transport is slow
    variant.record(length(0))
    begin = _time_of_all(comm, engine)
    for number in range(stretches):
        norms.fill(0)
        variant.advance(length(number), norms)
        comm.allreduce(norms, out=norms)
        history.store(norms)
        history.advance()
        if number > 0:
            look(number - 1)
        if pulse is not None:
            pulse()
        if reached is not None:
            break
    last = history.count - 1
    history.row(last)  # waits with a deadline, which a synchronisation of the device does not have
    end = _time_of_all(comm, engine)
    look(last)
    seconds = max(comm.allgather_metadata(end - begin))
    return Run(variant.done, seconds, known, reached)


def _time_of_all(comm: Communicator, engine: Engine) -> float:
    """Return the time when all ranks and their devices have finished their work."""
    engine.synchronize()
    comm.barrier()
    return time.perf_counter()


class Difference(NamedTuple):
    """The difference of two grids.

    Parameters
    ----------
    points : int
        Number of points that are not equal to the bit.
    largest : float
        Largest absolute difference.
    """

    points: int
    largest: float


class Reference:
    """A run on the first rank alone, while the others wait. Collective.

    The run may take longer than the deadline of a wait, so that the first rank sends the others a message from time to
    time.

    Parameters
    ----------
    problem : Problem
        The problem to solve.
    comm : Communicator
        The ranks.
    engine : Engine
        Engine of the grid.
    report : callable, optional
        See `run`.

    Attributes
    ----------
    run : Run or None
        The result, on the first rank.
    """

    def __init__(
        self, problem: Problem, comm: Communicator, engine: Engine, report: Callable[[int, float], None] | None = None
    ) -> None:
        self._comm = comm
        self._engine = engine
        self.run: Run | None = None
        self._values: Any = None
        alone = first_rank(comm)
        self._sent = time.monotonic()
        if alone is not None:
            variant = Single(problem, alone, engine)
            self.run = run(variant, report, self._pulse)
            self._values = variant.values
            self._send(False)
        else:
            while self._send(True):
                pass

    def _pulse(self) -> None:
        if time.monotonic() - self._sent > _PULSE_SECONDS:
            self._send(True)
            self._sent = time.monotonic()

    def _send(self, iterating: bool) -> bool:
        """Send the other ranks whether the first one is still iterating. Collective."""
        return bool(self._comm.bcast(np.array(iterating))[()])

    def difference(self, variant: Variant) -> Difference:
        """Compare the values of a variant with the reference. Collective: each rank receives its part of the latter."""
        comm, xp, layout = self._comm, self._engine.xp, variant.grid.layout
        mine = variant.values
        expected = xp.empty(mine.shape, mine.dtype)
        sends = [(rank, layout.slices(rank)) for rank in range(comm.size)] if comm.rank == 0 else []
        box = tuple(slice(0, extent) for extent in mine.shape)
        plan = ExchangePlan(comm, sends, [(0, box)], kind="reference")
        plan(expected if self._values is None else self._values, expected)
        points = int(xp.count_nonzero(mine != expected))
        largest = float(abs(mine - expected).max()) if points else 0.0
        found = comm.allgather_metadata([points, largest])
        return Difference(sum(row[0] for row in found), max(row[1] for row in found))


def first_rank(comm: Communicator) -> Communicator | None:
    """Return a communicator of the first rank alone, and ``None`` on the others. Collective."""
    alone = comm.split(0 if comm.rank == 0 else 1) if comm.size > 1 else comm
    return alone if comm.rank == 0 else None


def memory_limit(problem: Problem, comm: Communicator, engine: Engine) -> float:
    """Return the seconds in which all ranks together copy the grid: no single sweep is faster. Collective.

    The ranks copy blocks of the size of theirs, so that where blocks fit into a cache it is the limit of the cache.
    """
    xp = engine.xp
    shape = Grid(problem, comm.size, comm.rank).layout.local_shape(comm.rank)
    source, target = xp.zeros(shape, problem.dtype), xp.empty(shape, problem.dtype)
    best = math.inf
    for _ in range(_ROUNDS):
        begin = _time_of_all(comm, engine)
        for _ in range(_COPIES):
            xp.copyto(target, source)
        engine.synchronize()
        slowest = max(comm.allgather_metadata(time.perf_counter() - begin))
        best = min(best, slowest / _COPIES)
    return best


class Span(NamedTuple):
    """A piece of work.

    Parameters
    ----------
    label : str
        Name of the work.
    lane : int
        0 for the caller's stream, 1 for a side stream.
    begin, end : float
        Seconds since :meth:`Timeline.start`.
    """

    label: str
    lane: int
    begin: float
    end: float


class Timeline:
    """When each piece of a rank's work took place: by the host's clock, or by CUDA events on the current stream.

    Parameters
    ----------
    engine : Engine
        Engine of the arrays that are worked on.
    """

    def __init__(self, engine: Engine) -> None:
        self._cuda = engine.xp.cuda if engine.name == "cupy" else None
        self.start()

    def start(self) -> None:
        """Forget the spans so far; times count from now."""
        self._zero = self._now()
        self._noted: list[tuple[str, int, Any, Any]] = []

    @contextmanager
    def span(self, label: str, lane: int = 0) -> Iterator[None]:
        """Record when the body runs, or when the device does the work that the body enqueues."""
        begin = self._now()
        yield
        self._noted.append((label, lane, begin, self._now()))

    def spans(self) -> list[Span]:
        """Return the spans so far, waiting for the end of their work."""
        if self._cuda is not None:
            self._cuda.Device().synchronize()
        return [Span(label, lane, self._since(begin), self._since(end)) for label, lane, begin, end in self._noted]

    def _now(self) -> Any:
        """Return the host's time, or an event on the current stream."""
        if self._cuda is None:
            return time.perf_counter()
        event = self._cuda.Event()
        event.record()
        return event

    def _since(self, moment: Any) -> float:
        return moment - self._zero if self._cuda is None else 1e-3 * self._cuda.get_elapsed_time(self._zero, moment)
