"""Sweeps on a device: a warp has 32 sources at a point, or 8 at each of four, and a launch all points of a plane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from collops.extend.arrays import LocalArray
from collops.extend.engines import cuda_module, engine_of, memory_of
from collops.extend.engines import engine as engine_called
from collops.seismic.graphs import recorded
from collops.seismic.kirchhoff.eikonal.medium import FAR, MAX_SWEEPS, SETTLING_ROUNDS, TOLERANCE, WAKE, Medium, Source
from collops.seismic.kirchhoff.geometry import in_memory_of

_FEW, _LANES = 8, 32  # sources at a point: their values are one sector or one line of memory
_THREADS = 256  # of a block, as in sweep.cu
_SHARE = 0.1  # maximum part of the device's memory for the values of a batch


@cache
def _kernel(device: int, dtype: np.dtype, lanes: int, tilted: bool) -> Any:
    """Compile sweep.cu for one device, type and number of lanes, if `tilted` for anisotropic media."""
    import cupy

    names = ["sweep.cu", *["tilted.cu"] * tilted]
    source = "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names)
    options = (f"-DLANES={lanes}", *["-DCOLLOPS_DOUBLE"] * (dtype.itemsize == 8), *["-DCOLLOPS_TILTED"] * tilted)
    with cupy.cuda.Device(device):
        return cuda_module(source, options).get_function("sweep_plane")


def _at_a_time(medium: Medium) -> int:
    """Return how many sources are computed at once."""
    group = _LANES * medium.points * medium.dtype.itemsize
    return _LANES * max(1, int(_SHARE * memory_of(engine_called("cupy")) / group))


def arrivals(medium: Medium, sources: Iterable[Source], threads: int | None) -> Iterator[LocalArray]:
    """Yield the times from each source; see `first_arrivals`."""
    import cupy

    at_a_time, left = _at_a_time(medium), iter(sources)
    parameters = np.empty(0) if medium.anisotropy is None else medium.anisotropy
    of_medium = [cupy.asarray(part.astype(medium.dtype)) for part in (medium.slowness, parameters)]
    while batch := list(islice(left, at_a_time)):
        yield from _arrivals(medium, of_medium, batch)


def _arrivals(medium: Medium, of_medium: Sequence[Any], sources: Sequence[Source]) -> Iterator[LocalArray]:
    """Yield the times from each source of a batch; `of_medium` are the slowness and the anisotropy on the device."""
    import cupy

    width = _FEW if len(sources) <= _FEW else _LANES
    groups, points, order = -(-len(sources) // width), medium.points, _nearby(sources)
    # Lanes without a source of their own repeat the last one.
    lanes = [sources[order[min(number, len(sources) - 1)]] for number in range(groups * width)]
    rests = cupy.full((groups, points, width), FAR, medium.dtype)
    places = [(number // width * points + source.near) * width + number % width for number, source in enumerate(lanes)]
    values = [_marked(source, medium) for source in lanes]
    rests.reshape(-1)[cupy.asarray(np.concatenate(places))] = cupy.asarray(np.concatenate(values))
    _sweep_until_quiet(medium, rests, of_medium, *_described(lanes, groups, medium.dtype))
    engine = engine_of(rests)
    points_near = in_memory_of(engine, [source.near for source in sources])
    times_near = in_memory_of(engine, [source.straight.astype(medium.dtype) for source in sources])
    ordered = zip(sources, np.argsort(order).tolist(), points_near, times_near, strict=True)
    for source, number, near, straight in ordered:
        offsets = in_memory_of(engine, [part.astype(medium.dtype) for part in source.offsets(medium)])
        times = rests[number // width, :, number % width].reshape(medium.sizes)
        times = (times + source.straight_times(offsets)).ravel()
        # Straight rays cannot arrive before the first arrival.
        times[near] = cupy.minimum(times[near], straight)
        yield times.reshape(medium.shape)


def _nearby(sources: Sequence[Source]) -> np.ndarray:
    """Return an order of sources, by Morton numbers of their positions, that puts neighbours into one group.

    Points of a group are active for any of its sources: 32 sources within a quarter of each axis need two thirds of the
    visits of 32 sources anywhere.
    """
    places = np.array([source.offset for source in sources])
    cells = 1023 * (places - places.min(axis=0)) / max(float(np.ptp(places, axis=0).max()), 1e-30)
    bits = cells.astype(np.int64)[:, np.newaxis] >> np.arange(10)[:, np.newaxis] & 1  # (sources, bits, axes)
    return np.argsort((bits << np.arange(30).reshape(10, 3)).sum(axis=(1, 2)), kind="stable")


def _marked(source: Source, medium: Medium) -> np.ndarray:
    """Return the rests near a source in the form of the kernel: the lowest bit says whether they are fixed."""
    # At these points only: all points of a large grid take longer than the sweeps.
    at_points = np.unravel_index(source.near, medium.sizes)
    offsets = [part.ravel()[number] for part, number in zip(source.offsets(medium), at_points, strict=True)]
    rests = (source.straight - source.straight_times(offsets)).astype(medium.dtype)
    bits = rests.view(f"u{medium.dtype.itemsize}")
    return (bits & ~bits.dtype.type(1) | source.fixed).view(medium.dtype)


def _described(lanes: Sequence[Source], groups: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the sources and their tables in the layout of the kernel."""
    tilted = [[] if source.reference is None else [*source.reference.described[1:]] for source in lanes]
    rows = np.array(
        [[source.slowness, *source.offset, *more] for source, more in zip(lanes, tilted, strict=True)], dtype
    )
    tables = [source.reference.table for source in lanes if source.reference is not None] or [np.empty((0, 2))] * len(
        lanes
    )
    of_lanes = np.stack(tables).astype(dtype).reshape(groups, len(lanes) // groups, -1, 2)
    sources = rows.reshape(groups, len(lanes) // groups, -1).transpose(0, 2, 1)
    return np.ascontiguousarray(sources), np.ascontiguousarray(of_lanes.transpose(0, 2, 3, 1))


def _sweep_until_quiet(
    medium: Medium, rests: Any, of_medium: Sequence[Any], described: np.ndarray, tables: np.ndarray
) -> None:
    """Sweep until the sweeps from all corners have changed nothing."""
    import cupy

    kind, width = medium.dtype.type, rests.shape[-1]
    kernel = _kernel(cupy.cuda.Device().id, medium.dtype, width, medium.anisotropy is not None)
    (slowness, parameters), sources, on_device = of_medium, cupy.asarray(described), cupy.asarray(tables)
    flags, active = cupy.zeros(2, np.int32), cupy.full(rests.shape[:2], 1, np.uint8)
    arguments = (
        rests,
        active,
        slowness,
        sources,
        parameters,
        on_device,
        flags,
        kind(TOLERANCE * medium.cell),
        kind(WAKE * medium.cell),
    )
    arguments += (*map(kind, medium.spacing), *map(np.int32, medium.sizes))
    rows = _THREADS // width
    planes = _planes(medium.sizes, rows, len(rests))

    def sweep(corner: int) -> None:
        for blocks, plane in planes:
            kernel(blocks, (width, rows), (*arguments, *plane, np.int32(corner)))

    sweeps = [recorded(partial(sweep, corner)) for corner in medium.corners]
    quiet = number = 0
    while quiet < len(sweeps):
        if number == MAX_SWEEPS:
            raise medium.not_converged()
        flags[:] = cupy.asarray([0, number >= SETTLING_ROUNDS * len(sweeps)], np.int32)
        sweeps[number % len(sweeps)]()
        quiet, number = 0 if int(flags[0]) else quiet + 1, number + 1


def _planes(sizes: tuple[int, ...], rows: int, groups: int) -> list[tuple[tuple[int, int, int], tuple[np.int32, ...]]]:
    """Return the blocks of each plane, its level, and its first points along two axes."""
    size0, size1, size2 = sizes
    planes = []
    for level in range(size0 + size1 + size2 - 2):
        first0, last0 = max(0, level - (size1 - 1) - (size2 - 1)), min(size0 - 1, level)
        first1, last1 = max(0, level - last0 - (size2 - 1)), min(size1 - 1, level - first0)
        blocks = (-(-(last1 - first1 + 1) // rows), last0 - first0 + 1, groups)
        planes.append((blocks, tuple(map(np.int32, (level, first0, first1)))))
    return planes
