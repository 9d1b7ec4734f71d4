"""MatrixMult: a distributed matrix times a distributed matrix."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from math import prod
from typing import SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, DistributedArray, Layout
from collops.array.dtypes import check_byte_order, real_of
from collops.array.layout_arguments import as_extents, as_ranks, as_shape
from collops.backend import LocalArray, engine_of, is_traced
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.base import LinearOperator
from collops.operators.dims import communicator_of
from collops.operators.matrix_mult.choice import Choice, Problem, fastest, keeps_rows, rounds_for
from collops.operators.matrix_mult.products import Rows
from collops.operators.matrix_mult.summa import Summa, rounds
from collops.operators.memory import Buffers, check_holds, contiguous, filled


class MatrixMult(LinearOperator):
    r"""The product of a distributed matrix with a distributed matrix: :math:`Y = A X`, and :math:`X = A^H Y`.

    A has the shape (N, K), the model (K, M), the data (N, M). The ranks form a process grid of p x q; the number of
    ranks and the sizes of blocks are arbitrary.

    ``kind="summa"``: matrix, model and data are all split over both axes of the grid. Forward gathers columns of the
    matrix and rows of the model within rows and columns of processes; adjoint gathers the columns, and reduces and
    scatters their products within columns of processes. Each is one message, or several rounds if a rank would receive
    more than 128 MiB; the messages of a round then overlap with the product of the previous round. If a rank's complete
    rows of A take at most 128 MiB, they are gathered once, when the operator is created.

    ``kind="block"``: the matrix is split by rows over p, the model by columns over q, and each is replicated over the
    other axis. Forward sends no message, and the data are split over both axes; with `gather_range` it sends one
    allgather, and the data are split by columns only, like the model. Adjoint sends one allreduce.

    By default, a distributed matrix uses the kind and grid with the lowest modelled time of forward and adjoint, among
    those that need at most twice the memory of a full split, plus 128 MiB. A rank of a grid of p x q computes
    :math:`2NKM / pq` operations in either direction, or is limited by its memory bandwidth. It receives, in elements,

    - ``"block"``: nothing forward, and :math:`2 (p - 1) / p \cdot KM / q` in the adjoint, after the product;
    - ``"summa"``: :math:`(p - 1) / p \cdot KM / q` in either direction, and :math:`(q - 1) / q \cdot NK / p` unless the
      rows are kept. On devices, in r rounds, the shorter of product and messages takes 1/r of its own time.

    The time of a message is a latency plus its bytes over a bandwidth. The rates for devices and for hosts are
    constants, so that all ranks make the same choice. There is no tuning at run time.

    Collective; all communicators are created by the constructor.

    Parameters
    ----------
    A : DistributedArray or array, 2-D
        The matrix. A distributed matrix is redistributed once if its layout does not fit. A plain array is this rank's
        block; the shapes of all blocks are gathered once.
    M : int or Layout
        Number of columns of the model; or its layout, whose blocks may be uneven.
    kind : {"summa", "block"}, optional
        The algorithm; see above for the default. If `M` is a layout, the default is a kind that it fits. With
        `gather_range` the default is ``"block"``; for a plain array, whose shape depends on the kind, ``"summa"``.
    process_grid : sequence of int, optional
        The grid (p, q), with ranks in C order. If `kind` is set, the default is the grid of a distributed A if it is
        split as needed, else the grid for which SUMMA sends least, or (ranks, 1) for ``"block"``. For a plain array the
        default is the grid closest to a square: `best_process_grid`.
    gather_range : bool, optional
        For ``"block"``; see above.
    comm : Communicator, optional
        The ranks; by default the ranks of a distributed matrix, or the world.
    dtype : dtype, optional
        Type of the operator; by default the dtype of A.

    Attributes
    ----------
    kind : str
    process_grid : tuple of int

    Raises
    ------
    InputError
        If `kind` is neither, or the grid does not fit the ranks.
    LayoutError
        On every rank, if blocks do not fit together, or the layout of the model does not fit the grid.
    UnsupportedTypeError
        If A is complex and `dtype` is not.

    References
    ----------
    .. [1] R. A. van de Geijn and J. Watts, "SUMMA: Scalable Universal Matrix Multiplication Algorithm", Concurrency:
       Practice and Experience 9(4), 1997.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> A = collops.MatrixMult(collops.from_global(np.eye(4, 3)), 2)
    >>> A.forward(collops.ones(A.domain)).gather()[:, 0]
    array([1., 1., 1., 0.])
    """

    def __init__(
        self,
        A: DistributedArray | LocalArray,
        M: SupportsIndex | Layout,
        kind: str | None = None,
        *,
        process_grid: Sequence[SupportsIndex] | None = None,
        gather_range: bool = False,
        comm: Communicator | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if kind not in ("summa", "block", None):
            raise InputError(f"kind must be 'summa' or 'block', not {kind!r}")
        if gather_range and kind == "summa":
            raise InputError("gather_range is for kind='block'; the data of SUMMA are split like its model")
        comm = communicator_of(A, comm)
        grid = None if process_grid is None else _checked_process_grid(process_grid, comm.size)
        kind = "block" if gather_range else kind
        if isinstance(A, DistributedArray):
            if A.ndim != 2:
                raise LayoutError(f"a matrix needs two axes, not the shape {A.shape}")
            columns = M.shape[-1] if isinstance(M, Layout) else operator.index(M)
            if kind is None:
                itemsize = np.dtype(A.dtype if dtype is None else dtype).itemsize
                problem = Problem(A.shape[0], A.shape[1], columns, itemsize, A.engine.memory)
                kind, grid = _fastest(problem, comm.size, grid, M)
            else:
                grid = grid or _grid_of(A.layout, columns, kind)
            layout = _layout_of_matrix(A.layout, grid, kind)
            block = (A if layout is A.layout else A.redistribute(layout)).local_array
        else:
            kind, grid = kind or "summa", grid or best_process_grid(comm.size)
            layout, block = _gathered_layout(A, grid, kind, comm), A
        stored = np.dtype(block.dtype if dtype is None else dtype)
        check_holds(stored, block.dtype)
        self.kind = kind
        self.process_grid = grid
        domain = _layout_of_model(layout.shape[1], M, grid, kind)
        super().__init__(domain, _layout_of_data(layout, domain, grid, gather_range), stored, comm)
        self._engine, self._traced_matrix = engine_of(block), is_traced(block)
        block = contiguous(block, stored)
        self._algorithms = {stored: self._algorithm(block, layout, domain, gather_range)}
        self._buffers = Buffers()

    def _algorithm(self, block: Array, layout: Layout, domain: Layout, gather_range: bool) -> Rows | Summa:
        p, q = self.process_grid
        ranks = range(self.comm.size)
        row = None if q == 1 else self.comm.subgroup(tuple(rank // q for rank in ranks))
        column = None if p == 1 else self.comm.subgroup(tuple(rank % q for rank in ranks))
        heights, widths = layout.sizes
        if self.kind == "block":
            return Rows(block, column, data=heights if gather_range else None)
        problem = Problem(layout.shape[0], layout.shape[1], domain.shape[1], self.dtype.itemsize, self._engine.memory)
        choice = Choice(self.kind, self.process_grid)
        if row is not None and keeps_rows(choice, problem):
            block, row, widths = _whole_rows(block, widths, row), None, layout.shape[1:]
        return Summa(block, rounds(widths, domain.sizes[0], rounds_for(choice, problem)), row, column)

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        if dtype.name == "bfloat16":
            return super()._astype(dtype)
        other = self._retyped(dtype)
        other._algorithms = {dtype: self._multiplier(dtype)}
        return other

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        engine, local = x.engine, x.local_array
        direction, back = ("adjoint", "forward") if adjoint else ("forward", "adjoint")
        if engine is not self._engine:
            raise UnsupportedTypeError(
                f"MatrixMult needs arrays of {self._engine.name}, the engine of its matrix, not of {engine.name}"
            )
        dtype = self.dtype if local.dtype == self.dtype else np.result_type(self.dtype, local.dtype)
        source = self._buffers.contiguous("given", local, dtype, engine)
        result = self._buffers.result("result", out, dtype)
        if result is not None and dtype.kind == "c" and self.dtype.kind != "c":
            # A real matrix multiplies real and imaginary parts as separate columns, and need not become complex.
            real = real_of(dtype)
            getattr(self._multiplier(real), direction)(source.view(real), result.view(real))
            return filled(out, result)
        algorithm = self._multiplier(dtype)
        product = getattr(algorithm, direction)
        if not engine.traced or self.comm.size == 1:  # JAX derives the product of one rank, also by the matrix
            return filled(out, product(source, result))
        if self._traced_matrix and is_traced(source):
            raise UnsupportedTypeError(
                "on several ranks, JAX cannot trace the matrix of MatrixMult and its operand together: use VStack "
                "or BlockDiag of each rank's rows, or a matrix that is not an argument of the traced function"
            )
        other = getattr(algorithm, back)

        def transposed(cotangent: LocalArray) -> LocalArray:
            return other(cotangent.conj(), None).conj()

        shape = out.local_array.shape
        return filled(out, engine.linear_map(lambda x: product(x, result), transposed, source, shape))

    def _multiplier(self, dtype: DTypeLike) -> Rows | Summa:
        """Return the algorithm with the matrix in a dtype."""
        algorithm = self._algorithms.get(dtype)
        if algorithm is None:
            algorithm = self._algorithms[dtype] = self._algorithms[self.dtype].converted(dtype)
        return algorithm


def _fastest(problem: Problem, ranks: int, grid: tuple[int, int] | None, M: SupportsIndex | Layout) -> Choice:
    """Return the fastest kind and grid, among those that fit the model's layout if any does."""
    grids = [(p, ranks // p) for p in range(1, ranks + 1) if ranks % p == 0] if grid is None else [grid]
    choices = [Choice(kind, candidate) for candidate in grids for kind in ("summa", "block")]
    if isinstance(M, Layout):
        choices = [choice for choice in choices if _fits(M, choice.grid, choice.kind)] or choices
    return fastest(choices, problem)


def _grid_of(layout: Layout, columns: int, kind: str) -> tuple[int, int]:
    """Return the grid of a matrix that is already split as needed, else the grid on which the kind sends least."""
    ranks, p = layout.ranks, len(layout.sizes[0])
    q = ranks // p if kind == "block" else len(layout.sizes[1])
    split = p > 1 and p * q == ranks and (q > 1 or kind == "block")
    if split and _layout_of_matrix(layout, (p, q), kind) is layout:
        return p, q
    if kind == "block":
        return ranks, 1
    return best_process_grid(ranks, (layout.shape[0], layout.shape[1]), columns)


def _layout_of_matrix(layout: Layout, grid: tuple[int, int], kind: str) -> Layout:
    """Return the layout that an algorithm needs of a matrix, with its blocks' sizes where they fit."""
    axes = (0, None if kind == "block" else 1)
    sizes = [
        blocks if axis is not None and len(blocks) == grid[axis] else None
        for blocks, axis in zip(layout.sizes, axes, strict=True)
    ]
    return Layout(layout.shape, layout.ranks, grid, axes, sizes)


def _layout_of_model(inner: int, M: SupportsIndex | Layout, grid: tuple[int, int], kind: str) -> Layout:
    if not isinstance(M, Layout):
        return Layout((inner, M), grid[0] * grid[1], grid, _axes_of_model(kind))
    if M.ndim != 2 or M.shape[0] != inner:
        raise LayoutError(f"a matrix with {inner} columns needs a model with {inner} rows, not of shape {M.shape}")
    if not _fits(M, grid, kind):
        raise LayoutError(f"the model's layout {M} does not fit a grid of {grid[0]} x {grid[1]} processes ({kind})")
    return M


def _axes_of_model(kind: str) -> tuple[int | None, int]:
    return None if kind == "block" else 0, 1


def _fits(model: Layout, grid: tuple[int, int], kind: str) -> bool:
    """Return whether the model of a kind on a grid may have this layout."""
    if model.ndim != 2 or model.ranks != prod(grid):
        return False
    axes = _axes_of_model(kind)
    parts = [1 if axis is None else grid[axis] for axis in axes]
    fits = [len(blocks) for blocks in model.sizes] == parts
    return fits and Layout(model.shape, model.ranks, grid, axes, model.sizes) is model


def _layout_of_data(matrix: Layout, model: Layout, grid: tuple[int, int], gathered: bool) -> Layout:
    return Layout(
        (matrix.shape[0], model.shape[1]),
        matrix.ranks,
        grid,
        (None if gathered else 0, 1),
        [None if gathered else matrix.sizes[0], model.sizes[1]],
    )


def _gathered_layout(A: LocalArray, grid: tuple[int, int], kind: str, comm: Communicator) -> Layout:
    """Return the layout of the matrix whose block on this rank is `A`. Collective."""
    with collective_errors(comm):
        engine_of(A)
        check_byte_order(A.dtype)
        if A.ndim != 2:
            raise LayoutError(f"this rank's block of a matrix needs two axes, not the shape {A.shape}")
    entries = comm.allgather_metadata([*(int(extent) for extent in A.shape), A.dtype.name])
    if len({entry[2] for entry in entries}) > 1:
        raise LayoutError("the blocks of a matrix must have one dtype on all ranks")
    p, q = grid
    rows = [entries[i * q][0] for i in range(p)]
    columns = [entry[1] for entry in entries[: q if kind == "summa" else 1]]
    for rank, entry in enumerate(entries):
        height, width = rows[rank // q], columns[rank % q if kind == "summa" else 0]
        if (entry[0], entry[1]) != (height, width):
            raise LayoutError(
                f"on a grid of {p} x {q} processes, the block of rank {rank} has the shape {(entry[0], entry[1])}, "
                f"which does not fit its row and column of blocks ({height} rows, {width} columns)"
            )
    return Layout((sum(rows), sum(columns)), comm.size, grid, (0, None if kind == "block" else 1), [rows, columns])


def _whole_rows(block: LocalArray, widths: Sequence[int], row: Communicator) -> LocalArray:
    """Return this rank's complete rows of the matrix. Collective among the ranks that share them."""
    if len(block) == 0:
        return engine_of(block).xp.empty((0, sum(widths)), block.dtype)
    columns = contiguous(block.T, block.dtype)
    return contiguous(row.allgatherv(columns, widths).T, block.dtype)


def best_process_grid(ranks: int, shape: tuple[int, int] | None = None, columns: int | None = None) -> tuple[int, int]:
    """Return the process grid of all ranks on which SUMMA sends least. Not collective.

    Parameters
    ----------
    ranks : int
        Number of ranks.
    shape : tuple of int, optional
        Numbers of rows and columns of the matrix.
    columns : int, optional
        Number of columns of the model. Without the sizes, the result is the grid closest to a square, with at least as
        many columns as rows.

    Returns
    -------
    tuple of int
        Rows and columns of processes.

    Raises
    ------
    LayoutError
        If `ranks` is less than 1, `columns` is less than 0, or `shape` does not have two extents.

    Examples
    --------
    >>> from collops.operators import best_process_grid
    >>> best_process_grid(4, (100, 100))
    (2, 2)
    """
    ranks = as_ranks(ranks)
    if shape is not None and len(as_shape(shape)) != 2:
        raise LayoutError(f"a matrix needs two axes, not the shape {shape}")
    if columns is not None:
        (columns,) = as_extents([columns], "model", 0)
    grids = [(p, ranks // p) for p in range(1, ranks + 1) if ranks % p == 0]

    def elongation(grid: tuple[int, int]) -> tuple[float, bool]:
        return max(grid) / min(grid), grid[0] > grid[1]

    if shape is None or columns is None:
        return min(grids, key=elongation)

    def received(grid: tuple[int, int]) -> float:
        p, q = grid
        return shape[0] * shape[1] * (q - 1) / ranks + shape[1] * columns * (p - 1) / ranks

    return min(grids, key=lambda grid: (received(grid), elongation(grid)))


def _checked_process_grid(process_grid: Sequence[SupportsIndex], ranks: int) -> tuple[int, int]:
    """Return a grid as two integers; raise InputError unless their product is the number of ranks."""
    grid = tuple(operator.index(extent) for extent in process_grid)
    if len(grid) != 2 or min(grid) < 1 or prod(grid) != ranks:
        raise InputError(f"a process grid for {ranks} ranks needs two extents with the product {ranks}, not {grid}")
    return grid[0], grid[1]
