"""Solvers of both packages: each case returns its results, with the iterates that the callback has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pylops

from tests.compat.operator_cases import (
    Built,
    block_diag,
    columns,
    masked_block_diag,
    stacked_block_diag,
    stacked_vertical,
    vertical,
)
from tests.compat.sides import ROUNDING, Side
from tests.operators.problems import vector


def seen(solve: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    iterates: list[Any] = []
    results = solve(*arguments, callback=lambda x, *_: iterates.append(x.copy()), **options)
    return [results, iterates]


def least_squares(s: Side, build: Callable[[Side], Built], **options: Any) -> Any:
    op, truth = build(s)
    return seen(s.pkg.cgls, op, op @ truth, 0.0 * truth, **options)  # zeros_like loses the mask there


def normal_equations(s: Side, build: Callable[[Side], Built], **options: Any) -> Any:
    op, truth = build(s)
    return seen(s.pkg.cg, op.H @ op, op.H @ (op @ truth), truth.zeros_like(), **options)


def sparse(s: Side, name: str, start: float = 0.0, **options: Any) -> Any:
    op, truth = block_diag(s)
    x0 = truth.zeros_like() + start
    return seen(getattr(s.pkg, name), op, op @ truth, x0, **{"niter": 7, "alpha": 1e-2, "tol": 0.0, **options})


def estimated_step(s: Side, name: str) -> Any:
    np.random.seed(3)  # noqa: NPY002 - both packages draw from this generator
    s.xp.random.seed(3)
    return sparse(s, name, alpha=None, eigsdict={"niter": 20, "tol": 0.0})


def eigenvalue(s: Side) -> Any:
    np.random.seed(5)  # noqa: NPY002
    s.xp.random.seed(5)
    op, model = block_diag(s)
    value, eigenvector, iterations = s.get("optimization.eigs.power_iteration")(
        op.H @ op, model.empty_like(), niter=15, tol=0.0, dtype=s.dtype, backend=s.xp.__name__
    )
    return [complex(value), eigenvector, iterations]


def step_by_step(s: Side, name: str) -> Any:
    op, truth = block_diag(s)
    data, options = op @ truth, {"alpha": 1e-2} if "ISTA" in name else {}
    if name == "CG":
        op, data = op.H @ op, op.H @ data
    solver = getattr(s.pkg, name)(op)
    x = solver.setup(data, truth.zeros_like(), niter=4, tol=0.0, **options)
    steps, state = [], (x, x.copy()) if name == "FISTA" else (x,)
    for _ in range(2):
        results = solver.step(*state)
        results = results if isinstance(results, tuple) else (results,)
        state = results[: len(state)]
        steps.append([*(part.copy() for part in state), *results[len(state) :]])
    x = solver.run(state[0], 4) if name != "FISTA" else state[0]  # FISTA.run starts again there
    solver.finalize()
    return [steps, x, solver.iiter, solver.cost]


def damped(s: Side) -> Any:
    return least_squares(s, block_diag, niter=5, damp=0.3, tol=0.0)


SOLVERS: dict[str, Callable[[Side], Any]] = {
    "cgls": lambda s: least_squares(s, block_diag, niter=3, tol=0.0),
    "cgls with damping": damped,
    "cgls to a tolerance": lambda s: least_squares(s, block_diag, niter=30, tol=50.0),
    "cgls of a replicated model": lambda s: least_squares(
        replace(s, partition="BROADCAST"), vertical, niter=3, tol=0.0
    ),
    "cgls of a stacked operator": lambda s: least_squares(s, stacked_block_diag, niter=6, tol=0.0),
    "cgls with regularization": lambda s: least_squares(s, stacked_vertical, niter=6, tol=0.0),
    "cgls with a mask": lambda s: least_squares(s, masked_block_diag, niter=3, tol=0.0),
    "cg": lambda s: normal_equations(s, block_diag, niter=3, tol=0.0),
    "cg to a tolerance": lambda s: normal_equations(s, block_diag, niter=30, tol=50.0),
    "ista": lambda s: sparse(s, "ista", eps=0.5),
    "fista": lambda s: sparse(s, "fista", eps=0.5),
    "ista, hard": lambda s: sparse(s, "ista", eps=0.5, threshkind="hard", start=1.0),
    "fista, half": lambda s: sparse(s, "fista", eps=0.5, threshkind="half", start=1.0),
    "ista, decaying": lambda s: sparse(s, "ista", eps=0.5, decay=s.xp.linspace(1, 0.5, 7)),
    "ista to a tolerance": lambda s: sparse(s, "ista", eps=0.5, tol=5e-1),
    "ista, transformed": lambda s: sparse(s, "ista", eps=0.5, SOp=block_rotation(s)),
    "ista, estimated step": lambda s: estimated_step(s, "ista"),
    "fista, estimated step": lambda s: estimated_step(s, "fista"),
    "power iteration": eigenvalue,
    **{f"{name}, step by step": lambda s, name=name: step_by_step(s, name) for name in ("CG", "CGLS", "ISTA", "FISTA")},
}


def block_rotation(s: Side) -> Any:
    n = columns(s)[s.rank]
    matrix = np.linalg.qr(vector(n * n, s.dtype, 9 + s.rank).reshape(n, n))[0]
    return s.pkg.MPIBlockDiag([pylops.MatrixMult(s.xp.asarray(matrix), dtype=s.dtype)])


# Rounding grows by the conditions of the operators: squares of 10 here.
CONDITION = 100 * ROUNDING
