"""Tables of stations: each is computed once, by one of the ranks that need it, and sent to the others."""

from __future__ import annotations

import math
import os
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from collops import Communicator
from collops.errors import InputError
from collops.extend.applications import in_words
from collops.extend.arrays import extent
from collops.extend.communication import collective_errors
from collops.extend.engines import engine_of
from collops.seismic.kirchhoff.fixed_point import FixedTables, Scale
from collops.seismic.kirchhoff.geometry import ImageGrid, in_memory_of
from collops.seismic.kirchhoff.nodes import Nodes
from collops.seismic.kirchhoff.traveltimes import Seconds
from collops.seismic.kirchhoff.weights import Weighting, Weights

__all__ = ["distinct_rows", "tables_of_stations"]

_COPIES = 2  # tables of stations that wait to be copied: each is memory besides the tables
_ROUND = 1 << 26  # approximate size in bytes of the full tables that a rank computes before it cuts and sends them


def distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, in order of appearance, and for each row the index of its distinct row."""
    distinct, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return distinct[order], number[inverse.reshape(-1)]


def tables_of_stations(
    seconds: Seconds,
    positions: np.ndarray,
    velocity: np.ndarray,
    grid: ImageGrid,
    scale: Scale,
    needed: Sequence[np.ndarray],
    comm: Communicator,
    *,
    start: float = 0.0,
    factor: int = 1,
    weighting: Weighting | None = None,
    folder: Path | None = None,
    boxes: Sequence[tuple[slice, ...]] | None = None,
    target: tuple[slice, ...] | None = None,
    of_rays: Seconds | None = None,
    error: float = 0.0,
    measured: bool = True,
) -> tuple[FixedTables, Weights | None, np.ndarray]:
    """Return the travel times of the stations that this rank needs, one row each, and their weights. Collective.

    The ranks that need a station share the work. All arguments but `seconds` are the same on every rank.

    Parameters
    ----------
    seconds : callable
        See `Seconds`; at all points, those of the target, or `Nodes.with_middles`, where the error is measured.
    positions : array
        Coordinates of all stations, (stations, axes).
    velocity : array
        Velocity at the points of the grid, m/s.
    grid, scale : ImageGrid, Scale
        The points of the velocity, by default the points of the image; the samples.
    needed : sequence of arrays
        For each rank the numbers of its stations, increasing.
    comm : Communicator
        The ranks.
    start : float
        Time of the first sample. Half of it is subtracted from the time of each station, so that any may be a source.
    factor : int
        Tables hold every `factor`-th image point along each axis, and the kernels interpolate.
    weighting : Weighting, optional
        Amplitudes and apertures; none by default.
    folder : Path, optional
        Keep the tables of all stations in a file of this folder, which all ranks share and the last one deletes.
    boxes : sequence of tuples of slices, optional
        For each rank the image points at which it needs tables (`Nodes.around`); all by default. All ranks then need
        the same stations. Full tables are computed, a few at a time, and cut. Not with a folder.
    target : tuple of slices, optional
        The grid points that are image points, along each axis; all by default. Stations may be outside of them.
    of_rays : callable, optional
        The times whose rays have the weights, at all points: in an anisotropic medium, those of an isotropic one. By
        default `seconds`.
    error : float
        Error of the times, in samples. The error of their interpolation is added.
    measured : bool
        Whether the error of the interpolation is measured; otherwise it is taken as zero.

    Returns
    -------
    tables, weights
        Without rows of sources and receivers (see `FixedTables.select`); weights are None without `weighting`.
    rows : array
        The row of each station that this rank needs; undefined for other stations.
    """
    target = target or tuple(slice(0, size) for size in grid.shape)
    weighting = None if weighting is None or weighting.none else weighting
    options = start, Nodes(extent(target), factor), weighting, target, of_rays, measured
    computed = _Computation(seconds, positions, velocity, grid, scale, *options)
    (times, fields), rows = _stored(computed, needed, boxes, folder, comm)
    box = None if boxes is None else boxes[comm.rank]
    local_stations, straight = needed[comm.rank], None
    if factor > 1:
        straight = np.zeros((len(times), 4), scale.real_type)
        straight[rows[local_stations]] = computed.straight(local_stations, box)
        error += float(comm.allreduce(np.array(computed.error), "max"))
    nodes, no_rows = Nodes(extent(box or target), factor), local_stations[:0]
    tables = FixedTables(times, scale, nodes, no_rows, no_rows, straight, grid.spacing, error)
    return tables, None if weighting is None else Weights(fields, weighting), rows


class _Computation:
    """The computation of tables; for the parameters see `tables_of_stations`.

    With `measures`, `error` is the largest root mean square error of interpolation of a station so far, in samples.
    `kinds` are the kinds of the tables of times and of weights.
    """

    def __init__(
        self,
        seconds: Seconds,
        positions: np.ndarray,
        velocity: np.ndarray,
        grid: ImageGrid,
        scale: Scale,
        start: float,
        nodes: Nodes,
        weighting: Weighting | None,
        target: tuple[slice, ...],
        of_rays: Seconds | None,
        measures: bool,
    ) -> None:
        self._target, self._of_rays, self._measures = target, of_rays, measures
        self._seconds, self._positions, self._velocity, self._start = seconds, positions, velocity, start
        self._grid, self._scale, self.nodes, self._weighting = grid, scale, nodes, weighting
        self.error = 0.0
        count = 0 if weighting is None else weighting.fields(len(grid.axes))
        of_times = scale.fixed_type if nodes.factor == 1 else scale.real_type
        self.kinds: _Kinds = [((), of_times), ((count,), scale.dtype)]

    @property
    def stations(self) -> int:
        """Number of stations."""
        return len(self._positions)

    def slowness(self, station: Any) -> float:
        """Return samples per metre at a station."""
        return 1 / (self._scale.interval * self._grid.value_at(self._velocity, self._positions[station]))

    def _support(self) -> tuple[slice, ...]:
        """Return the grid points that the weights at the target need: all, if rays bend on their way to it."""
        straight = self._weighting is None or not self._weighting.traces_rays
        if straight or self._velocity.min() == self._velocity.max():
            return self._target
        return tuple(slice(0, size) for size in self._grid.shape)

    def straight(self, stations: np.ndarray, box: tuple[slice, ...] | None) -> np.ndarray:
        """Return `FixedTables.straight` of stations, for tables of a box of the image points, or of all."""
        first = [part.start for part in self._target]
        if box is not None:
            first = [start + part.start for start, part in zip(first, box, strict=True)]
        rows = np.zeros((len(stations), 4))
        rows[:, 0] = [self.slowness(station) for station in stations]
        axes = zip(self._grid.axes, self._grid.spacing, first, strict=True)
        rows[:, 4 - len(first) :] = self._positions[stations] - [axis[0] + step * number for axis, step, number in axes]
        return rows

    def fill(self, stations: Sequence[int], rows: Sequence[int], times: np.ndarray, fields: np.ndarray) -> None:
        """Fill rows with the tables of stations."""
        copies: deque[Future[None]] = deque()
        with ThreadPoolExecutor(1) as thread:

            def keep(row: np.ndarray, values: np.ndarray) -> None:
                # Meanwhile, as memory that was not used before takes longer to fill than a device needs for a station.
                copies.append(thread.submit(np.copyto, row, values))
                if len(copies) > _COPIES:
                    copies.popleft().result()

            self._fill(stations, rows, times, fields, keep)
            while copies:
                copies.popleft().result()

    def _fill(
        self,
        stations: Sequence[int],
        rows: Sequence[int],
        times: np.ndarray,
        fields: np.ndarray,
        keep: Callable[[np.ndarray, np.ndarray], None],
    ) -> None:
        grid, scale, nodes, weighting = self._grid, self._scale, self.nodes, self._weighting
        everywhere = nodes.factor == 1 or weighting is not None
        indices = nodes.with_middles() if self._measures else nodes.along
        starts = [part.start for part in self._target]
        lattice = np.ix_(*(first + part for first, part in zip(starts, indices, strict=True)))
        support = self._support()
        all_points = np.ix_(*(np.arange(part.start, part.stop) for part in support))
        # The target, relative to the support.
        inside = tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(self._target, support, strict=True))
        around = ImageGrid(tuple(axis[part] for axis, part in zip(grid.axes, support, strict=True)), grid.spacing)
        computed = self._seconds(stations, all_points if everywhere else lattice)
        at_nodes, cells = (), None
        of_rays = repeat(None) if self._of_rays is None else self._of_rays(stations, all_points)
        for station, row, seconds, isotropic in zip(stations, rows, computed, of_rays, strict=False):
            engine, position = engine_of(seconds), self._positions[station]
            if weighting is not None:
                along_rays = engine.to_host(seconds if isotropic is None else isotropic)
                bounded = np.minimum(along_rays, scale.latest * scale.interval)
                values = weighting.fields_of(bounded, around, position, self._velocity[support])
                fields[row] = nodes.coarsen(values[(slice(None), *inside)])
            at_target = seconds[inside] if everywhere else seconds
            samples = (at_target.astype(np.float64) - self._start / 2) / scale.interval
            if nodes.factor == 1:
                keep(times[row], engine.to_host(scale.fixed(samples.reshape(-1))))
                continue
            samples = samples[tuple(map(engine.from_host, np.ix_(*indices)))] if everywhere else samples
            apart = in_memory_of(engine, grid.offsets(position, lattice))
            remainder = samples - self.slowness(station) * np.sqrt(sum(part**2 for part in apart))
            if not self._measures:
                keep(times[row], engine.to_host(remainder.astype(times.dtype)).ravel())
                continue
            if cells is None:
                at_nodes = tuple(map(engine.from_host, np.ix_(*map(np.searchsorted, indices, nodes.along))))
                cells = nodes.cells_at(engine, indices)
            of_nodes = remainder[at_nodes].ravel().astype(times.dtype)
            keep(times[row], engine.to_host(of_nodes))
            error = nodes.refine(of_nodes, cells) - remainder.ravel()
            self.error = max(self.error, float(np.sqrt(np.mean(error**2))))


_Kinds = Sequence[tuple[tuple[int, ...], np.dtype]]
"""The axes of each table between the stations and the nodes, and its dtype."""


def _stored(
    computed: _Computation,
    needed: Sequence[np.ndarray],
    boxes: Sequence[tuple[slice, ...]] | None,
    folder: Path | None,
    comm: Communicator,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the tables of times and of weights, where `tables_of_stations` keeps them, and its rows. Collective."""
    owner, rows = _owners(needed, computed.stations), np.arange(computed.stations)
    if boxes is not None:
        return _cut(computed.fill, owner, computed.nodes, boxes, computed.kinds, comm), rows
    if folder is not None:
        return _in_file(computed.fill, owner, computed.nodes, computed.kinds, folder, comm), rows
    tables = _in_memory(computed.fill, owner, computed.nodes, computed.kinds, needed, comm)
    return tables, np.searchsorted(needed[comm.rank], rows)


def _in_memory(
    fill: Callable[..., None],
    owner: np.ndarray,
    nodes: Nodes,
    kinds: _Kinds,
    needed: Sequence[np.ndarray],
    comm: Communicator,
) -> list[np.ndarray]:
    """Return the tables of the stations that this rank needs. Collective."""
    local_stations = np.flatnonzero(owner == comm.rank)
    tables = [np.empty((len(local_stations), *shape, nodes.size), dtype) for shape, dtype in kinds]
    with collective_errors(comm):
        fill(local_stations.tolist(), range(len(local_stations)), *tables)
    return [_shared(table, owner, needed, comm) for table in tables]


def _in_file(
    fill: Callable[..., None], owner: np.ndarray, nodes: Nodes, kinds: _Kinds, folder: Path, comm: Communicator
) -> list[np.ndarray]:
    """Return the tables of all stations, in a file of a folder, which all ranks map. Collective."""
    local_stations = np.flatnonzero(owner == comm.rank).tolist()
    tables = [_mapped((len(owner), *shape, nodes.size), dtype, folder, comm) for shape, dtype in kinds]
    with collective_errors(comm):
        fill(local_stations, local_stations, *tables)
        for table in tables:
            if isinstance(table, np.memmap):
                table.flush()  # for ranks on other machines
    return tables


def _mapped(shape: tuple[int, ...], dtype: np.dtype, folder: Path, comm: Communicator) -> np.ndarray:
    """Return an array in a file that all ranks map. Collective."""
    if 0 in shape:
        return np.empty(shape, dtype)
    name = ""
    with collective_errors(comm):
        if comm.rank == 0:
            name = _file(folder, math.prod(shape) * dtype.itemsize)
    (name, *_) = comm.allgather_metadata(name)
    try:
        with collective_errors(comm):
            return np.memmap(name, dtype, "r+", shape=shape)
    finally:
        if comm.rank == 0:
            os.unlink(name)  # the mappings keep it


def _file(folder: Path, size: int) -> str:
    """Return the name of a new file of `size` bytes."""
    try:
        number, name = tempfile.mkstemp(".tables", "collops-", folder)
    except OSError as problem:
        raise InputError(f"{folder}: {problem.strerror}: name another folder for the travel times") from problem
    try:
        os.posix_fallocate(number, 0, size)
    except OSError as problem:
        os.unlink(name)
        raise InputError(
            f"{folder}: {problem.strerror}: the travel times need {in_words(size)}; name another folder"
        ) from problem
    finally:
        os.close(number)
    return name


def _owners(needed: Sequence[np.ndarray], stations: int) -> np.ndarray:
    """Return the rank that computes each station: the least loaded rank that needs it; -1 if none does."""
    owner, load = np.full(stations, -1), np.zeros(len(needed), np.int64)
    users: list[list[int]] = [[] for _ in range(stations)]
    for rank, numbers in enumerate(needed):
        for station in numbers:
            users[station].append(rank)
    for station in sorted(range(stations), key=lambda number: len(users[number])):
        if users[station]:
            owner[station] = min(users[station], key=lambda rank: load[rank])
            load[owner[station]] += 1
    return owner


def _shared(table: np.ndarray, owner: np.ndarray, needed: Sequence[np.ndarray], comm: Communicator) -> np.ndarray:
    """Return the rows of the stations that this rank needs, from the rows that the ranks computed. Collective."""
    from collops import StarForest

    if comm.size == 1 or not table.shape[1]:
        return table if comm.size == 1 else np.empty((len(needed[comm.rank]), *table.shape[1:]), table.dtype)
    owner_row = np.empty(len(owner), np.int64)
    for rank in range(comm.size):
        (computed,) = np.nonzero(owner == rank)
        owner_row[computed] = np.arange(len(computed))
    local_stations = needed[comm.rank]
    forest = StarForest(comm, len(table), None, owner[local_stations], owner_row[local_stations])
    rows = forest.bcast(table, np.empty((len(local_stations), *table.shape[1:]), table.dtype))
    forest.free()
    return rows


def _cut(
    fill: Callable[..., None],
    owner: np.ndarray,
    nodes: Nodes,
    boxes: Sequence[tuple[slice, ...]],
    kinds: _Kinds,
    comm: Communicator,
) -> list[np.ndarray]:
    """Return the tables of all stations at the nodes of this rank's box. Collective.

    Each rank computes the tables of its stations at all `nodes`, about `_ROUND` bytes at a time, and sends every rank
    its part.
    """
    parts = [nodes.inside(box) for box in boxes]
    sizes = [math.prod(extent(part)) for part in parts]
    tables = [np.empty((len(owner), *shape, sizes[comm.rank]), dtype) for shape, dtype in kinds]
    a_station = nodes.size * sum(math.prod(shape) * dtype.itemsize for shape, dtype in kinds)
    at_a_time = comm.size * max(1, _ROUND // a_station)
    for first in range(0, len(owner), at_a_time):
        stations = first + np.argsort(owner[first : first + at_a_time], kind="stable")  # as they arrive
        counts = np.bincount(owner[stations], minlength=comm.size).tolist()
        local_stations = stations[owner[stations] == comm.rank]
        full_tables = [np.empty((len(local_stations), *shape, nodes.size), dtype) for shape, dtype in kinds]
        with collective_errors(comm):
            fill(local_stations.tolist(), range(len(local_stations)), *full_tables)
        for table, computed, (shape, _) in zip(tables, full_tables, kinds, strict=True):
            if 0 in shape:
                continue
            values = computed.reshape(len(local_stations), *shape, *nodes.counts)
            pieces = [values[(..., *part)].ravel() for part in parts]
            received = [count * math.prod(shape) * sizes[comm.rank] for count in counts]
            received_values = comm.alltoallv(np.concatenate(pieces), [piece.size for piece in pieces], received)
            table[stations] = received_values.reshape(len(stations), *table.shape[1:])
    return tables
