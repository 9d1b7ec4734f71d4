"""Inner solves of proximal methods: a fixed number of iterations, so that no iteration waits for a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.array import dots
from collops.operators import LinearOperator
from collops.solvers.cg import CG
from collops.solvers.cgls import CGLS
from collops.solvers.problem import agreed, real_dtype

__all__ = ["least_squares", "positive_definite"]

_ROUNDING = 4
"""Gradients below so many units of rounding are taken for 0: beyond that, iterations would only amplify them."""


def positive_definite(operator: LinearOperator, right: Any, start: Any, damp: float, niter: int) -> Any:
    """Return what `niter` iterations of CG make of ``(operator + damp) x = right``. Collective."""
    method = CG(damp, 0.0, cautious=False)
    state = method.init(operator, right, start, True)
    floor = _floor(right)
    state.residual_square = _above(state.residual_square, floor)
    for _ in range(niter):
        state = method.step(state)
        state.residual_square = _above(state.residual_square, floor)
    return state.x


def least_squares(operator: LinearOperator, data: Any, start: Any, niter: int) -> Any:
    """Return what `niter` iterations of CGLS make of ``operator x = data``. Collective."""
    method = CGLS(0.0, 0.0, cautious=False)
    state = method.init(operator, data, start, True)
    floor = _floor(operator.adjoint(data))
    state.gradient_square = _above(state.gradient_square, floor)
    for _ in range(niter):
        state = method.step(state)
        state.gradient_square = _above(state.gradient_square, floor)
    return state.x


def _floor(gradient: Any) -> Any:
    together = agreed(gradient)
    unit = _ROUNDING * float(np.finfo(real_dtype(gradient.dtype)).eps)
    return dots((together, together))[0] * unit**2


def _above(square: Any, floor: Any) -> Any:
    """Return `square`, and 0 where it is below `floor`, of which CG and CGLS make steps of length 0."""
    return square * (square > floor)
