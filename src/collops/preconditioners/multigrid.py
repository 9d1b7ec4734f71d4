"""Algebraic multigrid by smoothed aggregation: a hierarchy of coarser matrices, and the cycle through them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from collops.array import Array, Layout, axpby, dots, random
from collops.backend import Engine
from collops.comm.agreement import collective_errors
from collops.errors import InputError, LayoutError
from collops.exchange.indices import owners, sent_to
from collops.operators import CSRMatrix, VStack
from collops.operators.base import LinearOperator
from collops.operators.csr.products import merged_rows, multiplied, own_columns, renumbered, transposed
from collops.operators.memory import Buffers
from collops.preconditioners.aggregates import aggregate, graph_of, largest_of_rows
from collops.preconditioners.chebyshev import chebyshev
from collops.preconditioners.jacobi import jacobi
from collops.preconditioners.local import check_matrix
from collops.solvers.power import power_iteration
from collops.solvers.problem import check_count, check_number

_DENSE = 600  # maximum number of rows of a matrix that is inverted
_ROWS_OF_A_RANK = 1000  # coarser levels use fewer ranks
_OVER_SMOOTHED = 4 / 3  # step of the smoothing of prolongations, times the largest eigenvalue [Vaněk et al. 1996]
_SAFETY, _RATIO = 1.1, 5.0  # bounds of the smoother: power iteration approaches the largest eigenvalue from below
_ROUNDING = 100  # tolerance of equal inner products, in units of rounding
_SLOW = 0.8  # a matrix with more than this part of the rows of the finer one ends the hierarchy


class Level(NamedTuple):
    """A matrix of the hierarchy, its smoother, and the prolongation from the next, coarser matrix."""

    matrix: CSRMatrix
    smoother: LinearOperator
    prolongation: CSRMatrix


def multigrid(
    A: CSRMatrix,
    near_null_space: ArrayLike | None = None,
    *,
    block: int = 1,
    threshold: float = 0.25,
    degree: int = 1,
) -> Multigrid:
    r"""Return a V-cycle of smoothed aggregation [Vaněk et al. 1996]. Collective.

    Parameters
    ----------
    A : CSRMatrix
        Hermitian positive definite, or semidefinite for right-hand sides in its range. Rows and columns are split
        alike. For a system of partial differential equations, `block` consecutive rows are the unknowns of a point.
    near_null_space : array, optional
        This rank's rows of vectors, shape ``(own rows, vectors)``, whose images under `A` are small: by default
        constants, one for each unknown of a point. Elasticity needs the rigid rotations as well.
    block : int
        Number of unknowns of a point. Each rank must have all unknowns of its points.
    threshold : float
        Points are aggregated along entries of at least this ratio to the geometric mean of the largest entries in
        their row and column. Entries below this ratio to the largest of their row do not smooth the prolongation.
    degree : int
        Degree of the smoother, a :func:`chebyshev` polynomial with :func:`jacobi`.

    Returns
    -------
    Multigrid
        A Hermitian operator for all engines: a cycle sends the messages of ``2 * degree + 2`` products with the matrix
        of each level and of two with each prolongation, and one allreduce of a vector of the coarsest level. Its
        attributes describe the hierarchy.

    Raises
    ------
    InputError
        On every rank, if an argument is out of range, `A` is not Hermitian, or its diagonal has zeros.
    LayoutError
        On every rank, if `block` does not divide a rank's rows; or as for :func:`block_jacobi`.
    UnsupportedTypeError
        As for :func:`block_jacobi`.

    Notes
    -----
    Aggregates are the same on any number of ranks, and so is the number of iterations. They may extend across ranks.
    Levels with few rows move to fewer ranks, and the coarsest one is inverted as a dense matrix on every rank; a
    pseudo-inverse solves singular systems. The set-up is on the host: products of sparse matrices by SciPy.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import collops
    >>> from collops.preconditioners import multigrid
    >>> line, one = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(40, 40)), sp.eye_array(40)
    >>> A = collops.CSRMatrix.from_global((sp.kron(line, one) + sp.kron(one, line)).tocsr())
    >>> M = multigrid(A)
    >>> result = collops.cg(A, collops.ones(1600), rtol=1e-8, M=M)
    >>> result.iterations < 12, M.rows[0], M.operator_complexity < 1.5
    (True, 1600, True)
    """
    check_matrix(A)
    block, degree = check_count("block", block, smallest=1), check_count("degree", degree)
    threshold = check_number("threshold", threshold)
    if threshold > 1:
        raise InputError(f"threshold must be at most 1, or no entry is strong, not {threshold}")
    A = A if A.dtype.kind in "fc" else _in_double_precision(A)
    with collective_errors(A.comm):
        vectors = _checked_vectors(A, near_null_space, block).astype(A.dtype)
    _check_hermitian(A)
    return _hierarchy(A, vectors, block, threshold, degree)


class Multigrid(LinearOperator):
    """The cycle; see :func:`multigrid`.

    Attributes
    ----------
    rows, entries : list of int
        Numbers of rows and of stored entries of the matrix of each level, the finest one first.
    operator_complexity, grid_complexity : float
        Sums of entries and of rows, divided by the entries and the rows of the finest level.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import collops
    >>> from collops.preconditioners import multigrid
    >>> matrix = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(900, 900)).tocsr()
    >>> M = multigrid(collops.CSRMatrix.from_global(matrix))
    >>> len(M.rows), M.entries[0], M.grid_complexity < 1.5
    (2, 2698, True)
    """

    def __init__(self, levels: list[Level], coarsest: CSRMatrix, solve: LinearOperator) -> None:
        matrices = [*(level.matrix for level in levels), coarsest]
        super().__init__(matrices[0].rows, matrices[0].rows, matrices[0].dtype, coarsest.comm)
        self._inherit([*matrices, *(level.smoother for level in levels), solve])
        self._levels, self._solve, self._buffers = levels, solve, Buffers()
        self.rows = [matrix.rows.size for matrix in matrices]
        self.entries = [int(n) for n in self.comm.allreduce(np.array([matrix.nnz for matrix in matrices], np.int64))]
        self.operator_complexity = sum(self.entries) / max(1, self.entries[0])
        self.grid_complexity = sum(self.rows) / max(1, self.rows[0])

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        return self._cycle(0, x, out)

    def _cycle(self, depth: int, y: Array, x: Array) -> Array:
        if depth == len(self._levels):
            return self._solve._forward(y, x)
        A, smoother, prolongation = self._levels[depth]
        residual, change = (self._buffers.get(f"{name}{depth}", A.rows, y, x.dtype) for name in "rc")
        coarse_y, coarse_x = (self._buffers.get(f"{name}{depth}", prolongation.columns, y, x.dtype) for name in "yx")
        x = smoother._forward(y, x)
        residual = axpby(-1.0, A._forward(x, residual), 1.0, y, out=residual)
        coarse_x = self._cycle(depth + 1, prolongation._adjoint(residual, coarse_y), coarse_x)
        x = axpby(1.0, prolongation._forward(coarse_x, change), 1.0, x, out=x)
        residual = axpby(-1.0, A._forward(x, residual), 1.0, y, out=residual)
        return axpby(1.0, smoother._forward(residual, change), 1.0, x, out=x)


def _in_double_precision(A: CSRMatrix) -> CSRMatrix:
    rows, columns = merged_rows(A)
    return CSRMatrix(renumbered(rows.astype(np.float64), columns, A.shape[1]), A.columns, comm=A.comm)


def _checked_vectors(A: CSRMatrix, near_null_space: ArrayLike | None, block: int) -> np.ndarray:
    """Return this rank's rows of the near null space."""
    count = A.rows.local_size(A.comm.rank)
    if count % block:
        raise LayoutError(f"the number of rows of this rank, {count}, must be a multiple of block={block}")
    if near_null_space is None:
        return np.tile(np.eye(block), (count // block, 1))
    vectors = np.asarray(near_null_space)
    if vectors.ndim != 2 or vectors.shape[0] != count or not vectors.shape[1] or vectors.dtype.kind not in "biufc":
        raise InputError(f"near_null_space must be an array of numbers of shape ({count}, vectors) on this rank")
    if vectors.dtype.kind == "c" and A.dtype.kind != "c":
        raise InputError("near_null_space must be real for a real matrix")
    if not np.isfinite(vectors).all():
        raise InputError("near_null_space has elements that are not finite")
    return vectors


def _check_hermitian(A: CSRMatrix) -> None:
    """Raise an error unless two random vectors show that the matrix is its own adjoint. Collective."""
    u, v = (random(A.rows, comm=A.comm, seed=seed, dtype=np.result_type(A.dtype, np.float32)) for seed in (1, 2))
    image = A @ u
    product, adjoint, square, norm = map(complex, dots((v, image), (A @ v, u), (v, v), (image, image)))
    if abs(product - adjoint) > _ROUNDING * np.finfo(u.dtype).eps * abs(norm * square) ** 0.5:
        raise InputError(
            "multigrid needs a Hermitian matrix; for unsymmetric systems use the multigrid of the Hermitian part, or "
            "block_jacobi, with gmres"
        )


def _hierarchy(A: CSRMatrix, vectors: np.ndarray, block: int, threshold: float, degree: int) -> Multigrid:
    """Return the cycle through coarser matrices, until one is small or hardly smaller than the one before."""
    comm = A.comm
    levels: list[Level] = []
    while A.rows.size > _DENSE:
        labels, count = aggregate(graph_of(A, block), threshold)
        counts = [int(number) for number in comm.allgather(np.array(count))]
        if not 0 < sum(counts) * vectors.shape[1] < _SLOW * A.rows.size:
            break
        tentative, coarse_vectors = _tentative(A, labels, counts, vectors, block)
        filtered = _filtered(A, threshold) if block == 1 else A
        largest = _largest_eigenvalue(A)
        prolongation = _smoothed(filtered, tentative, largest if filtered is A else _largest_eigenvalue(filtered))
        levels.append(Level(A, _smoother(A, degree, largest), prolongation))
        restriction = transposed(prolongation, conjugate=True)
        A = _with_unit_diagonal(multiplied(restriction, multiplied(A, prolongation)))
        vectors, block = coarse_vectors, vectors.shape[1]
    dense = A.rows.size <= _DENSE
    return Multigrid(levels, A, _Inverse(A) if dense else _smoother(A, 3 * degree, _largest_eigenvalue(A)))


def _smoother(A: CSRMatrix, degree: int, largest: float) -> LinearOperator:
    return chebyshev(A, degree, bounds=(_SAFETY * largest / _RATIO, _SAFETY * largest), M=jacobi(A))


def _largest_eigenvalue(A: CSRMatrix) -> float:
    """Return an estimate for the matrix with its rows divided by its diagonal, rounded to be equal on all ranks."""
    estimate = power_iteration(jacobi(A) @ A, niter=15, tol=1e-2).details["eigenvalue"]
    return float(f"{abs(estimate):.2e}")


def _filtered(A: CSRMatrix, threshold: float) -> CSRMatrix:
    """Return the entries that are not small in their row, with the sum of the others added to the diagonal. Collective.

    Weak connections would add entries to the prolongation and the coarse matrix without improving the convergence.
    """
    from scipy import sparse

    rows, columns = merged_rows(A)
    own = np.arange(rows.shape[0])
    diagonal = own + own_columns(A).start
    i = np.repeat(own, np.diff(rows.indptr))
    sizes = np.where(rows.indices == diagonal[i], 0, abs(rows.data))
    weak = (sizes > 0) & (sizes < threshold * largest_of_rows(rows, sizes)[i])
    if not A.comm.allreduce(np.array(int(weak.any())), "max"):
        return A
    removed = sparse.csr_array((np.where(weak, rows.data, 0), rows.indices, rows.indptr), shape=rows.shape)
    sums = sparse.csr_array((removed.sum(axis=1), (own, diagonal)), shape=rows.shape)
    kept = sparse.csr_array(rows - removed + sums)
    kept.eliminate_zeros()
    return CSRMatrix(renumbered(kept, columns, A.shape[1]), A.columns, comm=A.comm)


def _tentative(
    A: CSRMatrix, labels: np.ndarray, counts: list[int], vectors: np.ndarray, block: int
) -> tuple[CSRMatrix, np.ndarray]:
    """Return the prolongation whose columns are the vectors on the aggregates, made orthonormal. Collective.

    Also returns this rank's rows of the coarse vectors: the factors that give back the vectors.
    """
    from scipy import sparse

    comm, width = A.comm, vectors.shape[1]
    aggregates = Layout.split(sum(counts), comm.size, sizes=counts)
    coarse = _on_fewer_ranks(counts, width)
    nodes = np.flatnonzero(labels >= 0)
    shape = vectors.shape[0], coarse.size
    if block == width == 1:  # the vector itself is as good
        rows = sparse.csr_array((vectors[nodes, 0], (nodes, labels[nodes])), shape=shape)
        return CSRMatrix(rows, coarse, comm=comm), np.ones((coarse.local_size(comm.rank), 1), vectors.dtype)
    # An aggregate's owner receives its rows, and returns the orthonormal ones.
    ranks, places = owners(aggregates, comm.rank, labels[nodes])
    first = A.rows.offset(comm.rank)[0] // block
    addresses = np.stack([places, first + nodes, np.full(len(nodes), comm.rank)], axis=1)
    members, parts = sent_to(comm, ranks, addresses, vectors.reshape(-1, block, width)[nodes])
    factors = _orthonormalised(members, parts, counts[comm.rank])
    numbers, values = sent_to(comm, members[:, 2], members[:, 1], parts)
    rows = numbers - first
    i = rows[:, None, None] * block + np.arange(block)[:, None]
    j = labels[rows][:, None, None] * width + np.arange(width)
    positions = tuple(np.broadcast_to(index, values.shape).ravel() for index in (i, j))
    prolongation = sparse.csr_array((values.ravel(), positions), shape=shape)
    prolongation.eliminate_zeros()
    targets, _ = owners(coarse, comm.rank, aggregates.offset(comm.rank)[0] * width + np.arange(factors.shape[0]))
    (coarse_vectors,) = sent_to(comm, targets, factors)
    return CSRMatrix(prolongation, coarse, comm=comm), coarse_vectors


def _orthonormalised(members: np.ndarray, parts: np.ndarray, count: int) -> np.ndarray:
    """Make the rows of each of `count` aggregates orthonormal, in place; return the triangular factors, stacked.

    `members` has the aggregate and the global number of each node, `parts` the rows of its unknowns. If an aggregate
    has fewer unknowns than there are vectors, its last columns are 0.
    """
    block, width = parts.shape[1:]
    order = np.lexsort((members[:, 1], members[:, 0]))
    sizes = np.bincount(members[:, 0], minlength=count)
    starts = np.cumsum(sizes) - sizes
    factors = np.zeros((count, width, width), parts.dtype)
    for size in np.unique(sizes):
        chosen = np.flatnonzero(sizes == size)
        rows = order[starts[chosen][:, None] + np.arange(size)]
        q, r = np.linalg.qr(parts[rows].reshape(len(chosen), size * block, width))
        columns = np.zeros((len(chosen), size * block, width), parts.dtype)
        columns[..., : q.shape[-1]] = q
        factors[chosen, : r.shape[-2]] = r
        parts[rows] = columns.reshape(len(chosen), size, block, width)
    return factors.reshape(-1, width)


def _on_fewer_ranks(counts: list[int], width: int) -> Layout:
    """Return the layout of the coarse vectors: on the ranks of the aggregates, or evenly on fewer ranks."""
    ranks = len(counts)
    used = max(1, min(ranks, sum(counts) * width // _ROWS_OF_A_RANK))
    if used < ranks:
        counts = [*Layout.split(sum(counts), used).sizes[0], *[0] * (ranks - used)]
    sizes = [number * width for number in counts]
    return Layout.split(sum(sizes), ranks, sizes=sizes)


def _smoothed(A: CSRMatrix, tentative: CSRMatrix, largest: float) -> CSRMatrix:
    """Return the prolongation after a step of Jacobi's iteration. Collective."""
    from scipy import sparse

    image, image_columns = merged_rows(multiplied(A, tentative))
    rows, columns = merged_rows(tentative)
    scale = (_OVER_SMOOTHED / largest / A.blocks[0].diagonal()).astype(A.dtype)
    together = np.union1d(image_columns, columns)
    image = renumbered(sparse.csr_array(sparse.diags_array(scale) @ image), *_positions(together, image_columns))
    smoothed = sparse.csr_array(renumbered(rows, *_positions(together, columns)) - image)
    smoothed.eliminate_zeros()
    return CSRMatrix(renumbered(smoothed, together, tentative.shape[1]), tentative.columns, comm=A.comm)


def _positions(together: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the positions of columns in a sorted list of columns, and its length."""
    return np.searchsorted(together, columns), len(together)


def _with_unit_diagonal(A: CSRMatrix) -> CSRMatrix:
    """Return the matrix with 1 in place of zeros on the diagonal, in the rows of columns that are 0. Collective."""
    from scipy import sparse

    missing = np.flatnonzero(A.blocks[0].diagonal() == 0)
    if not A.comm.allreduce(np.array(len(missing)), "sum"):
        return A
    rows, columns = merged_rows(A)
    places = missing, missing + own_columns(A).start
    units = sparse.csr_array((np.ones(len(missing), A.dtype), places), shape=rows.shape)
    return CSRMatrix(renumbered(sparse.csr_array(rows + units), columns, A.shape[1]), A.columns, comm=A.comm)


class _Inverse(LinearOperator):
    """The pseudo-inverse of a small matrix. Collective: every rank has the entire matrix."""

    def __init__(self, A: CSRMatrix) -> None:
        super().__init__(A.rows, A.rows, A.dtype, A.comm)
        rows, columns = merged_rows(A)
        local = np.zeros((rows.shape[0], A.shape[1]), A.dtype)
        local[:, columns] = rows.toarray()
        matrix = np.asarray(A.comm.allgatherv(local.reshape(-1))).reshape(A.shape)
        with collective_errors(A.comm):
            inverse = np.linalg.pinv(matrix, rcond=len(matrix) * np.finfo(A.dtype).eps, hermitian=True)
        (own,) = A.rows.slices(A.comm.rank)
        self._factors = inverse[own], np.eye(len(matrix), dtype=A.dtype)[own]
        self._products: dict[Engine, LinearOperator] = {}

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        if x.engine not in self._products:  # matrices on the device can be recorded in a CUDA graph
            convert = x.engine.from_host if x.engine.mutable else np.asarray
            rows, units = (VStack([convert(factor)], self.comm) for factor in self._factors)
            self._products[x.engine] = rows @ units.H
        return self._products[x.engine]._forward(x, out)
