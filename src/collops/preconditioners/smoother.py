"""Chebyshev's iteration with Jacobi's preconditioner as the smoother of multigrid: steps that read a matrix once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collops.array import Array, axpby, kernels
from collops.backend import Engine
from collops.operators import CSRMatrix
from collops.operators.base import LinearOperator
from collops.operators.csr.pieces import in_pieces
from collops.operators.csr.products import unsigned
from collops.operators.memory import Buffers, contiguous


class Smoother:
    """Chebyshev's iteration [Saad 2003, algorithm 12.1] for a Hermitian matrix divided by its diagonal.

    Iterates satisfy ``x' = x + alpha (x - before) + beta M (y - A x)``, where `M` is the inverse diagonal. On hosts a
    step is one loop over the rows of a large matrix; otherwise it is a product and operations on vectors.

    Parameters
    ----------
    A : CSRMatrix
    M : LinearOperator
        Its inverse diagonal.
    degree : int
        Number of steps after the first.
    bounds : tuple of two floats
        Smallest and largest eigenvalue of ``M A`` between which errors become small.
    entries : dtype
        Precision of the entries that Numba's loops, devices and JAX read. Vectors have the precision of the data.
    """

    def __init__(
        self, A: CSRMatrix, M: LinearOperator, degree: int, bounds: tuple[float, float], entries: np.dtype
    ) -> None:
        self.A, self.M, self._entries = A, M, entries
        self._steps = _coefficients(degree, *bounds)
        self._buffers = Buffers()
        self._loops: dict[tuple[Engine, np.dtype], _Loops | None] = {}
        self._rounded: LinearOperator | None = None

    def start(self, y: Array, out: Array | None) -> Array:
        """Return the iterate from zero, in `out` if the engine is mutable."""
        (_, length), *steps = self._steps
        spare = self._buffers.get("spare", self.A.rows, y, np.result_type(self.A.dtype, y.dtype))
        first, second = (out, spare) if len(steps) % 2 == 0 else (spare, out)
        x = self.M._forward(y, first)
        return self._iterate(y, axpby(length, x, 0.0, x, out=first), second, steps)

    def improve(self, y: Array, x: Array) -> Array:
        """Return the iterate from `x`, in the same memory if the engine is mutable."""
        better = self._iterate(y, x, self._buffers.get("spare", self.A.rows, y, x.dtype), self._steps)
        in_place = better is x or not x.engine.mutable
        return better if in_place else axpby(1.0, better, 0.0, better, out=x)

    def residual(self, y: Array, x: Array, out: Array | None) -> Array:
        """Return ``y - A x``, in `out` if the engine is mutable."""
        loops = self._loops_for(x)
        if loops is not None and out is not None:
            return loops.residual(y, x, out)
        image = self._matrix_for(x)._forward(x, out)
        return axpby(-1.0, image, 1.0, y, out=out)

    def _iterate(self, y: Array, x: Array, out: Array | None, steps: list[tuple[float, float]]) -> Array:
        """Return the iterate after some steps, in the memory of `x` and `out` in turn."""
        loops, before = self._loops_for(x), None
        for alpha, beta in steps:
            if loops is not None and out is not None:
                following = loops.step(y, x, before, alpha, beta, out)
            else:
                following = self._step(y, x, before, alpha, beta, out)
            before, x, out = x, following, x if x.engine.mutable else None
        return x

    def _step(self, y: Array, x: Array, before: Array | None, alpha: float, beta: float, out: Array | None) -> Array:
        image, change = (self._buffers.get(name, self.A.rows, x, x.dtype) for name in ("image", "change"))
        change = self.M._forward(self.residual(y, x, image), change)
        change = axpby(1.0 + alpha, x, beta, change, out=change)
        if before is None:
            return axpby(1.0, change, 0.0, change, out=out)
        return axpby(1.0, change, -alpha, before, out=out)

    def _matrix_for(self, x: Array) -> LinearOperator:
        """Return the matrix with rounded entries for engines that need no loops to read them."""
        if x.engine.mutable and x.engine.memory == "host":
            return self.A
        if self._rounded is None:
            self._rounded = self.A.astype(self._entries)
        return self._rounded

    def _loops_for(self, x: Array) -> _Loops | None:
        key = x.engine, x.dtype
        if key not in self._loops:
            suits = x.engine.mutable and x.engine.memory == "host" and x.dtype.char in "fd"
            suits = suits and self.A.blocks[0].nnz >= kernels.LONG and kernels.loops() is not None
            self._loops[key] = _Loops(self.A, x.dtype, self._entries) if suits else None
        return self._loops[key]


def _coefficients(degree: int, low: float, high: float) -> list[tuple[float, float]]:
    """Return `alpha` and `beta` of the steps."""
    center, radius = (high + low) / 2, (high - low) / 2
    rho = radius / center
    steps = [(0.0, 1 / center)]
    for _ in range(degree):
        before, rho = rho, 1 / (2 * center / radius - rho)
        steps.append((rho * before, 2 * rho / radius))
    return steps


class _Loops:
    """Steps and residuals by loops that Numba compiles, on the host."""

    def __init__(self, A: CSRMatrix, dtype: np.dtype, entries: np.dtype) -> None:
        from collops.operators.csr.numba_rows import relax, subtract_product

        local, remote = A.blocks
        self._A, self._dtype = A, dtype
        self._relax, self._subtract = relax, subtract_product
        self._rows = unsigned(local.astype(entries, copy=False))
        self._inverse = (1 / local.diagonal()).astype(dtype)
        self._filled = np.flatnonzero(np.diff(remote.indptr))
        self._few = remote[self._filled].astype(entries).astype(dtype)

    def residual(self, y: Array, x: Array, out: Array) -> Array:
        """Set `out` to ``y - A x``."""
        right = contiguous(y.local_array, self._dtype)
        self._run(x, lambda i, end: self._subtract(i, end, *self._rows, x.local_array, right, out.local_array))
        return self._complete(out, -1.0, None)

    def step(self, y: Array, x: Array, before: Array | None, alpha: float, beta: float, out: Array) -> Array:
        """Set `out`, which may be `before`, to the iterate after `x`."""
        previous, b = (x, 0.0) if before is None else (before, -alpha)
        arrays = x.local_array, contiguous(y.local_array, self._dtype), self._inverse, previous.local_array
        target = out.local_array
        self._run(x, lambda i, end: self._relax(i, end, *self._rows, *arrays, 1 + alpha, b, beta, target))
        return self._complete(out, -beta, self._inverse)

    def _run(self, x: Array, loop: Callable[[np.uint64, np.uint64], None]) -> None:
        """Call the loop over the rows of the local block while the values of other ranks arrive."""
        ghosts = self._A._ghost_values(x.engine, self._dtype)
        self._arriving = self._A.forest.start_bcast(x.local_array, ghosts)
        in_pieces(self._A.comm, self._rows[0], loop)

    def _complete(self, out: Array, factor: float, weights: np.ndarray | None) -> Array:
        """Add the product of the block of other ranks' columns, times a factor and weights."""
        ghosts = self._arriving.finish()
        if len(self._filled):
            product = self._dtype.type(factor) * (self._few @ ghosts)
            out.local_array[self._filled] += product if weights is None else weights[self._filled] * product
        return out
