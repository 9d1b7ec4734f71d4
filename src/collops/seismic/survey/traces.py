"""The headers of the traces of a file in any format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TraceHeaders:
    """Headers of the live traces of a file, in metres; pairs have the shape ``(2, traces)``."""

    numbers: np.ndarray  # of the traces in the file, from 0, increasing
    source: np.ndarray  # easting and northing
    group: np.ndarray  # the same of the receiver
    depth: np.ndarray  # of source and receiver below sea level
    surface: np.ndarray  # elevation of the ground at the source
    offset: np.ndarray  # 0 where it is unknown
    shot: np.ndarray  # shape (keys, traces): the traces of a shot have the same keys
    record: np.ndarray | None  # field record number; without it, shots are numbered
    channel: np.ndarray | None  # without it, the traces of each shot are numbered
    bins: np.ndarray  # inline and crossline number, 0 where they are unknown
    cdp: np.ndarray  # easting and northing of the midpoint or the bin, 0 where they are unknown
    begin: np.ndarray  # time of the first sample, s
    count: np.ndarray  # number of recorded samples
    # corrections of source and receiver, and total correction, shape (3, traces), s; None if the format has none
    statics: np.ndarray | None = None
