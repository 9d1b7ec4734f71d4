"""PyLops-MPI's halo operator, whose adjoint drops the halo instead of adding it up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.array import Layout
from collops.array.halo import HaloPlan, halo_widths
from collops.array.layout_arguments import as_shape
from collops.comm import Communicator
from collops.compat.pylops_mpi._native import communicator
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.errors import InputError
from collops.operators import LinearOperator
from collops.operators.base import Buffers
from collops.operators.memory import store

__all__ = ["MPIHalo", "halo_block_split"]


def halo_block_split(
    global_shape: Sequence[int], comm: Any, grid_shape: Sequence[int] | None = None
) -> tuple[slice, ...]:
    """Return this rank's block of an array on a process grid, as slices whose last ones are open.

    Parameters
    ----------
    global_shape : sequence of int
        Shape of the array.
    comm : mpi4py.MPI.Comm
        The ranks.
    grid_shape : sequence of int, optional
        Number of blocks along each axis; by default only the last axis is split.

    Raises
    ------
    ValueError
        If the grid has not one place for each rank.
    """
    ranks = communicator(comm)
    layout = _grid(as_shape(global_shape), grid_shape, ranks.size)
    block, place = layout.block(ranks.rank), _place(layout, ranks.rank, grid_shape)
    last = [len(sizes) - 1 for sizes in layout.sizes]
    return tuple(
        slice(s.start, None if number == end else s.stop)
        for s, number, end in zip(block.slices, place, last, strict=True)
    )


class MPIHalo(MPILinearOperator):
    """Extend each rank's block by its neighbours' values. Collective.

    As in PyLops-MPI, one width for all axes gives no halo at the ends of the array, several give zeros there.

    Model and data are vectors of ravelled blocks. As in PyLops-MPI, ``rmatvec`` drops the halos, so that
    ``halo.H @ local @ halo`` applies a stencil; :class:`collops.operators.Halo` has the true adjoint, which adds them.

    Parameters
    ----------
    dims : sequence of int
        Shape of the array.
    halo : int or sequence of int
        One width; one per axis; or before and after each axis in turn. Wider than a neighbour's block if need be.
    proc_grid_shape : sequence of int, optional
        Number of blocks along each axis; by default only the last axis is split.
    comm : mpi4py.MPI.Comm, optional
        The ranks.
    dtype : dtype
        Element type.

    Raises
    ------
    ValueError
        If the grid has not one place for each rank, or there is another number of widths.

    Examples
    --------
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> pylops_mpi.MPIHalo((4,), 1).shape[1]
    4
    """

    def __init__(
        self,
        dims: Sequence[int],
        halo: int | Sequence[int],
        proc_grid_shape: Sequence[int] | None = None,
        comm: Any = None,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(dtype=np.dtype(dtype), base_comm=comm)
        ranks = communicator(comm)
        self.global_dims = as_shape(dims)
        layout = _grid(self.global_dims, proc_grid_shape, ranks.size)
        self.proc_grid_shape = tuple(len(sizes) for sizes in layout.sizes)
        widths = halo_widths(halo, layout.ndim)
        self.halo = tuple(width for pair in widths for width in pair)
        self.dims = self.global_dims
        self.native = _Extension(layout, widths, np.ndim(halo) > 0, ranks, dtype)
        self.local_dims = layout.local_shape(ranks.rank)
        self.local_extent = self.native.extents[ranks.rank]


class _Extension(LinearOperator):
    """Blocks with halos from blocks, both ravelled; adjoint keeps the blocks themselves.

    Parameters
    ----------
    layout : Layout
        Of the blocks.
    widths : tuple of (int, int)
        Of the halos, per axis.
    beyond : bool
        Whether halos reach beyond the ends of the array, where they are zero.
    comm, dtype
        The ranks, and the element type.
    """

    def __init__(
        self, layout: Layout, widths: tuple[tuple[int, int], ...], beyond: bool, comm: Communicator, dtype: Any
    ) -> None:
        self._plan = HaloPlan(layout, widths, comm)
        kept = [_kept(layout, rank, widths, beyond) for rank in range(comm.size)]
        self.extents = [tuple(s.stop - s.start for s in box) for box in kept]
        self._shape, self._extent = layout.local_shape(comm.rank), self.extents[comm.rank]
        self._kept = kept[comm.rank]
        self._block = tuple(
            slice(before - s.start, before - s.start + n)
            for n, (before, _), s in zip(self._shape, widths, self._kept, strict=True)
        )
        domain = _ravelled([layout.local_size(rank) for rank in range(comm.size)])
        super().__init__(domain, _ravelled([math.prod(extent) for extent in self.extents]), dtype, comm)
        self._buffers = Buffers()

    def _forward(self, x: Any, out: Any) -> Any:
        out = self._new(self.range, x) if out is None else out
        extended = self._buffers.get("extended", self._plan.extended, x, x.dtype).local_array
        self._plan.fill(x.local_array.reshape(self._shape), extended)
        store(extended[self._kept], out.local_array.reshape(self._extent))
        return out

    def _adjoint(self, y: Any, out: Any) -> Any:
        out = self._new(self.domain, y) if out is None else out
        store(y.local_array.reshape(self._extent)[self._block], out.local_array.reshape(self._shape))
        return out


def _kept(layout: Layout, rank: int, widths: tuple[tuple[int, int], ...], beyond: bool) -> tuple[slice, ...]:
    """Return which part of its block with all halos `rank` has."""
    block, boxes = layout.block(rank), []
    for n, offset, extent, (before, after) in zip(block.shape, block.offset, layout.shape, widths, strict=True):
        first, last = (before, after) if beyond else (min(before, offset), min(after, extent - offset - n))
        boxes.append(slice(before - first, before + n + last))
    return tuple(boxes)


def _ravelled(sizes: Sequence[int]) -> Layout:
    return Layout.split(sum(sizes), len(sizes), sizes=sizes)


def _grid(shape: tuple[int, ...], grid: Sequence[int] | None, ranks: int) -> Layout:
    """Return the layout of PyLops-MPI's blocks: all as large as the first, as far as the elements go."""
    grid = (*(1 for _ in shape[1:]), ranks) if grid is None else as_shape(grid)
    if len(grid) != len(shape) or math.prod(grid) != ranks:
        raise InputError(f"a process grid {grid} of an array of shape {shape} must have {ranks} places")
    return Layout.grid(shape, grid, sizes=[blocks(extent, parts) for extent, parts in zip(shape, grid, strict=True)])


def blocks(extent: int, parts: int) -> list[int]:
    """Return the sizes of blocks that are all as large as the first, as far as the elements go."""
    size = -(-extent // parts)
    return [max(0, min(size, extent - number * size)) for number in range(parts)]


def _place(layout: Layout, rank: int, grid: Sequence[int] | None) -> list[int]:
    places = layout.coordinates(rank)
    return [0 if axis is None else places[axis] for axis in layout.axes]
