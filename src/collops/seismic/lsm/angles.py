"""Migration into classes of the angle of reflection.

References
----------
Xu, S., Chauris, H., Lambare, G., and Noble, M., *Common-angle migration: a strategy for imaging complex media*,
Geophysics 66 (2001), 1877-1894.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collops.extend.applications import local_stage
from collops.seismic.survey.traveltimes import seconds_from

if TYPE_CHECKING:
    from collops.seismic.lsm.problem import Problem
    from collops.seismic.survey.geometry import Geometry

_MAX_ANGLE = 60.0  # degrees: angle of reflection at the end of the last class
_TABLE_BYTES = 1 << 30  # of travel times and rays of all stations, which a rank holds at a time
_SHOT_BYTES = 64 << 20  # of the contributions of a shot that are added at a time
_BYTES_OF_TRACE = 100  # of a trace at an image point, while it is added


def by_angle(
    problem: Problem, traces: list[np.ndarray], columns: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Migrate traces into classes of the angle of reflection, at some columns of the image. Collective.

    The angle is half of the angle between the gradients of the travel times from the source and from the receiver at
    the image point: the angle between the rays and the normal of a reflector at this point. Its classes are equally
    wide, from 0 to 60 degrees.

    Parameters
    ----------
    problem : Problem
        The survey, the velocity and the wavelet.
    traces : list of arrays
        The traces of the shots of this rank.
    columns : array of int
        Numbers of the columns among all columns of the image, by y and x.
    classes : int
        Number of classes.

    Returns
    -------
    angles : array
        The middle of each class in degrees.
    gathers : array
        Shape ``(columns, classes, rows)``. The sum over the classes is the adjoint image without steeper angles.
    """
    gathers = np.empty((len(columns), classes, problem.image_grid.nz))
    for part, migrated in column_blocks(problem, columns, classes):
        gathers[part] = migrated(traces)
    return (np.arange(classes) + 0.5) * (_MAX_ANGLE / classes), gathers


def column_blocks(
    problem: Problem, columns: np.ndarray, classes: int
) -> Iterator[tuple[slice, Callable[[list[np.ndarray]], np.ndarray]]]:
    """Yield blocks of columns, and a function that migrates traces at a block as `by_angle` does. Both are collective.

    The travel times of a block, which all its migrations use, take 1 GiB at most.
    """
    stations, axes = problem.survey.geometry.stations[0].shape
    step = max(1, _TABLE_BYTES // (4 * stations * (1 + axes) * problem.image_grid.nz))
    for first in range(0, len(columns), step):
        part = slice(first, min(first + step, len(columns)))
        rays = _rays_to(problem, columns[part])

        def migrated(traces: list[np.ndarray], rays: _Rays = rays) -> np.ndarray:
            return _migrated(problem, traces, rays, classes)

        yield part, migrated


class _Rays(NamedTuple):
    """Rays from all stations to columns of the image, float32."""

    times: np.ndarray  # travel times in seconds, shape ``(stations, columns, rows)``
    slowness: np.ndarray  # their normalised gradients, shape ``(stations, axes, columns, rows)``


def _migrated(problem: Problem, traces: list[np.ndarray], rays: _Rays, classes: int) -> np.ndarray:
    """Return the gathers at the columns of `rays`: ``(columns, classes, rows)``. Collective."""
    from scipy.signal import oaconvolve

    survey = problem.survey
    geometry = survey.geometry
    _, sources, receivers = geometry.stations
    taps, centre = problem.wavelet
    _, columns, rows = rays.times.shape
    sums = np.zeros((columns, rows * classes))
    with local_stage(survey.comm):
        for shot, recorded in zip(survey.shots, traces, strict=True):
            first = len(taps) - 1 - centre
            correlated = oaconvolve(recorded, taps[None, ::-1], axes=1)[:, first : first + geometry.samples]
            live = np.flatnonzero(recorded.any(axis=1))
            step = max(1, _SHOT_BYTES // (_BYTES_OF_TRACE * rows * max(1, len(live))))
            for begin in range(0, columns, step):
                part = slice(begin, begin + step)
                _add(sums[part], rays, part, sources[shot], receivers[shot][live], correlated[live], geometry, classes)
    return survey.comm.allreduce(sums).reshape(columns, rows, classes).swapaxes(1, 2)


def _add(
    sums: np.ndarray,
    rays: _Rays,
    part: slice,
    source: int,
    stations: np.ndarray,
    traces: np.ndarray,
    geometry: Geometry,
    classes: int,
) -> None:
    """Add the traces of a shot, correlated with the wavelet, to sums at some columns: ``(columns, rows * classes)``."""
    index = (rays.times[source, part] + rays.times[stations, part] - geometry.start) / geometry.interval
    cosine = (rays.slowness[source, :, part] * rays.slowness[stations, :, part]).sum(axis=1)
    angle = np.rad2deg(np.arccos(np.clip(cosine, -1, 1)) / 2)
    inside = (index >= 0) & (index < geometry.samples - 1) & (angle < _MAX_ANGLE)
    trace, column, row = np.nonzero(inside)
    sample, share = np.divmod(index[inside], 1)
    early = sample.astype(int)
    values = (1 - share) * traces[trace, early] + share * traces[trace, early + 1]
    cell = (column * index.shape[2] + row) * classes + (angle[inside] * (classes / _MAX_ANGLE)).astype(int)
    sums += np.bincount(cell, values, sums.size).reshape(sums.shape)


def _rays_to(problem: Problem, columns: np.ndarray) -> _Rays:
    """Return the rays from all stations to columns. Collective: the ranks share the work."""
    positions, *_ = problem.survey.geometry.stations
    grid, comm = problem.image_grid, problem.survey.comm
    shares = np.array_split(positions, comm.size)
    local_positions, spacing = shares[comm.rank], grid.spacing
    local_tables = np.empty((len(local_positions), 1 + len(spacing), len(columns), grid.nz), np.float32)
    with local_stage(comm):
        for row, position in enumerate(local_positions):
            table = seconds_from(position, problem.velocity, problem.grid, problem.mode, thomsen=problem.thomsen)
            for axis, part in enumerate((table, *np.gradient(table, *spacing))):
                local_tables[row, axis] = problem.at_image(part).reshape(-1, grid.nz)[columns]
    tables = comm.allgatherv(local_tables, [len(share) for share in shares]) if comm.size > 1 else local_tables
    slowness = tables[:, 1:]
    length = np.sqrt(np.einsum("sacr,sacr->scr", slowness, slowness))
    slowness /= np.maximum(length, np.finfo(np.float32).tiny)[:, None]
    return _Rays(tables[:, 0], slowness)
