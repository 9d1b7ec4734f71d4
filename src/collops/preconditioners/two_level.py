"""The two-level preconditioner: a smoother, and a correction in a coarse space of aggregates of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from collops.array import Array
from collops.backend import Engine, SparseArray
from collops.comm import Communicator, alone
from collops.comm.agreement import collective_errors
from collops.errors import InputError
from collops.operators import CSRMatrix, LocalOperator, VStack, lift_local
from collops.operators.base import AnyLayout, LinearOperator
from collops.operators.memory import filled
from collops.preconditioners.chebyshev import chebyshev
from collops.preconditioners.jacobi import jacobi
from collops.preconditioners.local import LocalSolve, Solve, check_matrix, factorised
from collops.solvers.problem import check_count, check_preconditioner

_ROWS, _MAX_AGGREGATES = 50, 2000  # default rows of an aggregate; maximum number of aggregates
_STRONG = 0.25  # relative to the largest entry in a row


def two_level(
    A: CSRMatrix, smoother: LinearOperator | None = None, aggregates: int | ArrayLike | None = None
) -> LinearOperator:
    r"""Return the sum of a smoother and the coarse-space correction :math:`P (P^H A P)^{-1} P^H`. Collective.

    Parameters
    ----------
    A : CSRMatrix
        Hermitian positive definite, rows and columns split alike.
    smoother : LinearOperator, optional
        Another preconditioner, Hermitian positive definite, which reduces the error within aggregates. By default two
        steps of :func:`chebyshev` with :func:`jacobi`; :func:`block_jacobi` is another choice.
    aggregates : int or array of int, optional
        Number of aggregates of all ranks, by default one for 50 rows, but at most 2000. Each rank gets its share, at
        least one. Or the aggregate of each of this rank's rows, numbered from 0.

    Returns
    -------
    LinearOperator
        Hermitian positive definite, for the engines of the smoother. Applying it sends the messages of the smoother,
        and one allreduce of a vector with one element for each aggregate.

    Raises
    ------
    InputError
        On every rank, if `aggregates` is invalid, or the diagonal of `A` or the coarse matrix is singular.
    LayoutError, UnsupportedTypeError
        As for :func:`block_jacobi`.

    Notes
    -----
    The number of CG iterations does not grow with the number of ranks, since aggregates hardly depend on it. A rank's
    rows are divided into aggregates by recursive bisection across the levels of a breadth-first order of the strong
    entries. The coarse space is from smoothed aggregation [Vaněk et al. 1996]: the columns of
    :math:`P = (I - \omega D^{-1} A) P_0`, where a column of :math:`P_0` is 1 on its aggregate, :math:`D` is the
    diagonal of `A` and :math:`\omega = 4 / (3 \|D^{-1} A\|)`.

    Every rank has the LU factors of the coarse matrix and solves the entire coarse problem. On devices and with JAX,
    every rank multiplies by the inverse of the coarse matrix, a dense matrix, so that CUDA graphs and compiled loops
    contain the whole preconditioner.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import collops
    >>> from collops.preconditioners import two_level
    >>> matrix = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(400, 400)).tocsr()
    >>> A = collops.CSRMatrix.from_global(matrix)
    >>> y = collops.ones(400)
    >>> plain = collops.cg(A, y, niter=400, rtol=1e-6)
    >>> quick = collops.cg(A, y, niter=400, rtol=1e-6, M=two_level(A, aggregates=40))
    >>> plain.iterations, quick.iterations < 40
    (200, True)
    """
    check_matrix(A)
    check_preconditioner(smoother, A.domain)
    comm, dtype = A.comm, np.result_type(A.dtype, np.float64)
    with collective_errors(comm):
        labels = _checked_labels(A, aggregates)
    scaling = jacobi(A)  # raises an error if the diagonal is singular
    smoother = chebyshev(A, 2, M=scaling) if smoother is None else smoother
    functions, coarse = _coarse(A, labels, dtype)
    with collective_errors(comm):
        factors = factorised(coarse)
    prolongation = VStack([CSRMatrix(functions, comm=alone())], comm)  # CSRMatrix has forms for all engines
    return smoother + prolongation @ _CoarseSolve(prolongation.domain, dtype, comm, factors) @ prolongation.H


class _CoarseSolve(LocalSolve):
    """The solution of the coarse problem on every rank: by factors for arrays of NumPy, else by the dense inverse."""

    capturable = True

    def __init__(self, layout: AnyLayout, dtype: np.dtype, comm: Communicator, factors: tuple[Solve, Solve]) -> None:
        super().__init__(layout, dtype, comm, factors)
        self._inverses: dict[tuple[Engine, np.dtype], LocalOperator] = {}

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        engine = x.engine
        if engine.mutable and engine.memory == "host":
            return super()._apply(x, out, adjoint)
        key = engine, out.dtype
        if key not in self._inverses:
            inverse = self._solves[0](np.eye(self.shape[0], dtype=self.dtype))
            self._inverses[key] = lift_local(engine.from_host(inverse.astype(out.dtype)) if engine.mutable else inverse)
        inverse = self._inverses[key]
        multiply = inverse.adjoint_local if adjoint else inverse.forward_local
        return filled(out, multiply(x.local_array, out.local_array if engine.mutable else None))


def _coarse(A: CSRMatrix, labels: np.ndarray, dtype: np.dtype) -> tuple[SparseArray, SparseArray]:
    """Return this rank's rows of P, and the entire matrix P^H A P, as SciPy arrays. Collective."""
    from scipy import sparse

    comm, (local, remote) = A.comm, (block.astype(dtype) for block in A.blocks)
    counts = [int(count) for count in comm.allgather(np.array(labels.max(initial=-1) + 1))]
    total = sum(counts)

    def rows(columns: np.ndarray, values: np.ndarray) -> SparseArray:
        """Return a matrix with the same number of entries in each row."""
        starts = np.arange(len(columns) + 1) * columns.shape[1]
        return sparse.csr_array((values.reshape(-1), columns.reshape(-1), starts), shape=(len(columns), total))

    def images(columns: np.ndarray, values: np.ndarray) -> SparseArray:
        """Return this rank's rows of the product of A with such a matrix. Collective."""
        return local @ rows(columns, values) + remote @ rows(A.forest.bcast(columns), A.forest.bcast(values))

    indices = (labels + sum(counts[: comm.rank])).reshape(-1, 1)
    indicators = np.ones(indices.shape, dtype)
    inverse = sparse.diags_array(1 / local.diagonal())
    sums = abs(inverse) @ (abs(local).sum(axis=1) + abs(remote).sum(axis=1))
    norm = float(comm.allreduce(np.array(sums.max(initial=0.0)), "max"))
    functions = (rows(indices, indicators) - inverse * (4 / 3 / norm) @ images(indices, indicators)).tocsr()
    # Rows are padded with zeros to equal lengths, and exchanged like the ghosts' values.
    lengths = np.diff(functions.indptr)
    width = int(comm.allreduce(np.array(lengths.max(initial=1)), "max"))
    filled = np.arange(width) < lengths[:, None]
    indices, values = np.zeros(filled.shape, np.int64), np.zeros(filled.shape, dtype)
    indices[filled], values[filled] = functions.indices, functions.data
    entries = (functions.conj().T @ images(indices, values)).tocoo()
    i, j, values = (comm.allgatherv(part) for part in (*map(np.int64, entries.coords), entries.data))
    coarse = sparse.csc_array((values, (i, j)), shape=(total, total))
    coarse.sum_duplicates()  # SciPy 1.13 leaves them
    return functions, coarse


def _checked_labels(A: CSRMatrix, aggregates: Any) -> np.ndarray:
    """Return the aggregate of each of this rank's rows, numbered from 0."""
    rows = A.rows.local_size(A.comm.rank)
    if np.ndim(aggregates):
        labels = np.asarray(aggregates)
        if labels.shape != (rows,) or labels.dtype.kind not in "iu":
            raise InputError(f"aggregates must be {rows} integers, one for each row of this rank, or one number")
        return np.unique(labels, return_inverse=True)[1]
    total = min(_MAX_AGGREGATES, A.rows.size // _ROWS or 1) if aggregates is None else aggregates
    share = round(check_count("aggregates", total, smallest=1) * rows / max(1, A.rows.size))
    labels = np.zeros(rows, np.int64)
    if rows:
        _bisect(_strong(A.blocks[0]), np.arange(rows), max(1, min(share, rows)), labels, 0)
    return labels


def _strong(matrix: SparseArray) -> SparseArray:
    """Return the graph of the strong off-diagonal entries."""
    from scipy import sparse

    graph = abs(matrix) - sparse.diags_array(abs(matrix.diagonal()))
    largest = np.repeat(graph.max(axis=1).toarray().reshape(-1), np.diff(graph.indptr))
    graph.data[graph.data < _STRONG * largest] = 0
    graph.eliminate_zeros()
    return sparse.csr_array(graph + graph.T)


def _bisect(graph: SparseArray, points: np.ndarray, count: int, labels: np.ndarray, first: int) -> None:
    """Partition the points of a graph into `count` parts of equal size, numbered from `first`."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    labels[points] = first
    if count == 1:
        return
    order = reverse_cuthill_mckee(graph, symmetric_mode=True)
    half = count // 2
    middle = len(points) * half // count
    for part, share, start in ((order[:middle], half, first), (order[middle:], count - half, first + half)):
        _bisect(graph[part][:, part], points[part], share, labels, start)
