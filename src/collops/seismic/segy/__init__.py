"""Read and write SEG-Y files with segyio: validate size and headers first, write the traces of all ranks."""

from __future__ import annotations

from collops.seismic.segy.file import OTHER_TRACES, SegyFile, is_segy, require_segyio
from collops.seismic.segy.layout import field_sizes
from collops.seismic.segy.times import (
    TIMING,
    delays,
    header_times,
    other_intervals,
    sample_interval,
    scaled,
    start_time,
    unused_times,
    uses_degrees,
)
from collops.seismic.segy.writing import Traces, fits_segy, segy_bytes, whole_interval, write_together

__all__ = [
    "OTHER_TRACES",
    "TIMING",
    "SegyFile",
    "Traces",
    "delays",
    "field_sizes",
    "fits_segy",
    "header_times",
    "is_segy",
    "other_intervals",
    "require_segyio",
    "sample_interval",
    "scaled",
    "segy_bytes",
    "start_time",
    "unused_times",
    "uses_degrees",
    "whole_interval",
    "write_together",
]
