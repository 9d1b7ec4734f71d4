"""Dense local matrices, multiplied by the BLAS of the array's engine, or on GPUs by kernels of our own."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops._nvrtc import cuda_kernel
from collops.backend import engine_of
from collops.operators.memory import Buffers, Coefficients, contiguous, store

_THREADS = 256
_LANES = 32
_BYTES_AT_ONCE = 16
_BLOCKS_PER_PROCESSOR = 4
_FEWEST_ROWS = 64
_ROWS, _ROWS_OF_BFLOAT16 = 4, 2  # of a block of the forward kernel that takes several


class DenseMatrix:
    """The local operator of a dense matrix of any engine, which also multiplies vectors of JAX.

    The matrix is not copied if it is contiguous in either order; for vectors of another engine it is copied at their
    first use. Subclasses replace the product.
    """

    def __init__(self, matrix: Any) -> None:
        self._engine = engine_of(matrix)
        matrix = self._engine.xp.asarray(matrix)  # numpy.matrix has products of its own
        if self._engine.mutable and not (matrix.flags.c_contiguous or matrix.flags.f_contiguous):
            matrix = self._engine.xp.ascontiguousarray(matrix)
        self.matrix = matrix
        self._transposed = matrix.T
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype: np.dtype = matrix.dtype
        self._complex = self.dtype.kind == "c"
        self.columns_engine = self._engine.name if self._engine.mutable else None
        self._buffers = Buffers()
        self._coefficients = Coefficients(matrix)

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the matrix times `x`."""
        return self._product(self.matrix, x, out)

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the conjugate transpose times `y`."""
        if not self._complex:
            return self._product(self._transposed, y, out)
        # The adjoint of a matrix in C order is a product with the conjugate alone, which BLAS does not have: the
        # vectors are conjugated instead.
        result = self._product(self._transposed, self._conjugate_of(y), out)
        engine = engine_of(result)
        return engine.xp.conjugate(result, out=result) if engine.mutable else result.conj()

    def forward_columns(self, X: Any, out: Any) -> Any:
        """Fill `out` with the matrix times each row of `X`, and return it."""
        return self._products(X, self._transposed, out)

    def adjoint_columns(self, Y: Any, out: Any) -> Any:
        """Fill `out` with the conjugate transpose times each row of `Y`, and return it."""
        if not self._complex:
            return self._products(Y, self.matrix, out)
        result = self._products(self._conjugate_of(Y), self.matrix, out)
        return self._engine.xp.conjugate(result, out=result)

    def _products(self, X: Any, matrix: Any, out: Any) -> Any:
        if X.dtype == self.dtype == out.dtype:
            self._engine.xp.matmul(X, matrix, out=out)
            return out
        return store(X @ matrix, out)

    def _product(self, matrix: Any, x: Any, out: Any) -> Any:
        engine = engine_of(x)
        if engine is not self._engine:
            there = self._coefficients.on(engine)
            matrix = there if matrix is self.matrix else there.T
        # dot() writes only into an array of exactly the result's dtype.
        if out is not None and x.dtype == self.dtype == out.dtype:
            return engine.xp.dot(matrix, x, out=out)
        return store(engine.matmul(matrix, x), out)

    def _conjugate_of(self, y: Any) -> Any:
        if not self._engine.mutable or type(y) is not type(self.matrix) or y.dtype != self.dtype:
            return y.conj()
        conjugated = self._buffers.local("conjugate", y.shape, self.dtype, self._engine)
        return self._engine.xp.conjugate(y, out=conjugated)


class KernelMatrix(DenseMatrix):
    """The local operator of a real matrix on a GPU, in single or double precision, by the kernels of ``dense.cu``.

    Its elements may be the bits of bfloat16 as ``uint16``: the vectors are then in single precision.
    """

    def __init__(self, matrix: Any) -> None:
        super().__init__(matrix)
        # A matrix in the other order is the transpose of one in C order.
        self._rows = self.matrix if self.matrix.flags.c_contiguous else self._transposed
        rows, columns = self._rows.shape
        self._processors = int(matrix.device.attributes["MultiProcessorCount"])
        width = _BYTES_AT_ONCE // self.dtype.itemsize
        self._stored, self._several = self.dtype.char, _ROWS
        if self.dtype.kind == "u":
            self._stored, self._several, self.dtype = "bfloat16", _ROWS_OF_BFLOAT16, np.dtype(np.float32)
        self._width = width if columns % width == 0 and _aligned(self._rows) else 1
        # Enough blocks to keep all processors loading, but not more partial sums than that takes.
        strips = max(1, -(-columns // (self._width * _LANES)))
        self._splits = max(1, min(-(-self._processors * _BLOCKS_PER_PROCESSOR // strips), rows // _FEWEST_ROWS))
        self._partial = self._engine.xp.empty(self._splits * columns, self.dtype)
        self._finished = self._engine.xp.zeros(strips, np.uint32)

    def _products(self, X: Any, matrix: Any, out: Any) -> Any:
        of_each = self.matrix if matrix is self._transposed else self._transposed
        for x, result in zip(X, out, strict=True):
            store(self._product(of_each, x, result if result.flags.c_contiguous else None), result)
        return out

    def _product(self, matrix: Any, x: Any, out: Any) -> Any:
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


def _aligned(array: Any) -> bool:
    return array.data.ptr % _BYTES_AT_ONCE == 0
