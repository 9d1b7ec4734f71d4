"""The options of a survey that several commands share: its files, and the conditioning of its traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from collops.extend.applications import CommonOptions, Must, OneOf, Positive, RecordedOnly, option

__all__ = ["CONDITIONING", "FILES", "SurveyOptions"]

FILES, CONDITIONING = "Survey and velocity", "Conditioning of the traces"
"""Headings of two groups of options."""


@dataclass(frozen=True, kw_only=True)
class SurveyOptions(CommonOptions):
    """The options of a survey that ``collops lsm``, ``fwi``, ``rtm`` and ``lsrtm`` share."""

    survey: Annotated[
        str | None,
        option(
            "Prestack survey, in SEG-Y, SU or Zarr; by default a synthetic survey.",
            FILES,
            metavar="FILE.sgy|FILE.su|URL|STORE",
        ),
    ] = None
    header: Annotated[
        list[str] | None,
        option(
            "First byte of a field of the trace headers that is not at its standard place, such as source_x=181 or "
            "source_x=181:f4 (i2, i4, i8, f4 or f8). May be repeated.",
            FILES,
            metavar="NAME=BYTE",
        ),
        RecordedOnly(),
    ] = None
    geometry: Annotated[
        list[str] | None,
        option(
            "File with the positions of sources and receivers: the S, R and X files of SPS, or P1/90. May be repeated.",
            FILES,
            metavar="FILE",
        ),
        RecordedOnly(),
    ] = None
    polarity: Annotated[
        str,
        option("Polarity of the traces: normal, or reversed (changes their sign).", CONDITIONING),
        OneOf("normal", "reversed"),
        RecordedOnly(),
    ] = "normal"
    interval: Annotated[
        float | None,
        option("Resample to this interval in ms, with an anti-alias filter.", CONDITIONING, metavar="MS"),
        Positive,
        RecordedOnly(),
    ] = None
    bandpass: Annotated[
        str | None,
        option(
            "Zero-phase band-pass filter in Hz, for the traces and the wavelet. One end may be missing.",
            CONDITIONING,
            metavar="LOW,HIGH",
        ),
        RecordedOnly(),
    ] = None
    offsets: Annotated[
        str | None,
        option("Range of offsets to use, m.", CONDITIONING, metavar="NEAR,FAR"),
        RecordedOnly(),
    ] = None
    bottom_mute: Annotated[
        str | None,
        option(
            "Mute samples after the time offset / SPEED + DELAY, or after picked times; as for --mute.",
            CONDITIONING,
            metavar="SPEED|SPEED,DELAY|FILE",
        ),
        RecordedOnly(),
    ] = None
    edit: Annotated[
        str | None,
        option(
            "Traces to leave out or to reverse: a text file with lines of field record, channel and 0 (leave out) or "
            "-1 (reverse).",
            CONDITIONING,
            metavar="FILE",
        ),
        RecordedOnly(),
    ] = None
    window: Annotated[
        str | None, option("Range of times to use, s.", CONDITIONING, metavar="FIRST,LAST"), RecordedOnly()
    ] = None
    segy_revision: Annotated[
        int,
        option("Revision of the SEG-Y files of the results: 1 or 2."),
        Must("be 1 or 2", lambda value: value in (1, 2)),
        RecordedOnly(),
    ] = 1
