"""SPS files (Shell Processing Support, revisions 1 and 2.1): points, and relations of channels to receivers.

Files call the first revision SPS001, and the Society of Exploration Geophysicists revision 0. Every column below was
compared with the tables that such files have in their own header records (H26), and with Seismic Unix's ``sugeom``,
which agree.

References
----------
SEG Technical Standards Committee, *Shell Processing Support Format for Land 3D Surveys*, as adopted in 1993; and
*Shell Processing Support, SPS rev 2.1* (2006).
"""

from __future__ import annotations

import re

import numpy as np

from collops.errors import InputError
from collops.seismic.survey.navigation import Lines, Stations, TraceNumbers, match, number_in

# Columns of the records, counted from 1, by revision.
_POINT = {
    "2.1": {"line": (2, 11), "point": (12, 21), "index": (24, 24), "static": (27, 30), "depth": (31, 34)},
    "1": {"line": (2, 17), "point": (18, 25), "index": (26, 26), "static": (29, 32), "depth": (33, 36)},
}
_PLACE = {"east": (47, 55), "north": (56, 65), "elevation": (66, 71)}
_RELATION = {
    "2.1": {
        **{"record": (8, 15), "source_line": (18, 27), "source": (28, 37), "source_index": (38, 38)},
        **{"first_channel": (39, 43), "last_channel": (44, 48), "step": (49, 49)},
        **{"line": (50, 59), "first": (60, 69), "last": (70, 79), "index": (80, 80)},
    },
    "1": {
        **{"record": (8, 11), "source_line": (14, 29), "source": (30, 37), "source_index": (38, 38)},
        **{"first_channel": (39, 42), "last_channel": (43, 46), "step": (47, 47)},
        **{"line": (48, 63), "first": (64, 71), "last": (72, 79), "index": (80, 80)},
    },
}
_DEFAULTS = {"index": 1.0, "source_index": 1.0, "step": 1.0, "static": 0.0, "depth": 0.0, "elevation": 0.0}
_WHOLE = 1e-6


def is_sps(lines: Lines) -> bool:
    """Return whether files have relation records, which P1/90 lacks."""
    return any(line.startswith("X") for _, line in lines.records)


def sps_stations(lines: Lines, traces: TraceNumbers, notes: list[str]) -> Stations:
    """Return the source and the receiver of each trace, by its field record and channel; add a sentence to `notes`.

    The relation records name the source of a field record, and the receivers of a range of channels. Point numbers are
    interpolated between the first and the last receiver of the range. Raises `InputError` for a trace without relation,
    and for points without position.
    """
    revision = _revision(lines)
    sources, receivers = (_table(lines, kind, _POINT[revision] | _PLACE) for kind in "SR")
    relations = _table(lines, "X", _RELATION[revision])
    for kind, table in (("source (S)", sources), ("receiver (R)", receivers)):
        if not len(table["line"]):
            raise InputError(f"{lines.names} have no {kind} records: pass all files of the survey with --geometry")
    which, steps = _relation_of(lines, relations, traces)
    of_trace = {name: values[which] for name, values in relations.items()}
    span = of_trace["last_channel"] - of_trace["first_channel"]
    advance = (of_trace["last"] - of_trace["first"]) / np.maximum(np.round(span / of_trace["step"]), 1)
    point = of_trace["first"] + steps * advance
    source = _rows(lines, "source", sources, of_trace["source_line"], of_trace["source"], of_trace["source_index"])
    group = _rows(lines, "receiver", receivers, of_trace["line"], point, of_trace["index"])
    notes.append(
        f"positions from {lines.names} (SPS {revision}): {len(np.unique(source))} sources and {len(np.unique(group))} "
        "receivers, by field record and channel"
    )
    pair = (sources, source), (receivers, group)
    depth = np.stack([(points["depth"] - points["elevation"])[rows] for points, rows in pair])
    statics = np.stack([points["static"][rows] for points, rows in pair]) / 1e3
    return Stations(
        np.stack([sources["east"], sources["north"]])[:, source],
        np.stack([receivers["east"], receivers["north"]])[:, group],
        depth,
        sources["elevation"][source],
        statics if statics.any() else None,
    )


def _revision(lines: Lines) -> str:
    """Return the revision of the first header record, 2.1 without any."""
    header = next((line for _, line in lines.records if line.startswith("H00")), "2.1")
    return "2.1" if re.search(r"2[.,]1", header) else "1"


def _table(lines: Lines, kind: str, columns: dict[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """Return the numbers of all records of a kind, by the names of their columns."""
    records = [record for record in lines.records if record[1].startswith(kind)]
    return {
        name: np.array([number_in(record, *ends, _DEFAULTS.get(name)) for record in records])
        for name, ends in columns.items()
    }


def _relation_of(lines: Lines, relations: dict[str, np.ndarray], traces: TraceNumbers) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the relation record of each trace, and the steps from its first channel."""
    step = int(max(traces.channel.max(initial=0), relations["last_channel"].max())) + 1
    begins = relations["record"] * step + relations["first_channel"]
    order = np.argsort(begins, kind="stable")
    last = np.searchsorted(begins[order], traces.record * step + traces.channel, side="right") - 1
    which = order[last.clip(0)]
    late = traces.channel - relations["first_channel"][which]
    steps = late / np.maximum(relations["step"][which], 1)
    known = (last >= 0) & (relations["record"][which] == traces.record)
    known &= (traces.channel <= relations["last_channel"][which]) & (np.abs(steps - np.round(steps)) < _WHOLE)
    if not known.all():
        trace = int(np.argmin(known))
        raise InputError(
            f"{lines.names} have no relation for field record {traces.record[trace]}, channel {traces.channel[trace]}: "
            "add it, or mark the trace as dead (bytes 29 to 30)"
        )
    return which, np.round(steps)


def _rows(
    lines: Lines, kind: str, points: dict[str, np.ndarray], line: np.ndarray, point: np.ndarray, index: np.ndarray
) -> np.ndarray:
    """Return the number of the record of each point; numbers have at most two decimals."""

    def keys(*values: np.ndarray) -> np.ndarray:
        return np.rint(100 * np.stack(values)).astype(np.int64)

    def describe(key: np.ndarray) -> str:
        line, point, index = key / 100
        return (
            f"{lines.names} have no position of {kind} {point:g} on line {line:g} with index {index:g}, which a "
            "relation record names: correct the files"
        )

    return match(keys(line, point, index), keys(points["line"], points["point"], points["index"]), describe)
