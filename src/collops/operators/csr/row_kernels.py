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
_SHARED_MEMORY = 48 << 10  # bytes of a block


def launch(
    name: str,
    matrix: CompressedRows,
    *arguments: Any,
    source: str = "rows.cu",
    rows: int | None = None,
    lanes: int | None = None,
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
    lanes : int, optional
        Number of threads that share a row, a power of 2.
    """
    count = matrix.shape[0] if rows is None else rows
    lanes = _lanes_for(matrix) if lanes is None else lanes
    _launch(name, matrix, source, (), count, (lanes, _THREADS // lanes), 0, arguments)


def launch_with_tables(
    name: str, matrix: CompressedRows, shape: tuple[int, int, int], size: int, *arguments: Any, rows: int
) -> None:
    """Launch a kernel of ``products.cu`` for `rows` rows, on the current stream.

    Parameters
    ----------
    name, matrix, *arguments, rows
        As for :func:`launch`; the second parameter of the kernel is the number of places.
    shape : tuple of int
        Number of threads that share a row, rows of a block (fewer if their tables need more shared memory than there
        is), and places of a row's table in shared memory, or 0 for tables in global memory.
    size : int
        Bytes of shared memory for the value of a place.
    """
    lanes, block, slots = shape
    # As in `table_of`: values, the number of columns, the places, and the columns.
    needed = slots * size + 4 * (1 + slots + slots // 4 * 3 + lanes) if slots else 4
    while block * needed > _SHARED_MEMORY:
        block //= 2
    options = (f"-DSHARED={int(slots > 0)}",)
    _launch(name, matrix, "products.cu", options, rows, (lanes, block), block * needed, (slots, *arguments))


def _launch(
    name: str,
    matrix: CompressedRows,
    source: str,
    options: tuple[str, ...],
    count: int,
    block: tuple[int, int],
    memory: int,
    arguments: tuple[Any, ...],
) -> None:
    if not count:
        return
    options = f"-DELEMENT={_ELEMENTS.index(matrix.dtype.name)}", "--fmad=false", *options
    kernel = cuda_kernel(__file__, ("entries.cu", source), name, *options)
    kernel((-(-count // block[1]),), block, (np.int64(count), *map(_as_parameter, arguments)), shared_mem=memory)


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
