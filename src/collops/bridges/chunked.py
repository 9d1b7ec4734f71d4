"""Arrays of h5py, zarr, dask and xarray, read in parts: each rank reads its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from collops import Communicator, DistributedArray, Layout
from collops.errors import ARGUMENT_ERRORS, InputError, LayoutError, UnsupportedTypeError, type_name
from collops.extend.communication import collective_errors, communicator_or_world
from collops.extend.engines import Engine
from collops.extend.engines import engine as find_engine

__all__ = ["from_chunked"]


class _Source(Protocol):
    """What arrays in files have in common."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def from_chunked(
    source: _Source,
    layout: Layout | None = None,
    *,
    comm: Communicator | None = None,
    engine: Engine | str | None = None,
) -> DistributedArray:
    """Read an array by parts: each rank reads the elements that it holds, and no others are sent. Collective.

    Parameters
    ----------
    source : h5py.Dataset, zarr.Array, dask.array.Array, xarray.DataArray, numpy.memmap or similar
        The same array, opened by every rank. It has a shape and a dtype, and its slices become
        arrays of NumPy, by reading a file or by computing.
    layout : Layout, optional
        By default split along the first axis with a chunk for each rank, at boundaries of chunks, so that each chunk is
        read once; without such an axis, evenly along axis 0. In other layouts, chunks across a boundary are read, and
        decompressed or computed, by all ranks that hold a part.
    comm, engine
        As for :func:`collops.zeros`.

    Raises
    ------
    UnsupportedTypeError
        On every rank, if `source` is not such an array, its elements are not numbers, or some of them are masked.
    LayoutError
        On every rank, if `layout` does not fit.
    InputError
        On every rank, if a rank cannot read its part, or the ranks' shapes, dtypes or layouts differ.

    Examples
    --------
    >>> import tempfile
    >>> import zarr
    >>> from collops.bridges.chunked import from_chunked
    >>> stored = zarr.create_array(tempfile.mkdtemp(), shape=(6, 4), chunks=(2, 4), dtype="f8", fill_value=1)
    >>> float(from_chunked(stored).sum())
    24.0
    """
    comm, chosen = communicator_or_world(comm), find_engine(engine)
    with collective_errors(comm):
        layout, dtype = _checked(source, layout, comm.size)
    comm.agree("the array to read", f"{dtype} {layout}")
    with collective_errors(comm):
        try:
            part = source[layout.slices(comm.rank)]
            # The conversion of dask's arrays to NumPy drops masks, unlike their computation.
            values = np.asanyarray(part.compute() if hasattr(part, "compute") else part)
        except (OSError, RuntimeError, *ARGUMENT_ERRORS) as problem:
            raise InputError(f"rank {comm.rank} cannot read its part of {type_name(source)}: {problem}") from problem
        # A view of a file or of the caller's array is copied; what has been read or computed is not.
        values = chosen.from_host(np.require(find_engine("numpy").adopt(values), dtype, ["C", "O", "W"]))
    return DistributedArray(layout, comm, values)


def _checked(source: Any, layout: Layout | None, ranks: int) -> tuple[Layout, np.dtype]:
    """Return the layout to read, and the dtype in this machine's byte order."""
    if not all(hasattr(source, name) for name in ("shape", "dtype", "__getitem__")) or isinstance(source, type):
        raise UnsupportedTypeError(f"from_chunked takes an array with shape, dtype and slices, not {type_name(source)}")
    dtype, shape = np.dtype(source.dtype).newbyteorder("="), tuple(source.shape)
    if dtype.kind not in "biufc":
        raise UnsupportedTypeError(f"elements of arrays must be numbers or booleans, not {dtype}")
    if not all(extent == extent for extent in shape):
        raise LayoutError(f"the shape {shape} is not known yet: call compute_chunk_sizes() of the array of dask")
    if layout is None:
        return _aligned(shape, _chunks_of(source), ranks), dtype
    if not isinstance(layout, Layout) or layout.shape != shape or layout.ranks != ranks:
        raise LayoutError(f"an array of shape {shape} on {ranks} ranks does not fit {layout!r}")
    return layout, dtype


def _chunks_of(source: Any) -> Sequence[int | Sequence[int]]:
    """Return the chunks along each axis: one size, or the sizes of all; empty if they are unknown."""
    encoding = getattr(source, "encoding", {})  # of xarray, for arrays that are not dask's
    chunks = getattr(source, "chunks", None) or encoding.get("chunks") or encoding.get("chunksizes") or ()
    return chunks if len(chunks) == len(source.shape) else ()


def _aligned(shape: tuple[int, ...], chunks: Sequence[int | Sequence[int]], ranks: int) -> Layout:
    """Return a layout that splits the first axis with enough chunks at their boundaries, or else axis 0 evenly."""
    for axis, chunk in enumerate(chunks):
        ends = [*accumulate(chunk)] if isinstance(chunk, Sequence) else [*range(chunk, shape[axis], chunk), shape[axis]]
        if len(ends) >= ranks:
            last = [ends[len(ends) * (rank + 1) // ranks - 1] for rank in range(ranks)]
            return Layout.split(shape, ranks, axis, sizes=np.diff(last, prepend=0).tolist())
    return Layout.split(shape, ranks)
