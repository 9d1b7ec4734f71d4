"""Matrix-vector products of real matrices on GPUs, by kernels of our own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from collops.operators.memory import store

__all__ = ["KernelMatrix"]

_THREADS = 256
_LANES = 32
_BYTES_AT_ONCE = 16
_BLOCKS_PER_PROCESSOR = 4
_FEWEST_ROWS = 64
_ROWS = 4  # of a block of the forward kernel that takes several


class KernelMatrix:
    """A dense real matrix on a GPU.

    Parameters
    ----------
    matrix : cupy.ndarray, 2-D
        Single or double precision; used where it lies when it is contiguous in either order, else copied once.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    __slots__ = (
        "_finished",
        "_matrix",
        "_partial",
        "_processors",
        "_splits",
        "_turned",
        "_width",
        "dtype",
        "shape",
    )

    def __init__(self, matrix: Any) -> None:
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype: np.dtype = matrix.dtype
        # A matrix in the other order is the transpose of one in C order.
        self._turned = matrix.flags.f_contiguous and not matrix.flags.c_contiguous
        self._matrix = matrix = matrix.T if self._turned else cupy.ascontiguousarray(matrix)
        rows, columns = matrix.shape
        self._processors = int(matrix.device.attributes["MultiProcessorCount"])
        width = _BYTES_AT_ONCE // self.dtype.itemsize
        self._width = width if columns % width == 0 and _aligned(matrix) else 1
        # Enough blocks to keep all processors loading, but not more partial sums than that takes.
        strips = max(1, -(-columns // (self._width * _LANES)))
        self._splits = max(1, min(-(-self._processors * _BLOCKS_PER_PROCESSOR // strips), rows // _FEWEST_ROWS))
        self._partial = cupy.empty(self._splits * columns, self.dtype)
        self._finished = cupy.zeros(strips, np.uint32)

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the matrix times `x`."""
        return self._by_columns(x, out) if self._turned else self._by_rows(x, out)

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the transpose times `y`."""
        return self._by_rows(y, out) if self._turned else self._by_columns(y, out)

    def _by_rows(self, x: Any, out: Any) -> Any:
        """Return the matrix in C order times `x`."""
        rows, columns = self._matrix.shape
        x, target = self._prepared(x, out, rows)
        if rows and columns:
            several = _ROWS if rows >= _ROWS * self._processors else 1
            width = self._width if _aligned(x) else 1
            kernel = _kernel(f"forward_{self.dtype.char}_{width}_{several}")
            kernel((-(-rows // several),), (_THREADS,), (self._matrix, x, target, rows, columns))
        else:
            target.fill(0)
        return target if target is out else store(target, out)

    def _by_columns(self, y: Any, out: Any) -> Any:
        """Return the transpose of the matrix in C order times `y`."""
        rows, columns = self._matrix.shape
        y, target = self._prepared(y, out, columns)
        if rows and columns:
            width, splits = (self._width, self._splits) if _aligned(target) else (1, 1)
            kernel = _kernel(f"adjoint_{self.dtype.char}_{width}")
            arguments = (self._matrix, y, target, self._partial, self._finished, rows, columns)
            kernel((-(-columns // (width * _LANES)), splits), (_THREADS,), arguments)
        else:
            target.fill(0)
        return target if target is out else store(target, out)

    def _prepared(self, x: Any, out: Any, size: int) -> tuple[Any, Any]:
        """Return input and target as the kernels need them."""
        if x.dtype != self.dtype or not x.flags.c_contiguous:
            x = cupy.ascontiguousarray(x, self.dtype)
        if out is None or out.dtype != self.dtype:
            return x, cupy.empty(size, self.dtype)
        return x, out


def _aligned(array: Any) -> bool:
    return array.data.ptr % _BYTES_AT_ONCE == 0


@cache
def _kernel(name: str) -> Any:
    return _module().get_function(name)


@cache
def _module() -> Any:
    return cupy.RawModule(code=Path(__file__).with_name("dense.cu").read_text(), options=("-std=c++17",))
