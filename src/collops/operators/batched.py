"""Batches of dense local matrices, all of one shape: products into given memory, with the BLAS of their engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from collops.backend import engine_of
from collops.operators.scratch import Scratch

__all__ = ["BatchedMatrix", "as_columns", "batched"]

_BY_CUBLAS = "fdFD"


class BatchedMatrix:
    r"""Matrices of one shape, each of which multiplies one of its own.

    Parameters
    ----------
    matrices : array, 3-D
        Of shape (batch, rows, columns), in C order.
    keep_adjoint : bool
        Whether the conjugate transposes are stored as well.
    at_once : bool
        One call for the whole batch, or one for each matrix.

    Attributes
    ----------
    dtype : numpy.dtype
    capturable : bool
        Whether a stream may be captured meanwhile.

    Notes
    -----
    BLAS transposes as it reads, but has no product with conjugates alone, so that the adjoint of complex matrices which
    are not stored is computed as :math:`\overline{G^T \overline{y}}`: the vectors are conjugated, not the matrices.
    """

    __slots__ = (
        *("_adjoints", "_at_once", "_complex", "_conjugates", "_engine", "_matrices", "_scratch"),
        *("capturable", "dtype"),
    )

    def __init__(self, matrices: Any, keep_adjoint: bool, at_once: bool) -> None:
        self._engine = engine_of(matrices)
        self._matrices = matrices
        self._at_once = at_once
        self.dtype: np.dtype = matrices.dtype
        self._complex = self.dtype.kind == "c"
        turned = matrices.swapaxes(1, 2)
        # Without conjugates to take, the transposes are views of the same memory, and as fast.
        self._adjoints = self._engine.xp.ascontiguousarray(turned.conj()) if keep_adjoint else turned
        self._conjugates = self._complex and not keep_adjoint
        self._scratch = Scratch()
        self.capturable = self._engine.name == "numpy"  # CuPy refuses its own calls of cuBLAS in a capture

    def forward(self, x: Any, out: Any) -> Any:
        """Fill `out`, of shape (batch, rows, n), with the products with `x`, of shape (batch, columns, n)."""
        return self._product(self._matrices, x, out)

    def adjoint(self, y: Any, out: Any) -> Any:
        """Fill `out`, of shape (batch, columns, n), with the products of the conjugate transposes with `y`."""
        if not self._conjugates:
            return self._product(self._adjoints, y, out)
        conjugate = self._engine.xp.conjugate
        self._product(self._adjoints, conjugate(y, out=self._scratch.get("", y.shape, y.dtype, self._engine)), out)
        return conjugate(out, out=out)

    def _product(self, matrices: Any, x: Any, out: Any) -> Any:
        if not self._complex and x.dtype.kind == "c":
            # Real matrices multiply real and imaginary parts as columns: the matrices need not become complex.
            x, result = as_columns(x), as_columns(out)
        else:
            result = out
        if self._at_once:
            self._engine.xp.matmul(matrices, x, out=result)
        else:
            for matrix, given, taken in zip(matrices, x, result, strict=True):
                self._engine.xp.dot(matrix, given, out=taken)
        return out


def batched(matrices: Any, keep_adjoint: bool, at_once: bool) -> Any:
    """Return the products of a batch of matrices on its engine: on CUDA devices by calls that can be captured.

    Parameters
    ----------
    matrices : array, 3-D
        Of shape (batch, rows, columns), in C order.
    keep_adjoint, at_once : bool
        See :class:`BatchedMatrix`. Our calls of cuBLAS have use for neither: it conjugates as it reads.

    Returns
    -------
    BatchedMatrix or CublasBatch
    """
    engine = engine_of(matrices)
    if engine.name == "cupy" and matrices.dtype.char in _BY_CUBLAS and not engine.xp.cuda.runtime.is_hip:
        from collops.operators.cublas import CublasBatch

        return CublasBatch(matrices)
    return BatchedMatrix(matrices, keep_adjoint, at_once)


def as_columns(x: Any) -> Any:
    """Return a complex array in C order as a real one with twice as many columns, without a copy."""
    return x.view(x.real.dtype)
