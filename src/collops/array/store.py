"""Save arrays to Zarr stores, which :func:`collops.array.load` reads on any number of ranks, in any layout.

An array becomes a Zarr 3 array, a stack or dictionary of arrays a Zarr group. Rank 0 writes the metadata. Every rank
then writes its own chunks, after a redistribution to chunk boundaries, so that no two ranks write one chunk.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from collops.array.base import BaseArray
from collops.array.layout import Layout
from collops.array.redistribute import moved
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.comm.bounded import in_time
from collops.errors import InputError, LayoutError

__all__ = ["chunk_files", "open_node", "sync", "write_store"]

_Saved: TypeAlias = BaseArray | Mapping[str, "_Saved"]
"""A distributed or stacked array, or a dictionary of them."""

VERSION = 1
"""Version of the format."""

MARK = "collops"
"""The attribute of what collops writes."""

_COMPLETE = "complete"
"""The key in it of the shape of an array whose chunks have all been written."""

_CHUNK_BYTES = 64 << 20


def save(
    path: str | PathLike[str], arrays: _Saved, *, overwrite: bool = False, attributes: Mapping[str, Any] | None = None
) -> None:
    """Write arrays to a Zarr 3 store in a directory that all ranks can reach. Collective.

    Parameters
    ----------
    path : str or path
        The directory.
    arrays : DistributedArray, StackedArray, or dict of these by name
        Dictionaries may be nested, but not empty.
    overwrite : bool
        Whether to replace an existing store. Other directories are never replaced.
    attributes : dict, optional
        More attributes for the store, which must be representable in JSON.

    Raises
    ------
    InputError
        On every rank, if `path` exists and may not be replaced, or a name is invalid.
    OSError
        On every rank, if some rank cannot write; a TimeoutError if a file system does not answer.

    Examples
    --------
    >>> import collops
    >>> import tempfile, zarr
    >>> folder = tempfile.mkdtemp()
    >>> collops.save(f"{folder}/x.zarr", {"model": collops.ones(3), "data": collops.zeros(2)})
    >>> sorted(zarr.open_group(f"{folder}/x.zarr", mode="r").array_keys())
    ['data', 'model']
    """
    place = fspath(path)
    write_store(place, arrays, attributes, prepare=lambda: _check_path(Path(place), overwrite))


def write_store(
    place: str,
    arrays: _Saved,
    attributes: Mapping[str, Any] | None,
    *,
    prepare: Callable[[], None],
    durable: bool = False,
) -> None:
    """Write arrays to a Zarr 3 store, replacing an existing one, after ``prepare()`` on rank 0; see :func:`save`.

    With `durable`, values are on the disk when this returns. Every chunk then has a file with a checksum, which is
    verified by each read, so that a missing file is an error and not zeros. Chunks are not compressed. Collective.
    """
    import zarr

    comm = _comm_of(arrays)
    node: Any = None

    def create() -> Any:
        prepare()
        return _create(place, "", arrays, attributes, durable)

    with zarr.config.set({"array.write_empty_chunks": durable}):
        with collective_errors(comm, OSError):
            if comm.rank == 0:
                node = in_time(create, place)
        with collective_errors(comm, OSError):
            if node is None:
                node = in_time(lambda: zarr.open(place, mode="r+"), place)
        _write(node, arrays, durable)


def open_node(place: Any, name: str = "", mode: Literal["r", "r+"] = "r") -> Any:
    """Open a Zarr array or group in a directory, or the member `name` of an open group, by its own metadata.

    Consolidated metadata are ignored: they are a copy, which Zarr does not renew when an array grows or a member is
    added. Reads no values. Not collective.

    Parameters
    ----------
    place : path or zarr.Group
        The directory of the array or group, or a group that this function has opened.
    name : str
        Path of a member below `place`.
    mode : {"r", "r+"}
        Whether to read only, or to read and write.

    Raises
    ------
    OSError
        If there is no array or group; other errors of Zarr if its metadata are damaged.
    InputError
        If an array was written by collops, which writes every chunk, and the file of a chunk is missing.
    """
    import zarr

    if isinstance(place, zarr.Group):
        # By its path: as a member of the group it would come with consolidated metadata of its own.
        path, kind = f"{place.path}/{name}".strip("/"), place.metadata.zarr_format
        node = zarr.open(place.store, path=path, mode=mode, zarr_format=kind, use_consolidated=False)
    else:
        node = zarr.open(fspath(place), path=name, mode=mode, use_consolidated=False)
    if isinstance(node, zarr.Array):
        _check_chunks(node)
    return node


def _check_chunks(array: Any) -> None:
    """Raise InputError unless all chunks are there that collops has written; others stand for fill values."""
    about = array.attrs.asdict().get(MARK)
    shape = about.get(_COMPLETE) if isinstance(about, Mapping) else None
    if shape is None or not (folder := Path(array.store.root) / array.path).is_dir():
        return
    present = set(os.listdir(folder))
    # A program may have appended rows since, and left out chunks of fill values.
    region = [slice(0, min(pair)) for pair in zip(shape, array.shape, strict=True)]
    missing = [path.name for path in chunk_files(array, region) if path.name not in present]
    if missing:
        raise InputError(
            f"{folder} has lost {len(missing)} of its files with values, such as {missing[0]}: copy it again, or write "
            "it again"
        )


def sync(path: Path) -> None:
    """Write a file, or the entries of a directory, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_path(path: Path, overwrite: bool) -> None:
    if not path.exists():
        return
    if not (path / "zarr.json").is_file():
        raise InputError(f"{path} exists and is not a Zarr store; choose another path")
    if not overwrite:
        raise InputError(f"{path} exists; pass overwrite=True to replace it")


def _comm_of(arrays: _Saved) -> Communicator:
    """Return the communicator of all arrays, whose names are checked before anything is written."""
    members = _members(arrays)
    if members is None:
        return arrays.comm  # pyright: ignore[reportAttributeAccessIssue]
    for name, _ in members:
        if not isinstance(name, str) or not name or "/" in name or name.startswith(("__", ".")):
            raise InputError(f"{name!r} cannot be the name of an array in a store")
    comms = [_comm_of(value) for _, value in members]
    if any(comm is not comms[0] for comm in comms):
        raise LayoutError("arrays that are saved together must have one communicator")
    return comms[0]


def _members(arrays: _Saved) -> list[tuple[str, _Saved]] | None:
    """Return the members of a stack or a dictionary by name; ``None`` for a single array."""
    if hasattr(arrays, "local_array"):
        return None
    if isinstance(arrays, BaseArray):
        return [(str(number), array) for number, array in enumerate(arrays.arrays)]
    if not isinstance(arrays, Mapping) or not arrays:
        raise InputError("save takes a distributed array, a stacked array, or a dictionary of them that is not empty")
    return list(arrays.items())


def _create(place: str, name: str, arrays: _Saved, attributes: Mapping[str, Any] | None, durable: bool) -> Any:
    """Write the store's metadata (on rank 0 only)."""
    import zarr
    from zarr.codecs import Crc32cCodec

    mine: dict[str, Any] = {"version": VERSION}
    members = _members(arrays)
    if members is not None:
        mine["kind"] = "dictionary" if isinstance(arrays, Mapping) else "stacked"
        node = zarr.create_group(
            place, path=name, overwrite=not name, attributes={**(attributes or {}), "collops": mine}
        )
        for key, value in members:
            _create(place, f"{name}/{key}" if name else key, value, None, durable)
        return node
    assert isinstance(arrays, BaseArray)
    layout = arrays.layout
    mine |= {
        "kind": "array",
        "dtype": arrays.dtype.name,
        "ranks": layout.ranks,
        "process_grid": layout.process_grid,
        "axes": layout.axes,
        "sizes": layout.sizes,
        "mask": layout.mask,
    }
    return zarr.create_array(
        place,
        name=name or None,
        shape=layout.shape,
        chunks=_chunks(layout, arrays.dtype.itemsize),
        dtype=np.uint16 if arrays.dtype.name == "bfloat16" else arrays.dtype,  # Zarr has no bfloat16: its bits
        compressors=[Crc32cCodec()] if durable else "auto",
        # Without directories for chunks, each of which would need an fsync.
        chunk_key_encoding={"name": "default", "separator": "."} if durable else None,
        overwrite=not name,
        attributes={**(attributes or {}), "collops": mine},
    )


def _write(node: Any, arrays: _Saved, durable: bool) -> None:
    """Write this rank's regions. Collective."""
    members = _members(arrays)
    if members is not None:
        for name, value in members:
            _write(node[name], value, durable)
        return
    assert isinstance(arrays, BaseArray)
    layout = _aligned(arrays.layout, node.chunks)
    comm = arrays.comm
    local = moved(arrays.local_array, arrays.layout, layout, comm)
    with collective_errors(comm, OSError, RuntimeError):
        if local.size and layout.representative(comm.rank):
            region = layout.slices(comm.rank)
            values = arrays.engine.to_host(local).view(node.dtype)

            def write() -> None:
                node[region] = values
                for path in chunk_files(node, region) if durable else ():
                    sync(path)

            in_time(write, Path(node.store.root) / node.path, values.nbytes)


def chunk_files(node: Any, region: Sequence[slice]) -> Iterator[Path]:
    """Yield the paths of the chunks in a region."""
    counts = [range(box.start // chunk, -(-box.stop // chunk)) for box, chunk in zip(region, node.chunks, strict=True)]
    for coordinates in itertools.product(*counts):
        yield Path(node.store.root) / node.path / node.metadata.encode_chunk_key(coordinates)


def _split(layout: Layout) -> Layout:
    """Return a layout in which the ranks share the work of writing."""
    return layout if layout.split_axes else Layout.split(layout.shape, layout.ranks)


def _chunks(layout: Layout, itemsize: int) -> tuple[int, ...]:
    """Return a chunk shape of bounded size that gives the ranks about equally many chunks."""
    layout = _split(layout)
    chunks = [max(1, -(-extent // len(sizes))) for extent, sizes in zip(layout.shape, layout.sizes, strict=True)]
    while math.prod(chunks) * itemsize > _CHUNK_BYTES:
        # The split axes are divided first, so that rows stay whole if possible.
        first = next((a for a in layout.split_axes or (0,) if chunks[a] > 1), None)
        axis = max(range(len(chunks)), key=chunks.__getitem__) if first is None else first
        chunks[axis] = -(-chunks[axis] // 2)
    return tuple(chunks)


def _aligned(layout: Layout, chunks: tuple[int, ...]) -> Layout:
    """Return a layout of the same ranks whose blocks consist of whole chunks."""
    layout = _split(layout)
    sizes = [
        _whole_chunks(extent, chunk, len(sizes))
        for extent, chunk, sizes in zip(layout.shape, chunks, layout.sizes, strict=True)
    ]
    return Layout(layout.shape, layout.ranks, layout.process_grid, layout.axes, sizes)


def _whole_chunks(extent: int, chunk: int, parts: int) -> list[int]:
    count = -(-extent // chunk)
    ends = [min(extent, chunk * (count * (part + 1) // parts)) for part in range(parts)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
