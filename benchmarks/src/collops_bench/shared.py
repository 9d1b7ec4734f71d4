"""Shared by benchmarks: vectors with known results, agreement of programs, ways to run CGLS, and messages."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from collops import profile
from collops.errors import CollopsError
from collops.solvers import CG, CGLS, solve
from collops.solvers.variants.single_reduction import SingleReductionCGLS
from collops_bench.record import Check, check
from collops_bench.registry import Context

__all__ = [
    "CHECKED_ITERATIONS",
    "ONE_REDUCTION",
    "agreement",
    "environment_without_launcher",
    "fill",
    "largest_error",
    "messages_of_a_call",
    "messages_of_an_iteration",
    "solve_exactly",
    "solvers_of_collops",
]

CHECKED_ITERATIONS = 10
"""Iterations after which solutions are compared, before rounding errors grow."""

_PIECE = 1 << 24  # elements of a vector that are filled or checked at once
_HOST, _EAGER, _REPLAYED = "collops", "collops, eager", "collops, replayed"
ONE_REDUCTION = "collops, one reduction"


def solvers_of_collops(
    context: Context, operator: Any, data: Any
) -> tuple[dict[str, Callable[[int], Any]], dict[str, str]]:
    """Return CGLS in every way that it can run on this engine, the fastest first. Collective.

    Returns
    -------
    solvers : dict of str to callable
        By the program's name; called with a number of iterations, each returns this rank's part of the solution.
    missing : dict of str to str
        Ways that cannot be had, and why.
    """

    def way(graph: bool | str, kind: type[CGLS] = CGLS) -> Callable[[int], Any]:
        return lambda iterations: solve_exactly(operator, data, iterations, graph, kind).x.local_array

    several = {ONE_REDUCTION: way("auto", SingleReductionCGLS)} if context.comm.size > 1 else {}
    if context.engine.memory == "host":
        return {_HOST: way(False)} | several, {}
    eager = {_EAGER: way(False)}
    execution = solve_exactly(operator, data, CHECKED_ITERATIONS).execution
    if not execution.startswith("replayed"):
        return eager, {_REPLAYED: execution}
    return {_REPLAYED: way(True)} | several | eager, {}


def solve_exactly(
    operator: Any, data: Any, iterations: int, graph: bool | str = "auto", kind: type[CGLS] | type[CG] = CGLS
) -> Any:
    """Return the result of a method after so many iterations, also beyond convergence. Collective.

    Raises
    ------
    CollopsError
        If it stopped early: its time would not be comparable.
    """
    method = kind(tol=0.0, precision=0.0)
    result = solve(method, operator, data, niter=iterations, graph=graph, progress=False)
    if result.iterations != iterations:
        raise CollopsError(f"collops stopped after {result.iterations} of {iterations} iterations: {result.status}")
    return result


def agreement(context: Context, what: str, programs: Mapping[str, Callable[[], Any]], tolerance: float) -> list[Check]:
    """Check that all programs give the result of the first one, by the norm of the difference. Collective."""
    # A program may return the same memory in each call.
    results = {name: np.array(context.engine.to_host(run())).ravel() for name, run in programs.items()}
    (first, reference), *others = results.items()
    return [
        check(
            context.comm,
            f"{what}, {first} against {other}",
            _relative_error(reference, result),
            tolerance,
        )
        for other, result in others
    ]


def _relative_error(reference: np.ndarray, result: np.ndarray) -> float:
    difference = float(np.linalg.norm(reference - result))
    return difference / float(np.linalg.norm(result)) if difference else 0.0  # a rank may have nothing


def messages_of_a_call(program: Callable[[], Any]) -> dict[str, int]:
    """Count the messages of one call, by operation."""
    with profile.count_messages() as messages:
        program()
    return {name: messages[name] for name in sorted({record.operation for record in messages.records})}


def messages_of_an_iteration(solve: Callable[[int], Any]) -> dict[str, int]:
    """Return the number of messages per iteration: a fifth of the messages of five further iterations."""
    few, many = (messages_of_a_call(lambda n=iterations: solve(n)) for iterations in (5, 10))
    item = {name: round((count - few.get(name, 0)) / 5) for name, count in many.items()}
    return {name: count for name, count in item.items() if count}


# Vectors of small integers, filled and checked piece by piece: their sums and copies are exact.


def fill(xp: Any, vector: Any, values: Callable[[Any], Any], first: int = 0) -> None:
    """Set a vector whose first element has the index `first` to the `values` of its indices."""
    for piece, index in _pieces(xp, vector.size, first):
        vector[piece] = values(index)
    return vector


def largest_error(xp: Any, vector: Any, values: Callable[[Any], Any], first: int = 0) -> float:
    """Return the largest error of an element; NaN if one is NaN."""
    worst = 0.0
    for piece, index in _pieces(xp, vector.size, first):
        error = float(abs(vector[piece] - values(index)).max())
        if math.isnan(error):  # comparisons would discard it
            return error
        worst = max(worst, error)
    return worst


def _pieces(xp: Any, size: int, first: int) -> Iterator[tuple[slice, Any]]:
    for start in range(0, size, _PIECE):
        stop = min(start + _PIECE, size)
        yield slice(start, stop), xp.arange(first + start, first + stop)


def environment_without_launcher() -> dict[str, str]:
    """Return the environment of this rank for a process that is not a rank, without the variables of collops."""
    launchers = ("PMI", "OMPI_", "PRTE_", "SLURM_", "MPI_", "MV2_", "HYDRA_", "HYDI_", "FLUX_", "COLLOPS_")
    return {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
