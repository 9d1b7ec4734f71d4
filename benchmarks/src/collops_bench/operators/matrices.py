"""Products of distributed matrices; and, on GPUs, the parts of SUMMA alone.

The peer needs a number of ranks that is a square.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isqrt
from typing import Any

import numpy as np

from collops.array import Layout, random
from collops.comm import Communicator
from collops.operators import MatrixMult
from collops_bench.operators.case import EAGER, Case, captured, of_peer, sizes_of
from collops_bench.peers import Peer
from collops_bench.record import Measurement, check
from collops_bench.registry import Context
from collops_bench.timing import Plan, interleave

__all__ = ["cases", "measure_summa"]

_COLUMNS = 256  # of the model, for large matrices
_SIDES = (16384, 8192)  # of the matrices that SUMMA multiplies on GPUs
NCCL, CUBLAS = "NCCL", "cuBLAS"


def cases(context: Context) -> Iterator[Case]:
    """Yield both algorithms in every size."""
    ranks = context.comm.size
    square = isqrt(ranks) ** 2 == ranks
    for size in sizes_of(context):
        side = isqrt(size.elements * ranks) // (2 * ranks) * (2 * ranks)  # equal blocks for every rank
        columns = min(side, _COLUMNS)
        for kind in ("block", "summa"):
            matrix = random((side, side), seed=3, comm=context.comm, dtype=size.dtype, engine=context.engine)
            grid = (isqrt(ranks), isqrt(ranks)) if square else None
            operator = MatrixMult(matrix, columns, kind, process_grid=grid, gather_range=kind == "block" and square)
            parameters = {"matrix": [side, side], "columns": columns, "dtype": size.dtype}
            peer: Callable[[Peer], Any] | None = None
            missing = "it needs a number of ranks that is a square"
            if kind == "block" and ranks > 1:
                missing = "it numbers its blocks in another order"
            elif square:
                block = matrix.redistribute(Layout.grid(matrix.shape, (isqrt(ranks), isqrt(ranks)))).local_array
                peer = of_peer("MPIMatrixMult", block, columns, kind=kind, dtype=size.dtype)
            yield Case(f"MatrixMult, {kind}", parameters, operator, peer, size.dtype, missing=missing, plan=size.plan)


def measure_summa(context: Context) -> Iterator[Measurement]:
    """Yield SUMMA on GPUs, the gathers of all it multiplies by NCCL, and the product by cuBLAS."""
    comm, engine = context.comm, context.engine
    plan = Plan(rounds=5, seconds=0.1)
    for side in _SIDES[-1:] if context.options.quick else _SIDES:
        matrix = random((side, side), seed=3, comm=comm, dtype="float32", engine=engine)
        operator = MatrixMult(matrix, side, "summa")
        x = random(operator.domain, seed=4, comm=comm, dtype="float32", engine=engine)
        y = operator.forward(x)
        programs: dict[str, Callable[[], Any]] = {EAGER: lambda x=x, y=y, A=operator: A.forward(x, out=y)}
        missing: dict[str, str] = {}
        p, q = operator.process_grid
        if p == 1 or q == 1:
            missing |= dict.fromkeys((NCCL, CUBLAS), "a grid of one row or column of processes sends one factor only")
        else:
            programs |= _parts(comm, engine.xp, operator, y.local_array.shape)
        # Freivalds: A (X v) must equal (A X) v.
        v = np.random.default_rng(5).standard_normal(side)
        expected = _times(matrix, _times(x, v))
        error = float(np.linalg.norm(_times(y, v) - expected) / np.linalg.norm(expected))
        checks = [check(comm, f"(A X) v against A (X v), {side} x {side}", error, 1e-4)]
        timings = interleave(programs, comm, engine, plan)
        timings |= captured(context, programs[EAGER], plan)
        parts = sum(timings[name].wall.median for name in (NCCL, CUBLAS) if name in timings)
        yield Measurement(
            "SUMMA",
            {"matrix": [side, side], "columns": side, "process_grid": [p, q], "dtype": "float32"},
            timings,
            missing,
            ours=EAGER,
            checks=checks,
            figures={EAGER: {"of_parts": timings[EAGER].wall.median / parts}} if parts else {},
        )


def _times(matrix: Any, v: np.ndarray) -> np.ndarray:
    """Return the product with a vector, in double precision, of a matrix split over both axes. Collective."""
    engine, comm = matrix.engine, matrix.comm
    rows, columns = matrix.layout.slices(comm.rank)
    result = np.zeros(matrix.shape[0])
    result[rows] = engine.to_host(matrix.local_array.astype("float64") @ engine.from_host(v[columns]))
    return comm.allreduce(result)


def _parts(comm: Communicator, xp: Any, operator: MatrixMult, shape: tuple[int, int]) -> dict[str, Callable[[], Any]]:
    """Return the gathers of both factors of one product by NCCL, one after the other, and the product by cuBLAS."""
    domain: Any = operator.domain
    _, q = operator.process_grid
    rows, columns = shape
    row = comm.subgroup(tuple(rank // q for rank in range(comm.size)))
    column = comm.subgroup(tuple(rank % q for rank in range(comm.size)))
    a, b = xp.ones((domain.shape[0], rows), "float32"), xp.ones((domain.shape[0], columns), "float32")
    parts = [(item, full[: len(full) // item.size].copy(), full) for item, full in ((row, a), (column, b))]
    result = xp.zeros(shape, "float32")

    def messages() -> None:
        stream = xp.cuda.get_current_stream().ptr
        for item, part, full in parts:
            transport: Any = item.transport_of(part)
            transport.binding.all_gather(part.data.ptr, full.data.ptr, part.nbytes, 1, transport.handle, stream)

    def product() -> None:
        xp.matmul(a.T, b, out=result)

    return {NCCL: messages, CUBLAS: product}
