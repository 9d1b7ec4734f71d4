"""BlockToeplitz: the products of a distributed block-Toeplitz matrix, the map of a linear time-invariant system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from collops.array import Array, Layout
from collops.array.dtypes import accumulator, as_dtype, check_byte_order, real_of
from collops.array.layout_arguments import as_extents
from collops.backend import Engine, LocalArray, engine_of, is_traced
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.comm.arguments import communicator_or_world
from collops.comm.cores import threads_of_rank
from collops.errors import InputError, LayoutError, UnsupportedTypeError
from collops.operators.base import Direction, LinearOperator
from collops.operators.fourier.engines import Workspace
from collops.operators.fourier.transform import AxisTransform, matrix_is_faster
from collops.operators.memory import Buffers, check_holds, filled, store
from collops.operators.toeplitz import forms_for
from collops.operators.toeplitz.spectra import PRECISIONS, Spectra, spectra_of

_KINDS = "fdFD"  # types of vectors
_TRANSFORM = 20.0  # times the unit roundoff and the logarithm of the length: the error of a Fourier transform


class ErrorBound(NamedTuple):
    """Bounds of the errors of a product, for vectors of norm 1: see :class:`BlockToeplitz`."""

    storage: float
    products: float
    transforms: float
    sums: float

    @property
    def total(self) -> float:
        """The bound of the whole error."""
        return sum(self)


class BlockToeplitz(LinearOperator):
    r"""The matrix of a linear time-invariant system: a causal convolution in time, with a matrix for each lag.

    It is block-lower-triangular and block-Toeplitz, and is applied as one matrix product for each frequency of
    zero-padded arrays. These matrices can be stored in lower precision than vectors have. Ranks form a grid and share
    the matrix of each lag. With one row of processes (the default) the model is split by columns and the data are
    replicated: forward sends one allreduce of the data, adjoint no message. With one column of processes, the data are
    split by rows and the model is replicated: forward sends no message, adjoint one allreduce of the model. On other
    grids each sends one allreduce, among a row or a column of processes.

    Collective: shapes and types are exchanged, and errors of rounding added up, once.

    Parameters
    ----------
    kernel : array, 3-D
        This rank's block of the matrices of all lags, of shape (nt, rows, columns), on any engine; real or complex. It
        is not kept.
    process_grid : tuple of int, optional
        Rows and columns of processes; ranks are numbered in C order. By default one row.
    dtype : dtype, optional
        Type of vectors and transforms, in single or double precision; by default the dtype of `kernel`.
    stored : {"float64", "float32", "float16", "bfloat16"}, optional
        Type of the real and imaginary parts of the matrices in memory; by default the precision of `dtype`. Rows in
        float16 are scaled by powers of two. They are widened during the product: on hosts in the cache, on CUDA devices
        in registers for one vector, and for several in blocks that cuBLAS multiplies.
    accumulate : {"float64", "float32"}, optional
        Precision of the products and their sums, at least the precision of `stored`; by default the precision of
        `dtype`, if that is enough. With less than the precision of `dtype`, the dot test needs a larger tolerance.
    comm : Communicator, optional
        The ranks; the world by default.

    Attributes
    ----------
    dims, dimsd : tuple of int
        Shapes of model, (nt, columns of all ranks), and data, (nt, rows of all ranks).
    error_bound : named tuple
        Bounds of the norm of the error of a product, forward or adjoint, for a vector of norm 1: ``storage`` of the
        rounded matrices, ``products``, ``transforms`` and ``sums`` over ranks of rounding in the computation, and
        their ``total``. The vector is taken as it is in `dtype`.
    scale : float
        The largest Frobenius norm of the matrix of a frequency, an upper bound of the norm of the operator with which
        to compare ``error_bound``.
    stored_bytes : int
        Memory of this rank's matrices, which a product reads once.

    Raises
    ------
    InputError
        On every rank, if an option is invalid, or the ranks do not form the grid.
    LayoutError
        On every rank, if the blocks do not fit together.
    UnsupportedTypeError
        On every rank, if `dtype` would drop imaginary parts; or if the kernel is traced by JAX.

    Notes
    -----
    With the matrices :math:`K_l` of the lags and :math:`\hat K_f` of the frequencies, and F the unitary transform of
    zero-padded arrays,

    .. math:: y_t = \sum_{s \le t} K_{t - s}\, x_s, \qquad y = F^H \hat K F x.

    The method is the method of [1]_, with mixed precision as in [2]_. Since F is an isometry of zero-padded arrays,
    the error of storage is at most the largest norm of the rounding error of a matrix, which is computed. With n terms
    of unit roundoff u, products add :math:`\sqrt 2 \gamma_{2n} + 2 u` times `scale` (see [3]_, section 3.1), and
    each transform :math:`20 u \log_2 N`, three times the bound of section 24.1 of [3]_ for radix 2, since libraries
    also use others. These bounds hold in the worst case; errors are usually far smaller, except storage errors.

    :class:`Columns` multiplies up to 64 arrays at once: every matrix is then read once for all of them.

    References
    ----------
    .. [1] Venkat, S., Fernando, M., Henneking, S., and Ghattas, O., "Fast and scalable FFT-based GPU-accelerated
       algorithms for Hessian actions arising in linear inverse problems governed by autonomous dynamical systems",
       arXiv:2407.13066, 2024.
    .. [2] Venkat, S., Świrydowicz, K., Wolfe, N., and Ghattas, O., "Mixed-precision performance portability of
       FFT-based GPU-accelerated algorithms for block-triangular Toeplitz matrices", arXiv:2508.10202, 2025.
    .. [3] Higham, N. J., "Accuracy and Stability of Numerical Algorithms", second edition, SIAM, 2002.

    Examples
    --------
    >>> import numpy as np
    >>> import collops
    >>> echo = np.array([1.0, 0.0, 0.5]).reshape(3, 1, 1)  # after two samples, half of the model returns
    >>> comm = collops.comm.alone()
    >>> A = collops.BlockToeplitz(echo, stored="float16", comm=comm)
    >>> x = collops.from_global(np.array([[1.0], [2.0], [3.0]]), A.domain, comm=comm)
    >>> (A @ x).gather().ravel().round(3), A.error_bound.storage < 1e-3 * A.scale
    (array([1. , 2. , 3.5]), True)
    """

    def __init__(
        self,
        kernel: LocalArray,
        *,
        process_grid: Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        stored: str | None = None,
        accumulate: str | None = None,
        comm: Communicator | None = None,
    ) -> None:
        from scipy.fft import next_fast_len  # takes as long to import as all operators

        comm = communicator_or_world(comm)
        with collective_errors(comm):
            grid = _checked_grid(process_grid, comm.size)
            kind = _kind(kernel, dtype)
            precision = real_of(kind)
            stored = _option("stored", stored, PRECISIONS, precision.name)
            wide = "float64" if stored == "float64" else precision.name
            accumulate = _option("accumulate", accumulate, ("float64", "float32"), wide)
            if stored == "float64" and accumulate == "float32":
                raise InputError(
                    "products of matrices stored in float64 must be accumulated in float64, not in float32"
                )
            if stored == "float64" and engine_of(kernel).dtype(stored) != as_dtype(stored):
                raise InputError("matrices of JAX are stored in float64 only with jax_enable_x64")
        entries = comm.allgather_metadata([*map(int, kernel.shape), kind.name, kernel.dtype.kind, stored, accumulate])
        samples, heights, widths = _blocks(entries, grid)
        p, q = grid
        domain, range = (
            Layout((samples, sum(sizes)), comm.size, grid, (None, axis), [None, sizes])
            for axis, sizes in ((1, widths), (0, heights))
        )
        super().__init__(domain, range, kind, comm)
        self.dims, self.dimsd = domain.shape, range.shape
        self.process_grid = grid
        self._engine = engine_of(kernel)
        ranks = np.arange(comm.size)
        row = None if q == 1 else comm.subgroup(tuple((ranks // q).tolist()))
        column = None if p == 1 else comm.subgroup(tuple((ranks % q).tolist()))
        # In each direction: the ranks that share the operand, and the ranks that add up the result.
        self._groups = (column, row), (row, column)
        real = kernel.dtype.kind != "c"
        length = next_fast_len(max(1, 2 * samples - 1), real=real)
        self._transform = AxisTransform(0, samples, length, real=real)
        self._complex = self._engine.dtype(np.result_type(precision, np.complex64))
        accumulated = self._engine.dtype(np.result_type(accumulate, np.complex64))
        spectra = _spectra(kernel, length, stored, accumulated, self._engine)
        self.stored_bytes = int(spectra.parts.nbytes)
        squares, errors = comm.allreduce(np.stack([spectra.squares, spectra.errors]))
        self.scale = math.sqrt(squares.max(initial=0.0))
        self.error_bound = _error_bound(
            squares, errors, max(*heights, *widths), max(grid), self._transform, samples, kind, accumulated
        )
        self._batch = forms_for(self._engine).batch(spectra)
        self._accumulated = accumulated
        self.capturable = not self._engine.streams or self._engine.cuda
        self._threads = threads_of_rank(comm)
        self._workspaces: dict[int, Workspace] = {}
        self._buffers = Buffers()

    def _direction(self, adjoint: bool) -> Direction:
        direction = super()._direction(adjoint)
        if not self._engine.mutable:
            return direction
        batched = partial(self._apply_batched, adjoint=adjoint)
        return direction._replace(batched=batched, batch_engine=self._engine.name)

    def _apply(self, x: Array, out: Array, adjoint: bool) -> Array:
        if x.engine is not self._engine:
            raise UnsupportedTypeError(
                f"BlockToeplitz needs arrays of {self._engine.name}, the engine of its kernel, not of {x.engine.name}"
            )
        dtype = self._type_for(x)
        source = self._buffers.contiguous("operand", x.local_array, dtype, x.engine)
        target = self._buffers.result("result", out, dtype)
        shared, summed = self._groups[adjoint]
        if shared is not None:
            source = x.engine.replicated_operand(source, shared)
        shape = out.local_array.shape
        # As arrays of one column.
        source = source.reshape(*source.shape, 1)
        memory = None if target is None else target.reshape(*shape, 1)
        result = self._product(source, memory, (*shape, 1), adjoint)
        result = result.reshape(shape) if target is None else target
        return filled(out, result if summed is None else summed.allreduce(result, out=target))

    def _apply_batched(self, x: Array, out: Array, adjoint: bool) -> Array:
        dtype, engine, local = self._type_for(x), x.engine, x.local_array
        count, samples, width = out.local_array.shape
        source = store(
            local.transpose(1, 2, 0), self._buffers.local("operands", (*local.shape[1:], count), dtype, engine)
        )
        target = self._buffers.local("results", (samples, width, count), dtype, engine)
        self._product(source, target, target.shape, adjoint)
        summed = self._groups[adjoint][1]
        if summed is not None:
            summed.allreduce(target, out=target)
        store(target.transpose(2, 0, 1), out.local_array)
        return out

    def _product(self, source: LocalArray, target: LocalArray, shape: tuple[int, ...], adjoint: bool) -> LocalArray:
        """Return this rank's products with arrays (nt, columns, k) as an array of `shape`, in `target` if not ``None``.

        A real matrix multiplies real and imaginary parts as separate arrays.
        """
        if not self._transform.real or source.dtype.kind != "c":
            return self._spectral_product(source, target, shape, adjoint)
        count, xp = source.shape[2], self._engine.xp
        wide = (*shape[:2], 2 * count)
        if target is not None:
            real = real_of(source.dtype)
            self._spectral_product(source.view(real), target.view(real), wide, adjoint)
            return target
        parts = self._spectral_product(xp.concatenate([source.real, source.imag], axis=2), None, wide, adjoint)
        return parts[..., :count] + 1j * parts[..., count:]

    def _spectral_product(
        self, source: LocalArray, target: LocalArray, shape: tuple[int, ...], adjoint: bool
    ) -> LocalArray:
        engine, buffers, transform = self._engine, self._buffers, self._transform
        if not math.prod(shape):
            # Of JAX, the result depends on the operand, whose derivative may be a sum over ranks.
            return source.reshape(-1)[:0].reshape(shape) if target is None else target
        if not source.size:
            return engine.xp.zeros(shape, source.dtype) if target is None else engine.put(target, ..., 0)
        workspace = self._workspace(source, shape)
        widths = source.shape[1:], shape[1:]
        spectra, product = (
            buffers.local(slot, (transform.count, *width), dtype, engine)
            for slot, width, dtype in zip(
                ("spectra", "product"), widths, (self._complex, self._accumulated), strict=True
            )
        )
        spectra = transform.forward(source, spectra, workspace)
        spectra = buffers.contiguous("operand of matrices", spectra, self._accumulated, engine)
        product = (self._batch.adjoint if adjoint else self._batch.forward)(spectra, product)
        product = buffers.contiguous("operand of transform", product, self._complex, engine)
        return transform.adjoint(product, target, workspace)

    def _workspace(self, source: LocalArray, shape: tuple[int, ...]) -> Workspace:
        """Return the scratch memory of transforms of as many arrays as `source` has."""
        count = source.shape[2]
        workspace = self._workspaces.get(count)
        if workspace is None:
            size = max(map(self._transform.elements, (source.shape, shape)))
            workspace = self._workspaces[count] = Workspace(self._engine, self._complex, size, self._threads)
        return workspace

    def _type_for(self, x: Array) -> np.dtype:
        """Return the type of the computation: complex if the operator or the array is."""
        return np.result_type(self.dtype, np.complex64) if x.dtype.kind == "c" else self.dtype


def _kind(kernel: LocalArray, dtype: DTypeLike | None) -> np.dtype:
    """Return the dtype of the operator of a kernel."""
    engine = engine_of(kernel)
    if is_traced(kernel):
        raise UnsupportedTypeError("JAX cannot trace the kernel of BlockToeplitz: construct the operator outside")
    check_byte_order(kernel.dtype)
    if kernel.ndim != 3 or not kernel.shape[0]:
        raise LayoutError(f"kernel must have three axes, (nt, rows, columns), and samples, not shape {kernel.shape}")
    if dtype is not None:
        kind = as_dtype(dtype)
    elif kernel.dtype.kind in "biu":
        kind = np.dtype(np.float64)
    else:
        kind = accumulator(kernel.dtype)
    check_holds(kind, kernel.dtype)
    if kind.char not in _KINDS:
        raise InputError(f"dtype must be float32, float64, complex64 or complex128, not {kind}")
    return engine.dtype(kind)


def _option(name: str, value: str | None, allowed: Sequence[str], default: str) -> str:
    if value is not None and value not in allowed:
        raise InputError(f"{name} must be {', '.join(map(repr, allowed))} or None, not {value!r}")
    return default if value is None else value


def _checked_grid(process_grid: Sequence[SupportsIndex] | None, ranks: int) -> tuple[int, int]:
    """Return the grid of processes as two integers; raise InputError unless their product is the number of ranks."""
    grid = (1, ranks) if process_grid is None else as_extents(process_grid, "process grid", smallest=1)
    if len(grid) != 2 or math.prod(grid) != ranks:
        raise InputError(f"a process grid for {ranks} ranks needs two extents with the product {ranks}, not {grid}")
    return grid[0], grid[1]


def _blocks(entries: Sequence[Sequence], grid: tuple[int, int]) -> tuple[int, list[int], list[int]]:
    """Return the number of samples, and the rows and columns of the blocks along the two axes of the grid."""
    p, q = grid
    if len({(entry[0], *entry[3:]) for entry in entries}) > 1:
        raise LayoutError("the blocks of all ranks must have one number of samples, one dtype and the same options")
    heights, widths = [entries[i * q][1] for i in range(p)], [entry[2] for entry in entries[:q]]
    for rank, (_, height, width, *_) in enumerate(entries):
        if (height, width) != (heights[rank // q], widths[rank % q]):
            raise LayoutError(
                f"on a grid of {p} x {q} processes, the block of rank {rank} has {height} rows and {width} columns; "
                f"its row and column of blocks have {heights[rank // q]} and {widths[rank % q]}"
            )
    return entries[0][0], heights, widths


def _spectra(kernel: LocalArray, length: int, stored: str, accumulated: np.dtype, engine: Engine) -> Spectra:
    """Return the spectra of a kernel on its engine; JAX, whose precision may be single, gets them from the host."""
    if not engine.traced:
        return spectra_of(kernel, length, stored, accumulated, engine.xp)
    spectra = spectra_of(engine.to_host(kernel), length, stored, accumulated, np)
    parts = spectra.parts.view(as_dtype("bfloat16")) if stored == "bfloat16" else spectra.parts
    scales = None if spectra.scales is None else engine.from_host(spectra.scales)
    return spectra._replace(parts=engine.from_host(parts), scales=scales)


def _error_bound(
    squares: np.ndarray,
    errors: np.ndarray,
    terms: int,
    ranks: int,
    transform: AxisTransform,
    samples: int,
    dtype: np.dtype,
    accumulated: np.dtype,
) -> ErrorBound:
    """Return the bounds of :class:`BlockToeplitz` from squared norms of the matrices and of their rounding errors.

    Products have `terms` terms, and at most `ranks` partial results are added up.
    """
    scale = math.sqrt(squares.max(initial=0.0))
    double, vectors, products = (float(np.finfo(kind).eps) / 2 for kind in (np.float64, dtype, accumulated))
    logarithm = 1 + math.log2(max(1, 2 * samples))
    # The spectra were computed in double precision; the norm of all their errors bounds each.
    storage = math.sqrt(errors.max(initial=0.0)) + _TRANSFORM * double * logarithm * math.sqrt(2 * squares.sum())
    relative = _TRANSFORM * vectors * logarithm
    if matrix_is_faster(samples, transform.count, 1):  # products with a matrix, with worse bounds
        relative = max(relative, (2 * transform.count + 1) * math.sqrt(samples) * vectors)
    return ErrorBound(
        storage,
        scale * (math.sqrt(2) * _gamma(2 * terms, products) + 2 * products),
        scale * 2 * relative,
        scale * math.sqrt(ranks) * (ranks - 1) * vectors,
    )


def _gamma(terms: int, roundoff: float) -> float:
    """Return the constant of the error of a sum of so many terms; infinite if they are too many for a bound."""
    return terms * roundoff / (1 - terms * roundoff) if terms * roundoff < 1 else math.inf
