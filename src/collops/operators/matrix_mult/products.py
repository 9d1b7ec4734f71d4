"""Products of local matrices by the BLAS of their engine; conjugate transposes take no copy."""

from __future__ import annotations

from functools import cache
from typing import Any

from collops.backend import engine_of
from collops.operators.memory import store

__all__ = ["multiply"]

_BY_BLAS = "fdFD"
_CONJUGATE_TRANSPOSE = 2


def multiply(a: Any, b: Any, out: Any, *, adjoint: bool = False, accumulate: bool = False) -> Any:
    """Return ``a @ b``, or the product with the conjugate transpose of `a`; in `out` if that is given.

    Matrices are C-contiguous, of one engine and one dtype, and may be empty. With `accumulate`, the product is added
    to the values of `out`.
    """
    engine = engine_of(b)
    if engine.mutable and out is not None:
        if out.size == 0 or b.shape[0] == 0:
            if not accumulate:
                out.fill(0)
            return out
        by_blas = out.dtype.char in _BY_BLAS
        if engine.name == "numpy" and by_blas:
            # BLAS counts columns first: it computes the transposed product of the transposed matrices.
            conjugate = _CONJUGATE_TRANSPOSE if adjoint else 0
            _gemm(out.dtype.char)(1, b.T, a.T, beta=int(accumulate), c=out.T, trans_b=conjugate, overwrite_c=True)
            return out
        if engine.name == "cupy" and by_blas and not engine.xp.cuda.runtime.is_hip:
            from collops.operators.cublas import multiply as multiply_by_cublas

            multiply_by_cublas(a, b, out, adjoint=adjoint, accumulate=accumulate)
            return out
    product = engine.xp.matmul(a.conj().T if adjoint else a, b)
    return store(out + product if accumulate else product, out)


@cache
def _gemm(char: str) -> Any:
    from scipy.linalg import blas

    return getattr(blas, {"f": "sgemm", "d": "dgemm", "F": "cgemm", "D": "zgemm"}[char])
