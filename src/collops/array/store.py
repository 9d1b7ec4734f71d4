"""Save arrays to Zarr stores, which :func:`collops.array.load` reads on any number of ranks, in any layout.

An array becomes a Zarr 3 array, a stack or dictionary of arrays a Zarr group. Rank 0 writes the metadata. Every rank
then writes its own chunks, after a redistribution to chunk boundaries, so that no two ranks write one chunk.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import secrets
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from collops.array.base import Array
from collops.array.distributed import DistributedArray
from collops.array.dtypes import as_dtype, significant_bytes
from collops.array.layout import Layout
from collops.array.layout_arguments import as_extents
from collops.array.redistribute import compare_copies, moved
from collops.comm import Communicator
from collops.comm.agreement import collective_errors
from collops.comm.bounded import in_time
from collops.comm.files import atomic_together, resolved, sync
from collops.errors import InputError, LayoutError, type_name
from collops.limits import free_room, in_words

__all__ = ["chunk_files", "create_array", "open_node", "write_region", "write_store"]

_Saved: TypeAlias = Array | Mapping[str, "_Saved"]
"""A distributed or stacked array, or a dictionary of them."""

ZarrNode: TypeAlias = Any
"""An open array or group of Zarr, which is imported at the first use."""

VERSION = 1
"""Version of the format."""

MARK = "collops"
"""The attribute that describes an array, a stack or a dictionary."""

COMPLETE = "collops_complete"
"""The attribute with the shape of an array whose chunks have all been written."""

_CHUNK_BYTES = 64 << 20


class _Form(NamedTuple):
    """The form of an array in a store; for members of a store, dictionaries by name or one value for all."""

    chunks: Any = None
    shards: Any = None
    dims: Any = None

    def of(self, name: str) -> _Form:
        """Return the form of a member."""
        return _Form(*(option.get(name) if isinstance(option, Mapping) else option for option in self))


_DEFAULT_FORM = _Form()


def save(
    path: str | PathLike[str],
    arrays: _Saved,
    *,
    overwrite: bool = False,
    attributes: Mapping[str, object] | None = None,
    chunks: Sequence[int] | Mapping[str, Any] | None = None,
    shards: Sequence[int] | Mapping[str, Any] | None = None,
    dims: Sequence[str] | Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
) -> None:
    """Write arrays to a Zarr 3 store in a directory that all ranks can reach. Collective.

    The store is written under another name in the same directory, synchronised to the disk, and renamed when all ranks
    have written their parts: until then `path` is unchanged, whatever happens. The next ``save`` to `path` removes
    the files of a killed one.

    Parameters
    ----------
    path : str or path
        The directory, the same on all ranks; its parents are created if necessary. A symbolic link is
        followed.
    arrays : DistributedArray, StackedArray, or dict of these by name
        Dictionaries may be nested, but not empty.
    overwrite : bool
        Whether to replace an existing store; the disk then holds both for a while. Other directories are never
        replaced.
    attributes : dict, optional
        More attributes for the store: values that JSON can represent, and scalars and arrays of NumPy, which become
        numbers and lists.
    chunks, shards : sequence of int, or dict of these by name, optional
        Shapes of the chunks, the units of compression, and of the files, if a file holds several chunks. The ranks
        write whole files. By default each chunk is a file, of at most 64 MiB.
    dims : sequence of str, or dict of these by name, optional
        Names of the axes, with which ``xarray.open_zarr`` opens a dictionary of arrays.
    coords : dict, optional
        Coordinates of a dictionary of arrays by name: 1-D arrays for the axes with their names, or pairs
        ``(dims, array)``. They are NumPy or distributed arrays, and further members of the store.

    Raises
    ------
    InputError
        On every rank, if `path` exists and may not be replaced, the disk is full, a name or an attribute is
        invalid, `dims` do not fit, or the arguments or the layouts of the arrays differ between ranks.
    LayoutError
        On every rank, if an array has a mask whose groups hold independent values, or `chunks` or `shards` do not fit.
    OSError
        On every rank, if a rank cannot write; a TimeoutError if a file system does not respond.

    Examples
    --------
    >>> import collops
    >>> import tempfile, zarr
    >>> folder = tempfile.mkdtemp()
    >>> collops.save(f"{folder}/x.zarr", {"model": collops.ones(3), "data": collops.zeros(2)})
    >>> sorted(zarr.open_group(f"{folder}/x.zarr", mode="r").array_keys())
    ['data', 'model']
    """
    comm = _comm_of(arrays)
    target, extra_attributes, form = Path(), {}, _Form(chunks, shards, dims)
    checksums: dict[str, int] = {}
    with collective_errors(comm, OSError):
        extra_attributes = _as_json(attributes)
        if coords is not None:
            arrays, form, others, checksums = _with_coordinates(arrays, form, coords, comm)
            if others:
                extra_attributes["coordinates"] = " ".join(others)  # where xarray looks for them
        _check_groups(arrays)
        _check_form(arrays, form, {})
        target = resolved(fspath(path))
        if comm.rank == 0:
            in_time(lambda: _prepare(target, overwrite, _bytes_of(arrays)), target)
    described = {"arrays": _described(arrays, form), "overwrite": bool(overwrite), "attributes": extra_attributes}
    comm.agree("a call of save", {**described, "checksums of coords": checksums})
    _check_copies(arrays)
    check = partial(_check_path, target, overwrite)
    with atomic_together(target, comm, check=check, replace=overwrite) as temporary:
        write_store(temporary, arrays, extra_attributes, form)


def write_store(
    path: Path,
    arrays: _Saved,
    attributes: Mapping[str, object],
    form: _Form = _DEFAULT_FORM,
    *,
    compressed: bool = True,
) -> None:
    """Write arrays to a new Zarr 3 store at an unused path; see :func:`save`. Collective.

    Every chunk has a file, even a chunk of zeros, with a checksum that each read verifies. These files are synchronised
    to the disk when this returns; metadata and directories may not be.
    """
    import zarr

    comm = _comm_of(arrays)
    node: ZarrNode = None
    with zarr.config.set({"array.write_empty_chunks": True}):
        with collective_errors(comm, OSError):
            if comm.rank == 0:
                about = {"version": VERSION, "id": secrets.token_hex(8)}
                node = in_time(lambda: _create(str(path), "", arrays, attributes, about, form, compressed), path)
        with collective_errors(comm, OSError):
            if node is None:
                node = in_time(lambda: open_node(path, mode="r+"), path)
        _write(node, arrays)


def open_node(location: ZarrNode | str | PathLike[str], name: str = "", mode: Literal["r", "r+"] = "r") -> ZarrNode:
    """Open a Zarr array or group in a directory or at a URL, or the member `name` of an open group, by its metadata.

    Consolidated metadata are ignored: they are a copy, which Zarr does not update when an array grows or a member is
    added. Reads no values. Not collective. Later reads raise ValueError if a chunk compressed by Blosc is truncated.

    Parameters
    ----------
    location : path or zarr.Group
        The directory of the array or group, its URL for the package fsspec, or a group that this function has opened.
    name : str
        Path of a member below `location`.
    mode : {"r", "r+"}
        Whether to read only, or to read and write.

    Raises
    ------
    OSError
        If the array or group does not exist; other errors of Zarr if its metadata are damaged.
    InputError
        If an array was written by collops, which writes every chunk, and the file of a chunk is missing.
    """
    import zarr
    from zarr.errors import ZarrUserWarning

    with warnings.catch_warnings():
        # Zarr 3.4 guesses what damaged metadata meant, and warns: values would come from other chunks.
        warnings.filterwarnings("error", ".* is invalid: ", ZarrUserWarning)
        try:
            if isinstance(location, zarr.Group):
                # Opened by its path: as a member of the group it would have its own consolidated metadata.
                path, kind = f"{location.path}/{name}".strip("/"), location.metadata.zarr_format
                node = zarr.open(location.store, path=path, mode=mode, zarr_format=kind, use_consolidated=False)
            else:
                node = zarr.open(fspath(location), path=name, mode=mode, use_consolidated=False)
        except ZarrUserWarning as problem:
            raise ValueError(str(problem)) from None
    if mode == "r" and isinstance(node, zarr.Array):
        _check_chunks(node)
        from collops.array.blosc import guarded

        return guarded(node)
    return node


def _check_chunks(array: ZarrNode) -> None:
    """Raise InputError unless all chunks written by collops exist; other missing chunks represent fill values."""
    shape = array.attrs.get(COMPLETE)
    # Programs that copy the attributes to a new array may omit chunks, and write folders of chunks.
    if shape is None or array.ndim != len(shape) or not _chunk_key(array, [0] * array.ndim).startswith("c."):
        return
    # Rows may have been appended since.
    region = [slice(0, min(pair)) for pair in zip(shape, array.shape, strict=True)]
    if not hasattr(array.store, "root"):  # at a URL
        needed = math.prod(-(-box.stop // chunk) for box, chunk in zip(region, array.chunks, strict=True))
        if array.nchunks_initialized < needed:
            where = f"{array.store.path}/{array.path}".rstrip("/")
            raise InputError(f"{where} has lost files with values: copy it again, or write it again")
        return
    folder = Path(array.store.root) / array.path
    present = set(os.listdir(folder))
    missing = [path.name for path in chunk_files(array, region) if path.name not in present]
    if missing:
        raise InputError(
            f"{folder} has lost {len(missing)} of its files with values, such as {missing[0]}: copy it again, or write "
            "it again"
        )


def _prepare(path: Path, overwrite: bool, needed: int) -> None:
    """Raise InputError unless `path` may be written and the disk has enough free space; create its parents."""
    _check_path(path, overwrite)
    if needed > (free := free_room(path.parent)):
        raise InputError(
            f"the arrays need {in_words(needed)}, and {path.parent} has room for {in_words(free)}: make room, or "
            "choose another folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)


def _check_path(path: Path, overwrite: bool) -> None:
    if not os.path.lexists(path):
        return
    if not (path / "zarr.json").is_file():
        raise InputError(f"{path} exists and is not a Zarr store; choose another path")
    if not overwrite:
        raise InputError(f"{path} exists; pass overwrite=True to replace it")


def _check_groups(arrays: _Saved) -> None:
    """Raise LayoutError if the groups of a mask have independent values."""
    members = _members(arrays)
    for _, value in members or ():
        _check_groups(value)
    if members is None and arrays.layout.has_group_values:  # pyright: ignore[reportAttributeAccessIssue]
        raise LayoutError(
            f"each group of ranks has values of its own in the layout {arrays.layout}, which one store cannot hold: "  # pyright: ignore[reportAttributeAccessIssue]
            "make an array on the communicator of each group (comm.split), and save it to a path of its own"
        )


def _check_copies(arrays: _Saved) -> None:
    """Compare the copies of all arrays, if ``COLLOPS_CHECK`` is on. Collective in that case."""
    if isinstance(arrays, Array):
        compare_copies(arrays, groups=True)
    else:
        for value in arrays.values():
            _check_copies(value)


def _with_coordinates(
    arrays: _Saved, form: _Form, coords: object, comm: Communicator
) -> tuple[dict[str, _Saved], _Form, list[str], dict[str, int]]:
    """Return arrays with their coordinates, the form of both, the coordinates of other axes, and checksums."""
    if not isinstance(coords, Mapping) or not isinstance(arrays, Mapping) or coords.keys() & arrays.keys():
        raise InputError("coords must be a dictionary, with other names than the arrays, which need names as well")
    axes: dict[str, tuple[str, ...]] = {}
    checksums: dict[str, int] = {}
    labels: dict[str, _Saved] = {}
    for name, value in coords.items():
        is_pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | tuple)
        names, values = value if is_pair else (name, value)
        axes[name] = (names,) if isinstance(names, str) else names
        if not isinstance(values, Array):
            values = np.asarray(values)
            layout = Layout.split(values.shape, comm.size)
            part = np.array(values[layout.slices(comm.rank)], as_dtype(values.dtype))
            checksums[name] = zlib.crc32(significant_bytes(values))
            values = DistributedArray._uncompared(layout, comm, part)
        labels[name] = values
    form = _Form(*(option if isinstance(option, Mapping) else dict.fromkeys(arrays, option) for option in form))
    both = {**arrays, **labels}
    _comm_of(both)
    others = [name for name, names in axes.items() if names != (name,)]
    return both, form._replace(dims={**form.dims, **axes}), others, checksums


def _check_form(arrays: _Saved, form: _Form, extents: dict[str, int]) -> None:
    """Raise InputError or LayoutError unless the form fits the arrays; `extents` are the lengths of named axes."""
    members = _members(arrays)
    if members is not None:
        names, group = [name for name, _ in members], {}
        for option in form:
            if isinstance(option, Mapping) and (unknown := [name for name in option if name not in names]):
                raise InputError(f"save has no array {unknown[0]!r}, but {', '.join(names)}")
        for name, value in members:
            _check_form(value, form.of(name), group)
        return
    shape = arrays.layout.shape  # pyright: ignore[reportAttributeAccessIssue]
    chunks, shards, dims = form
    if shards is not None and chunks is None:
        raise LayoutError("shards consist of whole chunks: pass chunks as well")
    for name, part in (("chunks", chunks), ("shards", shards)):
        if part is None:
            continue
        if not isinstance(part, Sequence) or len(as_extents(part, name[:-1], smallest=1)) != len(shape):
            raise LayoutError(f"{name}={part} need one number for each axis of the shape {shape}")
    if shards is not None and any(shard % chunk for shard, chunk in zip(shards, chunks, strict=True)):
        raise LayoutError(f"shards={shards} must be multiples of chunks={chunks}")
    if dims is None:
        return
    names = [name for name in dims if isinstance(name, str)] if isinstance(dims, list | tuple) else []
    if not len(set(names)) == len(dims) == len(shape):
        raise InputError(f"dims={dims!r} must be {len(shape)} different names, one for each axis of the shape {shape}")
    for name, extent in zip(names, shape, strict=True):
        if extents.setdefault(name, extent) != extent:
            raise InputError(f"the axis {name} has {extent} and {extents[name]} elements: give them different names")


def _as_json(attributes: Mapping[str, object] | None) -> dict[str, object]:
    """Return attributes as JSON represents them; raise InputError if it cannot."""
    if not isinstance(attributes, Mapping | None):
        raise InputError(f"the attributes of a store must be a dictionary, not {type_name(attributes)}")
    result = {}
    for name, value in (attributes or {}).items():
        if not isinstance(name, str) or name in (MARK, COMPLETE):
            raise InputError(f"{name!r} cannot be the name of an attribute of a store")
        try:
            result[name] = json.loads(json.dumps(value, default=_plain))
        except (TypeError, ValueError) as problem:
            raise InputError(f"the attribute {name} cannot be written as JSON: {problem}") from None
    return result


def _plain(value: object) -> object:
    """Return a scalar or an array of NumPy as Python's numbers; raise TypeError for other values."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        return value.tolist()
    raise TypeError(f"{type_name(value)} has no form in JSON")


def _comm_of(arrays: _Saved) -> Communicator:
    """Return the communicator of all arrays, whose names are checked before anything is written."""
    members = _members(arrays)
    if members is None:
        return arrays.comm  # pyright: ignore[reportAttributeAccessIssue]
    for name, _ in members:
        if not isinstance(name, str) or not name or "/" in name or name.startswith(("__", ".")) or name == "zarr.json":
            raise InputError(f"{name!r} cannot be the name of an array in a store")
    comms = [_comm_of(value) for _, value in members]
    if any(comm is not comms[0] for comm in comms):
        raise LayoutError("arrays that are saved together must have one communicator")
    return comms[0]


def _members(arrays: _Saved) -> list[tuple[str, _Saved]] | None:
    """Return the members of a stack or a dictionary by name; ``None`` for a single array."""
    if hasattr(arrays, "local_array"):
        return None
    if isinstance(arrays, Array):
        return [(str(number), array) for number, array in enumerate(arrays.arrays)]
    if not isinstance(arrays, Mapping) or not arrays:
        raise InputError("save takes a distributed array, a stacked array, or a dictionary of them that is not empty")
    return list(arrays.items())


def _described(arrays: _Saved, form: _Form) -> object:
    """Return a description that must be equal on all ranks."""
    members = _members(arrays)
    if members is not None:
        return {name: _described(value, form.of(name)) for name, value in members}
    return f"{arrays.dtype} {arrays.layout} {form}"  # pyright: ignore[reportAttributeAccessIssue]


def _bytes_of(arrays: _Saved) -> int:
    members = _members(arrays)
    return arrays.nbytes if members is None else sum(_bytes_of(value) for _, value in members)  # pyright: ignore[reportAttributeAccessIssue]


def _create(
    location: str,
    name: str,
    arrays: _Saved,
    attributes: Mapping[str, object],
    about: Mapping[str, object],
    form: _Form,
    compressed: bool,
) -> ZarrNode:
    """Write the store's metadata (on rank 0 only)."""
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    members = _members(arrays)
    if members is not None:
        kind = "dictionary" if isinstance(arrays, Mapping) else "stacked"
        metadata = {**about, "kind": kind, "members": [key for key, _ in members]}
        node = zarr.create_group(location, path=name, attributes={**attributes, MARK: metadata})
        for key, value in members:
            _create(location, f"{name}/{key}" if name else key, value, {}, about, form.of(key), compressed)
        return node
    assert isinstance(arrays, Array)
    layout = arrays.layout
    metadata = {
        **about,
        "kind": "array",
        "dtype": arrays.dtype.name,
        "ranks": layout.ranks,
        "process_grid": layout.process_grid,
        "axes": layout.axes,
        "sizes": layout.sizes,
        "mask": layout.mask,
    }
    return create_array(
        location,
        name,
        layout.shape,
        arrays.dtype,
        form.chunks or _chunks(layout, arrays.dtype.itemsize),
        {**attributes, MARK: metadata},
        shards=form.shards,
        dimension_names=form.dims,
        compressors=[ZstdCodec(checksum=True)] if compressed else [Crc32cCodec()],
    )


def create_array(
    location: ZarrNode | str,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    chunks: tuple[int, ...],
    attributes: Mapping[str, Any],
    **options: Any,
) -> ZarrNode:
    """Create an array in a store, or a store of one array, all of whose chunks will be written by `write_region`."""
    import zarr

    # Zarr has no bfloat16: its bits are stored.
    stored = np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype
    # Other programs do not interpret a lost chunk as zeros, nor omit a chunk when they set all its elements to zero.
    fill = np.full((), np.nan, dtype).view(stored)[()] if dtype.kind in "fcV" else None
    return zarr.create_array(
        location,
        name=name or None,
        shape=shape,
        chunks=chunks,
        dtype=stored,
        fill_value=fill,
        # No directories for chunks, since each would need an fsync.
        chunk_key_encoding={"name": "default", "separator": "."},
        attributes={**attributes, COMPLETE: shape},
        **options,
    )


def write_region(array: ZarrNode, region: tuple[slice, ...], values: np.ndarray) -> None:
    """Write values to a region of whole chunks, which is synchronised to the disk when this returns."""
    array[region] = values
    for path in chunk_files(array, region):
        sync(path)


def _write(node: ZarrNode, arrays: _Saved) -> None:
    """Write this rank's regions. Collective."""
    members = _members(arrays)
    if members is not None:
        for name, value in members:
            _write(node[name], value)
        return
    assert isinstance(arrays, Array)
    layout = _aligned(arrays.layout, _file_shape(node))
    comm = arrays.comm
    local = moved(arrays.local_array, arrays.layout, layout, comm)
    with collective_errors(comm, OSError, RuntimeError):
        if local.size and layout.representative(comm.rank):
            values = arrays.engine.to_host(local).view(node.dtype)
            write = partial(write_region, node, layout.slices(comm.rank), values)
            in_time(write, Path(node.store.root) / node.path, values.nbytes)


def chunk_files(node: ZarrNode, region: Sequence[slice]) -> Iterator[Path]:
    """Yield the paths of the files of a region."""
    files = zip(region, _file_shape(node), strict=True)
    counts = [range(box.start // extent, -(-box.stop // extent)) for box, extent in files]
    for coordinates in itertools.product(*counts):
        yield Path(node.store.root) / node.path / _chunk_key(node, coordinates)


def _file_shape(node: ZarrNode) -> tuple[int, ...]:
    """Return the extents of a file's values: a chunk, or a shard of several."""
    return node.shards or node.chunks


def _chunk_key(node: ZarrNode, coordinates: Sequence[int]) -> str:
    return node.metadata.encode_chunk_key(tuple(coordinates))


def _split(layout: Layout) -> Layout:
    """Return a layout in which the ranks share the work of writing."""
    return layout if layout.split_axes else Layout.split(layout.shape, layout.ranks)


def _chunks(layout: Layout, itemsize: int) -> tuple[int, ...]:
    """Return a chunk shape of bounded size with about equally many chunks for each rank."""
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
