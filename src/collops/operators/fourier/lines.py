"""Complex transforms on GPUs along axes that are not the last one, in one pass over the memory: ``lines.cu``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from collops._nvrtc import cuda_kernel
from collops.backend import CudaKernel, LocalArray, engine

_RADICES = (16, 8, 4, 2, 9, 3, 5, 7, 11, 13, 17)
_LARGE_RADICES = (43, 41, 37, 31, 29, 23, 19)  # whose transforms take most of a thread's registers
_SECTOR = 32  # bytes of one memory transaction
_FEW_BYTES = 1 << 15  # bytes of shared memory per block, so that several blocks are resident
_MANY_BYTES = 1 << 16  # bytes for a block with many threads, since at most two others are resident
_MAX_BLOCKS = 65535  # of a grid's second axis


class Lines(NamedTuple):
    """The kernels of one length and precision, in both directions, with their launch parameters."""

    kernels: tuple[CudaKernel, CudaKernel]
    columns: int
    threads: int
    shared: int
    roots: LocalArray
    real: type

    def __call__(self, source: LocalArray, target: LocalArray, axis: int, scale: float, inverse: bool) -> None:
        """Transform an array in C order along `axis`, and multiply it by `scale`. Both may be one array."""
        before, after = math.prod(source.shape[:axis]), math.prod(source.shape[axis + 1 :])
        arguments = source, target, np.int64(after), self.roots, self.real(scale)
        grid = -(-after // self.columns), before
        self.kernels[inverse](grid, (self.threads,), arguments, shared_mem=self.shared)


def find_lines(array: LocalArray, axis: int) -> Lines | None:
    """Return the transforms along an axis of arrays like this one; ``None`` if the kernel does not support them.

    Unsupported are lengths with large factors, long transforms, and arrays with few columns.
    """
    lines = _lines(array.device.id, array.shape[axis], array.dtype.char)
    if lines is None or math.prod(array.shape[axis + 1 :]) < lines.columns:
        return None
    return lines if math.prod(array.shape[:axis]) <= _MAX_BLOCKS else None


def radices(length: int, *, large: bool = False) -> tuple[int, ...] | None:
    """Return the radices of the kernel's steps for a length, in order; ``None`` if the length is not supported.

    `large` ones may be among them, in the first steps.
    """
    factors = []
    for radix in (*(_LARGE_RADICES if large else ()), *_RADICES):
        while length % radix == 0:
            factors.append(radix)
            length //= radix
    return tuple(factors) if length == 1 and factors else None


def digits(factors: Sequence[int]) -> int:
    """Return radices as one number with two digits for each, the first one in the last digits."""
    return sum(radix * 100**position for position, radix in enumerate(factors))


@cache
def _lines(device: int, length: int, char: str) -> Lines | None:
    """Return the kernels for a length and a complex type; ``None`` if they are not supported."""
    factors = radices(length, large=True)
    if factors is None:
        return None
    cupy, kind = engine("cupy").xp, np.dtype(char)
    line = length * kind.itemsize
    width = _SECTOR // kind.itemsize
    columns = next((n for n in (4 * width, 2 * width) if n * line <= _FEW_BYTES), width)
    shared = columns * line
    if shared > cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"]:
        return None
    threads = 512 if shared > _MANY_BYTES else 256
    if factors[0] in _LARGE_RADICES:  # few tasks, of many registers
        threads = 64 if length // factors[0] * columns <= 64 else 128
    real = np.float32 if char == "F" else np.float64
    options = [f"-DREAL={'float' if char == 'F' else 'double'}", f"-DLENGTH={length}", f"-DRADICES={digits(factors)}"]
    options += [f"-DCOLUMNS={columns}", f"-DTHREADS={threads}"]
    forward, back = (cuda_kernel(__file__, ("steps.cu", "lines.cu"), name, *options) for name in ("forward", "back"))
    for kernel in (forward, back):
        kernel.max_dynamic_shared_size_bytes = shared
    roots = cupy.asarray(np.exp(-2j * np.pi * np.arange(length) / length).astype(kind))
    return Lines((forward, back), columns, threads, shared, roots, real)
