"""Matrix Market files of any of the format's kinds, checked before SciPy reads them."""

from __future__ import annotations

import bz2
import gzip
import inspect
import os
import zlib
from pathlib import Path
from typing import Any

from collops.backend import engine, memory_of
from collops.errors import InputError

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


def _check_size(path: Path, rows: int, columns: int, entries: int, form: str, _: str, symmetry: str) -> None:
    """Raise for a file whose first lines announce more than it can hold, before memory is allocated."""
    fewest = 4 if form == "coordinate" else 2  # bytes of the line of an entry: two indices or a value, and the ends
    if form == "array" and symmetry != "general":
        entries = rows * (rows - 1) // 2  # without the other triangle, which the file leaves out
    held = os.stat(path).st_size if path.suffix not in (".gz", ".bz2") else None
    if held is not None and entries * fewest > held + fewest:
        raise InputError(f"{path} promises {entries} entries but has {held} bytes: it is truncated or damaged")
    if 8 * max(rows, columns) > memory_of(engine("numpy")):
        raise InputError(
            f"{path} is a matrix of {rows} x {columns}: its vectors do not fit into the memory of this machine"
        )
