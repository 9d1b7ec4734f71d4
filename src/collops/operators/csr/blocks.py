"""Local sparse blocks on the host: products with the matrix and with its adjoint.

Like ``device`` and ``traced``, the modules for other engines, this one has ``make_block(engine, matrix, dtype)``. A
block has ``multiply(x, out, add)``, which returns the product with `x`, in or added to `out`, and
``multiply_adjoint(y, out, add)``. All arrays are 1-D, contiguous and of one dtype, in the memory of the engine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collops.array import kernels
from collops.backend import Engine, SparseArray


def dtype_of_entries(matrix: SparseArray, dtype: np.dtype) -> np.dtype:
    """Return in which precision engines store entries for vectors of `dtype`: single where that is exact."""
    single = matrix.dtype.char in "fF" and matrix.dtype.kind == dtype.kind
    return matrix.dtype if single else dtype


def make_block(engine: Engine, matrix: SparseArray, dtype: np.dtype) -> _SciPyBlock | _FewRows:
    """Return the local block of a SciPy matrix for vectors of an engine and a dtype."""
    filled = np.flatnonzero(np.diff(matrix.indptr))
    return _host_block(matrix) if 2 * len(filled) > matrix.shape[0] else _FewRows(matrix, filled)


def _host_block(matrix: SparseArray) -> _SciPyBlock:
    """Return the block of a matrix on the host, most of whose rows have entries."""
    if matrix.nnz >= kernels.LONG and matrix.dtype.char in "fd" and kernels.loops() is not None:
        return _CompiledBlock(matrix)
    return _SciPyBlock(matrix)


class _SciPyBlock:
    """A matrix on the host, multiplied by SciPy.

    SciPy's kernels add to existing memory if all types agree. Its operator ``@`` allocates the product, which costs a
    tenth of the time of a product with seven entries a row.
    """

    __slots__ = ("_complex", "_kernels", "_matrix", "_transposed")

    def __init__(self, matrix: SparseArray) -> None:
        from scipy.sparse import _sparsetools  # pyright: ignore[reportAttributeAccessIssue]

        self._kernels = _sparsetools.csr_matvec, _sparsetools.csc_matvec
        self._matrix = matrix
        self._transposed = matrix.T  # compressed columns of the same memory
        self._complex = matrix.dtype.kind == "c"

    def multiply(self, x: np.ndarray, out: np.ndarray, add: bool) -> np.ndarray:
        if self._fits(x, out):
            return self._added(self._kernels[0], self._matrix, x, out, add)
        return self._stored(self._matrix @ x, out, add)

    def multiply_adjoint(self, y: np.ndarray, out: np.ndarray, add: bool) -> np.ndarray:
        if self._fits(y, out) and not self._complex:
            return self._added(self._kernels[1], self._transposed, y, out, add)
        product = (self._transposed @ y.conj()).conj() if self._complex else self._transposed @ y
        return self._stored(product, out, add)

    def _fits(self, x: np.ndarray, out: np.ndarray) -> bool:
        return self._matrix.dtype == x.dtype == out.dtype and out.dtype.char in "fdFD" and out.flags.carray

    @staticmethod
    def _added(
        kernel: Callable[..., None], matrix: SparseArray, x: np.ndarray, out: np.ndarray, add: bool
    ) -> np.ndarray:
        if not add:
            out.fill(0)
        kernel(*matrix.shape, matrix.indptr, matrix.indices, matrix.data, x, out)
        return out

    @staticmethod
    def _stored(product: np.ndarray, out: np.ndarray, add: bool) -> np.ndarray:
        if add:
            out += product
        else:
            out[...] = product
        return out


class _CompiledBlock(_SciPyBlock):
    """A large real matrix on the host, multiplied by Numba; its adjoint by SciPy."""

    __slots__ = ("_multiply", "_rows")

    def __init__(self, matrix: SparseArray) -> None:
        from collops.operators.csr.numba_rows import multiply

        super().__init__(matrix)
        unsigned = (indices.view(f"u{indices.itemsize}") for indices in (matrix.indptr, matrix.indices))
        self._multiply, self._rows = multiply, (*unsigned, matrix.data)

    def multiply(self, x: np.ndarray, out: np.ndarray, add: bool) -> np.ndarray:
        if not self._fits(x, out):
            return super().multiply(x, out, add)
        self._multiply(*self._rows, x, out, add)
        return out


class _FewRows:
    """A matrix on the host with many empty rows: products read and write only the rows with entries.

    The block of a rank's rows in the columns of other ranks is such a matrix.
    """

    __slots__ = ("_filled", "_rows")

    def __init__(self, matrix: SparseArray, filled: np.ndarray) -> None:
        first, count = (int(filled[0]), len(filled)) if len(filled) else (0, 0)
        consecutive = count == 0 or filled[-1] - first == count - 1
        self._rows = slice(first, first + count) if consecutive else filled
        self._filled = _host_block(matrix[filled])

    def multiply(self, x: np.ndarray, out: np.ndarray, add: bool) -> np.ndarray:
        if not add:
            out.fill(0)
        part = out[self._rows]  # a view of consecutive rows
        self._filled.multiply(x, part, add=True)
        if not isinstance(self._rows, slice):
            out[self._rows] = part
        return out

    def multiply_adjoint(self, y: np.ndarray, out: np.ndarray, add: bool) -> np.ndarray:
        return self._filled.multiply_adjoint(y[self._rows], out, add)
