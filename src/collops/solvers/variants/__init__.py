"""Steps of CG, CGLS, LSQR, ISTA and FISTA other than the textbook steps, and the choice between them.

A variant is a class with the options, tests and numbers of its method. A module that exists for speed names the record
in ``benchmarks/results`` that shows its gain, or states that there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collops.array import Array
from collops.array.fused import sums_squares
from collops.solvers.cg import CG
from collops.solvers.cgls import CGLS
from collops.solvers.iterative_thresholding import IterativeThresholding
from collops.solvers.lsqr import LSQR
from collops.solvers.method import Method
from collops.solvers.problem import takes_part
from collops.solvers.state import extended
from collops.solvers.variants.cg import PreconditionedCG
from collops.solvers.variants.cgls import DampedCGLS, OneMessageCGLS
from collops.solvers.variants.lsqr import PreconditionedLSQR
from collops.solvers.variants.pipelined import PipelinedCG, PipelinedCGLS
from collops.solvers.variants.single_reduction import SingleReductionCG, SingleReductionCGLS
from collops.solvers.variants.thresholding import VaryingThresholding

__all__ = ["choose"]


def choose(method: Method, y: Array, reductions: int | str = 2) -> Method:
    """Return a method with the steps that suit its options and the data `y`.

    Other methods, and methods of derived classes, are returned unchanged. For `reductions` see
    :func:`collops.solvers.cgls`.
    """
    kind = type(method)
    choice = _CHOICES.get(kind)
    chosen = kind if choice is None else choice(method, y, reductions)
    return method if chosen is kind else extended(chosen, method)


def _cg(method: CG, y: Array, reductions: int | str) -> type[CG]:
    if reductions != 2:
        return {1: SingleReductionCG, "pipelined": PipelinedCG}[reductions]
    return PreconditionedCG if method.M is not None or sums_squares(y) else CG


def _cgls(method: CGLS, y: Array, reductions: int | str) -> type[CGLS]:
    if reductions != 2:
        return {1: SingleReductionCGLS, "pipelined": PipelinedCGLS}[reductions]
    if y.comm.size > 1 and not any(takes_part(getattr(method, name)) for name in method.tolerances):
        return OneMessageCGLS
    return DampedCGLS if method.M is not None or takes_part(method.damp) or sums_squares(y) else CGLS


def _lsqr(method: LSQR, y: Array, reductions: int | str) -> type[LSQR]:
    return PreconditionedLSQR if method.M is not None or method.calc_var else LSQR


def _thresholding(method: IterativeThresholding, y: Array, reductions: int | str) -> type[IterativeThresholding]:
    return VaryingThresholding if method.varies else IterativeThresholding


_CHOICES: dict[type, Callable[[Any, Array, int | str], type[Method]]] = {
    CG: _cg,
    CGLS: _cgls,
    LSQR: _lsqr,
    IterativeThresholding: _thresholding,
}
