"""Chunks of Blosc that are longer or shorter than their header says are one error, before Blosc reads them.

They are stored without compression, and shortened by no more than one byte: Blosc itself would do no harm with them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import collops
from collops.apps.files import open_zarr, read_rows
from collops.array.blosc import BloscStore
from collops.array.store import open_node
from collops.errors import InputError
from tests.array.test_io import folder  # noqa: F401

zarr = pytest.importorskip("zarr")


def write(path, zarr_format, **options):
    """Write an array of two chunks; return its values and the file of the second chunk."""
    from numcodecs import Blosc
    from zarr.codecs import BloscCodec

    values = np.arange(12.0).reshape(6, 2)
    compressor = BloscCodec(clevel=0, cname="lz4") if zarr_format == 3 else Blosc(clevel=0)
    array = zarr.create_array(
        path, shape=(6, 2), chunks=(3, 2), dtype="f8", zarr_format=zarr_format, **{"compressors": compressor, **options}
    )
    array[:] = values
    return values, path / ("c/1/0" if zarr_format == 3 else "1.0")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("damage", [lambda chunk: chunk[:-1], lambda chunk: chunk + b"\0"], ids=["shorter", "longer"])
def test_chunks_of_another_length_than_their_header_says(tmp_path, zarr_format, damage):
    zarr.create_group(tmp_path, zarr_format=zarr_format)
    values, chunk = write(tmp_path / "x.zarr", zarr_format)
    for node in (open_zarr(tmp_path / "x.zarr"), open_node(open_node(tmp_path), "x.zarr")):
        assert isinstance(node.store, BloscStore)
        assert np.array_equal(read_rows(node, tmp_path, slice(None)), values)
    chunk.write_bytes(damage(chunk.read_bytes()))
    assert np.array_equal(read_rows(node, tmp_path, slice(0, 3)), values[:3])
    with pytest.raises(InputError, match=r"its chunk .* has \d+ bytes, but a header for 64.*: it is damaged, copy it"):
        read_rows(node, tmp_path, slice(3, 6))


def test_a_chunk_without_a_header(tmp_path):
    _, chunk = write(tmp_path / "x.zarr", 3)
    chunk.write_bytes(b"")
    with pytest.raises(ValueError, match="has 0 bytes, but a header for 0"):
        open_node(tmp_path / "x.zarr").store.get_sync("c/1/0")


def test_arrays_that_are_not_of_blosc(tmp_path):
    for number, options in enumerate(({"compressors": None}, {"shards": (6, 2)})):
        values, _ = write(tmp_path / str(number), 3, **options)
        node = open_node(tmp_path / str(number))
        assert not isinstance(node.store, BloscStore)
        assert np.array_equal(node[:], values)


def test_all_ranks_raise(comm, folder):  # noqa: F811
    path = Path(folder) / "x.zarr"
    if comm.rank == 0:
        _, chunk = write(path, 3)
        chunk.write_bytes(chunk.read_bytes()[:-1])
    comm.barrier()
    with pytest.raises(InputError, match="cannot be read as arrays: its chunk") as caught:
        collops.load(path, collops.Layout.split((6, 2), comm.size), comm=comm)
    assert comm.size == 1 or caught.value.on_all_ranks
