"""Sparse blocks on the GPU, by a kernel of our own: a CUDA graph can record it, unlike CuPy's calls of cuSPARSE.

The adjoint multiplies by a transposed copy, made when it is first used, so that its sums need no atomic operations and
have the same bits in every run.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from collops.errors import UnsupportedTypeError

__all__ = ["DeviceBlock"]

_ELEMENTS = ("float32", "float64", "complex64", "complex128")
_BLOCK = 256
_BLOCKS_PER_PROCESSOR = 32
_MOST_LANES = 32


class DeviceBlock:
    """A matrix on the GPU.

    Parameters
    ----------
    matrix : scipy.sparse.csr_array
    dtype : dtype
        Of the vectors; values are kept in it.

    Raises
    ------
    UnsupportedTypeError
        If it is not of single or double precision.
    """

    def __init__(self, matrix: Any, dtype: np.dtype) -> None:
        if dtype.name not in _ELEMENTS:
            raise UnsupportedTypeError(f"sparse matrices multiply {', '.join(_ELEMENTS)} on devices, not {dtype}")
        self._host = matrix
        self._dtype = dtype
        self._rows = _Rows(matrix, dtype)
        self._turned: _Rows | None = None

    def multiply(self, x: Any, out: Any, add: bool) -> None:
        """Set or add the product."""
        self._rows.multiply(x, out, add, 1.0)

    def multiply_adjoint(self, y: Any, out: Any, add: bool) -> None:
        """Set or add the product of the conjugate transpose."""
        if self._turned is None:
            self._turned = _Rows(self._host.T.tocsr(), self._dtype)
        self._turned.multiply(y, out, add, -1.0)


class _Rows:
    """Compressed rows on the device, and the launch of their product."""

    def __init__(self, matrix: Any, dtype: np.dtype) -> None:
        count = matrix.shape[0]
        wide = matrix.nnz > np.iinfo(np.int32).max
        self._arguments = (
            count,
            cupy.asarray(matrix.indptr.astype(np.int64 if wide else np.int32)),
            cupy.asarray(matrix.indices.astype(np.int32)),
            cupy.asarray(matrix.data.astype(dtype)),
        )
        self._empty = matrix.nnz == 0
        lanes = 1
        while lanes < _MOST_LANES and 2 * lanes * count <= matrix.nnz:
            lanes *= 2
        # A few elements for each thread: fewer lanes, less to add up across them.
        lanes = max(1, lanes // 2)
        self._kernel = _kernel(cupy.cuda.Device().id, _ELEMENTS.index(dtype.name), lanes, wide)
        processors = cupy.cuda.Device().attributes["MultiProcessorCount"]
        blocks = -(-count * lanes // _BLOCK)
        self._grid = (max(1, min(blocks, _BLOCKS_PER_PROCESSOR * processors)),)

    def multiply(self, x: Any, out: Any, add: bool, conjugate: float) -> None:
        if self._empty:
            if not add:
                out.fill(0)
            return
        self._kernel(self._grid, (_BLOCK,), (*self._arguments, x, out, np.int32(add), np.float64(conjugate)))


@cache
def _kernel(device: int, element: int, lanes: int, wide: bool) -> Any:
    options = ["-std=c++17", f"-DELEMENT={element}", f"-DLANES={lanes}", *(["-DWIDE"] if wide else [])]
    module = cupy.RawModule(code=Path(__file__).with_name("spmv.cu").read_text(), options=tuple(options))
    return module.get_function("multiply")
