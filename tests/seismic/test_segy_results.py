"""Results in SEG-Y and Zarr as other programs read them: bytes by the standard's positions, segyio and ObsPy."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collops.apps import recipe
from collops.apps.recipe import run_job
from collops.errors import InputError
from collops.seismic import lsm, poststack, reflectivity
from collops.seismic.lsm.setup import recorded
from collops.seismic.segy import Traces, write_together
from tests.apps.jobs import Listener, group_of, job_numbers
from tests.seismic.files import stacked_volume

# First byte of fields of trace headers, and bytes, by the standard (revision 1, 1998 to 2002).
FIELDS = {
    **{"record": (9, 4), "channel": (13, 4), "cdp": (21, 4), "kind": (29, 2), "offset": (37, 4), "elevation": (41, 4)},
    **{"scalar": (71, 2), "source_x": (73, 4), "source_y": (77, 4), "group_x": (81, 4), "group_y": (85, 4)},
    **{"units": (89, 2), "delay": (109, 2), "samples": (115, 2), "interval": (117, 2), "cdp_x": (181, 4)},
    **{"cdp_y": (185, 4), "inline": (189, 4), "crossline": (193, 4)},
}


OBSPY = {
    "record": "original_field_record_number",
    "channel": "trace_number_within_the_original_field_record",
    "scalar": "scalar_to_be_applied_to_all_coordinates",
    "source_x": "source_coordinate_x",
    "source_y": "source_coordinate_y",
    "group_x": "group_coordinate_x",
    "group_y": "group_coordinate_y",
    "offset": "distance_from_center_of_the_source_point_to_the_center_of_the_receiver_group",
    "elevation": "receiver_group_elevation",
    "cdp_x": "x_coordinate_of_ensemble_position_of_this_trace",
    "cdp_y": "y_coordinate_of_ensemble_position_of_this_trace",
    "inline": "for_3d_poststack_data_this_field_is_for_in_line_number",
    "crossline": "for_3d_poststack_data_this_field_is_for_cross_line_number",
}


def raw(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray, str, dict[str, int]]:
    """Return trace headers, samples, text and binary header of a file of big-endian IEEE floats."""
    content = path.read_bytes()
    binary = {
        name: int.from_bytes(content[byte - 1 : byte + 1], "big")
        for name, byte in (("interval", 3217), ("samples", 3221), ("format", 3225), ("units", 3255), ("revision", 3501))
    }
    traces = np.frombuffer(content, np.uint8, offset=3600).reshape(-1, 240 + 4 * binary["samples"])
    headers = {
        name: np.ascontiguousarray(traces[:, byte - 1 : byte - 1 + size]).view(f">i{size}")[:, 0]
        for name, (byte, size) in FIELDS.items()
    }
    samples = np.ascontiguousarray(traces[:, 240:]).view(">f4")
    return headers, samples, content[:3200].decode("cp037"), binary


def same_in_segyio(path: Path) -> None:
    """Assert that segyio reads what the bytes say."""
    import segyio

    headers, samples, text, _ = raw(path)
    with segyio.open(str(path), ignore_geometry=True) as file:
        for name, (byte, _) in FIELDS.items():
            assert np.array_equal(file.attributes(byte)[:], headers[name]), name
        assert np.array_equal(file.trace.raw[:], samples)
        assert bytes(file.text[0]).decode() == text


SHOTS, CHANNELS, SAMPLES = 3, 5, 60
DIRECTION = np.array([0.6, 0.8])
ORIGIN = np.array([431_000.0, 6_470_000.0])


def towed_survey(path: Path) -> np.ndarray:
    """Write shots of revision 0, little-endian, along an oblique line, in decimetres, and return their samples.

    Traces of the shots alternate; one is dead. All have a code of coordinate units that revision 0 does not define.
    """
    import segyio

    spec = segyio.spec()
    spec.format, spec.samples, spec.tracecount, spec.endian = 5, np.arange(SAMPLES), SHOTS * CHANNELS, "little"
    samples = np.random.default_rng(4).normal(size=(SHOTS * CHANNELS, SAMPLES)).astype(np.float32)
    field = segyio.TraceField
    with segyio.create(str(path), spec) as file:
        file.bin.update({3217: 4000, 3221: SAMPLES, 3255: 1})
        for trace in range(SHOTS * CHANNELS):
            channel, shot = divmod(trace, SHOTS)
            source, group = (ORIGIN + DIRECTION * at for at in (200 + 30 * shot, 30 * shot + 10 * channel))
            file.header[trace] = {
                field.FieldRecord: 1001 + 2 * shot,
                field.TraceNumber: 11 + channel,
                field.CDP: 7 + channel + 3 * shot,
                field.TraceIdentificationCode: 2 if trace == 4 else 1,
                field.offset: 10 * channel - 200,
                field.ReceiverGroupElevation: -50,
                field.SourceDepth: 60,
                field.ElevationScalar: -10,
                field.SourceGroupScalar: -10,
                field.SourceX: round(10 * source[0]),
                field.SourceY: round(10 * source[1]),
                field.GroupX: round(10 * group[0]),
                field.GroupY: round(10 * group[1]),
                field.CoordinateUnits: 3,
                field.TRACE_SAMPLE_COUNT: 9999,
                field.TRACE_SAMPLE_INTERVAL: 4000,
            }
        file.trace.raw[:] = samples
    return samples


def test_a_migration_returns_as_it_came(comm, folder, monkeypatch):
    monkeypatch.setattr("collops.seismic.segy.pieces._PIECE_BYTES", 2400 * comm.size)  # few traces at a time
    asked: list[int] = []
    monkeypatch.setattr(recipe, "check_room", lambda where, needed, option: asked.append(needed))
    path = folder / "a.sgy"
    if comm.rank == 0:
        towed_survey(path)
    comm.barrier()
    options = lsm.Options(
        survey=str(path),
        velocity="1500",
        mute="none",
        nx=21,
        nz=13,
        dx=15,
        dz=7.5,
        iterations=2,
        out=str(folder / "out"),
    )
    listener = Listener()
    outcome = run_job(lsm.run, options, comm, listener, "collops lsm")
    comm.barrier()
    assert listener.warnings == (["3 shots for 4 ranks: 1 of the ranks are idle"] if comm.size == 4 else [])
    assert "depths in metres below sea level: sources 6, receivers 5" in listener.notes
    with pytest.raises(InputError, match=r"residual\.sgy.*--overwrite"):
        run_job(lsm.run, options, comm, Listener())
    if comm.rank > 0:
        return
    out = folder / "out"
    names = ("image", "adjoint", "predicted", "residual")
    files = {name: out / f"{name}.sgy" for name in names}
    assert set(files.values()) < set(outcome.files)
    for each in files.values():
        same_in_segyio(each)
    images, gathers = 2 * 4 * 8 * 21 * 13, 11 * 14 * SAMPLES
    assert (
        asked.pop() == images + gathers + sum(file.stat().st_size for file in files.values()) + recipe._MAX_FIGURE_BYTES
    )

    # Shots: the order and the headers of the input, without its dead trace.
    import segyio

    live = np.delete(np.arange(SHOTS * CHANNELS), 4)
    (headers, predicted, text, binary), (_, residual, _, _) = raw(files["predicted"]), raw(files["residual"])
    with segyio.open(str(path), ignore_geometry=True, endian="little", strict=False) as file:
        for name, (byte, _) in FIELDS.items():
            if name not in ("units", "samples"):
                assert np.array_equal(headers[name], file.attributes(byte)[:][live]), name
        data = file.trace.raw[:][live]
    assert set(headers["units"]) == {1} and set(headers["samples"]) == {SAMPLES}
    assert binary == {"interval": 4000, "samples": SAMPLES, "format": 5, "units": 1, "revision": 0x0100}
    np.testing.assert_allclose(predicted + residual, data, atol=1e-5)
    assert np.linalg.norm(residual) == pytest.approx(outcome.numbers["residual_final"], rel=1e-4)
    assert np.linalg.norm(predicted) > 0.01 * np.linalg.norm(data)
    lines = [text[80 * line : 80 * line + 80] for line in range(40)]
    assert all(line.startswith(f"C{number:2}") for number, line in enumerate(lines, start=1))
    assert "collops lsm" in text and "velocity=1500" in text and "END TEXTUAL HEADER" in lines[-1]

    # In Zarr they are sorted by shots.
    group = group_of(folder, "out")
    order = np.lexsort([headers["channel"], headers["record"]])
    for name, array in (("record", "field_record"), ("channel", "channel")):
        assert np.array_equal(group[array][...], headers[name][order])
    for axis in "xy":
        for name in ("source", "group"):
            found = group[f"{name}_coord_{axis}"][...] * -headers["scalar"][order]
            np.testing.assert_allclose(found, headers[f"{name}_{axis}"][order], rtol=0, atol=0.6)
    assert np.array_equal(group["data_residual"][...], residual[order])
    np.testing.assert_allclose(group["data"][...], data[order], atol=1e-6)

    # Images: columns on the line, in millimetres of depth.
    for name, array in (("image", "image"), ("adjoint", "adjoint_image")):
        headers, values, text, binary = raw(files[name])
        assert np.array_equal(values, group[array][...].astype(np.float32))
        assert binary["interval"] == 7500 and set(headers["interval"]) == {7500}
        assert "0 M ABOVE SEA LEVEL" in text
        assert headers["cdp"].tolist() == headers["crossline"].tolist() == list(range(1, 22))
        divisor = -headers["scalar"][0]
        found = np.stack([headers["cdp_x"], headers["cdp_y"]], axis=1) / divisor
        # The first station is the first group, at distance zero.
        expected = ORIGIN + group["x"][...][:, None] * DIRECTION
        np.testing.assert_allclose(found, expected, atol=0.06)
        np.testing.assert_allclose(np.stack([group["cdp_x"][...], group["cdp_y"][...]], 1), expected, atol=0.06)
    positions = {f"{name}_coord_{axis}" for name in ("source", "group") for axis in "xy"}
    elevations = {"source_depth_below_surface", "source_surface_elevation", "receiver_group_elevation"}
    of_traces = {"offset", "shot", "field_record", "channel"} | positions | elevations
    assert set(group.attrs["coordinates"].split()) == of_traces | {"cdp_x", "cdp_y"}
    assert group["cdp_x"].attrs["units"] == "m" and group["cdp_x"].metadata.dimension_names == ("x",)
    assert '"records":[1001,1003,1005]' in (out / "result.html").read_text()
    assert '"channel":[11,13,14,15]' in (out / "shots" / "1.js").read_text()


def test_the_direct_wave_is_muted_unless_the_user_keeps_it(comm, folder):
    path = folder / "a.sgy"
    if comm.rank == 0:
        towed_survey(path)
    comm.barrier()
    problems = {}
    for mute in (None, "none", "1700"):
        options = lsm.Options(survey=str(path), velocity="1700", nz=13, mute=mute)
        problems[mute] = recorded(options, comm)
    muted, kept, named = ([each.traces for each in problem.conditioned] for problem in problems.values())
    survey, period = problems[None].survey, 1 / problems[None].frequency
    assert any(note.startswith("mute: the direct wave") for note in survey.notes)
    for shot, default, plain, asked in zip(survey.shots, muted, kept, named, strict=True):
        late = survey.geometry.times - np.abs(survey.geometry.offsets(shot))[:, None] / 1700
        assert np.array_equal(default, asked)
        assert not default[late < period].any() and plain[(late < period) & (late > 0)].all()
        np.testing.assert_array_equal(default[late > 2 * period], plain[late > 2 * period])


VOLUME = np.random.default_rng(1).normal(size=(5, 4, 40)).astype(np.float32)
KEEP = np.array([0, 2, 3, 4, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19])


@pytest.mark.parametrize("application", [poststack, reflectivity])
def test_an_inversion_returns_as_it_came(comm, folder, application):
    path = folder / "a.sgy"
    if comm.rank == 0:
        stacked_volume(path, VOLUME, keep=KEEP)
        with_other_bytes(path)
    comm.barrier()
    bytes_of_numbers = {"inline_byte": 9, "crossline_byte": 21}
    options = application.Options(
        volume=str(path), wavelet="ricker:60", iterations=3, out=str(folder / "out"), **bytes_of_numbers
    )
    numbers = job_numbers(application.run, options, comm)
    if comm.rank > 0:
        return
    group, grid = group_of(folder, "out"), np.zeros(20, bool)
    grid[KEEP] = True
    names = application.Options.segy_results
    assert {f"{name}.sgy" for name in names} <= set(os.listdir(folder / "out"))
    found = {}
    for name in names:
        same_in_segyio(folder / "out" / f"{name}.sgy")
        headers, found[name], text, binary = raw(folder / "out" / f"{name}.sgy")
        inline, crossline = KEEP // 4, KEEP % 4
        assert headers["inline"].tolist() == (100 + 2 * inline).tolist()
        assert headers["crossline"].tolist() == (20 + crossline).tolist()
        # The file has the positions where those of sources are.
        assert headers["cdp_x"].tolist() == headers["source_x"].tolist() == (43_000_000 + 2500 * crossline).tolist()
        assert set(headers["scalar"]) == {-100} and set(headers["delay"]) == {8}
        assert binary["interval"] == 4000 and "wavelet=ricker:60" in text
    data = VOLUME.reshape(20, 40)[KEEP]
    np.testing.assert_allclose(found["predicted"] + found["residual"], data, atol=1e-5)
    assert np.array_equal(found["residual"], group["residual"][...].reshape(20, 40)[KEEP])
    main = names[0]
    assert np.array_equal(found[main], group[main][...].reshape(20, 40)[KEEP])
    if application is reflectivity:
        # The coefficient at a sample is half the step of the logarithm to the next one.
        np.testing.assert_allclose(np.diff(np.log(found["impedance"])) / 2, found[main][:, :-1], atol=1e-5)
        np.testing.assert_allclose(np.log(found["impedance"]).mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(group["cdp_x"][...].ravel()[KEEP], 430_000 + 25.0 * (KEEP % 4))
    assert np.array_equal(np.isnan(group["cdp_y"][...]).ravel(), ~grid)
    assert group["cdp_x"].metadata.dimension_names == ("inline", "crossline")
    assert numbers["residual_reduction"] < 1


def with_other_bytes(path: Path) -> None:
    """Move the inline and crossline numbers of a file to bytes 9 and 21, and add positions of sources."""
    content = np.fromfile(path, np.uint8)
    traces = content[3600:].reshape(len(KEEP), -1)
    traces[:, 8:12], traces[:, 20:24] = traces[:, 188:192].copy(), traces[:, 192:196].copy()
    traces[:, 188:196] = 0
    for byte, values in ((73, 43_000_000 + 2500 * (KEEP % 4)), (77, 640_000_000 + 5000 * (KEEP // 4))):
        traces[:, byte - 1 : byte + 3] = values.astype(">i4")[:, None].view(np.uint8)
    traces[:, 70:72] = np.array([-100], ">i2").view(np.uint8)
    content.tofile(path)


def test_a_disk_that_is_full_is_one_error_and_leaves_nothing(comm, folder, monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr("collops.seismic.segy.writing._fill", fail)
    (folder / "a.sgy").touch()
    comm.barrier()
    own = np.full((2, 8), comm.rank, np.float32)
    places = 2 * comm.rank + np.arange(2)
    traces = Traces("A", own, places, 4000, {"CDP": np.arange(2 * comm.size)})
    with pytest.raises(InputError, match="No space left"):
        write_together(folder / "a.sgy", comm, traces)
    comm.barrier()
    assert os.listdir(folder) == ["a.sgy"] and (folder / "a.sgy").stat().st_size == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [("SourceX", 2.0**31), ("CDP", 2**40), ("GroupY", np.nan), ("offset", -np.inf), ("DelayRecordingTime", 40_000)],
)
def test_numbers_outside_their_field_are_refused(comm, folder, field, value):
    """Two's complement would wrap them silently, and a conversion of NaN is undefined."""
    traces = Traces("A", np.zeros((1, 8), np.float32), np.array([comm.rank]), 4000, {field: np.full(comm.size, value)})
    with pytest.raises(InputError, match=rf"only in the field {field} of trace headers, not {value}"):
        write_together(folder / "a.sgy", comm, traces)
    comm.barrier()
    assert not os.listdir(folder)


def test_limits_of_fields_are_written(comm, folder):
    limits = {
        "SourceX": (-(2**31), 73, ">i4"),
        "GroupX": (2**31 - 1, 81, ">i4"),
        "DelayRecordingTime": (-(2**15), 109, ">i2"),
    }
    columns = {name: np.full(comm.size, value, float) for name, (value, _, _) in limits.items()}
    write_together(folder / "a.sgy", comm, Traces("A", np.zeros((1, 8), "f4"), np.array([comm.rank]), 4000, columns))
    content = (folder / "a.sgy").read_bytes()
    for value, byte, kind in limits.values():
        assert np.frombuffer(content, kind, 1, 3600 + byte - 1)[0] == value


@pytest.mark.serial
def test_obspy_reads_the_same(comm, tmp_path):
    pytest.importorskip("obspy", reason="ObsPy is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ObsPy uses what Python deprecates
        from obspy.io.segy.segy import _read_segy  # pyright: ignore[reportMissingImports]
    towed_survey(tmp_path / "a.sgy")
    stacked_volume(tmp_path / "b.sgy", VOLUME)
    small: dict[str, Any] = {"iterations": 1, "overwrite": True}
    shots = {"survey": str(tmp_path / "a.sgy"), "velocity": "1500", "uncertainty": 2, "out": str(tmp_path / "lsm")}
    job_numbers(lsm.run, lsm.Options(**shots, nz=13, **small), comm)
    sizes = {"nx": 21, "nz": 13, "shots": 2, "receivers": 5, "samples": 40, "out": str(tmp_path / "synthetic")}
    job_numbers(lsm.run, lsm.Options(**sizes, write_survey=str(tmp_path / "lsm" / "survey.sgy"), **small), comm)
    for each in (poststack, reflectivity):
        stack = each.Options(volume=str(tmp_path / "b.sgy"), out=str(tmp_path / each.__name__), **small)
        job_numbers(each.run, stack, comm)
    files = sorted(tmp_path.glob("*/*.sgy"))
    assert len(files) == 6 + 3 + 4
    for path in files:
        same_in_segyio(path)
        headers, samples, _, binary = raw(path)
        found = _read_segy(str(path))
        assert found.binary_file_header.sample_interval_in_microseconds == binary["interval"]
        assert np.array_equal(np.stack([trace.data for trace in found.traces]), samples)
        for name, long in OBSPY.items():
            assert np.array_equal([getattr(trace.header, long) for trace in found.traces], headers[name]), name
