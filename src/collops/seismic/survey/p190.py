"""P1/90 files (UKOOA): positions of the sources of a marine survey, and of the receiver groups of its streamers."""

from __future__ import annotations

import numpy as np

from collops.errors import InputError
from collops.seismic.survey.navigation import Lines, Stations, TraceNumbers, match, number_in

# Columns, counted from 1: of coordinate records, and of the three groups of a receiver record relative to its start.
_POINT, _EAST, _NORTH = (20, 25), (47, 55), (56, 64)
_GROUPS, _GROUP, _GROUP_EAST, _GROUP_NORTH, _DEPTH = (0, 26, 52), (2, 5), (6, 14), (15, 23), (24, 27)
_COORDINATE_RECORDS = "SVZ"  # source, vessel and other: their point is the point of the receiver records that follow


def p190_stations(lines: Lines, traces: TraceNumbers, notes: list[str]) -> Stations:
    """Return the source and the receiver of each trace, by its source point and channel; add a sentence to `notes`.

    If the file lacks some of the energy source points of the traces, points are field records. Channels are the numbers
    of receiver groups, or, with several streamers, the position of the group among the receiver records of the shot.
    Raises `InputError` for traces whose source or receiver has no position.
    """
    sources, groups = _records(lines)
    if not len(sources) or not len(groups):
        raise InputError(
            f"{lines.names} must have positions of sources (records S) and of receiver groups (records R), or be all "
            "files of an SPS survey (S, R and X): pass them with --geometry"
        )
    points, channels = sources[:, 0], groups[:, 1]
    if np.unique(groups[:, :2], axis=0).shape[0] < len(groups):
        channels = _positions_in_shot(groups[:, 0])
    by_point = bool(np.isin(traces.point, points).all())
    point, name = (traces.point, "source point") if by_point else (traces.record, "field record")
    wanted = point.astype(np.float64)
    source = match(wanted[None], points[None], lambda key: f"{lines.names} have no source of {name} {key[0]:g}")
    group = match(
        np.stack([wanted, traces.channel.astype(np.float64)]),
        np.stack([groups[:, 0], channels]),
        lambda key: f"{lines.names} have no receiver of {name} {key[0]:g}, channel {key[1]:g}",
    )
    notes.append(
        f"positions from {lines.names} (P1/90): {len(np.unique(point))} shots, by {name} and channel; depths of "
        "sources from the trace headers"
    )
    unknown = np.full(len(point), np.nan)
    return Stations(
        sources[source, 1:].T, groups[group, 2:4].T, np.stack([unknown, groups[group, 4]]), unknown.copy(), None
    )


def _records(lines: Lines) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of sources (point, east, north) and of receiver groups (point, group, east, north, depth)."""
    sources, groups, point = [], [], None
    for record in lines.records:
        line = record[1]
        if line[0] in _COORDINATE_RECORDS:
            point = number_in(record, *_POINT)
            if line[0] == "S":
                sources.append((point, number_in(record, *_EAST), number_in(record, *_NORTH)))
        elif line[0] == "R":
            if point is None:
                raise InputError(
                    f"{record[0]} has receivers before any source: pass SPS files together with --geometry"
                )
            for skip in _GROUPS:
                part = record[0], line[skip : skip + 27]
                if part[1][_GROUP_EAST[0] - 1 : _GROUP_NORTH[1]].strip():
                    fields = number_in(part, *_GROUP), number_in(part, *_GROUP_EAST), number_in(part, *_GROUP_NORTH)
                    groups.append((point, *fields, number_in(part, *_DEPTH, 0.0)))
    return np.array(sources).reshape(-1, 3), np.array(groups).reshape(-1, 5)


def _positions_in_shot(points: np.ndarray) -> np.ndarray:
    """Return the position of each row among the rows of its shot, from 1."""
    order = np.argsort(points, kind="stable")
    ordered = points[order]
    firsts = np.flatnonzero(np.concatenate([[True], np.diff(ordered) != 0]))
    counts = np.diff(np.append(firsts, len(points)))
    result = np.empty(len(points))
    result[order] = np.arange(len(points)) - np.repeat(firsts, counts) + 1
    return result
