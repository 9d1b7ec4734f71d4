"""Time steps of elastic media in Numba: each derivative in one pass over the grid, in several threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collops.seismic.waves.grid import Slab, Tile
from collops.seismic.waves.steps.elastic import ElasticSteps, Term
from collops.seismic.waves.steps.numba_products import NumbaProducts
from collops.seismic.waves.steps.numba_staggered import NumbaStaggeredSteps


class NumbaElasticSteps(NumbaStaggeredSteps, ElasticSteps, NumbaProducts):
    """The steps of NumPy, with the same bits. Results are in memory that the next step overwrites."""

    def __init__(self, tile: Tile, slabs: Sequence[Slab], dtype: np.dtype, threads: int | None, *medium: Any) -> None:
        super().__init__(tile, slabs, dtype, threads, *medium)
        self._sums: dict[tuple[tuple[int, int], ...], np.ndarray] = {}
        self._velocities: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for a, (_, shape) in self._boxes.items():
            margins = self._margins(a)
            array = np.zeros([n + sum(pair) for n, pair in zip(shape, margins, strict=True)], dtype)
            box = tuple(slice(before, before + n) for n, (before, _) in zip(shape, margins, strict=True))
            self._velocities[a] = array, array[box]

    def _sum(self, terms: Sequence[Term], begin: Sequence[int], shape: Sequence[int]) -> np.ndarray:
        key = tuple(term.key for term in terms)
        if key not in self._sums:
            self._sums[key] = np.empty(shape, terms[0].x.dtype)
        for number, term in enumerate(terms):
            self._add_difference(term.x, term.start(begin), term.key[1], self._sums[key], number > 0)
        return self._sums[key]

    def _weighted(self, total: np.ndarray, a: int) -> np.ndarray:
        velocity, box = self._velocities[a]
        np.multiply(self._buoyancy[a], total, out=box)
        return velocity
