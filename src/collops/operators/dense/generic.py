"""Dense matrices on hosts, multiplied by SciPy's BLAS, and of JAX, whose compiler chooses the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from collops.backend import LocalArray, engine_of
from collops.operators.dense.bfloat16 import HostMatrix, TracedMatrix, bits_of
from collops.operators.dense.matrix import BatchedMatrix, DenseMatrix
from collops.operators.memory import store

_GEMM = {"f": "sgemm", "d": "dgemm", "F": "cgemm", "D": "zgemm"}
_CONJUGATE_TRANSPOSE = 2

local_matrix, batched = DenseMatrix, BatchedMatrix


def bfloat16_matrix(matrix: LocalArray) -> DenseMatrix:
    """Return the local operator of a real matrix, rounded to bfloat16."""
    return HostMatrix(bits_of(matrix)) if engine_of(matrix).mutable else TracedMatrix(matrix.astype("bfloat16"))


def multiply(
    a: LocalArray, b: LocalArray, out: LocalArray | None, *, adjoint: bool = False, accumulate: bool = False
) -> LocalArray:
    """Return a product of two matrices of any engine, on hosts by BLAS if it supports them."""
    if type(out) is np.ndarray and out.dtype.char in _GEMM and out.size and b.shape[0]:
        # BLAS uses column-major order: it computes the transposed product of the transposed matrices.
        conjugate = _CONJUGATE_TRANSPOSE if adjoint else 0
        _gemm(out.dtype.char)(1, b.T, a.T, beta=int(accumulate), c=out.T, trans_b=conjugate, overwrite_c=True)
        return out
    engine = engine_of(b)
    if engine.mutable and out is not None and (out.size == 0 or b.shape[0] == 0):
        if not accumulate:
            out.fill(0)
        return out
    product = engine.matmul(a.conj().T if adjoint else a, b)
    return store(out + product if accumulate else product, out)


@cache
def _gemm(char: str) -> Callable[..., np.ndarray]:
    from scipy.linalg import blas

    return getattr(blas, _GEMM[char])
