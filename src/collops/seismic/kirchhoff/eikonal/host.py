"""Sweeps on hosts: by loops that Numba compiles, a thread for each source, or by NumPy."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from collops.seismic.kirchhoff.eikonal.medium import Medium, Source

_BATCH = 1 << 22  # elements of the arrays of NumPy's form


def at_a_time(medium: Medium, threads: int | None) -> int:
    """Return how many sources are computed at once."""
    if importlib.util.find_spec("numba") is not None:
        return threads or 1
    return max(1, _BATCH // medium.points)


def arrivals(medium: Medium, sources: Sequence[Source], threads: int | None) -> Iterator[np.ndarray]:
    """Yield the times from each source; see `first_arrivals`."""
    if importlib.util.find_spec("numba") is None:
        from collops.seismic.kirchhoff.eikonal.numpy_sweeps import solve

        yield from solve(medium, sources)
        return
    from collops.seismic.kirchhoff.eikonal.numba_sweeps import solve_one

    if len(sources) == 1:
        yield solve_one(medium, sources[0])
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(lambda source: solve_one(medium, source), sources)
