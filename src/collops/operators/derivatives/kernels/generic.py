"""Products with bands in the array API: sums of shifted slices of a block with its sides, which a compiler fuses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from collops.array.dtypes import real_of
from collops.backend import LocalArray
from collops.operators.derivatives.bands import REACH, WIDTH, Face, Problem, Several, Term

__all__ = ["make_kernel"]


class GenericKernel:
    """Bands on arrays of any engine."""

    splits = False

    def __init__(self, problem: Problem) -> None:
        self._shape, self._terms, self._several, dtype, engine, self._add, _ = problem
        self._engine, self._xp = engine, engine.xp
        self._factors = [_factors(term, len(self._shape), real_of(dtype)) for term in self._terms]

    def run(
        self, part: str, sources: Sequence[LocalArray], targets: Sequence[LocalArray], landing: LocalArray
    ) -> list[LocalArray]:
        """Compute all rows, since `part` is always ``whole``."""
        parts = [
            self._product(term, factors, sources[number if self._several is Several.SOURCES else 0], landing)
            for number, (term, factors) in enumerate(zip(self._terms, self._factors, strict=True))
        ]
        if self._several is Several.TARGETS:
            return parts
        return [sum(parts, targets[0]) if self._add else sum(parts[1:], parts[0])]

    def _product(
        self, term: Term, factors: Sequence[LocalArray | None], source: LocalArray, landing: LocalArray
    ) -> LocalArray:
        axis, extent = term.axis, self._shape[term.axis]
        if term.before is None and term.after is None:
            # A compiler sends only the planes that move between devices if the block has its shape throughout.
            parts = [
                factor * (source if offset == REACH else self._engine.shifted(source, REACH - offset, axis))
                for offset, factor in enumerate(factors)
                if factor is not None
            ]
            return sum(parts[1:], parts[0]) if parts else self._xp.zeros_like(source)
        before, after = (self._side(face, axis, landing, source.dtype) for face in (term.before, term.after))
        block = self._xp.concatenate([*before[::-1], source, *after], axis)
        leading = (slice(None),) * axis
        parts = [
            factor * block[(*leading, slice(offset, offset + extent))]
            for offset, factor in enumerate(factors)
            if factor is not None
        ]
        return sum(parts[1:], parts[0]) if parts else self._xp.zeros_like(source)

    def _side(self, face: Face | None, axis: int, landing: LocalArray, dtype: DTypeLike) -> list[LocalArray]:
        """Return ``REACH`` planes, from the block outwards: the planes of a face, if any, padded with zeros."""
        planes = [] if face is None else [face.view(landing)]
        missing = REACH - (0 if face is None else face.shape[axis])
        shape = [missing if a == axis else n for a, n in enumerate(self._shape)]
        return [*planes, self._xp.zeros(shape, dtype)]


make_kernel = GenericKernel


def _factors(term: Term, ndim: int, dtype: np.dtype) -> list[LocalArray | None]:
    """Return the coefficients of each diagonal: an array along the axis, one number if equal, ``None`` if zero."""
    band = term.band
    rows = np.tile(np.asarray(band.stencil, dtype), (band.extent, 1))
    for number in (*range(min(band.head_end, band.extent)), *range(max(band.tail_begin, 0), band.extent)):
        rows[number] = band.row(number)
    factors: list[LocalArray | None] = []
    for column in rows.reshape(-1, WIDTH).T:
        if not column.any():
            factors.append(None)
        elif (column == column[0]).all():
            factors.append(column[0])
        else:
            factors.append(column.reshape([-1 if a == term.axis else 1 for a in range(ndim)]))
    return factors
