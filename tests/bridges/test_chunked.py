"""Arrays of h5py, zarr, dask and xarray: each rank reads its own part, by whole chunks."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

from collops import Layout, profile
from collops.bridges.chunked import from_chunked
from collops.errors import InputError, LayoutError, UnsupportedTypeError

VALUES = np.random.default_rng(0).standard_normal((10, 6))


@pytest.fixture
def folder(comm):
    """One empty directory for all ranks."""
    path = Path(comm.allgather_metadata(tempfile.mkdtemp(prefix="collops-") if comm.rank == 0 else None)[0])
    yield path
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


def written(comm, folder, kind):
    """Return VALUES as an array that has 2 by 3 chunks."""
    if kind == "memmap":
        if comm.rank == 0:
            np.save(folder / "x.npy", VALUES)
        comm.barrier()
        return np.load(folder / "x.npy", mmap_mode="r")
    if kind == "zarr":
        if comm.rank == 0:
            zarr.create_array(folder / "x", data=VALUES, chunks=(2, 3))
        comm.barrier()
        return zarr.open_array(folder / "x", mode="r")
    if kind == "h5py":
        h5py = pytest.importorskip("h5py", reason="h5py is not installed")
        if comm.rank == 0:
            with h5py.File(folder / "x.h5", "w") as file:
                file.create_dataset("x", data=VALUES.astype(">f8"), chunks=(2, 3))
        comm.barrier()
        return h5py.File(folder / "x.h5", "r")["x"]
    if kind == "dask":
        dask_array = pytest.importorskip("dask.array", reason="dask is not installed")
        return dask_array.from_array(VALUES, chunks=(2, 3))
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    if comm.rank == 0:
        encoding = {"x": {"chunks": (2, 3)}}
        xarray.Dataset({"x": (("row", "column"), VALUES)}).to_zarr(folder / "x", encoding=encoding, consolidated=False)
    comm.barrier()
    return xarray.open_zarr(folder / "x", chunks=None, consolidated=False)["x"]


class Watched:
    """An array that records what is read."""

    def __init__(self, source, chunks=None) -> None:
        self.source, self.shape, self.dtype, self.read = source, source.shape, source.dtype, []
        self.chunks = chunks

    def __getitem__(self, index):
        self.read.append(index)
        return self.source[index]


@pytest.mark.parametrize("kind", ["memmap", "zarr", "h5py", "dask", "xarray"])
def test_values_and_chunks(comm, folder, kind):
    source = written(comm, folder, kind)
    with profile.count_messages() as messages:
        x = from_chunked(source, comm=comm)
    assert not {"allgatherv", "alltoallv", "allreduce", "bcast"} & messages.counts().keys()
    np.testing.assert_array_equal(x.gather(), VALUES)
    assert x.dtype == np.float64 and x.local_array.flags.writeable and x.local_array.flags.owndata
    if kind != "memmap":
        assert all(start % 2 == 0 for start in x.layout.starts[0]) and x.layout.split_axes in ((0,), ())
    for layout in (Layout.split(VALUES.shape, comm.size, 1), Layout.replicated(VALUES.shape, comm.size)):
        y = from_chunked(source, layout, comm=comm)
        assert y.layout is layout
        np.testing.assert_array_equal(y.gather(), VALUES)


def test_each_rank_reads_its_part_once(comm):
    source = Watched(VALUES, chunks=(4, 6))
    x = from_chunked(source, comm=comm)
    assert source.read == [x.layout.slices(comm.rank)]
    assert x.layout.sizes[0] == {1: (10,), 2: (4, 6), 3: (4, 4, 2), 4: (3, 3, 2, 2)}[comm.size]


def test_the_axis_with_enough_chunks_is_split(comm):
    ranks = comm.size
    values = np.zeros((2 * ranks, 3 * ranks + 1))
    for chunks, expected in (
        ((2 * ranks, 3), Layout.split(values.shape, ranks, 1, sizes=[3] * (ranks - 1) + [4])),
        ((2 * ranks, 3 * ranks + 1), Layout.split(values.shape, ranks)),  # one chunk, which all ranks read
        (((2,) * ranks, (3 * ranks + 1,)), Layout.split(values.shape, ranks)),
        (None, Layout.split(values.shape, ranks)),
    ):
        if ranks > 1 or expected.axes != (None, 0):  # the layouts of one rank are the same
            assert from_chunked(Watched(values, chunks), comm=comm).layout is expected


def test_an_engine(comm):
    pytest.importorskip("jax", reason="JAX is not installed")
    x = from_chunked(VALUES.astype("f4"), comm=comm, engine="jax")
    assert x.engine.name == "jax"
    np.testing.assert_array_equal(x.gather(), VALUES.astype("f4"))


def test_empty_parts_and_empty_arrays(comm):
    np.testing.assert_array_equal(from_chunked(VALUES[:1], comm=comm).gather(), VALUES[:1])
    assert from_chunked(VALUES[:0], comm=comm).shape == (0, 6)


class Deferred(Watched):
    """An array whose parts have a mask when they are computed, but not when NumPy converts them, as of dask."""

    def __getitem__(self, index):
        part = super().__getitem__(index)
        return SimpleNamespace(__array__=lambda *_, **options: part.data, compute=lambda: part)


def test_masks_are_refused_where_parts_are_computed(comm):
    np.testing.assert_array_equal(from_chunked(Deferred(VALUES), comm=comm).gather(), VALUES)
    sources = [Deferred(np.ma.masked_greater(VALUES, 1))]
    if importlib.util.find_spec("dask") is not None:
        import dask.array

        sources.append(dask.array.ma.masked_greater(dask.array.from_array(VALUES, chunks=(2, 3)), 1))
    for source in sources:
        with pytest.raises(UnsupportedTypeError, match="masked"):
            from_chunked(source, comm=comm)
    unknown = SimpleNamespace(shape=(np.nan, 6), dtype=VALUES.dtype, __getitem__=VALUES.__getitem__)  # of dask
    with pytest.raises(LayoutError, match="compute_chunk_sizes"):
        from_chunked(unknown, comm=comm)


def test_errors_are_raised_by_all_ranks(comm):
    class Broken(Watched):
        def __getitem__(self, index):
            if comm.rank == comm.size - 1:
                raise OSError("Input/output error")
            return super().__getitem__(index)

    for source, layout, error, message in (
        (Broken(VALUES, (1, 6)), None, InputError, f"rank {comm.size - 1} cannot read its part .*Input/output error"),
        ([1.0, 2.0], None, UnsupportedTypeError, "from_chunked takes an array"),
        (np.array(["a"]), None, UnsupportedTypeError, "must be numbers"),
        (np.ma.masked_greater(VALUES, 1), None, UnsupportedTypeError, "masked"),
        (VALUES, Layout.split(3, comm.size), LayoutError, "does not fit"),
        (VALUES, VALUES.shape, LayoutError, "does not fit"),
    ):
        with pytest.raises(error, match=message) as caught:
            from_chunked(source, layout, comm=comm)
        assert comm.size == 1 or caught.value.on_all_ranks
    if comm.size > 1:
        with pytest.raises(InputError, match="the array to read differs between ranks"):
            from_chunked(VALUES[comm.rank :], comm=comm)
