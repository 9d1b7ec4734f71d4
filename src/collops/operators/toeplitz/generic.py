"""Products of stored spectra on hosts, where narrow matrices are widened in the cache, and of JAX, in the product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import numpy as np

from collops.array.dtypes import real_of
from collops.backend import LocalArray, engine_of
from collops.operators.dense import forms_for
from collops.operators.memory import Buffers
from collops.operators.toeplitz.spectra import Spectra, widened

_BLOCK = 1 << 16  # complex elements widened at once: they stay in a cache


def batch(spectra: Spectra) -> Any:
    """Return the products of the matrices of all frequencies."""
    if engine_of(spectra.parts).traced:
        return TracedBatch(spectra)
    return Scaled(matrices_of(spectra, _BLOCK), spectra.scales)


def matrices_of(spectra: Spectra, block: int, widen: Callable[[LocalArray, LocalArray], None] | None = None) -> Any:
    """Return the products on hosts or devices without scales, by the engine's library; see :class:`WidenedBatch`."""
    if spectra.parts.dtype == real_of(spectra.accumulated):
        matrices = spectra.parts.view(spectra.accumulated)[..., 0]
        return forms_for(engine_of(matrices)).batched(matrices, False, True)
    return WidenedBatch(spectra, block, widen)


class WidenedBatch:
    """Matrices in a narrower type than their products, widened a few frequencies at a time.

    At most `block` elements are widened at once, if a matrix has no more. ``widen(parts, out)`` converts them, on
    devices for which an engine's functions would allocate memory.
    """

    def __init__(
        self, spectra: Spectra, block: int, widen: Callable[[LocalArray, LocalArray], None] | None = None
    ) -> None:
        self._spectra = spectra
        self._engine = engine_of(spectra.parts)
        self._widen = widen or self._convert
        count, rows, columns, _ = spectra.parts.shape
        height = min(count, max(1, block // max(1, rows * columns)))
        self._blocks = [slice(begin, min(count, begin + height)) for begin in range(0, count, height)]
        self._shape = height, rows, columns
        self._memory: dict[int, tuple[LocalArray, dict[int, Any]]] = {}  # by thread
        self._new_memory()

    def forward(self, x: LocalArray, out: LocalArray) -> LocalArray:
        """Fill `out`, (batch, rows, n), with the products with `x`, (batch, columns, n)."""
        for some, matrices in self._matrices():
            matrices.forward(x[some], out[some])
        return out

    def adjoint(self, y: LocalArray, out: LocalArray) -> LocalArray:
        """Fill `out`, (batch, columns, n), with the products of the conjugate transposes with `y`."""
        for some, matrices in self._matrices():
            matrices.adjoint(y[some], out[some])
        return out

    def _matrices(self) -> Iterator[tuple[slice, Any]]:
        parts = self._spectra.parts
        wide, batched = self._memory.get(get_ident()) or self._new_memory()
        values = wide.view(real_of(self._spectra.accumulated)).reshape(len(wide), *parts.shape[1:])
        for some in self._blocks:
            size = some.stop - some.start
            self._widen(parts[some], values[:size])
            yield some, batched[size]

    def _new_memory(self) -> tuple[LocalArray, dict[int, Any]]:
        """Return new memory for widened matrices of this thread, and their products by the number of matrices."""
        wide = self._engine.xp.empty(self._shape, self._spectra.accumulated)
        sizes = {some.stop - some.start for some in self._blocks}
        batched = {size: forms_for(self._engine).batched(wide[:size], False, True) for size in sizes}
        return self._memory.setdefault(get_ident(), (wide, batched))

    def _convert(self, parts: LocalArray, out: LocalArray) -> None:
        stored, xp = self._spectra.stored, self._engine.xp
        if parts.itemsize == 2 and out.dtype == np.float32:
            widened(parts, stored, xp, out)
        else:
            out[...] = widened(parts, stored, xp)


class Scaled:
    """A batch whose rows are multiplied by `scales`, (batch, rows, 1), on hosts and devices."""

    def __init__(self, batch: Any, scales: LocalArray | None) -> None:
        self._batch, self._scales = batch, scales
        self._buffers = Buffers()

    def forward(self, x: LocalArray, out: LocalArray) -> LocalArray:
        """Fill `out` with the products with `x`."""
        self._batch.forward(x, out)
        return out if self._scales is None else engine_of(out).xp.multiply(out, self._scales, out=out)

    def adjoint(self, y: LocalArray, out: LocalArray) -> LocalArray:
        """Fill `out` with the products of the conjugate transposes with `y`."""
        if self._scales is not None:
            engine = engine_of(y)
            y = engine.xp.multiply(y, self._scales, out=self._buffers.local("", y.shape, y.dtype, engine))
        return self._batch.adjoint(y, out)


class TracedBatch:
    """Matrices of JAX; the compiler widens them within the product."""

    def __init__(self, spectra: Spectra) -> None:
        self._spectra = spectra
        self._engine = engine_of(spectra.parts)

    def forward(self, x: LocalArray, out: None) -> LocalArray:
        """Return the products with `x`, (batch, columns, n), as (batch, rows, n)."""
        product = self._engine.matmul(self._matrices(), x)
        return product if self._spectra.scales is None else product * self._spectra.scales

    def adjoint(self, y: LocalArray, out: None) -> LocalArray:
        """Return the products of the conjugate transposes with `y`, as (batch, columns, n)."""
        y = y if self._spectra.scales is None else y * self._spectra.scales
        return self._engine.matmul(self._matrices().conj().swapaxes(1, 2), y)

    def _matrices(self) -> LocalArray:
        parts = self._spectra.parts.astype(real_of(self._spectra.accumulated))
        return parts[..., 0] + 1j * parts[..., 1]
