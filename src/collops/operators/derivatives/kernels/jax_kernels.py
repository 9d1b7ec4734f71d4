"""Products with bands on JAX arrays: sums of shifted slices of a block with its sides, which XLA fuses into a pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from collops.backend import Engine
from collops.operators.derivatives.bands import REACH, WIDTH
from collops.operators.derivatives.faces import Face
from collops.operators.derivatives.kernels.dispatch import Several, Term

__all__ = ["make_kernel"]


def make_kernel(
    shape: tuple[int, ...], terms: Sequence[Term], several: Several, dtype: np.dtype, engine: Engine, add: bool = False
) -> JaxKernel:
    """Return the kernel; parameters as for :class:`collops.operators.derivatives.kernels.array_kernels.ArrayKernel`."""
    return JaxKernel(shape, terms, several, dtype, add)


class JaxKernel:
    """Bands on variables of JAX; parameters as for the kernel of NumPy."""

    splits = False  # XLA orders the work itself

    def __init__(
        self, shape: tuple[int, ...], terms: Sequence[Term], several: Several, dtype: np.dtype, add: bool
    ) -> None:
        self._shape = shape
        self._terms = terms
        self._several = several
        self._add = add
        real = np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
        self._factors = [_factors(term, len(shape), real) for term in terms]

    def whole(self, sources: Sequence[Any], targets: Sequence[Any], landing: Any) -> None:
        """Compute everything."""
        apart = self._several is Several.TARGETS
        total = targets[0].value if self._add else None
        for number, (term, factors) in enumerate(zip(self._terms, self._factors, strict=True)):
            source = sources[number if self._several is Several.SOURCES else 0].value
            part = self._product(term, factors, source, landing)
            total = part if total is None or apart else total + part
            if apart:
                targets[number][...] = total
        if not apart:
            targets[0][...] = total

    def _product(self, term: Term, factors: Sequence[Any], source: Any, landing: Any) -> Any:
        axis, extent = term.axis, self._shape[term.axis]
        before, after = (self._side(face, axis, landing, source.dtype) for face in (term.before, term.after))
        if before.shape[axis] < REACH:
            before = _padded(before, axis, REACH - before.shape[axis], 0)
        if after.shape[axis] < REACH:
            after = _padded(after, axis, 0, REACH - after.shape[axis])
        block = jnp.concatenate([before, source, after], axis)
        parts = [
            factor * lax.slice_in_dim(block, offset, offset + extent, axis=axis)
            for offset, factor in enumerate(factors)
            if factor is not None
        ]
        return sum(parts[1:], parts[0]) if parts else jnp.zeros_like(source)

    def _side(self, face: Face | None, axis: int, landing: Any, dtype: Any) -> Any:
        if face is None:
            return jnp.zeros([0 if a == axis else n for a, n in enumerate(self._shape)], dtype)
        return landing[face.begin : face.end].reshape(face.shape).value


def _factors(term: Term, ndim: int, dtype: np.dtype) -> list[Any]:
    """Return for each diagonal its coefficients along the axis, or the one number that all are; ``None`` for zeros."""
    band = term.band
    rows = np.tile(np.asarray(band.stencil, dtype), (band.extent, 1))
    for number in (*range(min(band.head_end, band.extent)), *range(max(band.tail_begin, 0), band.extent)):
        rows[number] = band.row(number)
    factors: list[Any] = []
    for column in rows.reshape(-1, WIDTH).T:
        if not column.any():
            factors.append(None)
        elif (column == column[0]).all():
            factors.append(column[0])
        else:
            factors.append(column.reshape([-1 if a == term.axis else 1 for a in range(ndim)]))
    return factors


def _padded(array: Any, axis: int, before: int, after: int) -> Any:
    return jnp.pad(array, [(before, after) if a == axis else (0, 0) for a in range(array.ndim)])
