"""The loop of a soak test: draw a case, run it on some of the ranks, and collect the results."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collops.array import Layout, zeros
from collops.array.plans import PLANS_KEPT
from collops.backend import Engine
from collops.comm import Communicator, alone, world
from collops.errors import CollopsError, CommunicationError, TransportError
from collops_bench.soak.cases import CASES
from collops_bench.soak.draw import Draw
from collops_bench.soak.memory import Watch, take_sample

__all__ = ["Failure", "Tally", "soak"]

_SAMPLE_SECONDS = 10.0
_RARE = {"killed": 0.001, "interrupted": 0.01, "files": 0.02}
"""Weights of slow cases; the others have 1 / number of cases."""
_AFTER_WARM_UP = "killed"  # too slow for the warm-up, in which caches must fill
_MAX_FAILURES = 10


@dataclass(frozen=True)
class Failure:
    """A case that failed."""

    case: str
    # the ranks and the transport that it ran on
    wire: str
    number: int  # for ``--only``, with the seed of the run
    message: str  # from the first rank that has one


@dataclass
class Tally:
    """The results of a run."""

    seed: int
    seconds: float = 0.0
    cases: dict[str, int] = field(default_factory=dict)  # by case: how many, and the seconds that they took
    times: dict[str, float] = field(default_factory=dict)
    # how many cases by the ranks and the transport that they ran on
    wires: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    # by rank: shares by which memory and numbers of objects grew after the warm-up
    growth: list[dict[str, float]] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)  # memory and objects that grew by more than a hundredth
    memory: list[dict[str, int]] = field(default_factory=list)  # by rank: bytes of host and device at the end

    @property
    def count(self) -> int:
        """Number of cases that were run."""
        return sum(self.cases.values())

    @property
    def passed(self) -> bool:
        """Whether no case failed and nothing grew."""
        return not self.failures and not self.leaks


def soak(
    comm: Communicator,
    engine: Engine,
    *,
    minutes: float,
    seed: int = 0,
    only: int | None = None,
    names: Sequence[str] = tuple(CASES),
    report: Callable[[Tally], None] | None = None,
) -> Tally:
    """Run random cases of `CASES` for some minutes, or the case with the number `only`. Collective.

    `report` is called after each case with the tally so far.

    Raises
    ------
    CommunicationError
        If a rank no longer answers.
    """
    communicators = _communicators(comm, engine)
    tally = Tally(seed)
    if only is None:
        _fill_caches(communicators, engine)
    begin = time.monotonic()
    watch = Watch(warm_up=minutes * 60 / 3)
    others_first = only is None and set(names) != {_AFTER_WARM_UP}
    number, now, sampled = -1, 0.0, 0.0
    while True:
        number += 1
        case = number if only is None else only
        random = np.random.default_rng([seed, case, 1])
        name = _drawn(random, names)
        if name == _AFTER_WARM_UP and others_first and now < watch.warm_up:
            continue
        _run_case(name, case, seed, str(random.choice(list(communicators))), communicators, comm, engine, tally)
        tally.seconds = time.monotonic() - begin
        if report is not None:
            report(tally)
        # All ranks use the clock of the first one.
        now = float(comm.bcast(np.array(tally.seconds))[()])
        if now - sampled >= _SAMPLE_SECONDS:
            sampled = now
            watch.samples.append(take_sample(now, engine))
        if only is not None or now >= 60 * minutes or len(tally.failures) >= _MAX_FAILURES:
            break
    _conclude(tally, watch, comm, engine)
    return tally


def _fill_caches(communicators: dict[str, Communicator], engine: Engine) -> None:
    """Fill the caches of plans, so that later plans replace others. Collective."""
    for comm in communicators.values():
        for extent in range(1, PLANS_KEPT + 1):
            x = zeros(Layout.replicated(extent, comm.size), comm=comm, engine=engine)
            split = x.redistribute(Layout.split(extent, comm.size))
            split.halo(1)
            split.redistribute(Layout.split(extent, comm.size, sizes=[0] * (comm.size - 1) + [extent]))


def _conclude(tally: Tally, watch: Watch, comm: Communicator, engine: Engine) -> None:
    """Collect the growth of all ranks. Collective."""
    last = take_sample(tally.seconds, engine)
    local = [watch.growth(), watch.leaks(), {"host": last.host, "device": last.device} | last.objects]
    for rank, (growth, leaks, memory) in enumerate(comm.allgather_metadata(local)):
        tally.growth.append(growth)
        tally.leaks += [f"rank {rank}: {leak}" for leak in leaks]
        tally.memory.append(memory)


def _drawn(random: np.random.Generator, names: Sequence[str]) -> str:
    """Return the name of a case."""
    weights = np.array([_RARE.get(name, 1.0 / len(CASES)) for name in names])
    return str(random.choice(names, p=weights / weights.sum()))


def _run_case(
    name: str,
    number: int,
    seed: int,
    wire: str,
    communicators: dict[str, Communicator],
    comm: Communicator,
    engine: Engine,
    tally: Tally,
) -> None:
    chosen = comm if name in ("killed", "files", "interrupted") else communicators[wire]
    begin = time.monotonic()
    message = ""
    try:
        CASES[name](Draw(seed, number, chosen, engine))
    except CommunicationError:
        raise
    except CollopsError as error:
        message = f"{type(error).__name__}: {error}"
    except Exception:
        # Any exception is a failure of the case; the other ranks get its message below.
        message = traceback.format_exc(limit=-3)
    tally.cases[name] = tally.cases.get(name, 0) + 1
    tally.wires[wire] = tally.wires.get(wire, 0) + 1
    messages = comm.allgather_metadata(message)
    tally.times[name] = tally.times.get(name, 0.0) + time.monotonic() - begin
    result = next((f"rank {rank}: {text}" for rank, text in enumerate(messages) if text), None)
    if result is not None:
        tally.failures.append(Failure(name, wire, number, result))


def _communicators(comm: Communicator, engine: Engine) -> dict[str, Communicator]:
    """Return the communicators of cases: all ranks with each transport, halves of them, single ranks."""
    result = {f"all ranks, {comm.transport}": comm}
    if engine.memory == "device" and comm.size > 1:
        for name in ("nccl", "mpi", "staged"):
            try:
                result[f"all ranks, {name}"] = world(name)
            except TransportError:
                continue  # on all ranks: this transport is not available
    if comm.size > 1:
        half: Any = comm.split(comm.rank % 2)
        result["halves"] = half
        result["each alone"] = alone()
    return result
