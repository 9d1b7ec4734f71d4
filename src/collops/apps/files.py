"""Read arrays from NumPy files and Zarr stores, and write results atomically."""

from __future__ import annotations

import base64
import lzma
import math
import os
import platform
import struct
import tempfile
import tokenize
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.apps.stages import check_memory, local_stage
from collops.apps.urls import Url, located
from collops.array.store import open_node
from collops.comm.agreement import raised_together
from collops.comm.bounded import in_time
from collops.comm.files import atomic, atomic_together, is_seen, name_blind_ranks, scratch_lock
from collops.errors import ARGUMENT_ERRORS, InputError
from collops.limits import free_room, in_words

if TYPE_CHECKING:
    from collops.array import DistributedArray
    from collops.comm import Communicator

__all__ = [
    "Field",
    "atomic",
    "check_absent",
    "check_writable",
    "decoded",
    "dimension_names",
    "is_zarr",
    "not_finite",
    "open_array",
    "open_zarr",
    "prepare_folder",
    "read_rows",
    "write_result",
]

# Errors that NumPy, Zarr and its codecs raise for damaged files, except a lack of memory.
_DECODING_ERRORS = (
    *(kind for kind in ARGUMENT_ERRORS if kind is not MemoryError),
    *(OSError, EOFError, RuntimeError, SystemError, zlib.error, lzma.LZMAError),
)
_CHUNK_BYTES = 16 << 20


def read_rows(array: Any, path: Path | Url, rows: Any) -> np.ndarray:
    """Read rows along the first axis of an array from `open_array`; raise `InputError` if the file is damaged.

    `rows` is a slice or any other index of `array`.
    """
    try:
        return np.asarray(array[rows])
    except _DECODING_ERRORS as problem:
        raise InputError(f"{path} cannot be read ({problem}): it is damaged, copy it again") from None


def decoded(array: Any, path: Path | Url, index: Any = ..., dtype: type[np.floating] = np.float32) -> np.ndarray:
    """Read real numbers by an index and decode them like xarray: unpacked, and NaN where a value is marked as missing.

    The result is float32 or float64: at least `dtype`, and exact for the stored values. As in xarray, ``add_offset``
    makes it float64, because differences may be much smaller than the offset. If an index has arrays, it has an array
    for each axis.
    """
    orthogonal = isinstance(index, tuple) and any(isinstance(part, np.ndarray) for part in index)
    stored = read_rows(array.oindex if orthogonal else array, path, index)
    if stored.dtype.kind not in "fiub":
        raise InputError(f"{path} holds {stored.dtype}: save real numbers")
    stored, marks = _with_sign(stored, array, path)
    factor, shift = (_numbers_in(array, path, name) for name in ("scale_factor", "add_offset"))
    values = stored.astype(np.promote_types(stored.dtype, np.float64 if shift else dtype), copy=False)
    if factor or shift:
        values = values * (factor or [1.0])[0] + (shift or [0.0])[0]
    for missing in (stored == mark for mark in marks):
        if missing.any():
            values = np.where(missing, values.dtype.type(np.nan), values)
    return values


def _with_sign(stored: np.ndarray, array: Any, path: Path | Url) -> tuple[np.ndarray, list[Any]]:
    """Return stored values with the sign from the attribute ``_Unsigned``, and the marks of missing values.

    Marks are the attributes ``_FillValue`` and ``missing_value``, and in format 2 the fill value of the array, in which
    xarray stores ``_FillValue``, unless it is 0, Zarr's default.
    """
    if stored.dtype.kind == "b":
        return stored, []
    marks = [mark for name in ("_FillValue", "missing_value") for mark in _numbers_in(array, path, name)]
    if getattr(getattr(array, "metadata", None), "zarr_format", None) == 2 and array.fill_value:
        marks.append(array.fill_value.item())
    if stored.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return stored, [stored.dtype.type(mark) for mark in marks]
    marks = [int(mark) for mark in marks if float(mark).is_integer()]
    kind = {"true": "u", "false": "i"}.get(str(getattr(array, "attrs", {}).get("_Unsigned")).lower())
    if kind is None:
        return stored, marks
    stored = stored.view(stored.dtype.str.replace(stored.dtype.kind, kind))
    # Programs write marks with either sign: -1 and 255 are the same byte.
    lowest, count = int(np.iinfo(stored.dtype).min), 1 << 8 * stored.dtype.itemsize
    return stored, [(mark - lowest) % count + lowest for mark in marks]


def _numbers_in(array: Any, path: Path | Url, name: str) -> list[float]:
    """Return the numbers in an attribute of a Zarr array: none if it is absent, one number, or a list."""
    attribute = getattr(array, "attrs", {}).get(name)
    numbers = [_number(entry) for entry in (attribute if isinstance(attribute, list) else [attribute])]
    if attribute is None:
        return []
    if None in numbers or not numbers:
        raise InputError(f"{path} has the attribute {name} of {attribute!r}: replace it with a number, or remove it")
    return [entry for entry in numbers if entry is not None]


def _number(entry: Any) -> float | None:
    """Return a number from JSON or from text; xarray writes floats of format 3 as base64."""
    with suppress(ValueError, TypeError, OverflowError):
        number = float(entry)  # also "NaN", which JSON cannot represent as a number
        return entry if isinstance(entry, int) else number
    with suppress(ValueError, struct.error):
        return struct.unpack("<d", base64.b64decode(entry, validate=True))[0] if isinstance(entry, str) else None
    return None


def not_finite(values: np.ndarray) -> tuple[int, ...] | None:
    """Return the index of the first number that is not finite, or None."""
    indices = np.argwhere(~np.isfinite(values))
    return tuple(indices[0].tolist()) if len(indices) else None


def open_array(path: Path | Url, names: tuple[str, ...], other_suffixes: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """Open an array of real numbers without reading it; return it, and the Zarr group that holds it.

    The path names a .npy file, a Zarr array, or a Zarr group. In a group, it opens the first existing array among
    `names`, or else the only array of two or three axes. `other_suffixes` are suffixes that the caller also supports.
    """
    in_zarr = is_zarr(path)
    if path.suffix.lower() != ".npy" and not in_zarr:
        kinds = ", ".join([*other_suffixes, ".npy"])
        raise InputError(f"{path} cannot be read: pass a file {kinds}, or a Zarr store .zarr")
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path")
    array, group = _choose_array(path, names) if in_zarr else (open_npy(path), None)
    if np.dtype(array.dtype).kind not in "fiu":
        raise InputError(f"{path} holds {array.dtype}: save real numbers")
    return array, group


def open_npy(path: Path | Url) -> np.ndarray:
    """Open a NumPy file safely: no pickles, no reading beyond its end."""
    try:
        with path.open("rb") as file:
            is_archive = file.read(2) == b"PK"  # which NumPy would leave open
        with np.errstate(over="ignore"):  # of a shape that is damaged
            array = None if is_archive else _mapped(path)
    except (*_DECODING_ERRORS, MemoryError, SyntaxError, tokenize.TokenError) as problem:
        # Mapping needs no memory: a MemoryError is from Python's parser, for a header that is nested too deeply.
        raise InputError(
            f"{path} is not a NumPy file of numbers, or it is damaged ({problem}): save it again"
        ) from None
    if array is None:
        raise InputError(f"{path} is an archive of arrays: save a single array with numpy.save")
    return array


def _mapped(path: Path | Url) -> np.ndarray:
    """Map a NumPy file, or read it from its URL."""
    if isinstance(path, Path):
        return np.load(path, mmap_mode="r", allow_pickle=False)
    with path.open("rb") as file:
        return np.load(file, allow_pickle=False)


def is_zarr(path: str | Path | Url) -> bool:
    """Return whether a path is in a Zarr store: a part of it ends with .zarr, or it is a folder."""
    path = located(path)
    if any(part.endswith(".zarr") for part in Path(path).parts):
        return True
    # A URL with a suffix is a file: asking a server takes time.
    return path.is_dir() if isinstance(path, Path) or not path.suffix else False


def open_zarr(path: Path | Url) -> Any:
    """Open a Zarr array or group without reading values; raise `InputError` if it is missing or damaged."""
    import zarr

    try:
        node = open_node(path)
    except InputError:  # a chunk written by collops is missing
        raise
    except _DECODING_ERRORS as problem:
        raise InputError(f"{path} cannot be read as Zarr ({problem}): pass the folder of an array or a group") from None
    # Zarr accepts both faults, and would fail later.
    if not isinstance(node.metadata.attributes, Mapping):
        raise InputError(f"{path} has the attributes {node.metadata.attributes!r}: it is damaged, copy it again")
    if isinstance(node, zarr.Array):
        if 0 in node.chunks:
            raise InputError(f"{path} has chunks of {node.chunks} elements: it is damaged, copy it again")
        size = math.prod(node.chunks) * np.dtype(node.dtype).itemsize
        check_memory(size, f"the chunks of {path}", "write smaller chunks, or copy it again if it is damaged")
    return node


def dimension_names(array: Any) -> tuple[str | None, ...]:
    """Return the names of the axes of a Zarr array, as Zarr 3 and xarray store them; None for axes without a name."""
    # Zarr 2 does not store them: xarray uses an attribute.
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    if not isinstance(names, list | tuple) or len(names) != array.ndim:
        return (None,) * array.ndim
    return tuple(name if isinstance(name, str) else None for name in names)


def _choose_array(path: Path | Url, names: tuple[str, ...]) -> tuple[Any, Any]:
    node = open_zarr(path)
    if hasattr(node, "shape"):
        return node, None
    # Avoid `array_keys` of Zarr: it fails at the first damaged member, also if this member is not needed.
    chosen = next((name for name in names if (path / name).is_dir()), None)
    if chosen is None:
        files = "zarr.json", ".zarray"
        inside = [child for child in sorted(path.iterdir(), key=str) if any((child / name).is_file() for name in files)]
        several = [child.name for child in inside if getattr(open_zarr(child), "ndim", 0) in (2, 3)]
        if len(several) != 1:
            listing = f"the arrays {', '.join(several)}" if several else "no array of two or three axes"
            raise InputError(
                f"{path} holds {listing}: pass the path of an array, such as {path}/{(several or names)[0]}"
            )
        chosen = several[0]
    array = open_zarr(path / chosen)
    if not hasattr(array, "shape"):
        raise InputError(f"{path / chosen} is a group: pass the path of an array in it")
    return array, node


class Field(NamedTuple):
    """One array of ``result.zarr``.

    Attributes
    ----------
    values : numpy.ndarray or DistributedArray
        An array that the first rank writes, or a distributed array split along its first axis, whose ranks write their
        rows.
    dimensions : tuple of str
        Names of the axes. A 1-D array with the name of its axis is the coordinate of this axis.
    unit : str
        ``"1"`` for a pure number.
    is_coordinate : bool
        Whether xarray shows the array as a coordinate although its name differs from the name of its axis.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.extend.applications import Field
    >>> Field(np.zeros((3, 2)), ("time", "trace"), "Pa").is_coordinate
    False
    """

    values: np.ndarray | DistributedArray
    dimensions: tuple[str, ...]
    unit: str
    is_coordinate: bool = False


def prepare_folder(folder: Path, option: str = "--out") -> None:
    """Create the folder that `option` names; raise `InputError` if it cannot be created or written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{option} must name a folder, but {folder} is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as problem:
        reason = problem.strerror or problem
        raise InputError(
            f"cannot write into the folder {folder} ({reason}): choose another folder with {option}"
        ) from None


def share_folders(comm: Communicator, folders: Mapping[str, Path]) -> None:
    """Create folders, and check that every rank sees the files that rank 0 writes into them. Collective.

    The keys of `folders` are the options that name them.

    Raises
    ------
    InputError
        On every rank, if a folder cannot be created or written, or if some ranks do not see it. The message names these
        ranks and their hosts.
    """
    with ExitStack() as stack:
        proofs: list[list[str]] = []
        with local_stage(comm):
            if comm.rank == 0:
                for option, folder in folders.items():
                    prepare_folder(folder, option)
                    lock = stack.enter_context(scratch_lock(folder / "collops"))
                    proofs.append([lock.path.name, lock.text])
        proofs = comm.allgather_metadata(proofs)[0]
        seen = [is_seen(folder / name, text) for folder, (name, text) in zip(folders.values(), proofs, strict=True)]
        answers = comm.allgather_metadata([platform.node(), *seen])
    hosts = [answer[0] for answer in answers]
    for number, (option, folder) in enumerate(folders.items(), start=1):
        if blind := name_blind_ranks(hosts, [answer[number] for answer in answers]):
            with raised_together():
                raise InputError(
                    f"rank 0 on {hosts[0]} can write into the folder {folder}, but not {blind}: choose a folder "
                    f"that all ranks share with {option}"
                )


def check_absent(paths: Sequence[Path]) -> None:
    """Raise `InputError` if any of the files that a job will write exists."""
    if existing := [str(path) for path in paths if os.path.lexists(path)]:
        raise InputError(
            f"results of an earlier run exist: {', '.join(existing)}; replace them with --overwrite, or choose another "
            "folder with --out"
        )


def check_room(folder: Path, needed: int, option: str) -> None:
    """Raise `InputError` unless the file system of a folder has `needed` free bytes."""
    if needed > (free := free_room(folder)):
        raise InputError(
            f"the results need {in_words(needed)}, but {folder} has {in_words(free)} free: free some space, or choose "
            f"another folder with {option}"
        )


def check_writable(path: Path) -> None:
    """Raise `InputError` unless a file could be created at `path`; an existing file is not changed."""
    if path.is_dir() and path.suffix != ".zarr":
        raise InputError(f"{path} is a folder: choose a file, or a Zarr store .zarr")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as problem:
        raise InputError(f"cannot write {path} ({problem.strerror or problem}): choose another folder") from None


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
    """
    import zarr

    from collops.array.store import create_array, open_node, write_region

    # Align blocks with chunks, so that each chunk is written by one rank.
    aligned = {name: _in_chunks(field.values, comm) for name, field in fields.items()}
    regions: dict[str, tuple[tuple[slice, ...], np.ndarray]] = {}  # the region that this rank writes, and its values
    for name, (values, _) in aligned.items():
        if not isinstance(values, np.ndarray):
            if values.local_array.size:
                regions[name] = values.layout.slices(comm.rank), values.engine.to_host(values.local_array)
        elif comm.rank == 0:
            regions[name] = tuple(slice(0, extent) for extent in values.shape), values

    def create(folder: Path) -> None:
        extra = {"coordinates": " ".join(name for name, field in fields.items() if field.is_coordinate)}
        group = zarr.open_group(folder, mode="w-", zarr_format=3, attributes={**attributes, **extra})
        for name, field in fields.items():
            values, rows = aligned[name]
            create_array(
                group.store,
                name,
                values.shape,
                values.dtype,
                (rows, *values.shape[1:]),
                {"units": field.unit},
                dimension_names=field.dimensions,
            )

    def write(folder: Path) -> None:
        group = open_node(folder, mode="r+")
        for name, (region, values) in regions.items():
            write_region(group[name], region, values)

    with atomic_together(path, comm, stage=local_stage) as new, zarr.config.set({"array.write_empty_chunks": True}):
        with local_stage(comm):
            if comm.rank == 0:
                in_time(lambda: create(new), path)
        with local_stage(comm):
            in_time(lambda: write(new), path, sum(values.nbytes for _, values in regions.values()))
    return path


def _in_chunks(values: np.ndarray | DistributedArray, comm: Communicator) -> tuple[np.ndarray | DistributedArray, int]:
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
