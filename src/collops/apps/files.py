"""Read arrays from NumPy files and Zarr stores, and write results: a reader sees a whole file or none."""

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
from collops.array.store import open_node
from collops.comm.agreement import raised_together
from collops.comm.bounded import in_time
from collops.comm.files import atomic, atomic_together, is_seen, name_blind_ranks, scratch_lock
from collops.errors import ARGUMENT_ERRORS, InputError
from collops.limits import free_room, in_words

if TYPE_CHECKING:
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

# Errors that NumPy, Zarr and its codecs raise for damaged files. A lack of memory is not one.
_DECODING_ERRORS = (
    *(kind for kind in ARGUMENT_ERRORS if kind is not MemoryError),
    *(OSError, EOFError, RuntimeError, SystemError, zlib.error, lzma.LZMAError),
)
_CHUNK_BYTES = 16 << 20


def read_rows(array: Any, path: Path, rows: Any) -> np.ndarray:
    """Read rows along the first axis of an array from `open_array`; raise `InputError` if the file is damaged.

    `rows` is a slice, or whatever else is an index of `array`.
    """
    try:
        return np.asarray(array[rows])
    except _DECODING_ERRORS as problem:
        raise InputError(f"{path} cannot be read ({problem}): it is damaged, copy it again") from None


def decoded(array: Any, path: Path, index: Any = ..., dtype: type[np.floating] = np.float32) -> np.ndarray:
    """Read real numbers by an index, as xarray decodes them: unpacked, and NaN where a value is marked as missing.

    The result is float32 or float64: at least `dtype`, and exact for the stored values. As in xarray, ``add_offset``
    makes it float64, because differences may be much smaller than the offset. An index that holds arrays has one for
    each axis.
    """
    orthogonal = isinstance(index, tuple) and any(isinstance(each, np.ndarray) for each in index)
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


def _with_sign(stored: np.ndarray, array: Any, path: Path) -> tuple[np.ndarray, list[Any]]:
    """Return stored values with the sign that the attribute ``_Unsigned`` sets, and the marks of missing ones.

    Marks are the attributes ``_FillValue`` and ``missing_value``, and in format 2 the fill value of the array, in which
    xarray stores ``_FillValue``. There 0 is not a mark, because it is Zarr's default.
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
    # Programs write the mark with either sign: -1 and 255 are the same byte.
    lowest, count = int(np.iinfo(stored.dtype).min), 1 << 8 * stored.dtype.itemsize
    return stored, [(mark - lowest) % count + lowest for mark in marks]


def _numbers_in(array: Any, path: Path, name: str) -> list[float]:
    """Return the numbers in an attribute of a Zarr array: none if it is absent, one number, or a list."""
    given = getattr(array, "attrs", {}).get(name)
    numbers = [_number(each) for each in (given if isinstance(given, list) else [given])]
    if given is None:
        return []
    if None in numbers or not numbers:
        raise InputError(f"{path} has the attribute {name} of {given!r}: replace it with a number, or remove it")
    return [each for each in numbers if each is not None]


def _number(given: Any) -> float | None:
    """Return a number of JSON, or one in text; xarray writes floats of format 3 as base64."""
    with suppress(ValueError, TypeError, OverflowError):
        number = float(given)  # also of "NaN", since JSON has no number for it
        return given if isinstance(given, int) else number
    with suppress(ValueError, struct.error):
        return struct.unpack("<d", base64.b64decode(given, validate=True))[0] if isinstance(given, str) else None
    return None


def not_finite(values: np.ndarray) -> tuple[int, ...] | None:
    """Return the index of the first number that is not finite, if there is one."""
    places = np.argwhere(~np.isfinite(values))
    return tuple(places[0].tolist()) if len(places) else None


def open_array(path: Path, names: tuple[str, ...], others: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """Open an array of real numbers without reading it; return it, and the Zarr group that holds it.

    The path names a .npy file, a Zarr array, or a Zarr group. Of a group, it opens the first array among `names`, or
    else its only array of two or three axes. `others` are suffixes of files that the caller reads by other means.
    """
    in_zarr = is_zarr(path)
    if path.suffix.lower() != ".npy" and not in_zarr:
        kinds = ", ".join([*others, ".npy"])
        raise InputError(f"{path} cannot be read: name a file {kinds}, or a Zarr store .zarr")
    if not path.exists():
        raise InputError(f"{path} does not exist: check the name")
    array, group = _choose_array(path, names) if in_zarr else (open_npy(path), None)
    if np.dtype(array.dtype).kind not in "fiu":
        raise InputError(f"{path} holds {array.dtype}: save real numbers")
    return array, group


def open_npy(path: Path) -> np.ndarray:
    """Open a NumPy file safely: no pickles, no reading beyond its end."""
    try:
        with path.open("rb") as file:
            is_archive = file.read(2) == b"PK"  # which NumPy would leave open
        with np.errstate(over="ignore"):  # of a shape that is damaged
            array = None if is_archive else np.load(path, mmap_mode="r", allow_pickle=False)
    except (*_DECODING_ERRORS, MemoryError, SyntaxError, tokenize.TokenError) as problem:
        # Mapping needs no memory: only Python's parser lacks it, for a header that is nested too deeply.
        raise InputError(
            f"{path} is not a NumPy file of numbers, or it is damaged ({problem}): save it again"
        ) from None
    if array is None:
        raise InputError(f"{path} is an archive of arrays: save the one array alone with numpy.save")
    return array


def is_zarr(path: str | Path) -> bool:
    """Return whether a path is in a Zarr store by its name, or a folder, as stores of other names are."""
    path = Path(path)
    return any(part.endswith(".zarr") for part in path.parts) or path.is_dir()


def open_zarr(path: Path) -> Any:
    """Open a Zarr array or group without reading values; raise `InputError` if there is none, or it is damaged."""
    import zarr

    try:
        found = open_node(path)
    except InputError:  # a chunk that collops has written is missing
        raise
    except _DECODING_ERRORS as problem:
        raise InputError(f"{path} cannot be read as Zarr ({problem}): name the folder of an array or a group") from None
    # Zarr accepts both, and would fail later.
    if not isinstance(found.metadata.attributes, Mapping):
        raise InputError(f"{path} has the attributes {found.metadata.attributes!r}: it is damaged, copy it again")
    if isinstance(found, zarr.Array):
        if 0 in found.chunks:
            raise InputError(f"{path} has chunks of {found.chunks} elements: it is damaged, copy it again")
        size = math.prod(found.chunks) * np.dtype(found.dtype).itemsize
        check_memory(size, f"the chunks of {path}", "write smaller ones, or copy it again if it is damaged")
    return found


def dimension_names(array: Any) -> tuple[str | None, ...]:
    """Return the names of the axes of a Zarr array, as Zarr 3 and xarray store them; None for axes without a name."""
    # Zarr 2 has no place for them: xarray uses an attribute.
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    if not isinstance(names, list | tuple) or len(names) != array.ndim:
        return (None,) * array.ndim
    return tuple(name if isinstance(name, str) else None for name in names)


def _choose_array(path: Path, names: tuple[str, ...]) -> tuple[Any, Any]:
    node = open_zarr(path)
    if hasattr(node, "shape"):
        return node, None
    # Not by `array_keys` of Zarr, which ends at the first damaged member, also at one that nobody asked for.
    chosen = next((name for name in names if (path / name).is_dir()), None)
    if chosen is None:
        files = "zarr.json", ".zarray"
        inside = [each for each in sorted(path.iterdir()) if any((each / name).is_file() for name in files)]
        several = [each.name for each in inside if getattr(open_zarr(each), "ndim", 0) in (2, 3)]
        if len(several) != 1:
            found = ", ".join(several) or "none of two or three axes"
            raise InputError(f"{path} holds the arrays {found}: name one, such as {path}/{(several or names)[0]}")
        chosen = several[0]
    array = open_zarr(path / chosen)
    if not hasattr(array, "shape"):
        raise InputError(f"{path / chosen} is a group: name an array in it")
    return array, node


class Field(NamedTuple):
    """One array of ``result.zarr``.

    Attributes
    ----------
    values : numpy.ndarray or DistributedArray
        An array that the first rank writes, or one split along its first axis, whose ranks write their rows.
    dimensions : tuple of str
        Names of its axes. An array with the name of its only axis is that axis' coordinate.
    unit : str
        ``"1"`` for a pure number.
    is_coordinate : bool
        Whether xarray shows it as a coordinate although it has another name than its axis.

    Examples
    --------
    >>> import numpy as np
    >>> from collops.extend.applications import Field
    >>> Field(np.zeros((3, 2)), ("time", "trace"), "Pa").is_coordinate
    False
    """

    values: Any
    dimensions: tuple[str, ...]
    unit: str
    is_coordinate: bool = False


def prepare_folder(folder: Path, option: str = "--out") -> None:
    """Create a folder, which `option` names, or raise `InputError` if that is impossible or it cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder with {option}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as problem:
        reason = problem.strerror or problem
        raise InputError(f"cannot write into the folder {folder} ({reason}): name another one with {option}") from None


def share_folders(comm: Communicator, folders: Mapping[str, Path]) -> None:
    """Create folders, and prove that every rank can read and write what rank 0 writes there. Collective.

    `folders` are named by the options that choose them.

    Raises
    ------
    InputError
        On every rank, if a folder cannot be created or written, or if some ranks see another one or none. It names
        these ranks and their hosts.
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
                    f"rank 0 on {hosts[0]} can write into the folder {folder}, but not {blind}: name a folder "
                    f"that all of them share with {option}"
                )


def check_absent(paths: Sequence[Path]) -> None:
    """Raise `InputError` if any of the files that a job will write exists."""
    if found := [str(path) for path in paths if os.path.lexists(path)]:
        raise InputError(
            f"there are results of an earlier run: {', '.join(found)}; replace them with --overwrite, or name another "
            "folder with --out"
        )


def check_room(folder: Path, needed: int, option: str) -> None:
    """Raise `InputError` unless a folder has room for so many bytes."""
    if needed > (free := free_room(folder)):
        raise InputError(
            f"the results need {in_words(needed)}, and {folder} has room for {in_words(free)}: make room, or name "
            f"another folder with {option}"
        )


def check_writable(path: Path) -> None:
    """Raise `InputError` unless a file could be created at `path`; leave alone what may be there."""
    if path.is_dir() and path.suffix != ".zarr":
        raise InputError(f"{path} is a folder: name a file, or a Zarr store .zarr")
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

    # Blocks move to where the boundaries of chunks are, so that no two ranks write one chunk.
    aligned = {name: _in_chunks(field.values, comm) for name, field in fields.items()}
    mine: dict[str, tuple[Any, np.ndarray]] = {}  # the region that this rank writes, and its values
    for name, (values, _) in aligned.items():
        if not isinstance(values, np.ndarray):
            if values.local_array.size:
                mine[name] = values.layout.slices(comm.rank), values.engine.to_host(values.local_array)
        elif comm.rank == 0:
            mine[name] = tuple(slice(0, extent) for extent in values.shape), values

    def create(place: Path) -> None:
        more = {"coordinates": " ".join(name for name, field in fields.items() if field.is_coordinate)}
        group = zarr.open_group(place, mode="w-", zarr_format=3, attributes={**attributes, **more})
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

    def write(place: Path) -> None:
        group = open_node(place, mode="r+")
        for name, (region, values) in mine.items():
            write_region(group[name], region, values)

    with atomic_together(path, comm, stage=local_stage) as place, zarr.config.set({"array.write_empty_chunks": True}):
        with local_stage(comm):
            if comm.rank == 0:
                in_time(lambda: create(place), path)
        with local_stage(comm):
            in_time(lambda: write(place), path, sum(values.nbytes for _, values in mine.values()))
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
