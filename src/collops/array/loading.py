"""Load arrays from Zarr stores on any number of ranks, in any layout. Every rank reads its own part."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from collops.array.creation import check_memory
from collops.array.distributed import DistributedArray
from collops.array.dtypes import as_dtype
from collops.array.layout import Layout, StackedLayout
from collops.array.stacked import StackedArray
from collops.array.store import VERSION, ZarrNode, open_node
from collops.backend import Engine
from collops.backend import engine as find_engine
from collops.comm import Communicator
from collops.comm.agreement import collective_values, name_ranks, raised_together
from collops.comm.arguments import communicator_or_world
from collops.errors import ARGUMENT_ERRORS, CollopsError, InputError, LayoutError


def load(
    path: str | PathLike[str],
    layout: Layout | StackedLayout | Mapping[str, object] | None = None,
    *,
    comm: Communicator | None = None,
    engine: Engine | str | None = None,
) -> Any:
    """Read the arrays of a store written by :func:`collops.array.save`, or any other Zarr 3 array. Collective.

    Parameters
    ----------
    path : str or path
        The store's directory.
    layout : Layout, StackedLayout or dict, optional
        Layouts of the arrays in the store. By default the saved layout, if the number of ranks is the same. On another
        number of ranks, an array is split along its first split axis, or replicated if it was.
    comm, engine
        As for :func:`collops.array.zeros`.

    Raises
    ------
    InputError
        On every rank, if the store does not exist or cannot be read, if a file or a member written by
        :func:`collops.array.save` is missing, or if `path` is not the same store on all ranks.
    LayoutError
        On every rank, if `layout` does not fit.

    Examples
    --------
    >>> import collops
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> collops.save(f"{folder}/x.zarr", collops.ones(3))
    >>> collops.load(f"{folder}/x.zarr").gather()
    array([1., 1., 1.])
    """
    comm = communicator_or_world(comm)
    target = find_engine(engine)
    result: Any = None

    def read() -> str:
        nonlocal result
        try:
            metadata = Path(path) / "zarr.json"
            if not metadata.is_file():
                raise InputError(f"{fspath(path)} is not a Zarr 3 store")
            result = _read(open_node(path), layout, comm, target)
            return hashlib.sha256(metadata.read_bytes()).hexdigest()
        except CollopsError:
            raise
        except (OSError, RuntimeError, *ARGUMENT_ERRORS) as problem:
            raise InputError(f"{fspath(path)} cannot be read as arrays: {problem}") from problem

    digests = collective_values(comm, read)
    if different_ranks := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
        with raised_together():
            raise InputError(
                f"{fspath(path)} is another store on {name_ranks(different_ranks)} than on rank 0: "
                "pass the same shared path on all ranks, for example an absolute one"
            )
    return _wrapped(result, comm)


def _read(node: ZarrNode, layout: Any, comm: Communicator, engine: Engine) -> Any:
    """Return layouts and this rank's values, nested like the store. Sends no messages, so that one check suffices."""
    import zarr

    about = node.attrs.asdict().get("collops", {})
    if about.get("version", VERSION) != VERSION:
        raise InputError(f"the store has format {about['version']}, written by another version of collops")
    if isinstance(node, zarr.Array):
        chosen = _layout_for(node.shape, about, comm) if layout is None else layout
        if not isinstance(chosen, Layout) or chosen.shape != node.shape or chosen.ranks != comm.size:
            raise LayoutError(f"a stored array of shape {node.shape} does not fit {chosen} on {comm.size} ranks")
        check_memory(chosen, node.dtype, engine)
        check_memory(Layout.replicated(node.chunks, comm.size), node.dtype, engine)  # chunks are read as a whole
        values = np.asarray(node[chosen.slices(comm.rank)])
        values = np.ascontiguousarray(values, as_dtype(values.dtype))
        return chosen, engine.from_host(values.view(as_dtype(about["dtype"])) if "dtype" in about else values)
    kind = about.get("kind")
    folder = Path(node.store.root) / node.path
    # Check before Zarr lists the members: it warns of folders without metadata and omits them.
    if lost := [name for name in about.get("members", ()) if not (folder / name / "zarr.json").is_file()]:
        raise InputError(f"{folder} has lost the metadata of {', '.join(lost)}: copy it again, or write it again")
    names = sorted(node.keys())
    if kind == "stacked":
        names = sorted(names, key=int)
        if layout is not None and (not isinstance(layout, StackedLayout) or len(layout) != len(names)):
            raise LayoutError(f"a stack of {len(names)} arrays does not fit {layout}")
        parts = [None] * len(names) if layout is None else list(layout)
        return [_read(open_node(node, name), part, comm, engine) for name, part in zip(names, parts, strict=True)]
    layouts = layout or {}
    if not isinstance(layouts, Mapping) or not set(layouts) <= set(names):
        raise LayoutError(f"the store contains the arrays {', '.join(names)}: give their layouts as a dictionary")
    return {name: _read(open_node(node, name), layouts.get(name), comm, engine) for name in names}


def _layout_for(shape: tuple[int, ...], about: Mapping[str, Any], comm: Communicator) -> Layout:
    saved = tuple(map(sum, about.get("sizes", ())))
    if about.get("ranks") == comm.size and saved == shape:  # otherwise rows have been appended
        return Layout(shape, comm.size, about["process_grid"], about["axes"], about["sizes"], about["mask"])
    axes = [axis for axis, grid_axis in enumerate(about.get("axes", [0])) if grid_axis is not None]
    if not axes and about.get("ranks", 1) > 1:
        return Layout.replicated(shape, comm.size)
    return Layout.split(shape, comm.size, axes[0] if axes else 0)


def _wrapped(result: Any, comm: Communicator) -> Any:
    """Return the arrays for the result of `_read`. Collective if a layout is new."""
    if isinstance(result, tuple):
        return DistributedArray(result[0], comm, result[1])
    if isinstance(result, list):
        return StackedArray([_wrapped(part, comm) for part in result])
    return {name: _wrapped(part, comm) for name, part in result.items()}
