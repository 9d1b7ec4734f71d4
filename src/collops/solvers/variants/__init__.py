"""Other steps of CG and CGLS than the textbook's, and the one place where they are chosen.

A variant is a class with the options, tests and numbers of its method. Each module names the record in
``benchmarks/results`` that shows its gain.
"""

from __future__ import annotations

from typing import Any

from collops.array.fused import sums_squares
from collops.solvers.cg import CG
from collops.solvers.cgls import CGLS
from collops.solvers.problem import takes_part
from collops.solvers.state import extended
from collops.solvers.variants.cg import PreconditionedCG
from collops.solvers.variants.cgls import DampedCGLS, OneMessageCGLS
from collops.solvers.variants.pipelined import PipelinedCG, PipelinedCGLS
from collops.solvers.variants.single_reduction import SingleReductionCG, SingleReductionCGLS

__all__ = ["choose"]

_REDUCTIONS: dict[tuple[type, Any], type] = {
    (CG, 1): SingleReductionCG,
    (CGLS, 1): SingleReductionCGLS,
    (CG, "pipelined"): PipelinedCG,
    (CGLS, "pipelined"): PipelinedCGLS,
}


def choose(method: Any, y: Any, reductions: Any) -> Any:
    """Return CG or CGLS with the steps that suit its options and the data; other methods, also derived ones, as is."""
    kind = type(method)
    if kind not in (CG, CGLS):
        return method
    general = method.M is not None or sums_squares(y)
    if reductions != 2:
        chosen = _REDUCTIONS[kind, reductions]
    elif kind is CG:
        chosen = PreconditionedCG if general else CG
    elif y.comm.size > 1 and not any(takes_part(getattr(method, name)) for name in method.tolerances):
        chosen = OneMessageCGLS
    else:
        chosen = DampedCGLS if general or takes_part(method.damp) else CGLS
    return method if chosen is kind else extended(chosen, method)
