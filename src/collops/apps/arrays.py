"""Arrays in files: NumPy files and Zarr stores, opened without being read, of which each rank reads its own rows."""

from __future__ import annotations

import tokenize
from pathlib import Path
from typing import Any

import numpy as np

from collops.errors import InputError

__all__ = ["check_kind", "is_zarr", "open_array", "open_npy", "read_rows"]


def check_kind(path: Path, *others: str) -> None:
    """Raise unless a file is of a kind that can be opened: NumPy's, Zarr's, or with one of the suffixes `others`."""
    if path.suffix.lower() not in (".npy", *others) and not is_zarr(path):
        kinds = ", ".join([*others, ".npy"])
        raise InputError(f"{path} cannot be read: name a file {kinds}, or a Zarr store .zarr")


def read_rows(array: Any, path: Path, rows: slice) -> np.ndarray:
    """Read rows along the first axis of an array from `open_array`; a damaged file raises InputError."""
    try:
        return np.asarray(array[rows])
    except (OSError, ValueError, RuntimeError) as problem:
        raise InputError(f"{path} cannot be read ({problem}): it is damaged, copy it again") from None


def is_zarr(path: Path) -> bool:
    """Return whether a path names a Zarr store, or an array inside one."""
    return any(part.endswith(".zarr") for part in path.parts) or (path / "zarr.json").is_file()


def open_array(path: Path, names: tuple[str, ...]) -> tuple[Any, Any]:
    """Open an array of real numbers without reading it; return it, and the Zarr group that holds it.

    The path is that of a .npy file, a Zarr array, or a Zarr group. From a group it takes the first array among `names`,
    else its only array of two or three axes.

    Raises
    ------
    InputError
        If there is no such array.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist: check the name")
    array, group = _open_zarr(path, names) if is_zarr(path) else (open_npy(path), None)
    if np.dtype(array.dtype).kind not in "fiu":
        raise InputError(f"{path} holds {array.dtype}: save real numbers")
    return array, group


def open_npy(path: Path) -> np.ndarray:
    """Open a file of NumPy without executing anything in it or reading beyond its end.

    Raises
    ------
    InputError
        If it is missing or damaged, or holds objects or several arrays.
    """
    try:
        with path.open("rb") as file:
            is_archive = file.read(2) == b"PK"  # which NumPy would leave open
        array = None if is_archive else np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, OverflowError, SyntaxError, tokenize.TokenError) as problem:
        raise InputError(f"{path} is no NumPy file of numbers, or is damaged ({problem}): save it again") from None
    if array is None:
        raise InputError(f"{path} is an archive of arrays: save the one array alone with numpy.save")
    return array


def _open_zarr(path: Path, names: tuple[str, ...]) -> tuple[Any, Any]:
    import zarr

    try:
        node = zarr.open(str(path), mode="r")
        if isinstance(node, zarr.Array):
            return node, None
        arrays = dict(node.arrays())
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise InputError(f"{path} cannot be read as Zarr ({problem}): name the folder of an array or a group") from None
    several = [name for name, array in arrays.items() if array.ndim in (2, 3)]
    chosen = next((name for name in names if name in arrays), several[0] if len(several) == 1 else None)
    if chosen is None:
        found = ", ".join(sorted(several)) or "none of two or three axes"
        raise InputError(f"{path} holds the arrays {found}: name one, such as {path}/{(several or names)[0]}")
    return arrays[chosen], node
