"""PyLops-MPI's products of distributed matrices, and its square process grids."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from collops.array import Layout
from collops.compat.pylops_mpi._local_stack import ranks_may_be_gone
from collops.compat.pylops_mpi._native import Relabelled, brought, communicator, relabelled
from collops.compat.pylops_mpi._stacked_array import wrapped
from collops.compat.pylops_mpi.basicoperators.Halo import blocks
from collops.compat.pylops_mpi.LinearOperator import MPILinearOperator
from collops.errors import InputError, UnsupportedTypeError
from collops.operators.matrix_mult import MatrixMult

__all__ = ["MPIMatrixMult", "active_grid_comm", "block_gather", "local_block_split"]


def active_grid_comm(base_comm: Any, N: int, M: int) -> tuple[Any, int, int, int, bool]:
    """Choose the ranks of a square process grid. Collective.

    Parameters
    ----------
    base_comm : mpi4py.MPI.Comm
        All ranks.
    N, M : int
        Rows and columns of the data.

    Returns
    -------
    comm : mpi4py.MPI.Comm
        Of the ranks in the grid. A rank that is left out gets one of its own: what follows, it does by itself.
    rank, row, col : int
        This rank's number and place in `comm`.
    is_active : bool
        Whether this rank is in the grid.
    """
    from mpi4py import MPI

    rank, size = base_comm.Get_rank(), base_comm.Get_size()
    side = math.isqrt(size)
    active = min(N, M, side)
    row, col = divmod(rank, side)
    is_active = row < active and col < active
    comm = base_comm.Split(color=0 if is_active else MPI.UNDEFINED, key=rank)
    if active * active < size:
        ranks_may_be_gone()
    if not is_active:
        return MPI.COMM_SELF, 0, 0, 0, False
    return comm, comm.Get_rank(), row, col, True


def local_block_split(global_shape: Sequence[int], rank: int, comm: Any) -> tuple[slice, slice]:
    """Return the block of `rank` of a matrix on a square process grid.

    Raises
    ------
    ValueError
        If there is no such rank.
    RuntimeError
        If the number of ranks is no square.
    """
    size = comm.Get_size()
    if not 0 <= int(rank) < size:
        raise InputError(f"there is no rank {rank} among {size}")
    layout = _tiles(global_shape, size)
    rows, columns = layout.slices(int(rank))
    return rows, columns


def block_gather(x: Any, orig_shape: Sequence[int], comm: Any) -> Any:
    """Return the whole matrix whose ravelled blocks are the parts of `x`. Collective.

    Raises
    ------
    RuntimeError
        If the number of ranks is no square.
    """
    return relabelled(x.native, _tiles(orig_shape, comm.Get_size())).gather()


def _tiles(shape: Sequence[int], ranks: int) -> Layout:
    side = _side(ranks)
    rows, columns = int(shape[0]), int(shape[1])
    return Layout.grid((rows, columns), (side, side), sizes=[blocks(rows, side), blocks(columns, side)])


def _side(ranks: int) -> int:
    side = math.isqrt(ranks)
    if side * side != ranks:
        raise RuntimeError(f"a square process grid needs a square number of ranks, not {ranks}")
    return side


class _Multiplication(MPILinearOperator):
    """A matrix times a matrix whose ravelled blocks are the parts of a vector."""

    def __init__(self, A: Any, M: int, kind: str, saveAt: bool, base_comm: Any, dtype: Any) -> None:
        super().__init__(base_comm=base_comm, dtype=dtype)
        comm = communicator(base_comm)
        side = _side(comm.size)
        self.kind, self.saveAt, self.M = kind, saveAt, operator.index(M)
        widths = blocks(self.M, side)
        whole = getattr(A, "ndim", None) == 2
        comm.check(None if whole else UnsupportedTypeError(f"a matrix has two axes; this is a {type(A).__name__}"))
        if kind == "summa":
            tiles = comm.allgather_metadata([int(n) for n in A.shape])
            heights = [tiles[column][1] for column in range(side)]
            model = Layout.grid((sum(heights), self.M), (side, side), sizes=[heights, widths])
            native = MatrixMult(A, model, kind, process_grid=(side, side), comm=comm, dtype=dtype)
            places = range(comm.size)
        else:
            # PyLops-MPI's rows of ranks share columns of the model; here its columns do.
            row, column = divmod(comm.rank, side)
            turned = comm.split(0, column * side + row)
            places = [number % side * side + number // side for number in range(comm.size)]
            grid = (side, side)
            model = Layout((int(A.shape[1]), self.M), comm.size, grid, (None, 1), [None, widths])
            options = {"process_grid": grid, "gather_range": True, "comm": turned, "dtype": dtype}
            native = MatrixMult(A, model, kind, **options)
        model_parts, data_parts = (
            [layout.local_size(place) for place in places] for layout in (native.domain, native.range)
        )
        self.native = Relabelled(native, _vector(model_parts), _vector(data_parts), comm)
        self.K = model.shape[0]
        self.N = native.shape[0] // self.M

    def _matvec(self, x: Any) -> Any:
        return _with_mask(super()._matvec(x), x)

    def _rmatvec(self, x: Any) -> Any:
        return _with_mask(super()._rmatvec(x), x)


def _vector(sizes: Sequence[int]) -> Layout:
    return Layout.split(sum(sizes), len(sizes), sizes=sizes)


def _with_mask(result: Any, x: Any) -> Any:
    """Return a result in the groups that its input is in."""
    if x.mask is None:
        return result
    flat = result.native.layout
    sizes = [flat.local_size(rank) for rank in range(flat.ranks)]
    masked = wrapped(brought(result.native, Layout.split(flat.size, flat.ranks, sizes=sizes, mask=x.mask)), x)
    masked.mask = x.mask
    return masked


def MPIMatrixMult(
    A: Any,
    M: int,
    saveAt: bool = False,
    base_comm: Any = None,
    kind: str = "summa",
    dtype: Any = "float64",
    base_comm_nccl: Any = None,
) -> MPILinearOperator:
    """Return the product with a distributed matrix; see :class:`collops.operators.MatrixMult`. Collective.

    Parameters
    ----------
    A : array, 2-D
        This rank's block.
    M : int
        Number of columns of the model.
    saveAt : bool
        Of no effect: products with the conjugate transpose need no copy.
    base_comm : mpi4py.MPI.Comm, optional
        The ranks, a square number of them.
    kind : {"summa", "block"}
        The algorithm.
    dtype : dtype
        Element type.
    base_comm_nccl : object, optional
        Of no effect: device arrays go by NCCL where it is there.

    Raises
    ------
    NotImplementedError
        If there is no such kind.
    RuntimeError
        If the number of ranks is no square.

    Examples
    --------
    >>> import numpy as np
    >>> import collops.compat.pylops_mpi as pylops_mpi
    >>> A = pylops_mpi.MPIMatrixMult(np.ones((2, 3)), 4)  # on one rank: the whole matrix
    >>> A.shape
    (8, 12)
    """
    if kind not in ("summa", "block"):
        raise NotImplementedError(f"kind must be 'summa' or 'block', not {kind!r}")
    return _Multiplication(A, M, kind, saveAt, base_comm, dtype)
