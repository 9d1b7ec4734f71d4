"""The cases of a soak test: each draws a problem, solves it on all ranks, and compares with a serial result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from collops_bench.soak.cases import arrays, interruptions, messages, operators, solvers, sparse
from collops_bench.soak.draw import Draw

__all__ = ["CASES", "Case"]

Case: TypeAlias = Callable[[Draw], None]

CASES: dict[str, Case] = {
    "arithmetic": arrays.arithmetic,
    "reductions": arrays.reductions,
    "redistribute": arrays.redistribute,
    "halo": arrays.halo,
    "files": arrays.files,
    "messages": messages.collectives,
    "symmetric": messages.symmetric,
    "split": messages.split,
    "derivative": operators.derivative,
    "fft": operators.fft,
    "fredholm": operators.fredholm,
    "stack": operators.stack,
    "product": operators.product,
    "restriction": operators.restriction,
    "matrix": sparse.matrix,
    "starforest": sparse.star_forest,
    "scatter": sparse.scatter,
    "cgls": solvers.cgls,
    "cg": solvers.cg,
    "lsqr": solvers.lsqr,
    "fista": solvers.fista,
    "interrupted": interruptions.interrupted,
    "killed": interruptions.killed,
}
"""By name. All are collective, and take the same draw on every rank."""
