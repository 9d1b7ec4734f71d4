"""Dense local matrices, multiplied by the BLAS of the array's engine or, on GPUs, by kernels of our own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collops.backend import engine_of
from collops.operators.memory import applied, contiguous, result_memory, store

__all__ = ["DenseMatrix", "KernelMatrix", "dense"]

_LARGE = 32 << 20  # bytes: from here on the product takes longer than its launch, and cuBLAS is faster
_THREADS = 256
_LANES = 32
_BYTES_AT_ONCE = 16
_BLOCKS_PER_PROCESSOR = 4
_FEWEST_ROWS = 64
_ROWS = 4  # of a block of the forward kernel that takes several


def dense(matrix: Any) -> Any:
    """Return the local operator of a 2-D array of any engine: on CUDA devices one that a CUDA graph can record.

    Small real matrices on CuPy are multiplied by our kernels, which cost the host half as much as cuBLAS; large and
    complex ones by cuBLAS.
    """
    engine = engine_of(matrix)
    cublas = engine.name == "cupy" and matrix.dtype.char in "fdFD" and not engine.xp.cuda.runtime.is_hip
    if engine.name == "cupy" and matrix.dtype.char in "fd" and not (cublas and matrix.nbytes >= _LARGE):
        return KernelMatrix(matrix)
    if cublas:
        from collops.operators.cublas import CublasMatrix

        return CublasMatrix(matrix)
    return DenseMatrix(matrix)


class DenseMatrix:
    """The local operator of a dense matrix of any engine, which also multiplies vectors of JAX.

    The matrix is not copied if it is contiguous in either order.
    """

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
        # The adjoint of a matrix in C order is a product with the conjugate alone, which BLAS does not have: the
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


class KernelMatrix:
    """The local operator of a real matrix on a GPU, in single or double precision, by the kernels of ``dense.cu``.

    The matrix is not copied if it is contiguous in either order.
    """

    def __init__(self, matrix: Any) -> None:
        self._xp = xp = engine_of(matrix).xp
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype: np.dtype = matrix.dtype
        # A matrix in the other order is the transpose of one in C order.
        self._turned = matrix.flags.f_contiguous and not matrix.flags.c_contiguous
        self._matrix = matrix = matrix.T if self._turned else xp.ascontiguousarray(matrix)
        rows, columns = matrix.shape
        self._processors = int(matrix.device.attributes["MultiProcessorCount"])
        width = _BYTES_AT_ONCE // self.dtype.itemsize
        self._width = width if columns % width == 0 and _aligned(matrix) else 1
        # Enough blocks to keep all processors loading, but not more partial sums than that takes.
        strips = max(1, -(-columns // (self._width * _LANES)))
        self._splits = max(1, min(-(-self._processors * _BLOCKS_PER_PROCESSOR // strips), rows // _FEWEST_ROWS))
        self._partial = xp.empty(self._splits * columns, self.dtype)
        self._finished = xp.zeros(strips, np.uint32)

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the matrix times `x`."""
        return self._by_columns(x, out) if self._turned else self._by_rows(x, out)

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the transpose times `y`."""
        return self._by_rows(y, out) if self._turned else self._by_columns(y, out)

    def _by_rows(self, x: Any, out: Any) -> Any:
        """Return the matrix in C order times `x`."""
        rows, columns = self._matrix.shape
        x, target = contiguous(x, self.dtype), result_memory(out, rows, self.dtype, self._xp)
        if rows and columns:
            several = _ROWS if rows >= _ROWS * self._processors else 1
            width = self._width if _aligned(x) else 1
            kernel = _kernel(f"forward_{self.dtype.char}_{width}_{several}")
            kernel((-(-rows // several),), (_THREADS,), (self._matrix, x, target, rows, columns))
        else:
            target.fill(0)
        return store(target, out)

    def _by_columns(self, y: Any, out: Any) -> Any:
        """Return the transpose of the matrix in C order times `y`."""
        rows, columns = self._matrix.shape
        y, target = contiguous(y, self.dtype), result_memory(out, columns, self.dtype, self._xp)
        if rows and columns:
            width, splits = (self._width, self._splits) if _aligned(target) else (1, 1)
            kernel = _kernel(f"adjoint_{self.dtype.char}_{width}")
            arguments = (self._matrix, y, target, self._partial, self._finished, rows, columns)
            kernel((-(-columns // (width * _LANES)), splits), (_THREADS,), arguments)
        else:
            target.fill(0)
        return store(target, out)


def _aligned(array: Any) -> bool:
    return array.data.ptr % _BYTES_AT_ONCE == 0


@cache
def _kernel(name: str) -> Any:
    return _module().get_function(name)


@cache
def _module() -> Any:
    import cupy

    return cupy.RawModule(code=Path(__file__).with_name("dense.cu").read_text(), options=("-std=c++17",))
