"""Matrix products by cuBLAS, called directly: CuPy refuses its own calls in a capture.

CuPy refuses since cuBLAS may allocate memory at its first calls on a stream. Here every stream gets a workspace
beforehand, so that nothing is allocated in a capture.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from collops.errors import CollopsError, LayoutError
from collops.operators.memory import as_columns, store

__all__ = ["CublasBatch", "CublasMatrix", "multiply"]

_NORMAL, _TRANSPOSED, _ADJOINT = 0, 1, 2
_GEMV = {"f": "cublasSgemv_v2", "d": "cublasDgemv_v2", "F": "cublasCgemv_v2", "D": "cublasZgemv_v2"}
_GEMM = {
    "f": "cublasSgemmStridedBatched",
    "d": "cublasDgemmStridedBatched",
    "F": "cublasCgemmStridedBatched",
    "D": "cublasZgemmStridedBatched",
}
_ONE_GEMM = {"f": "cublasSgemm_v2", "d": "cublasDgemm_v2", "F": "cublasCgemm_v2", "D": "cublasZgemm_v2"}
_VERSIONS = (13, 12, 11)
_HOPPER = 90
_MEBIBYTE = 1 << 20
_MOST = (1 << 31) - 1


class _Handle:
    """A cuBLAS handle of one device and one thread, with a workspace for each stream that it has worked on."""

    def __init__(self, device: int) -> None:
        self.library = _library()
        self.value = ctypes.c_void_p()
        self._stream: int | None = None
        self._workspaces: dict[int, Any] = {}
        # NVIDIA's advice for the size.
        hopper = int(cupy.cuda.Device(device).compute_capability) >= _HOPPER
        self._nbytes = (32 if hopper else 4) * _MEBIBYTE
        with cupy.cuda.Device(device):
            _check(self.library.cublasCreate_v2(ctypes.byref(self.value)), "cublasCreate")

    def on(self, stream: int) -> ctypes.c_void_p:
        """Return the handle, working on `stream`."""
        if stream != self._stream:
            workspace = self._workspaces.get(stream)
            if workspace is None:
                workspace = self._workspaces[stream] = cupy.cuda.alloc(self._nbytes)
            # Setting the stream takes the workspace away, so that this order matters.
            _check(self.library.cublasSetStream_v2(self.value, ctypes.c_void_p(stream)), "cublasSetStream")
            _check(
                self.library.cublasSetWorkspace_v2(
                    self.value, ctypes.c_void_p(workspace.ptr), ctypes.c_size_t(self._nbytes)
                ),
                "cublasSetWorkspace",
            )
            self._stream = stream
        return self.value


class _Handles(threading.local):
    def __init__(self) -> None:
        self.by_device: dict[int, _Handle] = {}


_handles = _Handles()


class CublasMatrix:
    """A dense matrix on a CUDA device, in single or double precision, real or complex.

    Parameters
    ----------
    matrix : cupy.ndarray, 2-D
        Used where it lies when it is contiguous in either order, else copied once.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype

    Raises
    ------
    LayoutError
        If the matrix has more rows or columns than 32 bits can count.
    """

    __slots__ = (
        "_adjoint_operation",
        "_conjugated",
        "_device",
        "_extents",
        "_forward_operation",
        "_gemv",
        "_matrix",
        "_numbers",
        "_one",
        "_zero",
        "dtype",
        "shape",
    )

    def __init__(self, matrix: Any) -> None:
        if not (matrix.flags.c_contiguous or matrix.flags.f_contiguous):
            matrix = cupy.ascontiguousarray(matrix)
        if max(matrix.shape) > _MOST:
            raise LayoutError(f"cuBLAS counts rows and columns with 32 bits, too few for a matrix {matrix.shape}")
        self._matrix = matrix
        self.shape: tuple[int, int] = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.dtype: np.dtype = matrix.dtype
        self._device = int(matrix.device.id)
        self._gemv = _gemv(self.dtype.char)
        self._numbers = np.array([1, 0], self.dtype)
        self._one = self._numbers.ctypes.data
        self._zero = self._one + self._numbers.itemsize
        self._conjugated: Any = None
        # cuBLAS counts columns first, so that a matrix in C order is the transposed one to it. Of that it has no
        # product with the conjugate only, which the adjoint would need.
        if matrix.flags.c_contiguous:
            self._extents = (self.shape[1], self.shape[0])
            self._forward_operation = _TRANSPOSED
            self._adjoint_operation = None if self.dtype.kind == "c" else _NORMAL
        else:
            self._extents = self.shape
            self._forward_operation = _NORMAL
            self._adjoint_operation = _ADJOINT

    def forward_local(self, x: Any, out: Any) -> Any:
        """Return the matrix times `x`."""
        return self._product(self._forward_operation, x, out, self.shape[0])

    def adjoint_local(self, y: Any, out: Any) -> Any:
        """Return the conjugate transpose times `y`."""
        if self._adjoint_operation is not None:
            return self._product(self._adjoint_operation, y, out, self.shape[1])
        if self._conjugated is None:
            self._conjugated = cupy.empty(self.shape[0], self.dtype)
        cupy.conjugate(y, out=self._conjugated)
        result = self._product(_NORMAL, self._conjugated, out, self.shape[1])
        return cupy.conjugate(result, out=result)

    def _product(self, operation: int, x: Any, out: Any, size: int) -> Any:
        if x.dtype != self.dtype or not x.flags.c_contiguous:
            x = cupy.ascontiguousarray(x, self.dtype)
        target = out
        if out is None or out.dtype != self.dtype:
            target = cupy.empty(size, self.dtype)
        if x.size == 0 or size == 0:
            target.fill(0)  # cuBLAS would leave it as it is
        else:
            rows, columns = self._extents
            status = self._gemv(
                _handle(self._device),
                operation,
                rows,
                columns,
                self._one,
                self._matrix.data.ptr,
                rows,
                x.data.ptr,
                1,
                self._zero,
                target.data.ptr,
                1,
            )
            if status:
                _check(status, "gemv")
        return target if target is out else store(target, out)


class CublasBatch:
    """Matrices of one shape on a CUDA device, in single or double precision, each of which multiplies one of its own.

    Parameters
    ----------
    matrices : cupy.ndarray, 3-D
        Of shape (batch, rows, columns), in C order.

    Attributes
    ----------
    dtype : numpy.dtype
    capturable : bool

    Raises
    ------
    LayoutError
        If an extent is larger than 32 bits can count.
    """

    __slots__ = ("_complex", "_device", "_gemm", "_matrices", "_numbers", "_one", "_zero", "dtype")

    capturable = True

    def __init__(self, matrices: Any) -> None:
        if max(matrices.shape) > _MOST:
            raise LayoutError(f"cuBLAS counts with 32 bits, too few for a batch of matrices {matrices.shape}")
        self._matrices = matrices
        self.dtype: np.dtype = matrices.dtype
        self._complex = self.dtype.kind == "c"
        self._device = int(matrices.device.id)
        self._gemm = _gemm(self.dtype.char)
        self._numbers = np.array([1, 0], self.dtype)
        self._one = self._numbers.ctypes.data
        self._zero = self._one + self._numbers.itemsize

    def forward(self, x: Any, out: Any) -> Any:
        """Fill `out`, of shape (batch, rows, n), with the products with `x`, of shape (batch, columns, n)."""
        return self._product(_NORMAL, x, out)

    def adjoint(self, y: Any, out: Any) -> Any:
        """Fill `out`, of shape (batch, columns, n), with the products of the conjugate transposes with `y`."""
        return self._product(_ADJOINT, y, out)

    def _product(self, operation: int, x: Any, out: Any) -> Any:
        if out.size == 0:
            return out
        if x.size == 0:
            out.fill(0)
            return out
        if not self._complex and x.dtype.kind == "c":
            x, result = as_columns(x), as_columns(out)
        else:
            result = out
        # To cuBLAS, which counts columns first, every array here is its transpose: the product of the transposes in
        # reverse order, of which an adjoint of ours is the conjugate of theirs, transposed again.
        columns, inner, width = result.shape[1], x.shape[1], x.shape[2]
        leading = self._matrices.shape[2]
        status = self._gemm(
            _handle(self._device),
            _NORMAL,
            operation,
            width,
            columns,
            inner,
            self._one,
            x.data.ptr,
            width,
            inner * width,
            self._matrices.data.ptr,
            leading,
            self._matrices.shape[1] * leading,
            self._zero,
            result.data.ptr,
            width,
            columns * width,
            len(x),
        )
        if status:
            _check(status, "gemmStridedBatched")
        return out


def _handle(device: int) -> ctypes.c_void_p:
    """Return this thread's handle of a device, working on the current stream."""
    handle = _handles.by_device.get(device)
    if handle is None:
        handle = _handles.by_device[device] = _Handle(device)
    return handle.on(cupy.cuda.get_current_stream().ptr)


@cache
def _gemm(char: str) -> Any:
    function = getattr(_library(), _GEMM[char])
    pointer, integer, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    operand = [pointer, integer, stride]
    function.argtypes = [*[pointer, *[integer] * 5, pointer], *operand, *operand, pointer, *operand, integer]
    return function


def multiply(a: Any, b: Any, c: Any, *, adjoint: bool, accumulate: bool) -> None:
    """Compute ``c = a @ b``, or with the conjugate transpose of `a`; or add that to `c`.

    Parameters
    ----------
    a, b, c : cupy.ndarray, 2-D
        C-contiguous, not empty and of one dtype, which is single or double precision, real or complex.
    adjoint : bool
        Whether `a` is transposed and conjugated, which takes no copy.
    accumulate : bool
        Whether the product is added to what `c` holds.

    Raises
    ------
    LayoutError
        If an extent is more than 32 bits can count.
    """
    rows, columns = c.shape
    if max(rows, columns, *a.shape) > _MOST:
        raise LayoutError(f"cuBLAS counts with 32 bits, too few for a product of {a.shape} and {b.shape}")
    zero, one = _zero_and_one(c.dtype.char)
    # cuBLAS counts columns first: it computes the transposed product of the transposed matrices.
    status = _one_gemm(c.dtype.char)(
        _handle(c.device.id),
        _NORMAL,
        _ADJOINT if adjoint else _NORMAL,
        columns,
        rows,
        b.shape[0],
        one.ctypes.data,
        b.data.ptr,
        columns,
        a.data.ptr,
        a.shape[1],
        (one if accumulate else zero).ctypes.data,
        c.data.ptr,
        columns,
    )
    if status:
        _check(status, "gemm")


@cache
def _zero_and_one(char: str) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(1, char), np.ones(1, char)


@cache
def _one_gemm(char: str) -> Any:
    function = getattr(_library(), _ONE_GEMM[char])
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    sizes = [integer] * 5
    function.argtypes = [
        *(pointer, *sizes, pointer),
        *(pointer, integer, pointer, integer),
        *(pointer, pointer, integer),
    ]
    return function


@cache
def _gemv(char: str) -> Any:
    function = getattr(_library(), _GEMV[char])
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [
        pointer,
        integer,
        integer,
        integer,
        pointer,
        pointer,
        integer,
        pointer,
        integer,
        pointer,
        pointer,
        integer,
    ]
    return function


@cache
def _library() -> ctypes.CDLL:
    """Return the cuBLAS that CuPy uses, so that two versions never meet in one process.

    Raises
    ------
    CollopsError
        If it cannot be found.
    """
    cupy.cuda.device.get_cublas_handle()  # loads it
    names = [f"libcublas.so.{version}" for version in _VERSIONS]
    for name in names:
        try:
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
    for path in _loaded_files():
        if path.name.startswith("libcublas.so"):
            return ctypes.CDLL(str(path))
    raise CollopsError("cuBLAS is not among the libraries that CuPy has loaded; expected one of " + ", ".join(names))


def _loaded_files() -> list[Path]:
    """Return the shared libraries of this process, where the system lists them."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    files = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if ".so" in line}
    return [Path(file) for file in sorted(files)]


def _check(status: int, call: str) -> None:
    if status:
        raise CollopsError(f"cuBLAS: {call} failed with status {status}")
