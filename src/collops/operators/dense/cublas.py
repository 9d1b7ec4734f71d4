"""Matrix products by cuBLAS, called directly: CuPy does not allow its own calls of cuBLAS in a capture.

The reason is that cuBLAS may allocate memory at its first call on a stream. This module assigns a workspace to every
stream beforehand, so that nothing is allocated during a capture. cuBLAS uses column-major order: it reads an array in
C order as the transpose.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from collops.backend import LocalArray
from collops.errors import CollopsError, LayoutError
from collops.operators.dense.device import KernelMatrix
from collops.operators.dense.matrix import DenseMatrix
from collops.operators.memory import check_holds, contiguous, store

_NORMAL, _TRANSPOSED, _ADJOINT = 0, 1, 2
_LETTERS = {"f": "S", "d": "D", "F": "C", "D": "Z"}
_POINTER, _INTEGER, _STRIDE = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_ONE_MATRIX, _STRIDED = [_POINTER, _INTEGER], [_POINTER, _INTEGER, _STRIDE]
_ARGUMENTS = {
    "gemv_v2": [_POINTER, *[_INTEGER] * 3, _POINTER, *_ONE_MATRIX, *_ONE_MATRIX, _POINTER, *_ONE_MATRIX],
    "gemm_v2": [_POINTER, *[_INTEGER] * 5, _POINTER, *_ONE_MATRIX, *_ONE_MATRIX, _POINTER, *_ONE_MATRIX],
    "gemmStridedBatched": [_POINTER, *[_INTEGER] * 5, _POINTER, *_STRIDED, *_STRIDED, _POINTER, *_STRIDED, _INTEGER],
}
_HOPPER = 90
_MEBIBYTE = 1 << 20
_MAX_EXTENT = (1 << 31) - 1
_ALL = slice(None)


class _CublasColumns(DenseMatrix):
    """A dense matrix on a CUDA device, in single or double precision; one call multiplies a batch of columns."""

    def _products(self, X: LocalArray, matrix: LocalArray, out: LocalArray) -> LocalArray:
        if X.dtype.kind == "c" and not self._complex:
            check_holds(out.dtype, X.dtype)
            for part, result in ((X.real, out.real), (X.imag, out.imag)):
                self._products(part, matrix, result)
            return out
        if X.size == 0 or out.size == 0:
            out.fill(0)  # cuBLAS would not write to it
            return out
        if not _has_rows(X, self.dtype):
            X = store(X, self._buffers.local("given", X.shape, self.dtype, self._engine))
        target = out
        if not _has_rows(out, self.dtype):
            target = self._buffers.local("result", out.shape, self.dtype, self._engine)
        multiply(X, matrix, target)
        return store(target, out)


class SmallMatrix(_CublasColumns, KernelMatrix):
    """The local operator of a small real matrix: custom kernels multiply vectors, cuBLAS multiplies columns."""


class CublasMatrix(_CublasColumns):
    """The local operator of a dense matrix on a CUDA device, in single or double precision, real or complex."""

    def __init__(self, matrix: LocalArray) -> None:
        super().__init__(matrix)
        _check_extents(*self.shape)
        self._device = int(self.matrix.device.id)
        self._gemv = _routine("gemv_v2", self.dtype.char)
        self._zero_address, self._one_address, _ = _constants(self.dtype.char)
        # The leading matrix is in column-major order; the other operand is the transpose.
        self._leading = self._transposed if self.matrix.flags.c_contiguous else self.matrix

    def _product(self, matrix: LocalArray, x: LocalArray, out: LocalArray | None) -> LocalArray:
        if x.dtype.kind == "c" and not self._complex:
            return super()._product(matrix, x, out)
        x = contiguous(x, self.dtype)
        target = out if out is not None and out.dtype == self.dtype else cupy.empty(matrix.shape[0], self.dtype)
        if x.size == 0 or target.size == 0:
            target.fill(0)  # cuBLAS would not write to it
            return store(target, out)
        rows, columns = self._leading.shape
        status = self._gemv(
            *(_handle(self._device), _NORMAL if matrix is self._leading else _TRANSPOSED, rows, columns),
            *(self._one_address, matrix.data.ptr, rows, x.data.ptr, 1),
            *(self._zero_address, target.data.ptr, 1),
        )
        _check(status, "gemv")
        return store(target, out)


class CublasBatch:
    """A batch of matrices (batch, rows, columns) in C order on a CUDA device; each multiplies one matrix."""

    capturable = by_rows = True

    def __init__(self, matrices: LocalArray) -> None:
        _check_extents(*matrices.shape)
        self._matrices = matrices
        self.dtype: np.dtype = matrices.dtype
        self._device = int(matrices.device.id)
        self._zero_address, self._one_address, _ = _constants(self.dtype.char)

    def forward(self, x: LocalArray, out: LocalArray, rows: slice = _ALL) -> LocalArray:
        """Fill `out`, (batch, rows, n), or only `rows` of it, with products with `x`, (batch, columns, n)."""
        return self._product(_NORMAL, x, out, rows)

    def adjoint(self, y: LocalArray, out: LocalArray, rows: slice = _ALL) -> LocalArray:
        """Fill `out`, (batch, columns, n), or only `rows` of it, with products of conjugate transposes with `y`."""
        return self._product(_ADJOINT, y, out, rows)

    def _product(self, operation: int, x: LocalArray, out: LocalArray, rows: slice) -> LocalArray:
        if out.size == 0:
            return out
        if x.size == 0:
            out[:, rows] = 0
            return out
        result = out
        if self.dtype.kind != "c" and x.dtype.kind == "c":
            x, result = x.view(self.dtype), out.view(self.dtype)  # real and imaginary parts as columns
        # cuBLAS computes the product of the transposes in reverse order; the adjoint is the conjugate transpose of
        # the matrix as cuBLAS reads it.
        columns, inner, width = result.shape[1], x.shape[1], x.shape[2]
        leading = self._matrices.shape[2]
        first, last, _ = rows.indices(columns)
        skipped = first * (leading if operation == _NORMAL else 1) * self._matrices.itemsize
        # Not an attribute, since a function of a library cannot be copied with the operator.
        status = _routine("gemmStridedBatched", self.dtype.char)(
            *(_handle(self._device), _NORMAL, operation, width, last - first, inner),
            *(self._one_address, x.data.ptr, width, inner * width),
            *(self._matrices.data.ptr + skipped, leading, self._matrices.shape[1] * leading),
            *(self._zero_address, result.data.ptr + first * width * result.itemsize, width, columns * width, len(x)),
        )
        _check(status, "gemmStridedBatched")
        return out


def multiply(a: LocalArray, b: LocalArray, c: LocalArray, *, adjoint: bool = False, accumulate: bool = False) -> None:
    """Set `c` to ``a @ b``, or to the product with the conjugate transpose of `a`; or add the product to `c`.

    All are matrices on a device, not empty, of one dtype: single or double precision, real or complex. Each row of `a`
    and of `c` is contiguous, and `b` as a whole, in either order.
    """
    rows, columns = c.shape
    turned = not b.flags.c_contiguous
    spacings = [max(matrix.strides[0] // matrix.itemsize, matrix.shape[1]) for matrix in (a, c)]
    _check_extents(rows, *spacings, *b.shape)
    zero, one, _ = _constants(c.dtype.char)
    status = _routine("gemm_v2", c.dtype.char)(
        *(_handle(c.device.id), _TRANSPOSED if turned else _NORMAL, _ADJOINT if adjoint else _NORMAL),
        *(columns, rows, b.shape[0], one, b.data.ptr, b.shape[0] if turned else columns, a.data.ptr, spacings[0]),
        *(one if accumulate else zero, c.data.ptr, spacings[1]),
    )
    _check(status, "gemm")


def _has_rows(array: LocalArray, dtype: np.dtype) -> bool:
    """Return whether `array` is of `dtype`, and its rows are contiguous and do not overlap."""
    spacing, step = array.strides
    return array.dtype == dtype and step == array.itemsize and spacing >= array.shape[1] * step


class _Handle:
    """A cuBLAS handle of one device and one thread, with a workspace for each stream it has used."""

    def __init__(self, device: int) -> None:
        self.library = _library()
        self.value = ctypes.c_void_p()
        self._stream: int | None = None
        self._workspaces: dict[int, Any] = {}
        # size recommended by NVIDIA
        hopper = int(cupy.cuda.Device(device).compute_capability) >= _HOPPER
        self._nbytes = (32 if hopper else 4) * _MEBIBYTE
        with cupy.cuda.Device(device):
            _check(self.library.cublasCreate_v2(ctypes.byref(self.value)), "cublasCreate")

    def on_stream(self, stream: int) -> ctypes.c_void_p:
        """Return the handle, set to `stream`."""
        if stream != self._stream:
            workspace = self._workspaces.get(stream)
            if workspace is None:
                workspace = self._workspaces[stream] = cupy.cuda.alloc(self._nbytes)
            # Order matters: setting the stream resets the workspace.
            _check(self.library.cublasSetStream_v2(self.value, ctypes.c_void_p(stream)), "cublasSetStream")
            address, nbytes = ctypes.c_void_p(workspace.ptr), ctypes.c_size_t(self._nbytes)
            _check(self.library.cublasSetWorkspace_v2(self.value, address, nbytes), "cublasSetWorkspace")
            self._stream = stream
        return self.value


_local = threading.local()  # holds the handles of a thread by device


def _handle(device: int) -> ctypes.c_void_p:
    """Return this thread's handle of a device, set to the current stream."""
    handles: dict[Any, _Handle] = vars(_local)
    handle = handles.get(device)
    if handle is None:
        handle = handles[device] = _Handle(device)
    return handle.on_stream(cupy.cuda.get_current_stream().ptr)


@cache
def _routine(name: str, char: str) -> Callable[..., int]:
    function = getattr(_library(), f"cublas{_LETTERS[char]}{name}")
    function.argtypes = _ARGUMENTS[name]
    return function


@cache
def _constants(char: str) -> tuple[int, int, np.ndarray]:
    """Return the addresses of zero and one in host memory, and the array that keeps them alive."""
    values = np.array([0, 1], char)
    address = values.ctypes.data
    return address, address + values.itemsize, values


@cache
def _library() -> ctypes.CDLL:
    """Return the cuBLAS library that CuPy has loaded, so that a process never has two versions."""
    cupy.cuda.device.get_cublas_handle()  # loads it
    loaded = re.search(r"/.*/libcublas\.so.*", Path("/proc/self/maps").read_text())
    if loaded is None:
        raise CollopsError("cuBLAS is not among the libraries that this process has loaded")
    return ctypes.CDLL(loaded[0])


def _check_extents(*extents: int) -> None:
    if max(extents) > _MAX_EXTENT:
        raise LayoutError(f"cuBLAS uses 32-bit extents, too small for matrices with the extents {extents}")


def _check(status: int, call: str) -> None:
    if status:
        raise CollopsError(f"cuBLAS: {call} failed with status {status}")
