"""Distributed arrays of both packages: each case returns results of their methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.compat.operator_cases import block_diag, derivative, halves
from tests.compat.sides import COPIES, DTYPES, Side
from tests.operators.problems import vector


def parts(s: Side, mask: Any = None, dtype: str = "", partition: str = "") -> Any:
    values = vector(7 * 5, dtype or s.dtype, 1).reshape(7, 5)
    return s.array(values, mask=mask, partition=partition)


def masked(s: Side) -> Any:
    return s.array(vector(4 * s.size, s.dtype, 2), mask=halves(s))


def stack(s: Side) -> Any:
    x = s.vector(7)
    return s.stacked(x, s.stacked(s.array(vector(9, s.dtype, 3)), x.copy()))


def assigned(s: Side) -> Any:
    x, both_parts = parts(s), stack(s)
    x[1:] = 2.5
    both_parts[0] = 3.0
    both_parts[1] = both_parts[1] + both_parts[1]
    return [x, x[:1], both_parts, x.local_array]


def in_place(s: Side) -> Any:
    x, y = parts(s), stack(s)
    x += parts(s)
    x -= 3 * parts(s)
    y += stack(s)
    y -= 3 * stack(s)
    return [x.iadd(parts(s)), y.iadd(stack(s))]


def on_half_of_the_ranks(s: Side) -> Any:
    """Arrays, an operator and a solver on two subcommunicators that work at the same time."""
    group = s.base_comm.Split(color=s.rank % 2, key=s.rank)
    sub = replace(s, base_comm=group)
    op, model = block_diag(sub)
    data = op @ model
    second = derivative("MPISecondDerivative")(sub)
    x = s.pkg.cgls(op, data, model.zeros_like(), niter=3, tol=0.0)[0]
    return [model, data, op.H @ data, second[0] @ second[1], model.dot(model), model.norm(1), model.asarray(), x]


NORMS = (None, 0, 1, 2, 3, np.inf, -np.inf)
ARRAYS: dict[str, Callable[[Side], Any]] = {
    "attributes": lambda s: [
        [x.ndim, x.rank, x.size, x.mask, x.base_comm.Get_size(), [list(map(int, shape)) for shape in x.local_shapes]]
        for x in (parts(s), masked(s))
    ],
    "attributes of stacks": lambda s: [
        [x.narrays, x.engine, x.rank, x.size, list(map(int, x.global_shape)), x.base_comm.Get_size(), len(x[:])]
        for x in (stack(s), s.stacked(parts(s), parts(s)), s.stacked(parts(s), s.stacked(parts(s), parts(s))))
    ],
    "gathered": lambda s: [x.asarray() for x in (parts(s), masked(s), stack(s))] + [masked(s).asarray(masked=True)],
    "arithmetic": lambda s: [
        [x + x, x - 2 * x, x * x, -x, 2 * x, x * 3.0, x.conj(), x.copy(), x.add(x), x.multiply(x)]
        for x in (parts(s), masked(s), stack(s))
    ],
    "zeros": lambda s: [parts(s).zeros_like(), stack(s)[1].zeros_like()],
    "numbers added": lambda s: [parts(s) + 1.5, masked(s) - 1.5],
    "empty": lambda s: [[x.engine, list(map(int, x.global_shape)), x.mask] for x in (masked(s).empty_like(),)],
    "in place": in_place,
    "assigned": assigned,
    "shapes": lambda s: [
        parts(s).ravel(),
        parts(s).ravel(order="F"),
        parts(s).ravel().reshape(parts(s).local_shape),
        parts(s).redistribute(1),
        parts(s).redistribute(1).redistribute(0),
    ],
    "ghost cells": lambda s: [
        parts(s, partition="SCATTER").add_ghost_cells(*cells) for cells in ((1,), (None, 1), (1, 1))
    ],
    "inner products": lambda s: [x.dot(x, vdot=vdot) for x in (parts(s), stack(s)) for vdot in (False, True)],
    "norms": lambda s: [x.norm(order) for x in (parts(s), masked(s), stack(s)) for order in NORMS],
    "norms along an axis": lambda s: [
        parts(s, partition="SCATTER").norm(order, axis=axis).astype(float) for order in NORMS[1:] for axis in (0, 1)
    ],
    "subcommunicators": on_half_of_the_ranks,
}
ARRAY_CASES = [(name, "SCATTER", dtype) for name in ARRAYS for dtype in DTYPES]
ARRAY_CASES += [(name, copies, "complex128") for name in ARRAYS if name != "subcommunicators" for copies in COPIES]
