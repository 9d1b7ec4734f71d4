"""Files: save arrays to Zarr stores and load them on any number of ranks, in any layout.

An array is one ordinary Zarr array, readable by anything that reads Zarr 3. Every rank writes a region of its own:
before that, blocks are moved to where the boundaries of chunks are, so that no two ranks write one chunk. Stacks and
dictionaries of arrays are Zarr groups. Nothing is pickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from collops.array.creation import _comm
from collops.array.distributed import DistributedArray
from collops.array.dtypes import as_dtype
from collops.array.layout import Layout
from collops.array.redistribute import moved
from collops.array.stacked import StackedArray
from collops.array.stacked_layout import StackedLayout
from collops.backend import Engine
from collops.backend import engine as find_engine
from collops.errors import CollopsError, InputError, LayoutError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["load", "save"]

Saved: TypeAlias = DistributedArray | StackedArray | Mapping[str, "Saved"]

_VERSION = 1
_CHUNK_BYTES = 64 << 20


def save(
    path: str | PathLike[str],
    arrays: Saved,
    *,
    overwrite: bool = False,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Write arrays to a Zarr 3 store in a directory that all ranks see. Collective.

    Parameters
    ----------
    path : str or path
        The directory.
    arrays : DistributedArray, StackedArray, or dict of these by name
        What to write; dictionaries may be nested, and are not empty.
    overwrite : bool
        Whether to replace a store that is there. Directories that are no Zarr stores are never replaced.
    attributes : dict, optional
        More attributes for the store: anything that JSON can hold.

    Raises
    ------
    InputError
        On every rank, if `path` exists and may not be replaced, or a name is not usable.
    OSError
        On every rank, if some rank cannot write.
    """
    comm = _comm_of(arrays)
    _check_names(arrays)
    place = fspath(path)
    node = None
    error: Exception | None = None
    if comm.rank == 0:
        try:
            _refuse_path(Path(place), overwrite)
            node = _create(place, "", arrays, attributes)
        except (CollopsError, OSError, TypeError, ValueError) as problem:
            error = problem
    comm.check(error)
    error = None
    try:
        if node is None:
            import zarr

            node = zarr.open(place, mode="r+")
    except (OSError, ValueError) as problem:
        error = problem
    comm.check(error)
    _write(node, arrays)


def load(
    path: str | PathLike[str],
    layout: Layout | StackedLayout | Mapping[str, Any] | None = None,
    *,
    comm: Communicator | None = None,
    engine: Engine | str | None = None,
) -> Any:
    """Read what :func:`save` has written, or any Zarr array. Collective.

    Parameters
    ----------
    path : str or path
        The store's directory.
    layout : Layout, StackedLayout or dict, optional
        Layouts for what the store holds. By default, on as many ranks as have written it, the same layout; else split
        along the first axis that was split, or replicated as before.
    comm : Communicator, optional
        The ranks; the world by default.
    engine : str or Engine, optional
        By default the environment's ``COLLOPS_ENGINE``, else NumPy.

    Returns
    -------
    DistributedArray, StackedArray or dict
        What was saved.

    Raises
    ------
    InputError
        On every rank, if there is no such store or it cannot be read.
    LayoutError
        On every rank, if `layout` does not fit.
    """
    comm = _comm(comm)
    target = engine if isinstance(engine, Engine) else find_engine(engine)
    result, error = None, None
    try:
        result = _read(_opened(fspath(path)), layout, comm, target)
    except CollopsError as problem:
        error = problem
    except (OSError, ValueError, KeyError, TypeError) as problem:
        error = InputError(f"{fspath(path)} cannot be read as arrays: {problem}")
    comm.check(error)
    return _wrapped(result, comm)


def _comm_of(arrays: Saved) -> Communicator:
    if isinstance(arrays, DistributedArray | StackedArray):
        return arrays.comm
    if not isinstance(arrays, Mapping) or not arrays:
        raise InputError("save takes a distributed array, a stacked array, or a dictionary of them that is not empty")
    comms = [_comm_of(value) for value in arrays.values()]
    if any(comm is not comms[0] for comm in comms):
        raise LayoutError("arrays that are saved together must be on one communicator")
    return comms[0]


def _check_names(arrays: Saved) -> None:
    """Refuse names that Zarr cannot have, before anything is written."""
    if isinstance(arrays, DistributedArray):
        return
    for name, value in _members(arrays):
        if not name or "/" in name or name.startswith(("__", ".")):
            raise InputError(f"{name!r} cannot be the name of an array in a store")
        _check_names(value)


def _refuse_path(path: Path, overwrite: bool) -> None:
    if not path.exists():
        return
    if not (path / "zarr.json").is_file():
        raise InputError(f"{path} exists and is no Zarr store; choose another path")
    if not overwrite:
        raise InputError(f"{path} exists; pass overwrite=True to replace it")


def _create(store: str, name: str, arrays: Saved, attributes: Mapping[str, Any] | None = None) -> Any:
    """Write the store's metadata, on rank 0."""
    import zarr

    mine: dict[str, Any] = {"version": _VERSION}
    if not isinstance(arrays, DistributedArray):
        mine["kind"] = "stacked" if isinstance(arrays, StackedArray) else "dictionary"
        node = zarr.create_group(
            store, path=name, overwrite=not name, attributes={**(attributes or {}), "collops": mine}
        )
        for key, value in _members(arrays):
            _create(store, f"{name}/{key}" if name else key, value)
        return node
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
        store,
        name=name or None,
        shape=layout.shape,
        chunks=_chunks(layout, arrays.dtype.itemsize),
        dtype=_stored(arrays.dtype),
        overwrite=not name,
        attributes={**(attributes or {}), "collops": mine},
    )


def _members(arrays: StackedArray | Mapping[str, Saved]) -> list[tuple[str, Saved]]:
    if isinstance(arrays, StackedArray):
        return [(str(number), array) for number, array in enumerate(arrays)]
    return [(str(name), array) for name, array in arrays.items()]


def _write(node: Any, arrays: Saved) -> None:
    """Write this rank's regions. Collective."""
    if not isinstance(arrays, DistributedArray):
        for name, value in _members(arrays):
            _write(node[name], value)
        return
    layout = _aligned(arrays.layout, node.chunks)
    comm = arrays.comm
    local = moved(arrays.local_array, arrays.layout, layout, comm, arrays.engine.xp)
    error = None
    if local.size and layout.representative(comm.rank):
        values = arrays.engine.to_host(local)
        try:
            node[layout.slices(comm.rank)] = values.view(node.dtype)
        except (OSError, RuntimeError, ValueError) as problem:
            error = problem
    comm.check(error)


def _chunks(layout: Layout, itemsize: int) -> tuple[int, ...]:
    """Return a chunk shape of bounded size that puts about equally many chunks on the ranks."""
    first = layout.split_axes or (0,)
    parts = [len(sizes) for sizes in layout.sizes] if layout.split_axes else [layout.ranks] + [1] * (layout.ndim - 1)
    chunks = [max(1, math.ceil(extent / count)) for extent, count in zip(layout.shape, parts, strict=True)]
    while math.prod(chunks) * itemsize > _CHUNK_BYTES:
        # Rows stay whole as long as the split axes can be cut.
        axis = next((a for a in first if chunks[a] > 1), max(range(len(chunks)), key=chunks.__getitem__))
        chunks[axis] = math.ceil(chunks[axis] / 2)
    return tuple(chunks)


def _aligned(layout: Layout, chunks: tuple[int, ...]) -> Layout:
    """Return a layout of the same ranks whose boundaries are those of chunks."""
    split = layout.split_axes or (0,)
    grid = layout.process_grid if layout.split_axes else (layout.ranks,)
    axes = layout.axes if layout.split_axes else (0,) + (None,) * (layout.ndim - 1)
    sizes: list[Sequence[int] | None] = [None] * layout.ndim
    for axis in split:
        place = axes[axis]
        if place is not None and grid[place] > 1:
            sizes[axis] = _whole_chunks(layout.shape[axis], chunks[axis], grid[place])
    return Layout(layout.shape, layout.ranks, grid, axes, sizes)


def _whole_chunks(extent: int, chunk: int, parts: int) -> list[int]:
    count = math.ceil(extent / chunk)
    ends = [min(extent, chunk * (count * (part + 1) // parts)) for part in range(parts)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _stored(dtype: np.dtype) -> np.dtype:
    """Return the dtype in the file: Zarr has no bfloat16, whose bits are stored as integers."""
    return np.dtype(np.uint16) if dtype.name == "bfloat16" else dtype


def _opened(path: str) -> Any:
    import zarr

    if not (Path(path) / "zarr.json").is_file():
        raise InputError(f"{path} is no Zarr 3 store")
    return zarr.open(path, mode="r")


def _read(node: Any, layout: Any, comm: Communicator, engine: Engine) -> Any:
    """Return layouts and this rank's values, nested like the store. No messages, so that one check covers all."""
    import zarr

    about = node.attrs.asdict().get("collops", {})
    if about.get("version", _VERSION) != _VERSION:
        raise InputError(f"the store was written by another version of collops (format {about['version']})")
    if isinstance(node, zarr.Array):
        chosen = _layout_for(node.shape, about, comm) if layout is None else layout
        if not isinstance(chosen, Layout) or chosen.shape != node.shape or chosen.ranks != comm.size:
            raise LayoutError(f"a stored array of shape {node.shape} does not fit {chosen} on {comm.size} ranks")
        values = np.ascontiguousarray(np.asarray(node[chosen.slices(comm.rank)]))
        return chosen, engine.from_host(values.view(as_dtype(about.get("dtype", str(node.dtype)))))
    kind = about.get("kind")
    names = sorted(node.keys())
    if kind == "stacked":
        names = sorted(names, key=int)
        if layout is not None and (not isinstance(layout, StackedLayout) or len(layout) != len(names)):
            raise LayoutError(f"a stack of {len(names)} arrays does not fit {layout}")
        parts = [None] * len(names) if layout is None else list(layout)
        return [_read(node[name], part, comm, engine) for name, part in zip(names, parts, strict=True)]
    wanted = layout or {}
    if not isinstance(wanted, Mapping) or not set(wanted) <= set(names):
        raise LayoutError(f"the store holds the arrays {', '.join(names)}: give their layouts as a dictionary")
    return {name: _read(node[name], wanted.get(name), comm, engine) for name in names}


def _layout_for(shape: tuple[int, ...], about: Mapping[str, Any], comm: Communicator) -> Layout:
    if about.get("ranks") == comm.size:
        return Layout(shape, comm.size, about["process_grid"], about["axes"], about["sizes"], about["mask"])
    axes = [axis for axis, place in enumerate(about.get("axes", [0])) if place is not None]
    if not axes and about.get("ranks", 1) > 1:
        return Layout.replicated(shape, comm.size)
    return Layout.split(shape, comm.size, axes[0] if axes else 0)


def _wrapped(result: Any, comm: Communicator) -> Any:
    """Make arrays of what `_read` returned. Collective where a layout is new."""
    if isinstance(result, tuple):
        return DistributedArray(result[0], comm, result[1])
    if isinstance(result, list):
        return StackedArray([_wrapped(part, comm) for part in result])
    return {name: _wrapped(part, comm) for name, part in result.items()}
