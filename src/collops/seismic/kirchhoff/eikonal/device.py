"""Sweeps on a device: a warp has 32 sources at a point, and a launch all points of a plane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import cuda_module, memory_of
from collops.extend.engines import engine as engine_called
from collops.seismic.kirchhoff.eikonal.medium import FAR, MOST_SWEEPS, TOLERANCE, Medium, Source

_LANES, _ROWS = 32, 8  # as in sweep.cu
_SHARE = 0.1  # maximum part of the device's memory for the times of a batch


@cache
def _kernel(device: int, dtype: np.dtype) -> Any:
    """Compile sweep.cu for one device and type."""
    import cupy

    source = Path(__file__).with_name("sweep.cu").read_text(encoding="utf-8")
    with cupy.cuda.Device(device):
        return cuda_module(source, ("-DCOLLOPS_DOUBLE",) * (dtype.itemsize == 8)).get_function("sweep_plane")


def at_a_time(medium: Medium, threads: int | None) -> int:
    """Return how many sources are computed at once."""
    group = _LANES * medium.points * medium.dtype.itemsize
    return _LANES * max(1, int(_SHARE * memory_of(engine_called("cupy")) / group))


def arrivals(medium: Medium, sources: Sequence[Source], threads: int | None) -> Iterator[LocalArray]:
    """Yield the times from each source; see `first_arrivals`."""
    import cupy

    groups, points = -(-len(sources) // _LANES), medium.points
    times = cupy.full((groups, points, _LANES), FAR, medium.dtype)
    # Lanes without a source of their own repeat the last one.
    lanes = [sources[min(number, len(sources) - 1)] for number in range(groups * _LANES)]
    places = [
        (number // _LANES * points + source.near) * _LANES + number % _LANES for number, source in enumerate(lanes)
    ]
    near = cupy.asarray(np.concatenate(places))
    straight = cupy.asarray(np.concatenate([source.straight for source in lanes]).astype(medium.dtype))
    fixed = cupy.asarray(np.concatenate([source.fixed for source in lanes]))
    flat = times.reshape(-1)
    flat[near] = cupy.where(fixed, -straight, straight)
    _sweep_until_quiet(medium, times, _described(lanes, groups, medium.dtype))
    # Straight rays cannot arrive before the first arrival.
    flat[near] = cupy.minimum(cupy.abs(flat[near]), straight)
    for number in range(len(sources)):
        yield times[number // _LANES, :, number % _LANES].reshape(medium.shape)


def _described(lanes: Sequence[Source], groups: int, dtype: np.dtype) -> np.ndarray:
    """Return the sources in the layout of the kernel."""
    rows = np.array([[source.slowness, *source.offset] for source in lanes], dtype)
    return np.ascontiguousarray(rows.reshape(groups, _LANES, 4).transpose(0, 2, 1))


def _sweep_until_quiet(medium: Medium, times: Any, described: np.ndarray) -> None:
    """Sweep until the sweeps from all corners have changed nothing."""
    import cupy

    kernel, kind = _kernel(cupy.cuda.Device().id, medium.dtype), medium.dtype.type
    slowness, sources = cupy.asarray(medium.slowness.astype(medium.dtype)), cupy.asarray(described)
    changed = cupy.zeros(1, np.int32)
    arguments = (times, slowness, sources, changed, kind(TOLERANCE * medium.cell), *map(kind, medium.spacing))
    sizes, quiet, number = tuple(map(np.int32, medium.sizes)), 0, 0
    planes = _planes(medium.sizes, len(times))
    while quiet < len(medium.corners):
        if number == MOST_SWEEPS:
            raise medium.not_converged()
        changed.fill(0)
        corner = np.int32(medium.corners[number % len(medium.corners)])
        for blocks, plane in planes:
            kernel(blocks, (_LANES, _ROWS), (*arguments, *sizes, *plane, corner))
        quiet, number = 0 if int(changed[0]) else quiet + 1, number + 1


def _planes(sizes: tuple[int, int, int], groups: int) -> list[tuple[tuple[int, int, int], tuple[np.int32, ...]]]:
    """Return the blocks of each plane, and its level and first points along the first two axes."""
    size0, size1, size2 = sizes
    planes = []
    for level in range(size0 + size1 + size2 - 2):
        first0, last0 = max(0, level - (size1 - 1) - (size2 - 1)), min(size0 - 1, level)
        first1, last1 = max(0, level - last0 - (size2 - 1)), min(size1 - 1, level - first0)
        blocks = (-(-(last1 - first1 + 1) // _ROWS), last0 - first0 + 1, groups)
        planes.append((blocks, tuple(map(np.int32, (level, first0, first1)))))
    return planes
