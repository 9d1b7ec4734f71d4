"""Weak scaling of multigrid: the same number of rows on each rank, against a rank that solves its part alone.

All ranks together set up and solve Poisson's equation of 7 points on a cube with as many points as there are in cubes
of 80 x 80 x 80 points for each rank, or with CuPy of 271 x 271 x 271 points; then each rank solves on such a cube
alone, all at the same time. Clocks and figures are those of ``multigrid``. ``efficiency`` is the time of the solution
alone over the time of the solution together, ``efficiency of set-up`` the same of the set-up, both per row; ``set-up
over solution`` is the ratio of these times.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from collops.array import DistributedArray
from collops.comm import alone
from collops.operators import CSRMatrix
from collops.preconditioners import multigrid
from collops_bench.multigrid import OURS, RTOL, Sample, solved
from collops_bench.petsc_multigrid import right_side, stencil_rows
from collops_bench.record import Measurement, check
from collops_bench.registry import Context
from collops_bench.timing import Spread, Timing

__all__ = ["measure"]

ALONE = "collops, one rank"


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement."""
    comm = context.comm
    side = 16 if context.options.quick else 271 if context.engine.memory == "device" else 80
    together = round(side * comm.size ** (1 / 3))
    rounds = {
        OURS: _samples(context, together),
        ALONE: _samples(replace(context, comm=alone()), side),
    }
    checks = [
        check(comm, f"residual of {name}", max(sample.pop("residual") for sample in samples), 1.1 * RTOL)
        for name, samples in rounds.items()
    ]
    figures = {
        name: {figure: statistics.median(each[figure] for each in samples) for figure in samples[0]}
        for name, samples in rounds.items()
    }
    for sample in figures.values():
        sample["set-up over solution"] = sample["set-up"] / sample["solution"]
    expected = together**3 / (comm.size * side**3)
    for figure, part in (("efficiency", "solution"), ("efficiency of set-up", "set-up")):
        figures[OURS][figure] = expected * figures[ALONE][part] / figures[OURS][part]
    yield Measurement(
        f"Poisson's equation, 7 points, {together**3:,} rows",
        {"rows": together**3, "rows of one rank": side**3},
        {
            name: Timing(1, {"wall": Spread.from_samples([each["set-up"] + each["solution"] for each in samples])})
            for name, samples in rounds.items()
        },
        {},
        ours=OURS,
        checks=checks,
        figures=figures,
    )


def _samples(context: Context, side: int) -> list[Sample]:
    """Return the samples of a cube that the ranks of `context` share, without the first one, which compiles."""
    comm = context.comm
    first, end = (side**3 * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    A = CSRMatrix(stencil_rows(7, side, first, end), comm=comm)
    y = DistributedArray(A.rows, comm, context.engine.from_host(right_side(side, first, end)))
    place = context.engine if context.engine.mutable else "numpy"
    return [solved(context, A, y, multigrid, engine=place) for _ in range(2 if context.options.quick else 5)][1:]
