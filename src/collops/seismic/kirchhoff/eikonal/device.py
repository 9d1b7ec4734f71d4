"""Sweeps on a device: a warp has 32 sources at a point, and a launch all points of a plane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import cuda_module, memory_of
from collops.extend.engines import engine as engine_called
from collops.seismic.graphs import recorded
from collops.seismic.kirchhoff.eikonal.medium import FAR, MAX_SWEEPS, SETTLING_ROUNDS, TOLERANCE, WAKE, Medium, Source

_LANES, _ROWS = 32, 8  # as in sweep.cu
_LARGE, _POINTS = 1 << 22, 8  # points of a grid from which on a warp visits so many points
_SHARE = 0.1  # maximum part of the device's memory for the values of a batch


@cache
def _kernel(device: int, dtype: np.dtype, points: int) -> Any:
    """Compile sweep.cu for one device and type; a warp visits `points` in turn."""
    import cupy

    source = Path(__file__).with_name("sweep.cu").read_text(encoding="utf-8")
    options = (f"-DPOINTS={points}", *["-DCOLLOPS_DOUBLE"] * (dtype.itemsize == 8))
    with cupy.cuda.Device(device):
        return cuda_module(source, options).get_function("sweep_plane")


def at_a_time(medium: Medium, threads: int | None) -> int:
    """Return how many sources are computed at once."""
    group = _LANES * medium.points * medium.dtype.itemsize
    return _LANES * max(1, int(_SHARE * memory_of(engine_called("cupy")) / group))


def arrivals(medium: Medium, sources: Sequence[Source], threads: int | None) -> Iterator[LocalArray]:
    """Yield the times from each source; see `first_arrivals`."""
    import cupy

    groups, points = -(-len(sources) // _LANES), medium.points
    # Lanes without a source of their own repeat the last one.
    lanes = [sources[min(number, len(sources) - 1)] for number in range(groups * _LANES)]
    rests = cupy.full((groups, points, _LANES), FAR, medium.dtype)
    places = [
        (number // _LANES * points + source.near) * _LANES + number % _LANES for number, source in enumerate(lanes)
    ]
    values = [_marked(source, medium) for source in lanes]
    rests.reshape(-1)[cupy.asarray(np.concatenate(places))] = cupy.asarray(np.concatenate(values))
    _sweep_until_quiet(medium, rests, _described(lanes, groups, medium.dtype))
    for number, source in enumerate(sources):
        offsets = [cupy.asarray(part.astype(medium.dtype)) for part in source.offsets(medium)]
        times = rests[number // _LANES, :, number % _LANES].reshape(medium.sizes)
        times = (times + medium.dtype.type(source.slowness) * cupy.sqrt(sum(part**2 for part in offsets))).ravel()
        # Straight rays cannot arrive before the first arrival.
        near = cupy.asarray(source.near)
        times[near] = cupy.minimum(times[near], cupy.asarray(source.straight.astype(medium.dtype)))
        yield times.reshape(medium.shape)


def _marked(source: Source, medium: Medium) -> np.ndarray:
    """Return the rests near a source in the form of the kernel: the lowest bit says whether they are fixed."""
    distance = np.sqrt(sum(part**2 for part in source.offsets(medium))).ravel()[source.near]
    rests = (source.straight - source.slowness * distance).astype(medium.dtype)
    bits = rests.view(f"u{medium.dtype.itemsize}")
    return (bits & ~bits.dtype.type(1) | source.fixed).view(medium.dtype)


def _described(lanes: Sequence[Source], groups: int, dtype: np.dtype) -> np.ndarray:
    """Return the sources in the layout of the kernel."""
    rows = np.array([[source.slowness, *source.offset] for source in lanes], dtype)
    return np.ascontiguousarray(rows.reshape(groups, _LANES, 4).transpose(0, 2, 1))


def _sweep_until_quiet(medium: Medium, rests: Any, described: np.ndarray) -> None:
    """Sweep until the sweeps from all corners have changed nothing."""
    import cupy

    points, kind = _POINTS if medium.points >= _LARGE else 1, medium.dtype.type
    kernel = _kernel(cupy.cuda.Device().id, medium.dtype, points)
    slowness, sources = cupy.asarray(medium.slowness.astype(medium.dtype)), cupy.asarray(described)
    flags, active = cupy.zeros(2, np.int32), cupy.full(rests.shape[:2], 1, np.uint8)
    arguments = (rests, active, slowness, sources, flags, kind(TOLERANCE * medium.cell), kind(WAKE * medium.cell))
    arguments += (*map(kind, medium.spacing), *map(np.int32, medium.sizes))
    planes = _planes(medium.sizes, len(rests), points)

    def sweep(corner: int) -> None:
        for blocks, plane in planes:
            kernel(blocks, (_LANES, _ROWS), (*arguments, *plane, np.int32(corner)))

    sweeps = [recorded(partial(sweep, corner)) for corner in medium.corners]
    quiet = number = 0
    while quiet < len(sweeps):
        if number == MAX_SWEEPS:
            raise medium.not_converged()
        flags[:] = cupy.asarray([0, number >= SETTLING_ROUNDS * len(sweeps)], np.int32)
        sweeps[number % len(sweeps)]()
        quiet, number = 0 if int(flags[0]) else quiet + 1, number + 1


def _planes(
    sizes: tuple[int, ...], groups: int, points: int
) -> list[tuple[tuple[int, int, int], tuple[np.int32, ...]]]:
    """Return the blocks of each plane, its level, and its first points along two axes; a warp visits `points`."""
    size0, size1, size2 = sizes
    planes = []
    for level in range(size0 + size1 + size2 - 2):
        first0, last0 = max(0, level - (size1 - 1) - (size2 - 1)), min(size0 - 1, level)
        first1, last1 = max(0, level - last0 - (size2 - 1)), min(size1 - 1, level - first0)
        blocks = (-(-(last1 - first1 + 1) // (_ROWS * points)), last0 - first0 + 1, groups)
        planes.append((blocks, tuple(map(np.int32, (level, first0, first1)))))
    return planes
