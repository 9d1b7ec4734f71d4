"""Kernels that move values between points of two arrays, one module for each engine.

Each module has ``mover(source, target, op, dtype, width, deterministic)`` and ``fetcher(source, target, op, dtype,
width)``. They prepare a move between two indices of arrays of shape ``(points, width)``. A move returns its target: the
array itself where its engine is mutable, else a new one.

Values are combined by the operations of :mod:`collops.comm.reductions` without the average, or replaced. On booleans
``sum`` and ``max`` are *or*, ``prod`` and ``min`` are *and*.
"""

from __future__ import annotations

import numpy as np

from collops.backend import kernel_table
from collops.comm.reductions import check_reduction
from collops.errors import UnsupportedTypeError
from collops.exchange.packing.index import Index

__all__ = ["OPERATIONS", "Index", "check_operation", "packing_for"]

OPERATIONS = ("replace", "sum", "prod", "min", "max", "land", "lor", "lxor")


def check_operation(op: str, dtype: np.dtype) -> None:
    """Raise unless an operation is defined for a dtype.

    Raises
    ------
    UnsupportedTypeError
        For an unknown `op`, orderings of complex numbers, and logical operations on inexact numbers.
    """
    if op not in OPERATIONS:
        raise UnsupportedTypeError(f"unknown operation {op!r}; choose one of {', '.join(OPERATIONS)}")
    # The rank that receives values combines them itself, so products of complex numbers are allowed here.
    if op != "replace" and not (op == "prod" and dtype.kind == "c"):
        check_reduction(op, dtype)


packing_for = kernel_table(__name__, "jax_moves", numpy="numpy_moves", cupy="cupy_moves")
"""The module of moves for an engine."""
