"""Algebraic multigrid by smoothed aggregation: a hierarchy of coarser matrices, and the cycle through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from collops.array import Array, Layout, axpby, dots, random
from collops.array.creation import AnyEngine
from collops.backend import Engine, LocalArray, any_true, engine_of, free_memory
from collops.backend import engine as as_engine
from collops.comm.agreement import collective_errors
from collops.errors import InputError, LayoutError
from collops.limits import available_memory, in_words
from collops.operators import CSRMatrix
from collops.operators.base import LinearOperator
from collops.operators.csr import device_products
from collops.operators.csr.compressed import CompressedRows, same_pattern
from collops.operators.csr.products import (
    Rows,
    added_rows,
    merged_rows,
    own_columns,
    product_rows,
    transposed_rows,
)
from collops.operators.csr.repeated import Pattern, RepeatedProduct
from collops.operators.memory import Buffers
from collops.preconditioners.aggregates import Graph, aggregate, graph_of
from collops.preconditioners.chebyshev import chebyshev
from collops.preconditioners.dense import DenseInverse
from collops.preconditioners.jacobi import jacobi
from collops.preconditioners.local import check_matrix
from collops.preconditioners.prolongation import Multiply, filtered, smoothed, tentative
from collops.preconditioners.smoother import Smoother
from collops.preconditioners.spectrum import largest_eigenvalue, ritz_values
from collops.preconditioners.weak import Parts, has_signs_of_m_matrix, separated
from collops.solvers.problem import check_count, check_number

_DENSE = 600  # maximum number of rows of a matrix that is inverted
_SAFETY, _RATIO = 1.1, 5.0  # bounds of the smoother: Lanczos' method approaches the largest eigenvalue from below
_ROUNDING = 100  # tolerance of equal inner products, in units of rounding
_HEADROOM = 2.0**-20  # maximum of products with random vectors, in units of the largest number
# Memory of the set-up, measured with 7 and 27 entries a row, in double precision.
_BYTES_OF_AN_ENTRY, _BYTES_OF_A_ROW, _BYTES_OF_A_ROW_ON_DEVICES = 24, 400, 550
_SMALL = 4_000  # maximum number of rows of a matrix that is not set up on devices, whose launches would take longer
_SLOW = 0.8  # a matrix with more than this part of the rows of the finer one ends the hierarchy
_COMPLEXITY = 1.5  # aggregates become larger until the complexity is smaller, of all levels or from one level on
# Entries at the threshold are strong whatever their rounding, which on coarse levels is not the same in both triangles.
_BELOW = 1 - 2.0**-12
# Weak entries are separated if they are at least this part of the entries outside of the diagonal, in matrices with at
# least this part of the entries of the finest one.
_SEPARATED, _LARGE = 0.25, 0.25
_CHEAP = 0.25  # a W-cycle visits a matrix twice if it has at most this part of the entries of the finer one


class Options(NamedTuple):
    """Options of :func:`multigrid`, the dtype of the entries that smoothers read, and the engine of the set-up."""

    threshold: float
    degree: int
    entries: np.dtype
    engine: Engine


class Algebra(NamedTuple):
    """Functions for matrices on the host or on devices, of one module each."""

    merged_rows: Callable[[CSRMatrix], Rows]
    product_rows: Multiply
    transposed_rows: Callable[[CSRMatrix, Rows, bool], Rows]
    added_rows: Callable[[Rows, Rows], Rows]
    repeated_product: Callable[[], Multiply]


_ON_HOSTS = Algebra(merged_rows, product_rows, transposed_rows, added_rows, RepeatedProduct)
_ON_DEVICES = Algebra(
    device_products.merged_rows,
    device_products.product_rows,
    device_products.transposed_rows,
    device_products.added_rows,
    device_products.RepeatedProduct,
)


class Aggregation(NamedTuple):
    """The part of a level that stays when the values of the matrix change."""

    block: int
    tentative: Rows
    coarse: Layout
    separates: bool
    products: tuple[Multiply, ...]


class Analysis(NamedTuple):
    """The merged rows of a matrix, its smoother, and what its prolongation is smoothed by, with any aggregates.

    These are rows without weak entries, their diagonal, and the largest eigenvalue of their quotient.
    """

    rows: Rows
    smoother: Smoother
    filtered: Rows
    diagonal: LocalArray
    largest: float


class Level(NamedTuple):
    """A matrix of the hierarchy, its smoother, and the prolongation from the next, coarser matrix."""

    matrix: CSRMatrix
    smoother: Smoother
    prolongation: CSRMatrix
    aggregation: Aggregation


def multigrid(
    A: CSRMatrix,
    near_null_space: ArrayLike | None = None,
    *,
    block: int = 1,
    threshold: float = 0.25,
    degree: int = 1,
    cycle: str = "W",
    single_precision: bool = False,
    engine: AnyEngine = "numpy",
) -> Multigrid:
    r"""Return a cycle of smoothed aggregation [Vaněk et al. 1996]. Collective.

    Parameters
    ----------
    A : CSRMatrix
        Hermitian positive definite, or semidefinite for right-hand sides in its range; rows and columns split alike.
    near_null_space : array, optional
        This rank's rows of vectors, shape ``(own rows, vectors)``, whose images under `A` are small: by default
        constants, one for each unknown of a point. Elasticity needs the rigid rotations as well.
    block : int
        Number of unknowns of a point, in consecutive rows of one rank.
    threshold : float
        Points are aggregated along entries of at least this ratio to the geometric mean of the largest entries in
        their row and column. Entries below this ratio to the largest of their row do not smooth the prolongation.
    degree : int
        Degree of the smoother's polynomial.
    cycle : {"W", "V"}
        ``"V"`` visits each level once. ``"W"`` visits a coarser level twice if its matrix has at most a quarter of the
        entries of the finer one, so that iterations hardly grow with the number of levels.
    single_precision : bool
        Whether smoothers read entries in single precision: on devices, with JAX, and on hosts with Numba.
    engine : {"numpy", "cupy"}
        Where large levels are set up, whatever the engine of vectors. Several vectors, or unknowns of a point, are made
        orthonormal on each aggregate on the host.

    Returns
    -------
    Multigrid
        A Hermitian operator. A visit of a level sends the messages of ``2 * degree + 2`` products (one more in a second
        visit) and of two with the prolongation, a visit of the coarsest level one allreduce.

    Raises
    ------
    InputError
        On every rank, if an argument is out of range, `A` is not Hermitian, its diagonal has negative entries, its
        entries are not finite or too large, or the set-up would need more memory than there is.
    LayoutError, UnsupportedTypeError
        As for :func:`block_jacobi`, or on every rank if `block` does not divide a rank's rows.

    Notes
    -----
    Aggregates, which may extend across ranks, and iterations are the same on any number of ranks. Levels with few rows
    move to fewer ranks; the coarsest matrix is inverted on every rank, by a pseudo-inverse if it is singular. Sums on
    devices have the order of Numba's loops on hosts, so that a set-up repeats its bits.

    The operator complexity is usually below 1.5. Weak entries of M-matrices add to the coarse matrix without smoothed
    prolongations, which would make it dense, and aggregates become larger where this does not suffice. The complexity
    is higher, 1.6 to 1.9 with pairs, if strong entries connect only small groups of points.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import collops
    >>> from collops.preconditioners import multigrid
    >>> line, one = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(40, 40)), sp.eye_array(40)
    >>> A = collops.CSRMatrix.from_global((sp.kron(line, one) + sp.kron(one, line)).tocsr())
    >>> result = collops.cg(A, collops.ones(1600), rtol=1e-8, M=multigrid(A))
    >>> result.iterations < 12
    True
    """
    check_matrix(A)
    if cycle not in ("V", "W"):
        raise InputError(f"cycle must be 'V' or 'W', not {cycle!r}")
    block, A = check_count("block", block, smallest=1), A if A.dtype.kind in "fc" else _in_double_precision(A)
    options = _checked_options(A, threshold, degree, single_precision, engine)
    with collective_errors(A.comm):
        _check_memory(A, options.engine)
        vectors = _checked_vectors(A, near_null_space, block, options.engine)
    A = _placed(A, options.engine)
    with collective_errors(A.comm):
        _check_diagonal(A, options.entries)
    _check_hermitian(A)
    return Multigrid(*_hierarchy(A, vectors, block, options), options, twice=cycle == "W")


class Multigrid(LinearOperator):
    """The cycle; see :func:`multigrid`.

    Attributes
    ----------
    rows, entries, visits : list of int
        Numbers of rows and of stored entries of the matrix of each level, and how often a cycle visits it; the finest
        level first.
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

    def __init__(
        self, levels: list[Level], coarsest: CSRMatrix, solve: LinearOperator, options: Options, *, twice: bool
    ) -> None:
        matrices = [*(level.matrix for level in levels), coarsest]
        super().__init__(matrices[0].rows, matrices[0].rows, matrices[0].dtype, coarsest.comm)
        self._inherit([*matrices, solve])
        self._options, self._twice, self._buffers = options, twice, Buffers()
        self._set_levels(levels, coarsest, solve)

    def _set_levels(self, levels: list[Level], coarsest: CSRMatrix, solve: LinearOperator) -> None:
        self._levels, self._solve = levels, solve
        matrices = [*(level.matrix for level in levels), coarsest]
        self._finest = matrices[0]
        self._ranks = [int(np.count_nonzero(matrix.rows.sizes[0])) for matrix in matrices]
        self.rows = [matrix.rows.size for matrix in matrices]
        self.entries = [int(n) for n in self.comm.allreduce(np.array([matrix.nnz for matrix in matrices], np.int64))]
        pairs = zip(self.entries[:-2], self.entries[1:-1], strict=True)
        self._repeats = [2 if self._twice and coarse <= _CHEAP * fine else 1 for fine, coarse in pairs]
        self._repeats += [1] * (len(levels) - len(self._repeats))  # the coarsest level has an exact solution
        self.visits = [int(number) for number in np.cumprod([1, *self._repeats])]
        self.operator_complexity = sum(self.entries) / max(1, self.entries[0])
        self.grid_complexity = sum(self.rows) / max(1, self.rows[0])

    def refresh(self, A: CSRMatrix) -> None:
        """Become the multigrid of a matrix with other values in the same positions. Collective.

        Aggregates are kept, and everything else is computed as by :func:`multigrid`. The result is a new multigrid but
        for rounding if the same entries are strong (see `threshold`) and weak, in the same order of strength, and keep
        their signs. After a large change of coefficients a new multigrid may converge faster, and if weak entries
        become strong, or positive in an M-matrix, the operator complexity may exceed 1.5. The first call stores the
        patterns of products, so that later calls take less than half of the time of a set-up.

        Programs that were compiled by JAX before contain the old values. Solvers record CUDA graphs in each call.

        Parameters
        ----------
        A : CSRMatrix
            In the layout and with the dtype of the first one.

        Raises
        ------
        InputError
            On every rank, if entries of a rank are in other positions, or as for :func:`multigrid`; the operator is
            unchanged.
        LayoutError
            If `A` has another layout.

        Examples
        --------
        >>> import scipy.sparse as sp
        >>> import collops
        >>> from collops.preconditioners import multigrid
        >>> matrix = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(900, 900)).tocsr()
        >>> M = multigrid(collops.CSRMatrix.from_global(matrix))
        >>> A = collops.CSRMatrix.from_global(matrix + 0.01 * sp.eye_array(900))
        >>> M.refresh(A)
        >>> collops.cg(A, collops.ones(900), rtol=1e-8, M=M).iterations < 12
        True
        """
        check_matrix(A)
        if A.rows is not self.domain:
            raise LayoutError(f"refresh needs a matrix with the rows {self.domain}, not {A.rows}")
        A = A if A.dtype.kind in "fc" else _in_double_precision(A)
        with collective_errors(self.comm):
            if A.dtype != self.dtype:
                raise InputError(f"refresh needs a matrix of {self.dtype}, not {A.dtype}: set up a new multigrid")
            _check_memory(A, self._options.engine)
        A = _placed(A, self._options.engine)
        with collective_errors(self.comm):
            _check_diagonal(A, self._options.entries)
            if not _same_pattern(A, self._finest):
                raise InputError(
                    "the matrix has entries in other positions than the matrix of the set-up: set up a new multigrid"
                )
        _check_hermitian(A)
        levels, signs = [], has_signs_of_m_matrix(A)
        for level in self._levels:
            rows = _algebra_of(A).merged_rows(A)
            graph = graph_of(A, rows, 1) if level.aggregation.block == 1 else None
            parts = None
            if graph is not None and level.aggregation.separates and signs:
                parts = separated(A, rows, graph, self._options.threshold)
            analysis = _analysis(A, rows, graph, self._options)
            following, A = _coarsened(A, analysis, parts, level.aggregation, self._options, again=True)
            levels.append(following)
        self._set_levels(levels, A, _solution(A, self._options))

    def convergence_factor(self) -> float:
        """Return an estimate from below of the factor by which a cycle reduces errors. Collective: ten cycles.

        It is the largest modulus of the eigenvalues of :math:`I - M A`, from Ritz values; solvers with `M` converge
        faster. Eigenvalues of 0, in the null space of `A`, do not count.
        """
        return float(max(abs(1 - ritz_values(self._finest, self, 10)), default=0.0))

    def report(self) -> str:
        """Return a table of the levels, the complexities and the convergence factor. Collective: ten cycles.

        Examples
        --------
        >>> import scipy.sparse as sp
        >>> import collops
        >>> from collops.preconditioners import multigrid
        >>> matrix = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(900, 900)).tocsr()
        >>> print(multigrid(collops.CSRMatrix.from_global(matrix)).report())
        level         rows        entries  ranks  visits
            0          900          2,698      1       1
            1          247            739      1       1
        operator complexity 1.274, grid complexity 1.274
        estimated convergence factor 0.41
        """
        lines = [f"{'level':>5} {'rows':>12} {'entries':>14} {'ranks':>6} {'visits':>7}"]
        columns = zip(self.rows, self.entries, self._ranks, self.visits, strict=True)
        for level, (rows, entries, ranks, visits) in enumerate(columns):
            lines.append(f"{level:5} {rows:12,} {entries:14,} {ranks:6} {visits:7}")
        lines.append(f"operator complexity {self.operator_complexity:.3f}, grid complexity {self.grid_complexity:.3f}")
        return "\n".join([*lines, f"estimated convergence factor {self.convergence_factor():.2f}"])

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        return self._cycle(0, x, out, again=False)

    def _cycle(self, depth: int, y: Array, x: Array, again: bool) -> Array:
        """Return the solution of a level after a visit, from zero, or `again` from `x`."""
        if depth == len(self._levels):
            return self._solve._forward(y, x)
        A, smoother, prolongation, _ = self._levels[depth]
        residual = self._buffers.get(f"r{depth}", A.rows, y, x.dtype)
        coarse_y, coarse_x = (self._buffers.get(f"{name}{depth}", prolongation.columns, y, x.dtype) for name in "yx")
        x = smoother.improve(y, x) if again else smoother.start(y, x)
        residual = smoother.residual(y, x, residual)
        coarse_y = prolongation._adjoint(residual, coarse_y)
        for visit in range(self._repeats[depth]):
            coarse_x = self._cycle(depth + 1, coarse_y, coarse_x, again=visit > 0)
        if x.engine.mutable:
            x = prolongation._forward(coarse_x, x, add=True)
        else:
            x = axpby(1.0, prolongation._forward(coarse_x, residual), 1.0, x, out=x)
        return smoother.improve(y, x)


def _checked_options(A: CSRMatrix, threshold: float, degree: int, single_precision: bool, engine: AnyEngine) -> Options:
    chosen = as_engine(engine)
    if not chosen.mutable:
        raise InputError(f"the set-up of multigrid runs on the engines numpy and cupy, not {chosen.name}")
    degree, threshold = check_count("degree", degree), check_number("threshold", threshold)
    if threshold > 1:
        raise InputError(f"threshold must be at most 1, or no entry is strong, not {threshold}")
    single = single_precision and A.dtype == np.float64
    return Options(_BELOW * threshold, degree, np.dtype(np.float32) if single else A.dtype, chosen)


def _in_double_precision(A: CSRMatrix) -> CSRMatrix:
    rows, columns = merged_rows(A)
    return CSRMatrix._from_rows(rows.astype(np.float64), columns, A.rows, A.columns, A.comm)


def _placed(A: CSRMatrix, engine: Engine) -> CSRMatrix:
    """Return the matrix on the devices of an engine if it is large, or else on the host."""
    if engine.memory == "device" and A.rows.size > _SMALL:
        return A if isinstance(A.entries[0], CompressedRows) else device_products.on_device(A, engine)
    return A._with_entries(A.blocks) if isinstance(A.entries[0], CompressedRows) else A


def _algebra_of(A: CSRMatrix) -> Algebra:
    """Return the products and transposes where the entries of a matrix are."""
    return _ON_DEVICES if isinstance(A.entries[0], CompressedRows) else _ON_HOSTS


def _checked_vectors(A: CSRMatrix, near_null_space: ArrayLike | None, block: int, engine: Engine) -> LocalArray:
    """Return this rank's rows of the near null space, in the memory of an engine."""
    count = A.rows.local_size(A.comm.rank)
    if count % block:
        raise LayoutError(f"the number of rows of this rank, {count}, must be a multiple of block={block}")
    if near_null_space is None:
        return engine.xp.tile(engine.xp.eye(block, dtype=A.dtype), (count // block, 1))
    vectors = np.asarray(near_null_space)
    if vectors.ndim != 2 or vectors.shape[0] != count or not vectors.shape[1] or vectors.dtype.kind not in "biufc":
        raise InputError(f"near_null_space must be an array of numbers of shape ({count}, vectors) on this rank")
    if vectors.dtype.kind == "c" and A.dtype.kind != "c":
        raise InputError("near_null_space must be real for a real matrix")
    if not np.isfinite(vectors).all():
        raise InputError("near_null_space has elements that are not finite")
    return engine.from_host(vectors.astype(A.dtype))


def _check_memory(A: CSRMatrix, engine: Engine) -> None:
    """Raise an error if the set-up would need more memory than this rank, or its device, can still use."""
    count = A.rows.local_size(A.comm.rank)
    if engine.streams:
        needed = (_BYTES_OF_AN_ENTRY * A.nnz + _BYTES_OF_A_ROW_ON_DEVICES * count) * (4 + A.dtype.itemsize) // 12
        available = free_memory(engine)
    else:
        needed = _BYTES_OF_AN_ENTRY * A.nnz + _BYTES_OF_A_ROW * count
        available = available_memory(A.comm.local_size)
    if needed > available:
        raise InputError(
            f"the set-up of multigrid needs about {in_words(needed)} of memory on this rank, which can still use "
            f"{in_words(available)}: use more nodes, or a smaller matrix"
        )


def _check_diagonal(A: CSRMatrix, dtype: np.dtype) -> None:
    """Raise an error if the diagonal, which has the largest entries of a positive matrix, is negative.

    The same if `dtype` cannot represent it.
    """
    diagonal = A.entries[0].diagonal()
    if any_true(diagonal.real < 0):
        raise InputError(
            "multigrid needs a positive definite matrix, but the diagonal has negative entries: if the matrix is "
            "negative definite, solve with its negative"
        )
    if dtype == A.dtype:
        return
    sizes, limits = abs(diagonal), np.finfo(dtype)
    if any_true(~((sizes > limits.tiny) & (sizes < limits.max))):
        raise InputError("the diagonal is too large or too small for single precision: scale the matrix")


def _check_hermitian(A: CSRMatrix) -> None:
    """Raise an error unless two random vectors show that the matrix is its own adjoint. Collective."""
    if not A.rows.size:
        return
    dtype, engine = np.result_type(A.dtype, np.float32), engine_of(A.entries[0].data)
    u, v = (random(A.rows, comm=A.comm, seed=seed, dtype=dtype, engine=engine) for seed in (1, 2))
    image, other = A @ u, A @ v
    with collective_errors(A.comm):
        _check_images(A, image, other)
    if not (largest := float(image.norm(np.inf))):
        return
    image, other = image / largest, other / largest  # squares neither underflow nor overflow
    product, adjoint, square, norm = map(complex, dots((v, image), (other, u), (v, v), (image, image)))
    if not abs(product - adjoint) <= _ROUNDING * np.finfo(u.dtype).eps * abs(norm * square) ** 0.5:
        raise InputError(
            "multigrid needs a Hermitian matrix; for unsymmetric systems use the multigrid of the Hermitian part, or "
            "block_jacobi, with gmres"
        )


def _check_images(A: CSRMatrix, *images: Array) -> None:
    """Raise an error if products of a matrix with random vectors are not finite, or too large for sums."""
    limit = _HEADROOM * np.finfo(images[0].dtype).max
    if not any(any_true(~(abs(image.local_array) < limit)) for image in images):
        return
    if any(any_true(~engine_of(part.data).xp.isfinite(part.data)) for part in A.entries):
        raise InputError("multigrid needs a matrix with finite entries")
    raise InputError(f"the matrix has entries too large for multigrid in {images[0].dtype}: scale the matrix")


def _hierarchy(
    A: CSRMatrix, vectors: LocalArray, block: int, options: Options
) -> tuple[list[Level], CSRMatrix, LinearOperator]:
    """Return the levels, until a matrix is small or hardly smaller than the last; this matrix; and its inverse."""
    levels: list[Level] = []
    entries: list[int] = []
    while A.rows.size > _DENSE:
        entries.append(_number_of_entries(A))
        chosen = engine_of(A.entries[0].data)
        if engine_of(vectors) is not chosen:
            vectors = chosen.from_host(options.engine.to_host(vectors))
        separates = levels[-1].aggregation.separates if levels else block == 1 and has_signs_of_m_matrix(A)
        found = _next_level(A, vectors, block, options, entries, separates)
        if found is None:
            break
        level, A, vectors = found
        levels.append(level)
        block = vectors.shape[1]
    return levels, A, _solution(A, options)


def _next_level(
    A: CSRMatrix, vectors: LocalArray, block: int, options: Options, entries: list[int], separates: bool
) -> tuple[Level, CSRMatrix, LocalArray] | None:
    """Return the level of a matrix, the next, coarser matrix, and its vectors. Collective.

    `entries` are the numbers of entries of the matrices, from the finest one to `A`. `separates` is whether weak
    entries may be separated. The result is None if aggregates are hardly larger than nodes.
    """
    algebra = _algebra_of(A)
    rows, parts, before = algebra.merged_rows(A), None, A.rows.size
    graph = graph_of(A, rows, block)
    if separates and entries[-1] >= _LARGE * entries[0]:
        parts = separated(A, rows, graph, options.threshold, _SEPARATED)
    analysis = _analysis(A, rows, graph if block == 1 else None, options)
    # Without the second bound, aggregates would become whole components where finer levels have used up the first.
    limit = max(_COMPLEXITY * entries[0], sum(entries) + (_COMPLEXITY - 1) * entries[-1])
    distance = 1
    while True:
        distance += 1
        labels, own = aggregate(graph, options.threshold, distance, parts and parts.weak.matrix)
        counts = [int(number) for number in A.comm.allgather(np.array(own))]
        if not 0 < sum(counts) * vectors.shape[1] < _SLOW * A.rows.size:
            return None
        columns, coarse, coarse_vectors = tentative(A, labels, counts, vectors, block)
        products = tuple(algebra.repeated_product() for _ in range(5))
        aggregation = Aggregation(block, columns, coarse, parts is not None, products)
        level, following = _coarsened(A, analysis, parts, aggregation, options, again=False)
        # The numbers of entries of coarser matrices decrease about as their numbers of rows.
        further = _number_of_entries(following) / (1 - following.rows.size / A.rows.size)
        if sum(entries) + further < limit or sum(counts) == before:
            return level, following, coarse_vectors
        before = sum(counts)


def _number_of_entries(A: CSRMatrix) -> int:
    return int(A.comm.allreduce(np.array(A.nnz, np.int64)))


def _analysis(A: CSRMatrix, rows: Rows, graph: Graph | None, options: Options) -> Analysis:
    """Return the part of a level that does not depend on the aggregates. Collective.

    `rows` are the merged rows of `A`, and `graph` is their graph. Blocks of several unknowns of a point have none, and
    are not filtered.
    """
    diagonal = A.diagonal()
    largest = bound = largest_eigenvalue(A, jacobi(diagonal))
    smoother = Smoother(A, options.degree, _bounds(largest), options.entries, diagonal)
    kept = rows if graph is None else filtered(A, rows, graph, options.threshold)
    if kept is not rows:
        F = CSRMatrix._from_rows(*kept, A.rows, A.columns, A.comm)
        diagonal = F.diagonal()
        bound = largest_eigenvalue(F, jacobi(diagonal))
    return Analysis(rows, smoother, kept, diagonal.local_array, bound)


def _coarsened(
    A: CSRMatrix, analysis: Analysis, parts: Parts | None, aggregation: Aggregation, options: Options, *, again: bool
) -> tuple[Level, CSRMatrix]:
    """Return the level of a matrix, and the next, coarser matrix. Collective.

    `again` if the aggregation was used before.

    The coarse matrix is :math:`P^H A P` with the prolongation `P`. If weak entries are separated, it is the sum of
    this product for the other entries, and of the product for the weak ones with the prolongation before it is
    smoothed, which connects fewer aggregates.
    """
    rows, smoother, kept, diagonal, largest = analysis
    _, columns, coarse, _, repeated = aggregation
    algebra, own = _algebra_of(A), own_columns(A)
    smoothing, right_product, left_product, *weak_products = repeated if again else [algebra.product_rows] * 5
    prolongation, right = smoothed(A, kept, diagonal, columns, coarse, largest, smoothing)
    left, R = _adjoint_rows(prolongation)
    if isinstance(R.entries[0], CompressedRows):
        prolongation._set_local_adjoint(R.entries[0])
    right = right_product(A.forest, rows if parts is None else parts.strong, own, right)
    product = left_product(R.forest, left, own_columns(R), right)
    if parts is not None:
        left, R = _adjoint_rows(CSRMatrix._from_rows(*columns, A.rows, coarse, A.comm))
        right = weak_products[0](A.forest, parts.weak, own, columns)
        product = algebra.added_rows(product, weak_products[1](R.forest, left, own_columns(R), right))
    following = _with_unit_diagonal(CSRMatrix._from_rows(*product, coarse, coarse, A.comm))
    following = _placed(following, options.engine)
    return Level(A, smoother, prolongation, aggregation), following


def _adjoint_rows(P: CSRMatrix) -> tuple[Rows, CSRMatrix]:
    """Return the rows of the adjoint of a prolongation, and the matrix that they make. Collective."""
    algebra = _algebra_of(P)
    rows = algebra.transposed_rows(P, algebra.merged_rows(P), True)
    return rows, CSRMatrix._from_rows(*rows, P.columns, P.rows, P.comm)


def _solution(A: CSRMatrix, options: Options) -> LinearOperator:
    """Return the inverse of the coarsest matrix, or of a large one an approximation."""
    if A.rows.size <= _DENSE:
        return DenseInverse(A)
    M = jacobi(A)
    return chebyshev(A, 3 * options.degree, _bounds(largest_eigenvalue(A, M)), M=M)


def _same_pattern(A: CSRMatrix, B: CSRMatrix) -> bool:
    """Return whether two matrices have this rank's entries in the same positions."""
    pairs = zip(A.entries, B.entries, strict=True)
    return np.array_equal(A.ghosts, B.ghosts) and all(
        same_pattern(mine, other) if isinstance(mine, CompressedRows) else Pattern.of(mine).suits(other)
        for mine, other in pairs
    )


def _bounds(largest: float) -> tuple[float, float]:
    """Return the bounds of a smoother from the largest eigenvalue of the matrix divided by its diagonal."""
    return _SAFETY * largest / _RATIO, _SAFETY * largest


def _with_unit_diagonal(A: CSRMatrix) -> CSRMatrix:
    """Return the matrix with 1 in place of zeros on the diagonal, in the rows of columns that are 0. Collective."""
    from scipy import sparse

    zero = A.entries[0].diagonal() == 0
    if not A.comm.allreduce(np.array(int(any_true(zero))), "max"):
        return A
    missing = np.flatnonzero(engine_of(zero).to_host(zero))
    rows, columns = merged_rows(A)
    places = missing, missing + own_columns(A).start
    units = sparse.csr_array((np.ones(len(missing), A.dtype), places), shape=rows.shape)
    return CSRMatrix._from_rows(sparse.csr_array(rows + units), columns, A.rows, A.columns, A.comm)
