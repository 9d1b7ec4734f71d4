"""Migration into classes of the angle of reflection.

References
----------
Xu, S., Chauris, H., Lambare, G., and Noble, M., *Common-angle migration: a strategy for imaging complex media*,
Geophysics 66 (2001), 1877-1894.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collops.extend.applications import local_stage
from collops.seismic.survey.traveltimes import seconds_from

if TYPE_CHECKING:
    from collops.seismic.lsm.problem import Problem

_MAX_ANGLE = 60.0  # degrees: angle of reflection at the end of the last class


def by_angle(
    problem: Problem,
    traces: list[np.ndarray],
    columns: np.ndarray,
    classes: int,
    rays: tuple[np.ndarray, np.ndarray] | None = None,
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
        Numbers of the columns along x; in 3-D in the middle of the axis y.
    classes : int
        Number of classes.
    rays : tuple of arrays, optional
        The result of `rays_to`, if it is known.

    Returns
    -------
    angles : array
        The middle of each class in degrees.
    gathers : array
        Shape ``(columns, classes, rows)``. The sum over the classes is the adjoint image without steeper angles.
    """
    from scipy.signal import oaconvolve

    survey, grid = problem.survey, problem.image_grid
    geometry, comm = survey.geometry, survey.comm
    _, sources, receivers = geometry.stations
    times, slowness = rays or rays_to(problem, columns)
    taps, centre = problem.wavelet
    shape = len(columns), grid.nz, classes
    cells = classes * np.arange(len(columns) * grid.nz).reshape(shape[:2])
    sums = np.zeros(int(np.prod(shape)))
    with local_stage(comm):
        for shot, recorded in zip(survey.shots, traces, strict=True):
            source, stations = sources[shot], receivers[shot]
            first = len(taps) - 1 - centre
            correlated = oaconvolve(recorded, taps[None, ::-1], axes=1)[:, first : first + geometry.samples]
            live = np.flatnonzero(recorded.any(axis=1))
            index = (times[source] + times[stations[live]] - geometry.start) / geometry.interval
            cosine = (slowness[source] * slowness[stations[live]]).sum(axis=1)
            angle = np.rad2deg(np.arccos(np.clip(cosine, -1, 1)) / 2)
            inside = (index >= 0) & (index < geometry.samples - 1) & (angle < _MAX_ANGLE)
            trace, *point = np.nonzero(inside)
            sample, part = np.divmod(index[inside], 1)
            early = sample.astype(int)
            values = (1 - part) * correlated[live[trace], early] + part * correlated[live[trace], early + 1]
            cell = cells[tuple(point)] + (angle[inside] * (classes / _MAX_ANGLE)).astype(int)
            sums += np.bincount(cell, values, len(sums))
    return (np.arange(classes) + 0.5) * (_MAX_ANGLE / classes), comm.allreduce(sums).reshape(shape).swapaxes(1, 2)


def rays_to(problem: Problem, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return travel times from all stations to columns, and their normalised gradients. Collective.

    The results have the shapes ``(stations, columns, rows)`` and ``(stations, axes, columns, rows)``. The ranks share
    the work.
    """
    positions, *_ = problem.survey.geometry.stations
    grid, comm = problem.image_grid, problem.survey.comm
    shares = np.array_split(positions, comm.size)
    local_positions, spacing = shares[comm.rank], grid.spacing
    local_tables = np.empty((len(local_positions), 1 + len(spacing), len(columns), grid.nz), np.float32)
    with local_stage(comm):
        for row, position in enumerate(local_positions):
            table = seconds_from(position, problem.velocity, problem.grid, problem.mode)
            parts = [problem.at_image(part) for part in (table, *np.gradient(table, *spacing))]
            local_tables[row] = [(part if grid.ny is None else part[grid.ny // 2])[columns] for part in parts]
    tables = comm.allgatherv(local_tables, [len(share) for share in shares]) if comm.size > 1 else local_tables
    length = np.sqrt((tables[:, 1:] ** 2).sum(axis=1, keepdims=True))
    return tables[:, 0], tables[:, 1:] / np.maximum(length, np.finfo(np.float32).tiny)
