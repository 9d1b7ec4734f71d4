"""Matrix-vector products by CUDA kernels of our own, for real matrices in C order."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from collops.operators.local import store

__all__ = ["KernelMatrix"]

_THREADS = 256
_LANES = 32
_BYTES_AT_ONCE = 16
_BLOCKS_PER_PROCESSOR = 4
_FEWEST_ROWS = 64


class KernelMatrix:
    """A dense real matrix on a CUDA device.

    Parameters
    ----------
    matrix : cupy.ndarray, 2-D
        Single or double precision; copied once if it is not in C order.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
    """

    __slots__ = ("_finished", "_matrix", "_partial", "_processors", "_splits", "_width", "dtype", "shape")

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix = cupy.ascontiguousarray(matrix)
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype: np.dtype = matrix.dtype
        self._processors = int(matrix.device.attributes["MultiProcessorCount"])
        width = _BYTES_AT_ONCE // self.dtype.itemsize
        self._width = width if self.shape[1] % width == 0 and _aligned(matrix) else 1
        # Enough blocks to keep all processors loading, but not more partial sums than that takes.
        strips = -(-self.shape[1] // (self._width * _LANES))
        wanted = -(-self._processors * _BLOCKS_PER_PROCESSOR // max(1, strips))
        self._splits = max(1, min(wanted, self.shape[0] // _FEWEST_ROWS))
        self._partial = cupy.empty(self._splits * self.shape[1], self.dtype)
        self._finished = cupy.zeros(max(1, strips), np.uint32)

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the matrix times `x`."""
        rows, columns = self.shape
        x, target, width = self._prepared(x, out, rows)
        if rows and columns:
            several = 4 if rows >= 4 * self._processors else 1
            kernel = _kernel(f"forward_{self.dtype.char}_{width}_{several}")
            kernel((-(-rows // several),), (_THREADS,), (self._matrix, x, target, rows, columns))
        else:
            target.fill(0)
        return target if target is out else store(target, out)

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the transpose times `y`."""
        rows, columns = self.shape
        y, target, width = self._prepared(y, out, columns, reads_in_packs=False)
        if rows and columns:
            strips = -(-columns // (width * _LANES))
            splits = self._splits if width == self._width else 1
            kernel = _kernel(f"adjoint_{self.dtype.char}_{width}")
            arguments = (self._matrix, y, target, self._partial, self._finished, rows, columns)
            kernel((strips, splits), (_THREADS,), arguments)
        else:
            target.fill(0)
        return target if target is out else store(target, out)

    def _prepared(self, x: Any, out: Any, size: int, reads_in_packs: bool = True) -> tuple[Any, Any, int]:
        """Return input and target as the kernels need them, and how many elements they may take at once."""
        if x.dtype != self.dtype or not x.flags.c_contiguous:
            x = cupy.ascontiguousarray(x, self.dtype)
        target = out
        if out is None or out.dtype != self.dtype:
            target = cupy.empty(size, self.dtype)
        return x, target, self._width if _aligned(x if reads_in_packs else target) else 1


def _aligned(array: Any) -> bool:
    return array.data.ptr % _BYTES_AT_ONCE == 0


@cache
def _kernel(name: str) -> Any:
    return _module().get_function(name)


@cache
def _module() -> Any:
    return cupy.RawModule(code=Path(__file__).with_name("dense.cu").read_text(), options=("-std=c++17",))
