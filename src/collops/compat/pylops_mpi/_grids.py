"""PyLops-MPI's operators on process grids: products of distributed matrices, and halos."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from collops import Communicator, Layout, LinearOperator, MatrixMult
from collops.compat.pylops_mpi._arrays import AnyArray, halo_region, wrap
from collops.compat.pylops_mpi._linear_operator import MPILinearOperator
from collops.compat.pylops_mpi._messages import DistributedMixIn
from collops.compat.pylops_mpi._native import MpiComm, communicator, to_layout, vector_layout
from collops.compat.pylops_mpi._operators import ranks_may_be_inactive
from collops.errors import InputError, UnsupportedTypeError
from collops.extend.arrays import Array, HaloPlan, LocalArray, as_shape, halo_widths
from collops.extend.communication import collective_values, mpi4py_module
from collops.extend.operators import Buffers, Flat, reinterpret, store


def _grid(shape: Any, grid: Any, ranks: int) -> Layout:
    """Return the layout of PyLops-MPI's blocks; only the last axis is split if `grid` is ``None``."""
    shape = as_shape(shape)
    grid = (*(1 for _ in shape[1:]), ranks) if grid is None else as_shape(grid)
    if len(grid) != len(shape) or math.prod(grid) != ranks:
        raise InputError(f"grid_shape {grid} does not match comm size {ranks}, for an array of shape {shape}")
    return Layout.grid(shape, grid, sizes=[_blocks(extent, parts) for extent, parts in zip(shape, grid, strict=True)])


def _blocks(extent: int, parts: int) -> list[int]:
    """Return the sizes of blocks that are as large as the first one, except at the end."""
    size = -(-extent // parts)
    return [max(0, min(size, extent - number * size)) for number in range(parts)]


# Products of matrices


def _side(ranks: int) -> int:
    side = math.isqrt(ranks)
    if side * side != ranks:
        raise RuntimeError(f"Number of processes must be a square number, a perfect square, not {ranks}")
    return side


def _tiles(shape: Sequence[int], ranks: int) -> Layout:
    return _grid((int(shape[0]), int(shape[1])), (_side(ranks), _side(ranks)), ranks)


def active_grid_comm(base_comm: MpiComm, N: int, M: int) -> tuple[MpiComm, int, int, int, bool]:
    """Choose the ranks of a square process grid for data of N rows and M columns. Collective.

    Returns the mpi4py communicator of the ranks in the grid, this rank's number in it, its row and column, and whether
    it is in the grid. Each other rank gets ``MPI.COMM_SELF``, where PyLops-MPI returns ``None``.
    """
    MPI = mpi4py_module()
    rank, size = base_comm.Get_rank(), base_comm.Get_size()
    side = math.isqrt(size)
    active = min(N, M, side)
    row, col = divmod(rank, side)
    is_active = row < active and col < active
    comm = base_comm.Split(color=0 if is_active else MPI.UNDEFINED, key=rank)
    if active * active < size:
        ranks_may_be_inactive()
    return (comm, comm.Get_rank(), row, col, True) if is_active else (MPI.COMM_SELF, 0, 0, 0, False)


def local_block_split(global_shape: Sequence[int], rank: int, comm: MpiComm) -> tuple[slice, ...]:
    """Return the block of `rank` of a matrix on a square process grid."""
    size = comm.Get_size()
    if not 0 <= int(rank) < size:
        raise InputError(f"rank must be an integer in [0, {size}), got {rank!r}")
    return _tiles(global_shape, size).slices(int(rank))


def block_gather(x: AnyArray, orig_shape: Sequence[int], comm: MpiComm) -> LocalArray:
    """Gather the matrix whose ravelled blocks are the parts of `x`. Collective."""
    return reinterpret(x.native, _tiles(orig_shape, comm.Get_size())).gather()


class MPIMatrixMult(DistributedMixIn, MPILinearOperator):
    """Multiply matrices whose ravelled blocks are the parts of vectors, see :class:`collops.operators.MatrixMult`.

    Collective. `A` is this rank's block and `M` the number of columns of the model. The number of ranks must be a
    square; natively any number is possible. `saveAt` and `base_comm_nccl` have no effect.
    """

    _requires_partition = (True, True)

    def _make(self, A, M, saveAt=False, base_comm=None, kind="summa", dtype="float64", base_comm_nccl=None):
        if kind not in ("summa", "block"):
            raise NotImplementedError(f"kind must be summa or block, not {kind!r}")
        comm = communicator(base_comm)
        side = _side(comm.size)
        self.M = operator.index(M)
        if self.M < 1:
            raise InputError(f"M must be at least 1, not {M}")
        widths = _blocks(self.M, side)
        is_matrix = getattr(A, "ndim", None) == 2
        comm.check(
            None if is_matrix else UnsupportedTypeError(f"expected a matrix with two axes, not {type(A).__name__}")
        )
        options = {"process_grid": (side, side), "dtype": dtype}
        grid_ranks = range(comm.size)
        if kind == "summa":
            tiles = comm.allgather_metadata([int(n) for n in A.shape])
            heights = [tiles[column][1] for column in range(side)]
            model = Layout.grid((sum(heights), self.M), (side, side), sizes=[heights, widths])
            native = MatrixMult(A, model, kind, comm=comm, **options)
        else:
            # PyLops-MPI stores the same columns of the model on a row of ranks, the native operator on a column.
            row, column = divmod(comm.rank, side)
            transposed = comm.split(0, column * side + row)
            grid_ranks = [number % side * side + number // side for number in grid_ranks]
            model = Layout((int(A.shape[1]), self.M), comm.size, (side, side), (None, 1), [None, widths])
            native = MatrixMult(A, model, kind, gather_range=True, comm=transposed, **options)
        self.K, self.N = model.shape[0], native.shape[0] // self.M
        held = self.M * (side if kind == "block" else 1)  # columns of the vectors, whose parts repeat
        self.dims, self.dimsd = (self.K, held), (self.N, held)
        return Flat(native, vector_layout(native.domain, grid_ranks), vector_layout(native.range, grid_ranks), comm)

    def _matvec(self, x: AnyArray) -> AnyArray:
        return _with_mask(super()._matvec(x), x)

    def _rmatvec(self, x: AnyArray) -> AnyArray:
        return _with_mask(super()._rmatvec(x), x)


def _with_mask(result: AnyArray, x: AnyArray) -> AnyArray:
    """Return `result` with the mask of `x`."""
    if x.mask is None:
        return result
    masked = wrap(to_layout(result.native, vector_layout(result.native.layout, mask=x.mask)), x)
    masked.mask = x.mask
    return masked


# Halos


def halo_block_split(
    global_shape: Sequence[int], comm: MpiComm, grid_shape: Sequence[int] | None = None
) -> tuple[slice, ...]:
    """Return this rank's block of an array on a process grid; slices that reach the end of the array are open."""
    ranks = communicator(comm)
    layout = _grid(global_shape, grid_shape, ranks.size)
    coordinates = layout.coordinates(ranks.rank)
    return tuple(
        slice(s.start, None if (0 if axis is None else coordinates[axis]) == len(sizes) - 1 else s.stop)
        for s, axis, sizes in zip(layout.slices(ranks.rank), layout.axes, layout.sizes, strict=True)
    )


class MPIHalo(DistributedMixIn, MPILinearOperator):
    """Extend each rank's ravelled block by its neighbours' values, see :class:`collops.operators.Halo`. Collective.

    As in PyLops-MPI, a single width adds no halo at the ends of the array, several widths add zeros there; and
    ``rmatvec`` drops the halos, so that ``halo.H @ local @ halo`` applies a stencil. The native operator has the true
    adjoint, which adds them.

    Each rank passes its own widths. Between two blocks, both ranks must pass the same width, which must not exceed
    either block; otherwise all ranks raise an InputError. The native operator has no such limit.
    """

    _requires_partition = (True, True)

    def _make(self, dims, halo, proc_grid_shape=None, comm=None, dtype=np.float64):
        self.base_comm, self.global_dims = comm, self.dims
        ranks = communicator(comm)
        layout = _grid(dims, proc_grid_shape, ranks.size)
        self.proc_grid_shape = tuple(len(sizes) for sizes in layout.sizes)
        widths = collective_values(ranks, lambda: _widths(halo, layout.ndim))
        _check_widths(layout, widths)
        native = _Extension(layout, widths, np.ndim(halo) > 0, ranks, dtype)
        self.local_dims = layout.local_shape(ranks.rank)
        self.local_extent = native.extents[ranks.rank]
        sides = zip(native.inner, self.local_extent, strict=True)
        self.halo = tuple(width for s, extent in sides for width in (s.start, extent - s.stop))
        return native


def _widths(halo: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    """Return the widths before and after the block, per axis; raise PyLops-MPI's errors for invalid ones."""
    if np.ndim(halo) and len(halo) not in (1, ndim, 2 * ndim):
        raise InputError(f"Invalid halo length {len(halo)} for ndim={ndim}")
    if np.any(np.asarray(halo) < 0):
        raise InputError(f"Halo widths must be non-negative, not {halo}")
    return halo_widths(halo, ndim)


def _check_widths(layout: Layout, widths: Sequence[Any]) -> None:
    """Raise an InputError unless neighbours exchange halos of one width, which neither block is smaller than.

    `widths` has the widths of every rank. No communication.
    """
    rank_at = {layout.coordinates(rank): rank for rank in range(layout.ranks)}
    mismatch = None
    for (coordinates, rank), (axis, along) in itertools.product(rank_at.items(), enumerate(layout.axes)):
        for side, step in enumerate((-1, 1)):
            if along is None:
                continue
            neighbour = rank_at.get((*coordinates[:along], coordinates[along] + step, *coordinates[along + 1 :]))
            if neighbour is None:
                continue
            width, opposite = widths[rank][axis][side], widths[neighbour][axis][1 - side]
            size = layout.local_shape(rank)[axis]
            if width > size:
                raise InputError(
                    f"the halo width exceeds local block size: {width} along axis {axis}, where rank {rank} has a "
                    f"block of {size}; collops.operators.Halo accepts such widths"
                )
            if width != opposite:
                mismatch = f"{width} along axis {axis} on rank {rank}, {opposite} on rank {neighbour}"
    if mismatch is not None:
        raise InputError(f"the halo width does not match neighbor halo width: {mismatch}; pass equal widths")


class _Extension(LinearOperator):
    """Extend ravelled blocks by halos; the adjoint drops the halos.

    `halos` has the widths of all ranks. With `beyond`, blocks at the ends of the array have halos too, which are zero.
    """

    def __init__(
        self,
        layout: Layout,
        halos: Sequence[Sequence[tuple[int, int]]],
        beyond: bool,
        comm: Communicator,
        dtype: DTypeLike,
    ) -> None:
        widths = tuple((max(b for b, _ in pairs), max(a for _, a in pairs)) for pairs in zip(*halos, strict=True))
        self._plan = HaloPlan(layout, widths, comm)
        inner = [halo_region(layout, rank, halo, widths, beyond) for rank, halo in enumerate(halos)]
        self.extents = [tuple(s.stop - s.start for s in box) for box in inner]
        self._shape, self._extent = layout.local_shape(comm.rank), self.extents[comm.rank]
        self._region = inner[comm.rank]
        self.inner = tuple(
            slice(before - s.start, before - s.start + n)
            for n, (before, _), s in zip(self._shape, widths, self._region, strict=True)
        )
        sizes = [math.prod(extent) for extent in self.extents]
        super().__init__(vector_layout(layout), Layout.split(sum(sizes), comm.size, sizes=sizes), dtype, comm)
        self._buffers = Buffers()

    def _forward(self, x: Array, out: Array | None) -> Array:
        out = self._new(self.range, x) if out is None else out
        extended = self._buffers.get("extended", self._plan.extended, x, x.dtype).local_array
        self._plan.fill(x.local_array.reshape(self._shape), extended)
        store(extended[self._region], out.local_array.reshape(self._extent))
        return out

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        out = self._new(self.domain, y) if out is None else out
        store(y.local_array.reshape(self._extent)[self.inner], out.local_array.reshape(self._shape))
        return out
