"""Matrix Market files of any of the format's kinds, checked before SciPy reads them."""

from __future__ import annotations

import bz2
import gzip
import inspect
import os
import zlib
from pathlib import Path
from typing import Any

from collops.errors import InputError
from collops.limits import available_memory, in_words

__all__ = ["read_matrix"]

_TEXT = b"0123456789+-.eEinfatyINFATY \t\r\n"
_CHUNK = 1 << 24


def read_matrix(path: str | Path) -> Any:
    """Return the matrix of a file by coordinates, symmetric parts written out; raise InputError. Not collective."""
    from scipy import io, sparse

    try:
        _check_text(Path(path))
        _check_size(Path(path), *io.mminfo(path))
        # SciPy before 1.15 has matrices alone; after that it warns where the kind is left open.
        arrays = {"spmatrix": False} if "spmatrix" in inspect.signature(io.mmread).parameters else {}
        found = io.mmread(path, **arrays)
    except InputError:
        raise
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}") from None
    except (EOFError, TypeError, ValueError, OverflowError, zlib.error) as problem:
        raise InputError(f"{path} is no Matrix Market file: {problem}") from None
    return sparse.coo_array(found)


def _check_text(path: Path) -> None:
    """Raise for files with other characters than numbers: SciPy's parser reads beyond its memory there."""
    opened = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opened(path, "rb") as file:
        chunk = file.readline()
        while chunk.startswith(b"%"):  # comments may be in any language
            chunk = file.readline()
        while chunk:
            if chunk.translate(None, _TEXT):
                raise InputError(f"{path} is no Matrix Market file: it has other characters than those of numbers")
            chunk = file.read(_CHUNK)


def _check_size(path: Path, rows: int, columns: int, entries: int, form: str, kind: str, symmetry: str) -> None:
    """Raise for a file whose first lines announce more than it, or the memory, can hold, before any is allocated."""
    fewest = 4 if form == "coordinate" else 2  # bytes of the line of an entry: two indices or a value, and the ends
    if form == "array" and symmetry != "general":
        entries = rows * (rows - 1) // 2  # without the other triangle, which the file leaves out
    held = os.stat(path).st_size if path.suffix not in (".gz", ".bz2") else None
    if held is not None and entries * fewest > held + fewest:
        raise InputError(f"{path} promises {entries} entries but has {held} bytes: it is truncated or damaged")
    value, index = 16 if kind == "complex" else 8, 4 if max(rows, columns) < 1 << 31 else 8
    needed = 8 * max(rows, columns)  # a vector, and the matrix as SciPy reads it:
    if form == "array":
        needed += value * rows * columns
    else:
        needed += (value + 2 * index) * entries * (1 if symmetry == "general" else 2)
    if needed > (available := available_memory()):
        raise InputError(
            f"{path} is a matrix of {rows} x {columns} with {entries} entries, which need {in_words(needed)} of "
            f"memory, and this process can still use {in_words(available)}"
        )
