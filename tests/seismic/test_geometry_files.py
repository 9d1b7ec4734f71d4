"""SPS and P1/90 files: the survey is the same as with positions in the trace headers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic.lsm import Options
from collops.seismic.survey import Geometry, Statics, read
from tests.seismic.files import set_header, write_traces

SHOTS, CHANNELS, SAMPLES = 4, 6, 30
EAST, NORTH = 431_000.0, 6_470_000.0


def line(path: Path, *, positions: bool) -> Path:
    """Write shots at 50 m steps with a spread that moves by one receiver (25 m) from shot to shot."""
    shot, channel = (index.ravel() for index in np.indices((SHOTS, CHANNELS)))
    receiver = shot + channel
    headers = {"FieldRecord": 100 + shot, "TraceNumber": 1 + channel, "EnergySourcePoint": 1 + 2 * shot}
    if positions:
        headers |= {
            **{"SourceX": 10 * EAST + 500 * shot, "SourceY": 10 * NORTH + 0 * shot},
            **{"GroupX": 10 * EAST + 250 * receiver, "GroupY": 10 * NORTH + 0 * shot},
            **{"SourceGroupScalar": np.full(len(shot), -10), "ElevationScalar": np.full(len(shot), -10)},
            **{"SourceSurfaceElevation": 3000 + 10 * shot, "SourceDepth": 40 + 0 * shot},
            **{"ReceiverGroupElevation": 2900 + 5 * receiver},
        }
    values = np.random.default_rng(0).normal(size=(len(shot), SAMPLES)).astype(np.float32)
    return write_traces(path, values, headers, 4000, "LINE")


def point(kind: str, number: float, x: float, depth: float, elevation: float, static: int, revision: str) -> str:
    if revision == "2.1":
        start = f"{kind}{7:10.2f}{number:10.2f}  1P1{static:4d}{depth:4.1f}{0:4d}{2:2d}{0:6.1f}"
    else:
        start = f"{kind}{'7':>16}{number:8.0f}1P1{static:4d}{depth:4.1f}{0:4d}{2:2d}{0:4.1f}"
    return f"{start}{EAST + x:9.1f}{NORTH:10.1f}{elevation:6.1f}123120000"


def relation(shot: int, first: int, last: int, revision: str) -> str:
    """Relate some channels; receiver numbers rise by one, or by two where the channel increment is two."""
    receivers = 201 + shot + first - 1, 201 + shot + last - 1
    if revision == "2.1":
        return (
            f"X     1{100 + shot:8d}11{7:10.2f}{1 + 2 * shot:10.2f}1{first:5d}{last:5d}1{7:10.2f}"
            f"{receivers[0]:10.2f}{receivers[1]:10.2f}1"
        )
    return (
        f"X     1{100 + shot:4d}11{'7':>16}{1 + 2 * shot:8d}1{first:4d}{last:4d}1{'7':>16}"
        f"{receivers[0]:8d}{receivers[1]:8d}1"
    )


def sps(folder: Path, revision: str = "2.1") -> list[str]:
    version = {"2.1": "SPS V2.1,25.04.06", "1": "SPS001,10.01.95"}[revision]
    header = f"H00SPS format version num.     {version}"
    lines = {
        "s": [point("S", 1 + 2 * shot, 50 * shot, 4.0, 300 + shot, 3 * shot, revision) for shot in range(SHOTS)],
        "r": [point("R", 201 + n, 25 * n, 0.0, 290 + n / 2, -n, revision) for n in range(SHOTS + CHANNELS - 1)],
        "x": [relation(shot, *ends, revision) for shot in range(SHOTS) for ends in ((1, 2), (3, CHANNELS))],
    }
    for name, records in lines.items():
        (folder / f"line.{name}01").write_text("\n".join([header, "H26 columns", *records]) + "\n")
    return [str(folder / f"line.{name}01") for name in lines]


def p190(path: Path, streamers: int = 1, points: int = 1) -> str:
    """Write coordinate and receiver records; with several streamers, each numbers its groups from 1."""
    records = ["H0100SURVEY AREA                 NORTH", "H2000GRID UNITS                  1METRES"]
    for shot in range(SHOTS):
        for kind, x in (("V", -100), ("S", 50 * shot)):
            start = f"{kind}{'LINE7':12}   111{1 + points * shot:6d}{'':10}{'':11}"
            records.append(f"{start}{EAST + x:9.1f}{NORTH:9.1f}{80:6.1f}123120000 ")
        size = CHANNELS // streamers
        for streamer in range(streamers):
            channels = range(streamer * size, streamer * size + size)
            groups = [
                f"{channel % size + 1:4d}{EAST + 25 * (shot + channel):9.1f}{NORTH:9.1f}{7.5:4.1f}"
                for channel in channels
            ]
            records += [f"R{''.join(groups[start : start + 3]):78}{streamer + 1}" for start in range(0, len(groups), 3)]
    path.write_text("\n".join([*records, "EOF"]) + "\n")
    return str(path)


def same(found: Geometry, expected: Geometry) -> None:
    np.testing.assert_allclose(found.sources, expected.sources, atol=1e-6)
    for one, other in zip(found.receivers, expected.receivers, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("revision", ["2.1", "1"])
def test_sps_gives_the_positions_of_the_headers(comm, folder, revision):
    if comm.rank == 0:
        line(folder / "a.sgy", positions=True)
        line(folder / "b.sgy", positions=False)
        sps(folder, revision)
    comm.barrier()
    files = [str(folder / f"line.{name}01") for name in "srx"]
    expected, found = read(folder / "a.sgy", comm), read(folder / "b.sgy", comm, geometry=files)
    same(found.geometry, expected.geometry)
    assert found.headers is not None and expected.headers is not None
    assert found.headers.datum == expected.headers.datum == pytest.approx(299.0)
    assert f"(SPS {revision}): 4 sources and 9 receivers" in found.notes[0]
    corrected = read(folder / "b.sgy", comm, geometry=files, statics=Statics("headers"))
    assert corrected.headers is not None and corrected.headers.placement is not None
    shifts = np.concatenate(corrected.headers.placement.begins)
    shot, channel = np.divmod(np.arange(SHOTS * CHANNELS), CHANNELS)
    np.testing.assert_allclose(shifts, (3 * shot - (shot + channel)) / 1e3, atol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("streamers", [1, 2])
@pytest.mark.parametrize("points", [2, 1])
def test_p190_gives_the_positions_of_the_headers(tmp_path, streamers, points):
    expected = read(line(tmp_path / "a.sgy", positions=True)).geometry
    path = line(tmp_path / "b.sgy", positions=False)
    file = p190(tmp_path / "line.p190", streamers, points)
    header = [] if points == 2 else ["source_point=233"]
    if points == 1:  # points that the headers have at another byte
        for trace in range(SHOTS * CHANNELS):
            set_header(path, trace, 233, 1 + trace // CHANNELS, samples=SAMPLES, size=4)
    found = read(path, geometry=[file], header=header)
    np.testing.assert_allclose(found.geometry.sources[0], expected.sources[0], atol=1e-6)
    for one, other in zip(found.geometry.receivers, expected.receivers, strict=True):
        np.testing.assert_allclose(one[0], other[0], atol=1e-6)
        assert one[1].tolist() == [7.5] * CHANNELS
    assert "(P1/90): 4 shots, by source point and channel" in " ".join(found.notes)


@pytest.mark.serial
def test_bad_geometry_files_are_one_error(tmp_path):
    path, files = line(tmp_path / "b.sgy", positions=False), sps(tmp_path)
    text = {name: Path(name).read_text() for name in files}

    def complains(words: str, changes: dict[int, str], chosen: list[str] = files) -> None:
        for number, name in enumerate(files):
            Path(name).write_text(changes.get(number, text[name]))
        with pytest.raises(InputError, match=words):
            read(path, geometry=chosen)

    sources, receivers, relations = (text[name].splitlines() for name in files)
    complains(r"no relation for field record 103, channel 3", {2: "\n".join(relations[:-1])})
    complains(r"no position of source 7 on line 7", {0: "\n".join(sources[:-1])})
    complains(r"no position of receiver 209 on line 7", {1: "\n".join(receivers[:-1])})
    complains(r"have no source \(S\) records", {}, files[1:])
    complains(r"line 3 of .*columns 47 to 55", {0: text[files[0]].replace("431000.0", "east    ", 1)})
    complains(r"positions in feet", {0: "H20Description of grid units   FEET\n" + text[files[0]]})
    complains(r"receivers before any source", {}, [files[1]])
    complains(r"absent cannot be read", {}, [str(tmp_path / "absent")])
    (tmp_path / "empty.p190").write_text("H0100\n")
    complains(r"must have positions of sources", {}, [str(tmp_path / "empty.p190")])
    with pytest.raises(InputError, match="--geometry is for recorded data"):
        Options(geometry=files).check()
