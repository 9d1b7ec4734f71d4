"""Launches of kernels that work on the rows of a sparse matrix, one or several threads for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collops._nvrtc import cuda_kernel

if TYPE_CHECKING:
    from collops.operators.csr.compressed import CompressedRows

_ELEMENTS = ("float32", "float64", "complex64", "complex128")
_THREADS = 256
_MAX_LANES = 8


def launch(
    name: str,
    matrix: CompressedRows,
    *arguments: Any,
    source: str = "rows.cu",
    rows: int | None = None,
    shape: tuple[int, int, int] | None = None,
) -> None:
    """Launch a kernel of `source` for `rows` rows, by default all rows of a matrix, on the current stream.

    Parameters
    ----------
    name : str
        Name of the kernel, whose first parameter is the number of rows.
    matrix : CompressedRows
        Determines the type of the elements, and by default the number of threads that share a row.
    *arguments
        Further parameters: arrays, ``None`` for a null pointer, and numbers.
    source : str
        The file, relative to this one; it continues ``entries.cu``.
    rows : int, optional
        Number of rows.
    shape : tuple of int, optional
        Number of threads that share a row, threads of a block, and places of a table in shared memory.
    """
    count = matrix.shape[0] if rows is None else rows
    if not count:
        return
    lanes, threads, slots = shape or (_lanes_for(matrix), _THREADS, 0)
    options = [f"-DELEMENT={_ELEMENTS.index(matrix.dtype.name)}", f"-DLANES={lanes}", "--fmad=false"]
    options += [f"-DTHREADS={threads}", f"-DSLOTS={slots}"] if shape else []
    kernel = cuda_kernel(__file__, ("entries.cu", source), name, *options)
    blocks = -(-count * lanes // threads)
    kernel((blocks,), (threads,), (np.int64(count), *map(_as_parameter, arguments)))


def _as_parameter(value: Any) -> Any:
    if value is None:
        return np.uint64(0)
    return np.int64(value) if isinstance(value, int) else np.float64(value) if isinstance(value, float) else value


def _lanes_for(matrix: CompressedRows) -> int:
    """Return the largest power of 2 that is at most a third of the entries of a row."""
    lanes = 1
    while lanes < _MAX_LANES and 6 * lanes * matrix.shape[0] <= matrix.nnz:
        lanes *= 2
    return lanes
