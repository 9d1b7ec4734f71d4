"""Make the SEG-Y files, whole and broken, that the tests read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collops.seismic.segy import Traces, writing
from collops.seismic.signals import ricker_shape
from collops.seismic.survey.geometry import Geometry
from collops.seismic.survey.segy import survey_traces

REAL = Path(__file__).parents[2].parent / "shared" / "data"
# A survey on an area: its corner on the map, the directions from inline to inline and along an inline, and its echo.
CORNER, ANGLE = np.array([431_000.0, 6_470_000.0]), np.radians(30)
INLINES, CROSSLINES = np.array([-np.sin(ANGLE), np.cos(ANGLE)]), np.array([np.cos(ANGLE), np.sin(ANGLE)])
SPEED, FREQUENCY, SAMPLES, INTERVAL = 2000.0, 25.0, 128, 0.004


def small_geometry(shots: int = 3, receivers: int = 5, samples: int = 40, *, towed: bool = False) -> Geometry:
    sources = np.stack([np.linspace(100, 300, shots), np.full(shots, 6.0)])
    spread = np.stack([np.linspace(0, 400, receivers), np.full(receivers, 2.5)])
    if towed:
        groups = [spread + np.array([[source - 100], [0]]) for source in sources[0]]
    else:
        groups = [spread] * shots
    return Geometry(sources, groups, samples, 0.004)


def random_traces(geometry: Geometry, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(r.shape[1], geometry.samples)).astype(np.float32) for r in geometry.receivers]


def write_alone(path: Path, traces: Traces, text: Sequence[str] = ()) -> None:
    """Write a file on this rank alone."""
    writing._create(path, traces, text)
    writing._fill(path, traces, traces.numbers, traces.values)


def write_survey(path: Path, geometry: Geometry, traces: list[np.ndarray], defaults: dict[str, str]) -> None:
    write_alone(path, *survey_traces(geometry, range(geometry.shots), traces, defaults))


def write_traces(path: Path, values: np.ndarray, headers: dict[str, np.ndarray], interval: int, title: str) -> Path:
    write_alone(path, Traces(title, values, np.arange(len(values)), interval, headers))
    return path


def small_survey(path: Path, **defaults: str) -> Path:
    geometry = small_geometry()
    write_survey(path, geometry, random_traces(geometry), defaults)
    return path


def stacked_volume(
    path: Path, volume: np.ndarray, *, first: tuple[int, int] = (100, 20), keep: Any = slice(None)
) -> Path:
    """Write a volume of shape (inlines, crosslines, samples) as SEG-Y, or only those traces that are to be kept."""
    inline, crossline = np.indices(volume.shape[:2])
    headers = {
        "INLINE_3D": (first[0] + 2 * inline).ravel()[keep],
        "CROSSLINE_3D": (first[1] + crossline).ravel()[keep],
        "DelayRecordingTime": np.full(inline.size, 8)[keep],
    }
    return write_traces(path, volume.reshape(-1, volume.shape[-1])[keep], headers, 4000, "STACK")


def set_header(path: Path, trace: int, byte: int, value: int, *, samples: int = 40, size: int = 2) -> None:
    """Overwrite one number of a trace header; `byte` counts from 1 as in the standard."""
    content = bytearray(path.read_bytes())
    start = 3600 + trace * (240 + 4 * samples) + byte - 1
    content[start : start + size] = value.to_bytes(size, "big", signed=True)
    path.write_bytes(content)


def set_binary(path: Path, byte: int, value: int) -> None:
    """Overwrite one 2-byte number of the binary header; `byte` counts from 1 as in the standard."""
    content = bytearray(path.read_bytes())
    content[byte - 1 : byte + 1] = value.to_bytes(2, "big")
    path.write_bytes(content)


def set_samples(path: Path, trace: int, value: float, *, samples: int = 40) -> None:
    """Overwrite all samples of one trace with one number."""
    content = bytearray(path.read_bytes())
    start = 3600 + trace * (240 + 4 * samples) + 240
    content[start : start + 4 * samples] = np.full(samples, value, ">f4").tobytes()
    path.write_bytes(content)


def on_map(y: Any, x: Any) -> np.ndarray:
    """Return easting and northing of points of a survey whose inlines begin at a corner and point 30 degrees north."""
    return np.stack([CORNER[axis] + INLINES[axis] * y + CROSSLINES[axis] * x for axis in (0, 1)])


def irregular_area(seed: int = 3) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return positions (y, x, z) of six sources and of the receivers of each, whose number and places differ."""
    rng = np.random.default_rng(seed)
    sources = rng.uniform([[0], [0], [5]], [[300], [400], [5]], (3, 6))
    receivers = [rng.uniform([[0], [0], [-20]], [[300], [400], [0]], (3, 30 + shot)) for shot in range(6)]
    return sources, receivers


def diffractor_file(path: Path, diffractor: np.ndarray, *, bins: bool = True) -> None:
    """Write with segyio the echo of a point at (y, x, z).

    Bins are 25 x 20 m, with inlines 100, 102, … and crosslines 7, 8, ….
    """
    import segyio

    sources, receivers = irregular_area()
    spec = segyio.spec()
    spec.format, spec.samples = 5, 4 * np.arange(SAMPLES)
    spec.tracecount = sum(each.shape[1] for each in receivers)
    field = segyio.TraceField
    with segyio.create(str(path), spec) as file:
        file.bin.update({segyio.BinField.Interval: 4000})
        trace = 0
        for shot, stations in enumerate(receivers):
            source = sources[:, shot]
            for channel, station in enumerate(stations.T):
                places = on_map(*np.stack([source, station, (source + station) / 2], axis=1)[:2])
                line, column = np.rint((source + station)[:2] / 2 / [25, 20]).astype(int)
                places[:, 2] = on_map(25 * line, 20 * column)
                (source_x, group_x, cdp_x), (source_y, group_y, cdp_y) = np.rint(100 * places).astype(int).tolist()
                file.header[trace] = {
                    field.FieldRecord: 50 + shot,
                    field.TraceNumber: channel + 1,
                    field.SourceX: source_x,
                    field.SourceY: source_y,
                    field.GroupX: group_x,
                    field.GroupY: group_y,
                    field.SourceGroupScalar: -100,
                    field.SourceDepth: 500,
                    field.ReceiverGroupElevation: int(np.rint(-100 * station[2])),
                    field.ElevationScalar: -100,
                    field.TRACE_SAMPLE_INTERVAL: 4000,
                    field.offset: int(np.rint(np.hypot(*(source - station)[:2]))),
                    field.CoordinateUnits: 1,
                    **(
                        {
                            field.INLINE_3D: int(100 + 2 * line),
                            field.CROSSLINE_3D: int(7 + column),
                            field.CDP_X: cdp_x,
                            field.CDP_Y: cdp_y,
                        }
                        if bins
                        else {}
                    ),
                }
                time = (np.linalg.norm(source - diffractor) + np.linalg.norm(station - diffractor)) / SPEED
                file.trace[trace] = ricker_shape(FREQUENCY * (INTERVAL * np.arange(SAMPLES) - time)).astype(np.float32)
                trace += 1


def velocity_volume(path: Path) -> None:
    """Write velocities 1500 + y + 2 x + 0.5 z at (y, x, z) below that area."""
    y, x = (axis.ravel() for axis in np.meshgrid(np.arange(0, 301, 50), np.arange(0, 401, 80), indexing="ij"))
    places = np.rint(10 * on_map(y, x)).astype(int)
    values = 1500 + y[:, None] + 2.0 * x[:, None] + 0.5 * 20 * np.arange(30)
    headers = {"INLINE_3D": y, "CDP_X": places[0], "CDP_Y": places[1], "SourceGroupScalar": np.full(len(x), -10)}
    write_traces(path, values.astype(np.float32), headers, 20_000, "VELOCITY")
