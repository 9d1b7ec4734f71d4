"""Time programs alternately (A B A B), by the median over repeated rounds.

Every time is in seconds per call, for the slowest rank. `CLOCKS` explains each clock.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collops.backend import Engine
    from collops.comm import Communicator

__all__ = [
    "CLOCKS",
    "SIGNED",
    "Captured",
    "Plan",
    "Spread",
    "Timing",
    "interleave",
    "interleave_iterations",
    "per_part",
    "synchronize",
    "time_batch",
    "timing_of_iterations",
]

CLOCKS = {
    "wall": "host clock around a batch of calls, from a barrier with an idle device until the device is idle again, "
    "over the number of calls; for a solver, the cost of one more iteration: the time of a long solve minus the time "
    "of a short solve, over the difference in iterations",
    "host": "host clock around the same batch, until the last call has returned, while the device may still work",
    "device": "events on the device's stream around the same batch, over the number of calls",
    "cpu": "user and system time of a new process and the processes that it has started",
    "first": "host clock around the very first call, including compilation and connection",
    "whole": "host clock around a whole long solve, including set-up, over its iterations",
    "difference": "the wall time of this program minus the wall time of the reference program, in the same round; "
    "noise makes single differences negative",
}
"""The meaning of the clocks of a :class:`Timing`."""

SIGNED = frozenset({"difference"})
"""The clocks that may be negative."""


@dataclass(frozen=True)
class Spread:
    """Statistics over repeated rounds, in seconds per call."""

    median: float  # over the rounds
    minimum: float
    maximum: float
    rounds: int  # how many there were

    @classmethod
    def from_samples(cls, samples: Sequence[float]) -> Spread:
        """Return the statistics of samples, one per round."""
        return cls(statistics.median(samples), min(samples), max(samples), len(samples))


@dataclass(frozen=True)
class Timing:
    """The times of one program."""

    calls: int  # calls in each timed batch (iterations of the long solve, for a solver)
    # by the names in `CLOCKS`; ``"wall"`` is always there, ``"device"`` only where a device worked
    clocks: Mapping[str, Spread]

    @property
    def wall(self) -> Spread:
        """The clock that comparisons use."""
        return self.clocks["wall"]


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rounds: int = 9  # turns that each program gets
    seconds: float = 0.1  # aim for the length of one timed batch
    # in a batch. Bounded, so that the launch queue of a device does not fill up and hold back the host, which would
    # spoil the clock ``"host"``
    most_calls: int = 200
    # seconds after which a slow program gets no more turns. It has one at least, and is called three times in all
    bound: float = 20.0


def synchronize(engine: Engine) -> None:
    """Wait for all streams of this rank's device; on hosts there is nothing to wait for."""
    if engine.name == "cupy":
        engine.xp.cuda.Device().synchronize()
    else:
        engine.synchronize()


def interleave(
    programs: Mapping[str, Callable[[], object]],
    comm: Communicator,
    engine: Engine,
    plan: Plan,
) -> dict[str, Timing]:
    """Time programs that do the same work, alternately. Collective.

    Timings have the clocks ``wall``, ``host`` and, on a device, ``device``.
    """
    calls = {name: _batch(program, comm, engine, plan) for name, program in programs.items()}
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    spent = dict.fromkeys(programs, 0.0)
    for _ in range(plan.rounds):
        for name, program in programs.items():
            if spent[name] > plan.bound:
                continue
            sample = time_batch(program, calls[name], comm, engine)
            samples[name].append(sample)
            spent[name] += sample["wall"] * calls[name]
    return {name: _timing(calls[name], rounds) for name, rounds in samples.items()}


def interleave_iterations(
    solvers: Mapping[str, Callable[[int], object]],
    comm: Communicator,
    engine: Engine,
    plan: Plan,
    *,
    short: int,
    long: int,
) -> dict[str, Timing]:
    """Time an iteration of each solver, alternately. Collective.

    A solver is called with a number of iterations, all of which it must do: in every round with `short` and with
    `long`; see ``"wall"`` in `CLOCKS`. Rounds whose long run took no longer, because of other programs on the machine,
    do not count; if none is left, ``"whole"`` replaces ``"wall"``. Timings have these two clocks.
    """
    for solve in solvers.values():
        solve(short)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in solvers}
    for _ in range(plan.rounds):
        for name, solve in solvers.items():
            brief = time_batch(lambda solve=solve: solve(short), 1, comm, engine)["wall"]
            full = time_batch(lambda solve=solve: solve(long), 1, comm, engine)["wall"]
            samples[name].append({"wall": (full - brief) / (long - short), "whole": full / long})
    return {name: timing_of_iterations(long, rounds) for name, rounds in samples.items()}


def timing_of_iterations(long: int, rounds: Sequence[dict[str, float]]) -> Timing:
    """Return the timing of an iteration from rounds of ``"wall"`` and ``"whole"``; see `interleave_iterations`."""
    usable = [sample for sample in rounds if sample["wall"] > 0] or [
        sample | {"wall": sample["whole"]} for sample in rounds
    ]
    return _timing(long, usable)


def _timing(calls: int, rounds: Sequence[Mapping[str, float]]) -> Timing:
    return Timing(calls, {clock: Spread.from_samples([sample[clock] for sample in rounds]) for clock in rounds[0]})


def _batch(program: Callable[[], object], comm: Communicator, engine: Engine, plan: Plan) -> int:
    """Warm up, and return the number of calls in a batch, the same on all ranks."""
    program()
    once = time_batch(program, 1, comm, engine)["wall"]
    if once > plan.seconds:
        return 1
    once = time_batch(program, 1, comm, engine)["wall"]
    if once > plan.seconds / 4:
        return max(1, min(plan.most_calls, round(plan.seconds / once)))
    several = time_batch(program, 5, comm, engine)["wall"]
    return max(5, min(plan.most_calls, math.ceil(plan.seconds / several)))


def time_batch(program: Callable[[], object], calls: int, comm: Communicator, engine: Engine) -> dict[str, float]:
    """Return the seconds per call of a batch of `calls`, for the slowest rank, by clock. Collective."""
    events = _events(engine)
    synchronize(engine)
    comm.barrier()
    begin = time.perf_counter()
    if events:
        events[0].record()
    for _ in range(calls):
        program()
    returned = time.perf_counter()
    if events:
        events[1].record()
    synchronize(engine)
    end = time.perf_counter()
    local = [(end - begin) / calls, (returned - begin) / calls]
    if events:
        local.append(1e-3 * engine.xp.cuda.get_elapsed_time(*events) / calls)
    slowest = [max(column) for column in zip(*comm.allgather_metadata(local), strict=True)]
    return dict(zip(("wall", "host", "device"), slowest, strict=False))


def _events(engine: Engine) -> tuple[Any, Any] | None:
    if engine.name != "cupy":
        return None
    return engine.xp.cuda.Event(), engine.xp.cuda.Event()


class Captured:
    """A CUDA graph of several calls of a program, which is called once before the capture; `xp` is CuPy."""

    def __init__(self, xp: Any, program: Callable[[], Any], calls: int) -> None:
        program()
        xp.cuda.Device().synchronize()
        self.calls = calls
        stream = xp.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            for _ in range(calls):
                program()
            self._graph = stream.end_capture()

    def replay(self) -> None:
        """Launch all of the calls on the current stream."""
        self._graph.launch()

    def of_one_call(self, timing: Timing) -> Timing:
        """Return the timing of one call from the timing of replays."""
        return per_part(timing, self.calls)


def per_part(timing: Timing, parts: int) -> Timing:
    """Return the timing of one of the `parts` that a program has."""
    clocks = {
        name: replace(
            spread,
            median=spread.median / parts,
            minimum=spread.minimum / parts,
            maximum=spread.maximum / parts,
        )
        for name, spread in timing.clocks.items()
    }
    return Timing(timing.calls * parts, clocks)
