"""What deadlines and agreements cost when nothing goes wrong: CGLS iterations with and without them, in turns.

    mpiexec -n 2 python tests/robust/cost.py

"Without" has no deadline, no look at notes, and no agreement on the solver's start: a wait only tests the request.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

import collops
from collops.comm.communicator import Communicator
from collops.comm.deadline import Watch

ROUNDS, ITERATIONS = 12, 100


def bare_wait(watch, request, operation, needs=None):
    """Wait without a deadline, as patiently as the other."""
    test, naps = request.Test, 0
    for _ in range(watch._spins):
        if test():
            return
    while not test():
        naps += 1
        time.sleep(0 if naps < 2000 else 20e-6)


def main():
    """Print the medians and the least times, and their differences."""
    comm = collops.world()
    rng = np.random.default_rng(comm.rank)
    full = Watch.wait, Communicator.agree
    bare = bare_wait, lambda self, what, value: None
    for name, block in (("2000 x 2000 diagonal", None), ("500 x 1000 matrix", rng.normal(size=(500, 1000)))):
        if block is None:
            from pylops import Diagonal

            operator = collops.VStack([Diagonal(rng.normal(size=2000))], comm)
        else:
            operator = collops.VStack([block], comm)
        data = operator @ collops.ones(operator.domain, comm=comm)
        times = {"with": [], "without": []}
        for turn in range(2 * ROUNDS):
            kind = ("with", "without")[(turn + turn // 2) % 2]
            Watch.wait, Communicator.agree = full if kind == "with" else bare
            comm.barrier()
            begin = time.perf_counter()
            collops.cgls(operator, data, niter=ITERATIONS, tol=0)
            times[kind].append((time.perf_counter() - begin) / ITERATIONS * 1e6)
        Watch.wait, Communicator.agree = full
        if comm.rank == 0:
            for value in (statistics.median, min):
                ours, others = value(times["with"]), value(times["without"])
                print(
                    f"{name}, {comm.size} ranks, {value.__name__}: {ours:.2f} us with, {others:.2f} us without, "
                    f"{100 * (ours - others) / others:+.2f} %",
                    file=sys.stdout,
                )


if __name__ == "__main__":
    main()
