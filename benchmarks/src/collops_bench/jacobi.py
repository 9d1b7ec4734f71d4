"""The cost of an iteration of Jacobi's method by programming model, with the norm in every iteration.

There are four families of grids: one of fixed size (strong scaling), and three whose rows grow with the number of ranks
(weak scaling), from one far larger than any cache to one that fits into it. Records of one, two and four ranks together
show the scaling.

The clock ``wall`` is the cost of one more iteration: a long run less a short one. ``one rank`` is the first rank alone
on the whole grid while the others wait. Figures: ``speedup`` over it, ``efficiency`` (speedup over devices), and
``of_memory_limit``, the time in which the devices copy the grid over the time of an iteration, which may exceed 1 if a
variant sweeps several times per pass over memory. Devices belong to the ranks, or to a process that drives several.

Programs of the user (``--peer``) run between the check of the values and the variants; their times are those that they
print, called ``NAME (peer)``. A variant that cannot be made, or a program that fails, is missing in the measurement,
which says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collops.apps.stages import local_stage
from collops.errors import InputError, LayoutError, TransportError
from collops.jacobi import MODELS, Problem, make, obstacle, run
from collops.jacobi.measure import Reference, memory_limit
from collops.jacobi.samples import command_of, run_sample
from collops_bench.record import Check, Measurement, check
from collops_bench.timing import Plan, Timing, interleave_iterations, timing_of_iterations

if TYPE_CHECKING:
    from collops.jacobi import Variant
    from collops_bench.registry import Context

__all__ = ["ALONE", "measure"]

ALONE = "one rank"
_CHECKED = 12  # iterations


@dataclass(frozen=True)
class _Case:
    """One grid, and the numbers of timed iterations."""

    name: str
    nx: int
    ny: int
    short: int
    long: int


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each grid."""
    for case in _cases(context):
        yield _measure(context, case)


def _cases(context: Context) -> list[_Case]:
    ranks = context.comm.size
    if context.engine.memory == "host":
        size, columns, short, long = (192, 256, 5, 25) if context.options.quick else (1024, 2048, 20, 220)
        return [
            _Case("strong scaling", size, size, short, long),
            _Case("weak scaling", columns, columns // 2 * ranks, short, long),
        ]
    if context.options.quick:
        return [_Case("strong scaling", 4096, 4096, 10, 50)]
    return [
        _Case("strong scaling", 16384, 16384, 10, 110),
        _Case("weak scaling, large", 16384, 8192 * ranks, 10, 110),
        _Case("weak scaling, medium", 4096, 2048 * ranks, 50, 550),
        _Case("weak scaling, small", 2048, 2048 * ranks, 50, 550),
    ]


def _measure(context: Context, case: _Case) -> Measurement:
    comm, engine = context.comm, context.engine
    problem = Problem(nx=case.nx, ny=case.ny, iterations=_CHECKED)
    reference = Reference(problem, comm, engine)
    variants: dict[str, Variant] = {}
    missing: dict[str, str] = {}
    checks: list[Check] = []
    for name, model in MODELS.items():
        if engine.memory not in model.memory or name == "single":
            continue
        reason = obstacle(name, comm, engine)
        if reason is not None:
            missing[name] = reason
            continue
        with _missing_if_refused(name, missing):
            variants[name] = make(name, problem, comm, engine)
    for name, variant in variants.items():
        run(variant)
        differing = reference.difference(variant).points
        checks.append(check(comm, f"points of {name} that differ from one rank", differing, 0.0))
    del reference
    programs = {ALONE: _alone(context, problem)} | {
        name: _iterations(variant, case.long) for name, variant in variants.items()
    }
    limit = memory_limit(problem, comm, engine)
    rounds = 3 if context.options.quick else 5
    peers: dict[str, Timing] = {}
    for text in context.options.programs:
        name = f"{text.partition('=')[0]} (peer)"
        with _missing_if_refused(name, missing):
            peers[name] = _of_program(context, text, case, rounds)
    timings = interleave_iterations(programs, comm, engine, Plan(rounds=rounds), short=case.short, long=case.long)
    for variant in variants.values():
        variant.free()
    alone = timings[ALONE].wall.median
    devices = {ALONE: 1} | {name: variant.device_count for name, variant in variants.items()}
    figures = {
        name: {
            "speedup": alone / timing.wall.median,
            "efficiency": alone / timing.wall.median / devices[name],
            "of_memory_limit": limit * comm.size / devices[name] / timing.wall.median,
        }
        for name, timing in timings.items()
    }
    # Exclude models of one process with more devices than ranks.
    comparable = [name for name in variants if devices[name] == comm.size]
    best = min(comparable, key=lambda name: timings[name].wall.median)
    timings |= peers
    return Measurement(
        case.name,
        {"nx": case.nx, "ny": case.ny, "dtype": problem.dtype, "memory_limit": limit},
        timings,
        missing,
        ours=best,
        checks=checks,
        figures=figures,
    )


@contextmanager
def _missing_if_refused(name: str, missing: dict[str, str]) -> Iterator[None]:
    """Note why a program cannot be measured, if all ranks have the same error, so that the others are."""
    try:
        yield
    except (InputError, LayoutError, TransportError, MemoryError) as error:
        if not getattr(error, "on_all_ranks", False):
            raise
        missing[name] = str(error)


def _iterations(variant: Variant, most: int) -> Callable[[int], Any]:
    norms = variant.engine.xp.zeros(most)
    return lambda count: variant.advance(count, norms)


def _of_program(context: Context, text: str, case: _Case, rounds: int) -> Timing:
    """Time an iteration of a program of the user: the first rank runs it, while the others wait. Collective."""
    result = []
    for _ in range(rounds):
        seconds = {}
        for count in (case.short, case.long):
            with local_stage(context.comm):
                if context.comm.rank == 0:
                    name, command = command_of(text)
                    seconds[count] = run_sample(name, command, Problem(case.nx, case.ny, count)).seconds
        result.append(context.comm.allgather_metadata([*seconds.values()])[0])
    pairs = [{"wall": (full - brief) / (case.long - case.short), "whole": full / case.long} for brief, full in result]
    return timing_of_iterations(case.long, pairs)


def _alone(context: Context, problem: Problem) -> Callable[[int], Any]:
    """Return a program that iterates on the first rank only."""
    comm = context.comm
    local = comm.split(0 if comm.rank == 0 else 1) if comm.size > 1 else comm
    if comm.rank > 0 or local is None:
        return lambda count: None
    return _iterations(make("single", problem, local, context.engine), 1 << 10)
