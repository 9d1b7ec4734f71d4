"""Zarr stores that xarray itself wrote, of both formats: packed numbers, missing ones, and rows appended later."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

from collops.apps.files import decoded
from collops.apps.recipe import run_job
from collops.apps.stages import local_stage
from collops.errors import InputError
from collops.seismic.lsm import Options as MigrationOptions
from collops.seismic.lsm import run as migrate
from collops.seismic.mdd import Options as DeconvolutionOptions
from collops.seismic.mdd import run as deconvolve
from collops.seismic.mdd.fields import RecordedFields
from collops.seismic.poststack import Options as InversionOptions
from collops.seismic.poststack import run as invert
from collops.seismic.reflectivity import Options as ReflectivityOptions
from collops.seismic.reflectivity import run as find_reflectivity
from collops.seismic.survey import read
from collops.seismic.volume.problem import VolumeOptions, recorded
from tests.apps.jobs import Listener, job_of

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
SHOTS, CHANNELS, SAMPLES = 4, 5, 40
VOLUME = np.random.default_rng(1).normal(size=(5, 4, SAMPLES))
INLINES = np.array([10, 12, 14, 16, 18], np.int16)


@contextmanager
def written(comm: Any) -> Iterator[None]:
    """Let the first rank write, and the others wait; the body asks for the rank."""
    with local_stage(comm), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that consolidated metadata are not part of format 3
        yield


def store(path: Path, dataset: xarray.Dataset, zarr_format: Any, consolidated: bool = False, **encoding: Any) -> None:
    dataset.to_zarr(path, mode="w", zarr_format=zarr_format, consolidated=consolidated, encoding=encoding)


def survey_of(values: np.ndarray) -> xarray.Dataset:
    """Return shots on a line, 100 m apart, with receivers 50 m apart."""
    shots, channels = 100.0 * np.arange(SHOTS), 50.0 * np.arange(CHANNELS)
    return xarray.Dataset(
        {"data": (("shot", "channel", "time"), values)},
        {
            "source_coord_x": ("shot", shots, {"units": "m"}),
            "source_coord_y": ("shot", np.zeros(SHOTS)),
            "group_coord_x": (("shot", "channel"), shots[:, None] + channels),
            "group_coord_y": ("channel", np.zeros(CHANNELS)),
            "field_record": ("shot", np.arange(SHOTS) + 7),
            "time": ("time", 0.004 * np.arange(values.shape[-1]), {"units": "s"}),
        },
    )


def traces_of_survey() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(SHOTS, CHANNELS, SAMPLES)).astype(np.float32)


def volume_of(values: np.ndarray) -> xarray.Dataset:
    coordinates = {"inline": INLINES[: len(values)], "time": ("time", 4 * np.arange(SAMPLES), {"units": "ms"})}
    return xarray.Dataset({"data": (("inline", "crossline", "time"), values)}, coordinates)


def fields_of(values: np.ndarray) -> xarray.Dataset:
    return xarray.Dataset({"down": (("source", "receiver", "time"), values), "up": (("source", "r", "time"), values)})


NUMBERS = np.array([3.0, np.nan, -7.0, 0.0, 12.0])
NATURAL = np.abs(NUMBERS)
PACKINGS = {
    "integers": (NUMBERS, {"dtype": "i2", "_FillValue": -999}),
    "with a factor": (NUMBERS, {"dtype": "i2", "_FillValue": -999, "scale_factor": 0.5}),
    "with an offset": (
        1e6 + NUMBERS / 8,
        {"dtype": "i2", "_FillValue": 32767, "add_offset": 1e6, "scale_factor": 0.125},
    ),
    "with an offset alone": (NUMBERS + 400_000, {"dtype": "i1", "_FillValue": -128, "add_offset": 400_000.0}),
    "missing_value": (NUMBERS, {"dtype": "i4", "missing_value": -999, "scale_factor": 0.25}),
    "both attributes": (NUMBERS, {"dtype": "i4", "missing_value": -999, "_FillValue": -999}),
    "large integers": (NUMBERS + 2.0**53 - 12, {"dtype": "i8", "_FillValue": 2**62}),
    "unsigned": (NATURAL, {"dtype": "u2", "_FillValue": 65535}),
    "unsigned with a factor": (NATURAL, {"dtype": "u1", "_FillValue": 255, "scale_factor": 0.1}),
    "unsigned in signed ones": (NATURAL + 120, {"dtype": "i1", "_FillValue": 255, "_Unsigned": "true"}),
    "signed in unsigned ones": (NUMBERS, {"dtype": "u1", "_FillValue": -1, "_Unsigned": "false"}),
    "big-endian": (NATURAL + 200, {"dtype": ">i2", "_FillValue": -1, "_Unsigned": "true"}),
    "doubles": (NUMBERS, {"_FillValue": -999.25}),
    "singles": (NUMBERS, {"dtype": "f4", "_FillValue": 1e20}),
    "singles that round": (NUMBERS, {"dtype": "f4", "_FillValue": -999.9}),
    "singles, missing_value": (NUMBERS, {"dtype": "f4", "missing_value": -999.9}),
    "halves": (NUMBERS, {"dtype": "f2", "_FillValue": -999.0}),
    "packed singles": (NUMBERS, {"dtype": "f4", "_FillValue": -1.0, "scale_factor": 2.0, "add_offset": 64.0}),
    "infinite marks": (NUMBERS, {"_FillValue": -np.inf}),
    "NaN": (NUMBERS, {"_FillValue": np.nan}),
    "no mark": (np.nan_to_num(NUMBERS), {"_FillValue": None}),
    "by default": (NUMBERS, {}),
    "integers by default": (np.nan_to_num(NUMBERS).astype(np.int16), {}),
}


@pytest.mark.serial
@FORMATS
@pytest.mark.parametrize("packing", PACKINGS)
def test_values_are_those_that_xarray_reads(tmp_path, zarr_format, packing):
    values, encoding = PACKINGS[packing]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about marks of another sign
        store(tmp_path / "a.zarr", xarray.Dataset({"x": ("t", values)}), zarr_format, x=encoding)
        expected = values
        if packing != "signed in unsigned ones":  # of format 3, xarray 2026.9 cannot read what it wrote
            expected = xarray.open_zarr(tmp_path / "a.zarr", consolidated=False)["x"].values.astype(np.float64)
    array = zarr.open_group(str(tmp_path / "a.zarr"))["x"]
    for least in (np.float32, np.float64):
        found = decoded(array, tmp_path, dtype=least)
        assert found.dtype in (np.float32, np.float64) and found.dtype >= least
        np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
        np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(found.dtype).eps)
        if "i" in encoding.get("dtype", "") and "scale_factor" not in encoding:
            np.testing.assert_array_equal(found, values)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("dtype", "attributes", "expected"),
    [
        ("i2", {"_FillValue": [5, 7]}, [1, np.nan, np.nan]),
        ("i2", {"_FillValue": 5, "missing_value": 7}, [1, np.nan, np.nan]),
        ("i2", {"_FillValue": 5.0, "missing_value": 7.5}, [1, np.nan, 7]),
        ("u1", {"_FillValue": -1}, [1, 5, 7]),
        ("i2", {"_FillValue": "NaN"}, [1, 5, 7]),
        ("f4", {"_FillValue": "NaN", "missing_value": "5"}, [1, np.nan, 7]),
        ("f4", {"missing_value": 1e300}, [1, 5, 7]),
        ("i1", {"_FillValue": 5, "_Unsigned": "true", "scale_factor": [2.0], "add_offset": [1]}, [3, np.nan, 15]),
        ("f4", {"_Unsigned": "true"}, [1, 5, 7]),
        ("b1", {"_FillValue": True}, [1, 1, 1]),
        ("f4", {"_FillValue": "minus one"}, "x has the attribute _FillValue of 'minus one': replace it with a number"),
        ("f4", {"scale_factor": "AAAA"}, "x has the attribute scale_factor of 'AAAA'"),
        ("f4", {"scale_factor": []}, "attribute scale_factor of .*: replace it"),
        ("f4", {"add_offset": {"of": 1}}, "attribute add_offset of .*: replace it"),
        ("i4", {"missing_value": [None]}, "attribute missing_value of .*: replace it"),
        ("f4", {"missing_value": 10**400}, "attribute missing_value of .*: replace it"),
        ("c8", {}, "x holds complex64: save real numbers"),
    ],
)
def test_attributes_that_other_programs_write(tmp_path, dtype, attributes, expected):
    path = tmp_path / "x"
    array = zarr.create_array(str(path), data=np.array([1, 5, 7]).astype(dtype), attributes=attributes)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            decoded(array, path)
    else:
        np.testing.assert_array_equal(decoded(array, path), expected)


@pytest.mark.serial
def test_the_default_fill_of_format_2_is_not_a_mark(tmp_path):
    """Unlike xarray, which then takes all zeros for missing ones: programs that know no marks do not set this value."""
    for dtype in ("i2", "f4"):
        array = zarr.create_array(str(tmp_path / dtype), data=np.array([0, 1, 2], dtype), zarr_format=2, fill_value=0)
        np.testing.assert_array_equal(decoded(array, tmp_path), [0, 1, 2])
        array.attrs["_FillValue"] = 0
        np.testing.assert_array_equal(decoded(array, tmp_path), [np.nan, 1, 2])


MARKS = {
    "singles": {"dtype": "f4", "_FillValue": -999.0},
    "integers": {"dtype": "i2", "_FillValue": -32768, "scale_factor": 0.001},
    "unsigned": {"dtype": "u2", "_FillValue": 0, "scale_factor": 0.001, "add_offset": -20.0, "missing_value": 0},
}


@FORMATS
@pytest.mark.parametrize("marks", MARKS)
def test_a_missing_sample_of_a_shot_is_an_error_on_all_ranks(comm, folder, zarr_format, marks):
    whole, hurt = traces_of_survey(), traces_of_survey()
    hurt[2, 3, 7] = np.nan
    with written(comm):
        for name, values in (("whole", whole), ("hurt", hurt)) if comm.rank == 0 else ():
            store(folder / f"{name}.zarr", survey_of(values), zarr_format, data=MARKS[marks])
    found = read(folder / "whole.zarr", comm)
    for shot, traces in zip(found.shots, found.traces, strict=True):
        np.testing.assert_allclose(traces, whole[shot], atol=6e-4 if "scale_factor" in MARKS[marks] else 0)
    with pytest.raises(InputError, match="shot 3, trace 4, sample 8 is nan: repair") as caught:
        _ = read(folder / "hurt.zarr", comm).traces
    assert comm.size == 1 or caught.value.on_all_ranks


@FORMATS
@pytest.mark.parametrize(
    "marks",
    [
        {"_FillValue": -9999.0},
        {"dtype": "i4", "_FillValue": -9999},
        {"dtype": "i2", "_FillValue": -9999, "scale_factor": 0.1},
        {"dtype": "f4", "missing_value": -9999.0},
    ],
)
@pytest.mark.parametrize("has_mask", [False, True])
def test_there_is_no_trace_where_a_position_is_missing(comm, folder, zarr_format, marks, has_mask):
    survey = survey_of(traces_of_survey())
    survey["group_coord_x"][1, 2] = np.nan
    if has_mask:  # of integers, in which the missing one counts as False
        survey["trace_mask"] = ("shot", "channel"), np.where(np.isnan(survey["group_coord_x"]), np.nan, 1)
    with written(comm):
        if comm.rank == 0:
            more = {"trace_mask": {"dtype": "i1", "_FillValue": -1}} if has_mask else {}
            store(folder / "a.zarr", survey, zarr_format, group_coord_x=marks, **more)
    found = read(folder / "a.zarr", comm)
    assert [each.shape[1] for each in found.geometry.receivers] == [5, 4, 5, 5]
    low, high = found.geometry.bounds
    assert (low[0], high[0]) == pytest.approx((0, 500), abs=0.02)
    np.testing.assert_allclose(found.geometry.receivers[1][0], [100, 150, 250, 300], rtol=1e-6)
    assert any("1 of 20 traces of data are dead" in note for note in found.notes)


@FORMATS
def test_a_missing_header_of_a_live_trace_is_an_error(comm, folder, zarr_format):
    survey = survey_of(traces_of_survey()).assign_coords(offset=(("shot", "channel"), np.zeros((SHOTS, CHANNELS))))
    survey["offset"][3, 1] = np.nan
    survey["trace_mask"] = ("shot", "channel"), np.ones((SHOTS, CHANNELS), bool)
    with written(comm):
        if comm.rank == 0:
            store(folder / "a.zarr", survey, zarr_format, offset={"dtype": "i4", "_FillValue": -1})
            survey["group_coord_x"][0, 4] = np.nan
            store(folder / "b.zarr", survey.drop_vars("offset"), zarr_format, group_coord_x={"_FillValue": -9999.0})
    for name, header, place in (("a", "offset", "shot 3, channel 1"), ("b", "group_coord_x", "shot 0, channel 4")):
        with pytest.raises(InputError, match=rf"{header} has no finite number at {place} \(from 0\)") as caught:
            read(folder / f"{name}.zarr", comm)
        assert comm.size == 1 or caught.value.on_all_ranks


@FORMATS
def test_positions_far_from_the_origin_keep_their_centimetres(comm, folder, zarr_format):
    survey = survey_of(traces_of_survey())
    for name in ("source_coord_y", "group_coord_y"):
        survey[name] = survey[name] + 6_543_210.57
    with written(comm):
        if comm.rank == 0:
            packing = {"dtype": "i2", "add_offset": 6_543_210.0, "scale_factor": 0.01}
            store(folder / "a.zarr", survey, zarr_format, source_coord_y=packing, group_coord_y=packing)
    found = read(folder / "a.zarr", comm).headers
    assert found is not None
    np.testing.assert_allclose(found.line.origin[1], 6_543_210.57, atol=1e-8, rtol=0)


@FORMATS
@pytest.mark.parametrize("marks", MARKS)
def test_a_missing_sample_of_a_volume_is_an_error_on_all_ranks(comm, folder, zarr_format, marks):
    hurt = VOLUME.copy()
    hurt[3, 1, 7] = np.nan
    with written(comm):
        for name, values in (("whole", VOLUME), ("hurt", hurt)) if comm.rank == 0 else ():
            packed = {"dtype": "i2", "scale_factor": 2.0, "add_offset": 4.0}
            store(folder / f"{name}.zarr", volume_of(values), zarr_format, data=MARKS[marks], inline=packed)

    def options(kind: Any, name: str, **more: Any) -> Any:
        return kind(volume=str(folder / f"{name}.zarr"), wavelet="ricker:60", **more)

    whole = recorded(job_of(options(VolumeOptions, "whole"), comm))
    np.testing.assert_allclose(comm.allgatherv(np.ascontiguousarray(whole.traces)), VOLUME, atol=6e-4)
    assert whole.cube.lateral[0].values.tolist() == INLINES.tolist()
    for run, kind in ((invert, InversionOptions), (find_reflectivity, ReflectivityOptions)):
        with pytest.raises(InputError, match="is nan at inline 16, crossline 2, sample 8") as caught:
            run_job(run, options(kind, "hurt", out=str(folder / "out")), comm, Listener())
        assert comm.size == 1 or caught.value.on_all_ranks


@FORMATS
def test_a_missing_number_of_an_axis_or_of_a_background_is_an_error(comm, folder, zarr_format):
    background = np.full(VOLUME.shape, 5.0)
    background[1, 3, 2] = np.nan
    with written(comm):
        if comm.rank == 0:
            store(folder / "a.zarr", volume_of(VOLUME), zarr_format)
            named = volume_of(background).rename(data="impedance")
            store(folder / "b.zarr", named, zarr_format, impedance={"_FillValue": -1.0})
            hurt = volume_of(VOLUME).assign_coords(inline=np.where(INLINES == 14, np.nan, INLINES))
            store(folder / "c.zarr", hurt, zarr_format, inline={"dtype": "i4", "_FillValue": -1})
    for given, complaint in (
        ({"volume": "a.zarr", "background": "b.zarr"}, "is nan at inline 12, crossline 4, sample 3"),
        ({"volume": "c.zarr"}, r"inline is nan at 2 \(from 0\): replace it with a finite number"),
    ):
        paths = {name: str(folder / text) for name, text in given.items()}
        with pytest.raises(InputError, match=complaint) as caught:
            run_job(invert, InversionOptions(**paths, out=str(folder / "out")), comm, Listener())
        assert comm.size == 1 or caught.value.on_all_ranks


@FORMATS
@pytest.mark.parametrize("marks", MARKS)
def test_fields_of_mdd_are_unpacked_and_have_no_missing_sample(comm, folder, zarr_format, marks):
    hurt = VOLUME.copy()
    hurt[4, 1, 7] = np.nan
    with written(comm):
        for name, values in (("whole", VOLUME), ("hurt", hurt)) if comm.rank == 0 else ():
            store(folder / f"{name}.zarr", fields_of(values), zarr_format, down=MARKS[marks], up=MARKS[marks])

    def options(name: str) -> DeconvolutionOptions:
        given = dict.fromkeys(("down", "up"), str(folder / f"{name}.zarr"))
        return DeconvolutionOptions(**given, interval=4.0, spacing=10.0, out=str(folder / "out"))

    found = RecordedFields(options("whole")).upgoing(slice(1, 3))
    np.testing.assert_allclose(found[:SAMPLES], np.moveaxis(VOLUME[1:3], -1, 0), atol=6e-4)
    with pytest.raises(InputError, match="is nan at source 5, receiver 2, sample 8") as caught:
        run_job(deconvolve, options("hurt"), comm, Listener())
    assert comm.size == 1 or caught.value.on_all_ranks


def append_shots(path: Path) -> None:
    """Append the last shots with Zarr, which leaves consolidated metadata as they are."""
    survey, group = survey_of(traces_of_survey()), zarr.open_group(str(path), use_consolidated=False)
    for name, array in group.arrays():
        if survey[name].dims[0] == "shot":
            array.append(survey[name].values[2:])


def append_inlines(path: Path) -> None:
    group: Any = zarr.open_group(str(path), use_consolidated=False)
    group["data"].append(VOLUME[2:])
    group["inline"].append(INLINES[2:])


def append_sources(path: Path) -> None:
    group: Any = zarr.open_group(str(path), use_consolidated=False)
    for name in ("down", "up"):
        group[name].append(VOLUME[2:])


def shots_read(path: Path, comm: Any, folder: Path) -> int:
    survey = read(path, comm)
    assert survey.headers is not None and len(survey.traces) == len(survey.shots)
    options = {"survey": str(path), "velocity": "1500", "nx": 6, "nz": 4, "dx": 100.0, "dz": 20.0, "iterations": 1}
    numbers = run_job(migrate, MigrationOptions(**options, out=str(folder / "out")), comm, Listener()).numbers
    assert numbers["shots"] == survey.geometry.shots
    return int(comm.allreduce(np.array(len(survey.traces))))


def inlines_read(path: Path, comm: Any, folder: Path) -> int:
    volume = recorded(job_of(VolumeOptions(volume=str(path), wavelet="ricker:60"), comm))
    assert len(volume.cube.lateral[0].values) == volume.cube.shape[0]
    return int(comm.allreduce(np.array(len(volume.traces))))


def sources_read(path: Path, comm: Any, folder: Path) -> int:
    options = DeconvolutionOptions(down=str(path), up=str(path), interval=4.0, spacing=10.0)
    return RecordedFields(options).acquisition.sources


@FORMATS
@pytest.mark.parametrize("inside", ["", "project"])
@pytest.mark.parametrize(
    ("dataset", "append", "count", "total"),
    [
        (lambda: survey_of(traces_of_survey()).isel(shot=slice(2)), append_shots, shots_read, SHOTS),
        (lambda: volume_of(VOLUME[:2]), append_inlines, inlines_read, 5),
        (lambda: fields_of(VOLUME[:2]), append_sources, sources_read, 5),
    ],
    ids=["survey", "volume", "fields"],
)
def test_rows_appended_after_consolidation_are_read(
    comm,
    folder,
    zarr_format,
    inside,
    dataset: Callable[[], xarray.Dataset],
    append: Callable[[Path], None],
    count: Callable[[Path, Any, Path], int],
    total: int,
):
    path = folder / "a.zarr" / inside
    with written(comm):
        if comm.rank == 0:
            if inside:
                zarr.open_group(str(folder / "a.zarr"), zarr_format=zarr_format)
            store(path, dataset(), zarr_format, consolidated=True)
            if inside:
                zarr.consolidate_metadata(str(folder / "a.zarr"))
            append(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = zarr.open_group(str(folder / "a.zarr"), mode="r")[inside] if inside else zarr.open_group(str(path))
    assert {array.shape[0] for _, array in shown.arrays() if array.ndim == 3} == {2}  # what zarr shows by default
    assert count(path, comm, folder) == total
