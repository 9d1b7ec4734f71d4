"""Iterating until the norm is small enough or the iterations are used up, with the clock running.

Norms stay where they are made: a rank's parts of a stretch of iterations are summed over the ranks in one message, and
the host reads them while the next stretch runs. It neither waits for an iteration nor is waited for. In return,
iterations go on for up to two stretches after the norm has reached the tolerance; every variant stops at the same one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from collops.comm import Communicator
from collops.stencil.variants.base import Variant

__all__ = ["STRETCH", "Run", "run"]

STRETCH = 100
"""Iterations between two looks of the host at the norms."""


@dataclass(frozen=True)
class Run:
    """What a run gave.

    Parameters
    ----------
    iterations : int
        How many were made.
    seconds : float
        For all of them, until the last rank was done.
    norms : dict of int to float
        Norm of the update by iteration (counted from 0), of those that were checked.
    reached : int or None
        The first iteration whose norm was within the tolerance.

    Examples
    --------
    >>> import collops
    >>> from collops.backend import engine
    >>> from collops.stencil import Problem, make, run
    >>> result = run(make("mpi", Problem(nx=16, ny=16, iterations=20), collops.world(), engine("numpy")))
    >>> result.iterations, len(result.norms), result.seconds > 0
    (20, 20, True)
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
    """Iterate. Collective.

    Parameters
    ----------
    variant : Variant
        Newly made.
    report : callable, optional
        Gets each checked iteration and its norm, as soon as the host knows it.
    pulse : callable, optional
        Called after every stretch of iterations.

    Returns
    -------
    Run
        Equal on all ranks.

    Examples
    --------
    >>> import collops
    >>> from collops.backend import engine
    >>> from collops.stencil import Problem, make, run
    >>> result = run(make("mpi", Problem(nx=16, ny=16, iterations=20), collops.world(), engine("numpy")))
    >>> result.iterations, result.norms[19] < result.norms[0]
    (20, True)
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

    comm.allreduce(norms, out=norms)  # the first one of a wire takes its time
    variant.record(length(0))
    begin = _everybody(variant, comm)
    seen = 0
    for number in range(stretches):
        norms.fill(0)
        variant.advance(length(number), norms)
        comm.allreduce(norms, out=norms)
        history.store(norms)
        history.advance()
        if number > 0:
            look(seen)
            seen += 1
        if pulse is not None:
            pulse()
        if reached is not None:
            break
    history.row(history.count - 1)  # which waits no longer than the deadline
    end = _everybody(variant, comm)
    for number in range(seen, history.count):
        look(number)
    seconds = max(comm.allgather_metadata(end - begin))
    return Run(variant.done, seconds, known, reached)


def _everybody(variant: Variant, comm: Communicator) -> float:
    """Return the time when all ranks have finished what they have to do."""
    variant.engine.synchronize()
    comm.barrier()
    return time.perf_counter()
