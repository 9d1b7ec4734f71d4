"""Products of stored spectra on GPUs: of one vector by the kernels of ``toeplitz.cu``, of several by cuBLAS."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from collops._nvrtc import cuda_kernel
from collops.array.dtypes import real_of
from collops.backend import CudaKernel, LocalArray, engine_of
from collops.errors import LayoutError
from collops.operators.toeplitz import generic
from collops.operators.toeplitz.spectra import Spectra

_STORED = {"float64": "double", "float32": "float", "float16": "Half", "bfloat16": "Bfloat"}
_LANES, _SLICES = 32, 8  # as in toeplitz.cu
_THREADS = _LANES * _SLICES
_ROWS = 2  # of matrices in half precision that a group of lanes multiplies together
_LOAD_BYTES = 16
_BLOCK = 1 << 24  # complex elements widened at once for several vectors: many enough for a call of cuBLAS
_MAX_BLOCKS = (1 << 31) - 1
_BLOCKS_OF_COPIES = 4096


def batch(spectra: Spectra) -> Any:
    """Return the products of the matrices of all frequencies."""
    if not engine_of(spectra.parts).cuda:
        return generic.Scaled(generic.matrices_of(spectra, _BLOCK), spectra.scales)
    return generic.Scaled(DeviceBatch(spectra), spectra.scales)


class DeviceBatch:
    """Matrices of all frequencies on a CUDA device, without their scales; a CUDA graph can record their products."""

    def __init__(self, spectra: Spectra) -> None:
        count, rows, columns, _ = spectra.parts.shape
        self._spectra, self._shape = spectra, (np.int64(rows), np.int64(columns))
        width = _LOAD_BYTES // (2 * spectra.parts.itemsize)
        while columns % width:
            width //= 2
        together = _ROWS if spectra.parts.itemsize == 2 else 1
        self._options = (
            f"-DSTORED={_STORED[spectra.stored]}",
            f"-DREAL={'double' if real_of(spectra.accumulated).itemsize == 8 else 'float'}",
            f"-DWIDTH={width}",
            f"-DROWS={together}",
        )
        self._blocks = count * -(-rows // (_SLICES * together)), count * -(-columns // (width * _LANES))
        if max(self._blocks) > _MAX_BLOCKS:
            raise LayoutError(f"matrices of {rows} x {columns} for {count} frequencies need too many blocks of threads")

    @cached_property
    def _several(self) -> Any:
        """The products with several vectors, whose memory is allocated when they are needed."""
        return generic.matrices_of(self._spectra, _BLOCK, self._widen)

    def forward(self, x: LocalArray, out: LocalArray) -> LocalArray:
        """Fill `out`, (batch, rows, n), with the products with `x`, (batch, columns, n)."""
        if x.shape[2] > 1:
            return self._several.forward(x, out)
        self._kernel("forward")((self._blocks[0],), (_THREADS,), (self._spectra.parts, x, out, *self._shape))
        return out

    def adjoint(self, y: LocalArray, out: LocalArray) -> LocalArray:
        """Fill `out`, (batch, columns, n), with the products of the conjugate transposes with `y`."""
        if y.shape[2] > 1:
            return self._several.adjoint(y, out)
        self._kernel("adjoint")((self._blocks[1],), (_THREADS,), (self._spectra.parts, y, out, *self._shape))
        return out

    def _widen(self, parts: LocalArray, out: LocalArray) -> None:
        blocks = min(_BLOCKS_OF_COPIES, -(-parts.size // _THREADS))
        self._kernel("widen")((blocks,), (_THREADS,), (parts, out, np.int64(parts.size)))

    def _kernel(self, name: str) -> CudaKernel:
        return cuda_kernel(__file__, "toeplitz.cu", name, *self._options)
