"""Shots in Zarr, in the form of MDIO and in that of xarray, against the same shots in SEG-Y."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import segyio
import zarr
from zarr.storage import LocalStore

from collops.errors import InputError
from collops.seismic.lsm import Options, run
from collops.seismic.survey import Geometry, Grid, Survey, checks, read
from tests.apps.jobs import group_of, job_numbers
from tests.seismic.files import CORNER, irregular_area, on_map, random_traces, small_geometry, write_survey

POSITIONS = ("source_coord_x", "source_coord_y", "group_coord_x", "group_coord_y")
COUNTS = (5, 3, 4)  # receivers of the shots
FOOT = 0.3048


def ragged(samples: int = 40) -> Geometry:
    """Return three shots, each with a cable of its own and another number of receivers."""
    geometry = small_geometry(samples=samples, towed=True)
    receivers = [each[:, :count] for each, count in zip(geometry.receivers, COUNTS, strict=True)]
    return Geometry(geometry.sources, receivers, samples, geometry.interval)


def put(group: Any, name: str, values: Any, axes: tuple[str, ...], **more: Any) -> None:
    """Write an array with named axes, as xarray does in either format."""
    values, options = np.asarray(values), {}
    if group.metadata.zarr_format == 3:
        options["dimension_names"] = axes
    else:
        more["_ARRAY_DIMENSIONS"] = list(axes)
    chunks = (2, *values.shape[1:]) if values.ndim > 1 else values.shape
    array = group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype, **options)
    array[...] = values
    array.attrs.update(more)


def in_form_of_mdio(path: Path, geometry: Geometry, traces: list[np.ndarray]) -> None:
    """Write a grid of shots and channels with holes, positions in feet, times in ms and depths among the headers."""
    group = zarr.open_group(str(path), mode="w", attributes={"apiVersion": "1.1.3"})
    group.attrs["attributes"] = {"defaultVariableName": "wiggles"}
    shape, axes = (len(COUNTS), max(COUNTS)), ("shot_point", "channel")
    mask = np.arange(shape[1]) < np.array(COUNTS)[:, None]
    source = np.broadcast_to(geometry.sources[0, :, None], shape)
    channels, data, depth = np.full(shape, np.nan), np.full((*shape, geometry.samples), np.nan, np.float32), 0.0
    channels[mask], depth = np.concatenate([each[0] for each in geometry.receivers]), geometry.receivers[0][1, 0]
    data[mask] = np.concatenate(traces)
    units = {"unitsV1": {"length": "ft"}}
    put(group, "source_coord_x", geometry.sources[0] / FOOT, axes[:1], **units)
    put(group, "source_coord_y", np.zeros(3), axes[:1], **units)
    put(group, "group_coord_x", channels / FOOT, axes, **units)
    put(group, "group_coord_y", np.where(mask, 0.0, np.nan), axes, **units)
    dead = np.zeros(shape, bool)
    dead[2, 4] = True
    put(group, "trace_mask", mask | dead, axes)
    put(group, "shot_point", np.arange(1, 4, dtype=np.int32), axes[:1])
    put(group, "channel", np.arange(1, 6, dtype=np.int32), axes[1:])
    put(group, "time", 4 * np.arange(geometry.samples, dtype=np.int32), ("time",))
    put(group, "wiggles", data, (*axes, "time"))
    fields = {
        "receiver_group_elevation": np.rint(-1000 * depth / FOOT),
        "source_depth_below_surface": np.rint(1000 * geometry.sources[1, 0] / FOOT),
        "elevation_depth_scalar": -1000,
        "source_to_receiver_distance": np.rint(np.abs(np.nan_to_num(channels) - source) / FOOT),
        "trace_id_code": np.where(dead, 2, 1),
    }
    headers = np.zeros(shape, [(name, "<i4") for name in fields])
    for name, values in fields.items():
        headers[name] = values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other programs may not read such arrays
        put(group, "headers", headers, axes)


def in_form_of_xarray(path: Path, geometry: Geometry, traces: list[np.ndarray], order: Any = slice(None)) -> None:
    """Write a list of traces in format 2, in any order, with times that begin late, and samples packed as integers."""
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    shot = np.repeat(np.arange(geometry.shots), [len(each) for each in traces])
    group_x, group_z = np.concatenate(list(geometry.receivers), axis=1)
    lengths = {"source_coord_x": geometry.sources[0][shot] / 1000, "group_coord_x": group_x / 1000}
    for name, values in lengths.items():
        put(group, name, values[order], ("trace",), units="km")
    put(group, "source_coord_y", np.zeros(len(shot)), ("trace",))
    put(group, "group_coord_y", 0.0, ())
    put(group, "source_surface_elevation", -1.5, (), units="m")
    put(group, "source_depth_below_surface", geometry.sources[1][shot][order] - 1.5, ("trace",), units="m")
    put(group, "receiver_group_elevation", -group_z[order], ("trace",), units="m")
    put(group, "time", 0.1 + 0.004 * np.arange(geometry.samples), ("time",), units="s")
    put(group, "data", np.concatenate(traces)[order], ("trace", "time"), scale_factor=0.001, _FillValue=-32768)


def spoken(comm: Any, folder: Path, write: Any, *given: Any) -> None:
    """Let the first rank write, and the others wait."""
    if comm.rank == 0:
        write(folder / "a.zarr", *given)
    comm.barrier()


def test_a_store_of_mdio_is_the_survey_in_segy(comm, folder):
    geometry = ragged()
    traces = random_traces(geometry)
    if comm.rank == 0:
        write_survey(folder / "a.sgy", geometry, traces, {})
    spoken(comm, folder, in_form_of_mdio, geometry, traces)
    found, expected = read(folder / "a.zarr", comm), read(folder / "a.sgy", comm)
    assert found.headers is not None and expected.headers is not None
    own, other = found.geometry, expected.geometry
    assert (own.samples, own.interval, own.start) == (other.samples, other.interval, other.start)
    # Depths are thousandths of a foot.
    np.testing.assert_allclose(own.sources, other.sources, rtol=0, atol=2e-4)
    for one, two in zip(own.receivers, other.receivers, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=2e-4)
    for one, two in zip(found.traces, expected.traces, strict=True):
        np.testing.assert_array_equal(one, two)
    assert found.headers.records.tolist() == [1, 2, 3]
    assert [each.tolist() for each in found.headers.channels] == [each.tolist() for each in expected.headers.channels]
    assert any("3 of 15 traces of wiggles are dead" in note for note in found.notes)


def test_traces_in_any_order_packed_as_integers(comm, folder, monkeypatch):
    geometry = small_geometry(samples=40, towed=True)
    packed = [np.rint(1000 * each).astype(np.int16) for each in random_traces(geometry)]
    order = np.random.default_rng(0).permutation(geometry.traces)
    spoken(comm, folder, in_form_of_xarray, geometry, packed, order)
    found = read(folder / "a.zarr", comm)
    assert found.geometry.start == 0.1 and found.geometry.interval == 0.004
    first, kept = {}, found.headers
    assert kept is not None
    for trace in order:  # shots in order of appearance, receivers in that of the store
        first.setdefault(trace // 5, []).append(trace % 5)
    for limit in (None, 0):
        if limit is not None:
            monkeypatch.setattr("collops.seismic.survey.zarr._MAX_CACHED_BYTES", limit)
        again = read(folder / "a.zarr", comm)
        for mine, shot in zip(again.traces, list(first)[again.shots.start : again.shots.stop], strict=True):
            np.testing.assert_allclose(mine, 0.001 * packed[shot][first[shot]], rtol=1e-6)
            assert mine.dtype == np.float32
    for place, (shot, receivers) in enumerate(first.items()):
        np.testing.assert_allclose(found.geometry.sources[:, place], geometry.sources[:, shot], rtol=1e-12)
        np.testing.assert_allclose(found.geometry.receivers[place], geometry.receivers[shot][:, receivers], rtol=1e-12)


@pytest.mark.parametrize("limit", [1 << 28, 0])
def test_receiver_gathers_become_shots(comm, folder, monkeypatch, limit):
    """The axis of shots is the last but one, and an array has the axes in another order than the traces."""
    monkeypatch.setattr("collops.seismic.survey.zarr._MAX_CACHED_BYTES", limit)
    traces, x = np.random.default_rng(0).normal(size=(5, 3, 20)), 100.0 * np.arange(15).reshape(5, 3)
    if comm.rank == 0:
        group = zarr.open_group(str(folder / "a.zarr"), mode="w")
        put(group, "seismic", traces, ("receiver", "shot", "time"))
        put(group, "time", 4000 * np.arange(20), ("time",), units="us")
        put(group, "source_coord_x", [10.0, 20.0, 30.0], ("shot",))
        put(group, "source_coord_y", [0.0, 0.0, 0.0], ("shot",))
        put(group, "group_coord_x", x.T, ("shot", "receiver"))
        put(group, "group_coord_y", np.zeros(5), ("receiver",))
        put(group, "channel", [7, 8, 7, 8, 7], ("receiver",))  # of several cables
    comm.barrier()
    found = read(folder / "a.zarr", comm)
    assert found.geometry.interval == 0.004 and found.geometry.sources[0].tolist() == [10, 20, 30]
    assert [each[0].tolist() for each in found.geometry.receivers] == x.T.tolist()
    assert found.headers is not None and found.headers.channels[0].tolist() == [1, 2, 3, 4, 5]
    for shot, mine in zip(found.shots, found.traces, strict=True):
        np.testing.assert_array_equal(mine, traces[:, shot])
        assert mine.dtype == np.float64


def without(name: str) -> Any:
    return lambda group: group.__delitem__(name)


def attribute(array: str, **values: Any) -> Any:
    return lambda group: group[array].attrs.update(values)


def replaced(name: str, values: Any, *axes: str, **more: Any) -> Any:
    def change(group: Any) -> None:
        if name in group:
            del group[name]
        put(group, name, values, axes, **more)

    return change


def every(group: Any) -> None:
    for name in POSITIONS:
        del group[name]
    put(group, "cdp_x", np.arange(15.0), ("trace",))


def offsets_in_metres_as_km(group: Any) -> None:
    put(group, "offset", 1000 * (group["group_coord_x"][:] - group["source_coord_x"][:]), ("trace",), units="km")


def chunk_of_nothing(group: Any) -> None:
    path = group.store.root / "data" / ".zarray"
    path.write_text(path.read_text().replace('"chunks": [\n    2,', '"chunks": [\n    0,'))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (without("source_coord_y"), "lacks source_coord_y: add the positions .* axes of the traces, trace .zeros"),
        (every, "must hold shots, not stacked traces"),
        (without("time"), r"has the axes trace \(15\) x time \(40\): write it in the form of xarray"),
        (attribute("time", units="furlong"), "time has the unit furlong: set its attribute units to .* s or ms"),
        (replaced("time", np.arange(40.0), "time"), "time has no unit: set its attribute units"),
        (replaced("time", np.arange(41.0), "time", units="s"), "time must hold the times of all 40 samples"),
        (replaced("time", np.arange(40.0) ** 2, "time", units="s"), "time must increase by a constant interval"),
        (
            replaced("group_coord_x", np.arange(14.0), "trace"),
            r"axes trace \(14\), but its axes must be axes of the traces: trace \(15\)",
        ),
        (
            replaced("group_coord_x", np.arange(15.0), "shot"),
            r"axes shot \(15\), but its axes must be axes of the traces",
        ),
        (attribute("source_coord_x", units="degrees_east"), "coordinates in degrees: project them"),
        (attribute("source_coord_x", units="chain"), "source_coord_x is in chain: convert it to m, ft or km"),
        (replaced("trace_mask", np.zeros(15, bool), "trace"), "has no live traces"),
        (replaced("channel", np.full(15, np.nan), "trace"), r"channel has no finite number at trace 0 \(from 0\)"),
        (offsets_in_metres_as_km, "give 0.001 times as much: correct the attribute units of the coordinates"),
        (replaced("data", np.full((15, 40), "x"), "trace", "time"), "must be an array of real numbers"),
        (without("data"), "has no array of traces called data, seismic, amplitude: pass the path of its array"),
        (chunk_of_nothing, "has chunks of .0, 40. elements: it is damaged"),
        (lambda group: group["data"].__setitem__((7, 3), -32768), "shot 2, trace 3, sample 4 is nan: repair"),
    ],
)
def test_stores_without_a_survey_are_one_error(comm, folder, damage, complaint):
    geometry = small_geometry(towed=True)
    if comm.rank == 0:
        in_form_of_xarray(folder / "a.zarr", geometry, [np.ones((5, 40), np.int16)] * 3)
        damage(zarr.open_group(str(folder / "a.zarr"), mode="r+"))
    comm.barrier()
    with pytest.raises(InputError, match=complaint) as caught:
        _ = read(folder / "a.zarr", comm).traces
    assert comm.size == 1 or caught.value.on_all_ranks


def test_a_survey_comes_back_as_it_was_saved(comm, folder):
    rng = np.random.default_rng(1)
    sources, receivers = rng.uniform(0, 400, (3, 4)), [rng.uniform(0, 400, (3, 5 + shot)) for shot in range(4)]
    survey = Survey(Geometry(sources, receivers, 30, 0.0015, -0.02), comm)
    survey.traces = [random_traces(survey.geometry)[shot] for shot in survey.shots]
    survey.save(folder / "a.zarr", Grid(5, 4, 10.0, 10.0, ny=3, dy=10.0), velocity=1500.0, mode=None)
    found = read(folder / "a.zarr", comm)
    assert found.geometry.start == -0.02
    assert found.defaults == {"velocity": "1500.0"} | {
        name: str(value) for name, value in Grid(5, 4, 10.0, 10.0, ny=3, dy=10.0).numbers.items()
    }
    for shot in range(4):  # the axes of the survey are others than those that it was made with
        apart, expected = (
            np.linalg.norm(each.geometry.receivers[shot] - each.geometry.sources[:, shot, None], axis=0)
            for each in (found, survey)
        )
        np.testing.assert_allclose(apart, expected, rtol=1e-12)
    for one, two in zip(found.traces, survey.traces, strict=True):
        np.testing.assert_array_equal(one, two)


def test_bins_are_those_of_the_store(comm, folder):
    sources, receivers = irregular_area()
    survey = Survey(Geometry(sources, receivers, 20, 0.004), comm)
    survey.traces = [random_traces(survey.geometry)[shot] for shot in survey.shots]
    survey.save(folder / "a.zarr", Grid(5, 4, 10.0, 10.0, ny=3, dy=10.0))
    if comm.rank == 0:
        group = zarr.open_group(str(folder / "a.zarr"), mode="r+")
        lines, columns = np.random.default_rng(2).integers(0, 12, (2, survey.geometry.traces))
        numbers = {"inline": 100 + 2 * lines, "crossline": 7 + columns}
        for name, values in (
            numbers | dict(zip(("cdp_x", "cdp_y"), on_map(25 * lines, 20 * columns), strict=True))
        ).items():
            put(group, name, values, ("trace",))
    comm.barrier()
    headers = read(folder / "a.zarr", comm).headers
    assert headers is not None and headers.bins is not None
    assert headers.bins.first == (100, 7) and headers.bins.steps == (2, 1)
    np.testing.assert_allclose(headers.bins.spacing, (25, 20))
    np.testing.assert_allclose(headers.line.origin, CORNER)


def test_the_command_gives_the_image_of_the_shots_in_segy(comm, folder, monkeypatch):
    geometry = ragged(90)
    traces = random_traces(geometry)
    if comm.rank == 0:
        write_survey(folder / "a.sgy", geometry, traces, {})
    spoken(comm, folder, in_form_of_mdio, geometry, traces)
    given: dict[str, Any] = {"velocity": "1500+0.6z", "frequency": 25.0, "dtype": "float64", "engine": "numpy"}
    image = {"nx": 28, "nz": 15, "dx": 25.0, "dz": 20.0, "x0": -50.0, "iterations": 3}

    def job(name: str, survey: str) -> Any:
        numbers = job_numbers(run, Options(survey=str(folder / survey), out=str(folder / name), **given, **image), comm)
        return numbers, group_of(folder, name)

    _, expected = job("segy", "a.sgy")
    monkeypatch.setattr(checks, "_COPIES", 1 << 50)
    numbers, found = job("zarr", "a.zarr")
    assert numbers["streamed"]
    for each in ("image", "data", "data_residual", "group_coord_x", "source_depth_below_surface"):
        size = np.abs(expected[each][:]).max()
        np.testing.assert_allclose(found[each][:], expected[each][:], rtol=0, atol=1e-3 * size, err_msg=each)
    for file in ("predicted", "residual", "image"):
        with (
            segyio.open(str(folder / "zarr" / f"{file}.sgy"), ignore_geometry=True) as own,
            segyio.open(str(folder / "segy" / f"{file}.sgy"), ignore_geometry=True) as other,
        ):
            one, two = own.trace.raw[:], other.trace.raw[:]
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-3 * np.abs(two).max())
            for byte in (9, 13):  # field record and channel
                assert own.attributes(byte)[:].tolist() == other.attributes(byte)[:].tolist()
            for byte, scalar in ((73, 71), (81, 71), (41, 69), (49, 69)):  # positions and depths
                ours, theirs = (each.attributes(byte)[:] / -each.attributes(scalar)[:] for each in (own, other))
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3)
    # What the command writes is a survey as well: its data, or its residual.
    again = read(folder / "zarr" / "result.zarr" / "data_residual", comm)
    residual = expected["data_residual"][:]
    assert again.geometry.traces == len(residual)
    own = np.isin(np.repeat(np.arange(3), COUNTS), again.shots)
    found = np.concatenate([np.empty((0, 90)), *again.traces])
    np.testing.assert_allclose(found, residual[own], rtol=0, atol=1e-3 * np.abs(residual).max())


@pytest.mark.serial
def test_streaming_decodes_a_chunk_of_several_shots_once(comm, folder, monkeypatch):
    geometry = ragged()
    in_form_of_mdio(folder / "a.zarr", geometry, random_traces(geometry))
    survey, opened, get = read(folder / "a.zarr", comm), [], LocalStore.get

    async def counted(self: Any, key: str, *args: Any, **more: Any) -> Any:
        opened.append(f"{self.root.name}/{key}")
        return await get(self, key, *args, **more)

    monkeypatch.setattr(LocalStore, "get", counted)
    found = [survey.read_shots(range(shot, shot + 1)) for shot in range(3)]
    assert [key for key in opened if key.startswith("wiggles/")] == ["wiggles/c/0/0/0", "wiggles/c/1/0/0"]
    for (mine,), expected in zip(found, random_traces(geometry), strict=True):
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"field_record": np.array([20261126001, 20261126002, 20261126003])},
            "field record numbers in SEG-Y must be at most 2147483647",
        ),
        ({"time": 40.0 + 0.004 * np.arange(40)}, "delays up to 32767 ms"),
        ({"time": 10.4e-6 * np.arange(40)}, "whole microseconds"),
    ],
)
def test_headers_that_the_results_cannot_hold_end_the_job_before_it_computes(comm, folder, change, complaint):
    geometry = small_geometry(shots=3)
    traces = random_traces(geometry)

    def write(path: Path) -> None:
        in_form_of_xarray(path, geometry, traces)
        group = zarr.open_group(str(path), mode="r+", zarr_format=2)
        for name, values in change.items():
            if name in group:
                del group[name]
            axis = "time" if name == "time" else "trace"
            put(group, name, np.repeat(values, 5) if axis == "trace" else values, (axis,), units="s")

    spoken(comm, folder, write)
    with pytest.raises(InputError, match=complaint):
        job_numbers(run, Options(survey=str(folder / "a.zarr"), velocity="1500", out=str(folder / "out")), comm)
