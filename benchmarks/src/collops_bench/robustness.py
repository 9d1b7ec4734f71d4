"""The cost of deadlines, rejections and agreements when nothing goes wrong: a CGLS iteration with and without them.

"Without" is a plain build: MPI's blocking calls, without counting calls and without the agreement at a solver's start.
Both kinds alternate in short blocks, and the times of one pair of blocks are compared, so that a slowdown of the
machine affects both. The clock ``difference`` has these differences, some of them negative. The figure ``added,
percent`` is their median over the median without; ``doubt, percent`` is half the width of its 95 % confidence interval.

On one rank all calls use MPI as well, to this rank itself: this shows the cost added to a call without the time that
ranks wait for each other, which varies between blocks. The problems are the same as in the benchmark ``cgls`` on hosts;
the benchmark does not apply to devices, or without MPI.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from collops.array import DistributedArray, Layout
from collops.comm import Communicator
from collops.comm.cores import available_cores
from collops.comm.failure import Failures, default_timeout
from collops.comm.mpi import ControlChannel
from collops.comm.mpi_transport import MpiTransport
from collops.operators import VStack
from collops_bench.cgls import Case, host_cases
from collops_bench.record import Measurement, check
from collops_bench.shared import CHECKED_ITERATIONS, solve_exactly
from collops_bench.timing import Spread, timing_of_iterations

if TYPE_CHECKING:
    from collops_bench.registry import Context

__all__ = ["OURS", "PLAIN", "measure", "median_and_doubt"]

OURS, PLAIN = "collops", "without deadlines"


class _PlainTransport(MpiTransport):
    """Blocking calls."""

    def run(self, call: Any) -> None:
        if call.kind != "allreduce":
            super().run(call)
            return
        datatype, operation, _ = self.reduction(call.source.dtype, call.op)
        argument = self._mpi.IN_PLACE if call.source is call.target else [call.source, datatype]
        self._comm.Allreduce(argument, [call.target, datatype], operation)


class _Plain(Communicator):
    """No agreement."""

    def agree(self, what: str, value: Any, largest: Sequence[int] = ()) -> list[int]:
        return list(largest)


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each problem; none on devices, and none without MPI."""
    if context.engine.memory == "device" or context.comm.control is None:
        return
    comms = _communicators(context.comm.control)
    for case in host_cases():
        if case.stack == "VStack":
            yield _measure(context, comms, case)


def _communicators(control: Any) -> dict[str, Communicator]:
    """Return the two kinds of communicator, of all ranks."""
    crowded = len(available_cores()) < control.size  # as in a world of these ranks
    made: dict[str, Communicator] = {}
    for name, kind, transport in ((OURS, Communicator, MpiTransport), (PLAIN, _Plain, _PlainTransport)):
        local = control.Dup()
        failures = Failures(ControlChannel(local), default_timeout(), crowded)
        counts = failures if kind is Communicator else None  # without it, calls are not counted
        made[name] = kind(transport(local, failures), None, control=local, failures=counts)
    return made


def _measure(context: Context, comms: Mapping[str, Communicator], case: Case) -> Measurement:
    def part(rank: int) -> tuple[Any, np.ndarray]:
        random = np.random.default_rng([2026, rank])
        return case.local(context, random), random.normal(size=case.rows)

    comm = context.comm
    solvers = {kind: _solver(item, *part(comm.rank)) for kind, item in comms.items()}
    parts = [part(rank) for rank in range(comm.size)]
    expected = _serial_solution([operator for operator, _ in parts], np.concatenate([data for _, data in parts]))
    checks = [
        check(
            comm,
            f"solution of {case.name} after {CHECKED_ITERATIONS} iterations, {kind} against serial PyLops",
            float(np.linalg.norm(solver(CHECKED_ITERATIONS) - expected) / np.linalg.norm(expected)),
            1e-9,
        )
        for kind, solver in solvers.items()
    ]
    quick = context.options.quick
    short, long = (2, 7) if quick else (10, 60)
    times = _times(solvers, comms[PLAIN], (short, long), seconds=0.05 if quick else 25.0)
    # Without the start of the solver, which both lengths have.
    iterations = {kind: (runs[long] - runs[short]) / (long - short) for kind, runs in times.items()}
    timings = {
        kind: timing_of_iterations(
            long,
            [
                {"wall": wall, "whole": full / long}
                for wall, full in zip(item.tolist(), times[kind][long].tolist(), strict=True)
            ],
        )
        for kind, item in iterations.items()
    }
    difference = iterations[OURS] - iterations[PLAIN]
    paired = {"difference": Spread.from_samples(difference.tolist())}
    timings[OURS] = replace(timings[OURS], clocks={**timings[OURS].clocks, **paired})
    added, doubt = (100 * item / timings[PLAIN].wall.median for item in median_and_doubt(difference))

    return Measurement(
        f"CGLS iteration, {case.name}",
        {"rows_per_rank": case.rows, "iterations": [short, long]},
        timings,
        checks=checks,
        figures={OURS: {"added, percent": added, "doubt, percent": doubt}},
    )


def _solver(comm: Communicator, local: Any, data: np.ndarray) -> Callable[[int], np.ndarray]:
    """Return a function that solves in so many iterations, and returns the solution."""
    operator = VStack([local], comm=comm)
    y = DistributedArray(Layout.split((len(data) * comm.size,), comm.size), comm, data)
    return lambda iterations: solve_exactly(operator, y, iterations).x.local_array


def _serial_solution(operators: list[Any], data: np.ndarray) -> np.ndarray:
    from pylops import VStack as SerialVStack
    from pylops.optimization.basic import cgls

    stack = SerialVStack(operators)
    return cgls(stack, data, np.zeros(stack.shape[1]), niter=CHECKED_ITERATIONS, tol=0.0)[0]


def _times(
    solvers: Mapping[str, Callable[[int], object]], world: Communicator, lengths: tuple[int, int], seconds: float
) -> dict[str, dict[int, np.ndarray]]:
    """Return the times of solves of both lengths and kinds, in turns, of the slowest rank in each turn. Collective."""
    samples: dict[str, dict[int, list[float]]] = {kind: {length: [] for length in lengths} for kind in solvers}
    begin, turn = time.perf_counter(), 0
    while turn < 2 or float(world.allreduce(time.perf_counter() - begin, "max")) < seconds:
        for kind in (OURS, PLAIN) if turn % 2 else (PLAIN, OURS):
            for iterations in lengths:
                world.barrier()
                start = time.perf_counter()
                solvers[kind](iterations)
                samples[kind][iterations].append(time.perf_counter() - start)
        turn += 1
    return {
        kind: {length: np.asarray(world.allreduce(np.array(item), "max")) for length, item in runs.items()}
        for kind, runs in samples.items()
    }


def median_and_doubt(values: np.ndarray) -> tuple[float, float]:
    """Return the median, and half the width of its interval of 95 %, from the order of the values (binomial)."""
    ordered, count = np.sort(values), len(values)
    reach = 0.98 * np.sqrt(count)
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(np.ceil(count / 2 + reach)))
    return float(np.median(ordered)), float(ordered[high] - ordered[low]) / 2
