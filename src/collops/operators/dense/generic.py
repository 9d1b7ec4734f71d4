"""Dense matrices on engines that have no forms of their own, such as JAX, whose compiler chooses the kernels."""

from __future__ import annotations

from typing import Any

from collops.backend import engine_of
from collops.operators.dense.bfloat16 import TracedMatrix
from collops.operators.dense.matrix import BatchedMatrix, DenseMatrix
from collops.operators.memory import store

local_matrix, batched = DenseMatrix, BatchedMatrix


def bfloat16_matrix(matrix: Any) -> DenseMatrix:
    """Return the local operator of a real matrix, rounded to bfloat16."""
    return TracedMatrix(matrix.astype("bfloat16"))


def multiply(a: Any, b: Any, out: Any, *, adjoint: bool = False, accumulate: bool = False) -> Any:
    """Return a product of two matrices of any engine."""
    engine = engine_of(b)
    if engine.mutable and out is not None and (out.size == 0 or b.shape[0] == 0):
        if not accumulate:
            out.fill(0)
        return out
    product = engine.matmul(a.conj().T if adjoint else a, b)
    return store(out + product if accumulate else product, out)
