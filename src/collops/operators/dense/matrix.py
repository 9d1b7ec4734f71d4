"""Dense matrices in this rank's memory, multiplied by the functions of their engine's package."""

from __future__ import annotations

import numpy as np

from collops.backend import LocalArray, engine_of
from collops.operators.memory import Buffers, Coefficients, contiguous, store


class DenseMatrix:
    """The local operator of a dense matrix of any engine, which also multiplies vectors of JAX.

    The matrix is not copied if it is contiguous in either order; it is copied to another engine at the first vector of
    that engine. Subclasses override the product.
    """

    def __init__(self, matrix: LocalArray) -> None:
        self._engine = engine_of(matrix)
        matrix = self._engine.xp.asarray(matrix)  # numpy.matrix overrides the product
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

    def forward_local(self, x: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the matrix times `x`."""
        return self._product(self.matrix, x, out)

    def adjoint_local(self, y: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the conjugate transpose times `y`."""
        if not self._complex:
            return self._product(self._transposed, y, out)
        # The adjoint of a matrix in C order needs a conjugate without a transpose, which BLAS does not support: the
        # vectors are conjugated instead.
        result = self._product(self._transposed, self._conjugate_of(y), out)
        engine = engine_of(result)
        return engine.xp.conjugate(result, out=result) if engine.mutable else result.conj()

    def forward_columns(self, X: LocalArray, out: LocalArray) -> LocalArray:
        """Fill `out` with the matrix times each row of `X`, and return it."""
        return self._products(X, self._transposed, out)

    def adjoint_columns(self, Y: LocalArray, out: LocalArray) -> LocalArray:
        """Fill `out` with the conjugate transpose times each row of `Y`, and return it."""
        if not self._complex:
            return self._products(Y, self.matrix, out)
        result = self._products(self._conjugate_of(Y), self.matrix, out)
        return self._engine.xp.conjugate(result, out=result)

    def _products(self, X: LocalArray, matrix: LocalArray, out: LocalArray) -> LocalArray:
        if X.dtype == self.dtype == out.dtype:
            self._engine.xp.matmul(X, matrix, out=out)
            return out
        return store(X @ matrix, out)

    def _product(self, matrix: LocalArray, x: LocalArray, out: LocalArray | None) -> LocalArray:
        engine = engine_of(x)
        if engine is not self._engine:
            coefficients = self._coefficients.on_engine(engine)
            matrix = coefficients if matrix is self.matrix else coefficients.T
        # dot() requires an output array of exactly the result's dtype.
        if out is not None and x.dtype == self.dtype == out.dtype:
            return engine.xp.dot(matrix, x, out=out)
        return store(engine.matmul(matrix, x), out)

    def _conjugate_of(self, y: LocalArray) -> LocalArray:
        if not self._engine.mutable or type(y) is not type(self.matrix) or y.dtype != self.dtype:
            return y.conj()
        conjugated = self._buffers.local("conjugate", y.shape, self.dtype, self._engine)
        return self._engine.xp.conjugate(y, out=conjugated)


class BatchedMatrix:
    r"""Matrices (batch, rows, columns) in C order; each multiplies a separate matrix.

    BLAS can transpose, but cannot conjugate without a transpose. Without stored adjoints (`keep_adjoint`),
    the adjoint of complex matrices is therefore computed as :math:`\overline{G^T \overline{y}}`: the vectors are
    conjugated, not the matrices. `at_once` chooses one call for the whole batch, or one for each matrix. ``by_rows``
    tells whether some rows of all products can be computed alone.
    """

    by_rows = False

    def __init__(self, matrices: LocalArray, keep_adjoint: bool, at_once: bool) -> None:
        self._engine = engine_of(matrices)
        self._matrices = matrices
        self._at_once = at_once
        self.dtype: np.dtype = matrices.dtype
        self._complex = self.dtype.kind == "c"
        transposes = matrices.swapaxes(1, 2)
        # Transposes without conjugation are views, and equally fast.
        self._adjoints = contiguous(transposes.conj(), matrices.dtype) if keep_adjoint else transposes
        self._conjugates = self._complex and not keep_adjoint
        self._buffers = Buffers()
        self.capturable = not self._engine.streams  # CuPy raises when its calls of cuBLAS are captured

    def forward(self, x: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the products with `x`, (batch, columns, n), as (batch, rows, n); in `out` if that is given."""
        return self._product(self._matrices, x, out)

    def adjoint(self, y: LocalArray, out: LocalArray | None) -> LocalArray:
        """Return the products of the conjugate transposes with `y`, as (batch, columns, n)."""
        if not self._conjugates:
            return self._product(self._adjoints, y, out)
        memory = self._buffers.local("", y.shape, y.dtype, self._engine)
        if memory is None:
            return self._product(self._adjoints, y.conj(), None).conj()
        conjugate = self._engine.xp.conjugate
        return conjugate(self._product(self._adjoints, conjugate(y, out=memory), out), out=out)

    def _product(self, matrices: LocalArray, x: LocalArray, out: LocalArray | None) -> LocalArray:
        if out is None:
            return self._engine.matmul(matrices, x)
        result = out
        if not self._complex and x.dtype.kind == "c":
            x, result = x.view(x.real.dtype), out.view(out.real.dtype)  # real and imaginary parts as columns
        if self._at_once:
            self._engine.xp.matmul(matrices, x, out=result)
        else:
            for matrix, source, target in zip(matrices, x, result, strict=True):
                self._engine.xp.dot(matrix, source, out=target)
        return out
