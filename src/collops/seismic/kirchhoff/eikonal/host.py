"""Sweeps on hosts: by loops that Numba compiles, a thread for each source, or by NumPy."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np

from collops.seismic.kirchhoff.eikonal.medium import Medium, Source

_BATCH = 1 << 22  # elements of the arrays of NumPy's form


def arrivals(medium: Medium, sources: Iterable[Source], threads: int | None) -> Iterator[np.ndarray]:
    """Yield the times from each source; see `first_arrivals`."""
    left = iter(sources)
    if importlib.util.find_spec("numba") is None:
        from collops.seismic.kirchhoff.eikonal.numpy_sweeps import solve

        while batch := list(islice(left, max(1, _BATCH // medium.points))):
            yield from solve(medium, batch)
        return
    from collops.seismic.kirchhoff.eikonal.numba_sweeps import solve_one

    if (threads or 1) == 1:
        yield from (solve_one(medium, source) for source in left)
        return
    with ThreadPoolExecutor(threads) as pool:
        while batch := list(islice(left, threads)):
            yield from pool.map(lambda source: solve_one(medium, source), batch)
