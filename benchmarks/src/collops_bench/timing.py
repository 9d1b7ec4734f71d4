"""The clocks of the benchmarks: programs compared in turns, A B A B, by the median of repeated rounds.

Every time is in seconds, is for one call, and is that of the slowest rank. `CLOCKS` has the
meaning of each.
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

__all__ = ["CLOCKS", "Captured", "Plan", "Spread", "Timing", "interleave", "interleave_iterations", "synchronize"]

CLOCKS = {
    "wall": "host clock around a batch of calls, from a barrier with an idle device until the device is idle "
    "again, over the calls in the batch; for a solver, what one more iteration costs: the time of a long solve "
    "less the time of a short one, over the difference in iterations",
    "host": "host clock around the same batch, but only until the last call has returned: what a call costs "
    "the program, although the device may still be at work",
    "device": "events on the device's stream around the same batch, over the calls in it",
    "first": "host clock around the very first call, with what it compiles and connects",
    "whole": "host clock around a whole long solve, set-up included, over its iterations",
}
"""The meaning of the clocks of a :class:`Timing`."""


@dataclass(frozen=True)
class Spread:
    """Summary of repeated rounds, in seconds a call.

    Parameters
    ----------
    median, minimum, maximum : float
        Over the rounds.
    rounds : int
        How many there were.
    """

    median: float
    minimum: float
    maximum: float
    rounds: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarise one sample a round."""
        return cls(statistics.median(samples), min(samples), max(samples), len(samples))


@dataclass(frozen=True)
class Timing:
    """How long one program took.

    Parameters
    ----------
    calls : int
        Calls in each timed batch (iterations of the long solve, for a solver).
    clocks : mapping of str to Spread
        By the names in `CLOCKS`; ``"wall"`` is always there, ``"device"`` only where a device worked.
    """

    calls: int
    clocks: Mapping[str, Spread]

    @property
    def wall(self) -> Spread:
        """The clock that comparisons use."""
        return self.clocks["wall"]


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Parameters
    ----------
    rounds : int
        Turns that each program gets.
    seconds : float
        Aim for the length of one timed batch.
    most_calls : int
        In a batch. Bounded, so that the launch queue of a device does not fill up and hold back the host,
        which would spoil the clock ``"host"``.
    bound : float
        Seconds after which a slow program gets no more turns. It has one at least, and is called three times in all.
    """

    rounds: int = 9
    seconds: float = 0.1
    most_calls: int = 200
    bound: float = 20.0


def synchronize(engine: Engine) -> None:
    """Wait for everything on this rank's device, whichever stream it is on; nothing to do on hosts."""
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
    """Time programs in turns. Collective.

    Parameters
    ----------
    programs : mapping of str to callable
        The programs, in the order of the turns. All do the same work.
    comm : Communicator
        Ranks that take part.
    engine : Engine
        Whose work is timed.
    plan : Plan
        How much to measure.

    Returns
    -------
    dict of str to Timing
        With the clocks ``wall``, ``host`` and, on a device, ``device``.
    """
    calls = {name: _batch(program, comm, engine, plan) for name, program in programs.items()}
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    spent = dict.fromkeys(programs, 0.0)
    for _ in range(plan.rounds):
        for name, program in programs.items():
            if spent[name] > plan.bound:
                continue
            sample = _time(program, calls[name], comm, engine)
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
    """Time an iteration of each solver, in turns. Collective.

    Every solver runs `short` and `long` iterations in every round; see ``"wall"`` in `CLOCKS`. Rounds in which the long
    run took no longer, because other programs disturbed it, are left out; if all are, ``"whole"`` replaces
    ``"wall"``.

    Parameters
    ----------
    solvers : mapping of str to callable
        Called with a number of iterations, all of which it must do.
    comm, engine, plan
        As for :func:`interleave`; ``plan.seconds`` and ``plan.most_calls`` do not matter.
    short, long : int
        Numbers of iterations.

    Returns
    -------
    dict of str to Timing
        With the clocks ``wall`` and ``whole``.
    """
    for solve in solvers.values():
        solve(short)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in solvers}
    for _ in range(plan.rounds):
        for name, solve in solvers.items():
            brief = _time(lambda solve=solve: solve(short), 1, comm, engine)["wall"]
            full = _time(lambda solve=solve: solve(long), 1, comm, engine)["wall"]
            samples[name].append({"wall": (full - brief) / (long - short), "whole": full / long})
    return {name: _timing(long, _telling(rounds)) for name, rounds in samples.items()}


def _telling(rounds: Sequence[dict[str, float]]) -> Sequence[dict[str, float]]:
    return [one for one in rounds if one["wall"] > 0] or [one | {"wall": one["whole"]} for one in rounds]


def _timing(calls: int, rounds: Sequence[Mapping[str, float]]) -> Timing:
    return Timing(calls, {clock: Spread.of([sample[clock] for sample in rounds]) for clock in rounds[0]})


def _batch(program: Callable[[], object], comm: Communicator, engine: Engine, plan: Plan) -> int:
    """Warm up, and return how many calls fill a batch; the same on all ranks."""
    program()
    once = _time(program, 1, comm, engine)["wall"]
    if once > plan.seconds:
        return 1
    once = _time(program, 1, comm, engine)["wall"]
    if once > plan.seconds / 4:
        return max(1, min(plan.most_calls, round(plan.seconds / once)))
    several = _time(program, 5, comm, engine)["wall"]
    return max(5, min(plan.most_calls, math.ceil(plan.seconds / several)))


def _time(program: Callable[[], object], calls: int, comm: Communicator, engine: Engine) -> dict[str, float]:
    """Seconds a call of one batch on each clock, of the slowest rank."""
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
    mine = [(end - begin) / calls, (returned - begin) / calls]
    if events:
        mine.append(1e-3 * engine.xp.cuda.get_elapsed_time(*events) / calls)
    slowest = [max(column) for column in zip(*comm.allgather_metadata(mine), strict=True)]
    return dict(zip(("wall", "host", "device"), slowest, strict=False))


def _events(engine: Engine) -> tuple[Any, Any] | None:
    if engine.name != "cupy":
        return None
    return engine.xp.cuda.Event(), engine.xp.cuda.Event()


class Captured:
    """Several calls of a program, captured once.

    Parameters
    ----------
    xp : module
        CuPy.
    program : callable
        The program, called once before it is captured.
    calls : int
        How many of its calls one replay makes.
    """

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
        """Return the timing of one of the calls from that of replays."""
        clocks = {
            name: replace(
                spread,
                median=spread.median / self.calls,
                minimum=spread.minimum / self.calls,
                maximum=spread.maximum / self.calls,
            )
            for name, spread in timing.clocks.items()
        }
        return Timing(timing.calls * self.calls, clocks)
