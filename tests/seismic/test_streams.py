"""Files that are open objects or URLs hold the same values as the files that they were made from."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from collops.apps.urls import Url
from collops.errors import InputError
from collops.seismic.lsm import Options
from collops.seismic.segy import SegyFile
from collops.seismic.streams import Stream
from collops.seismic.survey import Grid, Statics, read
from collops.seismic.survey.navigation import read_lines
from collops.seismic.volume.files import check_array_file, open_volume, read_values
from tests.seismic.files import small_survey, stacked_volume

pytestmark = pytest.mark.serial


class Bare:
    """A file object with few methods, which returns fewer bytes than it is asked for."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def read(self, size: int) -> bytes:
        return self._file.read(min(size, 1000))

    def seek(self, position: int, whence: int = 0) -> int:
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()


def in_memory(*paths: Path) -> str:
    """Copy files and folders to fsspec's file system in memory; return its folder."""
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    for path in paths:
        for file in [path] if path.is_file() else filter(Path.is_file, path.rglob("*")):
            memory.pipe(f"/streams/{file.relative_to(path.parent)}", file.read_bytes())
    return "memory://streams"


def assert_same(survey, expected):
    assert np.array_equal(survey.geometry.sources, expected.geometry.sources)
    assert all(map(np.array_equal, survey.geometry.receivers, expected.geometry.receivers))
    assert all(map(np.array_equal, survey.traces, expected.traces))


@pytest.mark.parametrize("kind", [io.BytesIO, Bare])
def test_open_files_hold_the_same_survey(tmp_path, kind):
    path = small_survey(tmp_path / "a.sgy")
    expected = read(path)
    assert_same(read(kind(path.read_bytes())), expected)
    # Seismic Unix: the name tells it.
    su = b"".join(
        header.tobytes() + row.astype(">f4").tobytes()
        for header, row in zip(
            SegyFile.inspect(path).raw_headers(np.arange(15)), np.concatenate(expected.traces), strict=True
        )
    )
    file = kind(su)
    file.name = "line.su"
    assert_same(read(file), expected)
    with open(path, "rb") as opened:
        survey = read(opened)
        assert_same(survey, expected)
        assert not opened.closed


def test_statics_velocities_and_positions_from_open_files(tmp_path):
    path = small_survey(tmp_path / "a.sgy")
    table, profile = b"1 10\n2 -4\n", b"0 1500\n100 1700\n"
    (tmp_path / "t.txt").write_bytes(table)
    (tmp_path / "v.txt").write_bytes(profile)
    survey, expected = (read(path, statics=Statics(times)) for times in (io.BytesIO(table), tmp_path / "t.txt"))
    assert_same(survey, expected)
    assert "corrections from <BytesIO>" in next(note for note in survey.notes if note.startswith("statics"))
    for kind in ("depth", "time", "rms"):
        model, same = survey.model((kind, io.BytesIO(profile))), survey.model(f"{kind}:{tmp_path / 'v.txt'}")
        assert np.array_equal(model.velocity, same.velocity) and np.array_equal(model.depth, same.depth)  # type: ignore[union-attr]
    assert survey.model(io.BytesIO(profile)).velocity.tolist() == [[1500, 1700]]  # type: ignore[union-attr]
    assert read_lines([io.BytesIO(b"H00 a\nS1")]).records == [
        ("line 1 of <BytesIO>", "H00 a".ljust(80)),
        ("line 2 of <BytesIO>", "S1".ljust(80)),
    ]
    content = io.BytesIO()
    np.save(content, np.ones((4, 4)))
    with pytest.raises(InputError, match=r"numpy\.load"):
        survey.model(content)
    with pytest.raises(InputError, match="must begin with depth, time, rms"):
        survey.model(("speed", io.BytesIO(profile)))


@pytest.mark.parametrize("kind", ["text", "closed", "number", "pipe"])
def test_other_objects_are_one_error(tmp_path, kind):
    closed = io.BytesIO(b"x")
    closed.close()
    unseekable = io.BufferedReader(io.BytesIO(b"x"))
    unseekable.seek = None  # type: ignore[method-assign]
    file = {"text": io.StringIO("x"), "closed": closed, "number": 3, "pipe": unseekable}[kind]
    with pytest.raises(InputError, match="pass a path, a URL, or a binary file object that is open"):
        read(file)  # type: ignore[arg-type]


def test_a_truncated_object_is_one_error(tmp_path):
    content = small_survey(tmp_path / "a.sgy").read_bytes()
    with pytest.raises(InputError, match="<BytesIO> is too short for SEG-Y"):
        read(io.BytesIO(content[:3599]))
    file = io.BytesIO(content)
    survey = read(file)
    file.truncate(5000)
    with pytest.raises(InputError, match="<BytesIO> has become shorter"):
        _ = survey.traces


@pytest.mark.parametrize("where", ["memory", "local"])
def test_zarr_and_texts_at_urls(tmp_path, where):
    expected = read(small_survey(tmp_path / "a.sgy"))
    store = expected.save(tmp_path / "s.zarr", Grid(11, 11, 10.0, 10.0), velocity="1500")
    picks, wavelet = tmp_path / "picks.txt", tmp_path / "w.npy"
    picks.write_text("0 0.01\n400 0.02\n")
    np.save(wavelet, np.array([0.0, 1.0, 0.0]))
    folder = in_memory(store, picks, wavelet) if where == "memory" else f"file://{tmp_path}"
    assert_same(read(f"{folder}/s.zarr"), expected)
    assert_same(read(f"{folder}/s.zarr/data"), expected)
    options = Options(
        survey=f"{folder}/s.zarr",
        velocity=f"rms:{folder}/picks.txt",
        mute=f"{folder}/picks.txt",
        statics=f"{folder}/picks.txt",
        wavelet=f"{folder}/w.npy",
    )
    options.check()
    assert options.conditioning().mute.picks.tolist() == [[0, 0.01], [400, 0.02]]  # type: ignore[union-attr]
    with pytest.raises(InputError, match=r"t\.zarr does not exist"):
        read(f"{folder}/t.zarr")
    with pytest.raises(InputError, match=r"none\.txt does not exist"):
        Options(survey=f"{folder}/s.zarr", velocity=f"depth:{folder}/none.txt").check()
    with pytest.raises(InputError, match=r"none\.txt cannot be read"):
        read_lines([f"{folder}/none.txt"])


def test_a_zarr_store_at_a_url_without_one_of_its_files_is_an_error(tmp_path):
    store = read(small_survey(tmp_path / "a.sgy")).save(tmp_path / "s.zarr", Grid(11, 11, 10.0, 10.0))
    next((store / "data").glob("c.*")).unlink()
    with pytest.raises(InputError, match="data has lost files with values"):
        read(f"file://{tmp_path}/s.zarr")


def test_volumes_at_urls(tmp_path):
    zarr = pytest.importorskip("zarr")
    values = np.random.default_rng(0).normal(size=(4, 3, 20)).astype(np.float32)
    group = zarr.open_group(tmp_path / "v.zarr", mode="w", zarr_format=2)
    options = {"chunks": (2, 3, 20), "compressors": zarr.codecs.blosc.numcodecs.Blosc()}
    group.create_array("amplitude", shape=values.shape, dtype="f4", **options)[:] = values
    np.save(tmp_path / "v.npy", values)
    volume = stacked_volume(tmp_path / "v.sgy", values)
    folder = in_memory(tmp_path / "v.zarr", tmp_path / "v.npy", volume)
    for name in ("v.zarr", "v.npy", "v.sgy"):
        check_array_file(f"{folder}/{name}", ())
        reader = open_volume(Url(f"{folder}/{name}"), 0.004, ())
        assert np.array_equal(read_values(reader, slice(0, 4), name)[0], values)
    # A chunk that Blosc would read beyond its end.
    chunk = tmp_path / "v.zarr" / "amplitude" / "0.0.0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    reader = open_volume(Url(f"{in_memory(tmp_path / 'v.zarr')}/v.zarr"), 0.004, ())
    with pytest.raises(InputError, match="bytes, but a header for"):
        read_values(reader, slice(0, 4), "v.zarr")


def test_parts_of_urls():
    url = Url("zip://lines/a.sgy::s3://bucket/b.zip")
    assert (url.name, url.suffix, str(url.parent)) == ("a.sgy", ".sgy", "zip://lines::s3://bucket/b.zip")
    assert str(Url("https://host/a.zarr?key=1") / "data") == "https://host/a.zarr/data?key=1"
    assert Stream(io.BytesIO(b"\x00" * 9)).suffix == ".sgy" and Stream(io.BytesIO(b"1 2\n")).suffix == ".txt"
