"""Run a variant, compare it point by point with one rank, and time it.

The norms of a stretch of iterations stay on the device. One message sums them over the ranks, and the host reads them
while the next stretch runs, so that host and device do not wait for each other. In return, a run continues for up to
two stretches after the norm has reached the tolerance. Every variant stops at the same iteration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from collops import Communicator, ExchangePlan
from collops.extend.arrays import LocalArray
from collops.extend.engines import Engine
from collops.jacobi.problem import Grid, Problem
from collops.jacobi.variant import Single, Variant

__all__ = ["Reference", "memory_limit"]

STRETCH = 100
"""Iterations whose norms are summed and read together."""

_PULSE_SECONDS = 30.0
_ROUNDS, _COPIES = 5, 10  # of the measurement of the memory
_TRIAL_ROUNDS, _TRIAL_SECONDS = 5, 0.2  # of a trial, whichever comes first
_TRIAL_SWEEPS = {"host": 8, "device": STRETCH}  # of a round; a graph contains a whole stretch


@dataclass(frozen=True)
class Run:
    """The result of a run."""

    iterations: int  # completed
    seconds: float  # for all iterations, until the last rank had finished
    norms: dict[int, float]  # of the update, by number of the checked iteration, from 0
    reached: int | None  # the first iteration whose norm was within the tolerance

    @property
    def seconds_per_iteration(self) -> float:
        """Mean time of an iteration."""
        return self.seconds / self.iterations


def run(
    variant: Variant, report: Callable[[int, float], None] | None = None, pulse: Callable[[], None] | None = None
) -> Run:
    """Iterate until the norm is within the tolerance or the iterations are used up. Collective.

    `variant` is new. `report` is called with each checked iteration and its norm, as soon as the host knows it,
    and `pulse` after every stretch of iterations. The result is equal on all ranks.
    """
    problem, comm, engine = variant.problem, variant.comm, variant.engine
    stretches = -(-problem.iterations // STRETCH)
    norms = engine.xp.zeros(STRETCH)
    copies = _HostCopies(engine, comm)
    known: dict[int, float] = {}
    reached: int | None = None

    def length(number: int) -> int:
        return min(STRETCH, problem.iterations - number * STRETCH)

    def look(number: int) -> None:
        nonlocal reached
        for slot, square in enumerate(copies.read(number)[: length(number)]):
            iteration = number * STRETCH + slot
            if iteration % problem.check == 0:
                known[iteration] = math.sqrt(square)
                if report is not None:
                    report(iteration, known[iteration])
                if reached is None and known[iteration] <= problem.tolerance:
                    reached = iteration

    comm.allreduce(norms, out=norms)  # the first message of a transport is slow
    variant.record(length(0))
    number, begin = 0, _time_of_all(comm, engine)
    for number in range(stretches):
        norms.fill(0)
        variant.advance(length(number), norms)
        comm.allreduce(norms, out=norms)
        copies.store(number, norms)
        if number > 0:
            look(number - 1)
        if pulse is not None:
            pulse()
        if reached is not None:
            break
    copies.read(number)  # waits with a deadline, unlike a synchronisation of the device
    end = _time_of_all(comm, engine)
    look(number)
    seconds = max(comm.allgather_metadata(end - begin))
    return Run(variant.done, seconds, known, reached)


def trial(variant: Variant) -> float:
    """Return the seconds of an iteration in a short run of a newly made variant, equal on all ranks. Collective."""
    comm, engine = variant.comm, variant.engine
    count = min(variant.problem.iterations, _TRIAL_SWEEPS[engine.memory])
    norms = engine.xp.zeros(count)
    variant.record(count)
    variant.advance(count, norms)
    rounds: list[float] = []
    while len(rounds) < _TRIAL_ROUNDS and sum(rounds) < _TRIAL_SECONDS:
        variant.record(count)
        begin = _time_of_all(comm, engine)
        variant.advance(count, norms)
        rounds.append(max(comm.allgather_metadata(_time_of_all(comm, engine) - begin)))
    return min(rounds) / count


class _HostCopies:
    """The norms of the last two stretches on the host; a device copies them while it computes the next stretch."""

    def __init__(self, engine: Engine, comm: Communicator) -> None:
        self._comm = comm
        self._events: list[Any] = []
        self._rows = [np.empty(STRETCH) for _ in range(2)]
        if engine.memory == "device":
            cuda = engine.xp.cuda
            self._rows = [np.frombuffer(cuda.alloc_pinned_memory(8 * STRETCH), np.float64, STRETCH) for _ in range(2)]
            self._events = [cuda.Event(disable_timing=True) for _ in range(2)]

    def store(self, number: int, norms: LocalArray) -> None:
        """Copy the norms of a stretch, on a device in stream order."""
        row = self._rows[number % 2]
        if self._events:
            norms.data.copy_to_host_async(row.ctypes.data, norms.nbytes)
            self._events[number % 2].record()
        else:
            row[:] = norms

    def read(self, number: int) -> np.ndarray:
        """Return the norms of a stretch, once they have arrived."""
        if self._events:
            self._comm.wait(self._events[number % 2], "a stretch of iterations")
        return self._rows[number % 2]


def _time_of_all(comm: Communicator, engine: Engine) -> float:
    """Return the time when all ranks and their devices have finished their work."""
    engine.synchronize()
    comm.barrier()
    return time.perf_counter()


class Difference(NamedTuple):
    """The difference of two grids."""

    points: int  # whose bits differ
    largest: float  # absolute difference


class Reference:
    """A run on the first rank only, while the others wait. Collective.

    The run may take longer than the deadline of a wait. The first rank therefore sends the others a message from time
    to time. The attribute `run` holds the result on the first rank, and None on others.
    """

    def __init__(
        self, problem: Problem, comm: Communicator, engine: Engine, report: Callable[[int, float], None] | None = None
    ) -> None:
        self._comm = comm
        self._engine = engine
        self.run: Run | None = None
        self._values: LocalArray = None
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
        """Broadcast whether the first rank is still iterating. Collective."""
        return bool(self._comm.bcast(np.array(iterating))[()])

    def difference(self, variant: Variant) -> Difference:
        """Compare a variant's values with the reference. Collective: each rank receives its part of the reference."""
        comm, xp, layout = self._comm, self._engine.xp, variant.grid.layout
        values = variant.values
        expected = xp.empty(values.shape, values.dtype)
        sends = [(rank, layout.slices(rank)) for rank in range(comm.size)] if comm.rank == 0 else []
        box = tuple(slice(0, extent) for extent in values.shape)
        plan = ExchangePlan(comm, sends, [(0, box)], kind="reference")
        plan(expected if self._values is None else self._values, expected)
        points = int(xp.count_nonzero(values != expected))
        largest = float(abs(values - expected).max()) if points else 0.0
        differences = comm.allgather_metadata([points, largest])
        return Difference(sum(row[0] for row in differences), max(row[1] for row in differences))


def first_rank(comm: Communicator) -> Communicator | None:
    """Return a communicator of the first rank only, and ``None`` on the others. Collective."""
    alone = comm.split(0 if comm.rank == 0 else 1) if comm.size > 1 else comm
    return alone if comm.rank == 0 else None


def memory_limit(problem: Problem, comm: Communicator, engine: Engine) -> float:
    """Return the time in which all ranks together copy the grid: no single sweep is faster. Collective.

    Every rank copies a block of the size of its own, so that blocks that fit into a cache yield the cache's limit.
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
