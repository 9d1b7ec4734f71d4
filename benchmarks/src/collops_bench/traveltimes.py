"""First arrivals in a velocity that increases with depth, on each rank, against fast marching (scikit-fmm).

The clock ``wall`` is the time of one source. Programs take turns: collops computes a batch of sources, scikit-fmm one
of them, by its scheme of second order, from a circle around the source. It is serial and runs on the host, also where
collops runs on a device. The figures ``largest error`` and ``rms error`` are differences from the formula, in the time
that a wave needs for a cell at the surface; the figure ``points per second`` counts the points of a source.

The case of tables has the seconds of all tables of a survey at every fourth point, which the ranks share, with times
from the coarsest grid within a tolerance: the choice of this grid is included. Differences are taken at these points.
"""

from __future__ import annotations

import importlib.util
import time
from collections import deque
from collections.abc import Iterator

import numpy as np

from collops.seismic.host_kernels import threads_of_rank
from collops.seismic.kirchhoff import FixedTables, first_arrivals
from collops.seismic.kirchhoff.fixed_point import Scale
from collops.seismic.kirchhoff.geometry import ImageGrid
from collops.seismic.kirchhoff.stations import tables_of_stations
from collops.seismic.kirchhoff.traveltimes import arrivals_at, coarsest_grid, interpolates_alike
from collops_bench.peers import why_missing
from collops_bench.record import Measurement, check
from collops_bench.registry import Context
from collops_bench.timing import Spread, Timing, synchronize

__all__ = ["measure"]

OURS, PEER = "collops", "scikit-fmm"
_SURFACE, _GRADIENT, _SPACING = 1500.0, 0.6, 12.5  # m/s, 1/s, m
_RADIUS = 3 * _SPACING  # of scikit-fmm's first wavefront
_INTERVAL, _TOLERANCE, _EVERY = 0.004, 2e-4, 4  # of samples and of times, in seconds; points of a table


def measure(context: Context) -> Iterator[Measurement]:
    """Yield one measurement for each grid."""
    device, quick = context.engine.memory == "device", context.options.quick
    missing = why_missing(context, _why_no_scikit_fmm)
    if quick:
        grids = [((41, 31), 3, True), ((21, 19, 17), 3, True)]
    elif device:
        grids = [((401, 300), 256, True), ((128, 128, 96), 64, True), ((256, 256, 128), 32, False)]
    else:
        grids = [((401, 300), 8, True), ((101, 101, 61), 4, True)]
    for shape, sources, with_peer in grids:
        yield _measure(context, shape, sources, missing if with_peer else "takes minutes for a source")
    yield _measure_tables(context, *(((41, 31), 24) if quick else ((512, 512, 256) if device else (401, 300), 1560)))


def _model(shape: tuple[int, ...]) -> tuple[ImageGrid, np.ndarray]:
    """Return the grid and the velocity at its points."""
    axes = tuple(_SPACING * np.arange(n) for n in shape)
    velocity = np.ascontiguousarray(np.broadcast_to(_SURFACE + _GRADIENT * axes[-1], shape))
    return ImageGrid(axes, (_SPACING,) * len(shape)), velocity


def _measure(context: Context, shape: tuple[int, ...], sources: int, missing: str | None) -> Measurement:
    comm, (grid, velocity) = context.comm, _model(shape)
    places = _at_surface(grid, sources, comm.rank)
    samples: dict[str, list[float]] = {OURS: [], **({} if missing else {PEER: []})}
    errors: dict[str, dict[str, float]] = {}
    _ours(context, grid, places, velocity)  # compiles
    for _ in range(1 if context.options.quick else 5):
        seconds, times = _ours(context, grid, places, velocity)
        samples[OURS].append(seconds)
        errors[OURS] = _errors(grid, places[-1], times)
        if missing is None:
            seconds, times = _marched(context, grid, places[-1], velocity)
            samples[PEER].append(seconds)
            errors[PEER] = _errors(grid, places[-1], times)
    points = float(np.prod(shape))
    return Measurement(
        f"first arrivals, {' x '.join(map(str, shape))}",
        {"points": int(points), "sources": sources},
        {name: Timing(1, {"wall": Spread.from_samples(each)}) for name, each in samples.items()},
        {PEER: missing} if missing else {},
        ours=OURS,
        peer=PEER,
        checks=[check(comm, f"times of {name}", each["largest error"], 0.5) for name, each in errors.items()],
        figures={
            name: {**each, "points per second": points / float(np.median(samples[name]))}
            for name, each in errors.items()
        },
        headline=f"Travel times, {' x '.join(map(str, shape))} points, one source",
    )


def _measure_tables(context: Context, shape: tuple[int, ...], stations: int) -> Measurement:
    comm, (grid, velocity) = context.comm, _model(shape)
    positions, scale = _at_surface(grid, stations, 0), Scale(_INTERVAL, 1000, 0, np.dtype(np.float32))
    options = context.engine, scale.dtype, threads_of_rank(comm, context.engine, None)

    def tables(stations: int) -> tuple[float, FixedTables, int, float]:
        comm.barrier()
        begin, some = time.perf_counter(), positions[:stations]
        step, error = coarsest_grid(grid, some, velocity, *options, None, _TOLERANCE, comm)
        known = {"error": error / scale.interval, "measured": not interpolates_alike(_EVERY, step, (0,), None)}
        seconds, needed = arrivals_at(grid, some, velocity, *options, factor=step), [np.arange(stations)] * comm.size
        made, _, _ = tables_of_stations(seconds, some, velocity, grid, scale, needed, comm, factor=_EVERY, **known)
        comm.barrier()
        return time.perf_counter() - begin, made, step, error

    tables(1)  # compiles
    rounds = [tables(stations) for _ in range(1 if context.options.quick else 2)]
    _, made, step, estimate = rounds[-1]
    assert made.straight is not None
    along = made.nodes.along
    at_nodes = ImageGrid(tuple(axis[part] for axis, part in zip(grid.axes, along, strict=True)), grid.spacing)
    distance = at_nodes.distance(positions[-1], np.ix_(*map(np.arange, at_nodes.shape)))
    times = scale.interval * (made.times[-1].reshape(distance.shape) + float(made.straight[-1, 0]) * distance)
    errors = _errors(at_nodes, positions[-1], times)
    return Measurement(
        f"tables, {' x '.join(map(str, shape))}",
        {"points": grid.points, "stations": stations, "coarsen": _EVERY, "tolerance": _TOLERANCE, "swept every": step},
        {OURS: Timing(1, {"wall": Spread.from_samples([seconds for seconds, *_ in rounds])})},
        {PEER: "has no tables"},
        ours=OURS,
        peer=PEER,
        checks=[check(comm, "times of the tables", errors["largest error"], 0.5)],
        figures={OURS: {**errors, "estimated rms error in samples": estimate / scale.interval}},
        headline=f"Tables of travel times, {' x '.join(map(str, shape))} points, {stations} stations",
    )


def _at_surface(grid: ImageGrid, count: int, seed: int) -> np.ndarray:
    """Return positions at the surface."""
    places = np.random.default_rng(seed).uniform(0, [axis[-1] for axis in grid.axes], (count, len(grid.axes)))
    places[:, -1] = 0.0
    return places


def _ours(context: Context, grid: ImageGrid, places: np.ndarray, velocity: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the seconds per source, and the times of the last one."""
    context.comm.barrier()
    begin = time.perf_counter()
    (times,) = deque(first_arrivals(grid.axes, places, velocity, engine=context.engine, dtype=np.float32), maxlen=1)
    synchronize(context.engine)
    context.comm.barrier()
    return (time.perf_counter() - begin) / len(places), context.engine.to_host(times)


def _marched(context: Context, grid: ImageGrid, place: np.ndarray, velocity: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the seconds and the times of scikit-fmm for one source."""
    import skfmm

    context.comm.barrier()
    begin = time.perf_counter()
    distance = grid.distance(place, np.ix_(*map(np.arange, grid.shape)))
    beyond = np.asarray(skfmm.travel_time(distance - _RADIUS, velocity, dx=list(grid.spacing), order=2))
    # It returns times from the circle on, inside as well.
    times = np.where(distance > _RADIUS, _RADIUS / _SURFACE + beyond, distance / _SURFACE)
    context.comm.barrier()
    return time.perf_counter() - begin, times


def _errors(grid: ImageGrid, place: np.ndarray, times: np.ndarray) -> dict[str, float]:
    """Return differences from the formula for a constant gradient (Slotnick 1959), in times of a cell.

    Points are left out to which the ray, an arc around a centre above the surface, goes below the grid.
    """
    indices = np.ix_(*map(np.arange, grid.shape))
    distance, (*across, down) = grid.distance(place, indices), grid.offsets(place, indices)
    there = _SURFACE + _GRADIENT * grid.axes[-1]
    exact = 2 / _GRADIENT * np.arcsinh(_GRADIENT * distance / (2 * np.sqrt(_SURFACE * there)))
    wide, above = np.sqrt(sum(part**2 for part in across)), _SURFACE / _GRADIENT
    with np.errstate(divide="ignore", invalid="ignore"):
        centre = (wide**2 + (down + above) ** 2 - above**2) / (2 * wide)
    inside = (centre >= wide) | (np.hypot(centre, above) - above <= grid.axes[-1][-1])
    error = ((times - exact) * _SURFACE / _SPACING)[inside | (wide == 0)]
    return {"largest error": float(np.abs(error).max()), "rms error": float(np.sqrt((error**2).mean()))}


def _why_no_scikit_fmm() -> str | None:
    return None if importlib.util.find_spec("skfmm") else "scikit-fmm is not installed"
