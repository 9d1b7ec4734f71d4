"""Positions of sources and receivers from geometry files, SPS or P1/90, joined to traces by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from collops.errors import InputError
from collops.seismic.streams import Source, located, text_of


class TraceNumbers(NamedTuple):
    """The numbers in the headers of traces that geometry files refer to, int64, one per trace."""

    record: np.ndarray  # field record
    channel: np.ndarray
    point: np.ndarray  # energy source point


class Stations(NamedTuple):
    """Source and receiver of each trace, in metres; pairs have the shape ``(2, traces)``."""

    source: np.ndarray  # easting and northing
    group: np.ndarray
    depth: np.ndarray  # of source and receiver below sea level; NaN where the file has none
    surface: np.ndarray  # elevation of the ground at the source, shape (traces,); NaN where the file has none
    statics: np.ndarray | None  # corrections of source and receiver, s; None if the file has none


class Lines(NamedTuple):
    """The records of geometry files."""

    names: str  # of the files, for messages
    records: list[tuple[str, str]]  # the place of each record, for messages, and its text


def read_lines(files: Sequence[Source]) -> Lines:
    """Return the lines of text files, in the order of the files; raise `InputError` for those that cannot be read."""
    records = []
    paths = list(map(located, files))
    for path in paths:
        try:
            text = text_of(path, "latin-1")
        except OSError as problem:
            raise InputError(
                f"{path} cannot be read ({problem.strerror or problem}): pass SPS or P1/90 files"
            ) from None
        for number, line in enumerate(text.splitlines(), start=1):
            if "FEET" in line.upper() and line.startswith("H20"):
                raise InputError(f"{path} has positions in feet (record H20): convert them to metres")
            records.append((f"line {number} of {path}", line.ljust(80)))
    return Lines(", ".join(map(str, paths)), records)


def number_in(record: tuple[str, str], first: int, last: int, default: float | None = None) -> float:
    """Return the number in some columns of a record, counted from 1, or the default if they are blank."""
    place, line = record
    text = line[first - 1 : last].strip()
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise InputError(f"{place} must have a number in columns {first} to {last}, not {text!r}: correct the file")
    return value


def match(wanted: np.ndarray, known: np.ndarray, describe: Callable[[np.ndarray], str]) -> np.ndarray:
    """Return the number of the last known column with the numbers of each wanted column; shapes ``(keys, columns)``.

    Raises `InputError` with the description of the first wanted column that is not known.
    """
    keys_wanted, keys_known, found = np.zeros(wanted.shape[1], np.int64), np.zeros(known.shape[1], np.int64), True
    for row, column in zip(wanted, known, strict=True):
        values, codes = np.unique(column, return_inverse=True)
        places = np.searchsorted(values, row).clip(0, max(len(values) - 1, 0))
        found = found & (values[places] == row) if len(values) else np.zeros(len(row), bool)
        keys_known = keys_known * len(values) + codes
        keys_wanted = keys_wanted * len(values) + places
    order = np.argsort(keys_known, kind="stable")
    last = np.searchsorted(keys_known[order], keys_wanted, side="right") - 1
    index = order[last.clip(0)] if len(order) else np.zeros(len(keys_wanted), np.int64)
    found = found & (keys_known[index] == keys_wanted) if len(order) else np.zeros(len(keys_wanted), bool)
    if not found.all():
        raise InputError(describe(wanted[:, int(np.argmin(found))]))
    return index
