"""Tables of stations: each is computed once, by one of the ranks that need it, and sent to the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.operators.kirchhoff.fixed_point import FixedTables, Scale
from collops.operators.kirchhoff.geometry import Grid
from collops.operators.kirchhoff.nodes import Nodes
from collops.operators.kirchhoff.weights import Weighting, Weights

__all__ = ["number_positions", "tables_of_stations"]


def number_positions(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ones of positions, (positions, axes), in order of appearance, and the number of each."""
    distinct, first, inverse = np.unique(positions, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return distinct[order], number[inverse.reshape(-1)]


def tables_of_stations(
    seconds: Callable[[int], np.ndarray],
    positions: np.ndarray,
    velocity: np.ndarray,
    grid: Grid,
    scale: Scale,
    needed: Sequence[np.ndarray],
    comm: Communicator,
    *,
    start: float = 0.0,
    factor: int = 1,
    weighting: Weighting | None = None,
) -> tuple[FixedTables, Weights | None]:
    """Return the travel times of the stations that this rank needs, one row each, and their weights. Collective.

    The ranks that need a station share the work. Arguments are the same on every rank, but for what is read of
    `seconds`.

    Parameters
    ----------
    seconds : callable
        Returns the travel times from a station, by its number, to all image points, of the shape of the grid.
    positions : array
        Coordinates of all stations, (stations, axes).
    velocity : array
        Of the shape of the grid, m/s.
    grid, scale : Grid, Scale
        The image points; the samples.
    needed : sequence of arrays
        For each rank the numbers of its stations, increasing; the rows are in this order.
    comm : Communicator
        The ranks.
    start : float
        Time of the first sample. Each of two stations is credited with half of it, so that any may be a source.
    factor : int
        Tables have every so many image points along each axis, and the kernels interpolate.
    weighting : Weighting, optional
        What the weights are; none by default.

    Returns
    -------
    tables, weights
        Without rows of sources and receivers (`FixedTables.of`); weights None without `weighting`.
    """
    owner, nodes = _owners(needed, len(positions)), Nodes(grid.shape, factor)
    mine = np.flatnonzero(owner == comm.rank)
    weighted = weighting is not None and not weighting.none
    with collective_errors(comm):
        times = np.empty((len(mine), nodes.size), scale.fixed_type if factor == 1 else scale.real_type)
        fields = np.empty((len(mine), weighting.fields(len(grid.axes)) if weighted else 0, nodes.size), scale.dtype)
        for row, station in enumerate(mine):
            after = seconds(int(station)).reshape(grid.shape)
            if weighted:
                heard = np.minimum(after, scale.latest * scale.interval)
                fields[row] = nodes.coarsen(weighting.fields_of(heard, grid, positions[station], velocity))
            samples = (after - start / 2) / scale.interval
            if factor == 1:
                times[row] = scale.fixed(samples.reshape(-1))
            else:
                slowness = 1 / (scale.interval * grid.value_at(velocity, positions[station]))
                times[row] = nodes.coarsen(samples - slowness * grid.distance(positions[station]))
    times, fields = (_shared(table, owner, needed, comm) for table in (times, fields))
    own = needed[comm.rank]
    straight = None
    if factor > 1:
        straight = np.zeros((len(own), 4), scale.real_type)
        straight[:, 0] = [1 / (scale.interval * grid.value_at(velocity, positions[each])) for each in own]
        straight[:, 4 - len(grid.axes) :] = positions[own] - [axis[0] for axis in grid.axes]
    tables = FixedTables(times, scale, nodes, own[:0], own[:0], straight, grid.spacing)
    return tables, Weights(fields, weighting) if weighted else None


def _owners(needed: Sequence[np.ndarray], stations: int) -> np.ndarray:
    """Return the rank that computes each station: of those that need it, one that has the least to do; -1 for none."""
    owner, load = np.full(stations, -1), np.zeros(len(needed), np.int64)
    users: list[list[int]] = [[] for _ in range(stations)]
    for rank, numbers in enumerate(needed):
        for station in numbers:
            users[station].append(rank)
    for station in sorted(range(stations), key=lambda each: len(users[each])):
        if users[station]:
            owner[station] = min(users[station], key=lambda rank: load[rank])
            load[owner[station]] += 1
    return owner


def _shared(table: np.ndarray, owner: np.ndarray, needed: Sequence[np.ndarray], comm: Communicator) -> np.ndarray:
    """Return the rows of the stations that this rank needs, from those that the ranks computed. Collective."""
    from collops.exchange import StarForest

    if comm.size == 1 or not table.shape[1]:
        return table if comm.size == 1 else np.empty((len(needed[comm.rank]), *table.shape[1:]), table.dtype)
    place = np.empty(len(owner), np.int64)
    for rank in range(comm.size):
        (computed,) = np.nonzero(owner == rank)
        place[computed] = np.arange(len(computed))
    own = needed[comm.rank]
    forest = StarForest(comm, len(table), None, owner[own], place[own])
    rows = forest.bcast(table, np.empty((len(own), *table.shape[1:]), table.dtype))
    forest.free()
    return rows
