"""Static corrections, delays and lengths that differ between traces: against shifts that the tests compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collops.apps.recipe import run_job
from collops.errors import InputError
from collops.seismic.lsm import Options, run
from collops.seismic.lsm.setup import recorded
from collops.seismic.signals import moved, ricker_shape
from collops.seismic.survey import Grid, Statics, Survey, read
from collops.seismic.survey.statics import parse_datum
from tests.apps.jobs import Listener
from tests.seismic.files import small_geometry, write_traces
from tests.seismic.test_segy_results import raw

SHOTS, CHANNELS, SAMPLES = 3, 5, 60
ELEVATION = np.array([0.0, 40.0, 20.0, 100.0, 60.0])  # of the receivers, m
TIMES = 0.004 * np.arange(SAMPLES)


def pulse(delay: np.ndarray | float = 0.0) -> np.ndarray:
    """Return traces with a Ricker wavelet of 25 Hz at 0.1 s, delayed by seconds."""
    return ricker_shape(25 * (TIMES - 0.1 - np.reshape(delay, (-1, 1)))).astype(np.float32)


def line(path: Path, traces: np.ndarray, **headers: Any) -> Path:
    shot, channel = (index.ravel() for index in np.indices((SHOTS, CHANNELS)))
    standard = {
        "FieldRecord": 10 + shot,
        "TraceNumber": 1 + channel,
        "SourceX": 100 * shot,
        "GroupX": 50 * channel,
        "ReceiverGroupElevation": ELEVATION[channel],
        "SourceSurfaceElevation": 30 + 10 * shot,
        "SourceDepth": 5 + 0 * shot,
    }
    return write_traces(path, traces, standard | headers, 4000, "LINE")


def whole(comm: Any, folder: Path, traces: np.ndarray, statics: Statics | None = None, **headers: Any) -> Any:
    """Return a survey, and its traces on every rank."""
    if comm.rank == 0:
        line(folder / "a.sgy", traces, **headers)
    comm.barrier()
    survey = read(folder / "a.sgy", comm, statics=statics)
    own = np.concatenate([np.empty((0, survey.geometry.samples), np.float32), *survey.traces])
    return survey, comm.allgatherv(own, [CHANNELS * len(share) for share in survey.shares])


@pytest.mark.serial
def test_traces_are_moved_by_whole_samples_exactly_and_by_fractions_as_delayed_signals():
    values = pulse(np.zeros(3))
    found = moved(values, np.array([2.0, -3.0, 0.0]), SAMPLES + 4)
    assert np.array_equal(found[0, 2 : SAMPLES + 2], values[0]) and not found[0, :2].any()
    assert np.array_equal(found[1, : SAMPLES - 3], values[1, 3:]) and not found[1, SAMPLES - 3 :].any()
    np.testing.assert_allclose(
        moved(values, np.array([0.3, -0.6, 5.25]), SAMPLES), pulse(np.array([0.3, -0.6, 5.25]) * 0.004), atol=1e-5
    )
    assert moved(values[:0], np.empty(0), 7).shape == (0, 7)


def test_corrections_from_headers_shift_the_traces(comm, folder):
    source, group = np.repeat([4, -9, 2], 5), np.tile([-3, 0, 8, 1, -6], 3)
    fields = {"SourceStaticCorrection": source, "GroupStaticCorrection": group, "ScalarTraceHeader": np.full(15, -10)}
    survey, found = whole(comm, folder, pulse(np.zeros(15)), Statics("headers"), **fields)
    geometry, shifts = survey.geometry, (source + group) / 1e4
    assert geometry.start == -0.004 and geometry.samples == SAMPLES + 2
    np.testing.assert_allclose(found[:, 1:-1], pulse(shifts), atol=1e-5)
    (note,) = survey.headers.statics
    assert note in survey.notes and not any("not applied" in each for each in survey.notes)
    words = (
        f"{np.count_nonzero(shifts)} of 15 traces shifted by -1.5 to 1.2 ms, median {1e3 * np.median(shifts):.4g} ms"
    )
    assert "bytes 99 to 102" in note and words in note
    # A file of revision 0 does not define the scalar.
    if comm.rank == 0:
        content = bytearray((folder / "a.sgy").read_bytes())
        content[3500:3502] = b"\0\0"
        (folder / "b.sgy").write_bytes(content)
    comm.barrier()
    assert "-15 to 12 ms" in read(folder / "b.sgy", comm, statics=Statics("headers")).notes[0]


@pytest.mark.serial
def test_total_corrections_are_applied_or_undone_and_a_second_time_is_doubted(tmp_path):
    total = np.tile([8, -4, 0, 12, 4], 3)
    path = line(tmp_path / "a.sgy", pulse(total / 1e3), TotalStaticApplied=total, SourceStaticCorrection=total)
    undone = read(path, statics=Statics("undo"))
    assert undone.geometry.start == -0.012
    np.testing.assert_allclose(
        np.concatenate(undone.traces)[:, 3 : 3 + SAMPLES - 3], pulse(np.zeros(15))[:, :-3], atol=1e-6
    )
    assert "-12 to 4 ms" in undone.headers.statics[0] and not undone.warnings  # type: ignore[union-attr]
    again = read(path, statics=Statics("total"))
    np.testing.assert_allclose(np.concatenate(again.traces)[:, 1:-3], pulse(2 * total / 1e3), atol=1e-6)
    (doubt,) = read(path, statics=Statics("headers")).warnings
    assert "applied already" in doubt
    (note,) = [each for each in read(path).notes if "total static" in each]
    assert "not applied" in note


def test_corrections_from_a_table_add_up(comm, folder):
    table = folder / "statics.txt"
    if comm.rank == 0:
        table.write_text("# record, channel, ms\n10, 2, 4\n10, 2, 8\n12, 5, -4\n")
    comm.barrier()
    _, found = whole(comm, folder, pulse(np.zeros(15)), Statics(table))
    expected = np.zeros(15)
    expected[[1, 14]] = 0.012, -0.004
    np.testing.assert_array_equal(
        found[:, 1:-3], pulse(np.zeros(15))[:1] * 0 + moved(pulse(np.zeros(15)), expected / 0.004, SAMPLES)
    )
    if comm.rank == 0:
        table.write_text("11 20\n")
    comm.barrier()
    _, found = whole(comm, folder, pulse(np.zeros(15)), Statics(table))
    assert found[5:10].argmax(axis=1).tolist() == [30] * 5 and found[0].argmax() == 25
    if comm.rank == 0:
        table.write_text("10 9 1\n")
    comm.barrier()
    with pytest.raises(InputError, match="field record 10, channel 9, which is not in the survey"):
        read(folder / "a.sgy", comm, statics=Statics(table))


def test_stations_move_to_a_flat_datum(comm, folder):
    survey, found = whole(comm, folder, pulse(np.zeros(15)), Statics(datum=200.0, velocity=2500.0))
    shot, channel = np.divmod(np.arange(15), CHANNELS)
    shifts = ((200 - (25 + 10 * shot)) + (200 - ELEVATION[channel])) / 2500
    geometry = survey.geometry
    times = geometry.times - 0.1 - shifts[:, None]
    recorded = (geometry.times > shifts[:, None] + 1e-3) & (geometry.times < shifts[:, None] + TIMES[-1])
    np.testing.assert_allclose(found[recorded], ricker_shape(25 * times)[recorded], atol=1e-5)
    assert survey.headers.datum == 200 and not geometry.sources[1].any() and not geometry.receivers[2][1].any()
    low, high = 1e3 * shifts.min(), 1e3 * shifts.max()
    assert f"{low:.4g} to {high:.4g} ms" in survey.headers.statics[0]


@pytest.mark.serial
def test_a_floating_datum_is_the_mean_elevation_of_near_stations(tmp_path):
    path = line(tmp_path / "a.sgy", pulse(np.zeros(15)))
    survey = read(path, statics=Statics(datum=("floating", 100.0), velocity=1000.0))
    # Sources at 0, 100 and 200 m share their positions with receivers: their ground is the mean of both.
    ground = np.array([(30 * 5 + 0 * 3) / 8, 40, (40 * 5 + 20 * 3) / 8, 100, (50 * 5 + 60 * 3) / 8])
    x = 50.0 * np.arange(5)
    floating = np.array([ground[np.abs(x - each) <= 50].mean() for each in x])
    geometry, headers = survey.geometry, survey.headers
    assert headers is not None and headers.placement is not None
    np.testing.assert_allclose(headers.datum - geometry.receivers[0][1], floating)
    np.testing.assert_allclose(headers.datum - geometry.sources[1], floating[[0, 2, 4]])
    expected = (floating - ELEVATION)[None] + (floating[[0, 2, 4]] - [25, 35, 45])[:, None]
    np.testing.assert_allclose(np.stack(headers.placement.begins), expected / 1000, atol=1e-12)


def test_mixed_delays_and_lengths_keep_their_times_and_their_gaps_are_not_data(comm, folder):
    delay = np.tile([0, 8, 0, 16, 4], 3)
    count = np.tile([SAMPLES, SAMPLES, SAMPLES - 10, SAMPLES, SAMPLES], 3)
    padded = np.where(np.arange(SAMPLES) < count[:, None], pulse(-delay / 1e3), 0)
    fields = {"DelayRecordingTime": delay, "TRACE_SAMPLE_COUNT": count}
    if comm.rank == 0:
        line(folder / "a.sgy", padded, **{"DelayRecordingTime": delay})
        content = bytearray((folder / "a.sgy").read_bytes())
        for trace, number in enumerate(count):
            start = 3600 + trace * (240 + 4 * SAMPLES) + 114
            content[start : start + 2] = int(number).to_bytes(2, "big")
        (folder / "a.sgy").write_bytes(content)
    comm.barrier()
    assert fields
    options = Options(survey=str(folder / "a.sgy"), velocity="1500", mute="none", outliers=0.0, frequency=25.0)
    problem = recorded(options, comm)
    geometry = problem.survey.geometry
    assert geometry.samples == SAMPLES + 4 and any("3 of 15 traces have fewer" in each for each in problem.survey.notes)
    begins, ends = delay // 4, delay // 4 + count
    inside = (np.arange(SAMPLES + 4) >= begins[:, None]) & (np.arange(SAMPLES + 4) < ends[:, None])
    times = 0.004 * np.arange(SAMPLES + 4)
    for shot, each in zip(problem.survey.shots, problem.conditioned or (), strict=True):
        rows = slice(CHANNELS * shot, CHANNELS * shot + CHANNELS)
        np.testing.assert_array_equal(each.weights, inside[rows])
        np.testing.assert_allclose(each.traces, np.where(inside[rows], ricker_shape(25 * (times - 0.1)), 0), atol=1e-6)


def test_results_have_the_times_of_the_file(comm, folder):
    delay, static = np.tile([0, 8, 0, 16, 4], 3), np.repeat([6, -14, 3], 5)
    values = pulse((static + np.arange(15)) / 1e3)
    if comm.rank == 0:
        line(folder / "a.sgy", values, DelayRecordingTime=delay, SourceStaticCorrection=static)
    comm.barrier()
    options = {
        "velocity": "1500",
        "mute": "none",
        "outliers": 0.0,
        "frequency": 25.0,
        "iterations": 2,
        "nx": 6,
        "nz": 6,
    }
    run_job(
        run,
        Options(survey=str(folder / "a.sgy"), statics="headers", out=str(folder / "o"), engine="numpy", **options),
        comm,
        Listener(),
    )  # type: ignore[arg-type]
    (headers, predicted, *_), (_, residual, *_) = (
        raw(folder / "o" / f"{name}.sgy") for name in ("predicted", "residual")
    )
    assert headers["delay"].tolist() == delay.tolist() and predicted.shape == values.shape
    np.testing.assert_allclose((predicted + residual)[:, 2:-2], values[:, 2:-2], atol=2e-4)


@pytest.mark.serial
@pytest.mark.parametrize("code", [5, 3])
def test_traces_of_different_lengths_follow_each_other(tmp_path, code):
    from tests.seismic.test_segy_revision_2 import write

    longest = np.arange(50.0)[None] + np.zeros((6, 1)) - 24.5 * (code == 5)
    content = write(tmp_path / "a.sgy", longest, code=code, H3503=0).read_bytes()
    counts, size, parts = [50, 30, 50, 20, 40, 50], 4 if code == 5 else 2, [content[:3600]]
    for trace, count in enumerate(counts):
        part = bytearray(content[3600 + trace * (240 + 50 * size) :][: 240 + count * size])
        part[114:116] = count.to_bytes(2, "big")
        parts.append(bytes(part))
    path = tmp_path / "b.sgy"
    path.write_bytes(b"".join(parts))
    survey = read(path)
    assert survey.geometry.samples == 50 and any("20 to 50 samples" in note for note in survey.notes)
    for number, row in enumerate(np.concatenate(survey.headers.file.read(np.arange(6))[None])):  # type: ignore[union-attr]
        assert (
            np.array_equal(row[: counts[number]], longest[number, : counts[number]]) and not row[counts[number] :].any()
        )
    assert survey.headers.placement.counts[1].tolist() == counts[3:]  # type: ignore[union-attr]
    path.write_bytes(b"".join(parts)[:-1])
    with pytest.raises(InputError, match="truncated"):
        read(path)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"datum": "100"}, "--datum and --replacement-velocity need each other"),
        ({"replacement_velocity": 2000.0}, "need each other"),
        ({"datum": "sea", "replacement_velocity": 2000.0}, "cannot understand the datum 'sea'"),
        ({"datum": "floating:-1", "replacement_velocity": 2000.0}, "positive length"),
        ({"statics": "absent.txt"}, "absent.txt cannot be read"),
        ({"statics": "headers"}, "has no source and receiver corrections"),
        ({"statics": "headers", "survey": None}, "--statics is for recorded data"),
    ],
)
def test_bad_corrections_are_one_error(tmp_path, arguments, complaint):
    from collops.comm import alone

    options = {"survey": str(line(tmp_path / "a.sgy", pulse(np.zeros(15)))), "velocity": "1500", **arguments}
    with pytest.raises(InputError, match=complaint):
        Options(**options).check()
        recorded(Options(**options), alone())
    assert parse_datum("-20") == -20.0 and parse_datum("floating:500") == ("floating", 500.0)


@pytest.mark.serial
def test_surveys_in_zarr_move_to_a_datum_and_have_no_corrections_in_headers(tmp_path):
    geometry = small_geometry(2, 3, SAMPLES)
    survey = Survey(geometry)
    survey.traces = [pulse(np.zeros(3))] * 2
    survey.save(tmp_path / "a.zarr", Grid(11, 11, 50.0, 50.0))
    moved_to_sea_level = read(tmp_path / "a.zarr", statics=Statics(datum=0.0, velocity=1000.0))
    # Sources at 6 m and receivers at 2.5 m below sea level: the way to the datum takes 8.5 ms.
    times = moved_to_sea_level.geometry.times
    np.testing.assert_allclose(
        moved_to_sea_level.traces[0][1, :-2], ricker_shape(25 * (times - 0.1085))[:-2], atol=1e-5
    )
    assert not moved_to_sea_level.geometry.bounds[1][-1]
    with pytest.raises(InputError, match="has no static corrections: pass a text file"):
        read(tmp_path / "a.zarr", statics=Statics("headers"))
    with pytest.raises(InputError, match="--header and --geometry are for SEG-Y"):
        read(tmp_path / "a.zarr", header=["source_x=73"])
    with pytest.raises(InputError, match=r"choose the suffix \.sgy or \.zarr"):
        survey.save(tmp_path / "a.su", Grid(11, 11, 50.0, 50.0))
