"""Moves on the GPU: each is one kernel of ``moves.cu`` on the current stream.

Devices read in arbitrary order faster than they write: if the target points are unique, they are written in ascending
order. If points repeat, one thread combines the values of a point in the order of the index, so that sums are bitwise
equal to the host's. Only sums that need not be deterministic use atomic operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import cupy
import numpy as np

from collops._nvrtc import cuda_module
from collops.backend import CudaKernel, CudaModule, LocalArray
from collops.comm import wait_while_source
from collops.comm.device_launch import Launch
from collops.errors import LayoutError
from collops.exchange.packing import OPERATIONS
from collops.exchange.packing.index import Index

__all__ = ["described", "kernel", "processors", "segments"]

Move: TypeAlias = Callable[[Any, Any], Any]

_ELEMENTS = (
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int8", "uint8", "int16", "uint16"),
    *("int32", "uint32", "int64", "uint64", "bool"),
)
_ADDED_ATOMICALLY = ("float32", "float64", "complex64", "complex128", "int32", "uint32", "int64", "uint64")
_THREADS = 256
_BLOCKS_PER_PROCESSOR = 16


def mover(source: Index, target: Index, op: str, dtype: np.dtype, width: int, deterministic: bool) -> Move:
    """Prepare a move; see :func:`collops.exchange.packing.numpy_moves.mover`."""
    if not target.size:
        return lambda source_array, target_array: target_array
    if op == "replace":
        source, target = target.last_writes(source)
    if target.unique:
        source, target = target.ascending(source)
        if op == "replace" and source.contiguous and target.contiguous:
            return _copying(source, target, dtype.itemsize * width)
        return _launching("move", source, op, dtype, width, target.size, described(target))
    if not deterministic and op == "sum" and dtype.name in _ADDED_ATOMICALLY:
        return _launching("add_atomically", source, op, dtype, width, target.size, described(target))
    return _launching("fold", source, op, dtype, width, len(target.segments.points), segments(target))


def fetcher(
    source: Index, target: Index, op: str, dtype: np.dtype, width: int
) -> Callable[..., tuple[LocalArray, LocalArray]]:
    """Prepare a fetch; see :func:`collops.exchange.packing.numpy_moves.fetcher`."""
    count = len(target.segments.points)
    if not count:
        return lambda source_array, target_array, before: (before, target_array)
    launch = _launching("fetch", source, op, dtype, width, count, segments(target), 3)
    return lambda source_array, target_array, before: (launch(source_array, target_array, before), target_array)


def _launching(
    name: str,
    source: Index,
    op: str,
    dtype: np.dtype,
    width: int,
    count: int,
    target: tuple[LocalArray | int, ...],
    arrays: int = 2,
) -> Launch:
    max_blocks = _BLOCKS_PER_PROCESSOR * processors(cupy.cuda.Device().id)
    blocks = max(1, min(-(-count * width // _THREADS), max_blocks))
    return Launch(kernel(name, op, dtype), blocks, _THREADS, arrays, count, width, *described(source), *target)


def _copying(source: Index, target: Index, unit: int) -> Move:
    start, begin, nbytes = int(source.points[0]) * unit, int(target.points[0]) * unit, target.size * unit
    stream = cupy.cuda.get_current_stream

    def copy(source_array: LocalArray, target_array: LocalArray) -> LocalArray:
        (target_array.data + begin).copy_from_device_async(source_array.data + start, nbytes, stream())
        return target_array

    return copy


def described(index: Index) -> tuple[LocalArray, int, int]:
    """Return the arguments that describe an index to a kernel."""
    if index.slice is None:
        return index.cached((cupy.cuda.Device().id, "points"), lambda: _on_device(index.points)), 0, 0
    return np.uint64(0), index.slice.start, index.slice.step


def segments(index: Index) -> tuple[LocalArray, LocalArray, LocalArray]:
    """Return the unique points of an index and the positions of each, as arguments of a kernel."""
    return index.cached(
        (cupy.cuda.Device().id, "segments"), lambda: tuple(_on_device(array) for array in index.segments)
    )


def _on_device(numbers: np.ndarray) -> LocalArray:
    """Return numbers on the device, in 32 bits.

    Raises
    ------
    LayoutError
        If an index does not fit into 32 bits.
    """
    if numbers.max(initial=0) > np.iinfo(np.int32).max:
        raise LayoutError(f"a rank has at most {np.iinfo(np.int32).max} points on a device, not {numbers.max() + 1}")
    return cupy.asarray(numbers.astype(np.int32))


@cache
def processors(device: int) -> int:
    """Return the number of multiprocessors of a device."""
    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


def kernel(name: str, op: str, dtype: np.dtype, following: Path | None = None) -> CudaKernel:
    """Return a kernel for an operation and a type, from ``moves.cu`` or from the source `following`, appended to it."""
    element, operation = _ELEMENTS.index(dtype.name), OPERATIONS.index(op)
    return _module(cupy.cuda.Device().id, element, operation, following).get_function(name)


@cache
def _module(device: int, element: int, operation: int, following: Path | None) -> CudaModule:
    contraction = () if cupy.cuda.runtime.is_hip else ("--fmad=false",)
    options = (*contraction, f"-DELEMENT={element}", f"-DOPERATION={operation}")
    source = wait_while_source() + Path(__file__).with_name("moves.cu").read_text()
    if following is not None:
        source += following.read_text()
    return cuda_module(source, options)
