"""The distributed sparse matrix: rows split over ranks; ghost values arrive while the local columns are multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from collops.array import Array, DistributedArray, Layout
from collops.array.creation import check_memory
from collops.array.fused import LocalPairs
from collops.array.layout_arguments import as_shape
from collops.backend import Engine, LocalArray, SparseArray, engine, kernel_table
from collops.comm.agreement import collective_errors
from collops.comm.arguments import communicator_or_world
from collops.errors import LayoutError, UnsupportedTypeError
from collops.exchange.exchange import Exchange
from collops.exchange.forest import OnTransport, StarForest
from collops.exchange.indices import as_indices, owners, sent_to
from collops.exchange.transports import check_transport
from collops.operators.base import Direction, LinearOperator
from collops.operators.csr.compressed import CompressedRows
from collops.operators.memory import Buffers, contiguous, filled, store

if TYPE_CHECKING:
    from collops.comm import Communicator

_blocks_for = kernel_table("collops.operators.csr", "traced", numpy="blocks", cupy="device")


class CSRMatrix(OnTransport, LinearOperator):
    r"""A sparse matrix whose rows are split over the ranks, in order. Collective.

    Parameters
    ----------
    local : sparse matrix
        This rank's rows, of SciPy in any format, with global columns: shape ``(own rows, all columns)``.
    columns : Layout, optional
        Layout of the vectors that the matrix multiplies: one axis, split. By default the layout of the rows for a
        square matrix, else an even split.
    comm : Communicator, optional
        The ranks; the world by default.
    transport : str or type
        Transport of the neighbours' values; see :class:`collops.StarForest`.

    Attributes
    ----------
    rows, columns : Layout
        The layouts of range and domain.
    nnz : int
        Stored entries of this rank.
    ghosts : numpy.ndarray
        Global columns of other ranks that this rank's rows need.
    forest : StarForest
        The exchange from the elements of the domain to the ghosts.
    entries : list
        The rows of this rank in its own columns and in the columns `ghosts`, of SciPy or in the memory of a device.

    Raises
    ------
    LayoutError
        On every rank, if the local matrices have different numbers of columns, or `columns` does not fit or has copies.

    Notes
    -----
    The rows of rank :math:`r` are :math:`A_r = D_r + O_r`, where :math:`D_r` has the columns of the rank itself and
    :math:`O_r` the columns of other ranks. Forward starts the exchange of the ghosts, multiplies by :math:`D_r`, and
    then by :math:`O_r`. Adjoint multiplies by :math:`O_r^H`, starts to send the products to the owners, and multiplies
    by :math:`D_r^H` meanwhile. Each is one exchange between neighbours.

    On devices a custom kernel multiplies, which is faster than cuSPARSE and can be recorded in a CUDA graph.
    Products of JAX arrays can be traced, and differentiated with respect to the vector.

    Examples
    --------
    >>> import numpy as np, scipy.sparse as sp, collops
    >>> A = collops.CSRMatrix.from_global(sp.eye_array(5).tocsr() * 2)
    >>> A.forward(collops.ones(5)).gather()
    array([2., 2., 2., 2., 2.])
    """

    def __init__(
        self,
        local: SparseArray,
        columns: Layout | None = None,
        *,
        comm: Communicator | None = None,
        transport: str | type[Exchange] = "auto",
    ) -> None:
        from scipy import sparse

        check_transport(transport)
        comm = communicator_or_world(comm)
        with collective_errors(comm):
            if not sparse.issparse(local):
                raise UnsupportedTypeError(
                    f"the local rows must be a sparse matrix of SciPy, not {type(local).__name__}"
                )
            matrix = sparse.csr_array(local)
            if columns is not None:
                _check_split(columns, "columns", matrix.shape[1], comm)
        known = comm.allgather_metadata([*map(int, matrix.shape), str(matrix.dtype)])
        if len({width for _, width, _ in known}) > 1:
            raise LayoutError(f"all ranks' rows must have the same number of columns, not {[row[1] for row in known]}")
        sizes = [count for count, _, _ in known]
        rows = Layout.split(sum(sizes), comm.size, sizes=sizes)
        if columns is None:
            square = sum(sizes) == matrix.shape[1]
            columns = rows if square else Layout.split(matrix.shape[1], comm.size)
        matrix = matrix.astype(np.result_type(*(kind for _, _, kind in known)), copy=False)
        first = columns.offset(comm.rank)[0]
        blocks = _split(matrix, first, first + columns.local_size(comm.rank))
        self._set_blocks(rows, columns, comm, blocks, transport)

    def _set_blocks(
        self,
        rows: Layout,
        columns: Layout,
        comm: Communicator,
        blocks: tuple[SparseArray, SparseArray, np.ndarray],
        transport: str | type[Exchange] = "auto",
    ) -> None:
        """Initialise the operator from the local block, the remote block and its global columns. Collective."""
        self.rows, self.columns = rows, columns
        *self.entries, self.ghosts = blocks
        self._on_host: tuple[SparseArray, SparseArray] | None = None
        self._local_adjoint: CompressedRows | None = None
        super().__init__(columns, rows, self.entries[0].dtype, comm)
        self.nnz = int(sum(block.nnz for block in self.entries))
        self.forest = StarForest.from_layout(comm, columns, self.ghosts, transport=transport)
        self._blocks: dict[tuple[Engine, np.dtype], tuple[Any, Any]] = {}
        self._buffers = Buffers()

    # Constructors

    @classmethod
    def _from_rows(
        cls, matrix: SparseArray, numbers: np.ndarray, rows: Layout, columns: Layout, comm: Communicator
    ) -> CSRMatrix:
        """Return the matrix whose columns have the global, sorted `numbers`, if possible without a copy. Collective."""
        from scipy import sparse

        first, count = columns.offset(comm.rank)[0], columns.local_size(comm.rank)
        if isinstance(matrix, CompressedRows):
            blocks = matrix.split(numbers, first, count)
        elif len(numbers) == count and (not count or (numbers[0] == first and numbers[-1] == first + count - 1)):
            blocks = matrix, sparse.csr_array((matrix.shape[0], 0), dtype=matrix.dtype), numbers[:0].astype(np.int64)
        else:
            shape = matrix.shape[0], columns.size
            matrix = sparse.csr_array((matrix.data, numbers[matrix.indices], matrix.indptr), shape=shape)
            blocks = _split(matrix, first, first + count)
        self = cls.__new__(cls)
        self._set_blocks(rows, columns, comm, blocks)
        return self

    @classmethod
    def from_global(cls, matrix: SparseArray, *, comm: Communicator | None = None, **options: Any) -> CSRMatrix:
        """Return the matrix from a global matrix that every rank has. Collective.

        Parameters
        ----------
        matrix : sparse matrix
            The same on every rank.
        comm, **options
            As for the class, and `rows`: a layout of the rows, split evenly by default.
        """
        from scipy import sparse

        comm = communicator_or_world(comm)
        if not sparse.issparse(matrix):
            raise UnsupportedTypeError(f"expected a sparse matrix of SciPy, not {type(matrix).__name__}")
        rows = _rows_of(options.pop("rows", None), matrix.shape[0], comm)
        (local_rows,) = rows.slices(comm.rank)
        return cls(sparse.csr_array(matrix)[local_rows], comm=comm, **options)

    @classmethod
    def from_coo(
        cls,
        i: Sequence[int] | np.ndarray,
        j: Sequence[int] | np.ndarray,
        values: ArrayLike,
        shape: tuple[int, int],
        *,
        rows: Layout | None = None,
        comm: Communicator | None = None,
        **options: Any,
    ) -> CSRMatrix:
        """Assemble the matrix from triples of all ranks. Collective.

        Parameters
        ----------
        i, j : sequence of int
            Global rows and columns of this rank's triples.
        values : array
            Their values; values of the same entry, from any rank, are added.
        shape : tuple of int
            Shape of the matrix.
        rows : Layout, optional
            Layout of its rows: one axis, split. An even split by default.
        comm, **options
            As for the class.

        Raises
        ------
        LayoutError
            On every rank, if a triple is outside the matrix, or lists differ in length.
        UnsupportedTypeError
            On every rank, if values are not numbers.

        Notes
        -----
        Values of different dtypes are promoted as by NumPy; ranks without triples are ignored.
        """
        comm = communicator_or_world(comm)
        extents = as_shape(shape)
        if len(extents) != 2:
            raise LayoutError(f"a matrix needs two axes, not the shape {extents}")
        rows = _rows_of(rows, extents[0], comm)
        check_memory(rows, np.dtype(np.int64), engine("numpy"))
        return cls(_local_rows(comm, rows, extents[1], i, j, values), comm=comm, **options)

    @classmethod
    def from_matrix_market(cls, path: str | Path, *, comm: Communicator | None = None, **options: Any) -> CSRMatrix:
        """Return the matrix of a Matrix Market file, which rank 0 reads. Collective.

        Parameters
        ----------
        path : path
            The file.
        comm, **options
            As for :meth:`from_coo`.

        Raises
        ------
        InputError
            On every rank, if it cannot be read.
        """
        from collops.operators.csr.market import read_matrix

        comm = communicator_or_world(comm)
        with collective_errors(comm):
            matrix = read_matrix(path) if comm.rank == 0 else None
        rows, columns, dtype = comm.allgather_metadata(
            None if matrix is None else [*map(int, matrix.shape), str(matrix.dtype)]
        )[0]
        nothing = np.empty(0, np.int64)
        i, j = (nothing, nothing) if matrix is None else matrix.coords
        values = np.empty(0, dtype) if matrix is None else matrix.data
        return cls.from_coo(i, j, values, (rows, columns), comm=comm, **options)

    def _astype(self, dtype: np.dtype) -> LinearOperator:
        if dtype.name == "bfloat16":
            return super()._astype(dtype)
        other = self._retyped(dtype)  # with the same star forest, which has buffers for each dtype
        other.entries, other._on_host = [block.astype(dtype) for block in self.entries], None
        other._local_adjoint, other._blocks, other._buffers = None, {}, Buffers()
        return other

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can record the products."""
        return self.forest.on_stream

    # Products

    def _direction(self, adjoint: bool) -> Direction:
        direction = super()._direction(adjoint)
        if adjoint:
            return direction._replace(batched=self._adjoint_columns)
        return direction._replace(batched=self._forward_columns, add=self._add_forward)

    def _add_forward(self, x: Array, total: Array, squares: LocalPairs | None = None) -> Array:
        total = self._forward(x, total, add=True)
        if squares is not None:
            squares.append((total.local_array, total.local_array))
        return total

    def _forward(self, x: Array, out: Array | None, add: bool = False) -> Array:
        out = self._new(self.range, x) if out is None else out
        operand = contiguous(x.local_array, out.dtype)
        local, remote = self._parts(x.engine, out.dtype)
        arriving = self.forest.start_bcast(operand, self._ghost_values(x.engine, out.dtype))
        result = local.multiply(operand, out.local_array, add=add)
        ghosts = arriving.finish()
        if len(self.ghosts):
            result = remote.multiply(ghosts, result, add=True)
        elif x.engine.traced:  # the result must depend on the message, since its derivatives are collective
            result = x.engine.xp.concatenate([result, ghosts])
        return filled(out, result)

    def _adjoint(self, y: Array, out: Array | None) -> Array:
        out = self._new(self.domain, y) if out is None else out
        operand, result = contiguous(y.local_array, out.dtype), out.local_array
        local, remote = self._parts(y.engine, out.dtype)
        ghosts = self._ghost_values(y.engine, out.dtype)
        if len(self.ghosts):
            ghosts = remote.multiply_adjoint(operand, ghosts, add=False)
        elif y.engine.traced:
            ghosts = operand[:0]
        if not y.engine.mutable:
            # The compiler overlaps the messages with the product itself.
            return filled(out, self.forest.reduce(ghosts, local.multiply_adjoint(operand, result, add=False), "sum"))
        # The exchange writes no element of this rank, so that the result is complete only after it.
        leaving = self.forest.start_reduce(ghosts, result, "sum")
        local.multiply_adjoint(operand, result, add=False)
        leaving.finish()
        return out

    def _forward_columns(self, x: Array, out: Array) -> Array:
        operand = np.ascontiguousarray(contiguous(x.local_array, out.dtype).T)
        arriving = self.forest.start_bcast(operand, np.empty((len(self.ghosts), operand.shape[1]), operand.dtype))
        local, remote = self.blocks
        result = local @ operand
        result += remote @ arriving.finish()
        store(result.T, out.local_array)
        return out

    def _adjoint_columns(self, y: Array, out: Array) -> Array:
        operand = np.ascontiguousarray(contiguous(y.local_array, out.dtype).T).conj()
        local, remote = self.blocks
        ghosts = (remote.T @ operand).conj().astype(operand.dtype, copy=False)
        result = np.empty((local.shape[1], operand.shape[1]), operand.dtype)
        leaving = self.forest.start_reduce(ghosts, result, "sum")
        np.conjugate(local.T @ operand, out=result)
        leaving.finish()
        store(result.T, out.local_array)
        return out

    @property
    def blocks(self) -> tuple[SparseArray, SparseArray]:
        """The rows of this rank in its own columns and in the columns `ghosts`: SciPy arrays, not to be written to."""
        if self._on_host is None:
            local, remote = (block.to_host() if isinstance(block, CompressedRows) else block for block in self.entries)
            self._on_host = local, remote
        return self._on_host

    def _with_entries(self, entries: Sequence[Any]) -> CSRMatrix:
        """Return this matrix with its blocks in the memory of a device, or of the host."""
        other = copy(self)
        other._on_host, other.entries, other._buffers = self.blocks, list(entries), Buffers()
        return other

    def diagonal(self) -> DistributedArray:
        """Return the entries ``A[i, i]`` of a matrix whose rows and columns are split alike, on the host. No messages.

        On the device, if the matrix is a level of a multigrid that was set up there.

        Raises
        ------
        LayoutError
            If rows and columns have different layouts.
        """
        if self.columns is not self.rows:
            raise LayoutError("the diagonal needs a square matrix whose rows and columns are split alike")
        return DistributedArray(self.rows, self.comm, self.entries[0].diagonal())

    def _set_local_adjoint(self, rows: CompressedRows) -> None:
        """Set the conjugate transpose of the block of this rank's columns, which devices compute otherwise."""
        self._local_adjoint = rows

    def _set_transport(self, transport: str | type[Exchange]) -> None:
        self.forest, self._buffers = self.forest.with_transport(transport), Buffers()

    def free(self) -> None:
        """Free the memory and the requests of the forest. Collective."""
        self.forest.free()

    def _parts(self, engine: Engine, dtype: np.dtype) -> tuple[Any, Any]:
        key = (engine, dtype)
        if key not in self._blocks:
            make_block = _blocks_for(engine).make_block
            local, remote = self.entries if engine.streams else self.blocks
            self._blocks[key] = (make_block(engine, local, dtype), make_block(engine, remote, dtype))
            if engine.streams and self._local_adjoint is not None:
                self._blocks[key][0].set_adjoint(self._local_adjoint)
        return self._blocks[key]

    def _ghost_values(self, engine: Engine, dtype: np.dtype) -> LocalArray:
        buffer = self._buffers.local("ghosts", self.ghosts.shape, dtype, engine)
        return engine.xp.zeros(self.ghosts.shape, dtype) if buffer is None else buffer


def _rows_of(rows: Layout | None, count: int, comm: Communicator) -> Layout:
    if rows is None:
        return Layout.split(count, comm.size)
    _check_split(rows, "rows", count, comm)
    return rows


def _check_split(layout: object, what: str, count: int, comm: Communicator) -> None:
    if not isinstance(layout, Layout) or layout.ndim != 1 or layout.ranks != comm.size or layout.size != count:
        raise LayoutError(
            f"the {what} need a layout of one axis, {count} elements and {comm.size} ranks, not {layout!r}"
        )
    if len(layout.sizes[0]) != comm.size:
        raise LayoutError(f"the {what} must be split over all ranks without replicas, not {layout}")


def _local_rows(
    comm: Communicator, rows: Layout, columns: int, i: ArrayLike, j: ArrayLike, values: ArrayLike
) -> SparseArray:
    """Return this rank's rows of the triples of all ranks, with global columns; duplicates are summed. Collective."""
    from scipy import sparse

    with collective_errors(comm):
        i, j, values = as_indices(i, "rows"), as_indices(j, "columns", "column", columns), np.asarray(values)
        if len(i) != len(j):
            raise LayoutError(f"{len(i)} rows need equally many columns, not {len(j)}")
        if values.shape != i.shape:
            raise LayoutError(f"{len(i)} triples need equally many values, not an array of shape {values.shape}")
        if values.dtype.kind not in "biufc":
            raise UnsupportedTypeError(f"the values of triples must be numbers, not {values.dtype}")
        ranks, local = owners(rows, comm.rank, i)
    kinds = comm.allgather_metadata(str(values.dtype) if values.size else None)
    dtype = np.result_type(*([kind for kind in kinds if kind] or [values.dtype]))
    indices, data = sent_to(comm, ranks, np.stack([local, j], axis=1), values.astype(dtype))
    matrix = sparse.csr_array((data, (indices[:, 0], indices[:, 1])), shape=(rows.local_size(comm.rank), columns))
    matrix.sum_duplicates()  # SciPy 1.13 leaves them
    return matrix


def _split(matrix: SparseArray, first: int, end: int) -> tuple[SparseArray, SparseArray, np.ndarray]:
    """Return the rows in the local columns, the rows in remote columns (renumbered), and their global columns."""
    from scipy import sparse

    count = matrix.shape[0]
    is_local = (matrix.indices >= first) & (matrix.indices < end)
    away = np.flatnonzero(~is_local)  # usually few, unlike the entries
    rows = np.searchsorted(matrix.indptr, away, side="right") - 1
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=starts[1:])
    ghosts, renumbered = np.unique(matrix.indices[away], return_inverse=True)
    # SciPy keeps 64-bit indices, with which a product reads a third more memory than with 32-bit indices.
    wide_indices = max(matrix.nnz, end - first) > np.iinfo(np.int32).max
    kind = np.int64 if wide_indices else np.int32
    # Masks copy, and a slice is copied several times as fast.
    data, indices = (
        (matrix.data[is_local], matrix.indices[is_local]) if len(away) else (matrix.data.copy(), matrix.indices)
    )
    inner = sparse.csr_array(
        (
            data,
            (indices - first).astype(kind, copy=False),
            (matrix.indptr - starts).astype(kind, copy=False),
        ),
        shape=(count, end - first),
    )
    outer = sparse.csr_array(
        (matrix.data[away], renumbered.reshape(-1).astype(kind), starts.astype(kind)), shape=(count, len(ghosts))
    )
    return inner, outer, ghosts.astype(np.int64)
