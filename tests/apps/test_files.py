"""Files of users and folders of results, against NumPy, xarray and what the file system says."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import xarray
import zarr

from collops.apps import files
from collops.apps.files import Field
from collops.errors import InputError

pytestmark = pytest.mark.serial
STORED = np.arange(24, dtype="i2").reshape(4, 6)


@pytest.fixture
def stored(tmp_path):
    """A Zarr array of small integers, with attributes."""

    def make(values=STORED, **attributes):
        return zarr.create_array(tmp_path / "a.zarr", data=values, attributes=attributes)

    return make


@pytest.mark.parametrize("index", [([1, 3], slice(1, 4)), (slice(0, 3), [5, 0]), ([3, 0], [1, 5])])
def test_arrays_in_an_index_select_along_their_axes(stored, tmp_path, index):
    lists = tuple(np.asarray(part) if isinstance(part, list) else np.arange(6)[part] for part in index)
    got = files.decoded(stored(), tmp_path, tuple(np.asarray(p) if isinstance(p, list) else p for p in index))
    np.testing.assert_array_equal(got, STORED[np.ix_(*lists)])


@pytest.mark.parametrize(
    "attributes",
    [{"scale_factor": 0.5}, {"add_offset": 1e7}, {"add_offset": 1e7, "scale_factor": 1e-3}, {"_Unsigned": "True"}],
)
def test_packed_values_are_those_of_xarray(tmp_path, attributes):
    values = STORED - np.int16(3)
    dataset = xarray.Dataset({"a": (("y", "x"), values, attributes)})
    dataset.to_zarr(tmp_path / "d.zarr", zarr_format=3, consolidated=False)
    array = zarr.open_array(tmp_path / "d.zarr" / "a")
    if "_Unsigned" in attributes:
        expected = values.view("u2").astype("f8")  # xarray compares with "true" in small letters
    else:
        expected = xarray.open_zarr(tmp_path / "d.zarr", consolidated=False)["a"].values
    got = files.decoded(array, tmp_path)
    np.testing.assert_array_equal(got, expected.astype(got.dtype))
    assert got.dtype == ("f8" if "add_offset" in attributes else "f4")


def test_a_mark_of_either_sign_is_the_same_byte(stored, tmp_path):
    array = stored(np.array([3, 254, 255], "u1"), _FillValue=-1, _Unsigned="true")
    np.testing.assert_array_equal(files.decoded(array, tmp_path), [3, 254, np.nan])


def test_truth_values_are_no_data(stored, tmp_path):
    stored(STORED > 3)
    with pytest.raises(InputError, match="holds bool: save real numbers"):
        files.open_array(tmp_path / "a.zarr", ("data",))


def test_suffixes_in_capital_letters(tmp_path):
    np.save(tmp_path / "data.npy", STORED)
    os.rename(tmp_path / "data.npy", tmp_path / "data.NPY")
    array, _ = files.open_array(tmp_path / "data.NPY", ("data",))
    np.testing.assert_array_equal(array, STORED)


def edit(path, change):
    """Change the metadata of an array as damage would."""
    metadata = json.loads((path / "zarr.json").read_text())
    change(metadata)
    (path / "zarr.json").write_text(json.dumps(metadata))


def test_chunks_without_elements_and_chunks_larger_than_memory(stored, tmp_path):
    stored()

    def chunks(shape):
        return lambda metadata: metadata["chunk_grid"]["configuration"].update(chunk_shape=shape)

    edit(tmp_path / "a.zarr", chunks([4, 0]))
    with pytest.raises(InputError, match="damaged"):
        files.open_zarr(tmp_path / "a.zarr")
    edit(tmp_path / "a.zarr", chunks([1 << 30, 1 << 30]))
    with pytest.raises(InputError, match="the chunks of"):
        files.open_zarr(tmp_path / "a.zarr")


@pytest.mark.parametrize("names", [["y"], ["y", "x", "z"], "yx", 3])
def test_names_of_another_number_of_axes_are_left_out(stored, names):
    assert files.dimension_names(stored(_ARRAY_DIMENSIONS=names)) == (None, None)


def test_the_only_array_of_two_or_three_axes(tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("line", data=np.zeros(3))
    group.create_array("cube", data=np.ones((2, 3, 4)))
    array, held_by = files.open_array(tmp_path / "g.zarr", ("data",))
    assert array.shape == (2, 3, 4) and held_by.path == ""
    group.create_group("data")
    with pytest.raises(InputError, match="is a group"):
        files.open_array(tmp_path / "g.zarr", ("data",))


def test_the_first_number_that_is_not_finite():
    assert files.not_finite(np.array([[1, 2.0], [np.nan, 3], [4, -np.inf]])) == (1, 0)
    assert files.not_finite(np.ones(3)) is None


def test_room_that_just_suffices(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "free_room", lambda folder: 1000)
    files.check_room(tmp_path, 1000, "--out")
    with pytest.raises(InputError, match="--out"):
        files.check_room(tmp_path, 1001, "--out")


def test_a_file_where_a_folder_should_be(tmp_path, comm):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--checkpoint must name a folder"):
        files.prepare_folder(tmp_path / "file", "--checkpoint")
    with pytest.raises(InputError, match="--checkpoint must name a folder"):
        files.share_folders(comm, {"--checkpoint": tmp_path / "file"})


def test_a_folder_where_a_file_should_be(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        files.check_writable(tmp_path)
    (tmp_path / "a.zarr").mkdir()
    files.check_writable(tmp_path / "a.zarr")


def test_a_file_system_that_takes_no_files(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        files.check_writable(type(tmp_path)("/proc/self/result"))
    assert shutil.disk_usage(tmp_path).free


def test_xarray_shows_coordinates_and_data(tmp_path, comm):
    fields = {
        "image": Field(np.ones((3, 2)), ("x", "z"), "1"),
        "x": Field(np.arange(3.0), ("x",), "m"),
        "depth": Field(np.arange(2.0), ("z",), "m", is_coordinate=True),
    }
    files.write_result(tmp_path / "r.zarr", comm, fields, {"title": "t"})
    result = xarray.open_zarr(tmp_path / "r.zarr", consolidated=False)
    assert set(result.coords) == {"x", "depth"} and set(result.data_vars) == {"image"}
    assert result.attrs["title"] == "t" and result["depth"].attrs["units"] == "m"
