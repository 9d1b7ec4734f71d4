"""Saving and loading with Zarr: across layouts, numbers of ranks, dtypes and nestings."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

import collops.array as ca
from collops.array import Layout, StackedArray, StackedLayout
from collops.errors import InputError, LayoutError
from tests.array.cases import HALF, INEXACT, dtype_of, layouts, masks, values

zarr = pytest.importorskip("zarr")


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
    for mask in masks(comm.size):
        path = folder / "".join(map(str, mask))
        layout = Layout.split(7, comm.size, mask=mask)
        ca.ones(layout, comm=comm).save(path)
        assert ca.load(path, comm=comm).layout is layout


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
