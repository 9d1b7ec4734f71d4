"""Windows that slide over a vector, each the product with one matrix; on one rank also of serial PyLops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from collops.array import random
from collops.operators import Sliding
from collops.operators.memory import new_array
from collops_bench.cgls import SERIAL
from collops_bench.operators.case import EAGER, OURS, REPLAYED, TOLERANCE, captured, sizes_of
from collops_bench.peers import PEER
from collops_bench.record import Measurement
from collops_bench.registry import Context
from collops_bench.shared import agreement, messages_of_a_call
from collops_bench.timing import interleave

__all__ = ["measure"]

_SAMPLES = (32, 256)  # of a window, of short and of long vectors; a quarter of it overlaps


def measure(context: Context) -> Iterator[Measurement]:
    """Yield forward and adjoint in every size."""
    for size in sizes_of(context):
        samples = _SAMPLES[size.elements >= 100_000]
        overlap = samples // 4
        rows = size.elements * context.comm.size
        windows = (rows - samples) // (samples - overlap) + 1
        matrix = np.random.default_rng(0).standard_normal((samples, samples)).astype(size.dtype)
        local = context.engine.from_host(matrix)
        arguments = windows * samples, rows, samples, overlap
        operator = Sliding(local, *arguments, comm=context.comm)
        serial: Any = None
        missing = {PEER: "it has no such operator"}
        if context.comm.size > 1 or not context.options.peer:
            missing[SERIAL] = "it has one process" if context.options.peer else "left out on request"
        else:
            from pylops import MatrixMult
            from pylops.signalprocessing import Sliding1D

            serial = Sliding1D(MatrixMult(local, dtype=size.dtype), *arguments)
        parameters = {"elements": rows, "window": samples, "overlap": overlap, "dtype": size.dtype}
        for direction, layout, other in (
            ("forward", operator.domain, operator.range),
            ("adjoint", operator.range, operator.domain),
        ):
            x = random(layout, seed=1, comm=context.comm, dtype=size.dtype, engine=context.engine)
            out = new_array(other, x, x.dtype)
            ours = EAGER if context.engine.memory == "device" else OURS
            programs: dict[str, Callable[[], Any]] = {ours: partial(getattr(operator, direction), x, out=out)}
            if serial is not None:
                apply = serial.matvec if direction == "forward" else serial.rmatvec
                programs[SERIAL] = partial(apply, x.local_array.ravel())
            locals_ = {name: partial(_local, program) for name, program in programs.items()}
            checks = agreement(context, f"{direction} of Sliding", locals_, TOLERANCE[size.dtype])
            timings = interleave(programs, context.comm, context.engine, size.plan)
            if ours == EAGER:
                timings |= captured(context, programs[EAGER], size.plan)
            yield Measurement(
                f"Sliding, {direction}",
                parameters,
                timings,
                dict(missing),
                ours=REPLAYED if ours == EAGER else ours,
                peer=SERIAL,
                checks=checks,
                messages=messages_of_a_call(programs[ours]),
            )


def _local(program: Callable[[], Any]) -> Any:
    result = program()
    return getattr(result, "local_array", result).ravel()
