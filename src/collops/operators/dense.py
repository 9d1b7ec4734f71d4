"""Dense local matrices, multiplied by the BLAS of the array's engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.backend import engine_of
from collops.operators.memory import applied, store

__all__ = ["DenseMatrix", "dense"]

_LARGE = 32 << 20  # bytes: from here on the product takes longer than its launch, and cuBLAS is faster


class DenseMatrix:
    """A dense matrix on the host or of JAX, whose products also take vectors of JAX.

    Parameters
    ----------
    matrix : array, 2-D
        Used where it lies when it is contiguous in either order, else copied once.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    __slots__ = ("_complex", "_conjugated", "_engine", "_matrix", "_transposed", "dtype", "shape")

    def __init__(self, matrix: Any) -> None:
        self._engine = engine_of(matrix)
        matrix = self._engine.xp.asarray(matrix)  # numpy.matrix has products of its own
        if self._engine.mutable and not (matrix.flags.c_contiguous or matrix.flags.f_contiguous):
            matrix = self._engine.xp.ascontiguousarray(matrix)
        self._matrix = matrix
        self._transposed = matrix.T
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype: np.dtype = matrix.dtype
        self._complex = self.dtype.kind == "c"
        self._conjugated: Any = None

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the matrix times `x`."""
        return self._product(self._matrix, x, out)

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the conjugate transpose times `y`."""
        if not self._complex:
            return self._product(self._transposed, y, out)
        # BLAS has no product with a conjugated matrix that is not transposed, as a matrix in C order would need: the
        # vectors are conjugated instead.
        result = self._product(self._transposed, self._conjugate_of(y), out)
        engine = engine_of(result)
        return applied(engine.xp.conjugate, result, out=result if engine.mutable else None)

    def _product(self, matrix: Any, x: Any, out: Any) -> Any:
        # dot() writes only into an array of exactly the result's dtype.
        if out is not None and x.dtype == self.dtype == out.dtype:
            return self._engine.xp.dot(matrix, x, out=out)
        return store(matrix @ x, out)

    def _conjugate_of(self, y: Any) -> Any:
        if type(y) is not type(self._matrix) or y.dtype != self.dtype:
            return y.conj()
        if self._conjugated is None:
            self._conjugated = self._engine.xp.empty(self.shape[0], self.dtype)
        return self._engine.xp.conjugate(y, out=self._conjugated)


def dense(matrix: Any) -> Any:
    """Return the local operator of a 2-D array: on CUDA devices one that works while a stream is being captured.

    Small real matrices on CuPy are multiplied by kernels of ours, which cost the host half as much as cuBLAS; large and
    complex ones by cuBLAS.

    Parameters
    ----------
    matrix : array, 2-D
        Of any engine.

    Returns
    -------
    LocalOperator
    """
    engine = engine_of(matrix)
    cublas = engine.name == "cupy" and matrix.dtype.char in "fdFD" and not engine.xp.cuda.runtime.is_hip
    if engine.name == "cupy" and matrix.dtype.char in "fd" and not (cublas and matrix.nbytes >= _LARGE):
        from collops.operators.dense_kernels import KernelMatrix

        return KernelMatrix(matrix)
    if cublas:
        from collops.operators.cublas import CublasMatrix

        return CublasMatrix(matrix)
    return DenseMatrix(matrix)
