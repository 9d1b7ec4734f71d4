"""Windows that slide over a vector, each the product with one matrix; on one rank also of serial PyLops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from collops.array import DistributedArray
from collops.operators import Sliding
from collops_bench.cgls import SERIAL
from collops_bench.operators.beside import Beside, Program, measure_beside
from collops_bench.operators.case import sizes_of
from collops_bench.peers import why_no_package
from collops_bench.record import Measurement
from collops_bench.registry import Context

__all__ = ["measure"]

_SAMPLES = (32, 256)  # of a window, of short and of long vectors; a quarter of it overlaps
_FEW = 1_000_000  # samples of all windows, up to which PyLops runs on devices


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
        case = Beside(
            "Sliding",
            {"elements": rows, "window": samples, "overlap": overlap, "dtype": size.dtype},
            Sliding(local, *arguments, comm=context.comm),
            size.dtype,
            size.plan,
            partial(_serial, context, local, arguments),
        )
        yield from measure_beside(context, case)


def _serial(
    context: Context, local: Any, arguments: tuple[int, int, int, int], direction: str, x: DistributedArray
) -> Mapping[str, Program | str]:
    if (reason := why_no_package(context, "pylops", one_process=True)) is not None:
        return {SERIAL: reason}
    if context.engine.memory == "device" and arguments[0] > _FEW:
        return {SERIAL: "takes seconds on devices, as it launches each window by itself"}
    from pylops import MatrixMult
    from pylops.signalprocessing import Sliding1D

    serial = Sliding1D(MatrixMult(local, dtype=local.dtype), *arguments)
    return {
        SERIAL: Program(partial(serial.matvec if direction == "forward" else serial.rmatvec, x.local_array.ravel()))
    }
