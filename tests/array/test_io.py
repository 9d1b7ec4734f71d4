"""Saving and loading with Zarr: across layouts, numbers of ranks, dtypes and nestings."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import collops.array as ca
from collops.array import Layout, StackedArray, StackedLayout
from collops.errors import InputError, LayoutError
from tests.array.cases import HALF, INEXACT, dtype_of, layouts, masks, values
from tests.launch import run_ranks
from tests.robust.test_disagreement import build

zarr = pytest.importorskip("zarr")
SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def folder(comm):
    """One empty directory for all ranks."""
    path = tempfile.mkdtemp(prefix="collops-") if comm.rank == 0 else None
    path = comm.allgather_metadata(path)[0]
    yield Path(path)
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


def test_every_layout(comm, folder):
    for shape in [(7,), (1,), (5, 4), (2, 7), (3, 2, 3)]:
        a = values(shape)
        for number, layout in enumerate(layouts(shape, comm.size)):
            path = folder / f"{len(shape)}-{shape[0]}-{number}"
            x = ca.from_global(a, layout, comm=comm)
            x.save(path)
            same = ca.load(path, comm=comm)
            assert same.layout is layout
            np.testing.assert_array_equal(same.gather(), a)
            np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], a)  # an ordinary Zarr array
            other = Layout.split(shape, comm.size, len(shape) - 1)
            np.testing.assert_array_equal(ca.load(path, other, comm=comm).local_array, a[other.slices(comm.rank)])


@pytest.mark.parametrize("name", [*INEXACT, *HALF, "bool", "int8", "uint64"])
def test_every_dtype(comm, folder, name):
    a = values((6, 3)).astype(dtype_of(name))
    ca.from_global(a, comm=comm).save(folder / "x")
    back = ca.load(folder / "x", comm=comm)
    assert back.dtype == a.dtype
    np.testing.assert_array_equal(back.gather(), a)


def test_another_number_of_ranks(comm, folder):
    a = values((7, 3))
    ca.from_global(a, Layout.split(a.shape, comm.size, 1), comm=comm).save(folder / "x")
    alone = comm.subgroup(tuple(range(comm.size)))
    x = ca.load(folder / "x", comm=alone)
    assert x.comm is alone
    np.testing.assert_array_equal(x.local_array, a)
    # As if more ranks had written it.
    comm.barrier()
    if comm.rank == 0:
        place = folder / "x" / "zarr.json"
        about = json.loads(place.read_text())
        wider = Layout.split(a.shape, 9, 1)
        about["attributes"]["collops"] |= {"ranks": 9, "process_grid": [9], "axes": [None, 0], "sizes": wider.sizes}
        place.write_text(json.dumps(about))
    comm.barrier()
    y = ca.load(folder / "x", comm=comm)
    assert y.layout is Layout.split(a.shape, comm.size, 1)
    np.testing.assert_array_equal(y.gather(), a)


def test_a_replicated_array_stays_replicated_on_another_number_of_ranks(comm, folder):
    a = values((5, 2))
    ca.from_global(a, Layout.replicated(a.shape, comm.size), comm=comm).save(folder / "x")
    comm.barrier()
    if comm.rank == 0:  # as if more ranks had written it
        place = folder / "x" / "zarr.json"
        about = json.loads(place.read_text())
        about["attributes"]["collops"] |= {"ranks": 9, "process_grid": [9]}
        place.write_text(json.dumps(about))
    comm.barrier()
    x = ca.load(folder / "x", comm=comm)
    assert x.layout is Layout.replicated(a.shape, comm.size)
    np.testing.assert_array_equal(x.local_array, a)


def test_an_array_of_one_rank_is_split_over_several(comm, folder):
    a, alone = values((5, 2)), comm.subgroup(tuple(range(comm.size)))
    if comm.rank == 0:
        ca.from_global(a, comm=alone).save(folder / "x")
    comm.barrier()
    x = ca.load(folder / "x", comm=comm)
    assert x.layout is Layout.split(a.shape, comm.size)
    np.testing.assert_array_equal(x.gather(), a)


def test_chunks_smaller_than_blocks(comm, folder, monkeypatch):
    monkeypatch.setattr("collops.array.store._CHUNK_BYTES", 200)
    a = values((23, 5, 4))
    for number, layout in enumerate(layouts(a.shape, comm.size)):
        ca.from_global(a, layout, comm=comm).save(folder / str(number))
        stored = zarr.open_array(folder / str(number), mode="r")
        assert np.prod(stored.chunks) * 8 <= 200
        np.testing.assert_array_equal(stored[...], a)


def test_nested(comm, folder):
    x = ca.random((5, 3), comm=comm)
    y = ca.random(Layout.replicated(4, comm.size), dtype="complex64", comm=comm)
    stacked = StackedArray([x, StackedArray([y, x])] + [y] * 10)
    ca.save(folder / "all", {"stack": stacked, "plain": x}, attributes={"title": "all of it"})
    assert zarr.open(folder / "all", mode="r").attrs["title"] == "all of it"
    back = ca.load(folder / "all", comm=comm)
    assert set(back) == {"stack", "plain"}
    assert back["stack"].layout is stacked.layout
    for leaf, expected in zip(back["stack"].leaves, stacked.leaves, strict=True):
        assert leaf.dtype == expected.dtype
        np.testing.assert_array_equal(leaf.local_array, expected.local_array)
    other = ca.load(folder / "all", {"plain": Layout.replicated((5, 3), comm.size)}, comm=comm)
    np.testing.assert_array_equal(other["plain"].local_array, x.gather())
    stacked.save(folder / "stack")
    layout = StackedLayout([x.layout, stacked.layout[1], *[y.layout] * 10])
    assert ca.load(folder / "stack", layout, comm=comm).layout is layout


def test_masks_are_kept(comm, folder):
    a = values(7)
    for mask in masks(comm.size):
        path = folder / "".join(map(str, mask))
        layout = Layout.split(7, comm.size, mask=mask)
        ca.from_global(a, layout, comm=comm).save(path)
        x = ca.load(path, comm=comm)
        assert x.layout is layout
        np.testing.assert_array_equal(x.gather(), a)


def test_values_of_groups_are_refused(comm, folder):
    """There is no global array: each group has another one."""
    for mask in masks(comm.size):
        layout = Layout.replicated((3, 2), comm.size, mask=mask)
        x = ca.from_local(np.full((3, 2), float(mask[comm.rank])), layout, comm=comm)
        for saved in (x, StackedArray([x, x]), {"a": {"b": x}, "c": ca.ones(4, comm=comm)}):
            with pytest.raises(LayoutError, match="each group of ranks has values of its own"):
                ca.save(folder / "x", saved)
        own = comm.split(mask[comm.rank])  # the remedy
        ca.from_local(x.local_array, Layout.replicated((3, 2), own.size), comm=own).save(
            folder / f"{mask}-{mask[comm.rank]}"
        )
        comm.barrier()
    assert not (folder / "x").exists()


def test_empty_arrays(comm, folder):
    ca.zeros((0, 3), comm=comm).save(folder / "x")
    assert ca.load(folder / "x", comm=comm).shape == (0, 3)


def test_overwriting_is_asked_for(comm, folder):
    x = ca.ones(5, comm=comm)
    x.save(folder / "x")
    with pytest.raises(InputError, match="overwrite=True"):
        x.save(folder / "x")
    (2 * x).save(folder / "x", overwrite=True)
    assert float(ca.load(folder / "x", comm=comm).sum()) == 10
    with pytest.raises(InputError, match="not a Zarr store"):  # never deletes what it did not write
        x.save(folder, overwrite=True)
    assert (folder / "x").exists()


def test_files_of_others_and_bad_files(comm, folder):
    a = values((6, 2), "float32")
    if comm.rank == 0:
        zarr.create_array(folder / "plain", data=a)
        zarr.create_array(folder / "swapped", data=a.astype(a.dtype.newbyteorder()))
        (folder / "broken").mkdir()
        (folder / "broken" / "zarr.json").write_text("{")
    comm.barrier()
    for name in ("plain", "swapped"):
        x = ca.load(folder / name, comm=comm)
        assert x.dtype == np.float32
        np.testing.assert_array_equal(x.gather(), a)
    with pytest.raises(InputError, match="not a Zarr 3 store"):
        ca.load(folder / "missing", comm=comm)
    with pytest.raises(InputError):
        ca.load(folder / "broken", comm=comm)
    with pytest.raises(LayoutError, match="does not fit"):
        ca.load(folder / "plain", Layout.split(3, comm.size), comm=comm)
    with pytest.raises(InputError, match="name"):
        ca.save(folder / "named", {"a/b": ca.zeros(3, comm=comm)})
    with pytest.raises(InputError, match="not empty"):
        ca.save(folder / "nothing", {})


def test_a_store_whose_chunks_have_no_elements(comm, folder):
    ca.save(folder / "a.zarr", ca.ones((6, 2), comm=comm))
    comm.barrier()
    if comm.rank == 0:
        meta = folder / "a.zarr" / "zarr.json"
        text = json.loads(meta.read_text())
        text["chunk_grid"]["configuration"]["chunk_shape"] = [0, 2]
        meta.write_text(json.dumps(text))
    comm.barrier()
    with pytest.raises(InputError, match="cannot be read"):
        ca.load(folder / "a.zarr", comm=comm)


def chunks_of(path):
    """The files with values of an array."""
    return sorted(file for file in path.iterdir() if file.name != "zarr.json")


@pytest.mark.parametrize("name", [*INEXACT, *HALF, "bool", "int16"])
def test_zeros_are_stored_with_their_signs(comm, folder, name):
    """Every chunk has a file: nothing is left to what a reader takes for missing values."""
    dtype = dtype_of(name)
    a = np.zeros((comm.size + 1, 3), dtype)
    if dtype.kind not in "bi":
        a[1:] = -a[1:]
        if dtype.kind == "c":
            a.real[:, 0] = -0.0
            a.imag[:, 1] = -0.0
    for number, layout in enumerate(layouts(a.shape, comm.size)):
        path = folder / str(number)
        ca.from_global(a, layout, comm=comm).save(path)
        assert len(chunks_of(path)) == zarr.open_array(path, mode="r").nchunks
        back = ca.load(path, layout, comm=comm)
        assert back.local_array.tobytes() == np.ascontiguousarray(a[layout.slices(comm.rank)]).tobytes()


@pytest.mark.parametrize("name", ["float32", "complex128", "float16", "bool", "int64"])
def test_a_lost_chunk_is_an_error_on_every_rank(comm, folder, name):
    x = ca.zeros((2 * comm.size + 1, 3), dtype=name, comm=comm)
    y = ca.zeros(Layout.replicated(4, comm.size), dtype=name, comm=comm)
    ca.save(folder / "all", {"stack": StackedArray([x, y]), "a": {"b": y, "x": x}})
    comm.barrier()
    if comm.rank == 0:
        for member in ("stack/0", "a/x"):
            chunks_of(folder / "all" / member)[-1].unlink()
    comm.barrier()
    for path, layout in [
        (folder / "all", None),
        (folder / "all" / "stack", None),
        (folder / "all" / "a" / "x", None),
        # Only one rank needs what is lost.
        (folder / "all" / "a" / "x", Layout.split(x.shape, comm.size, sizes=[x.shape[0], *[0] * (comm.size - 1)])),
    ]:
        with pytest.raises(InputError, match=r"has lost 1 of its files with values, such as c\.") as caught:
            ca.load(path, layout, comm=comm)
        assert comm.size == 1 or caught.value.on_all_ranks
    np.testing.assert_array_equal(ca.load(folder / "all" / "a" / "b", comm=comm).gather(), np.zeros(4))


@pytest.mark.parametrize("name", ["stack/0", "stack/1", "a/x", "a", "stack"])
def test_a_member_without_its_metadata_is_an_error_on_every_rank(comm, folder, name):
    x = ca.ones(2 * comm.size + 1, comm=comm)
    ca.save(folder / "all", {"stack": StackedArray([x, x]), "a": {"b": x, "x": x}})
    comm.barrier()
    if comm.rank == 0:
        (folder / "all" / name / "zarr.json").unlink()
    comm.barrier()
    with pytest.raises(InputError, match=rf"has lost the metadata of {name.rpartition('/')[2]}:") as caught:
        ca.load(folder / "all", comm=comm)
    assert comm.size == 1 or caught.value.on_all_ranks


def test_a_damaged_chunk_is_an_error(comm, folder):
    x = ca.random((40, 50), comm=comm)
    for number, harm in enumerate(["bit", "short", "empty"]):
        path = folder / str(number)
        x.save(path)
        comm.barrier()
        if comm.rank == 0:
            chunk = chunks_of(path)[-1]
            found = bytearray(chunk.read_bytes())
            found[len(found) // 2] ^= 16
            chunk.write_bytes({"bit": found, "short": found[:-3], "empty": b""}[harm])
        comm.barrier()
        with pytest.raises(InputError, match="cannot be read as arrays"):
            ca.load(path, comm=comm)


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_rows_that_another_program_appends(comm, folder, dtype):
    """It may leave out chunks of zeros, and the layout that was saved does not have the new rows."""
    a = values((2 * comm.size + 1, 3)).astype(dtype)
    path = folder / "x"
    ca.from_global(a, comm=comm).save(path)
    comm.barrier()
    more = np.zeros((3 * comm.size + 1, 3), dtype)
    if comm.rank == 0:
        zarr.open_array(path, mode="r+").append(more)
    comm.barrier()
    np.testing.assert_array_equal(ca.load(path, comm=comm).gather(), np.concatenate([a, more]))
    comm.barrier()
    if comm.rank == 0:
        chunks_of(path)[0].unlink()
    comm.barrier()
    with pytest.raises(InputError, match="has lost"):
        ca.load(path, comm=comm)


def test_zeros_that_another_program_writes(comm, folder):
    """Zarr removes chunks of fill values, which are not zeros."""
    ca.ones(9, comm=comm).save(folder / "x")
    comm.barrier()
    if comm.rank == 0:
        zarr.open_array(folder / "x", mode="r+")[:] = 0
    comm.barrier()
    np.testing.assert_array_equal(ca.load(folder / "x", comm=comm).gather(), np.zeros(9))


def test_a_copy_by_another_program_may_leave_out_chunks(comm, folder):
    a = values((8, 3))
    a[:4] = 0
    ca.from_global(a, comm=comm).save(folder / "x")
    comm.barrier()
    if comm.rank == 0:
        saved = zarr.open_array(folder / "x", mode="r")
        for name, options in [("plain", {}), ("shards", {"shards": (4, 3)})]:
            attributes = dict(saved.attrs)
            copy = zarr.create_array(
                folder / name,
                shape=a.shape,
                dtype=a.dtype,
                chunks=(2, 3),
                fill_value=0,
                attributes=attributes,
                **options,
            )
            copy[:] = a
    comm.barrier()
    for name in ("plain", "shards"):
        np.testing.assert_array_equal(ca.load(folder / name, comm=comm).gather(), a)


@pytest.mark.filterwarnings("ignore:Consolidated metadata:zarr.errors.ZarrUserWarning")
def test_consolidated_metadata_are_ignored(comm, folder):
    """Also of groups in groups, which have some of their own."""
    rows = values((7, 10))
    if comm.rank == 0:
        root = zarr.create_group(folder / "g")
        for place in ("", "inner", "inner/most"):
            group = root.require_group(place) if place else root
            group.create_array("x", shape=(5, 10), chunks=(1, 10), dtype="f8")[:] = rows[:5]
        for place in ("g/inner/most", "g/inner", "g"):
            zarr.consolidate_metadata(folder / place)
        for place in ("x", "inner/x", "inner/most/x"):
            zarr.open_array(folder / "g" / place, mode="r+").append(rows[5:])
        late = zarr.open_group(folder / "g" / "inner", mode="r+", use_consolidated=False)
        late.create_array("late", data=rows[0])
    comm.barrier()
    found = ca.load(folder / "g", comm=comm)
    for x in (found["x"], found["inner"]["x"], found["inner"]["most"]["x"]):
        np.testing.assert_array_equal(x.gather(), rows)
    np.testing.assert_array_equal(found["inner"]["late"].gather(), rows[0])


def test_attributes_are_checked_before_anything_is_touched(comm, folder):
    x, path = ca.full(6, 7.0, comm=comm), folder / "x"
    x.save(path)
    for attributes in [
        {"a": object()},
        {"a": 1j},
        {"a": np.complex64(1)},
        {"a": {"b": [np.datetime64("2026-01-01")]}},
        {"a": {1, 2}},
        {"a": {(1, 2): 3}},
        {3: "a"},
        {"collops": 1},
        {"collops_complete": [6]},
        ["a"],
    ]:
        with pytest.raises(InputError, match="attribute"):
            ca.save(path, 2 * x, overwrite=True, attributes=attributes)
    with pytest.raises(InputError, match="name"):
        ca.save(path, {"zarr.json": x}, overwrite=True)
    if np.dtype(np.longdouble).itemsize > 8:
        with pytest.raises((InputError, ValueError)):
            ca.save(path, x.astype(np.longdouble), overwrite=True)
    np.testing.assert_array_equal(ca.load(path, comm=comm).gather(), np.full(6, 7.0))
    comm.barrier()
    assert os.listdir(folder) == ["x"]
    comm.barrier()
    given = {"step": np.int64(3), "size": np.float32(0.5), "on": np.True_, "list": np.arange(3), "text": np.str_("é")}
    ca.save(path, 2 * x, overwrite=True, attributes=given | {"nested": {"a": [np.uint8(1), None]}})
    expected = {"step": 3, "size": 0.5, "on": True, "list": [0, 1, 2], "text": "é", "nested": {"a": [1, None]}}
    assert expected.items() <= dict(zarr.open_array(path, mode="r").attrs).items()
    np.testing.assert_array_equal(ca.load(path, comm=comm).gather(), np.full(6, 14.0))


@pytest.mark.parametrize("where", ["first chunk", "renaming", "metadata"])
def test_what_was_there_stays_if_a_rank_cannot_write(comm, folder, monkeypatch, where):
    x, path = ca.random((2 * comm.size + 3, 4), comm=comm), folder / "x"
    x.save(path)
    comm.barrier()
    failing = comm.size - 1 if where == "first chunk" else 0
    names = {"first chunk": "write_region", "metadata": "_create", "renaming": "os.replace"}

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        if comm.rank == failing:
            name = names[where]
            context.setattr(name if "." in name else f"collops.array.store.{name}", fail)
        for target, overwrite in [(path, True), (folder / "new", False)]:
            with pytest.raises(OSError, match="No space left") as caught:
                ca.save(target, {"a": 2 * x, "b": x}, overwrite=overwrite)
            assert comm.size == 1 or caught.value.on_all_ranks
    np.testing.assert_array_equal(ca.load(path, comm=comm).gather(), x.gather())
    comm.barrier()
    assert os.listdir(folder) == ["x"]


def test_a_disk_without_room(comm, folder, monkeypatch):
    """A limit of the process on the size of files; and too little space, which is known before anything is written."""
    x = ca.random(200_000, comm=comm)
    x.save(folder / "x")
    comm.barrier()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            (2 * x).save(folder / "x", overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    monkeypatch.setattr("collops.array.store.free_room", lambda _: 1_500_000)
    with pytest.raises(InputError, match=r"the arrays need 1\.53 MiB, and .* has room for 1\.43 MiB"):
        ca.save(folder / "y" / "z", x)
    np.testing.assert_array_equal(ca.load(folder / "x", comm=comm).gather(), x.gather())
    comm.barrier()
    assert os.listdir(folder) == ["x"]


def test_ranks_in_different_folders(comm, folder, monkeypatch):
    """One path, relative to another folder on each rank; and one path on each rank."""
    if comm.size == 1:
        pytest.skip("one rank is in one folder")
    monkeypatch.setattr("collops.comm.files._SECONDS_TO_APPEAR", 0.2)
    x = ca.random((2 * comm.size, 3), comm=comm)
    own = folder / f"rank-{comm.rank}"
    own.mkdir()
    monkeypatch.chdir(own)
    comm.barrier()
    others = "rank 1" if comm.size == 2 else f"ranks 1-{comm.size - 1}"
    for path in ("x", folder / f"x-{comm.rank}"):
        for saved in (x, {"a": x}):
            with pytest.raises(InputError, match=f"is not the same folder on rank 0 on .* and on {others}") as caught:
                ca.save(path, saved)
            assert caught.value.on_all_ranks
    comm.barrier()
    assert sorted(file.name for file in folder.rglob("*")) == [f"rank-{rank}" for rank in range(comm.size)]
    comm.barrier()
    alone = comm.subgroup(tuple(range(comm.size)))
    ca.ones((2 * comm.size, 3), comm=alone).save("x")  # each rank has another store of this name
    with pytest.raises(InputError, match=f"is another store on {others} than on rank 0") as caught:
        ca.load("x", Layout.split(x.shape, comm.size), comm=comm)
    assert caught.value.on_all_ranks
    x.save("../shared")  # the same folder


def test_ranks_with_different_arrays(comm, folder):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    x = ca.ones(4, comm=comm)
    with pytest.raises(InputError, match="a call of save"):
        ca.save(folder / "x", {"a" if comm.rank else "b": x})
    assert not (folder / "x").exists()


def test_ranks_with_different_options(comm, folder):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    x = ca.ones(4, comm=comm)
    x.save(folder / "x")
    for options in ({"overwrite": comm.rank == 0}, {"overwrite": True, "attributes": {"step": 0.1 * comm.rank}}):
        with pytest.raises(InputError, match="a call of save differs between ranks") as caught:
            ca.save(folder / "x", 2 * x, **options)
        assert caught.value.on_all_ranks
    np.testing.assert_array_equal(ca.load(folder / "x", comm=comm).gather(), np.ones(4))


def test_copies_are_compared(comm, folder):
    """Where COLLOPS_CHECK is on; the ranks write parts of their copies."""
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    checked = build(comm, "1")
    x = ca.ones(Layout.replicated(4, comm.size), comm=checked)
    x.local_array[0] = comm.rank
    for arrays in (x, ca.StackedArray([x, x]), {"a": {"b": x}}):
        with pytest.raises(LayoutError, match="copies that should be equal") as caught:
            ca.save(folder / "x", arrays)
        assert caught.value.on_all_ranks
    assert not (folder / "x").exists()


def test_links_and_parents(comm, folder):
    x = ca.random(5, comm=comm)
    x.save(folder / "a" / "b" / "x")
    comm.barrier()
    if comm.rank == 0:
        (folder / "link").symlink_to(folder / "a" / "b" / "x")
    comm.barrier()
    (2 * x).save(folder / "link", overwrite=True)
    assert (folder / "link").is_symlink()
    np.testing.assert_array_equal(ca.load(folder / "a" / "b" / "x", comm=comm).gather(), 2 * x.gather())


def test_xarray_opens_arrays_with_named_axes(comm, folder):
    """With the coordinates of the axes, and one of both axes, which another attribute lists."""
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    a, line = values((7, 5)), values((7,), "float32")
    depth, x = np.arange(7) * 0.5, np.arange(5) + 10
    layout = Layout.split(a.shape, comm.size, 1)
    arrays = {"model": ca.from_global(a, layout, comm=comm), "line": ca.from_global(line, comm=comm)}
    coords = {"depth": depth, "x": ca.from_global(x, comm=comm), "distance": (("depth", "x"), a**2)}
    names = {"model": ("depth", "x"), "line": ["depth"]}
    ca.save(folder / "all", arrays, dims=names, coords=coords, chunks={"model": (2, 5)}, attributes={"title": "all"})
    with xarray.open_zarr(folder / "all", consolidated=False) as found:
        assert dict(found.sizes) == {"depth": 7, "x": 5} and found.attrs["title"] == "all"
        assert found["model"].dims == ("depth", "x") and set(found.data_vars) == {"model", "line"}
        assert set(found.coords) == {"depth", "x", "distance"} and set(found.indexes) == {"depth", "x"}
        for name, expected in {"model": a, "line": line, "depth": depth, "x": x, "distance": a**2}.items():
            np.testing.assert_array_equal(found[name].values, expected)
        assert found["model"].encoding["chunks"] == (2, 5)
        assert float(found["model"].sel(depth=1.5, x=12)) == a[3, 2]
    back = ca.load(folder / "all", comm=comm)
    assert set(back) == {"model", "line", "depth", "x", "distance"} and back["model"].layout is layout
    np.testing.assert_array_equal(back["depth"].gather(), depth)


def test_names_for_all_arrays(comm, folder):
    """A tuple holds for all arrays of the caller, also in dictionaries and stacks, but not for coordinates."""
    x = ca.ones((4, 3), comm=comm)
    saved = {"a": x, "b": {"c": x, "d": StackedArray([x, x])}}
    ca.save(folder / "all", saved, dims=("y", "x"), chunks=(2, 3), coords={"y": np.arange(4)})
    group = zarr.open_group(folder / "all", mode="r")
    for name in ("a", "b/c", "b/d/1"):
        assert group[name].metadata.dimension_names == ("y", "x") and group[name].chunks == (2, 3)
    assert group["y"].metadata.dimension_names == ("y",)
    x.save(folder / "x")
    assert zarr.open_array(folder / "x", mode="r").metadata.dimension_names is None


def test_chunks_and_shards(comm, folder):
    """Each file is written by one rank, as a whole, in any layout of the array."""
    a = values((11, 5, 4))
    for number, layout in enumerate(layouts(a.shape, comm.size)):
        x = ca.from_global(a, layout, comm=comm)
        for chunks, shards, files in [((3, 5, 2), None, 8), ((2, 5, 2), (4, 5, 4), 3), ((20, 9, 7), None, 1)]:
            path = folder / f"{number}-{files}"
            ca.save(path, x, chunks=chunks, shards=shards)
            stored = zarr.open_array(path, mode="r")
            assert (stored.chunks, stored.shards, len(chunks_of(path))) == (chunks, shards, files)
            np.testing.assert_array_equal(stored[...], a)
            np.testing.assert_array_equal(ca.load(path, layout, comm=comm).gather(), a)
    comm.barrier()
    if comm.rank == 0:
        chunks_of(folder / "0-3")[-1].unlink()
    comm.barrier()
    with pytest.raises(InputError, match="has lost 1 of its files"):
        ca.load(folder / "0-3", comm=comm)


def test_forms_that_do_not_fit(comm, folder):
    x, y = ca.ones((4, 3), comm=comm), ca.ones(5, comm=comm)
    for arrays, options, message in [
        (x, {"chunks": (2,)}, "need one number for each axis"),
        (x, {"chunks": 2}, "need one number for each axis"),
        (x, {"chunks": (2, 0)}, "at least 1"),
        (x, {"shards": (2, 3)}, "pass chunks as well"),
        (x, {"chunks": (2, 3), "shards": (3, 3)}, "must be multiples"),
        (x, {"dims": ("y",)}, "2 different names"),
        (x, {"dims": ("y", "y")}, "2 different names"),
        (x, {"dims": "yx"}, "2 different names"),
        (x, {"dims": {"y": 4, "x": 3}}, "2 different names"),
        (x, {"dims": ("y", None)}, "2 different names"),
        ({"x": x, "y": y}, {"dims": {"x": ("a", "b"), "y": ("a",)}}, "axis a has 5 and 4 elements"),
        ({"x": x}, {"dims": {"z": ("a",)}}, "no array 'z', but x"),
        ({"x": x}, {"dims": ("a", "b"), "coords": {"a": np.arange(5)}}, "axis a has 5 and 4 elements"),
        ({"x": x}, {"coords": {"x": np.arange(4)}}, "other names than the arrays"),
        ({"x": x}, {"coords": {"a": np.array(["b"])}}, "must be booleans, integers"),
        (x, {"coords": {"a": np.arange(4)}}, "which need names"),
    ]:
        with pytest.raises((InputError, LayoutError), match=message) as caught:
            ca.save(folder / "x", arrays, **options)
        assert comm.size == 1 or caught.value.on_all_ranks
    if comm.size > 1:
        for options in ({"chunks": (1 + comm.rank, 3)}, {"dims": ("a", f"b{comm.rank}")}):
            with pytest.raises(InputError, match="a call of save differs between ranks"):
                ca.save(folder / "x", x, **options)
        with pytest.raises(InputError, match="a call of save differs between ranks"):
            ca.save(folder / "x", {"x": x}, coords={"a": np.arange(4) + comm.rank})
    assert not (folder / "x").exists()


KILLED = """
import os, signal, sys
import numpy as np
import collops
from collops.array import store

comm = collops.world()
folder, rank, overwrite = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "over"
before = collops.from_global(np.arange(40.0).reshape(8, 5))
if overwrite:
    before.save(f"{folder}/x")
write = store.write_region

def killed(array, region, values):
    write(array, region, values)
    if comm.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)

store.write_region = killed
collops.save(f"{folder}/x", {"a": -before, "b": before}, overwrite=overwrite)
"""

AGAIN = """
import os, sys
import numpy as np
import collops

folder, overwrite = sys.argv[1], sys.argv[2] == "over"
expected = np.arange(40.0).reshape(8, 5)
try:
    found = collops.load(f"{folder}/x").gather()
    assert overwrite and np.array_equal(found, expected), found
except collops.errors.InputError as error:
    assert not overwrite and "is not a Zarr 3 store" in str(error), error
collops.save(f"{folder}/x", collops.ones(3), overwrite=overwrite)
assert collops.load(f"{folder}/x").gather().tolist() == [1, 1, 1]
collops.world().barrier()
assert os.listdir(folder) == ["x"], os.listdir(folder)
print("right")
"""


@pytest.mark.serial
@pytest.mark.parametrize(("ranks", "killed"), [(1, 0), (2, 0), (2, 1)])
@pytest.mark.parametrize("kind", ["new", "over"])
def test_a_killed_save_leaves_what_was_there(tmp_path, ranks, killed, kind):
    def run(program, *arguments):
        given = f"import sys; sys.argv = {['', str(tmp_path), *map(str, arguments)]}\n{program}"
        return run_ranks(ranks, given, {"PYTHONPATH": SOURCE, "COLLOPS_TIMEOUT": "10"})

    assert run(KILLED, killed, kind).returncode != 0
    done = run(AGAIN, kind)
    assert done.returncode == 0 and done.stdout.count("right") == ranks, done
