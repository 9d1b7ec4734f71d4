"""Block-Toeplitz products with matrices stored in every precision, against a copy of as many bytes.

The figure ``bandwidth`` is the bytes of one rank's matrices and vectors, each read or written once, over the median
wall time; ``of_copy`` is its ratio to the bandwidth of a copy that reads and writes as many bytes in the same run. On
several ranks the times include the sum of the data in forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from collops.array import DistributedArray, random
from collops.comm import alone
from collops.operators import BlockToeplitz
from collops.operators.memory import new_array
from collops.operators.toeplitz.spectra import PRECISIONS
from collops_bench.operators.case import EAGER, OURS, REPLAYED, captured
from collops_bench.peers import PEER
from collops_bench.record import Measurement, check
from collops_bench.registry import Context
from collops_bench.shared import messages_of_a_call
from collops_bench.timing import Plan, Timing, interleave

__all__ = ["measure"]

COPY = "copy"
# Samples, rows, and columns of each rank: of quick runs, on hosts, and on devices (4 GB of matrices in complex64).
_QUICK, _ON_HOSTS, _ON_DEVICES = (32, 8, 64), (200, 50, 1000), (1000, 100, 5000)


def measure(context: Context) -> Iterator[Measurement]:
    """Yield forward and adjoint for each precision of the matrices."""
    device = context.engine.memory == "device"
    shape = _QUICK if context.options.quick else _ON_DEVICES if device else _ON_HOSTS
    plan = Plan(rounds=3, seconds=0.01) if context.options.quick else Plan(rounds=7, seconds=0.1)
    noise: Any = random(shape, seed=context.comm.rank, comm=alone(), dtype="float32", engine=context.engine)
    references: dict[str, tuple[Any, float]] = {}
    for stored in PRECISIONS:
        dtype = "float64" if stored == "float64" else "float32"
        operator = BlockToeplitz(noise.local_array, dtype=dtype, stored=stored, comm=context.comm)
        for direction, layout, other in (
            ("forward", operator.domain, operator.range),
            ("adjoint", operator.range, operator.domain),
        ):
            x: Any = random(layout, seed=1, comm=context.comm, dtype="float32", engine=context.engine).astype(dtype)
            out: Any = new_array(other, x, dtype)
            program = partial(getattr(operator, direction), x, out=out)
            result = program()
            reference, doubt = references.setdefault(direction, (result.copy(), operator.error_bound.total))
            error = float((result.astype("float64") - reference).norm() / x.astype("float64").norm())
            checks = [
                check(
                    context.comm,
                    f"{direction} in {stored} against float64, for a vector of norm 1, by the bound",
                    error,
                    operator.error_bound.total + doubt,
                )
            ]
            yield _measure(context, plan, operator, direction, stored, program, (x, out), checks)


def _measure(
    context: Context,
    plan: Plan,
    operator: BlockToeplitz,
    direction: str,
    stored: str,
    program: Callable[[], Any],
    vectors: tuple[DistributedArray, DistributedArray],
    checks: list[Any],
) -> Measurement:
    engine, comm = context.engine, context.comm
    moved = operator.stored_bytes + sum(int(vector.local_array.nbytes) for vector in vectors)
    source, target = (engine.xp.ones(moved // 8, "float32") for _ in range(2))
    ours = EAGER if engine.memory == "device" else OURS
    programs: dict[str, Callable[[], Any]] = {ours: program, COPY: partial(engine.xp.copyto, target, source)}
    timings = interleave(programs, comm, engine, plan)
    if ours == EAGER:
        timings |= captured(context, program, plan)

    def figures(timing: Timing) -> dict[str, float]:
        return {"bandwidth": moved / timing.wall.median, "of_copy": timings[COPY].wall.median / timing.wall.median}

    (samples, columns), (_, rows) = operator.dims, operator.dimsd
    return Measurement(
        f"BlockToeplitz, {direction}",
        {"samples": samples, "rows": rows, "columns": columns, "dtype": operator.dtype.name, "stored": stored},
        timings,
        {PEER: "it has no such operator"},
        ours=REPLAYED if ours == EAGER else ours,
        checks=checks,
        figures={name: figures(timing) for name, timing in timings.items()},
        messages=messages_of_a_call(program),
    )
