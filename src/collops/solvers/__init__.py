"""Iterative solvers: methods as pure functions over a state, and the driver that runs them."""

from __future__ import annotations

from collops.solvers.cg import CG, cg
from collops.solvers.cgls import CGLS, cgls
from collops.solvers.driver import Run, View, solve
from collops.solvers.iterative_thresholding import fista, ista
from collops.solvers.lsqr import LSQR, lsqr
from collops.solvers.method import Method
from collops.solvers.power import power_iteration
from collops.solvers.result import SolverResult, Status

__all__ = [
    "CG",
    "CGLS",
    "LSQR",
    "Method",
    "Run",
    "SolverResult",
    "Status",
    "View",
    "cg",
    "cgls",
    "fista",
    "ista",
    "lsqr",
    "power_iteration",
    "solve",
]
