"""Make the SEG-Y files, whole and broken, that the tests read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from collops.apps import segy
from collops.apps.segy import Traces
from collops.apps.survey.geometry import Geometry
from collops.apps.survey.segy import survey_traces

REAL = Path(__file__).parents[2].parent / "shared" / "data"


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
    segy._create(path, traces, text)
    segy._fill(path, traces, traces.places, traces.values)


def write_survey(path: Path, geometry: Geometry, traces: list[np.ndarray], defaults: dict[str, str]) -> None:
    write_alone(path, *survey_traces(geometry, range(geometry.shots), traces, defaults))


def write_traces(path: Path, values: np.ndarray, headers: dict[str, np.ndarray], interval: int, title: str) -> Path:
    write_alone(path, Traces(title, values, np.arange(len(values)), interval, headers))
    return path


def small_survey(path: Path, **defaults: str) -> Path:
    geometry = small_geometry()
    write_survey(path, geometry, random_traces(geometry), defaults)
    return path


def stacked_volume(path: Path, volume: np.ndarray, *, first: tuple[int, int] = (100, 20), keep=slice(None)) -> Path:
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
