"""Write results so that a reader sees a whole file or none: first into a temporary neighbour."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.apps.stages import local_stage
from collops.errors import InputError

if TYPE_CHECKING:
    from collops.comm import Communicator

__all__ = ["Field", "atomic", "check_writable", "prepare_folder", "write_result"]

_CHUNK_BYTES = 16 << 20


class Field(NamedTuple):
    """One array of a result."""

    # an array that the first rank writes, or one that is split along its first axis, of which every rank writes its
    # own rows
    values: Any
    dimensions: tuple[str, ...]  # names of its axes; an array with the name of its only axis is that axis' coordinate
    unit: str  # "1" for a pure number


def prepare_folder(folder: Path) -> None:
    """Create the output `folder`, and find out before the computation whether it can be written.

    Raises
    ------
    InputError
        If it is no folder, or cannot be created or written.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        reason = problem.strerror or problem
        raise InputError(f"cannot write into the folder {folder} ({reason}): name another one with --out") from None


def check_writable(path: Path) -> None:
    """Find out whether a file could be created at `path`, without touching what may be there.

    Raises
    ------
    InputError
        If `path` is a folder, or its folder does not exist or cannot be written.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        raise InputError(f"cannot write {path} ({problem.strerror or problem}): choose another folder") from None


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or a folder, of the suffix of `path`, and rename it to `path` after the body.

    If the body raises, what it wrote is removed and what was at `path` before remains.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    temporary = scratch / path.name
    try:
        yield temporary
        if temporary.is_dir() and path.is_dir():
            # A folder cannot be renamed over another one that holds files: the old one steps aside first.
            os.replace(path, scratch / "previous")
        os.replace(temporary, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_result(path: Path, comm: Communicator, fields: Mapping[str, Field], attributes: Mapping[str, Any]) -> Path:
    """Write a Zarr group (format 3) that xarray opens with its coordinates; return `path`. Collective.

    Parameters
    ----------
    path : pathlib.Path
        The group's folder, which all ranks see; replaced as a whole.
    fields : mapping
        The arrays by name, the same names on every rank.
    attributes : mapping
        Values of JSON.

    Raises
    ------
    InputError
        On every rank, if some rank cannot write.
    """
    import zarr

    # Blocks move to where the boundaries of chunks are, so that no two ranks write one chunk.
    aligned = {name: _in_chunks(field.values, comm) for name, field in fields.items()}
    with ExitStack() as stack:
        place = ""
        with local_stage(comm):
            if comm.rank == 0:
                place = str(stack.enter_context(atomic(path)))
                group = zarr.open_group(place, mode="w", zarr_format=3, attributes=dict(attributes))
                for name, field in fields.items():
                    values, rows = aligned[name]
                    array = group.create_array(
                        name,
                        shape=values.shape,
                        chunks=(rows, *values.shape[1:]),
                        dtype=values.dtype,
                        dimension_names=field.dimensions,
                    )
                    array.attrs["units"] = field.unit
        place = comm.allgather_metadata(place)[0]
        with local_stage(comm):
            group = zarr.open_group(place, mode="r+")
            for name, (values, _) in aligned.items():
                _store(group[name], values, comm)
        with local_stage(comm):
            stack.close()
    return path


def _in_chunks(values: Any, comm: Communicator) -> tuple[Any, int]:
    """Return an array whose blocks are whole chunks, and the rows of a chunk. Collective."""
    from collops.array import DistributedArray, Layout

    if not isinstance(values, DistributedArray):
        return values, max(1, len(values))
    total = values.shape[0]
    block = max(1, -(-total // comm.size))
    pieces = max(1, -(-values.nbytes // comm.size // _CHUNK_BYTES))
    rows = -(-block // min(pieces, block))
    block = rows * -(-block // rows)
    sizes = [max(0, min(block, total - rank * block)) for rank in range(comm.size)]
    return values.redistribute(Layout.split(values.shape, comm.size, sizes=sizes)), rows


def _store(array: Any, values: Any, comm: Communicator) -> None:
    if isinstance(values, np.ndarray):
        if comm.rank == 0:
            array[...] = values
    elif values.local_array.size:
        array[values.layout.slices(comm.rank)] = values.engine.to_host(values.local_array)
