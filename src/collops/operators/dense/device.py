"""Dense matrices on GPUs: products by cuBLAS on CUDA devices, by the kernels of ``dense.cu``, or by CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops._nvrtc import cuda_kernel
from collops.backend import LocalArray, engine_of
from collops.operators.dense import generic
from collops.operators.dense.bfloat16 import bits_of
from collops.operators.dense.matrix import BatchedMatrix, DenseMatrix
from collops.operators.memory import contiguous, store

_BY_BLAS = "fdFD"
_LARGE = 32 << 20  # bytes: above this size the product takes longer than its launch, and cuBLAS is faster
_THREADS = 256
_LANES = 32
_LOAD_BYTES = 16
_BLOCKS_PER_PROCESSOR = 4
_MIN_ROWS = 64
_ROWS, _ROWS_OF_BFLOAT16 = 4, 2  # of a block of the forward kernel that takes several


class KernelMatrix(DenseMatrix):
    """The local operator of a real matrix on a GPU, in single or double precision, by the kernels of ``dense.cu``.

    Its elements may be bfloat16 bits as ``uint16``; vectors are then in single precision.
    """

    def __init__(self, matrix: LocalArray) -> None:
        super().__init__(matrix)
        # A matrix in the other order is the transpose of one in C order.
        self._rows = self.matrix if self.matrix.flags.c_contiguous else self._transposed
        rows, columns = self._rows.shape
        self._processors = int(matrix.device.attributes["MultiProcessorCount"])
        width = _LOAD_BYTES // self.dtype.itemsize
        self._stored, self._several = self.dtype.char, _ROWS
        if self.dtype.kind == "u":
            self._stored, self._several, self.dtype = "bfloat16", _ROWS_OF_BFLOAT16, np.dtype(np.float32)
        self._width = width if columns % width == 0 and _aligned(self._rows) else 1
        # Enough blocks to saturate the memory bandwidth, but no more, to limit the number of partial sums.
        strips = max(1, -(-columns // (self._width * _LANES)))
        self._splits = max(1, min(-(-self._processors * _BLOCKS_PER_PROCESSOR // strips), rows // _MIN_ROWS))
        self._partial = self._engine.xp.empty(self._splits * columns, self.dtype)
        self._finished = self._engine.xp.zeros(strips, np.uint32)

    def _products(self, X: LocalArray, matrix: LocalArray, out: LocalArray) -> LocalArray:
        of_each = self.matrix if matrix is self._transposed else self._transposed
        for x, result in zip(X, out, strict=True):
            store(self._product(of_each, x, result if result.flags.c_contiguous else None), result)
        return out

    def _product(self, matrix: LocalArray, x: LocalArray, out: LocalArray) -> LocalArray:
        if x.dtype.kind == "c":
            parts = [self._product(matrix, part, None) for part in (x.real, x.imag)]
            return store(parts[0] + 1j * parts[1], out)
        rows, columns = self._rows.shape
        if x.dtype != self.dtype or not x.flags.c_contiguous:
            x = contiguous(x, self.dtype)
        target = out
        if out is None or out.dtype != self.dtype:
            target = self._engine.xp.empty(matrix.shape[0], self.dtype)
        if not rows or not columns:
            target.fill(0)
        elif matrix is self._rows:
            several = self._several if rows >= self._several * self._processors else 1
            width = self._width if _aligned(x) else 1
            kernel = cuda_kernel(__file__, "dense.cu", f"forward_{self._stored}_{width}_{several}")
            kernel((-(-rows // several),), (_THREADS,), (matrix, x, target, rows, columns))
        else:
            width, splits = (self._width, self._splits) if _aligned(target) else (1, 1)
            kernel = cuda_kernel(__file__, "dense.cu", f"adjoint_{self._stored}_{width}")
            arguments = (self._rows, x, target, self._partial, self._finished, rows, columns)
            kernel((-(-columns // (width * _LANES)), splits), (_THREADS,), arguments)
        return target if target is out else store(target, out)


def _aligned(array: LocalArray) -> bool:
    return array.data.ptr % _LOAD_BYTES == 0


def local_matrix(matrix: LocalArray) -> DenseMatrix:
    """Return the local operator of a matrix, which a CUDA graph can record if it is in single or double precision.

    For vectors, the custom kernels have half the launch overhead of cuBLAS, which is faster for large matrices and
    also supports complex ones.
    """
    real = matrix.dtype.kind == "f"
    if matrix.dtype.char in _BY_BLAS and engine_of(matrix).cuda:
        from collops.operators.dense.cublas import CublasMatrix, SmallMatrix

        return SmallMatrix(matrix) if real and matrix.nbytes < _LARGE else CublasMatrix(matrix)
    return KernelMatrix(matrix) if real and matrix.dtype.char in _BY_BLAS else DenseMatrix(matrix)


def bfloat16_matrix(matrix: LocalArray) -> DenseMatrix:
    """Return the local operator of a real matrix, rounded to bfloat16."""
    return KernelMatrix(bits_of(matrix))


def batched(matrices: LocalArray, keep_adjoint: bool, at_once: bool) -> Any:
    """Return the products of a batch of matrices: by cuBLAS, which ignores the options, if it supports the dtype."""
    if matrices.dtype.char in _BY_BLAS and engine_of(matrices).cuda:
        from collops.operators.dense.cublas import CublasBatch

        return CublasBatch(matrices)
    return BatchedMatrix(matrices, keep_adjoint, at_once)


def multiply(
    a: LocalArray, b: LocalArray, out: LocalArray | None, *, adjoint: bool = False, accumulate: bool = False
) -> LocalArray:
    """Return a product of two matrices, by cuBLAS if it supports them."""
    by_blas = out is not None and out.size and b.shape[0] and out.dtype.char in _BY_BLAS
    if not by_blas or not engine_of(out).cuda:
        return generic.multiply(a, b, out, adjoint=adjoint, accumulate=accumulate)
    from collops.operators.dense import cublas

    cublas.multiply(a, b, out, adjoint=adjoint, accumulate=accumulate)
    return out
