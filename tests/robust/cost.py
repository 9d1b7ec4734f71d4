"""What deadlines, rejections and agreements cost when nothing goes wrong: CGLS iterations with and without them.

    mpiexec -n 2 python tests/robust/cost.py [--out RECORD.json]

"Without" is what a plain build would do: MPI's blocking calls, no count of calls, no agreement on a solver's start.
Both kinds take turns in short blocks, of which those of one turn are compared: what slows the machine for longer than
a turn slows both. The median of the differences counts, beside the interval in which it lies with 95 % probability.
On one rank all calls go through MPI as well, to this rank itself: that shows what is added to a call without the time
that ranks wait for each other, which differs from block to block. Problems are those of `collops bench cgls`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from pylops import Diagonal, FirstDerivative

import collops
from collops.backend import engine
from collops.comm import Communicator
from collops.comm.cores import available_cores
from collops.comm.failure import Failures
from collops.comm.mpi import ControlChannel, MpiTransport
from collops.solvers import CGLS, solve
from collops_bench.record import Measurement, new_record, write_record
from collops_bench.timing import Spread, Timing

ROWS, COLUMNS = 2000, 100
SHORT, LONG = 10, 60
OURS, PLAIN = "collops", "without deadlines"


class PlainTransport(MpiTransport):
    """Blocking calls."""

    def run(self, call):
        if call.kind != "allreduce":
            super().run(call)
            return
        datatype, operation, _ = self.reduction(call.source.dtype, call.op)
        given = self._mpi.IN_PLACE if call.source is call.target else [call.source, datatype]
        self._comm.Allreduce(given, [call.target, datatype], operation)


class Plain(Communicator):
    """No agreement."""

    def agree(self, what, value):
        pass


def communicators():
    """Return the two kinds of communicator, of all ranks."""
    from mpi4py import MPI

    made = {}
    crowded = len(available_cores()) < MPI.COMM_WORLD.size  # as in a world of these ranks
    for name, kind, transport in ((OURS, Communicator, MpiTransport), (PLAIN, Plain, PlainTransport)):
        control = MPI.COMM_WORLD.Dup()
        failures = Failures(ControlChannel(control), 600.0, crowded)
        counts = failures if kind is Communicator else None  # without it, calls are not counted
        made[name] = kind(transport(control, failures), None, control=control, failures=counts)
    return made


def problems(rank):
    """Give names and this rank's operators, so badly scaled that no solver ends early."""
    rng = np.random.default_rng(rank)
    yield "VStack of diagonals", Diagonal(rng.permutation(np.logspace(0, -3, ROWS)))
    yield "VStack of first derivatives", FirstDerivative(ROWS)
    yield "VStack of matrices", rng.normal(size=(ROWS, COLUMNS)) * np.logspace(0, -3, COLUMNS)


def measured(local, comms, seconds):
    """Return seconds that an iteration takes, many times, of both kinds in turns."""
    solvers = {}
    for name, comm in comms.items():
        operator = collops.VStack([local], comm)
        data = collops.from_local(np.random.default_rng(comm.rank).normal(size=ROWS), comm=comm)
        solvers[name] = partial(solve, CGLS(tol=0.0, precision=0.0), operator, data)
    times = {name: {SHORT: [], LONG: []} for name in comms}
    world = comms[PLAIN]
    begin, turn = time.perf_counter(), 0
    while float(world.allreduce(time.perf_counter() - begin, "max")) < seconds:
        for name in (OURS, PLAIN) if turn % 2 else (PLAIN, OURS):
            for iterations in (SHORT, LONG):
                world.barrier()
                start = time.perf_counter()
                result = solvers[name](niter=iterations)
                times[name][iterations].append(time.perf_counter() - start)
                assert result.iterations == iterations
        turn += 1
    return times


def median_and_doubt(values):
    """Return the median, and half the width of its interval of 95 %, from the order of the values (binomial)."""
    ordered, count = np.sort(values), len(values)
    reach = 0.98 * np.sqrt(count)
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(np.ceil(count / 2 + reach)))
    return statistics.median(ordered), (ordered[high] - ordered[low]) / 2


def main():
    """Print the least and the median times, and keep them."""
    parser = argparse.ArgumentParser(description="Measure what robustness costs when nothing goes wrong.")
    parser.add_argument("--out", type=Path, help="record to write")
    parser.add_argument("--seconds", type=float, default=25.0, help="for each problem")
    given = parser.parse_args()
    comms = communicators()
    comm = comms[OURS]
    measurements = []
    for name, local in problems(comm.rank):
        times = measured(local, comms, given.seconds)
        # Without the start of the solver, which both lengths have.
        samples = {kind: (np.array(own[LONG]) - np.array(own[SHORT])) / (LONG - SHORT) for kind, own in times.items()}
        plain = statistics.median(samples[PLAIN])
        added, doubt = (100 * value / plain for value in median_and_doubt(samples[OURS] - samples[PLAIN]))
        if comm.rank == 0:
            sys.stdout.write(
                f"{name}, {comm.size} ranks, {len(samples[PLAIN])} turns: {1e6 * plain:.2f} us without, "
                f"{added:+.2f} % (+- {doubt:.2f} %) with\n"
            )
        timings = {
            kind: Timing(LONG, {"wall": Spread.of([long / LONG for long in times[kind][LONG]])}) for kind in times
        }
        figures = {"added, percent": added, "doubt, percent": doubt}
        measurements.append(Measurement(f"CGLS iteration, {name}", {"rows": ROWS}, timings, figures={OURS: figures}))
    record = new_record("robustness", comm, engine("numpy"), {"seconds": given.seconds})
    record.measurements.extend(measurements)
    if given.out is not None and comm.rank == 0:
        write_record(record, given.out)


if __name__ == "__main__":
    main()
