"""Trace headers at other bytes, additional headers, files of Seismic Unix, and URLs: against segyio and struct."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collops.errors import InputError
from collops.seismic.lsm import Options
from collops.seismic.segy import SegyFile
from collops.seismic.survey import read
from collops.seismic.survey.segy import parse_places, read_headers, shot_traces
from collops.seismic.survey.velocity import load_velocity
from tests.seismic.files import REAL, small_survey, write_alone, write_traces
from tests.seismic.test_segy_revision_2 import centred, numbers, write

pytestmark = pytest.mark.serial
SHOTS, CHANNELS, SAMPLES = 2, 3, 50


def positions(path, **options) -> tuple[list[float], list[float]]:
    geometry = read(path, **options).geometry
    return geometry.sources[0].tolist(), [float(x) for receivers in geometry.receivers for x in receivers[0]]


@pytest.mark.parametrize("order", ["<", ">"])
def test_fields_at_other_bytes(tmp_path, order):
    # Sources at 7, 307 m, receivers at 10 m steps from 1000 m, where no standard field is: across two of them.
    path = tmp_path / "a.sgy"
    content = bytearray(write(path, centred(), order=order, H3501=0, major=0).read_bytes())
    for trace in range(6):
        start = 3600 + trace * (240 + 4 * SAMPLES)
        struct.pack_into(order + "i", content, start + 186, 700 + 30_000 * (trace // 3))
        struct.pack_into(order + "f", content, start + 202, 100_000.0 + 1000 * trace)
        struct.pack_into(order + "h", content, start + 216, -100)
    path.write_bytes(content)
    header = ["source_x=187:i4", "group_x=203:f4", "coordinate_scalar=217"]
    survey = read(path, header=header)
    assert survey.geometry.sources[0].tolist() == [7, 307]
    assert np.concatenate(survey.geometry.receivers, axis=1)[0].tolist() == [1000.0 + 10 * n for n in range(6)]
    assert f"trace headers: {', '.join(header)}" in survey.notes
    assert positions(path)[0] == [0, 100]
    # Numbers may be stored as floating-point numbers, and positions that are not finite are an error.
    for trace in range(6):
        struct.pack_into(order + "f", content, 3600 + trace * (240 + 4 * SAMPLES) + 202, 40.0 + trace // 2)
    path.write_bytes(content)
    assert read(path, header=["field_record=203:f4"]).headers.records.tolist() == [40, 41, 41, 42]  # type: ignore[union-attr]
    struct.pack_into(order + "f", content, 3600 + 202, np.nan)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"byte 203 .* not finite"):
        read(path, header=["group_x=203:f4"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sourcex=73", "must begin with one of field_record, channel"),
        ("source_x=0", "source_x=BYTE"),
        ("source_x", "source_x=BYTE"),
        ("source_x=73:f3", "type of i2, i4"),
        ("source_x=239", "headers of 240 bytes"),
        ("source_x=400:f8", "headers of 240 bytes"),
    ],
)
def test_places_that_do_not_exist_are_one_error(tmp_path, text, complaint):
    survey = str(small_survey(tmp_path / "a.sgy"))
    with pytest.raises(InputError, match=complaint):
        Options(survey=survey, velocity="1500", header=[text]).check()
        read(survey, header=[text])
    assert parse_places(["source_x=73", "group_x=81:i2"]) == {"SourceX": (73, "i4"), "GroupX": (81, "i2")}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("minor", [0, 1])
def test_lengths_of_additional_headers_replace_the_standard_ones(tmp_path, order, minor):
    extension = {97: 12.25, 113: -3.5, 121: 0.75, 33: 40.5, 57: 8.5}
    path = write(tmp_path / "a.sgy", centred(), order=order, minor=minor, more=2, extension=extension)
    headers = read_headers(path, 2)
    sea = headers.datum
    assert sea == 40.5 and headers.geometry.sources[1].tolist() == [49.0, 49.0]
    east, north, _ = headers.geometry.on_map(headers.line)[1]
    np.testing.assert_allclose([east, north], [[-3.5] * 6, [0.75] * 6], atol=1e-9)
    assert any("trace header extension 1 has group_elevation" in note for note in headers.notes)
    # Places in the second additional header, and a choice that overrides the extension.
    content = bytearray(path.read_bytes())
    for trace in range(6):
        struct.pack_into(order + "d", content, 3600 + trace * (720 + 4 * SAMPLES) + 480 + 8, 500.5 + trace)
    path.write_bytes(content)
    headers = read_headers(path, 2, header=["group_x=489:f8", "group_y=85"])
    found = headers.geometry.on_map(headers.line)[1]
    np.testing.assert_allclose(found[0], 500.5 + np.arange(6), atol=1e-9)


def su_file(path: Path, order: str) -> np.ndarray:
    """Write the traces of `write` as Seismic Unix, with a fraction in bytes that SEG-Y calls CDP X."""
    values = centred().astype(np.float32)
    content, parts = write(path.with_suffix(".sgy"), values, order=order, H3501=0, major=0).read_bytes(), []
    for trace in range(len(values)):
        header = bytearray(content[3600 + trace * (240 + 4 * SAMPLES) :][:240])
        struct.pack_into(order + "f", header, 180, 12.5)
        struct.pack_into(order + "f", header, 188, 0.25)
        parts += [bytes(header), values[trace].astype(order + "f4").tobytes()]
    path.write_bytes(b"".join(parts))
    return values


@pytest.mark.parametrize("order", ["<", ">"])
def test_seismic_unix_in_both_byte_orders(tmp_path, order):
    import segyio

    path = tmp_path / "a.su"
    values = su_file(path, order)
    survey = read(path)
    file = SegyFile.inspect(path)
    with segyio.su.open(str(path), ignore_geometry=True, endian="little" if order == "<" else "big") as other:
        np.testing.assert_array_equal(np.concatenate(survey.traces), other.trace.raw[:])
        names = ("FieldRecord", "TraceNumber", "GroupX", "SourceX", "TRACE_SAMPLE_INTERVAL")
        for name, found in file.headers(*names).items():
            assert found.tolist() == other.attributes(getattr(segyio.TraceField, name))[:].tolist()
    assert np.array_equal(np.concatenate(survey.traces), values) and survey.geometry.interval == 0.004
    assert not file.headers("CDP_X")["CDP_X"].any() and file.text() == ""
    # Results are SEG-Y of revision 1, without the bytes that mean something else there.
    assert survey.headers is not None
    write_alone(tmp_path / "b.sgy", shot_traces("RESULT", survey.headers, survey.shots, values))
    again = SegyFile.inspect(tmp_path / "b.sgy")
    assert again.headers("GroupX", "CDP_X")["GroupX"].tolist() == [50 * trace for trace in range(6)]
    assert not again.headers("CDP_X")["CDP_X"].any() and np.array_equal(again.read(np.arange(6)), values)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot be read as SU: 2639 bytes"):
        read(path)


def test_urls_are_read_with_fsspec(tmp_path):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    path = write(tmp_path / "a.sgy", centred(), more=1, texts=b"x".ljust(3200), h3505=1)
    fsspec.filesystem("memory").pipe("/lines/a.sgy", path.read_bytes())
    expected = read(path)
    for url in ("memory://lines/a.sgy", f"file://{path}"):
        survey = read(url)
        assert np.array_equal(np.concatenate(survey.traces), np.concatenate(expected.traces))
        assert positions(url) == positions(path)
    headers = {"INLINE_3D": np.array([7, 7]), "CDP_X": np.array([0, 200])}
    velocity = write_traces(tmp_path / "v.sgy", np.full((2, 9), 1800, np.float32), headers, 8000, "VELOCITY")
    fsspec.filesystem("memory").pipe("/lines/v.sgy", velocity.read_bytes())
    found, same = (load_velocity(f"time:{name}", 2, None) for name in ("memory://lines/v.sgy", velocity))
    assert np.array_equal(found.depth, same.depth) and np.array_equal(found.velocity, same.velocity)  # type: ignore[union-attr]
    Options(survey="memory://lines/a.sgy", velocity="time:memory://lines/v.sgy").check()
    with pytest.raises(InputError, match=r"memory://lines/b\.sgy does not exist"):
        read("memory://lines/b.sgy")
    with pytest.raises(InputError, match=r"needs the package fsspec, and its file system for this URL: .*nothing"):
        read("nothing://a.sgy")


def test_urls_without_fsspec_name_the_remedy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(InputError, match=r"s3://bucket/a.sgy needs the package fsspec.*collops\[remote\]"):
        read("s3://bucket/a.sgy")


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real data are not at {REAL}")
def test_a_recorded_line_as_seismic_unix(tmp_path):
    path = REAL / "viking_small.segy"
    file = SegyFile.inspect(path)
    traces = np.arange(file.traces)
    values = file.read(traces).astype(">f4")
    with open(tmp_path / "a.su", "wb") as su:
        for header, row in zip(file.raw_headers(traces), values, strict=True):
            header[114:116] = 600 >> 8, 600 & 255  # the file is a part of traces of 1501 samples
            su.write(header.tobytes() + row.tobytes())
    found = read(tmp_path / "a.su")
    expected = read(path)
    assert np.array_equal(np.stack(found.traces), np.stack(expected.traces))
    assert np.array_equal(found.geometry.sources, expected.geometry.sources)
    assert replace(found.geometry, sources=expected.geometry.sources).samples == 600 and numbers().shape == (6, 50)
