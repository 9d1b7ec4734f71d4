"""Operators of collops and of the peer, forward and adjoint: small (dominated by host overhead) and large.

On hosts every operator of both packages is applied to vectors of 2000 and of 10 million float64 elements per rank. On
GPUs: derivatives in float32, at sizes limited by messages or by memory, launched call by call (eager) and replayed from
a CUDA graph; CGLS over a stack of first derivatives and a Laplacian; and SUMMA, with the separate times of NCCL for its
messages and of cuBLAS for its products. Sliding windows are compared with serial PyLops on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from collops_bench.operators import derivatives, matrices, transforms, windows
from collops_bench.operators.case import measure_case
from collops_bench.peers import load_peer
from collops_bench.record import Measurement
from collops_bench.registry import Context

__all__ = ["measure"]


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each operator, direction and size."""
    peer = load_peer(context)
    for cases in (derivatives.cases, derivatives.stacks, matrices.cases, transforms.cases):
        for case in cases(context):
            yield from measure_case(context, peer, case)
    yield from windows.measure(context)
    if context.engine.memory == "device":
        yield from derivatives.measure_solver(context, peer)
        yield from matrices.measure_summa(context)
