"""Chebyshev's iteration with Jacobi's preconditioner as the smoother of multigrid: steps that read a matrix once."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from collops.array import Array, axpby, kernels
from collops.backend import Engine, LocalArray
from collops.operators import CSRMatrix, Diagonal
from collops.operators.csr.pieces import in_pieces
from collops.operators.csr.products import unsigned
from collops.operators.memory import Buffers, contiguous


class Smoother:
    """Chebyshev's iteration [Saad 2003, algorithm 12.1] for a Hermitian matrix divided by its diagonal.

    Iterates satisfy ``x' = x + alpha (x - before) + beta M (y - A x)``, where `M` is the inverse diagonal. On devices
    a step is one kernel, and on hosts one loop over the rows of a large matrix; otherwise it is a product and
    operations on vectors.

    Parameters
    ----------
    A : CSRMatrix
    degree : int
        Number of steps after the first.
    bounds : tuple of two floats
        Smallest and largest eigenvalue of ``M A`` between which errors become small.
    entries : dtype
        Precision of the entries that Numba's loops, devices and JAX read. Vectors have the precision of the data.
    diagonal : Array
        The diagonal of `A`.
    """

    def __init__(
        self, A: CSRMatrix, degree: int, bounds: tuple[float, float], entries: np.dtype, diagonal: Array
    ) -> None:
        self.A, self._entries = A, entries
        self._length, self._steps = _coefficients(degree, *bounds)
        self._first_step = Diagonal(self._length / diagonal, comm=A.comm)
        self._buffers = Buffers()
        self._passes: dict[tuple[Engine, np.dtype], _Loops | _Launches | None] = {}
        self._rounded: CSRMatrix | None = None

    def start(self, y: Array, out: Array | None) -> Array:
        """Return the iterate from zero, in `out` if the engine is mutable."""
        spare = None if out is None else self._buffers.get("spare", self.A.rows, y, out.dtype)
        first, second = (out, spare) if len(self._steps) % 2 == 0 else (spare, out)
        return self._iterate(y, self._first_step._forward(y, first), second, self._steps)

    def improve(self, y: Array, x: Array) -> Array:
        """Return the iterate from `x`, in the same memory if the engine is mutable."""
        steps = [(0.0, self._length), *self._steps]
        better = self._iterate(y, x, self._buffers.get("spare", self.A.rows, y, x.dtype), steps)
        in_place = better is x or not x.engine.mutable
        return better if in_place else axpby(1.0, better, 0.0, better, out=x)

    def residual(self, y: Array, x: Array, out: Array | None) -> Array:
        """Return ``y - A x``, in `out` if the engine is mutable."""
        passes = self._passes_for(x)
        if passes is not None and out is not None:
            return passes.residual(y, x, out)
        image = self._matrix_for(x)._forward(x, out)
        return axpby(-1.0, image, 1.0, y, out=out)

    def _iterate(self, y: Array, x: Array, out: Array | None, steps: list[tuple[float, float]]) -> Array:
        """Return the iterate after some steps, in the memory of `x` and `out` in turn."""
        passes, before = self._passes_for(x), None
        for alpha, beta in steps:
            if passes is not None and out is not None:
                following = passes.step(y, x, before, alpha, beta, out)
            else:
                following = self._step(y, x, before, alpha, beta, out)
            before, x, out = x, following, x if x.engine.mutable else None
        return x

    def _step(self, y: Array, x: Array, before: Array | None, alpha: float, beta: float, out: Array | None) -> Array:
        image, change = (self._buffers.get(name, self.A.rows, x, x.dtype) for name in ("image", "change"))
        change = self._first_step._forward(self.residual(y, x, image), change)
        change = axpby(1.0 + alpha, x, beta / self._length, change, out=change)
        if before is None:
            return axpby(1.0, change, 0.0, change, out=out)
        return axpby(1.0, change, -alpha, before, out=out)

    def _matrix_for(self, x: Array) -> CSRMatrix:
        """Return the matrix with rounded entries for engines that need no loops to read them."""
        if x.engine.mutable and x.engine.memory == "host":
            return self.A
        if self._rounded is None:
            self._rounded = cast("CSRMatrix", self.A.astype(self._entries))
        return self._rounded

    def _passes_for(self, x: Array) -> _Loops | _Launches | None:
        key = x.engine, x.dtype
        if key not in self._passes:
            self._passes[key] = self._passes_of_a_type(x)
        return self._passes[key]

    def _passes_of_a_type(self, x: Array) -> _Loops | _Launches | None:
        if not x.engine.mutable:
            return None
        if x.engine.memory == "device":
            weights = self._first_step._diagonal.on_engine(x.engine).astype(x.dtype, copy=False)
            return _Launches(self._matrix_for(x), weights, self._length)
        suits = x.dtype.char in "fd" and self.A.blocks[0].nnz >= kernels.LONG and kernels.loops() is not None
        return _Loops(self.A, x.dtype, self._entries) if suits else None


def _coefficients(degree: int, low: float, high: float) -> tuple[float, list[tuple[float, float]]]:
    """Return `beta` of the first step, whose `alpha` is 0, and `alpha` and `beta` of the others."""
    center, radius = (high + low) / 2, (high - low) / 2
    rho = radius / center
    steps: list[tuple[float, float]] = []
    for _ in range(degree):
        before, rho = rho, 1 / (2 * center / radius - rho)
        steps.append((rho * before, 2 * rho / radius))
    return 1 / center, steps


class _Launches:
    """Steps and residuals by one kernel each, on a device; two on a rank whose rows need values of other ranks.

    `weights` are the inverse diagonal, multiplied by `length`, which is `beta` of the first step.
    """

    def __init__(self, A: CSRMatrix, weights: LocalArray, length: float) -> None:
        self._A, self._weights, self._length = A, weights, length
        self._buffers = Buffers()

    def residual(self, y: Array, x: Array, out: Array) -> Array:
        """Set `out` to ``y - A x``."""
        return self._combined(y, x, x, (0.0, 0.0, 1.0, 1.0), None, out)

    def step(self, y: Array, x: Array, before: Array | None, alpha: float, beta: float, out: Array) -> Array:
        """Set `out`, which may be `before`, to the iterate after `x`."""
        previous, b = (x, 0.0) if before is None else (before, -alpha)
        c = beta / self._length
        return self._combined(y, x, previous, (1 + alpha, b, c, c), self._weights, out)

    def _combined(
        self,
        y: Array,
        x: Array,
        before: Array,
        factors: tuple[float, float, float, float],
        weights: LocalArray | None,
        out: Array,
    ) -> Array:
        """Set `out` to ``a x + b before + weights (d y - c A x)``."""
        engine, dtype, target = x.engine, x.dtype, out.local_array
        local, remote = self._A._parts(engine, dtype)
        right = self._buffers.contiguous("y", y.local_array, dtype, engine)
        arriving = self._A.forest.start_bcast(x.local_array, self._A._ghost_values(engine, dtype))
        local.combine(x.local_array, right, before.local_array, target, factors, weights)
        ghosts = arriving.finish()
        if len(self._A.ghosts):
            remote.combine(ghosts, target, target, target, (0.0, 1.0, factors[2], 0.0), weights)
        return out


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
