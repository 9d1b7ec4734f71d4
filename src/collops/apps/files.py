"""Read arrays from NumPy files and Zarr stores, and write results: a reader sees a whole file or none."""

from __future__ import annotations

import math
import os
import platform
import tempfile
import tokenize
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collops.apps.stages import local_stage
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
    "read_times",
    "unit_of",
    "write_result",
]

_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-9),
}

_CHUNK_BYTES = 16 << 20


def read_rows(array: Any, path: Path, rows: Any) -> np.ndarray:
    """Read rows along the first axis of an array from `open_array`; raise `InputError` if the file is damaged.

    `rows` is a slice, or whatever else is an index of `array`.
    """
    try:
        return np.asarray(array[rows])
    except (OSError, ValueError, RuntimeError) as problem:
        raise InputError(f"{path} cannot be read ({problem}): it is damaged, copy it again") from None


def decoded(array: Any, path: Path, index: Any = ...) -> np.ndarray:
    """Read values by an index, float32 or float64, with the conventions by which xarray packs them in Zarr.

    An index that holds arrays has one for each axis.
    """
    orthogonal = isinstance(index, tuple) and any(isinstance(each, np.ndarray) for each in index)
    values, packing = read_rows(array.oindex if orthogonal else array, path, index), getattr(array, "attrs", {})
    numbers = [packing.get(name) for name in ("_FillValue", "scale_factor", "add_offset")]
    fill, factor, shift = (each if isinstance(each, int | float) else None for each in numbers)
    missing = None if fill is None or values.dtype.kind not in "iu" else values == fill
    values = values.astype(np.promote_types(values.dtype, np.float32), copy=False)
    if missing is not None and missing.any():
        values[missing] = np.nan
    return values if factor is None and shift is None else values * (1.0 if factor is None else factor) + (shift or 0.0)


def unit_of(array: Any) -> str | None:
    """Return the unit of a Zarr array, as xarray or as MDIO keeps it."""
    given = array.attrs.get("units", array.attrs.get("unitsV1"))
    if isinstance(given, Mapping):
        given = next(iter(given.values()), None)
    return None if given is None else str(given).strip()


def read_times(times: Any, path: Path, samples: int, group: Any) -> tuple[float, float]:
    """Return the interval and the first time in seconds from the array of the times of all samples, in a Zarr group."""
    # MDIO writes milliseconds, by default without saying so.
    unit = unit_of(times) or ("ms" if "apiVersion" in group.attrs else None)
    if unit not in _SECONDS:
        found = "no unit" if unit is None else f"the unit {unit}"
        raise InputError(f"{path} has {found}: set its attribute units to one of time, such as s or ms")
    if getattr(times, "shape", None) != (samples,) or samples < 2:
        raise InputError(f"{path} is no array of the times of {samples} samples: write at least two, one for each")
    values = _SECONDS[unit] * decoded(times, path).astype(np.float64)
    interval = float(values[-1] - values[0]) / (samples - 1)
    if not np.abs(values - values[0] - interval * np.arange(samples)).max() < 0.01 * interval:
        raise InputError(f"{path} does not increase by a constant interval: resample the traces to one")
    # Rounded to seven digits (of milliseconds to a nanosecond), because differences of times carry rounding errors.
    digits = 6 - math.floor(math.log10(interval))
    return round(interval, digits), round(float(values[0]), digits)


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
        array = None if is_archive else np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, OverflowError, SyntaxError, tokenize.TokenError) as problem:
        raise InputError(f"{path} is no NumPy file of numbers, or is damaged ({problem}): save it again") from None
    if array is None:
        raise InputError(f"{path} is an archive of arrays: save the one array alone with numpy.save")
    return array


def is_zarr(path: str | Path) -> bool:
    """Return whether a path is in a Zarr store by its name, or a folder, as stores of other names are."""
    path = Path(path)
    return any(part.endswith(".zarr") for part in path.parts) or path.is_dir()


def open_zarr(path: Path, node: Any = None) -> Any:
    """Open a Zarr array or group without reading values, or, of a group `node`, the member that `path` ends in.

    Raises `InputError` if there is none, or if it is damaged.
    """
    import zarr

    try:
        found = zarr.open(str(path), mode="r") if node is None else node[path.name]
    except (OSError, RuntimeError, *ARGUMENT_ERRORS) as problem:
        raise InputError(f"{path} cannot be read as Zarr ({problem}): name the folder of an array or a group") from None
    if isinstance(found, zarr.Array) and 0 in found.chunks:  # Zarr would divide by it
        raise InputError(f"{path} has chunks of {found.chunks} elements: it is damaged, copy it again")
    return found


def dimension_names(array: Any) -> tuple[str | None, ...]:
    """Return the names of the axes of a Zarr array, as Zarr 3 and xarray store them; None for axes without a name."""
    # Zarr 2 has no place for them: xarray uses an attribute.
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")
    return tuple(names) if names is not None and len(names) == array.ndim else (None,) * array.ndim


def _choose_array(path: Path, names: tuple[str, ...]) -> tuple[Any, Any]:
    node = open_zarr(path)
    if hasattr(node, "shape"):
        return node, None
    arrays = {name: open_zarr(path / name, node) for name in node.array_keys()}
    several = [name for name, array in arrays.items() if array.ndim in (2, 3)]
    chosen = next((name for name in names if name in arrays), several[0] if len(several) == 1 else None)
    if chosen is None:
        found = ", ".join(sorted(several)) or "none of two or three axes"
        raise InputError(f"{path} holds the arrays {found}: name one, such as {path}/{(several or names)[0]}")
    return arrays[chosen], node


class Field(NamedTuple):
    """One array of a result."""

    values: Any  # an array that the first rank writes, or one split along its first axis, whose ranks write their rows
    dimensions: tuple[str, ...]  # names of its axes; an array with the name of its only axis is that axis' coordinate
    unit: str  # "1" for a pure number
    is_coordinate: bool = False  # whether xarray shows it as a coordinate although it is none of an axis


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
