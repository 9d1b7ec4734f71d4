"""Dense matrices on hosts: products of matrices by the BLAS of SciPy."""

from __future__ import annotations

from functools import cache
from typing import Any

from collops.operators.dense import generic
from collops.operators.dense.bfloat16 import HostMatrix, bits_of
from collops.operators.dense.matrix import BatchedMatrix, DenseMatrix

local_matrix, batched = DenseMatrix, BatchedMatrix
_GEMM = {"f": "sgemm", "d": "dgemm", "F": "cgemm", "D": "zgemm"}
_CONJUGATE_TRANSPOSE = 2


def bfloat16_matrix(matrix: Any) -> DenseMatrix:
    """Return the local operator of a real matrix, rounded to bfloat16."""
    return HostMatrix(bits_of(matrix))


def multiply(a: Any, b: Any, out: Any, *, adjoint: bool = False, accumulate: bool = False) -> Any:
    """Return a product of two matrices, by BLAS where it can."""
    if out is None or not out.size or not b.shape[0] or out.dtype.char not in _GEMM:
        return generic.multiply(a, b, out, adjoint=adjoint, accumulate=accumulate)
    # BLAS counts columns first: it computes the transposed product of the transposed matrices.
    conjugate = _CONJUGATE_TRANSPOSE if adjoint else 0
    _gemm(out.dtype.char)(1, b.T, a.T, beta=int(accumulate), c=out.T, trans_b=conjugate, overwrite_c=True)
    return out


@cache
def _gemm(char: str) -> Any:
    from scipy.linalg import blas

    return getattr(blas, _GEMM[char])
